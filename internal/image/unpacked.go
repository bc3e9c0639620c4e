package image

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"glovebox"
	"glovebox/driver"
	"glovebox/internal/unpack"
)

const hostName = "host"

// Reserved are the names in the root folder that are every sandbox's own, whatever the image.
func Reserved() []string {
	return []string{"code", "dev", "inputs", "outputs", "proc", "run", "sys", "tmp", "workspace"}
}

// passwords are the lists of passwords, which no image has.
var passwords = []string{"/etc/shadow", "/etc/gshadow", "/etc/shadow-", "/etc/gshadow-", "/etc/passwd-", "/etc/group-"}

// inVar are the links that every image has in /var.
var inVar = map[string]string{"/var/tmp": "/tmp", "/var/run": "/run"}

// Covered tells whether no program would see what an image has at an absolute path, since every sandbox has its own there.
func Covered(path string) bool {
	if top, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/"); slices.Contains(Reserved(), top) {
		return true
	}
	for name := range inVar {
		if path == name || strings.HasPrefix(path, name+"/") {
			return true
		}
	}
	own := func(f driver.File) bool { return f.Path == path && !keeps(f.Path) }
	return path == "/etc/localtime" || slices.Contains(passwords, path) || slices.ContainsFunc(synthetic, own)
}

// keeps tells whether the image's own file at a path goes before the one that every image has.
func keeps(path string) bool { return path == "/etc/shells" || path == "/etc/timezone" }

// Settings is what an image says beside its files.
type Settings struct {
	// Env are variables that a run has unless it sets them itself, as NAME=VALUE, sorted.
	Env []string
	// Modules are Python modules that are worth loading beforehand where a program names one.
	Modules []string
	// Distribution says that its programs are packages of the distribution's, as the host's are, and nobody else's.
	Distribution bool
}

// Bounds of Settings.
const (
	maxEnv     = 256
	maxEnvSize = 64 << 10
	maxModules = 64
)

// NewSettings checks what an image says beside its files. HOME and TMPDIR are every sandbox's own and left out. Errors are
// *glovebox.Error with code invalid.
func NewSettings(env map[string]string, modules []string) (Settings, error) {
	const fix = "leave it out of the image"
	var s Settings
	size := 0
	for name, value := range env {
		switch size += len(name) + len(value); {
		case name == "HOME" || name == "TMPDIR":
			continue
		case !variable(name) || strings.ContainsAny(value, "\x00\n"):
			return s, glovebox.Errorf(glovebox.CodeInvalid, fix, "the image sets %.60q, which is no variable that can be set", name)
		}
		s.Env = append(s.Env, name+"="+value)
	}
	if len(env) > maxEnv || size > maxEnvSize {
		return s, glovebox.Errorf(glovebox.CodeInvalid, "set fewer", "the image sets more than %d variables, or %d bytes of them",
			maxEnv, maxEnvSize)
	}
	slices.Sort(s.Env)
	for _, m := range modules {
		if !module(m) {
			return s, glovebox.Errorf(glovebox.CodeInvalid, "write it as Python imports it", "%.60q is no name of a module", m)
		}
	}
	if len(modules) > maxModules {
		return s, glovebox.Errorf(glovebox.CodeInvalid, "name fewer", "there are more than %d modules to load", maxModules)
	}
	s.Modules = slices.Clone(modules)
	return s, nil
}

// variable tells whether a name is letters, digits and _, not beginning with a digit.
func variable(s string) bool {
	for i := range len(s) {
		c := s[i]
		letter := c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != "" && len(s) <= 255
}

func module(s string) bool {
	for part := range strings.SplitSeq(s, ".") {
		if !variable(part) {
			return false
		}
	}
	return true
}

// Unpacked describes the image that was unpacked into the folder dir, which must not change while the image is used. digest
// is that of all it holds, such as sha256:….
func Unpacked(name, dir, digest string, settings Settings) (*Image, error) {
	tops, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("look at the image: %w", err)
	}
	im := &Image{name: name, host: tree{root: filepath.Clean(dir)}, ident: name + "@" + digest, settings: settings,
		modules: func() []string { return settings.Modules }}
	for _, top := range tops {
		p := "/" + top.Name()
		if top.Type() != fs.ModeSymlink {
			im.root.Mounts = append(im.root.Mounts, driver.Mount{Source: im.host.join(p), Target: p})
			continue
		}
		target, err := os.Readlink(im.host.join(p))
		if err != nil {
			return nil, fmt.Errorf("look at the image: %w", err)
		}
		im.root.Links = append(im.root.Links, driver.Link{Path: p, Target: target})
	}
	return im, nil
}

// Forks tells whether the image's Python may be the template of others. A template makes sandboxes: it is fenced less than a
// program is, lives on from run to run, and sees the inputs of its copies. That is no place for an interpreter of a
// stranger's.
func (im *Image) Forks() bool { return im.isHost() || im.settings.Distribution }

// usualModules are what of the host's Python is loaded before a program that names one of them, as far as it is there.
var usualModules = []string{"numpy", "pandas", "openpyxl", "matplotlib"}

// Modules are Python modules that are worth loading beforehand where a program names one: those that the image says, of the
// host the usual ones that it has.
func (im *Image) Modules() []string { return slices.Clone(im.modules()) }

// dataModules are those of the host.
func (im *Image) dataModules() []string {
	packages := im.pythonPackages()
	return slices.DeleteFunc(slices.Clone(usualModules), func(m string) bool { return !slices.Contains(packages, m) })
}

// maxAccounts bounds the lists of users and groups that an image brings.
const maxAccounts = 64 << 10

// Settle makes of an unpacked tree what a sandbox can show: the files of /etc that say what machine and who this is are
// every sandbox's own, the image's system users and groups stay, and lists of passwords go. Nothing of an image lies
// where a sandbox has its own folders.
func Settle(t *unpack.Tree) error {
	if kind := t.Names("/")["etc"]; kind != unpack.Folder { // a link would put the files elsewhere
		if err := t.Remove("/etc"); err != nil {
			return err
		}
	}
	for _, f := range synthetic {
		data := f.Data
		own, err := t.Read(f.Path, maxAccounts)
		switch {
		case err != nil:
		case f.Path == "/etc/passwd" || f.Path == "/etc/group":
			data = accounts(f.Data, own)
		case keeps(f.Path):
			continue
		}
		if err := t.Put(f.Path, data, false); err != nil {
			return err
		}
	}
	for _, name := range passwords {
		if err := t.Remove(name); err != nil {
			return err
		}
	}
	for name, target := range inVar {
		if kind := t.Names("/")["var"]; kind != unpack.Folder {
			continue
		}
		if err := t.Symlink(name, target); err != nil {
			return err
		}
	}
	if _, err := t.Read(utc, maxAccounts); err == nil {
		return t.Symlink("/etc/localtime", utc)
	}
	return nil
}

// accounts are a sandbox's own lines and those of an image that contradict none of them, by name or number.
func accounts(own, image []byte) []byte {
	names, numbers := map[string]bool{}, map[string]bool{}
	var out strings.Builder
	take := func(text string, any bool) {
		for line := range strings.Lines(text) {
			fields := strings.Split(strings.TrimRight(line, "\n"), ":")
			if len(fields) < 3 || names[fields[0]] || !any && numbers[fields[2]] {
				continue
			}
			names[fields[0]], numbers[fields[2]] = true, true
			if fields[1] != "x" { // a password
				fields[1] = "*"
			}
			out.WriteString(strings.Join(fields, ":") + "\n")
		}
	}
	take(string(own), true)
	take(string(image), false)
	return []byte(out.String())
}
