package gvisor_test

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"glovebox"
	"glovebox/driver"
	"glovebox/driver/drivertest"
	"glovebox/driver/gvisor"
	"glovebox/internal/image"
)

// programsEnv is the folder of programs that are built: a test that is started anew, to be killed, must not be at building
// them.
const programsEnv = "GLOVEBOX_TEST_PROGRAMS"

// programs are runsc and a glovebox-init of this very source for the tests of this package.
var programs struct{ runsc, init string }

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir := os.Getenv(programsEnv)
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", "glovebox-gvisor-"); err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		if err := os.Chmod(dir, 0o755); err != nil {
			panic(err)
		}
		build(filepath.Join(dir, "glovebox-init"), "glovebox/cmd/glovebox-init")
	}
	programs.init = filepath.Join(dir, "glovebox-init")
	// What make build has made is not made again: that takes minutes.
	var err error
	if programs.runsc, err = filepath.Abs("../../bin/runsc"); err != nil {
		panic(err)
	}
	if _, err := os.Stat(programs.runsc); err != nil {
		programs.runsc = filepath.Join(dir, "runsc")
	}
	if _, err := os.Stat(programs.runsc); err != nil {
		build(programs.runsc, "gvisor.dev/gvisor/runsc")
	}
	os.Setenv(programsEnv, dir)
	return m.Run()
}

func build(to, what string) {
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", to, what)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		panic(string(out))
	}
}

func newDriver(t *testing.T) driver.Driver {
	t.Helper()
	d, err := gvisor.New(gvisor.Config{Init: programs.init, Runsc: programs.runsc, ScratchDir: t.TempDir(), Cgroup: "/glovebox-gvisor"})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// needRoot skips for an ordinary user, and fails where root was promised.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() == 0 {
		return
	}
	if os.Getenv("GLOVEBOX_TEST_ROOT") == "1" {
		t.Fatal("root was promised")
	}
	t.Skip("needs root")
}

func TestRun(t *testing.T) {
	needRoot(t)
	host, err := image.Host(image.Config{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := newDriver(t).Start(t.Context(), driver.Spec{ID: "run", Root: host.Root(), Limits: glovebox.Limits{
		CPUs: 1, Memory: 128 * glovebox.MiB, Disk: 16 * glovebox.MiB, Files: 64, OpenFiles: 64, Processes: 16}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.Background())
	p, err := s.Exec(t.Context(), driver.Command{Argv: []string{"/bin/sh", "-c", "id -u; cat /proc/version; echo a >/outputs/a"},
		Env: []string{"PATH=/bin"}, Dir: "/workspace"})
	if err != nil {
		t.Fatal(err)
	}
	<-p.Exited()
	if err := p.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(p.Stdout())
	if err != nil || !strings.HasPrefix(string(out), "1000\n") || !strings.Contains(string(out), "gvisor") {
		t.Errorf("%q, %v", out, err)
	}
	f, err := s.Open("a")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if b, err := io.ReadAll(f); string(b) != "a\n" {
		t.Errorf("the output is %q, %v", b, err)
	}
}
func TestConformance(t *testing.T) {
	host, err := image.Host(image.Config{})
	if err != nil {
		t.Fatal(err)
	}
	drivertest.Run(t, drivertest.Subject{New: newDriver, Root: host.Root()})
}
