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

// programs are runsc and what is of this very source for the tests of this package.
var programs struct{ runsc, init, probe string }

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if os.Getenv(accountEnv) != "" {
		if err := haveAccount(); err != nil {
			panic(err)
		}
		return 0
	}
	if given := strings.Split(os.Getenv(programsEnv), ":"); len(given) == 3 {
		programs.runsc, programs.init, programs.probe = given[0], given[1], given[2]
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "glovebox-gvisor-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil { // another user runs them too
		panic(err)
	}
	programs.runsc, programs.init, programs.probe = filepath.Join(dir, "runsc"), filepath.Join(dir, "glovebox-init"), filepath.Join(dir, "probe")
	build(programs.init, "glovebox/cmd/glovebox-init")
	build(programs.probe, "glovebox/driver/drivertest/probe")
	// What make build has made is not made again: that takes minutes.
	made, err := os.ReadFile("../../bin/runsc")
	if err == nil {
		err = os.WriteFile(programs.runsc, made, 0o755)
	}
	if err != nil {
		build(programs.runsc, "gvisor.dev/gvisor/runsc")
	}
	// A test that is started anew, to be killed, must not be at building them.
	os.Setenv(programsEnv, strings.Join([]string{programs.runsc, programs.init, programs.probe}, ":"))
	return m.Run()
}

func build(to, what string) {
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", to, what)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		panic(string(out))
	}
}

func newDriver(t testing.TB) driver.Driver {
	t.Helper()
	cfg := gvisor.Config{Init: programs.init, Runsc: programs.runsc, ScratchDir: t.TempDir(), Cgroup: os.Getenv(userCgroupEnv),
		NetworkDevice: os.Getenv(tunEnv)}
	if cfg.Cgroup != "" {
		cfg.RuntimeDir = filepath.Join(os.TempDir(), "locks") // so that nothing of the user is left
	}
	d, err := gvisor.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// needRoot skips for an ordinary user who was not given what it takes, and fails where root was promised.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() == 0 || os.Getenv(userCgroupEnv) != "" {
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

// TestNoMounts: a program makes no file system of its own, where nothing but its memory would bound what it keeps. Its kernel
// would let it be root of a user namespace.
func TestNoMounts(t *testing.T) {
	needRoot(t)
	host, err := image.Host(image.Config{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := newDriver(t).Start(t.Context(), driver.Spec{ID: "mounts", Root: host.Root(), Limits: usual})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.Background())
	p, err := s.Exec(t.Context(), driver.Command{Argv: []string{"/bin/sh", "-c",
		"unshare -Urm mount -t tmpfs none /tmp && echo mounted; unshare -U true && echo entered; echo over"},
		Env: []string{"PATH=/usr/bin:/bin"}, Dir: "/workspace"})
	if err != nil {
		t.Fatal(err)
	}
	<-p.Exited()
	if err := p.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	out, _ := io.ReadAll(p.Stdout())
	errs, _ := io.ReadAll(p.Stderr())
	if string(out) != "over\n" || strings.Count(string(errs), "Operation not permitted") != 2 {
		t.Errorf("%q, %q", out, errs)
	}
}

func TestConformance(t *testing.T) {
	needRoot(t)
	host, err := image.Host(image.Config{})
	if err != nil {
		t.Fatal(err)
	}
	subject := drivertest.Subject{New: func(t *testing.T) driver.Driver { return newDriver(t) }, Root: host.Root(), Probe: programs.probe, Interpreters: map[string]string{}}
	for _, lang := range []string{"python", "node", "bash"} {
		if path, err := host.Interpreter(lang); err == nil {
			subject.Interpreters[lang] = path
		}
	}
	drivertest.Run(t, subject)
}
