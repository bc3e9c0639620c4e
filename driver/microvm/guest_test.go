package microvm

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"glovebox"
	"glovebox/driver"
	"glovebox/internal/guestlink"
)

// fakeGuest is an agent that sends what it is told to.
type fakeGuest struct {
	link *guestlink.Link
	sent []byte           // of what is opened
	is   guestlink.Opened // what is opened
	last driver.Sample
}

func (g *fakeGuest) serve(_ context.Context, method string, args []byte) (any, error) {
	switch method {
	case guestlink.MethodOpen:
		var o guestlink.Open
		if err := guestlink.Decode(args, &o); err != nil {
			return nil, err
		}
		w, err := g.link.WriterOf(o.Stream)
		if err != nil {
			return nil, err
		}
		go func() { // it ends with the link
			_, _ = w.Write(g.sent)
			_ = w.Close()
		}()
		return g.is, nil
	case guestlink.MethodSample:
		return g.last, nil
	}
	return nil, errors.New("not here")
}

// fakeMonitor is a QEMU of which only the counters are known.
type fakeMonitor struct {
	driver.Process
	sample driver.Sample
}

func (f *fakeMonitor) Sample() (driver.Sample, error) { return f.sample, nil }

// boxWith is a sandbox whose machine is a fake guest.
func boxWith(t *testing.T, g *fakeGuest) *sandbox {
	t.Helper()
	a, b := net.Pipe()
	m := &machine{link: guestlink.New(a, nil), process: &fakeMonitor{sample: driver.Sample{CPU: time.Hour, OOMKills: 1}}}
	g.link = guestlink.New(b, g.serve)
	var running sync.WaitGroup
	running.Go(func() { _ = m.link.Run() })
	running.Go(func() { _ = g.link.Run() })
	t.Cleanup(func() {
		_ = m.link.Close()
		_ = g.link.Close()
		running.Wait()
	})
	return &sandbox{driver: &Driver{cfg: Config{ScratchDir: t.TempDir()}}, machine: m,
		spec: driver.Spec{Limits: glovebox.Limits{Disk: glovebox.MiB, Files: 100}}}
}

// part is one of a file on its way.
func part(start, length uint64, text string) string {
	b := binary.LittleEndian.AppendUint64(nil, start)
	return string(binary.LittleEndian.AppendUint64(b, length)) + text
}

func TestOpenFile(t *testing.T) {
	for name, c := range map[string]struct {
		size int64
		sent string
		want string // empty: refused
	}{
		"whole":              {4, part(0, 4, "text"), "text"},
		"holes":              {10, part(2, 2, "ab") + part(6, 1, "c"), "\x00\x00ab\x00\x00c\x00\x00\x00"},
		"cut off":            {4, part(0, 4, "tex"), ""},
		"cut head":           {4, part(0, 4, "text") + "abc", ""},
		"beyond its end":     {4, part(2, 4, "text"), ""},
		"far beyond":         {4, part(1<<63-1, 4, "text"), ""},
		"negative":           {4, part(1<<63, 4, "text"), ""},
		"endless":            {4, part(0, 1<<63, "text"), ""},
		"backwards":          {8, part(4, 4, "text") + part(0, 4, "text"), ""},
		"nothing":            {8, part(4, 0, ""), ""},
		"a size below zero":  {-1, "", ""},
		"more than its disk": {5 << 20, part(0, 3<<20, strings.Repeat("x", 3<<20)), ""},
	} {
		s := boxWith(t, &fakeGuest{sent: []byte(c.sent), is: guestlink.Opened{Size: c.size}})
		f, err := s.Open("x")
		if c.want == "" {
			if err == nil {
				f.Close()
				t.Errorf("%s: was taken", name)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got, err := io.ReadAll(f); string(got) != c.want || err != nil {
			t.Errorf("%s = %q, %v", name, got, err)
		}
		if _, err := f.WriteAt([]byte("x"), 0); err == nil {
			t.Errorf("%s can be written", name)
		}
		f.Close()
	}
}

func TestOpenFolder(t *testing.T) {
	for sent, want := range map[string][]string{
		"": {}, "a\x00": {"a"}, "b\x00a\xff\x00": {"a\xff", "b"},
		"a/b\x00": nil, "..\x00": nil, ".\x00": nil, "a\x00\x00b\x00": nil, "a\x00a\x00": nil,
		strings.Repeat("x", 256) + "\x00": nil, strings.Repeat("name\x00", 20000): nil, "/etc\x00": nil,
	} {
		s := boxWith(t, &fakeGuest{sent: []byte(sent), is: guestlink.Opened{Folder: true}})
		f, err := s.Open(".")
		if want == nil {
			if err == nil {
				t.Errorf("%.40q was taken", sent)
			}
		} else if err != nil {
			t.Errorf("%.40q: %v", sent, err)
		} else {
			got, err := f.Readdirnames(-1)
			slices.Sort(got)
			if d := cmp.Diff(want, append([]string{}, got...)); d != "" || err != nil {
				t.Errorf("%.40q: %v (-want +got):\n%s", sent, err, d)
			}
			f.Close()
		}
		if err := s.removeFolders(context.Background()); err != nil { // as Close does
			t.Error(err)
		}
		if left, err := os.ReadDir(s.driver.cfg.ScratchDir); len(left) > 0 || err != nil {
			t.Errorf("%.40q: left over: %v, %v", sent, left, err)
		}
	}
}

// TestNamesAreCounted: names become files of the host's, of which a guest that lies makes no more than its run may have.
func TestNamesAreCounted(t *testing.T) {
	list := func(n int) []byte {
		var b []byte
		for i := range n {
			b = fmt.Appendf(b, "%d\x00", i)
		}
		return b
	}
	g := &fakeGuest{sent: list(200), is: guestlink.Opened{Folder: true}}
	s := boxWith(t, g)
	defer s.removeFolders(context.Background())
	if f, err := s.Open("."); err == nil {
		f.Close()
		t.Error("200 names were taken, and there can be 100")
	}
	g.sent = list(100)
	taken := 0
	for range 20 {
		if f, err := s.Open("."); err == nil {
			taken++
			f.Close()
		}
	}
	if taken == 0 || taken > listings {
		t.Errorf("100 names were taken %d times", taken)
	}
}

// TestToldPosture: what a guest says of itself is taken as far as it prints and is no longer than what is to be said.
func TestToldPosture(t *testing.T) {
	p := told(glovebox.Posture{"user": "own block", "a\x1b[2J": "x", "b": "\u202e", "c": strings.Repeat("x", 513), "d": "\xff", "rung": "process"})
	if d := cmp.Diff(glovebox.Posture{"guest_user": "own block"}, p); d != "" {
		t.Error(d)
	}
}

// TestSampleOnlyGrows: a guest that tells of less than before is not believed.
func TestSampleOnlyGrows(t *testing.T) {
	g := &fakeGuest{last: driver.Sample{CPU: time.Second, MemoryPeak: 100, OOMKills: 1, ProcessesPeak: 3, ForksRefused: 2}}
	s := boxWith(t, g)
	p := &process{sandbox: s}
	if _, err := p.Sample(); err != nil {
		t.Fatal(err)
	}
	want := g.last
	g.last = driver.Sample{Memory: 5}
	want.Memory = 5
	if got, err := p.Sample(); err != nil || got != want {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	// No more time than the machine took since its code was there.
	g.last.CPU, p.before, want.CPU = time.Hour, time.Hour-2*time.Second, 2*time.Second
	if got, err := p.Sample(); err != nil || got != want {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	// Of a machine that has ended what was known last, and why the host's kernel ended it.
	if err := s.machine.link.Close(); err != nil {
		t.Fatal(err)
	}
	want.Memory, want.OOMOutside = 0, 1
	if got, err := p.Sample(); err != nil || got != want {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
}

func TestPlausible(t *testing.T) {
	lost := driver.Exit{Lost: true}
	for _, c := range []struct{ said, want driver.Exit }{
		{driver.Exit{Code: 3}, driver.Exit{Code: 3}},
		{driver.Exit{Signal: syscall.SIGSYS, FenceKill: true}, driver.Exit{Signal: syscall.SIGSYS, FenceKill: true}},
		{driver.Exit{Signal: syscall.SIGKILL, FenceKill: true}, driver.Exit{Signal: syscall.SIGKILL}},
		{driver.Exit{Code: 256}, lost}, {driver.Exit{Code: -1}, lost}, {driver.Exit{Signal: 65}, lost},
		{driver.Exit{Signal: -1}, lost}, {driver.Exit{Signal: 9, Code: 1}, lost}, {driver.Exit{Lost: true, Code: 0}, lost},
	} {
		if got := plausible(c.said); got != c.want {
			t.Errorf("%+v is %+v, want %+v", c.said, got, c.want)
		}
	}
}

// TestAvailable: each thing that is missing is named, with what mends it.
func TestAvailable(t *testing.T) {
	for _, c := range []struct{ remove, named, fix string }{
		{"", "", ""},
		{"bin/qemu-system-x86_64", "QEMU", "drivers.microvm.qemu"},
		{"bin/glovebox-guest", "glovebox-guest", "make build"},
		{"bin/glovebox-init", "glovebox-init", "drivers.process.init"},
		{"boot", "no kernel", "linux-image-cloud-amd64"},
		{"lib/modules", "modules", "linux-image-cloud-amd64"},
		{"lib/modules/6.10.0-1-cloud-amd64/kernel/erofs.ko", "no erofs", "linux-image-cloud-amd64"},
	} {
		dir := t.TempDir()
		make := func(name string) {
			t.Helper()
			name = filepath.Join(dir, name)
			if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, nil, 0o755)); err != nil {
				t.Fatal(err)
			}
		}
		for _, name := range []string{"bin/qemu-system-x86_64", "bin/glovebox-guest", "bin/glovebox-init",
			"boot/vmlinuz-6.9.0-1-cloud-amd64", "boot/vmlinuz-6.10.0-1-cloud-amd64"} {
			make(name)
		}
		modules := "lib/modules/6.10.0-1-cloud-amd64/"
		for _, name := range moduleNames[1:] {
			make(modules + "kernel/" + strings.ReplaceAll(name, "_", "-") + ".ko")
		}
		if err := os.WriteFile(filepath.Join(dir, modules, "modules.builtin"), []byte("kernel/virtio/"+moduleNames[0]+".ko\n"),
			0o644); err != nil {
			t.Fatal(err)
		}
		if c.remove != "" {
			if err := os.RemoveAll(filepath.Join(dir, c.remove)); err != nil {
				t.Fatal(err)
			}
		}
		bin := func(name string) string { return filepath.Join(dir, "bin", name) }
		d := &Driver{cfg: Config{QEMU: bin("qemu-system-x86_64"), Guest: bin("glovebox-guest"), Init: bin("glovebox-init"),
			Kernel: dir, Emulated: true}}
		f, err := d.look()
		if c.named == "" {
			if err != nil || f.version != "6.10.0-1-cloud-amd64" || len(f.modules) != len(moduleNames)-1 {
				t.Errorf("all there: %+v, %v", f, err)
			}
			continue
		}
		var known *glovebox.Error
		if !errors.As(err, &known) || known.Code != glovebox.CodeUnavailable || !strings.Contains(known.Public, c.named) ||
			!strings.Contains(known.Fix, c.fix) {
			t.Errorf("without %s: %v", c.remove, err)
		}
	}
}

func TestVirtualises(t *testing.T) {
	for text, want := range map[string]bool{
		"processor\t: 0\nflags\t\t: fpu vmx sse\n": true, "flags\t\t: fpu svm\n": true, "flags\t\t: fpu sse\n": false,
		"": false, "model name\t: vmx\nflags\t: fpu\n": false,
	} {
		if got := virtualises(text); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}
