package microvm_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"glovebox"
	"glovebox/driver"
	"glovebox/driver/drivertest"
	"glovebox/driver/microvm"
	"glovebox/driver/process"
)

// programs is the folder of glovebox-init and glovebox-guest, built once for the tests of this package.
var programs string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
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
	return m.Run()
}

// kernelEnv names a folder with a guest's kernel, where none is installed; with it the tests boot emulated machines.
const kernelEnv = "GLOVEBOX_TEST_MICROVM"

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

// smallRoot is an image of a shell and its usual tools, so that making it takes no time.
func smallRoot(t *testing.T) driver.Root {
	t.Helper()
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal("needs busybox: apt-get install busybox-static")
	}
	bin := filepath.Join(t.TempDir(), "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cp", busybox, filepath.Join(bin, "busybox")).CombinedOutput(); err != nil {
		t.Fatal(string(out))
	}
	names, err := exec.Command(busybox, "--list").Output()
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.FieldsSeq(string(names)) {
		if name == "busybox" {
			continue
		}
		if err := os.Symlink("busybox", filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	return driver.Root{Mounts: []driver.Mount{{Source: bin, Target: "/bin"}},
		Links: []driver.Link{{Path: "/usr/bin", Target: "/bin"}},
		Files: []driver.File{{Path: "/etc/hosts", Data: []byte("127.0.0.1 localhost\n")}}}
}

func limits() glovebox.Limits {
	return glovebox.Limits{Wall: time.Minute, CPU: time.Minute, CPUs: 1, Memory: 256 * glovebox.MiB, Disk: 16 * glovebox.MiB,
		Files: 2000, OpenFiles: 256, Processes: 64, Egress: glovebox.MiB, Output: 16 * glovebox.MiB, View: 16 * glovebox.KiB}
}

func TestConformance(t *testing.T) {
	drivertest.Run(t, drivertest.Subject{New: newDriver, Root: smallRoot(t), Slack: 3 * time.Minute})
}
