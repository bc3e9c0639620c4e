package microvm

import (
	"os"
	"slices"
	"strings"
	"testing"

	"glovebox"
	"glovebox/internal/guestlink"
)

// TestArguments holds what QEMU is started with: a machine without network, doors or names of files, and its own fence.
func TestArguments(t *testing.T) {
	null := func() *os.File {
		f, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	for name, c := range map[string]struct {
		emulated bool
		of       from
		want     []string // pieces
		descs    int
	}{
		"kvm": {false, from{boot: &bootFiles{kernel: null(), initrd: null()}}, []string{"-accel kvm", "-cpu host", "rtc=off",
			"-kernel /proc/self/fd/", "mitigations"}, 6},
		"emulated": {true, from{boot: &bootFiles{kernel: null(), initrd: null()}}, []string{"-accel tcg", "tsc_early_khz=7",
			"-kernel /proc/self/fd/"}, 6},
		"saved": {true, from{boot: &bootFiles{kernel: null(), initrd: null()}, memory: null()},
			[]string{"memory-backend=memory", "share=on", "-kernel /proc/self/fd/"}, 7},
		"restored": {true, from{memory: null(), state: null()}, []string{"share=off", "-incoming defer"}, 5}, // and the state, at its place,
	} {
		d := &Driver{cfg: Config{Emulated: c.emulated}}
		files := &given{far: []*os.File{null(), null()}} // the sockets
		s := shape{memory: 256 * glovebox.MiB, cpus: 2, tsc: 7,
			disks: []diskFile{{guestlink.SerialRoot, null(), true}, {guestlink.SerialWork, null(), false}}}
		argv := d.arguments(found{qemu: "/usr/bin/qemu-system-x86_64"}, c.of, s, files)
		line := strings.Join(argv, " ")
		for _, piece := range append(c.want, "-nodefaults", "-no-user-config", "-display none", "-m 256M", "-smp 2", "dump-guest-core=off",
			"-sandbox on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny", "read-only=on", "read-only=off") {
			if has := strings.Contains(line, piece); has != (piece != "mitigations") {
				t.Errorf("%s: %q is there: %v, in\n%s", name, piece, has, line)
			}
		}
		for _, arg := range argv[1:] {
			for _, word := range []string{"net", "server", "listen", "vnc", "spice", "exec:", "tcp:", "unix:", "usb", "pci"} {
				if strings.Contains(arg, word) {
					t.Errorf("%s: %q in %q", name, word, arg)
				}
			}
			for part := range strings.FieldsFuncSeq(arg, func(r rune) bool { return r == ',' || r == '=' }) {
				if strings.HasPrefix(part, "/") && !strings.HasPrefix(part, "/proc/self/fd/") && !strings.HasPrefix(part, "/dev/fdset/") {
					t.Errorf("%s: opens %q by name", name, part)
				}
			}
		}
		if len(files.far) != c.descs || slices.Contains(files.far, nil) {
			t.Errorf("%s: %d descriptors", name, len(files.far))
		}
	}
}
