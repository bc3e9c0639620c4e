package image

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"

	"glovebox"
)

// defaultPath is where a program is looked up: the PATH of every run whose image has none of its own.
var defaultPath = []string{"/usr/local/bin", "/usr/bin", "/bin"}

// searchPath is where a program of the image is looked up.
func (im *Image) searchPath() []string {
	for _, v := range im.settings.Env {
		if value, ok := strings.CutPrefix(v, "PATH="); ok {
			return slices.DeleteFunc(strings.Split(value, ":"), func(dir string) bool { return !path.IsAbs(dir) })
		}
	}
	return defaultPath
}

// isHost tells whether the image is what this machine has, rather than what was unpacked.
func (im *Image) isHost() bool { return im.name == hostName }

// list joins words as people do.
func list(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
}

// languages are what Interpreter knows. The first program found is taken.
var languages = map[string]struct {
	programs []string
	packages map[string]string // package manager → package, where it is not called as under ""
}{
	"python": {[]string{"python3"}, map[string]string{"": "python3", "pacman": "python"}},
	"node":   {[]string{"node", "nodejs"}, map[string]string{"": "nodejs"}},
	"bash":   {[]string{"bash"}, map[string]string{"": "bash"}},
}

// managers are the package managers, by the programs that tell which one a host has.
var managers = []struct {
	name    string
	places  []string
	install string
}{
	{"apt-get", []string{"/usr/bin/apt-get"}, "apt-get install -y "},
	{"dnf", []string{"/usr/bin/dnf", "/usr/bin/dnf5", "/usr/bin/microdnf"}, "dnf install -y "},
	{"apk", []string{"/sbin/apk", "/usr/sbin/apk"}, "apk add "},
	{"pacman", []string{"/usr/bin/pacman"}, "pacman -S --noconfirm "},
	{"zypper", []string{"/usr/bin/zypper"}, "zypper install -y "},
}

// notable are the Python packages worth naming to whoever writes a program, by the folder that each one installs.
var notable = []string{
	"PIL", "bs4", "cv2", "dateutil", "docx", "duckdb", "jinja2", "lxml", "matplotlib", "networkx", "numpy", "openpyxl",
	"pandas", "polars", "pyarrow", "pydantic", "pypdf", "requests", "scipy", "seaborn", "sklearn", "statsmodels", "sympy",
	"torch", "xlsxwriter", "yaml",
}

// Interpreter is the path, inside the image, of what runs a language: python, node or bash. Its error is a *glovebox.Error:
// invalid for another language, unavailable, with the command that installs it, when the image has none. An interpreter of
// the host outside of the image, such as one in a person's home, does not count.
func (im *Image) Interpreter(lang string) (string, error) {
	l, ok := languages[lang]
	if !ok {
		return "", glovebox.Errorf(glovebox.CodeInvalid, "use one of bash, node, python, or give argv",
			"no language is called %.40q", lang)
	}
	for _, name := range l.programs {
		if p, _, ok := im.program(name); ok {
			return p, nil
		}
	}
	fix := im.install(lang)
	if im.isHost() {
		fix = "run as root: " + fix
	}
	return "", glovebox.Errorf(glovebox.CodeUnavailable, fix,
		"the runtime image %s has no interpreter for %s in %s", im.name, lang, list(im.searchPath()))
}

// Report tells what the image can run, for doctor. It reads a little more than a run does.
func (im *Image) Report() glovebox.Image {
	r := glovebox.Image{Name: im.name, Identity: im.ident, Languages: map[string]string{}, Missing: map[string]string{}}
	for _, lang := range slices.Sorted(maps.Keys(languages)) {
		p, err := im.Interpreter(lang)
		if err != nil {
			r.Missing[lang] = im.install(lang)
			continue
		}
		r.Languages[lang] = strings.TrimSpace(p + " " + im.version(lang))
	}
	r.Packages = im.pythonPackages()
	return r
}

// program finds a program by name as a run would, with where it leads. Every link on the way and the program itself must
// be part of the image.
func (im *Image) program(name string) (string, place, bool) {
	for _, dir := range im.searchPath() {
		p := path.Join(dir, name)
		at, ok := im.host.resolve(p)
		if !ok || !at.info.Mode().IsRegular() || at.info.Mode()&0o111 == 0 || !im.visible(at.real) {
			continue
		}
		if !slices.ContainsFunc(at.links, func(l string) bool { return !im.linked(l) && !im.visible(l) }) {
			return p, at, true
		}
	}
	return "", place{}, false
}

// linked reports whether the image itself makes the link p.
func (im *Image) linked(p string) bool {
	for _, l := range im.root.Links {
		if l.Path == p {
			return true
		}
	}
	return false
}

// install is the command that installs a language with the host's own package manager.
func (im *Image) install(lang string) string {
	if !im.isHost() {
		return "name an image that has " + languages[lang].packages[""] + ": `glovebox image ls`"
	}
	for _, m := range managers {
		for _, p := range m.places {
			if _, ok := im.host.resolve(p); !ok {
				continue
			}
			pkg := languages[lang].packages[m.name]
			if pkg == "" {
				pkg = languages[lang].packages[""]
			}
			return m.install + pkg
		}
	}
	return fmt.Sprintf("install %s into /usr with the system's package manager", languages[lang].packages[""])
}

// Compiled when first needed: only a report needs them.
var (
	pythonProgram = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^python(3\.[0-9]{1,3})$`) })
	nodeVersion   = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^#define NODE_(MAJOR|MINOR|PATCH)_VERSION ([0-9]{1,4})$`)
	})
)

// version is a language's version as far as files tell, else empty: nothing is executed.
func (im *Image) version(lang string) string {
	switch lang {
	case "python":
		return im.pythonVersion()
	case "node":
		return im.nodeVersion()
	}
	return ""
}

// pythonVersion is such as 3.11, from the name that python3 is a link to.
func (im *Image) pythonVersion() string {
	_, at, ok := im.program("python3")
	if !ok {
		return ""
	}
	if m := pythonProgram().FindStringSubmatch(path.Base(at.real)); m != nil {
		return m[1]
	}
	return ""
}

// nodeVersion is such as 20.11.1, from the header that comes with node.
func (im *Image) nodeVersion() string {
	_, at, ok := im.program("node")
	if !ok {
		return ""
	}
	// A link of the image leads where it leads inside: outside, to open what it names could do anything.
	at, ok = im.host.resolve(path.Join(path.Dir(path.Dir(at.real)), "include/node/node_version.h"))
	if !ok || !at.info.Mode().IsRegular() {
		return ""
	}
	f, err := os.OpenFile(im.host.join(at.real), os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	found := map[string]string{}
	for lines := bufio.NewScanner(io.LimitReader(f, 64<<10)); lines.Scan(); {
		if m := nodeVersion().FindStringSubmatch(lines.Text()); m != nil {
			found[m[1]] = m[2]
		}
	}
	if found["MAJOR"] == "" || found["MINOR"] == "" || found["PATCH"] == "" {
		return ""
	}
	return found["MAJOR"] + "." + found["MINOR"] + "." + found["PATCH"]
}

// pythonFolders are where the interpreter finds installed packages, whether or not they exist.
func (im *Image) pythonFolders() []string {
	dirs := []string{"/usr/lib/python3/dist-packages"}
	if v := im.pythonVersion(); v != "" {
		for _, lib := range []string{"/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/local/lib64"} {
			dirs = append(dirs, path.Join(lib, "python"+v, "site-packages"), path.Join(lib, "python"+v, "dist-packages"))
		}
	}
	return dirs
}

// pythonPackages are the notable packages that the image's python finds, sorted.
func (im *Image) pythonPackages() []string {
	var found []string
	dirs := im.pythonFolders()
	for _, name := range notable {
		if slices.ContainsFunc(dirs, func(dir string) bool {
			at, ok := im.host.resolve(path.Join(dir, name))
			return ok && at.info.IsDir() && im.visible(at.real)
		}) {
			found = append(found, name)
		}
	}
	return found
}
