package microvm_test

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"glovebox"
	"glovebox/driver"
	"glovebox/driver/drivertest"
	"glovebox/driver/microvm"
	"glovebox/driver/process"
)

// programs is the folder of glovebox-init and glovebox-guest, built once for the tests of this package.
var programs string

func TestMain(m *testing.M) { os.Exit(run(m)) }

// programsEnv is that folder: a test that is started anew, to be killed, must not be at building them.
const programsEnv = "GLOVEBOX_TEST_PROGRAMS"

func run(m *testing.M) int {
	if programs = os.Getenv(programsEnv); programs != "" || os.Getenv(kernelEnv) == "" {
		return m.Run() // they are there, or no test needs them
	}
	dir, err := os.MkdirTemp("", "glovebox-microvm-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		panic(err)
	}
	programs = dir
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", dir+"/", "glovebox/cmd/glovebox-init",
		"glovebox/cmd/glovebox-guest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		panic(string(out))
	}
	os.Setenv(programsEnv, programs)
	return m.Run()
}

// Without the first, which names a folder with a kernel for guests, no test boots a machine. With the second too they boot one
// for every promise of a driver.
const (
	kernelEnv = "GLOVEBOX_TEST_MICROVM"
	allEnv    = "GLOVEBOX_TEST_MICROVM_ALL"
)

// slack is what a step may take: an emulated machine on a busy one is slow.
const slack = 3 * time.Minute

// newDriver makes a driver that emulates, or skips where that was not promised.
func newDriver(t *testing.T) driver.Driver {
	t.Helper()
	kernel := os.Getenv(kernelEnv)
	if kernel == "" {
		t.Skip("needs QEMU and a kernel for guests: make test-microvm")
	}
	init := filepath.Join(programs, "glovebox-init")
	jail, err := process.New(process.Config{Init: init, ScratchDir: t.TempDir(), Cgroup: os.Getenv("GLOVEBOX_TEST_CGROUP")})
	if err != nil {
		t.Fatal(err)
	}
	d, err := microvm.New(microvm.Config{Jail: jail, Guest: filepath.Join(programs, "glovebox-guest"), Init: init, Kernel: kernel,
		CacheDir: filepath.Join(programs, "images"), ScratchDir: t.TempDir(), Emulated: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Available(context.Background()); err != nil {
		t.Fatal(err)
	}
	return d
}

// smallRoot is an image of a shell with its usual tools and of Python with its library, so that making it takes no time. Python
// is where it returns.
func smallRoot(t *testing.T) (root driver.Root, python string) {
	t.Helper()
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal("needs busybox: apt-get install busybox-static")
	}
	program, err := filepath.EvalSymlinks("/usr/bin/python3")
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(t.TempDir(), "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	names, err := exec.Command(busybox, "--list").Output()
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cp", busybox, program, bin).CombinedOutput(); err != nil {
		t.Fatal(string(out))
	}
	for name := range strings.FieldsSeq(string(names)) {
		if name != "busybox" {
			if err := os.Symlink("busybox", filepath.Join(bin, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	library := filepath.Join("/usr/lib", filepath.Base(program))
	root = driver.Root{Mounts: []driver.Mount{{Source: bin, Target: "/usr/bin"}, {Source: library, Target: library}},
		Links: []driver.Link{{Path: "/bin", Target: "usr/bin"}},
		Files: []driver.File{{Path: "/etc/hosts", Data: []byte("127.0.0.1 localhost\n")},
			{Path: "/etc/passwd", Data: []byte("sandbox:x:1000:1000:sandbox:/workspace:/bin/sh\n")}}}
	modules, err := filepath.Glob(filepath.Join(library, "lib-dynload", "*.so"))
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("ldd", append(modules, program)...).Output()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for word := range strings.FieldsSeq(string(out)) {
		if !strings.HasPrefix(word, "/") || strings.HasSuffix(word, ":") || seen[word] {
			continue
		}
		seen[word] = true
		source, err := filepath.EvalSymlinks(word)
		if err != nil {
			t.Fatal(err)
		}
		root.Mounts = append(root.Mounts, driver.Mount{Source: source, Target: word})
	}
	return root, filepath.Join("/usr/bin", filepath.Base(program))
}

func limits() glovebox.Limits {
	return glovebox.Limits{Wall: time.Minute, CPU: time.Minute, CPUs: 1, Memory: 256 * glovebox.MiB, Disk: 16 * glovebox.MiB,
		Files: 2000, OpenFiles: 256, Processes: 64, Egress: glovebox.MiB, Output: 16 * glovebox.MiB, View: 16 * glovebox.KiB}
}

// TestConformance holds the driver to what every driver promises.
func TestConformance(t *testing.T) {
	if os.Getenv(allEnv) == "" {
		t.Skip("boots a machine for each of about a hundred promises: make test-microvm")
	}
	root, python := smallRoot(t)
	drivertest.Run(t, drivertest.Subject{New: newDriver, Root: root, Slack: slack, Interpreters: map[string]string{"python": python}})
}

// TestCold runs a program in a machine that is booted for it, with inputs, outputs and a workspace on disk.
func TestCold(t *testing.T) {
	d := newDriver(t)
	ctx, cancel := context.WithTimeout(context.Background(), slack)
	defer cancel()
	in := t.TempDir()
	if err := os.WriteFile(filepath.Join(in, "a.txt"), []byte("input\n"), 0o444); err != nil {
		t.Fatal(err)
	}
	root, _ := smallRoot(t)
	l := limits()
	l.Memory, l.Disk = 128*glovebox.MiB, 96*glovebox.MiB // which does not fit into memory
	s, err := d.Start(ctx, driver.Spec{ID: "vm_cold", Limits: l, Root: root, Inputs: in})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
	}()
	p, err := s.Exec(ctx, driver.Command{Argv: []string{"sh", "-c", "cat; cat /inputs/a.txt; echo err >&2; " +
		"head -c 60000000 /dev/zero >/workspace/large; echo out >/outputs/o.txt; ln -s /etc/hosts /outputs/link; sleep 1000 & exit 3"},
		Env: []string{"PATH=/bin"}, Dir: "/workspace", Stdin: strings.NewReader("stdin\n")})
	if err != nil {
		t.Fatal(err)
	}
	var got ended
	var both sync.WaitGroup
	both.Go(func() { b, _ := io.ReadAll(p.Stdout()); got.Out = string(b) })
	both.Go(func() { b, _ := io.ReadAll(p.Stderr()); got.Err = string(b) })
	select {
	case <-p.Exited():
	case <-ctx.Done():
		t.Fatal("it does not end")
	}
	got.Exit = p.Exit()
	if err := p.Kill(ctx); err != nil {
		t.Fatal(err)
	}
	both.Wait()
	if d := cmp.Diff(ended{Out: "stdin\ninput\n", Err: "err\n", Exit: driver.Exit{Code: 3}}, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if use, err := s.Disk(); err != nil || use.Used < 60000000 || use.Used > int64(l.Disk) {
		t.Errorf("disk: %+v, %v", use, err)
	}
	f, err := s.Open("o.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if b, err := io.ReadAll(f); string(b) != "out\n" || err != nil {
		t.Errorf("output %q, %v", b, err)
	}
	if _, err := s.Open("link"); !errors.Is(err, driver.ErrNotRegular) {
		t.Errorf("a link: %v", err)
	}
	for key, want := range map[string]string{"rung": "microvm", "acceleration": "emulated: no security boundary",
		"jail_capabilities": "none", "jail_system_calls": "filtered", "guest_capabilities": "none", "guest_workspace": "disk (ext4)"} {
		if p.Posture()[key] != want {
			t.Errorf("posture says %q of %s, want %q", p.Posture()[key], key, want)
		}
	}
}

// TestMachineKilled: a machine that ends takes its run with it, which is lost and not blamed on the program.
func TestMachineKilled(t *testing.T) {
	d := newDriver(t)
	ctx, cancel := context.WithTimeout(context.Background(), slack)
	defer cancel()
	root, _ := smallRoot(t)
	s, err := d.Start(ctx, driver.Spec{ID: "vm_killed", Limits: limits(), Root: root})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(ctx)
	p, err := s.Exec(ctx, driver.Command{Argv: []string{"/bin/sleep", "1000"}, Env: []string{}, Dir: "/"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Sample(); err != nil {
		t.Error(err)
	}
	if err := microvm.KillMachine(ctx, s); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.Exited():
	case <-ctx.Done():
		t.Fatal("its end is not seen")
	}
	if !p.Exit().Lost {
		t.Errorf("exit = %+v, want it lost", p.Exit())
	}
	if _, err := io.ReadAll(p.Stdout()); err != nil {
		t.Error(err)
	}
	if sample, err := p.Sample(); err != nil || sample.Processes != 0 {
		t.Errorf("sample = %+v, %v", sample, err)
	}
	if err := p.Kill(ctx); err != nil {
		t.Error(err)
	}
}
