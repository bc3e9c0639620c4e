package process_test

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"glovebox/driver"
)

// TestDevices: a device that is shown can be used as its mode says, and no other is there.
func TestDevices(t *testing.T) {
	needRoot(t)
	w := newWarm(t)
	spec := w.spec()
	for name, mode := range map[string]uint32{"open": 0o666, "closed": 0o600} {
		node := filepath.Join(t.TempDir(), name) // the mode is not that of /dev
		if err := unix.Mknod(node, unix.S_IFCHR|mode, int(unix.Mkdev(1, 5))); err != nil {
			t.Fatal(err)
		}
		if err := unix.Chmod(node, mode); err != nil {
			t.Fatal(err)
		}
		spec.Devices = append(spec.Devices, driver.Mount{Source: node, Target: "/dev/" + name})
	}
	s, err := w.driver.Start(context.Background(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.Background())
	p, err := s.Exec(context.Background(), driver.Command{Argv: []string{"/bin/bash", "-c",
		"head -c 3 /dev/open | od -An -tx1; (: </dev/closed) 2>/dev/null && echo opened; (: </dev/kmsg) 2>/dev/null && echo other; exit 0"},
		Env: []string{"PATH=/usr/bin:/bin"}, Dir: "/"})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(ended{Out: " 00 00 00\n"}, finished(t, p)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
