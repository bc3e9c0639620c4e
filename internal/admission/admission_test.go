package admission

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"glovebox"
	"glovebox/internal/lockfile"
)

const mib = glovebox.MiB

func newAdmission(t testing.TB, dir string, budget glovebox.Size) *Admission {
	t.Helper()
	a, err := New(Config{Dir: dir, Size: budget})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a
}

func acquire(t testing.TB, a *Admission, limit glovebox.Size) *Share {
	t.Helper()
	s, err := a.Acquire(t.Context(), limit)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// fits reports whether a run is admitted at once.
func fits(t testing.TB, a *Admission, limit glovebox.Size) *Share {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	s, err := a.Acquire(ctx, limit)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	return s
}

func taken(t testing.TB, a *Admission, want glovebox.Size) {
	t.Helper()
	if got, err := a.Taken(); got != want || err != nil {
		t.Errorf("taken = %v (%v), want %v", got, err, want)
	}
}

// nobodyWaits looks at the file of locks from outside.
func nobodyWaits(t testing.TB, dir string) {
	t.Helper()
	f, err := lockfile.Open(dir, lockName)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Each(lockfile.Range{Start: queue, Length: tickets}, func(r lockfile.Range) bool {
		t.Errorf("ticket %d is held", r.Start-queue)
		return true
	}); err != nil {
		t.Fatal(err)
	}
}

func TestBudget(t *testing.T) {
	dir := t.TempDir()
	a, b := newAdmission(t, dir, 100*mib), newAdmission(t, dir, 100*mib)
	one := acquire(t, a, 50*mib-1)
	two := acquire(t, b, 50*mib-1) // each just under its half
	taken(t, a, 100*mib-2)
	if s := fits(t, a, 3); s != nil {
		t.Error("three bytes fitted in two")
	}
	last := fits(t, b, 2)
	if last == nil {
		t.Fatal("two bytes did not fit in two")
	}
	for range 2 {
		if err := one.Release(); err != nil {
			t.Error(err)
		}
	}
	taken(t, b, 50*mib+1)
	if s := fits(t, b, 50*mib-1); s == nil {
		t.Error("what was given back is not there")
	}
	if err := errors.Join(two.Release(), last.Release()); err != nil {
		t.Error(err)
	}
	b.Close() // with what it still has
	taken(t, a, 0)
	nobodyWaits(t, dir)
}

// TestPieces: room is room wherever it lies.
func TestPieces(t *testing.T) {
	a := newAdmission(t, t.TempDir(), 100*mib)
	var all []*Share
	for range 10 {
		all = append(all, acquire(t, a, 10*mib))
	}
	for i := 0; i < 10; i += 2 {
		if err := all[i].Release(); err != nil {
			t.Fatal(err)
		}
	}
	if s := fits(t, a, 50*mib+1); s != nil {
		t.Error("more than half fitted in five tenths")
	}
	if s := fits(t, a, 50*mib); s == nil {
		t.Error("half did not fit in five tenths")
	}
	taken(t, a, 100*mib)
}

// TestDifferentBudgets: whoever has the smaller budget counts what lies beyond it too.
func TestDifferentBudgets(t *testing.T) {
	dir := t.TempDir()
	small, large := newAdmission(t, dir, 40*mib), newAdmission(t, dir, 100*mib)
	first := acquire(t, large, 30*mib)
	acquire(t, large, 30*mib)
	if err := first.Release(); err != nil { // the first 30 MiB are free, the others lie between 30 and 60
		t.Fatal(err)
	}
	if s := fits(t, small, 11*mib); s != nil {
		t.Error("30 and 11 MiB fitted in 40")
	}
	if s := fits(t, small, 10*mib); s == nil {
		t.Error("30 and 10 MiB did not fit in 40")
	}
	if s := fits(t, large, 61*mib); s != nil {
		t.Error("40 and 61 MiB fitted in 100")
	}
	if s := fits(t, large, 60*mib); s == nil {
		t.Error("40 and 60 MiB did not fit in 100")
	}
}

// TestSmallBudgetHoldsNobodyUp: a run that waits for lack of room in its own process's budget is no hindrance where there is a
// larger one, and is one where there is none.
func TestSmallBudgetHoldsNobodyUp(t *testing.T) {
	for name, c := range map[string]struct {
		other glovebox.Size
		goes  bool
	}{"larger": {400 * mib, true}, "equal": {100 * mib, false}, "smaller": {99 * mib, false}} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			small, other := newAdmission(t, dir, 100*mib), newAdmission(t, dir, c.other)
			held := acquire(t, other, 60*mib)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				if s, err := small.Acquire(ctx, 50*mib); err == nil {
					_ = s.Release()
				}
			}()
			waiting(t, dir, 1)
			s, err := other.Try(10*mib, false)
			if err != nil || (s != nil) != c.goes {
				t.Errorf("beside the run that waits: %v, %v; want one: %v", s, err, c.goes)
			}
			if s != nil {
				if err := s.Release(); err != nil {
					t.Error(err)
				}
			}
			if err := held.Release(); err != nil {
				t.Error(err)
			}
			<-ended
		})
	}
}

func wantError(t *testing.T, err error, code glovebox.Code, words ...string) {
	t.Helper()
	e, ok := err.(*glovebox.Error)
	if !ok || e.Code != code {
		t.Fatalf("error = %v, want %s", err, code)
	}
	for _, w := range words {
		if !strings.Contains(e.Public+e.Fix, w) {
			t.Errorf("%q, fix %q, lacks %q", e.Public, e.Fix, w)
		}
	}
}

func TestRefused(t *testing.T) {
	a := newAdmission(t, t.TempDir(), 100*mib)
	_, err := a.Acquire(t.Context(), 100*mib+1)
	wantError(t, err, glovebox.CodeUnavailable, "100MiB", "--memory 100MiB", "memory_budget")
	for name, cfg := range map[string]Config{"percent": {Percent: 101}, "negative percent": {Percent: -1}, "size": {Size: -1}} {
		if _, err := New(cfg); err == nil {
			t.Error(name, "is accepted")
		} else {
			wantError(t, err, glovebox.CodeInvalid, "memory_budget")
		}
	}
	_, err = New(Config{Size: 1 << 50})
	wantError(t, err, glovebox.CodeUnavailable, "1024TiB", "memory_budget")
	open := t.TempDir()
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	_, err = newAdmission(t, open, mib).Acquire(t.Context(), mib)
	wantError(t, err, glovebox.CodeUnavailable, "not the calling user's own")
}

// TestExhausted waits as long as can be, in time that runs by itself.
func TestExhausted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		a := newAdmission(t, dir, 100*mib)
		acquire(t, a, 60*mib)
		begun := time.Now()
		_, err := a.Acquire(t.Context(), 41*mib)
		wantError(t, err, glovebox.CodeExhausted, "41MiB", "100MiB", "memory_budget", "5m0s")
		if took := time.Since(begun); took != maxWait {
			t.Errorf("it took %v", took)
		}
		taken(t, a, 60*mib)
		nobodyWaits(t, dir)
	})
}

// TestFullQueue: one more than may wait is refused at once.
func TestFullQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdmission(t, t.TempDir(), 2*mib)
		holder := acquire(t, a, 2*mib)
		results := make(chan error, maxWaiting)
		for range maxWaiting {
			go func() {
				s, err := a.Acquire(t.Context(), mib)
				if err == nil {
					err = s.Release()
				}
				results <- err
			}()
		}
		time.Sleep(time.Second)
		_, err := a.Acquire(t.Context(), mib)
		wantError(t, err, glovebox.CodeExhausted, "128 runs wait")
		if err := holder.Release(); err != nil {
			t.Error(err)
		}
		for range maxWaiting {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
	})
}

// TestOrder: first come, first served, also where a later one would fit sooner.
func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		a := newAdmission(t, dir, 100*mib)
		holder := acquire(t, a, 60*mib)
		order := make(chan int, 20)
		for i := range 20 {
			need := mib
			if i == 0 {
				need = 99 * mib
			}
			go func() {
				s, err := a.Acquire(t.Context(), need)
				if err != nil {
					t.Error(err)
					return
				}
				order <- i
				time.Sleep(time.Second)
				if err := s.Release(); err != nil {
					t.Error(err)
				}
			}()
			time.Sleep(time.Second) // each has its place
		}
		if len(order) > 0 {
			t.Errorf("%d passed the one that needs more", len(order))
		}
		if err := holder.Release(); err != nil {
			t.Error(err)
		}
		for want := range 20 {
			if got := <-order; got != want {
				t.Fatalf("%d came before %d", got, want)
			}
		}
		time.Sleep(2 * time.Second)
		taken(t, a, 0)
		nobodyWaits(t, dir)
	})
}

// TestCancelled: whoever leaves the queue leaves nothing, and nobody behind waits for it.
func TestCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		a := newAdmission(t, dir, 100*mib)
		acquire(t, a, 60*mib)
		ctx, cancel := context.WithCancelCause(t.Context())
		first := make(chan error)
		go func() { _, err := a.Acquire(ctx, 99*mib); first <- err }()
		time.Sleep(time.Second)
		second := make(chan error)
		go func() { _, err := a.Acquire(t.Context(), 40*mib); second <- err }()
		time.Sleep(time.Second)
		why := errors.New("changed my mind")
		cancel(why)
		if err := <-first; err != why {
			t.Errorf("error = %v", err)
		}
		if err := <-second; err != nil {
			t.Error(err)
		}
		if _, err := a.Acquire(ctx, mib); err != why {
			t.Errorf("error = %v", err)
		}
		taken(t, a, 100*mib)
		nobodyWaits(t, dir)
	})
}

func BenchmarkAcquire(b *testing.B) {
	a := newAdmission(b, b.TempDir(), 100*mib)
	for range 10 {
		acquire(b, a, mib)
	}
	for b.Loop() {
		if err := acquire(b, a, mib).Release(); err != nil {
			b.Fatal(err)
		}
	}
}
