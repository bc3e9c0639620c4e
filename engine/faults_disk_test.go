package engine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// trouble is something that is wrong with the disk, the process or the store while an engine works on a data_dir.
type trouble struct {
	what string
	size int64 // bytes or descriptors that are left

	mu   sync.Mutex
	undo func() error
}

// troubles are all kinds.
var troubles = []string{"files are small", "no descriptors", "blobs are no folder", "runs are no folder", "store is closed", "disk is full"}

// begin makes the trouble. It is called once at most; a trouble that ended before it began never begins.
func (b *trouble) begin(t *testing.T, w *world) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.undo != nil {
		return
	}
	b.undo = func() error { return nil }
	var err error
	switch b.what {
	case "files are small":
		b.undo, err = limited(unix.RLIMIT_FSIZE, uint64(b.size))
	case "no descriptors":
		open, failed := os.ReadDir("/proc/self/fd")
		if err = failed; err == nil {
			b.undo, err = limited(unix.RLIMIT_NOFILE, uint64(int64(len(open))+b.size%16))
		}
	case "blobs are no folder":
		b.undo, err = replaced(filepath.Join(w.dir, "blobs"))
	case "runs are no folder":
		b.undo, err = replaced(filepath.Join(w.dir, "runs"))
	case "store is closed":
		if _, failed := w.engine.record(); failed == nil {
			_ = w.engine.store.Close()
		}
	case "disk is full":
		b.undo, err = w.disk.full(b.size)
	}
	if err != nil {
		t.Errorf("begin %q: %v", b.what, err)
	}
}

// end mends it.
func (b *trouble) end(t *testing.T) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.undo != nil {
		if err := b.undo(); err != nil {
			t.Errorf("end %q: %v", b.what, err)
		}
	}
	b.undo = func() error { return nil }
}

// limited lowers a limit of this process. Its undo sets the highest that is allowed, so that the order of two of them is no
// matter.
func limited(which int, to uint64) (undo func() error, err error) {
	var was unix.Rlimit
	if err := unix.Getrlimit(which, &was); err != nil {
		return nil, err
	}
	now := unix.Rlimit{Cur: min(to, was.Max), Max: was.Max}
	return func() error { return unix.Setrlimit(which, &unix.Rlimit{Cur: was.Max, Max: was.Max}) }, unix.Setrlimit(which, &now)
}

// replaced puts a file in the place of a folder, if it is there.
func replaced(folder string) (undo func() error, err error) {
	aside := folder + ".aside"
	if info, err := os.Lstat(folder); err != nil || !info.IsDir() { // it is not made yet, or replaced already
		return func() error { return nil }, nil
	}
	if err := os.Rename(folder, aside); err != nil {
		return nil, err
	}
	return func() error { return errors.Join(os.Remove(folder), os.Rename(aside, folder)) }, os.WriteFile(folder, nil, 0o600)
}

// full leaves only some bytes of the disk.
func (d *smallDisk) full(but int64) (undo func() error, err error) {
	f, err := os.OpenFile(d.fill, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var size int64
	for piece := int64(1 << 20); piece >= 4096; piece /= 4 {
		for unix.Fallocate(int(f.Fd()), 0, size, piece) == nil {
			size += piece
		}
	}
	undo = func() error {
		if err := os.Remove(d.fill); !errors.Is(err, os.ErrNotExist) { // another may have ended before
			return err
		}
		return nil
	}
	return undo, f.Truncate(max(size-but, 0))
}

// plan is what goes wrong for a seed, and when.
type plan struct {
	fail     map[string][]int // by step of the driver: which of its calls fail
	troubles []*plannedTrouble
}

// plannedTrouble begins with a call of a step of the driver or, where step is empty, before the engine is made.
type plannedTrouble struct {
	trouble
	step string
	call int
	last int // ends with this call of any step; 0: when all runs have ended
}

var steps = []string{"start", "exec", "sample", "kill", "open", "disk", "close", "way", "netd", "attach",
	"link", "way close"}

func (w *world) newPlan() plan {
	r := w.random
	p := plan{fail: map[string][]int{}}
	for range []int{0, 0, 1, 1, 2, 4}[r.IntN(6)] {
		step := steps[r.IntN(len(steps))]
		p.fail[step] = append(p.fail[step], 1+r.IntN(3))
	}
	sizes := []int64{0, 1, 100, 4096, 5000, 20_000, 50_000, 150_000}
	for range []int{0, 1, 1, 2}[r.IntN(4)] {
		kinds := troubles
		if !w.disk.own {
			kinds = troubles[:len(troubles)-1]
		}
		b := &plannedTrouble{trouble: trouble{what: kinds[r.IntN(len(kinds))], size: sizes[r.IntN(len(sizes))]},
			step: steps[r.IntN(len(steps))], call: 1 + r.IntN(2)}
		if r.IntN(8) == 0 && b.what != "store is closed" {
			b.step = ""
		}
		if r.IntN(3) == 0 {
			b.last = 2 + r.IntN(20)
		}
		if b.what == "no descriptors" {
			p.troubles = []*plannedTrouble{b} // without one no other trouble can be made
			break
		}
		p.troubles = append(p.troubles, b)
	}
	return p
}

func (p plan) String() string {
	s := fmt.Sprintf("failing calls %v", p.fail)
	for _, b := range p.troubles {
		s += fmt.Sprintf("; %s (%d) from call %d of %q to call %d", b.what, b.size, b.call, b.step, b.last)
	}
	return s
}

var errPlanned = errors.New("broken as planned")

// fail is called at each step of the driver.
func (w *world) fail(step string) error {
	w.mu.Lock()
	w.calls[step]++
	call := w.calls[step]
	if step != "sample" {
		w.all++
	}
	all := w.all
	broken := slices.Contains(w.plan.fail[step], call)
	w.mu.Unlock()
	for _, b := range w.plan.troubles {
		if b.step == step && b.call == call {
			b.begin(w.t, w)
		}
		if b.last > 0 && all >= b.last {
			b.end(w.t)
		}
	}
	if broken {
		return errPlanned
	}
	return nil
}
