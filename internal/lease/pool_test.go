package lease

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"glovebox"
	"glovebox/internal/admission"
)

// TestSpares: what was asked for once is ready the next time, is given out once, and is replaced.
func TestSpares(t *testing.T) {
	for name, fork := range map[string]bool{"spare": false, "fork": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, Config{}, 2*glovebox.GiB, func(w *world) {
				k := w.kind()
				k.Fork = fork
				if l := w.Take(k, 512*mib); l != nil {
					w.Fatal("something was ready before anybody asked")
				}
				settled(time.Second)
				w.ready(2)
				seen := map[string]bool{}
				for range 100 {
					l := w.take(k)
					if seen[l.ID] || l.Start != name {
						w.Errorf("%s, a %s, is given out; before: %v", l.ID, l.Start, seen[l.ID])
					}
					seen[l.ID] = true
					if _, err := os.Stat(l.Inputs); err != nil {
						w.Error(err)
					}
					if err := l.Sandbox.Resize(glovebox.Limits{Memory: 256 * mib}); err != nil {
						w.Error(err)
					}
					if _, err := l.Sandbox.Exec(w.Context(), k.Hold.Command); err != nil {
						w.Error(err)
					}
					w.close(l)
					if _, err := os.Stat(l.Inputs); !errors.Is(err, os.ErrNotExist) {
						w.Errorf("the folder of inputs is left: %v", err)
					}
					settled(time.Millisecond)
				}
				w.ready(2)
				if st := w.Stats(); st.Taken != 100 || st.Empty != 1 || st.Made != 102 || st.Kinds[0].Ready != 2 {
					w.Errorf("stats = %+v", st)
				}
			})
		})
	}
}

// TestTakeNeverWaits: not for what is being made, and not while the driver hangs.
func TestTakeNeverWaits(t *testing.T) {
	inBubble(t, Config{}, 2*glovebox.GiB, func(w *world) {
		let := make(chan struct{})
		w.failing(func(step string) error {
			if step == "hold" || step == "close" {
				<-let
			}
			return nil
		})
		begun := time.Now()
		for range 50 {
			if l := w.Take(w.kind(), 512*mib); l != nil {
				w.Error("what is not made is given out")
			}
			synctest.Wait()
		}
		if took := time.Since(begun); took > 0 {
			w.Errorf("it took %v", took)
		}
		close(let)
		settled(time.Second)
		w.close(w.take(w.kind()))
	})
}

// TestTarget: the target doubles while nothing is ready, up to the most; it shrinks when less is taken, to the least when
// nobody asks for a minute, and to nothing after ten.
func TestTarget(t *testing.T) {
	inBubble(t, Config{Max: 16}, 2*glovebox.GiB, func(w *world) {
		target := func(want int) {
			t.Helper()
			if got := w.Stats().Kinds[0].Target; got != want {
				w.Errorf("target = %d, want %d", got, want)
			}
		}
		w.failing(func(string) error { return errors.New("broken") })
		for _, want := range []int{2, 4, 8, 16, 16} {
			for range 20 { // twenty callers at a time say no more than one
				w.Take(w.kind(), 512*mib)
			}
			target(want)
			settled(growEvery)
		}
		w.failing(nil)
		settled(2 * time.Second)
		for len(w.fake.Held()) < 16 {
			w.close(w.take(w.kind()))
			settled(100 * time.Millisecond)
		}
		for range 45 { // one at a time: that is not what sixteen are needed for
			w.close(w.take(w.kind()))
			settled(time.Second)
		}
		if got := w.Stats().Kinds[0].Target; got >= 8 || got < 2 {
			w.Errorf("target = %d although one is taken at a time", got)
		}
		for range 4 {
			for l := w.Take(w.kind(), 512*mib); l != nil; l = w.Take(w.kind(), 512*mib) {
				w.close(l)
			}
			settled(growEvery)
		}
		target(16)
		settled(61 * time.Second)
		w.ready(2)
		target(2)
		settled(8 * time.Minute)
		w.ready(2)
		settled(2 * time.Minute)
		w.ready(0)
		w.holds(0)
		if st := w.Stats(); len(st.Kinds) != 0 {
			w.Errorf("stats = %+v, want nothing kept", st)
		}
	})
}

// TestIdle: however many there are, few are left after a minute.
func TestIdle(t *testing.T) {
	inBubble(t, Config{Max: 400}, 2*glovebox.GiB, func(w *world) {
		w.failing(func(string) error { return errors.New("broken") })
		for range 10 {
			w.Take(w.kind(), 512*mib)
			settled(growEvery)
		}
		w.failing(nil)
		settled(2 * time.Second)
		for len(w.fake.Held()) < 400 {
			w.close(w.take(w.kind()))
			settled(100 * time.Millisecond)
		}
		settled(61 * time.Second)
		w.ready(2)
	})
}

// TestKeep: what is configured stays ready when nobody asks.
func TestKeep(t *testing.T) {
	inBubble(t, Config{Min: 3}, 2*glovebox.GiB, func(w *world) {
		w.Keep(w.forked())
		settled(time.Second)
		w.ready(3)
		for range 5 {
			settled(7 * time.Minute)
			w.ready(3)
		}
		for range 3 {
			l := w.take(w.forked())
			if age := time.Since(l.spare.born); age > maxAge {
				w.Errorf("it is %v old", age)
			}
			w.close(l)
		}
	})
}

// TestPace: at once when somebody asks, with pauses when nobody does, and so many at a time.
func TestPace(t *testing.T) {
	const takes = 100 * time.Millisecond
	inBubble(t, Config{Min: 8, Max: 8, Makings: 3}, 2*glovebox.GiB, func(w *world) {
		var mu sync.Mutex
		var begun []time.Time
		now, most := 0, 0
		w.failing(func(step string) error {
			if step != "hold" {
				return nil
			}
			mu.Lock()
			begun = append(begun, time.Now())
			now++
			most = max(most, now)
			mu.Unlock()
			time.Sleep(takes)
			mu.Lock()
			now--
			mu.Unlock()
			return nil
		})
		w.Take(w.kind(), 512*mib)
		settled(3*takes + time.Millisecond)
		w.ready(8)
		if most != 3 {
			w.Errorf("%d were made at a time, want 3", most)
		}
		settled(2 * time.Second)
		for _, id := range w.fake.Held()[:3] {
			w.fake.Lose(id)
		}
		synctest.Wait()
		mu.Lock()
		begun, most = nil, 0
		mu.Unlock()
		settled(time.Minute)
		w.ready(8)
		if len(begun) != 3 || most != 1 {
			w.Fatalf("%d were made, %d at a time, want 3 one by one", len(begun), most)
		}
		for i := range begun[1:] {
			if gap := begun[i+1].Sub(begun[i]); gap < 4*takes {
				w.Errorf("the next began after %v although nobody asks", gap)
			}
		}
	})
}

// TestAge: a spare that is too old is not given out, and is replaced before it is.
func TestAge(t *testing.T) {
	inBubble(t, Config{}, 2*glovebox.GiB, func(w *world) {
		w.Keep(w.kind())
		settled(time.Second)
		first := w.fake.Held()
		settled(9*time.Minute + 30*time.Second)
		w.ready(2)
		w.discarded("age", 2)
		for _, id := range w.fake.Held() {
			if slices.Contains(first, id) {
				w.Errorf("%s is kept", id)
			}
		}
		w.failing(func(step string) error {
			if step == "hold" {
				return errors.New("broken")
			}
			return nil
		})
		settled(10 * time.Minute)
		if l := w.Take(w.kind(), 512*mib); l != nil {
			w.Errorf("one of %v is given out", time.Since(l.spare.born))
		}
		w.ready(0)
	})
}

// TestAgeAtTake: also where the loop has not looked yet.
func TestAgeAtTake(t *testing.T) {
	inBubble(t, Config{}, 2*glovebox.GiB, func(w *world) {
		w.Keep(w.kind())
		settled(time.Second)
		w.Pool.mu.Lock()
		for _, s := range w.shelves {
			for _, sp := range s.spares {
				sp.born = sp.born.Add(-maxAge)
			}
		}
		w.Pool.mu.Unlock()
		if l := w.Take(w.kind(), 512*mib); l != nil {
			w.Errorf("one of %v is given out", time.Since(l.spare.born))
		}
		w.discarded("age", 2)
	})
}

// TestLost: what ended while it waited serves nobody.
func TestLost(t *testing.T) {
	inBubble(t, Config{}, 2*glovebox.GiB, func(w *world) {
		w.Keep(w.kind())
		settled(time.Second)
		held := w.fake.Held()
		w.fake.Lose(held[0])
		w.discarded("lost", 1)
		w.holds(mib)
		settled(5 * time.Second)
		w.ready(2)
		for _, id := range w.fake.Held() {
			w.fake.Lose(id)
		}
		if l := w.Take(w.kind(), 512*mib); l != nil { // before the pool has heard of it, or after
			w.Errorf("%s, which ended, is given out", l.ID)
		}
		w.discarded("lost", 3)
	})
}

// TestFailures: a failure is told once and tried again later and later; it harms nothing else.
func TestFailures(t *testing.T) {
	for _, step := range []string{"hold", "template", "fork"} {
		t.Run(step, func(t *testing.T) {
			inBubble(t, Config{}, 2*glovebox.GiB, func(w *world) {
				var mu sync.Mutex
				var tried []time.Duration
				begun := time.Now()
				w.failing(func(s string) error {
					if s != step {
						return nil
					}
					mu.Lock()
					defer mu.Unlock()
					tried = append(tried, time.Since(begun).Round(time.Second))
					return errors.New("broken")
				})
				k := w.kind()
				k.Fork = step != "hold"
				w.Take(k, 512*mib)
				settled(125 * time.Second)
				want := "[0s 1s 3s 7s 15s 31s 1m3s 2m3s]"
				if got := fmt.Sprint(tried); got != want {
					w.Errorf("tried at %v, want %v", got, want)
				}
				if n := w.log.count("broken"); n != 1 {
					w.Errorf("it was logged %d times:\n%s", n, w.log.b.String())
				}
				if st := w.Stats(); st.Failed != 8 {
					w.Errorf("stats = %+v", st)
				}
				w.failing(nil)
				settled(61 * time.Second)
				w.close(w.take(k))
			})
		})
	}
}

// TestClose: it waits for what was given out, as long as its context lasts.
func TestClose(t *testing.T) {
	for name, fork := range map[string]bool{"spares": false, "forks": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, Config{}, 2*glovebox.GiB, func(w *world) {
				k := w.kind()
				k.Fork = fork
				w.Keep(k)
				settled(time.Second)
				l := w.take(k)
				time.AfterFunc(3*time.Second, func() { w.close(l) })
				begun := time.Now()
				if err := w.Close(w.Context()); err != nil {
					w.Error(err)
				}
				if took := time.Since(begun); took != 3*time.Second {
					w.Errorf("it waited %v", took)
				}
				if l := w.Take(k, 512*mib); l != nil {
					w.Error("a closed pool gives out spares")
				}
				w.Keep(k)
				settled(time.Minute)
				w.ready(0)
				w.holds(0)
			})
		})
	}
	t.Run("what is being made", func(t *testing.T) {
		inBubble(t, Config{}, 2*glovebox.GiB, func(w *world) {
			w.failing(func(string) error { time.Sleep(2 * time.Second); return nil })
			w.Keep(w.forked())
			other := w.kind()
			other.Tenant = "other"
			w.Take(other, 512*mib)
			settled(time.Second)
		})
	})
	t.Run("a lease that does not come back", func(t *testing.T) {
		inBubble(t, Config{}, 2*glovebox.GiB, func(w *world) {
			w.Keep(w.kind())
			settled(time.Second)
			l := w.take(w.kind())
			ctx, stop := context.WithTimeout(w.Context(), time.Second)
			defer stop()
			if err := w.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
				w.Errorf("error = %v", err)
			}
			w.close(l)
		})
	})
}

func TestNewRefuses(t *testing.T) {
	good := Config{Memory: &admission.Admission{}, Free: func() (_, _ glovebox.Size, _ error) { return },
		Inputs: func(context.Context, string, string) (string, func(context.Context) error, error) {
			return "", nil, nil
		}}
	for name, change := range map[string]func(*Config){
		"no memory": func(c *Config) { c.Memory = nil },
		"no inputs": func(c *Config) { c.Inputs = nil },
		"no look":   func(c *Config) { c.Free = nil },
		"range":     func(c *Config) { c.Min, c.Max = 3, 2 },
		"negative":  func(c *Config) { c.Idle = -1 },
	} {
		cfg := good
		change(&cfg)
		if p, err := New(cfg); err == nil {
			t.Errorf("%s: made", name)
			p.Close(t.Context())
		}
	}
}
