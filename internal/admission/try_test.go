package admission

import (
	"context"
	"sync"
	"testing"
	"time"

	"glovebox"
)

// TestTry: what may do without takes memory that is free, and never that for which a run waits.
func TestTry(t *testing.T) {
	dir := t.TempDir()
	a, b := newAdmission(t, dir, 100*mib), newAdmission(t, dir, 100*mib)
	try := func(limit glovebox.Size, past, want bool) *Share {
		t.Helper()
		s, err := b.Try(limit, past)
		if err != nil || (s != nil) != want {
			t.Fatalf("try %v: %v, %v; want %v", limit, s, err, want)
		}
		return s
	}
	waiting := func(want bool) {
		t.Helper()
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
			got, err := b.Waiting()
			if err != nil {
				t.Fatal(err)
			}
			if (got != 0) == want {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("the longest waiter is %v, want one: %v", got, want)
			}
		}
	}
	waiting(false)
	spare := try(60*mib, false, true)
	try(41*mib, true, false)
	taken(t, a, 60*mib)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	got := make(chan *Share)
	go func() {
		s, err := a.Acquire(ctx, 50*mib)
		if err != nil {
			t.Error(err)
		}
		got <- s
	}()
	waiting(true)
	try(mib, false, false) // it would fit, and would make the run wait for longer
	ahead := try(mib, true, true)
	if err := ahead.Release(); err != nil {
		t.Fatal(err)
	}
	if err := spare.Release(); err != nil {
		t.Fatal(err)
	}
	run := <-got
	waiting(false)
	try(50*mib, false, true)
	if err := run.Release(); err != nil {
		t.Error(err)
	}
	nobodyWaits(t, dir)
}

// TestTryAtOnce: what fits fits also where many try at the same time.
func TestTryAtOnce(t *testing.T) {
	a := newAdmission(t, t.TempDir(), 100*mib)
	for range 50 {
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				if s, err := a.Try(10*mib, false); err != nil || s == nil {
					t.Errorf("try: %v, %v", s, err)
				}
			})
		}
		all.Wait()
		taken(t, a, 80*mib)
		a.Close()
	}
}
