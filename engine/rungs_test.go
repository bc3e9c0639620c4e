package engine

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"glovebox"
	"glovebox/driver"
	"glovebox/driver/drivertest"
	"glovebox/policy"
)

// rungsEngine is an engine with a process rung and a gvisor rung that is there while absent is nil.
func rungsEngine(t *testing.T, absent *atomic.Pointer[glovebox.Error], config policy.Config) (*Engine, map[string]*drivertest.Fake) {
	t.Helper()
	if config.TrustRungs == nil {
		config.TrustRungs = map[glovebox.Trust]glovebox.Isolation{"influenced": "gvisor"}
	}
	low := &drivertest.Fake{}
	high := &drivertest.Fake{Rung: glovebox.IsolationGVisor, Absent: func() error {
		if e := absent.Load(); e != nil {
			return e
		}
		return nil
	}}
	e, err := New(Config{DataDir: t.TempDir(), Drivers: []driver.Driver{low, high}, Image: fakeImage{}, RuntimeDir: t.TempDir(),
		Policy: config})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e, map[string]*drivertest.Fake{"process": low, "gvisor": high}
}

// started is how many sandboxes a driver was asked for. What it is asked later goes on beside the caller.
func started(f *drivertest.Fake) (n int) {
	for _, step := range f.Calls() {
		if step == "start" {
			n++
		}
	}
	return n
}

// TestTrustDecides: each run is on the rung of its decision and on no other, and result and record say what was asked, by
// which rule it was decided, and what it got. A rung that is not there is refused, with what mends it, and the refusal is
// recorded; once it is there it is used.
func TestTrustDecides(t *testing.T) {
	var absent atomic.Pointer[glovebox.Error]
	e, fakes := rungsEngine(t, &absent, policy.Config{})
	type want struct {
		isolation glovebox.Isolation
		rule      string
	}
	run := func(req glovebox.Request, w want) {
		t.Helper()
		before := map[string]int{}
		for name, f := range fakes {
			before[name] = started(f)
		}
		req.Code = "x"
		res, err := e.Run(t.Context(), owner, req, nil)
		if w.isolation == "" {
			var known *glovebox.Error
			if !errors.As(err, &known) || known.Code != glovebox.CodeUnavailable || !strings.Contains(known.Public, "there is no runsc") ||
				!strings.Contains(known.Fix, "make build") || !strings.Contains(known.Fix, "--trust model --isolation process") {
				t.Fatalf("%+v: result %+v, error %#v", req, res, err)
			}
			list, err := e.Traces(t.Context(), owner, glovebox.TraceQuery{Limit: 1})
			if err != nil || list[0].State != "refused" || list[0].Decision.Rule != w.rule || list[0].Decision.Asked != "auto" {
				t.Errorf("record %+v, error %v", list, err)
			}
		} else {
			if err != nil || res.Isolation != w.isolation || res.Rule != w.rule || res.Asked != max(req.Isolation, "auto") {
				t.Fatalf("%+v: result %+v, error %v", req, res, err)
			}
			rec, err := e.Trace(t.Context(), owner, res.ID)
			if err != nil || rec.Decision.Asked != res.Asked || rec.Decision.Rule != w.rule || rec.Result.Isolation != w.isolation {
				t.Errorf("record %+v, error %v", rec, err)
			}
		}
		for name, f := range fakes {
			if used := started(f) != before[name]; used != (name == string(w.isolation)) {
				t.Errorf("%+v: the %s rung was used: %v", req, name, used)
			}
		}
	}
	run(glovebox.Request{}, want{"gvisor", "trust.influenced"})
	run(glovebox.Request{Trust: "model"}, want{"process", "trust.model"})
	run(glovebox.Request{Trust: "model", Isolation: "gvisor"}, want{"gvisor", "isolation.raised"})
	run(glovebox.Request{Isolation: "process"}, want{"gvisor", "trust.influenced"})
	absent.Store(glovebox.Errorf(glovebox.CodeUnavailable, "make build", "there is no runsc"))
	run(glovebox.Request{}, want{"", "isolation.unavailable"})
	run(glovebox.Request{Trust: "model"}, want{"process", "trust.model"})
	absent.Store(nil)
	run(glovebox.Request{}, want{"gvisor", "trust.influenced"})
}

// TestDoctorTellsTheDefault: what a request that says nothing of itself gets, or why it is refused.
func TestDoctorTellsTheDefault(t *testing.T) {
	var absent atomic.Pointer[glovebox.Error]
	e, _ := rungsEngine(t, &absent, policy.Config{})
	r, err := e.Doctor(t.Context())
	if err != nil || !r.Ready || r.Default.Grant.Isolation != "gvisor" {
		t.Fatalf("%+v, %v", r, err)
	}
	absent.Store(glovebox.Errorf(glovebox.CodeUnavailable, "make build", "there is no runsc"))
	r, err = e.Doctor(t.Context())
	if err != nil || r.Ready || r.Default.Allow || !strings.Contains(r.Default.Fix, "make build") {
		t.Fatalf("%+v, %v", r, err)
	}
	for _, c := range r.Controls {
		if c.Isolation != "" && c.Isolation.Rank() < 1 || strings.Contains(c.Fix, " 0B") {
			t.Errorf("%+v", c)
		}
	}
}

// TestRungs: what each rung lacks, and what it takes, as its driver says; one without a driver is told too.
func TestRungs(t *testing.T) {
	var absent atomic.Pointer[glovebox.Error]
	e, fakes := rungsEngine(t, &absent, policy.Config{})
	fakes["gvisor"].Extra = 7
	absent.Store(glovebox.Errorf(glovebox.CodeUnavailable, "make build", "there is no runsc"))
	got, err := e.Rungs(t.Context())
	want := []glovebox.Rung{{Isolation: "process", Available: true},
		{Isolation: "gvisor", Detail: "there is no runsc", Fix: "make build", OverheadBytes: 7},
		{Isolation: "microvm", Detail: "this engine has no microvm rung", Fix: "run it where `glovebox doctor` shows the microvm rung as available"}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
}

// cold is a driver that has nothing ready, and reluctant one that has, but no Python.
type cold struct{ driver.Driver }

type reluctant struct{ *drivertest.Fake }

func (reluctant) Sizes(driver.Hold) driver.Sizes { return driver.Sizes{} }

// TestReadyAsTheDriverCan: what is ready, and what a result calls it, is up to the rung's driver.
func TestReadyAsTheDriverCan(t *testing.T) {
	for name, c := range map[string]struct {
		as   func(*drivertest.Fake) driver.Driver
		want string
	}{
		"forks":      {func(f *drivertest.Fake) driver.Driver { return f }, driver.StartFork},
		"restores":   {func(f *drivertest.Fake) driver.Driver { f.Restores = true; return f }, driver.StartRestored},
		"nothing":    {func(f *drivertest.Fake) driver.Driver { return cold{f} }, "cold"},
		"not Python": {func(f *drivertest.Fake) driver.Driver { return reluctant{f} }, "cold"},
	} {
		t.Run(name, func(t *testing.T) {
			fake := &drivertest.Fake{Dir: t.TempDir(), Rung: glovebox.IsolationGVisor}
			e, err := New(Config{DataDir: t.TempDir(), Drivers: []driver.Driver{c.as(fake)}, Image: fakeImage{}, RuntimeDir: t.TempDir(),
				MemoryBudget: 4 * glovebox.GiB, Pool: Pool{Spares: 4, Forks: true}})
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			var res *glovebox.Result
			for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
				if res, err = e.Run(t.Context(), owner, glovebox.Request{Code: "x"}, nil); err != nil {
					t.Fatal(err)
				}
				if res.Start == c.want || time.Now().After(deadline) {
					break
				}
			}
			if st := e.PoolStats(); res.Start != c.want || c.want == "cold" && st.Empty+int64(len(st.Kinds)) > 0 {
				t.Errorf("start %s, want %s; %+v", res.Start, c.want, st)
			}
		})
	}
}
