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

// newGVisor is an engine with the gVisor rung alone.
func newGVisor(t *testing.T, pool engine.Pool) *soak {
	t.Helper()
	l := need(t)
	runsc, err := filepath.Abs(filepath.Join("..", "bin", "runsc"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(runsc); err != nil {
		if os.Getenv("GLOVEBOX_TEST_ROOT") == "1" {
			t.Fatal("promised but missing: bin/runsc, which make build makes")
		}
		t.Skip("there is no bin/runsc: make build makes it")
	}
	dir, err := os.MkdirTemp(l.dir, "gvisor-")
	if err != nil {
		t.Fatal(err)
	}
	s := &soak{laboratory: &laboratory{dir: dir, data: filepath.Join(dir, "data"), cgroup: l.cgroup + "-gvisor"}}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(s.data, 0o700); err != nil {
		t.Fatal(err)
	}
	d, err := gvisor.New(gvisor.Config{Runsc: runsc, Init: filepath.Join(l.bin, "glovebox-init"), Cgroup: s.cgroup,
		RuntimeDir: filepath.Join(dir, "run"), ScratchDir: filepath.Join(dir, "scratch")})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Available(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.engine, err = engine.New(engine.Config{DataDir: s.data, Drivers: []driver.Driver{noting{d}}, Pool: pool,
		RuntimeDir: filepath.Join(dir, "locks")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.engine.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		for _, dir := range groupDirs(s.cgroup) {
			if err := removeGroup(dir); err != nil {
				t.Error(err)
			}
		}
		os.RemoveAll(dir)
	})
	return s
}

// TestBatteryGVisor runs the battery on the gVisor rung, cold: what is about the kernel and the network, and in the long form
// all.
func TestBatteryGVisor(t *testing.T) {
	s := newGVisor(t, engine.Pool{})
	cfg := battery.Config{Service: s.engine, Who: owner, Isolation: glovebox.IsolationGVisor, Trust: glovebox.TrustModel,
		Folders: []string{s.data, "/var/tmp"}, Disposable: long()}
	if !long() {
		cfg.Axes = []string{"NT", "CR", "KS"}
	}
	r, err := battery.Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	s.judgeRung(t, *r)
	if r.Isolation != glovebox.IsolationGVisor {
		t.Errorf("it ran on %s", r.Isolation)
	}
	t.Logf("%+v", r.Total)
}

// TestBatteryGVisorWarm: likewise of what was ready before.
func TestBatteryGVisorWarm(t *testing.T) {
	s := newGVisor(t, engine.Pool{Spares: 2})
	w := newWarmSoakOn(t, s, glovebox.IsolationGVisor)
	cfg := battery.Config{Service: w, Who: owner, Isolation: glovebox.IsolationGVisor, Unnamed: true, Sandbox: w.sandbox,
		Folders: []string{s.data, "/var/tmp"}, Disposable: long()}
	least := 30
	if !long() {
		cfg.Axes, least = []string{"LT", "IL"}, 4
	}
	r, err := battery.Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	starts := map[string]int{}
	for _, o := range r.Programs {
		starts[o.Start]++
		if o.Verdict == battery.Broke || o.Verdict == battery.NotTried && o.Axis != "CT" && !o.Disposable {
			t.Errorf("%s %s (%s): %s %q %q", o.ID, o.Verdict, o.Start, o.Reason, o.Found, o.Claims)
		}
	}
	t.Logf("%+v, starts %v", r.Total, starts)
	if !r.OK || starts["spare"] < least {
		t.Errorf("%+v, starts %v", r.Total, starts)
	}
}
