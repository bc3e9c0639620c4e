package cleanup

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRunTakesEveryStepLastFirst(t *testing.T) {
	boom, bang := errors.New("boom"), errors.New("bang")
	var order []string
	note := func(name string, err error) func(context.Context) error {
		return func(context.Context) error { order = append(order, name); return err }
	}
	var s Stack
	s.Push("first", note("first", boom))
	s.Push("second", func(context.Context) error { order = append(order, "second"); panic("slipped") })
	s.Push("third", note("third", nil))
	s.Push("fourth", note("fourth", bang))

	err := s.Run(t.Context())
	if d := cmp.Diff([]string{"fourth", "third", "second", "first"}, order); d != "" {
		t.Errorf("order (-want +got):\n%s", d)
	}
	if !errors.Is(err, boom) || !errors.Is(err, bang) {
		t.Errorf("the error %v lacks a step's own", err)
	}
	if want := "fourth: bang\nsecond: panicked: slipped\nfirst: boom"; err.Error() != want {
		t.Errorf("error = %q, want %q", err, want)
	}
	if err := s.Run(t.Context()); err != nil || len(order) != 4 {
		t.Errorf("a second Run: error %v, %d steps taken in all, want none more", err, len(order))
	}
}

func TestCanceledContextStillUndoes(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var s Stack
	var got context.Context
	s.Push("step", func(c context.Context) error { got = c; return nil })
	if err := s.Run(ctx); err != nil || got != ctx {
		t.Errorf("Run = %v, context passed on: %t", err, got == ctx)
	}
}

func TestReleaseForgets(t *testing.T) {
	var s Stack
	s.Push("step", func(context.Context) error { t.Error("a released step was taken"); return nil })
	s.Release()
	if err := s.Run(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestStepMayPush(t *testing.T) {
	var s Stack
	var order []string
	s.Push("below", func(context.Context) error { order = append(order, "below"); return nil })
	s.Push("top", func(context.Context) error {
		s.Push("late", func(context.Context) error { order = append(order, "late"); return nil })
		return nil
	})
	if err := s.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"late", "below"}, order); d != "" {
		t.Error(d)
	}
}

func TestConcurrentRunsTakeEachStepOnce(t *testing.T) {
	var s Stack
	var taken atomic.Int64
	for range 1000 {
		s.Push("step", func(context.Context) error { taken.Add(1); return nil })
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { _ = s.Run(t.Context()) })
	}
	wg.Wait()
	if taken.Load() != 1000 {
		t.Errorf("%d steps taken, want 1000", taken.Load())
	}
}
