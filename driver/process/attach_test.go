package process_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"glovebox"
	"glovebox/driver"
	"glovebox/driver/process"
)

// tunEnv names the device of networks for tests.
const tunEnv = "GLOVEBOX_TEST_TUN"

// openDevice is a device of networks that all may open, as most machines have it.
func openDevice(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "glovebox-tun-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	node := filepath.Join(dir, "tun")
	if err := unix.Mknod(node, unix.S_IFCHR|0o666, int(unix.Mkdev(10, 200))); err != nil {
		t.Fatal(err)
	}
	for path, mode := range map[string]os.FileMode{dir: 0o755, node: 0o666} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	return node
}

// attachedTo starts a sandbox of w that is attached by a driver with that device, and runs a script in it.
func attachedTo(t *testing.T, w *warm, device string, root driver.Root, n driver.Network, script string) ended {
	t.Helper()
	d, err := process.New(process.Config{Init: initBinary, ScratchDir: t.TempDir(), NetworkDevice: device})
	if err != nil {
		t.Fatal(err)
	}
	spec := w.spec()
	spec.Network = true
	if root.Mounts != nil {
		spec.Root = root
	}
	s, err := d.Start(context.Background(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.Background())
	link, err := s.Attach(context.Background(), n)
	if err != nil {
		t.Fatal(err)
	}
	defer link.File.Close()
	p, err := s.Exec(context.Background(), driver.Command{Argv: []string{"/bin/sh", "-c", script},
		Env: []string{"PATH=/usr/bin:/bin"}, Dir: "/"})
	if err != nil {
		t.Fatal(err)
	}
	return finished(t, p)
}

// TestAttachByAnyDevice: where all may open the device, init does; else root opens it for init.
func TestAttachByAnyDevice(t *testing.T) {
	needRoot(t)
	w := newWarm(t)
	closed := openDevice(t)
	if err := os.Chmod(closed, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, device := range map[string]string{"all": openDevice(t), "root": closed} {
		got := attachedTo(t, w, device, driver.Root{}, driver.Network{}, "tail -n +3 /proc/net/dev | cut -d: -f1 | sort")
		if d := cmp.Diff(ended{Out: "    lo\n  eth0\n"}, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
	// The threads of this process are where they were.
	tasks, err := filepath.Glob("/proc/self/task/*/ns/net")
	if err != nil || len(tasks) == 0 {
		t.Fatal(err)
	}
	home, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		if at, err := os.Readlink(task); err == nil && at != home {
			t.Errorf("%s is %s", task, at)
		}
	}
}

// TestAttachOverAnImage: where /etc is a folder of an image, links in it lead where they lead within the image.
func TestAttachOverAnImage(t *testing.T) {
	needRoot(t)
	w := newWarm(t)
	etc := t.TempDir()
	for path := etc; path != "/" && path != os.TempDir(); path = filepath.Dir(path) {
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{"hosts": "the image's\n", "kept": "kept\n"} {
		if err := os.WriteFile(filepath.Join(etc, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	outside := filepath.Join(etc, "victim")
	if err := os.WriteFile(outside, []byte("the host's\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"bundle.pem": "hosts", "out.pem": outside, "up.pem": "../../../../etc/kept",
		"loop.pem": "loop.pem", "folder.pem": "."} {
		if err := os.Symlink(to, filepath.Join(etc, name)); err != nil {
			t.Fatal(err)
		}
	}
	root := w.image.Root()
	root.Files = nil
	root.Links = slices.DeleteFunc(slices.Clone(root.Links), func(l driver.Link) bool { return strings.HasPrefix(l.Path, "/etc/") })
	root.Mounts = []driver.Mount{{Source: etc, Target: "/etc"}}
	for _, m := range w.image.Root().Mounts {
		if !strings.HasPrefix(m.Target, "/etc") {
			root.Mounts = append(root.Mounts, m)
		}
	}
	var over []driver.File
	for _, name := range []string{"bundle.pem", "out.pem", "up.pem", "loop.pem", "folder.pem"} {
		over = append(over, driver.File{Path: "/etc/" + name, Data: []byte("shown for " + name + "\n")})
	}
	n := driver.Network{Files: []driver.File{{Path: "/etc/glovebox/ca.pem", Data: []byte("ca\n")}}, Over: over}
	got := attachedTo(t, w, "", root, n, "cd /etc; cat glovebox/ca.pem hosts kept victim; head -n 1 resolv.conf")
	want := ended{Out: "ca\nshown for bundle.pem\nshown for up.pem\nthe host's\nnameserver 198.18.0.1\n"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if text, err := os.ReadFile(outside); err != nil || string(text) != "the host's\n" {
		t.Errorf("of the host: %q, %v", text, err)
	}
}

// TestAttachWithoutADevice: what the machine lacks is named with what mends it, and doctor says so before.
func TestAttachWithoutADevice(t *testing.T) {
	needRoot(t)
	w := newWarm(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	unknown := filepath.Join(dir, "unknown") // of a driver that no kernel has
	if err := unix.Mknod(unknown, unix.S_IFCHR|0o600, int(unix.Mkdev(10, 1<<18))); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"none": "modprobe tun", "file": "modprobe tun", "unknown": "modprobe tun"} {
		d, err := process.New(process.Config{Init: initBinary, ScratchDir: dir, NetworkDevice: filepath.Join(dir, name)})
		if err != nil {
			t.Fatal(err)
		}
		told := false
		for _, c := range d.Controls(t.Context()) {
			if c.Name == "network device" {
				told = !c.Available && !c.Required && strings.Contains(c.Fix, want)
			}
		}
		if !told {
			t.Errorf("%s: doctor does not say that it is missing", name)
		}
		spec := w.spec()
		spec.Network = true
		s, err := d.Start(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.Attach(t.Context(), driver.Network{})
		var known *glovebox.Error
		if !errors.As(err, &known) || known.Code != glovebox.CodeUnavailable || !strings.Contains(known.Fix, want) {
			t.Errorf("%s: %v", name, err)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// TestPostureAttached is TestPosture of a sandbox that has a network.
func TestPostureAttached(t *testing.T) {
	needRoot(t)
	w := newWarm(t)
	spec := w.spec()
	spec.Network = true
	s, err := w.driver.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.Background())
	link, err := s.Attach(t.Context(), driver.Network{})
	if err != nil {
		t.Fatal(err)
	}
	defer link.File.Close()
	p, err := s.Exec(t.Context(), driver.Command{Argv: []string{"/bin/true"}, Env: []string{"PATH=/usr/bin:/bin"}, Dir: "/"})
	if err != nil {
		t.Fatal(err)
	}
	goldenPosture(t, "posture-attached.golden", p.Posture())
	finished(t, p)
}

// BenchmarkAttach attaches sandboxes with the files that a gateway has.
func BenchmarkAttach(b *testing.B) {
	w := newWarm(b)
	bundle := make([]byte, 220<<10)
	n := driver.Network{Files: []driver.File{{Path: "/etc/glovebox/ca.pem", Data: bundle},
		{Path: "/etc/glovebox/ca.p12", Data: make([]byte, 160<<10)}},
		Over: []driver.File{{Path: "/etc/ssl/certs/ca-certificates.crt", Data: bundle}}}
	for b.Loop() {
		b.StopTimer()
		spec := w.spec()
		spec.Network = true
		s, err := w.driver.Start(context.Background(), spec)
		if err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		link, err := s.Attach(context.Background(), n)
		b.StopTimer()
		if err != nil {
			b.Fatal(err)
		}
		link.File.Close()
		s.Close(context.Background())
		b.StartTimer()
	}
}
