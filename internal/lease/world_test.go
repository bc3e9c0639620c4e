package lease

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
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

// What the driver in memory says of forks and templates.
const (
	forkMemory     = 64 * mib
	templateMemory = 128 * mib
)

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
