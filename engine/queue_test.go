package engine

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"glovebox"
	"glovebox/driver"
	"glovebox/driver/drivertest"
)

// withBudget makes an engine whose runs have so much memory together.
func withBudget(t *testing.T, fake *drivertest.Fake, budget glovebox.Size) *Engine {
	t.Helper()
	dir := t.TempDir()
	e, err := New(Config{DataDir: filepath.Join(dir, "data"), Drivers: []driver.Driver{fake}, Policy: lowRungs, Image: fakeImage{}, MemoryBudget: budget,
		RuntimeDir: filepath.Join(dir, "locks")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		if left := fake.Live(); len(left) > 0 {
			t.Errorf("sandboxes left: %v", left)
		}
		taken(t, e, 0)
	})
	return e
}

// taken waits until so much memory is held: what goes on beside a caller may give it back a moment later.
func taken(t *testing.T, e *Engine, want glovebox.Size) {
	t.Helper()
	a, err := e.memory()
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		got, err := a.Taken()
		if err != nil {
			t.Fatal(err)
		}
		if got == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%v of memory is taken, want %v", got, want)
		}
	}
}

func withMemory(limit glovebox.Size) glovebox.Request {
	return glovebox.Request{Code: "x", Limits: glovebox.Limits{Memory: limit, Disk: glovebox.MiB, Wall: 30 * time.Second}}
}

// ran is what a run came to.
type ran struct {
	res *glovebox.Result
	err error
}

func begin(ctx context.Context, e *Engine, limit glovebox.Size) <-chan ran {
	done := make(chan ran, 1)
	go func() {
		res, err := e.Run(ctx, owner, withMemory(limit), nil)
		done <- ran{res, err}
	}()
	return done
}

// TestQueue: two runs just under half of the budget go together; a third waits for one of them, and its wait is neither its
// start nor its wall clock.
func TestQueue(t *testing.T) {
	running, let := make(chan struct{}, 3), make(chan struct{})
	fake := &drivertest.Fake{Program: func(ctx context.Context, p *drivertest.Proc) driver.Exit {
		running <- struct{}{}
		select {
		case <-let:
		case <-ctx.Done():
		}
		return driver.Exit{}
	}}
	e := withBudget(t, fake, 256*glovebox.MiB)
	half := 128*glovebox.MiB - 4096
	first, second := begin(t.Context(), e, half), begin(t.Context(), e, half)
	<-running
	<-running
	taken(t, e, 2*half)
	third := begin(t.Context(), e, half)
	const wait = 300 * time.Millisecond
	select {
	case <-running:
		t.Fatal("three halves of the budget run")
	case <-time.After(wait):
	}
	let <- struct{}{}
	<-running
	close(let)
	for i, done := range []<-chan ran{first, second, third} {
		r := <-done
		if r.err != nil || !r.res.OK {
			t.Fatalf("run %d: %+v, %v", i, r.res, r.err)
		}
		u := r.res.Usage
		if i < 2 && *u.QueueMS >= wait.Milliseconds() || i == 2 && *u.QueueMS < wait.Milliseconds()*9/10 {
			t.Errorf("run %d waited %d ms", i, *u.QueueMS)
		}
		if i == 2 && (*u.WallMS >= wait.Milliseconds() || *u.StartMS >= wait.Milliseconds()) {
			t.Errorf("wall %d ms, start %d ms: the wait counts", *u.WallMS, *u.StartMS)
		}
	}
}

// TestQueueRefuses: what could never fit is refused at once and recorded; the driver is not asked.
func TestQueueRefuses(t *testing.T) {
	fake := &drivertest.Fake{}
	e := withBudget(t, fake, 256*glovebox.MiB)
	_, err := e.Run(t.Context(), owner, withMemory(256*glovebox.MiB+1), nil)
	var known *glovebox.Error
	if !errors.As(err, &known) || known.Code != glovebox.CodeUnavailable || !strings.Contains(known.Fix, "--memory 256MiB") {
		t.Fatalf("error = %#v", err)
	}
	recs, err := e.Traces(t.Context(), owner, glovebox.TraceQuery{})
	if err != nil || len(recs) != 1 || recs[0].State != "refused" || recs[0].Error.Code != glovebox.CodeUnavailable {
		t.Errorf("records = %+v (%v)", recs, err)
	}
	if calls := fake.Calls(); len(calls) > 0 {
		t.Errorf("the driver was used: %v", calls)
	}
	r, err := e.Doctor(t.Context())
	if err != nil || r.Ready {
		t.Fatalf("report %+v, error %v, want not ready: the default limit does not fit", r, err)
	}
	i := slices.IndexFunc(r.Controls, func(c glovebox.Control) bool { return c.Name == "memory_budget" })
	if i < 0 || r.Controls[i].Available || !strings.Contains(r.Controls[i].Fix, "memory_budget") {
		t.Errorf("controls = %+v", r.Controls)
	}
}

// TestCancelledInTheQueue: it ends as canceled, has one end, and no sandbox was ever made for it.
func TestCancelledInTheQueue(t *testing.T) {
	running := make(chan struct{}, 1)
	fake := &drivertest.Fake{Program: func(ctx context.Context, p *drivertest.Proc) driver.Exit {
		running <- struct{}{}
		return hang(ctx, p)
	}}
	e := withBudget(t, fake, 256*glovebox.MiB)
	holding, end := context.WithCancel(t.Context())
	holder := begin(holding, e, 200*glovebox.MiB)
	<-running
	ctx, cancel := context.WithCancel(t.Context())
	waiter := begin(ctx, e, 100*glovebox.MiB)
	select {
	case r := <-waiter:
		t.Fatalf("it did not wait: %+v", r)
	case <-time.After(50 * time.Millisecond):
	}
	cancel()
	r := <-waiter
	if r.err != nil || r.res.Status != glovebox.StatusCanceled || *r.res.Usage.QueueMS < 40 {
		t.Fatalf("result %+v, error %v, want canceled", r.res, r.err)
	}
	rec, err := e.Trace(t.Context(), owner, r.res.ID)
	if err != nil || rec.State != "ended" || rec.Result == nil || rec.Result.Status != glovebox.StatusCanceled {
		t.Errorf("record = %+v (%v)", rec, err)
	}
	starts := 0
	for _, c := range fake.Calls() {
		if c == "start" {
			starts++
		}
	}
	if starts != 1 {
		t.Errorf("%d sandboxes were made", starts)
	}
	taken(t, e, 200*glovebox.MiB)
	end()
	if r := <-holder; r.err != nil || r.res.Status != glovebox.StatusCanceled {
		t.Errorf("result %+v, error %v", r.res, r.err)
	}
}

// TestMemoryOfAnOpenSandbox stays taken: what could not be closed may still be in use.
func TestMemoryOfAFailedStart(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		left glovebox.Size
	}{"nothing is left": {errors.New("broken"), 0}, "something may be": {errors.Join(errors.New("broken"), driver.ErrLeftBehind), 100 * glovebox.MiB}} {
		fake := &drivertest.Fake{Fail: func(step string) error {
			if step == "start" {
				return c.err
			}
			return nil
		}}
		e := withBudget(t, fake, 256*glovebox.MiB)
		if _, err := e.Run(t.Context(), owner, withMemory(100*glovebox.MiB), nil); err == nil {
			t.Fatal("it ran: " + name)
		}
		e.removing.Wait()
		taken(t, e, c.left)
	}
}

func TestMemoryOfAnOpenSandbox(t *testing.T) {
	fake := &drivertest.Fake{Fail: func(step string) error {
		if step == "close" {
			return errors.New("broken")
		}
		return nil
	}}
	e := withBudget(t, fake, 256*glovebox.MiB)
	if _, err := e.Run(t.Context(), owner, withMemory(100*glovebox.MiB), nil); err != nil {
		t.Fatal(err)
	}
	e.removing.Wait()
	taken(t, e, 100*glovebox.MiB)
}

// TestOverheadCounts: what a sandbox takes beside its limit counts, and a run that fits by its limit alone is refused with
// both numbers.
func TestOverheadCounts(t *testing.T) {
	fake := &drivertest.Fake{Program: hang, Extra: 100 * glovebox.MiB}
	e := withBudget(t, fake, 256*glovebox.MiB)
	_, err := e.Run(t.Context(), owner, withMemory(200*glovebox.MiB), nil)
	var known *glovebox.Error
	if !errors.As(err, &known) || known.Code != glovebox.CodeUnavailable || !strings.Contains(known.Fix, "--memory 156MiB") ||
		!strings.Contains(known.Public, "takes 100MiB") {
		t.Fatalf("error = %#v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	first, second := begin(ctx, e, 128*glovebox.MiB), begin(ctx, e, 128*glovebox.MiB)
	deadline := time.Now().Add(5 * time.Second)
	for len(fake.Live()) == 0 && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(50 * time.Millisecond) // in which the other would have begun too
	if n := len(fake.Live()); n != 1 {
		t.Errorf("%d run at a time", n)
	}
	taken(t, e, 228*glovebox.MiB)
	cancel()
	<-first
	<-second
}
