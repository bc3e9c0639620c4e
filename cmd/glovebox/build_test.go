package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"glovebox/internal/livefolder"
)

// TestBuildRelease builds an image of the distribution's packages, from its mirror, on the gvisor rung, and runs a program of
// it. It takes minutes.
func TestBuildRelease(t *testing.T) {
	if os.Getenv("GLOVEBOX_TEST_LONG") != "1" {
		t.Skip("GLOVEBOX_TEST_LONG=1 runs it")
	}
	runsc, err := filepath.Abs("../../bin/runsc")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(runsc); err != nil {
		t.Fatal("promised but missing: bin/runsc, which make build makes")
	}
	p := newPlace(t)
	t.Cleanup(func() { livefolder.RemoveTree(p.dir + "/data/images") })
	text := fmt.Sprintf("data_dir: %s/data\ndrivers: {process: {init: %s, cgroup: %s}, gvisor: {runsc: %s}}\n", p.dir, p.init, p.cgroup, runsc)
	file := p.dir + "/small.yaml"
	recipe := "apt: [hello]\nenv: [GREETING=built]\nfiles:\n  - {path: /opt/own, content: own}\n"
	for name, content := range map[string]string{p.dir + "/glovebox.yaml": text, file: recipe} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	glovebox := func(args ...string) (out, errs string, code int) {
		var o, e bytes.Buffer
		a := &app{in: strings.NewReader(""), out: &o, errs: &e, getenv: os.Getenv, uid: os.Getuid(), runtime: p.dir, open: open}
		code = a.main(append([]string{"--config", p.dir + "/glovebox.yaml"}, args...))
		return o.String(), e.String(), code
	}
	if out, errs, code := glovebox("image", "build", file); code != 0 || !strings.HasPrefix(out, "small sha256:") {
		t.Fatalf("exit code %d: %s\n%s", code, out, errs)
	}
	lock, err := os.ReadFile(file + ".lock")
	if err != nil || !bytes.Contains(lock, []byte("\napt hello ")) || !bytes.Contains(lock, []byte("\napt libc6 ")) {
		t.Errorf("lock file %v: %s", err, lock)
	}
	out, errs, code := glovebox("exec", "--local", "--trust", "model", "--image", "small", "--", "sh", "-c", "hello; echo $GREETING; cat /opt/own; "+
		"grep -c '^Status: install ok installed' /var/lib/dpkg/status; ls -d /usr/share/man /debs 2>&1 | grep -c cannot")
	if code != 0 || !strings.HasPrefix(out, "Hello, world!\nbuilt\nown") {
		t.Errorf("exit code %d: %s\n%s", code, out, errs)
	}
	if left, err := os.ReadDir(filepath.Join(os.TempDir(), fmt.Sprintf("glovebox-fetch-%d", os.Getuid()))); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	changed := bytes.Replace(lock, []byte("apt hello "), []byte("apt hallo "), 1)
	if err := os.WriteFile(file+".lock", changed, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, errs, code := glovebox("image", "build", file); code == 0 || !strings.Contains(errs, "small.yaml:1: apt: ") {
		t.Errorf("against a lock file of another: exit code %d\n%s", code, errs)
	}
}
