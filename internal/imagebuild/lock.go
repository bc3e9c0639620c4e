package imagebuild

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"glovebox"
)

// Locked is one package with the hash of what was fetched for it.
type Locked struct {
	Tool, Name, Version, Hash string
}

const lockHead = "# Made by glovebox image build: what the image is made of, by hash. A build refuses anything else.\n"

var lockLine = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(apt|pip|npm|go) ([^ ]{1,500}) ([^ ]{1,160}) ((?:sha256|sha512|h1)[:-][A-Za-z0-9+/=]{32,128})$`)
})

// ParseLock reads a lock file.
func ParseLock(text []byte) ([]Locked, error) {
	var list []Locked
	number := 0
	for line := range bytes.Lines(text) {
		number++
		s := strings.TrimSpace(string(line))
		if s == "" || strings.HasPrefix(s, "#") {
			continue
		}
		m := lockLine().FindStringSubmatch(s)
		if m == nil {
			return nil, glovebox.Errorf(glovebox.CodeInvalid, "restore the file, or make it anew with --update-lock",
				"line %d of the lock file is none", number)
		}
		l := Locked{m[1], m[2], m[3], m[4]}
		if err := l.check(); err != nil {
			return nil, glovebox.Errorf(glovebox.CodeInvalid, "restore the file, or make it anew with --update-lock",
				"line %d of the lock file names no package that %s can be asked for", number, l.Tool)
		}
		list = append(list, l)
	}
	return list, nil
}

// check refuses what a tool would take for something else than a package. A lock file comes with a recipe, from whoever made
// that: pip, say, runs what an address in it leads to. npm is asked for nothing that is in a lock file.
func (l Locked) check() error {
	switch l.Tool {
	case "apt":
		return CheckPackage(l.Tool, l.Name+"="+l.Version)
	case "pip":
		return CheckPackage(l.Tool, l.Name+"=="+l.Version)
	}
	return nil
}

// FormatLock writes a lock file.
func FormatLock(list []Locked) []byte {
	var b bytes.Buffer
	b.WriteString(lockHead)
	for _, l := range sorted(list) {
		fmt.Fprintf(&b, "%s %s %s %s\n", l.Tool, l.Name, l.Version, l.Hash)
	}
	return b.Bytes()
}

func sorted(list []Locked) []Locked {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b Locked) int {
		return strings.Compare(a.Tool+" "+a.Name+" "+a.Version, b.Tool+" "+b.Name+" "+b.Version)
	})
	return list
}

// of are the packages of one tool.
func of(list []Locked, tool string) []Locked {
	return slices.DeleteFunc(slices.Clone(list), func(l Locked) bool { return l.Tool != tool })
}

// compare refuses what was fetched if it is not what the lock file says.
func compare(tool string, fetched, locked []Locked) error {
	const fix = "if the recipe or the registry changed on purpose, look through what --update-lock makes of the lock file"
	known := map[string]Locked{}
	for _, l := range of(locked, tool) {
		known[l.Name] = l
	}
	for _, f := range sorted(fetched) {
		l, ok := known[f.Name]
		delete(known, f.Name)
		switch {
		case !ok:
			return glovebox.Errorf(glovebox.CodeConflict, fix, "the lock file has no %s %s", tool, f.Name)
		case l.Version != f.Version:
			return glovebox.Errorf(glovebox.CodeConflict, fix, "the lock file has %s %s in version %s, and %s was fetched",
				tool, f.Name, l.Version, f.Version)
		case l.Hash != f.Hash:
			return glovebox.Errorf(glovebox.CodeConflict, fix, "%s %s %s has another hash than in the lock file", tool, f.Name,
				f.Version)
		}
	}
	for _, l := range of(locked, tool) {
		if _, left := known[l.Name]; left {
			return glovebox.Errorf(glovebox.CodeConflict, fix, "%s %s is in the lock file and not needed any more", tool, l.Name)
		}
	}
	return nil
}
