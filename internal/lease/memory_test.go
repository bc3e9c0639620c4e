package lease

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"glovebox"
	"glovebox/driver"
	"glovebox/driver/drivertest"
	"glovebox/internal/admission"
)

// TestMemory: a spare holds memory of the budget until it is given out, a template while it lives; together never more than
// half of it.
func TestMemory(t *testing.T) {
	inBubble(t, Config{Min: 16}, 2*glovebox.GiB, func(w *world) {
		w.Keep(w.forked())
		settled(time.Second)
		w.ready(12) // the template and its successor have a quarter of the half
		w.holds(glovebox.GiB)
		l := w.take(w.forked())
		w.holds(glovebox.GiB) // what it held is its successor's
		settled(2 * time.Second)
		w.ready(12)
		w.holds(glovebox.GiB)
		w.close(l)
		w.holds(glovebox.GiB)
	})
	inBubble(t, Config{}, 2*glovebox.GiB, func(w *world) {
		run, err := w.memory.Acquire(w.Context(), 2*glovebox.GiB-mib)
		if err != nil {
			w.Fatal(err)
		}
		w.Keep(w.kind())
		settled(5 * time.Second)
		w.ready(1)
		if err := run.Release(); err != nil {
			w.Error(err)
		}
		settled(5 * time.Second)
		w.ready(2)
		if n := w.log.count("level="); n > 0 {
			w.Errorf("that there was no memory was logged:\n%s", w.log.b.String())
		}
	})
}

// TestRunsComeFirst: a run that goes on waiting for memory gets that of what nobody asks for, and much later that of all; one
// that could never be beside the spares gets what lacks at once. One that waits for a moment changes nothing.
func TestRunsComeFirst(t *testing.T) {
	for name, tt := range map[string]struct {
		busy bool
		need glovebox.Size
		want time.Duration // that it waits
		left int           // spares, of eight
	}{
		"nobody asks":                {false, 128 * mib, grace, 6},
		"somebody asks":              {true, 128 * mib, patience, 6},
		"for as much as a spare has": {true, 64 * mib, patience, 7},
		"it would never fit":         {false, glovebox.GiB + 576*mib, 0, 7},
		"nor if somebody asks":       {true, glovebox.GiB + 576*mib, 0, 6}, // one is given out and not replaced for a while
		"it needs all there is":      {false, 2 * glovebox.GiB, 0, 0},
		"a moment is not enough":     {false, 64 * mib, grace / 2, 8},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, Config{Min: 8}, 2*glovebox.GiB, func(w *world) {
				big := w.kind()
				big.Hold.Memory = 64 * mib
				w.Keep(big)
				settled(5 * time.Second)
				w.ready(8)
				others := 2*glovebox.GiB - 8*64*mib // all that there is beside the spares
				if tt.need > glovebox.GiB {
					others = 0
				}
				rest, err := w.memory.Acquire(w.Context(), max(others, 1))
				if err != nil {
					w.Fatal(err)
				}
				if others == 0 || tt.left == 8 {
					time.AfterFunc(grace/2, func() { _ = rest.Release() })
				}
				begun := time.Now()
				got := make(chan *admission.Share, 1)
				go func() {
					defer w.Waits(tt.need)()
					s, err := w.memory.Acquire(w.Context(), tt.need)
					if err != nil {
						w.Error(err)
					}
					got <- s
				}()
				s := w.whileTaking(got, big, tt.busy)
				took := time.Since(begun)
				if others == 0 {
					took = max(0, took-grace/2)
				}
				if took < tt.want || took > tt.want+50*time.Millisecond {
					w.Errorf("it waited %v, want %v", took, tt.want)
				}
				w.ready(tt.left)
				settled(respite - 300*time.Millisecond)
				w.ready(tt.left)
				for _, s := range []*admission.Share{s, rest} {
					if err := s.Release(); err != nil {
						w.Error(err)
					}
				}
				settled(2 * respite)
				w.ready(8)
			})
		})
	}
}

// whileTaking waits for memory while spares are taken, if so.
func (w *world) whileTaking(got <-chan *admission.Share, k Kind, busy bool) *admission.Share {
	for {
		select {
		case s := <-got:
			return s
		case <-time.After(70 * time.Millisecond):
			if busy { // what it held is its successor's, although a run waits
				w.close(w.take(k))
			}
		}
	}
}

// TestRunsOfOthers: it may be another process whose run waits.
func TestRunsOfOthers(t *testing.T) {
	inBubble(t, Config{}, 2*glovebox.GiB, func(w *world) {
		w.Keep(w.forked())
		settled(5 * time.Second)
		w.ready(2)
		other := w.admission(2 * glovebox.GiB)
		defer other.Close()
		ctx, stop := context.WithTimeout(w.Context(), 10*time.Second)
		defer stop()
		s, err := other.Acquire(ctx, 2*glovebox.GiB)
		if err != nil {
			w.Fatalf("it did not get what spares held: %v; %+v", err, w.Stats())
		}
		settled(10 * time.Second)
		w.ready(0)
		if err := s.Release(); err != nil {
			w.Error(err)
		}
		settled(10 * time.Second)
		w.ready(2)
	})
}

// TestLittleMemory: spares go while the machine has little memory, and while nobody can tell.
func TestLittleMemory(t *testing.T) {
	for name, percent := range map[string]glovebox.Size{"little": 9, "unknown": -1} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, Config{Min: 8}, 2*glovebox.GiB, func(w *world) {
				w.Keep(w.kind())
				settled(5 * time.Second)
				w.ready(8)
				w.setFree(percent)
				settled(1500 * time.Millisecond)
				if n := len(w.fake.Held()); n == 0 || n == 8 {
					w.Errorf("after a second %d are left, want some", n)
				}
				settled(10 * time.Second)
				w.ready(0)
				w.holds(0)
				if l := w.Take(w.kind(), 512*mib); l != nil {
					w.Error("given out")
				}
				settled(10 * time.Second)
				w.ready(0)
				w.setFree(10)
				settled(10 * time.Second)
				w.ready(16) // somebody found none
			})
		})
	}
}

// TestLeftBehind: memory of what may still live stays taken.
func TestLeftBehind(t *testing.T) {
	for name, tt := range map[string]struct {
		step string
		err  error
		want glovebox.Size
	}{
		"hold":                {"hold", errors.New("broken"), 0},
		"hold, left behind":   {"hold", driver.ErrLeftBehind, mib},
		"template":            {"template", driver.ErrLeftBehind, templateMemory},
		"fork":                {"fork", driver.ErrLeftBehind, forkMemory},
		"close":               {"close", errors.New("broken"), 2 * mib},
		"close of a template": {"end", errors.New("broken"), templateMemory},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, Config{}, 2*glovebox.GiB, func(w *world) {
				var failed atomic.Bool
				w.failing(func(step string) error {
					if step == tt.step && (!failed.Swap(true) || step == "close") {
						return tt.err
					}
					return nil
				})
				k := w.kind()
				k.Fork = tt.step == "template" || tt.step == "fork" || tt.step == "end"
				w.Keep(k)
				settled(30 * time.Second)
				if err := w.Close(w.Context()); err != nil {
					w.Error(err)
				}
				w.holds(tt.want)
				if w.log.count("broken")+w.log.count(driver.ErrLeftBehind.Error()) == 0 {
					w.Error("nobody was told")
				}
			})
		})
	}
}

// TestOverhead: what a sandbox takes beside its limit is held with it, also once a run has its place in reserve.
func TestOverhead(t *testing.T) {
	const extra = 100 * mib
	for name, fork := range map[string]bool{"alone": false, "forks": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, Config{}, 4*glovebox.GiB, func(w *world) {
				w.fake.Extra = extra
				k, each, others := w.kind(), mib+extra, glovebox.Size(0)
				if k.Fork = fork; fork {
					each, others = forkMemory+extra, 2*templateMemory // it, and the place of the next
				}
				w.Keep(k)
				settled(5 * time.Second)
				w.ready(2)
				w.holds(2*each + others)
				l := w.take(k)
				settled(5 * time.Second)
				w.ready(2)
				w.holds(2*each + others)
				w.close(l)
			})
		})
	}
}

// TestRestored: what a template says of how its sandboxes begin is what their leases say.
func TestRestored(t *testing.T) {
	inBubble(t, Config{}, 2*glovebox.GiB, func(w *world) {
		w.fake.Restores = true
		w.Keep(w.forked())
		settled(5 * time.Second)
		spare := w.take(w.forked())
		direct := w.Fork(w.Context(), w.forked(), 512*mib)
		if spare.Start != driver.StartRestored || direct == nil || direct.Start != driver.StartRestored {
			w.Errorf("spare %+v, direct %+v", spare, direct)
		}
		w.close(spare, direct)
	})
}

// TestSizesAreTheDrivers: a run that may have less than a copy needs gets none.
func TestSizesAreTheDrivers(t *testing.T) {
	inBubble(t, Config{}, 4*glovebox.GiB, func(w *world) {
		d := sized{w.fake, driver.Sizes{Alone: 300 * mib, Copy: 200 * mib, Template: 400 * mib}}
		k := w.forked()
		k.Driver = d
		w.Keep(k)
		settled(5 * time.Second)
		w.ready(2)
		w.holds(2*200*mib + 2*400*mib)
		if w.Take(k, 199*mib) != nil || w.Fork(w.Context(), k, 199*mib) != nil {
			w.Error("given out to a run that may have less")
		}
		l := w.Take(k, 200*mib)
		if l == nil {
			w.Fatal("nothing was given out to a run that may have as much")
		}
		w.close(l)
	})
}

// TestNoTemplatesBySize: a driver that has no templates says so by its sizes, and is not asked for one.
func TestNoTemplatesBySize(t *testing.T) {
	inBubble(t, Config{}, 4*glovebox.GiB, func(w *world) {
		w.failing(func(step string) error {
			if step == "template" {
				w.Error("a template was asked for")
			}
			return nil
		})
		k := w.forked()
		k.Driver = sized{w.fake, driver.Sizes{Alone: 300 * mib}}
		w.Keep(k)
		settled(5 * time.Second)
		w.ready(2)
		w.holds(2 * 300 * mib)
		l := w.take(k)
		if l.Start != "spare" {
			w.Errorf("start = %s", l.Start)
		}
		w.close(l)
	})
}

// sized is a driver that says what waiting takes.
type sized struct {
	*drivertest.Fake
	sizes driver.Sizes
}

func (s sized) Sizes(driver.Hold) driver.Sizes { return s.sizes }
