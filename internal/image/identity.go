package image

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
)

// databases are where package managers keep what is installed: each one is rewritten, or has an entry added or removed,
// whenever that changes.
var databases = []string{
	"/var/lib/dpkg/status",
	"/var/lib/rpm/rpmdb.sqlite",
	"/var/lib/rpm/Packages",
	"/usr/lib/sysimage/rpm/rpmdb.sqlite",
	"/usr/lib/sysimage/rpm/Packages.db",
	"/lib/apk/db/installed",
	"/usr/lib/apk/db/installed",
	"/var/lib/pacman/local",
	// What people install past the package manager.
	"/usr/local/bin",
	"/usr/local/lib",
	"/usr/local/lib/node_modules",
	"/usr/lib/node_modules",
}

// identify names the image by what it shows and by the state of what is installed.
func (im *Image) identify() string {
	h := sha256.New()
	for _, m := range im.root.Mounts { // not the source: it says where the host's root is
		fmt.Fprintf(h, "mount %q\n", m.Target)
	}
	for _, l := range im.root.Links {
		fmt.Fprintf(h, "link %q %q\n", l.Path, l.Target)
	}
	for _, f := range im.root.Files {
		fmt.Fprintf(h, "file %q %q\n", f.Path, f.Data)
	}
	state := slices.Concat(databases, im.pythonFolders())
	for _, lang := range slices.Sorted(maps.Keys(languages)) {
		if p, err := im.Interpreter(lang); err == nil {
			state = append(state, p)
		}
	}
	for _, p := range state {
		at, ok := im.host.resolve(p)
		if !ok {
			continue
		}
		size := at.info.Size()
		if at.info.IsDir() { // the size of a folder is the file system's own affair
			size = 0
		}
		fmt.Fprintf(h, "state %q %q %d %d\n", p, at.real, size, at.info.ModTime().UnixNano())
	}
	return "host@pkgs:" + hex.EncodeToString(h.Sum(nil)[:8])
}
