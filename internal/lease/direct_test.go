package lease

import (
	"context"
	"errors"
	"testing"
	"time"

	"glovebox/driver"
)

// TestFork forks where nothing is ready, but only from a template that is there and good.
func TestFork(t *testing.T) {
	inBubble(t, Config{Min: 1, Max: 1}, roomy, func(w *world) {
		if w.Fork(w.Context(), w.forked(), 512*mib) != nil {
			t.Error("it forked a kind that nobody asked for")
		}
		w.Keep(w.forked())
		w.Keep(w.kind())
		settled(time.Minute)
		if w.Fork(w.Context(), w.kind(), 512*mib) != nil {
			t.Error("it forked what may not be forked")
		}
		if w.Fork(w.Context(), w.forked(), forkMemory-1) != nil {
			t.Error("it forked with more memory than the run has")
		}
		before, err := w.memory.Taken()
		if err != nil {
			t.Fatal(err)
		}
		l := w.Fork(w.Context(), w.forked(), 512*mib)
		if l == nil || l.Start != "fork" || w.Stats().Direct != 1 {
			t.Fatalf("%+v, %+v", l, w.Stats())
		}
		w.holds(before) // the run's own covers it
		w.close(l)

		w.failing(func(step string) error {
			if step == "fork" {
				return errors.New("broken")
			}
			return nil
		})
		if w.Fork(w.Context(), w.forked(), 512*mib) != nil {
			t.Error("a broken template forks")
		}
		ctx, cancel := context.WithCancel(w.Context())
		cancel()
		if w.Fork(ctx, w.forked(), 512*mib) != nil {
			t.Error("it forks for who has gone")
		}
		w.failing(nil)
		forks := map[*template]int{}
		for range 2 * templateUses {
			if l := w.Fork(w.Context(), w.forked(), 512*mib); l != nil {
				forks[l.spare.of]++
				w.close(l)
			}
		}
		for _, n := range forks {
			if n > templateUses {
				t.Errorf("%d forks of one template", n)
			}
		}
	})
}

// TestForkIsNotGivenUp: to give up in the midst of it would end the template, and with that the sandboxes of other runs.
func TestForkIsNotGivenUp(t *testing.T) {
	inBubble(t, Config{Min: 1, Max: 1}, roomy, func(w *world) {
		w.Keep(w.forked())
		settled(time.Minute)
		ctx, cancel := context.WithCancel(w.Context())
		w.failing(func(string) error { cancel(); return nil })
		l := w.Fork(ctx, w.forked(), 512*mib)
		if l == nil {
			w.Fatal("it was")
		}
		w.close(l)
	})
}

// TestForkKeepsTheTemplate: a template is not closed before what was forked on the spot is, whatever ends.
func TestForkKeepsTheTemplate(t *testing.T) {
	inBubble(t, Config{Min: 1, Max: 1}, roomy, func(w *world) {
		w.Keep(w.forked())
		settled(time.Minute)
		l := w.Fork(w.Context(), w.forked(), 512*mib)
		closed := make(chan error)
		go func() { closed <- w.Close(context.WithoutCancel(w.Context())) }()
		settled(time.Second)
		select {
		case <-closed:
			t.Error("the pool is closed, and a lease is out")
		default:
		}
		w.close(l)
		if err := <-closed; err != nil {
			t.Error(err)
		}
	})
}

// TestForkLeftBehind: memory of what may still live stays taken, whatever becomes of the run.
func TestForkLeftBehind(t *testing.T) {
	inBubble(t, Config{Min: 1, Max: 1}, roomy, func(w *world) {
		w.Keep(w.forked())
		settled(time.Minute)
		w.failing(func(step string) error {
			if step == "fork" {
				return driver.ErrLeftBehind
			}
			return nil
		})
		if w.Fork(w.Context(), w.forked(), 512*mib) != nil {
			w.Error("it forked")
		}
		if err := w.Close(w.Context()); err != nil {
			w.Error(err)
		}
		w.holds(forkMemory)
	})
}
