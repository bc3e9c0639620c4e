package driver

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
)

// Network is what Sandbox.Attach brings into a sandbox besides the interface. It is read during Attach only.
type Network struct {
	// Files are made read-only at their paths, mode 0444, which lie below /etc/glovebox, as their folders are.
	Files []File
	// Over are shown likewise over what is at their paths, which lie below /etc: only where that is a regular file, links
	// within the root followed. Files that share one Data, also with those of Files, are in memory once.
	Over []File
}

// Bounds of a Network: how many files there are, both lists together, and how many bytes in all, those that share one Data
// counted once.
const (
	MaxNetworkFiles = 64
	MaxNetworkBytes = 8 << 20
)

// NetLink is the outside end of a sandbox's network.
type NetLink struct {
	// File carries packets: each read gives one and each write takes one, a virtio_net_hdr of 10 bytes before it, which may
	// ask for segmentation (TCP over IPv4 and IPv6) and a checksum. It is non-blocking. The caller closes it; when its last
	// copy is closed the sandbox has no network any more.
	File *os.File
	// TAP says that packets are Ethernet frames; else they begin with their IP header.
	TAP bool
}

// ErrAttached is returned by Sandbox.Attach for a sandbox that was attached before, whatever became of its link.
var ErrAttached = errors.New("attach network: the sandbox was attached before")

// Check refuses a network that no driver can show as it says. Each driver calls it first in Attach.
func (n *Network) Check() error {
	for _, f := range n.Files {
		if !strings.HasPrefix(f.Path, "/etc/glovebox/") || strings.Contains(f.Path, "/.") {
			return fmt.Errorf("attach network: %.60q is not below /etc/glovebox, or hidden", f.Path)
		}
	}
	files := slices.Concat(n.Files, n.Over)
	if len(files) > MaxNetworkFiles {
		return fmt.Errorf("attach network: %d files are more than %d", len(files), MaxNetworkFiles)
	}
	seen := map[string]bool{}
	for _, f := range files {
		switch {
		case !strings.HasPrefix(f.Path, "/etc/") || path.Clean(f.Path) != f.Path || strings.ContainsRune(f.Path, 0):
			return fmt.Errorf("attach network: %.60q is not a clean path below /etc", f.Path)
		case seen[f.Path] || f.Path == ResolvConf:
			return fmt.Errorf("attach network: %.60q is shown twice", f.Path)
		}
		seen[f.Path] = true
	}
	if _, size := n.Contents(); size > MaxNetworkBytes {
		return fmt.Errorf("attach network: the files have more than %d bytes", MaxNetworkBytes)
	}
	return nil
}

// ResolvConf is the file that Attach always shows: it names the network's own name server, and no other.
const ResolvConf = "/etc/resolv.conf"

// Contents are the different contents of the files, by the identity of their Data, and their size in bytes.
func (n *Network) Contents() (list [][]byte, size int64) {
	for _, f := range slices.Concat(n.Files, n.Over) {
		if !slices.ContainsFunc(list, func(b []byte) bool { return Same(b, f.Data) }) {
			list, size = append(list, f.Data), size+int64(len(f.Data))
		}
	}
	return list, size
}

// Same says that two slices are the same bytes in memory.
func Same(a, b []byte) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}
