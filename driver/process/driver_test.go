package process_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"glovebox/driver"
	"glovebox/driver/drivertest"
	"glovebox/driver/process"
	"glovebox/internal/image"
)

// initBinary and probeBinary are built once for the tests of this package.
var initBinary, probeBinary string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if cgroup := os.Getenv(supervisorEnv); cgroup != "" {
		supervise(cgroup)
	}
	if cgroup := os.Getenv(accountEnv); cgroup != "" {
		if err := haveAccount(); err != nil {
			panic(err)
		}
		if err := asUser(append(os.Environ(), accountEnv+"=", userCgroupEnv+"="+cgroup), os.Stdout, user()); err != nil {
			return 1
		}
		return 0
	}
	if around := os.Getenv(aroundEnv); around != "" {
		examine(around)
	}
	initBinary, probeBinary = os.Getenv("GLOVEBOX_TEST_INIT"), os.Getenv("GLOVEBOX_TEST_PROBE")
	if initBinary != "" {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "glovebox-init-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		panic(err)
	}
	initBinary, probeBinary = filepath.Join(dir, "glovebox-init"), filepath.Join(dir, "probe")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", dir, "glovebox/cmd/glovebox-init",
		"glovebox/driver/drivertest/probe")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		panic(string(out))
	}
	// A test that is started anew, to be killed, must not be at building them.
	os.Setenv("GLOVEBOX_TEST_INIT", initBinary)
	os.Setenv("GLOVEBOX_TEST_PROBE", probeBinary)
	return m.Run()
}

func newDriver(t testing.TB) driver.Driver {
	t.Helper()
	cfg := process.Config{Init: initBinary, ScratchDir: t.TempDir(), Cgroup: os.Getenv(userCgroupEnv),
		NetworkDevice: os.Getenv(tunEnv)}
	if cfg.Cgroup != "" {
		cfg.RuntimeDir = filepath.Join(os.TempDir(), "locks") // so that nothing of the user is left
	}
	d, err := process.New(cfg)
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

func TestConformance(t *testing.T) {
	host, err := image.Host(image.Config{})
	if err != nil {
		t.Fatal(err)
	}
	subject := drivertest.Subject{New: func(t *testing.T) driver.Driver { return newDriver(t) }, Root: host.Root(), Probe: probeBinary,
		Interpreters: map[string]string{}}
	for _, lang := range []string{"python", "node", "bash"} {
		if path, err := host.Interpreter(lang); err == nil {
			subject.Interpreters[lang] = path
		}
	}
	if slack := os.Getenv("GLOVEBOX_TEST_SLACK"); slack != "" { // an emulated machine is slow
		if subject.Slack, err = time.ParseDuration(slack); err != nil {
			t.Fatal(err)
		}
	}
	drivertest.Run(t, subject)
}
