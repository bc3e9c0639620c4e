package admission

import (
	"context"
	"testing"
	"time"

	"glovebox"
)

// TestTry: what may do without takes memory that is free, and never that for which a run waits.
func TestTry(t *testing.T) {
	dir := t.TempDir()
	a, b := newAdmission(t, dir, 100*mib), newAdmission(t, dir, 100*mib)
	try := func(limit glovebox.Size, want bool) *Share {
		t.Helper()
		s, err := b.Try(limit)
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
			if got == want {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("waiting = %v, want %v", got, want)
			}
		}
	}
	waiting(false)
	spare := try(60*mib, true)
	try(41*mib, false)
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
	try(mib, false) // it would fit, and would make the run wait for longer
	if err := spare.Release(); err != nil {
		t.Fatal(err)
	}
	run := <-got
	waiting(false)
	try(50*mib, true)
	if err := run.Release(); err != nil {
		t.Error(err)
	}
	nobodyWaits(t, dir)
}
