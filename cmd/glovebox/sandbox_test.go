package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// sandboxConfig is the variable of a script that says which configuration the command box uses.
const sandboxConfig = "BOX_CONFIG"

// box is glovebox with the configuration of the script, so that a script needs not say it each time.
func box() {
	os.Args = append([]string{os.Args[0], "--config", os.Getenv(sandboxConfig)}, os.Args[1:]...)
	main()
}

// sandboxInit builds the init of real sandboxes. It skips for an ordinary user, and fails where root was promised.
func sandboxInit(t *testing.T) string {
	t.Helper()
	switch {
	case os.Getuid() == 0:
	case os.Getenv("GLOVEBOX_TEST_ROOT") == "1":
		t.Fatal("root was promised")
	default:
		t.Skip("needs root")
	}
	initBinary := filepath.Join(t.TempDir(), "glovebox-init")
	build := exec.Command("go", "build", "-trimpath", "-o", initBinary, "glovebox/cmd/glovebox-init")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for dir := filepath.Dir(initBinary); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil { // the ids of a sandbox must reach it
			t.Fatal(err)
		}
	}
	return initBinary
}

// TestSandboxScripts runs the whole of Glovebox on this machine: command line, engine, driver and trace.
func TestSandboxScripts(t *testing.T) {
	initBinary := sandboxInit(t)
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/sandbox",
		RequireExplicitExec: true,
		Cmds:                map[string]func(*testscript.TestScript, bool, []string){"exits": exits, "listens": listens},
		Setup: func(e *testscript.Env) error {
			e.Setenv("HOME", e.WorkDir)
			config := filepath.Join(e.WorkDir, "glovebox.yaml")
			e.Setenv(sandboxConfig, config)
			text := fmt.Sprintf("data_dir: %s/data\npolicy: {trust: {influenced: process}}\ndrivers: {process: {init: %s}}\n", e.WorkDir, initBinary)
			strict := fmt.Sprintf("data_dir: %s/strict\ndrivers: {process: {init: %s}}\n", e.WorkDir, initBinary)
			return errors.Join(os.WriteFile(config, []byte(text), 0o600),
				os.WriteFile(filepath.Join(e.WorkDir, "strict.yaml"), []byte(strict), 0o600))
		},
	})
}
