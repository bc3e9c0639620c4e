package lease

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"glovebox"
	"glovebox/driver"
	"glovebox/internal/admission"
)

const roomy = 4 * glovebox.GiB

// Forks share one template, which is replaced after so many and so long, and closed after the last of them.

func TestTemplateUses(t *testing.T) {
	inBubble(t, Config{}, roomy, func(w *world) {
		k := w.forked()
		w.Keep(k)
		settled(time.Second)
		first := w.fake.Templates()
		var last *Lease
		forks := map[*template]int{}
		for range 3 * templateUses {
			l := w.take(k)
			forks[l.spare.of]++
			if last == nil || last.spare.of == l.spare.of {
				w.close(l)
				if last == nil {
					last = w.take(k)
				}
			} else {
				w.close(l)
			}
			settled(time.Millisecond)
		}
		for tm, n := range forks {
			if n > templateUses {
				w.Errorf("%s was forked %d times", tm.id, n)
			}
		}
		if len(forks) < 3 {
			w.Errorf("%d templates for %d forks", len(forks), 3*templateUses)
		}
		// One that is in use, one that is used, and perhaps its successor.
		if now := w.fake.Templates(); len(now) > 3 || now[0] != first[0] {
			w.Errorf("templates %v, want that of the lease, %v, and the newest", now, first)
		}
		w.close(last)
		settled(time.Second)
		if now := w.fake.Templates(); len(now) > 2 || now[0] == first[0] {
			w.Errorf("templates %v are left with none of its forks", now)
		}
	})
}

// TestTemplateUsedUp: where there is no successor nothing more is forked.
func TestTemplateUsedUp(t *testing.T) {
	inBubble(t, Config{}, roomy, func(w *world) {
		var made atomic.Bool
		w.failing(func(step string) error {
			if step == "template" && made.Swap(true) {
				return errors.New("broken")
			}
			return nil
		})
		k := w.forked()
		w.Keep(k)
		settled(time.Second)
		taken := 0
		for range 2 * templateUses {
			if l := w.Take(k, 512*mib); l != nil {
				taken++
				w.close(l)
			}
			settled(time.Millisecond)
		}
		if taken != templateUses {
			w.Errorf("%d forks of one template, want %d", taken, templateUses)
		}
	})
}

func TestTemplateAge(t *testing.T) {
	inBubble(t, Config{}, roomy, func(w *world) {
		k := w.forked()
		w.Keep(k)
		settled(time.Second)
		first := w.fake.Templates()
		settled(10 * time.Minute)
		w.ready(2)
		settled(10 * time.Minute)
		if now := w.fake.Templates(); len(now) != 1 || now[0] == first[0] {
			w.Errorf("templates %v, before %v", now, first)
		}
	})
}

func TestTemplateEnd(t *testing.T) {
	inBubble(t, Config{}, roomy, func(w *world) {
		k := w.forked()
		w.Keep(k)
		settled(time.Second)
		l := w.take(k)
		w.fake.Lose(w.fake.Templates()[0])
		settled(0)
		if l := w.Take(k, 512*mib); l != nil {
			w.Error("a fork of what has ended is given out")
		}
		w.close(l)
		settled(20 * time.Second)
		w.ready(2)
		if n := len(w.fake.Templates()); n != 1 {
			w.Errorf("%d templates", n)
		}
	})
}

func TestTemplateOfATenant(t *testing.T) {
	inBubble(t, Config{}, roomy, func(w *world) {
		one, two := w.forked(), w.forked()
		two.Tenant = "other"
		w.Keep(one)
		settled(time.Second)
		w.Keep(two)
		settled(5 * time.Second)
		a, b := w.take(one), w.take(two)
		if a.spare.of == b.spare.of || filepath.Dir(a.Inputs) == filepath.Dir(b.Inputs) {
			w.Error("two tenants share a template")
		}
		w.close(a, b)
	})
}

// TestTemplateLater: what is unavailable for a while, such as room on a disk, makes nobody do without forks for ever.
func TestTemplateLater(t *testing.T) {
	inBubble(t, Config{}, 2*glovebox.GiB, func(w *world) {
		w.failing(func(step string) error {
			if step == "template" {
				return glovebox.Errorf(glovebox.CodeUnavailable, "wait", "not now")
			}
			return nil
		})
		w.Keep(w.forked())
		settled(time.Second)
		w.ready(0)
		w.failing(nil)
		settled(time.Minute)
		l := w.take(w.forked())
		defer w.close(l)
		if l.Start != "fork" {
			w.Errorf("start = %s", l.Start)
		}
	})
}

// TestNoTemplates: where the driver has none each spare loads its modules itself, with the memory that this takes.
func TestNoTemplates(t *testing.T) {
	inBubble(t, Config{}, 2*glovebox.GiB, func(w *world) {
		w.failing(func(step string) error {
			if step == "template" {
				return fmt.Errorf("no templates here: %w", driver.ErrNoTemplates)
			}
			return nil
		})
		k := w.forked()
		k.Hold.Memory = 100 * mib
		w.Keep(k)
		settled(time.Minute)
		w.ready(2)
		w.holds(200 * mib)
		if l := w.Take(k, 99*mib); l != nil {
			w.Error("given out to a run that may have less")
		}
		l := w.take(k)
		if l.Start != "spare" {
			w.Errorf("start = %s", l.Start)
		}
		w.close(l)
		if n := w.log.count("no templates here"); n != 1 {
			w.Errorf("it was logged %d times", n)
		}
	})
}

// TestSuccessorHasMemory: when runs have all the memory there is, the next template has what was held for it.
func TestSuccessorHasMemory(t *testing.T) {
	inBubble(t, Config{Min: 1, Max: 1}, 8192*mib, func(w *world) {
		k := w.forked()
		w.Keep(k)
		settled(time.Minute)
		taken, err := w.memory.Taken()
		if err != nil {
			t.Fatal(err)
		}
		run, err := w.memory.Acquire(w.Context(), 8192*mib-taken) // all the rest
		if err != nil {
			t.Fatal(err)
		}
		first := w.fake.Templates()
		for range templateUses {
			if l := w.Fork(w.Context(), k, 512*mib); l != nil {
				w.close(l)
			}
		}
		settled(time.Second)
		if l := w.Fork(w.Context(), k, 512*mib); l == nil || slices.Equal(w.fake.Templates(), first) {
			t.Errorf("templates %v, before %v: %+v", w.fake.Templates(), first, w.Stats())
		} else {
			w.close(l)
		}
		if err := run.Release(); err != nil {
			t.Error(err)
		}
	})
}

// TestSuccessorIsReady: the next template is made long before it is needed, and not used before this one is used up.
func TestSuccessorIsReady(t *testing.T) {
	inBubble(t, Config{Min: 1, Max: 1}, 8192*mib, func(w *world) {
		k := w.forked()
		w.Keep(k)
		settled(time.Minute)
		first := w.fake.Templates()
		fork := func(n int) {
			for range n {
				l := w.Fork(w.Context(), k, 512*mib)
				if l == nil {
					t.Fatalf("nothing can be forked: %+v", w.Stats())
				}
				w.close(l)
			}
		}
		fork(templateUses / 4)
		settled(time.Second)
		if now := w.fake.Templates(); len(first) != 1 || len(now) != 2 || now[0] != first[0] {
			t.Errorf("templates %v, before %v", now, first)
		}
		w.failing(func(step string) error { // the next cannot be made in time
			if step == "template" {
				return errors.New("slow")
			}
			return nil
		})
		fork(templateUses) // more than are left of the first
	})
}

// TestTemplateForWhoAsks: a template is made for a kind that is asked for before any other, and while runs wait for memory for
// no other.
func TestTemplateForWhoAsks(t *testing.T) {
	now := time.Now()
	fresh := func(asked time.Time) *shelf {
		return &shelf{kind: Kind{Fork: true}, target: 1, asked: asked}
	}
	memory, err := admission.New(admission.Config{Dir: t.TempDir(), Size: 8192 * mib})
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Close()
	idle, asked := fresh(now.Add(-time.Minute)), fresh(now)
	p := &Pool{cfg: Config{Memory: memory}, shelves: map[key]*shelf{{tenant: "a"}: idle, {tenant: "b"}: asked, {tenant: "c"}: fresh(now.Add(-time.Hour))}}
	for range 50 { // whatever the order of the map
		if p.thirstiest(now, true) != asked || p.thirstiest(now, false) != asked {
			t.Fatal("one that nobody asks for comes first")
		}
	}
	delete(p.shelves, key{tenant: "b"})
	if p.thirstiest(now, true) != nil || p.thirstiest(now, false) == nil {
		t.Error("one that nobody asks for gets a template while runs wait, or none else")
	}
}
