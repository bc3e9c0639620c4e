// Package admission keeps the memory limits of all live runs of one user on one machine, whichever processes they are of,
// within a budget together, so that each run can really have what it was granted. A run that does not fit now waits its
// turn.
//
// There is no daemon and nothing is written down: all is locks on bytes of one file, which the kernel drops with whoever
// holds them. Each run opens the file for itself.
//
//	byte 0            budget                          2^62
//	     |aaaaa|bbb|    |aa|  |                        |  3|4|5| |
//	     a byte for each byte of memory                a byte for each ticket of the queue
//
//	ticket   take the byte behind the last ticket that is held. It is yours to wait at: first come, first served.
//	wait     until no ticket before yours is held.
//	memory   count what is held; if it and your limit fit the budget, take free bytes, as many as your limit has,
//	         in as many pieces as need be.
//	leave    give the ticket back. The memory is held until the run's sandbox is gone.
//
// The kernel lets nobody hold a byte that another holds, so a process that is stopped in the midst of this, or passed over,
// can upset the order and never the sum. One that has been stopped (Ctrl-Z) while it waits must not hold up the others:
// whoever waits writes the time into the file, at a place of its ticket's, and a ticket whose time is old is passed over.
//
// Processes with different budgets share the row of bytes: each counts all that is held and takes bytes within its own.
package admission

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"glovebox"
	"glovebox/internal/cgroup"
	"glovebox/internal/lockfile"
)

// Config says how much there is and where it is shared.
type Config struct {
	// Dir is the folder of the locks, which all processes of one user must share. Empty: lockfile.Folder.
	Dir string
	// Size is the budget. Zero: Percent of what the machine and the control group of this process allow.
	Size glovebox.Size
	// Percent is from 1 to 100. Zero: 75, which leaves the rest to the system, the supervisors and the inits.
	Percent int
}

const defaultPercent = 75

// Admission admits the runs of one engine. It is safe for concurrent use.
type Admission struct {
	dir    string
	budget int64
	most   time.Duration // to wait

	mu     sync.Mutex
	shares map[*Share]bool
}

const (
	lockName = "memory.lock"
	queue    = int64(1) << 62 // the first ticket
	tickets  = int64(1) << 60 // how many there can be

	maxWaiting = 128             // waiting runs of all processes: bounds what they cost the machine
	maxWait    = 5 * time.Minute // for the runs before it, most of which end within their default of a minute
	old        = 5 * time.Second // a ticket that was not looked after for so long is passed over
	beatEvery  = time.Second     // how often a ticket is looked after
	beats      = 4096            // places for times; a ticket uses that of its number modulo this

	tries = 20 // of Try, where others are faster

	firstPause = time.Millisecond // between looks at locks, whose end nobody is told; it doubles
	lastPause  = 10 * time.Millisecond
)

// New finds out how large the budget is. Errors are *[glovebox.Error].
func New(cfg Config) (*Admission, error) {
	if cfg.Dir == "" {
		cfg.Dir = lockfile.Folder()
	}
	if cfg.Percent == 0 {
		cfg.Percent = defaultPercent
	}
	if cfg.Percent < 0 || cfg.Percent > 100 || cfg.Size < 0 || int64(cfg.Size) >= queue {
		return nil, glovebox.Errorf(glovebox.CodeInvalid, "set memory_budget to 1% to 100%, or to a size",
			"the memory budget is neither a percentage nor a size")
	}
	host, err := cgroup.Detect("/sys/fs/cgroup")
	if err != nil {
		return nil, glovebox.Internal("find the memory there is", err)
	}
	allowed, err := host.MemoryAllowed()
	if err != nil {
		return nil, glovebox.Internal("find the memory there is", err)
	}
	budget := int64(cfg.Size)
	if budget == 0 {
		budget = allowed / 100 * int64(cfg.Percent)
	}
	if budget > allowed {
		return nil, glovebox.Errorf(glovebox.CodeUnavailable,
			fmt.Sprintf("set memory_budget to less than %v, or leave it out", glovebox.Size(allowed)),
			"the memory budget is %v, and the machine or Glovebox's own control group allows %v", cfg.Size, glovebox.Size(allowed))
	}
	return &Admission{dir: cfg.Dir, budget: budget, most: maxWait, shares: map[*Share]bool{}}, nil
}

// Budget is what all live runs may have together.
func (a *Admission) Budget() glovebox.Size { return glovebox.Size(a.budget) }

// Fits says whether a run with this limit could ever be admitted. The error is a *[glovebox.Error] that names both.
func (a *Admission) Fits(limit glovebox.Size) error {
	if int64(limit) <= a.budget {
		return nil
	}
	return glovebox.Errorf(glovebox.CodeUnavailable,
		fmt.Sprintf("ask for --memory %dMiB at most, or set memory_budget in glovebox.yaml", a.budget>>20),
		"a run with %v of memory does not fit the budget of %v that all runs have together", limit, a.Budget())
}

// Taken is what live runs hold now.
func (a *Admission) Taken() (glovebox.Size, error) {
	f, err := lockfile.Open(a.dir, lockName)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	sum, _, err := held(f)
	return glovebox.Size(sum), err
}

// Share is memory that one run holds.
type Share struct {
	of   *Admission
	file *lockfile.File
	once sync.Once
	err  error
}

// Release gives the memory back. Releasing again does nothing.
func (s *Share) Release() error {
	s.once.Do(func() {
		s.of.mu.Lock()
		delete(s.of.shares, s)
		s.of.mu.Unlock()
		s.err = s.file.Close()
	})
	return s.err
}

// Close gives back all that is still held. Nothing may be acquired meanwhile.
func (a *Admission) Close() {
	a.mu.Lock()
	left := a.shares
	a.shares = map[*Share]bool{}
	a.mu.Unlock()
	for s := range left {
		_ = s.Release() // the lock goes also where closing says it failed
	}
}

// Acquire waits until a run with this limit fits, and holds its memory until the Share is released. When ctx ends first its
// cause is returned. Other errors are *[glovebox.Error], exhausted where too many wait or the wait is too long. On error
// nothing is held.
func (a *Admission) Acquire(ctx context.Context, limit glovebox.Size) (_ *Share, err error) {
	if err := a.Fits(limit); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	f, err := lockfile.Open(a.dir, lockName)
	if err != nil {
		return nil, glovebox.Internal("open the queue for memory", err)
	}
	w := waiter{file: f, budget: a.budget, need: int64(limit)}
	if err := w.admit(ctx, a.most); err != nil {
		f.Close()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, glovebox.Internal("wait for memory", err)
	}
	return a.hold(f), nil
}

func (a *Admission) hold(f *lockfile.File) *Share {
	s := &Share{of: a, file: f}
	a.mu.Lock()
	a.shares[s] = true
	a.mu.Unlock()
	return s
}

// Try holds memory as Acquire does where it fits now, and else returns nil. It never waits. What is taken past the queue may
// make those wait for longer who are in it; else nothing is taken while there are any. Errors are *[glovebox.Error].
func (a *Admission) Try(limit glovebox.Size, past bool) (*Share, error) {
	f, err := lockfile.Open(a.dir, lockName)
	if err != nil {
		return nil, glovebox.Internal("open the queue for memory", err)
	}
	// The place behind all tickets.
	w := waiter{file: f, budget: a.budget, need: int64(limit), ticket: queue + tickets}
	admitted := past
	if !past {
		admitted, err = w.first()
	}
	if admitted && err == nil {
		admitted, err = w.take()
	}
	for range tries {
		if admitted || err != nil || !w.passed {
			break
		}
		admitted, err = w.take()
	}
	if err == nil && admitted {
		return a.hold(f), nil
	}
	f.Close()
	if err != nil {
		return nil, glovebox.Internal("take memory", err)
	}
	return nil, nil
}

// Waiting names the place of the run that has waited the longest for memory, of whichever process; 0 when none does.
func (a *Admission) Waiting() (place int64, err error) {
	f, err := lockfile.Open(a.dir, lockName)
	if err != nil {
		return 0, glovebox.Internal("open the queue for memory", err)
	}
	defer f.Close()
	err = f.Each(lockfile.Range{Start: queue, Length: tickets}, func(r lockfile.Range) bool {
		if at := r.Start - queue + 1; place == 0 || at < place {
			place = at
		}
		return true
	})
	if err != nil {
		return 0, glovebox.Internal("look who waits for memory", err)
	}
	return place, nil
}

// waiter is one run in the queue.
type waiter struct {
	file         *lockfile.File
	budget, need int64
	ticket       int64
	passed       bool // it did not get memory that was free: somebody else was faster
}

func (w *waiter) admit(ctx context.Context, most time.Duration) error {
	if err := w.join(ctx); err != nil {
		return err
	}
	deadline := time.NewTimer(most)
	defer deadline.Stop()
	pause := firstPause
	again := time.NewTimer(pause)
	defer again.Stop()
	for looked := time.Now(); ; {
		first, err := w.first()
		if err != nil {
			return err
		}
		if first {
			admitted, err := w.take()
			if err != nil {
				return err
			}
			if admitted {
				return w.file.Leave(lockfile.Range{Start: w.ticket, Length: 1})
			}
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-deadline.C:
			return glovebox.Errorf(glovebox.CodeExhausted, "try again later, ask for less --memory, or raise memory_budget",
				"there was no room for %v of memory within %v beside the runs before it; all may have %v together",
				glovebox.Size(w.need), most, glovebox.Size(w.budget))
		}
		if pause = min(2*pause, lastPause); time.Since(looked) >= beatEvery {
			looked = time.Now()
			if err := w.beat(); err != nil {
				return err
			}
		}
		again.Reset(pause)
	}
}

// join takes the ticket behind the last.
func (w *waiter) join(ctx context.Context) error {
	for ctx.Err() == nil {
		waiting, next := 0, queue
		err := w.file.Each(lockfile.Range{Start: queue, Length: tickets}, func(r lockfile.Range) bool {
			waiting, next = waiting+1, max(next, r.Start+r.Length)
			return true
		})
		if err != nil {
			return err
		}
		if waiting >= maxWaiting {
			return glovebox.Errorf(glovebox.CodeExhausted, "try again later, or raise memory_budget",
				"%d runs wait for memory already", waiting)
		}
		ok, err := w.file.Take(lockfile.Range{Start: next, Length: 1})
		if err != nil {
			return err
		}
		if ok {
			w.ticket = next
			return w.beat()
		}
		// Somebody else was faster.
	}
	return context.Cause(ctx)
}

// first tells whether nobody who still looks after a ticket has one before this.
func (w *waiter) first() (bool, error) {
	first := true
	var failed error
	err := w.file.Each(lockfile.Range{Start: queue, Length: w.ticket - queue}, func(r lockfile.Range) bool {
		var fresh bool
		fresh, failed = w.fresh(r.Start)
		first = !fresh && failed == nil
		return first
	})
	if err == nil {
		err = failed
	}
	return first && err == nil, err
}

// take takes memory if it fits now.
func (w *waiter) take() (bool, error) {
	w.passed = false
	sum, taken, err := held(w.file)
	if err != nil || sum > w.budget-w.need {
		return false, err
	}
	left, at := w.need, int64(0)
	for _, r := range append(taken, lockfile.Range{Start: w.budget}) {
		n := min(left, min(r.Start, w.budget)-at)
		if n > 0 {
			ok, err := w.file.Take(lockfile.Range{Start: at, Length: n})
			if err != nil {
				return false, err
			}
			if !ok {
				w.passed = true
				break
			}
			left -= n
		}
		at = max(at, r.Start+r.Length)
	}
	if left == 0 {
		return true, nil
	}
	return false, w.file.Leave(lockfile.Range{Start: 0, Length: w.budget})
}

// held is what others hold of the memory, in its order.
func held(f *lockfile.File) (sum int64, taken []lockfile.Range, err error) {
	err = f.Each(lockfile.Range{Start: 0, Length: queue}, func(r lockfile.Range) bool {
		sum += r.Length
		taken = append(taken, r)
		return true
	})
	slices.SortFunc(taken, func(a, b lockfile.Range) int { return int(min(max(a.Start-b.Start, -1), 1)) })
	return sum, taken, err
}

// place is where the time of a ticket is.
func place(ticket int64) int64 { return (ticket - queue) % beats * 8 }

// beat says that the ticket is looked after.
func (w *waiter) beat() error {
	now, err := clock()
	if err != nil {
		return err
	}
	_, err = w.file.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(now)), place(w.ticket))
	return err
}

// fresh tells whether a ticket is looked after.
func (w *waiter) fresh(ticket int64) (bool, error) {
	now, err := clock()
	if err != nil {
		return false, err
	}
	var b [8]byte
	if _, err := w.file.ReadAt(b[:], place(ticket)); err != nil && err != io.EOF { // where none was written it is old
		return false, err
	}
	return now-time.Duration(binary.NativeEndian.Uint64(b[:])) < old, nil
}

// clock is the machine's, the same in all processes, and stands still while the machine sleeps.
func clock() (time.Duration, error) {
	var now unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	return time.Duration(now.Nano()), err
}
