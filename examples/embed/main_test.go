package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestREADME: the program is the README's, whole.
func TestREADME(t *testing.T) {
	program, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, body, _ := strings.Cut(string(program), "package main\n")
	if !strings.Contains(string(readme), "```go\npackage main\n"+body+"```") {
		t.Error("the README's program is another one")
	}
}

// TestEmbed runs the program as its reader would.
func TestEmbed(t *testing.T) {
	if os.Getuid() != 0 {
		if os.Getenv("GLOVEBOX_TEST_ROOT") == "1" {
			t.Fatal("root was promised")
		}
		t.Skip("needs root")
	}
	dir := t.TempDir()
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil { // the ids of a sandbox must reach it
			t.Fatal(err)
		}
	}
	build := exec.Command("go", "build", "-o", dir, ".", "glovebox/cmd/glovebox-init")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	out, err := exec.Command(filepath.Join(dir, "embed"), filepath.Join(dir, "data")).CombinedOutput()
	if err != nil || string(out) != "exited 42\n\n" {
		t.Errorf("%q, %v", out, err)
	}
}
