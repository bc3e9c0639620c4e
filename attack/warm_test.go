package attack_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"glovebox"
	battery "glovebox/attack"
	"glovebox/driver"
	"glovebox/driver/process"
	"glovebox/engine"
	"glovebox/internal/lease"
)

// warmSoak is an engine that has sandboxes ready, of which it is known which run is in which. It is the Service of a battery.
type warmSoak struct {
	*soak
	glovebox.Service
	t     *testing.T
	rung  glovebox.Isolation
	mu    sync.Mutex
	boxes map[string]*box // by run
}

// box is the sandbox of a run.
type box struct {
	mu   sync.Mutex
	name string // empty: it is named after the run
}

type boxKey struct{}

func newWarmSoak(t *testing.T, forks bool) *warmSoak {
	t.Helper()
	s := newSoakWith(t, engine.Pool{Spares: 4, Forks: forks},
		func(d *process.Driver) driver.Driver { return noting{d} })
	return newWarmSoakOn(t, s, glovebox.IsolationProcess)
}

// newWarmSoakOn has the engine of a soak make something ready of each language, on a rung.
func newWarmSoakOn(t *testing.T, s *soak, rung glovebox.Isolation) *warmSoak {
	t.Helper()
	w := &warmSoak{soak: s, Service: s.engine, t: t, rung: rung, boxes: map[string]*box{}}
	for lang, code := range map[string]string{"python": "pass", "node": "1", "bash": ":"} { // so that there are some
		if _, err := w.Run(t.Context(), owner, glovebox.Request{Lang: lang, Code: code}, nil); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// ready waits until there is a spare of each kind.
func (w *warmSoak) ready() {
	if !settle(30*time.Second, func() bool {
		return !slices.ContainsFunc(w.engine.PoolStats().Kinds, func(k lease.KindStats) bool { return k.Ready == 0 })
	}) {
		w.t.Errorf("not ready: %+v", w.engine.PoolStats())
	}
}

// Run runs a program once all is ready, and notes which sandbox it gets.
func (w *warmSoak) Run(ctx context.Context, who glovebox.Principal, req glovebox.Request, sink glovebox.Sink) (*glovebox.Result, error) {
	w.ready()
	b := &box{}
	req.Trust, req.Isolation = glovebox.TrustModel, w.rung
	res, err := w.engine.Run(context.WithValue(ctx, boxKey{}, b), who, req, notingSink{w, b, sink})
	if err == nil {
		w.note(res.ID, b)
	}
	return res, err
}

func (w *warmSoak) note(run string, b *box) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.boxes[run] = b
}

// sandbox is the name of a run's.
func (w *warmSoak) sandbox(run string) string {
	w.mu.Lock()
	b := w.boxes[run]
	w.mu.Unlock()
	if b == nil {
		return run
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.name == "" {
		return run
	}
	return b.name
}

type notingSink struct {
	w    *warmSoak
	b    *box
	sink glovebox.Sink
}

func (s notingSink) Event(e glovebox.Event) {
	s.w.note(e.Run, s.b)
	if s.sink != nil {
		s.sink.Event(e)
	}
}

// noting is a driver whose spares tell whom they serve.
type noting struct{ driver.Warmer }

func (n noting) Hold(ctx context.Context, spec driver.Spec, hold driver.Hold) (driver.HeldSandbox, error) {
	s, err := n.Warmer.Hold(ctx, spec, hold)
	return notingBox{s, spec.ID}, err
}

func (n noting) Template(ctx context.Context, spec driver.Spec, hold driver.Hold) (driver.Template, error) {
	t, err := n.Warmer.Template(ctx, spec, hold)
	return notingTemplate{t}, err
}

type notingTemplate struct{ driver.Template }

func (n notingTemplate) Fork(ctx context.Context, spec driver.Spec) (driver.HeldSandbox, error) {
	s, err := n.Template.Fork(ctx, spec)
	return notingBox{s, spec.ID}, err
}

type notingBox struct {
	driver.HeldSandbox
	id string
}

func (n notingBox) Exec(ctx context.Context, cmd driver.Command) (driver.Process, error) {
	if b, ok := ctx.Value(boxKey{}).(*box); ok {
		b.mu.Lock()
		b.name = n.id
		b.mu.Unlock()
	}
	return n.HeldSandbox.Exec(ctx, cmd)
}

// ownLimits are the programs that no spare can serve, for they ask for another number or size of files.
var ownLimits = []string{"RS-36", "CT-11", "RS-12/alone", "RS-12/child", "RS-12/many", "RS-12/shared", "RS-12/memfd", "RS-13", "FS-22", "FS-23"}

// TestBatteryWarm: what was ready before holds as what is made for a run does.
func TestBatteryWarm(t *testing.T) {
	axes := map[bool][]string{true: {"FS", "CR", "RS", "KS", "LT"}, false: {"KS", "LT"}} // of the short form
	for name, forks := range map[string]bool{"fork": true, "spare": false} {
		t.Run(name, func(t *testing.T) {
			w := newWarmSoak(t, forks)
			cfg := battery.Config{Service: w, Who: owner, Unnamed: true, Sandbox: w.sandbox, Folders: []string{w.data, "/var/tmp"},
				Disposable: long()}
			if !long() {
				cfg.Axes = axes[forks]
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
				if o.Start == "cold" && !slices.Contains(ownLimits, o.ID) {
					t.Errorf("%s ran cold", o.ID)
				}
				if o.Start == "fork" && !forks || strings.HasPrefix(o.Run, "run_") && w.sandbox(o.Run) == o.Run && o.Start != "cold" {
					t.Errorf("%s ran in a %s, %s", o.ID, o.Start, w.sandbox(o.Run))
				}
			}
			t.Logf("%+v, starts %v", r.Total, starts)
			if !r.OK || forks && starts["fork"] < 45 || starts["spare"] < 15 {
				t.Errorf("%+v, starts %v", r.Total, starts)
			}
		})
	}
}
