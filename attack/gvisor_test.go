package attack_test

import (
	"os"
	"path/filepath"
	"testing"

	"glovebox"
	battery "glovebox/attack"
	"glovebox/driver"
	"glovebox/driver/gvisor"
	"glovebox/engine"
)

// TestBatteryGVisor runs the battery on the gVisor rung: what is about the kernel and the network, and in the long form all.
func TestBatteryGVisor(t *testing.T) {
	l := need(t)
	runsc, err := filepath.Abs(filepath.Join("..", "bin", "runsc"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(runsc); err != nil {
		t.Skip("there is no bin/runsc: make build makes it")
	}
	dir, err := os.MkdirTemp(l.dir, "gvisor-")
	if err != nil {
		t.Fatal(err)
	}
	cgroup, data := l.cgroup+"-gvisor", filepath.Join(dir, "data")
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	d, err := gvisor.New(gvisor.Config{Runsc: runsc, Init: filepath.Join(l.bin, "glovebox-init"), Cgroup: cgroup,
		RuntimeDir: filepath.Join(dir, "run"), ScratchDir: filepath.Join(dir, "scratch")})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Available(t.Context()); err != nil {
		t.Fatal(err)
	}
	e, err := engine.New(engine.Config{DataDir: data, Drivers: []driver.Driver{d}, RuntimeDir: filepath.Join(dir, "locks")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		for _, dir := range groupDirs(cgroup) {
			if err := removeGroup(dir); err != nil {
				t.Error(err)
			}
		}
		os.RemoveAll(dir)
	})
	cfg := battery.Config{Service: e, Who: owner, Isolation: glovebox.IsolationGVisor, Trust: glovebox.TrustModel,
		Folders: []string{data, "/var/tmp"}, Disposable: long()}
	if !long() {
		cfg.Axes = []string{"NT", "CR", "KS", "LT"}
	}
	r, err := battery.Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	l.judgeRung(t, *r)
	if r.Isolation != glovebox.IsolationGVisor {
		t.Errorf("it ran on %s", r.Isolation)
	}
	t.Logf("%+v", r.Total)
}
