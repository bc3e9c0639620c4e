package image

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"glovebox"
	"glovebox/driver"
)

// Config says where the host is. The zero value is the running system.
type Config struct {
	// Root is the folder to take for the host's root, absolute; empty means "/". Tests show a made-up host with it.
	Root string
}

// Image is a runtime image as it was when Host looked. It does not change after that and is safe for concurrent use.
type Image struct {
	name     string
	host     tree // what Root shows of
	root     driver.Root
	ident    string
	settings Settings
	modules  func() []string
}

// allowed is everything of the host that the image may show, with the reason. It is the whole list: what is not named here
// (or beneath it) is not there. A path that ends in a pattern stands for its matches.
//
// Left out on purpose, though programs look for them: pip.conf, npmrc, gitconfig, wgetrc, netrc and odbc.ini (they hold
// credentials of registries and servers), environment and profile.d (the operator's habits), ssh, ssl/private and
// pki/tls/private, ld.so.conf (the cache is enough), localtime and timezone (a run gives the same answer everywhere).
var allowed = []struct{ path, why string }{
	{"/usr", "programs, libraries and their data"},
	{"/bin", "programs; a link to usr/bin on most hosts"},
	{"/sbin", "likewise"},
	{"/lib", "libraries and the dynamic loader; a link to usr/lib on most hosts"},
	{"/lib32", "likewise"},
	{"/lib64", "likewise"},
	{"/libx32", "likewise"},
	{"/etc/alternatives", "which of several packages provides awk, java, libblas (Debian, Fedora)"},
	{"/etc/ca-certificates/extracted", "public certificates (Arch)"},
	{"/etc/crypto-policies/back-ends", "included by openssl.cnf (Fedora)"},
	{"/etc/fonts", "font lookup, for charts"},
	{"/etc/java-*-openjdk", "a Java machine does not start without it (Debian)"},
	{"/etc/ld-musl-*.path", "where musl finds libraries (Alpine)"},
	{"/etc/ld.so.cache", "where glibc finds libraries"},
	{"/etc/magic", "file types by content"},
	{"/etc/matplotlibrc", "matplotlib does not load without it (Debian)"},
	{"/etc/mime.types", "file types by name"},
	{"/etc/os-release", "which distribution this is"},
	{"/etc/pki/ca-trust/extracted", "public certificates (Fedora)"},
	{"/etc/pki/tls/cert.pem", "likewise"},
	{"/etc/pki/tls/certs", "likewise"},
	{"/etc/pki/tls/openssl.cnf", "settings of openssl (Fedora)"},
	{"/etc/protocols", "names of protocols"},
	{"/etc/python3*", "sitecustomize of the distribution (Debian)"},
	{"/etc/services", "names of ports"},
	{"/etc/ssl/ca-bundle.pem", "public certificates (openSUSE)"},
	{"/etc/ssl/cert.pem", "public certificates (Alpine)"},
	{"/etc/ssl/certs", "public certificates"},
	{"/etc/ssl/openssl.cnf", "settings of openssl"},
	{"/var/lib/ca-certificates", "public certificates (openSUSE)"},
}

// synthetic is what the image has in /etc in place of the host's own. The names match what every sandbox is: a machine
// called sandbox with one user.
var synthetic = []driver.File{
	{Path: "/etc/group", Data: []byte("root:x:0:\nsandbox:x:1000:\nnogroup:x:65534:\n")},
	{Path: "/etc/hostname", Data: []byte("sandbox\n")},
	{Path: "/etc/hosts", Data: []byte("127.0.0.1 localhost sandbox\n::1 localhost ip6-localhost ip6-loopback\n")},
	{Path: "/etc/machine-id", Data: []byte("00000000000000000000000000000000\n")},
	{Path: "/etc/nsswitch.conf", Data: []byte("passwd: files\ngroup: files\nhosts: files dns\nservices: files\n" +
		"protocols: files\n")},
	{Path: "/etc/passwd", Data: []byte("root:x:0:0:root:/workspace:/bin/sh\n" +
		"sandbox:x:1000:1000:sandbox:/workspace:/bin/sh\n" +
		"nobody:x:65534:65534:nobody:/nonexistent:/bin/false\n")},
	{Path: "/etc/resolv.conf", Data: []byte("")},
	{Path: "/etc/shells", Data: []byte("/bin/sh\n/bin/bash\n")},
	{Path: "/etc/timezone", Data: []byte("Etc/UTC\n")},
}

const utc = "/usr/share/zoneinfo/Etc/UTC"

// Host looks at the host and describes the image that it makes. It fails with code unavailable when there is no /usr to
// show. What it found stays as it was: look again to see a package installed since.
func Host(cfg Config) (*Image, error) {
	root := cfg.Root
	if root == "" {
		root = "/"
	}
	if !filepath.IsAbs(root) {
		return nil, glovebox.Errorf(glovebox.CodeInvalid, "give an absolute path", "the root of an image is a relative path")
	}
	im := &Image{name: hostName, host: tree{root: filepath.Clean(root)}}
	im.look()
	if !im.visible("/usr/bin") {
		return nil, glovebox.Errorf(glovebox.CodeUnavailable,
			"run Glovebox on a distribution whose programs are in /usr/bin, as a real folder",
			"this machine has no /usr that could serve as the runtime image host")
	}
	im.ident = im.identify()
	im.modules = sync.OnceValue(im.dataModules)
	return im, nil
}

// Root is what to build a sandbox's file system from. Its slices are the caller's; the bytes of its files are shared and
// must not be changed. A mount shows a folder with whatever the host has mounted beneath it.
func (im *Image) Root() driver.Root {
	return driver.Root{
		Mounts: slices.Clone(im.root.Mounts),
		Links:  slices.Clone(im.root.Links),
		Files:  slices.Clone(im.root.Files),
	}
}

// Identity is such as host@pkgs:1a2b3c4d5e6f7a8b, or for an image that was unpacked NAME@sha256:… with the digest of all it
// holds. That of the host changes when a package is installed, removed or updated, or when the image is made up differently.
// It is an identity, not an integrity claim: it is taken from the sizes and dates of package databases, interpreters and
// folders of libraries, not from their content, and whoever may write those may forge it.
func (im *Image) Identity() string { return im.ident }

// Env is the image's own environment, as NAME=VALUE, sorted by name. A request's variables come after it.
func (im *Image) Env() []string { return slices.Clone(im.settings.Env) }

// look fills in the root. What the host has at an allowed path is mounted only if no link is on the way there, so that a
// mount never shows a place other than the one allowed. A path that is reached through a link becomes a link itself, and
// only if what it points to is shown anyway; else it is left out.
func (im *Image) look() {
	type detour struct{ path, real string }
	var detours []detour
	for _, p := range im.host.expand() {
		at, ok := im.host.resolve(p)
		switch {
		case !ok || !at.info.IsDir() && !at.info.Mode().IsRegular():
		case at.real == p:
			im.root.Mounts = append(im.root.Mounts, driver.Mount{Source: im.host.join(p), Target: p})
		default:
			detours = append(detours, detour{p, at.real})
		}
	}
	for _, d := range detours {
		if im.visible(d.real) {
			im.root.Links = append(im.root.Links, driver.Link{Path: d.path, Target: d.real})
		}
	}
	if _, ok := im.host.resolve(utc); ok {
		im.root.Links = append(im.root.Links, driver.Link{Path: "/etc/localtime", Target: utc})
	}
	im.root.Links = append(im.root.Links, driver.Link{Path: "/var/tmp", Target: "/tmp"})
	im.root.Files = synthetic
}

// visible reports whether a program sees p, the path of something that exists on the host and is reached without a link.
func (im *Image) visible(p string) bool {
	for _, m := range im.root.Mounts {
		if p == m.Target || strings.HasPrefix(p, m.Target+"/") {
			_, err := os.Lstat(im.host.join(p))
			return err == nil
		}
	}
	return false
}

// tree is a host's file system beneath a folder. Paths are as a program on that host would say them: absolute links in
// it start at the folder too.
type tree struct{ root string }

func (t tree) join(p string) string { return filepath.Join(t.root, p) }

// expand returns the allowed paths, patterns replaced by their matches, in order.
func (t tree) expand() []string {
	var paths, etc []string
	for _, a := range allowed {
		if !strings.Contains(a.path, "*") {
			paths = append(paths, a.path)
			continue
		}
		if etc == nil { // every pattern is one of /etc, which is read once
			etc = append(t.names("/etc"), "")
		}
		for _, name := range etc {
			if ok, _ := path.Match(a.path, "/etc/"+name); ok {
				paths = append(paths, "/etc/"+name)
			}
		}
	}
	return paths
}

// names returns what a folder holds, sorted; nothing when it cannot be read.
func (t tree) names(dir string) []string {
	f, err := os.Open(t.join(dir))
	if err != nil {
		return nil
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil
	}
	slices.Sort(names)
	return names
}

// place is where a path leads.
type place struct {
	real  string // without any link
	info  fs.FileInfo
	links []string // the links met on the way, each by its own path without any link before it
}

// maxLinks is how many links a path may go through; the kernel's own bound.
const maxLinks = 40

// resolve follows p. It reports false when nothing is there, it cannot be looked at, or there are too many links.
func (t tree) resolve(p string) (place, bool) {
	at, rest := place{real: "/"}, strings.Split(p, "/")
	for len(rest) > 0 {
		name := rest[0]
		rest = rest[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			at.real = path.Dir(at.real)
			continue
		}
		next := path.Join(at.real, name)
		info, err := os.Lstat(t.join(next))
		if err != nil {
			return place{}, false
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			at.real, at.info = next, info
			continue
		}
		if at.links = append(at.links, next); len(at.links) > maxLinks {
			return place{}, false
		}
		target, err := os.Readlink(t.join(next))
		if err != nil {
			return place{}, false
		}
		if path.IsAbs(target) {
			at.real = "/"
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	info, err := os.Lstat(t.join(at.real)) // of the end itself: the last step may have been ".."
	at.info = info
	return at, err == nil
}
