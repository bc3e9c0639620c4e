package imagebuild

import (
	"path"
	"regexp"
	"strings"
	"sync"

	"glovebox"
	"glovebox/internal/image"
	"glovebox/internal/imagestore"
)

// Release is the base that is made anew, from packages of the distribution that the host has.
const Release = "release"

// Recipe says what an image is made of. What is wrong with it is an error with code invalid whose Op is the key at fault.
type Recipe struct {
	// Base is Release, or the name of an image.
	Base string
	// Apt, Pip, Npm and Go are packages: for each tool what it is asked for, such as python3-numpy, requests==2.32.3,
	// left-pad@1.3.0.
	Apt, Pip, Npm, Go []string
	// Files are put into the image last.
	Files []File
	// Env are variables that runs have.
	Env map[string]string
	// Preimport are Python modules that are loaded beforehand where a program names one.
	Preimport []string
}

// File is a file of the image.
type File struct {
	Path       string // absolute and clean
	Data       []byte
	Executable bool
}

// Bounds of a recipe.
const (
	maxPackages = 1000
	maxPackage  = 500 // bytes of its name
	maxFiles    = 1000
)

var patterns = map[string]func() *regexp.Regexp{
	"apt": sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]{0,126}[a-z0-9+.](:[a-z0-9]+)?(=[A-Za-z0-9.+:~-]{1,127})?$`)
	}),
	"pip": sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}(\[[A-Za-z0-9,._-]{1,127}\])?` +
			`((==|>=|<=|~=|!=|<|>)[A-Za-z0-9.*+!_-]{1,63},?){0,4}$`)
	}),
	"go": sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^[a-z0-9][a-z0-9.-]*\.[a-z]+(/[A-Za-z0-9_~][A-Za-z0-9._~-]*)*@v[0-9][A-Za-z0-9.+-]*$`)
	}),
	"npm": sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^(@[a-z0-9][a-z0-9._-]{0,127}/)?[a-z0-9][a-z0-9._-]{0,127}(@[A-Za-z0-9.^~<>=*+-]{1,63})?$`)
	}),
}

// CheckPackage refuses what cannot be asked of a tool.
func CheckPackage(tool, p string) error {
	if len(p) <= maxPackage && patterns[tool]().MatchString(p) {
		return nil
	}
	return glovebox.Errorf(glovebox.CodeInvalid,
		"write names as "+tool+" knows them, perhaps with a version; no addresses, paths or flags",
		"%.120q is no package that %s can be asked for", p, tool)
}

// CheckPath refuses a path that an image cannot have a file at.
func CheckPath(p string) error {
	if !path.IsAbs(p) || path.Clean(p) != p || p == "/" || strings.ContainsAny(p, "\x00\n") {
		return glovebox.Errorf(glovebox.CodeInvalid, "write an absolute path such as /etc/name, without . or ..",
			"%.120q is no path for a file of an image", p)
	}
	if image.Covered(p) {
		return glovebox.Errorf(glovebox.CodeInvalid, "put it elsewhere, such as beneath /opt, or pass it with --input",
			"no program would see %.120q of an image: every sandbox has its own there", p)
	}
	return nil
}

func (r *Recipe) check(name string) error {
	for tool, list := range map[string][]string{"apt": r.Apt, "pip": r.Pip, "npm": r.Npm, "go": r.Go} {
		if len(list) > maxPackages {
			return keyed(tool, glovebox.Errorf(glovebox.CodeInvalid, "name fewer", "there are more than %d packages", maxPackages))
		}
		for _, p := range list {
			if err := CheckPackage(tool, p); err != nil {
				return keyed(tool, err)
			}
		}
	}
	for _, f := range r.Files {
		if err := CheckPath(f.Path); err != nil {
			return keyed("files", err)
		}
	}
	if _, err := image.NewSettings(r.Env, nil); err != nil {
		return keyed("env", err)
	}
	if _, err := image.NewSettings(nil, r.Preimport); err != nil {
		return keyed("preimport", err)
	}
	switch {
	case len(r.Files) > maxFiles:
		return keyed("files", glovebox.Errorf(glovebox.CodeInvalid, "pack them and import the archive",
			"there are more than %d files", maxFiles))
	case r.Base == Release:
		return nil
	case r.Base == "host":
		return keyed("base", glovebox.Errorf(glovebox.CodeInvalid, "say base: "+Release+
			", which makes the release of this machine's distribution anew, or name an image",
			"host is what this machine itself has, and no base"))
	case r.Base == name:
		return keyed("base", glovebox.Errorf(glovebox.CodeInvalid, "name another image, or say --name",
			"the image is its own base"))
	case len(r.Apt) > 0:
		return keyed("apt", glovebox.Errorf(glovebox.CodeUnavailable, "say base: "+Release+", or leave apt out",
			"packages of the distribution can be installed over the base %s alone", Release))
	}
	if imagestore.CheckName(r.Base) != nil {
		return keyed("base", glovebox.Errorf(glovebox.CodeInvalid, "say base: "+Release+", or name an image that "+
			"`glovebox image ls` lists", "%.80q cannot be the name of an image", r.Base))
	}
	return nil
}
