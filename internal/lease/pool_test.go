package lease

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"glovebox"
	"glovebox/driver"
	"glovebox/driver/drivertest"
	"glovebox/internal/admission"
)

const mib = glovebox.MiB

// world is a pool over a driver in memory, in time that runs by itself.
type world struct {
	*testing.T
	*Pool
	fake   *drivertest.Fake
	memory *admission.Admission
	log    *lockedBuffer
	locks  string

	mu   sync.Mutex
	free glovebox.Size // of 100
	fail func(step string) error
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), text)
}

// inBubble tests a pool in a bubble. At the end nothing of it may be left.
func inBubble(t *testing.T, cfg Config, budget glovebox.Size, test func(*world)) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, log: &lockedBuffer{}, locks: filepath.Join(dir, "locks"), free: 100}
		w.fake = &drivertest.Fake{Fail: w.step, Program: func(ctx context.Context, _ *drivertest.Proc) driver.Exit {
			<-ctx.Done()
			return driver.Exit{}
		}}
		w.memory = w.admission(budget)
		defer w.memory.Close()
		cfg.Memory, cfg.Free = w.memory, w.see
		cfg.Log = slog.New(slog.NewTextHandler(w.log, nil))
		cfg.Inputs = func(_ context.Context, id, below string) (string, func(context.Context) error, error) {
			if below == "" {
				below = dir
			}
			at := filepath.Join(below, id)
			return at, func(context.Context) error { return os.RemoveAll(at) }, os.Mkdir(at, 0o755)
		}
		var err error
		if w.Pool, err = New(cfg); err != nil {
			t.Fatal(err)
		}
		test(w)
		if err := w.Close(w.Context()); err != nil {
			t.Error(err)
		}
		if left := w.fake.Live(); len(left) > 0 {
			t.Errorf("sandboxes are left: %v", left)
		}
		if orphans := w.fake.Orphans(); len(orphans) > 0 {
			t.Errorf("templates were closed before their forks %v", orphans)
		}
		if left, _ := filepath.Glob(filepath.Join(dir, "spare_*")); len(left) > 0 {
			t.Errorf("folders are left: %v", left)
		}
	})
}

func (w *world) admission(budget glovebox.Size) *admission.Admission {
	w.Helper()
	a, err := admission.New(admission.Config{Dir: w.locks, Size: budget})
	if err != nil {
		w.Fatal(err)
	}
	return a
}

func (w *world) step(name string) error {
	w.mu.Lock()
	fail := w.fail
	w.mu.Unlock()
	if fail == nil {
		return nil
	}
	return fail(name)
}

// failing sets what happens at the driver's steps.
func (w *world) failing(fail func(step string) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fail = fail
}

// see is the machine's memory, in percent.
func (w *world) see() (available, all glovebox.Size, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.free < 0 {
		return 0, 0, errors.New("unreadable")
	}
	return w.free, 100, nil
}

func (w *world) setFree(percent glovebox.Size) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.free = percent
}

// kind is one whose spares are made by themselves.
func (w *world) kind() Kind {
	return Kind{Driver: w.fake, Tenant: "local", Image: "host", Identity: "host@1", Limits: glovebox.Limits{Memory: 512 * mib},
		Hold: driver.Hold{Lang: "python", Command: driver.Command{Argv: []string{"python"}, CodeName: "main.py"}, Memory: mib}}
}

func (w *world) forked() Kind {
	k := w.kind()
	k.Fork = true
	return k
}

// settled waits until nothing more happens for now.
func settled(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (w *world) ready(want int) {
	w.Helper()
	synctest.Wait()
	got, st := 0, w.Stats()
	for _, k := range st.Kinds {
		got += k.Ready
	}
	if got != want {
		w.Errorf("%d spares are ready, want %d: %+v", got, want, st)
	}
}

// held is the memory that the pool holds.
func (w *world) holds(want glovebox.Size) {
	w.Helper()
	synctest.Wait()
	if got, err := w.memory.Taken(); err != nil || got != want {
		w.Errorf("%v of memory is held (%v), want %v: %+v", got, err, want, w.Stats())
	}
}

func (w *world) take(k Kind) *Lease {
	w.Helper()
	l := w.Take(k, 512*mib)
	if l == nil {
		w.Fatalf("there is no spare: %+v", w.Stats())
	}
	return l
}

func (w *world) close(leases ...*Lease) {
	w.Helper()
	for _, l := range leases {
		for range 2 {
			if err := l.Close(w.Context()); err != nil {
				w.Error(err)
			}
		}
	}
}

// discarded is how many were, for a reason.
func (w *world) discarded(reason string, want int64) {
	w.Helper()
	synctest.Wait()
	if st := w.Stats(); st.Discarded[reason] != want {
		w.Errorf("discarded by reason = %v, want %d for %q", st.Discarded, want, reason)
	}
}

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

// TestBoundary: a spare serves nobody's request but one that is alike in all that shapes it.
func TestBoundary(t *testing.T) {
	for name, change := range map[string]func(*Kind){
		"tenant":  func(k *Kind) { k.Tenant = "other" },
		"image":   func(k *Kind) { k.Image, k.Identity = "own", "own@1" },
		"limits":  func(k *Kind) { k.Limits.CPUs = 2 },
		"lang":    func(k *Kind) { k.Hold.Lang = "node" },
		"argv":    func(k *Kind) { k.Hold.Command.Argv = []string{"python", "-I"} },
		"env":     func(k *Kind) { k.Hold.Command.Env = []string{"A=b"} },
		"modules": func(k *Kind) { k.Hold.Modules = []string{"json"} },
		"memory":  func(k *Kind) { k.Hold.Memory = 2 * mib },
		"fork":    func(k *Kind) { k.Fork = true },
		"policy":  func(k *Kind) { k.Policy = 1 },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, Config{}, 2*glovebox.GiB, func(w *world) {
				w.Keep(w.kind())
				settled(time.Second)
				w.ready(2)
				other := w.kind()
				change(&other)
				if l := w.Take(other, 512*mib); l != nil {
					w.Errorf("%s was given out for %+v", l.ID, other)
				}
			})
		})
	}
	t.Run("a run with less memory than the spare may have", func(t *testing.T) {
		inBubble(t, Config{}, 2*glovebox.GiB, func(w *world) {
			w.Keep(w.kind())
			settled(time.Second)
			if l := w.Take(w.kind(), mib-1); l != nil {
				w.Error("given out")
			}
			w.close(w.take(w.kind()))
		})
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

// TestObsolete: what an earlier policy or state of the image allowed is discarded at once, and not made again.
func TestObsolete(t *testing.T) {
	for name, change := range map[string]func(*Kind){
		"policy": func(k *Kind) { k.Policy = 1 },
		"image":  func(k *Kind) { k.Identity = "host@2" },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, Config{}, 2*glovebox.GiB, func(w *world) {
				k := w.forked()
				w.Keep(k)
				settled(time.Second)
				old := w.fake.Live()
				change(&k)
				w.Take(k, 512*mib)
				w.discarded(name, 2)
				settled(time.Second)
				for _, id := range w.fake.Live() {
					if slices.Contains(old, id) {
						w.Errorf("%s is kept", id)
					}
				}
				w.ready(2)
				if name == "policy" { // a request that was decided before the change
					if l := w.Take(w.forked(), 512*mib); l != nil {
						w.Error("given out")
					}
					settled(time.Second)
				}
				w.close(w.take(k))
			})
		})
	}
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

// TestManyKinds: the number of kinds is bounded; the one nobody asked for the longest goes.
func TestManyKinds(t *testing.T) {
	inBubble(t, Config{Min: 1, Max: 32}, 2*glovebox.GiB, func(w *world) {
		kept := w.kind()
		kept.Tenant = "kept"
		w.Keep(kept)
		for i := range 3 * maxKinds {
			k := w.kind()
			k.Tenant = fmt.Sprint("tenant", i)
			w.Take(k, 512*mib)
			settled(100 * time.Millisecond)
			if n := len(w.Stats().Kinds); n > maxKinds {
				w.Fatalf("%d kinds are kept", n)
			}
		}
		settled(time.Minute)
		if n := len(w.fake.Held()); n > maxKinds {
			w.Errorf("%d spares for %d kinds", n, maxKinds)
		}
		w.close(w.take(kept))
		k := w.kind()
		k.Tenant = "tenant0"
		if l := w.Take(k, 512*mib); l != nil {
			w.Error("the first kind is still there")
		}
	})
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
