package lease

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"glovebox"
	"glovebox/driver"
)

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

// TestTooSmall: for runs that may have less memory than a spare holds none is made.
func TestTooSmall(t *testing.T) {
	for name, held := range map[string]bool{"forks": false, "without templates": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, Config{}, 2*glovebox.GiB, func(w *world) {
				if held {
					w.failing(func(step string) error {
						if step == "template" {
							return driver.ErrNoTemplates
						}
						return nil
					})
				}
				k := w.forked()
				k.Hold.Memory = 2 * forkMemory
				small := forkMemory - 1
				if held { // some were asked for, and those do not count
					w.Keep(k)
					settled(time.Second)
					small = forkMemory
				}
				for range 20 {
					if w.Take(k, small) != nil {
						t.Error("given out to a run that may have less")
					}
					settled(growEvery)
				}
				for _, k := range w.Stats().Kinds {
					if !held || k.Target != 2 {
						t.Errorf("%+v", k)
					}
				}
			})
		})
	}
}

// TestKeepsWhatFollows: what is kept although nobody asks is kept of the next state of its image too, and nothing else is.
func TestKeepsWhatFollows(t *testing.T) {
	inBubble(t, Config{}, 2*glovebox.GiB, func(w *world) {
		bash := w.kind()
		bash.Hold.Lang = "bash"
		w.Keep(w.kind())
		w.Keep(bash)
		settled(time.Second)
		asked := w.kind()
		asked.Identity, asked.Hold.Lang = "host@2", "node"
		w.Take(asked, 512*mib)
		settled(time.Hour)
		w.discarded("image", 4)
		w.ready(4)
		for _, lang := range []string{"python", "bash"} {
			k := w.kind()
			k.Identity, k.Hold.Lang = "host@2", lang
			w.close(w.take(k))
		}
	})
}
