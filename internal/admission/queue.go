package admission

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"glovebox"
	"glovebox/internal/lockfile"
)

// waiter is one run in the queue.
type waiter struct {
	need   int64
	ticket int64
	looked time.Time     // when its ticket was looked after
	wake   chan struct{} // holds one word: that it is the first of this process now, or that memory was given back
}

// Acquire waits until a run with this limit fits, and holds its memory until the Share is released. When ctx ends first its
// cause is returned. Other errors are *[glovebox.Error], exhausted where too many wait or the wait is too long. On error
// nothing is held.
func (a *Admission) Acquire(ctx context.Context, limit glovebox.Size) (*Share, error) {
	if err := a.Fits(limit, 0); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	s, w, err := a.enter(int64(limit))
	if err != nil {
		return nil, glovebox.Internal("open the queue for memory", err)
	}
	if w == nil {
		return s, nil
	}
	s, err = a.wait(ctx, w)
	if failed := a.leave(w); err == nil && failed != nil {
		err = errors.Join(failed, s.Release())
	}
	switch {
	case err == nil:
		return s, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	}
	return nil, glovebox.Internal("wait for memory", err)
}

// enter takes the memory at once, else a place in the queue.
func (a *Admission) enter(need int64) (*Share, *waiter, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.open(); err != nil {
		return nil, nil, err
	}
	if len(a.waiting) == 0 {
		if s, err := a.now(behindAll, need); s != nil || err != nil {
			return s, nil, err
		}
	}
	ticket, err := a.ticket(a.waiting)
	if err != nil {
		return nil, nil, err
	}
	w := &waiter{need: need, ticket: ticket, looked: time.Now(), wake: make(chan struct{}, 1)}
	a.waiting = append(a.waiting, w)
	return nil, w, nil
}

// ticket takes the ticket behind the last, for one that comes after those of this process.
func (a *Admission) ticket(after []*waiter) (int64, error) {
	for {
		waiting, next := int64(len(after)), queue
		if len(after) > 0 {
			next = after[len(after)-1].ticket + 1
		}
		err := a.row.file.Each(lockfile.Range{Start: queue, Length: tickets}, func(r lockfile.Range) bool {
			waiting, next = waiting+r.Length, max(next, r.Start+r.Length)
			return true
		})
		if err != nil {
			return 0, err
		}
		if waiting >= maxWaiting {
			return 0, glovebox.Errorf(glovebox.CodeExhausted, "try again later, or raise memory_budget",
				"%d runs wait for memory already", waiting)
		}
		ok, err := a.row.file.Take(lockfile.Range{Start: next, Length: 1})
		if err != nil {
			return 0, err
		}
		if ok {
			return next, a.row.beat(next)
		}
		// Somebody else was faster.
	}
}

// wait returns when w has its memory. Only the first of this process looks at what others hold; the rest wait for its word.
func (a *Admission) wait(ctx context.Context, w *waiter) (*Share, error) {
	deadline := time.NewTimer(a.most)
	defer deadline.Stop()
	again := time.NewTimer(0)
	defer again.Stop()
	for pause := firstPause; ; {
		select {
		case <-again.C:
		case <-w.wake:
			pause = firstPause
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-deadline.C:
			return nil, glovebox.Errorf(glovebox.CodeExhausted, "try again later, ask for less --memory, or raise memory_budget",
				"there was no room for %v of memory within %v beside the runs before it; all may have %v together",
				glovebox.Size(w.need), a.most, glovebox.Size(a.budget))
		}
		s, first, err := a.look(w)
		if s != nil || err != nil {
			return s, err
		}
		if first {
			again.Reset(pause)
			pause = min(2*pause, lastPause)
		} else {
			again.Reset(beatEvery)
		}
	}
}

// look takes memory for w if it is its turn, and looks after its ticket. first tells whether it is this process's first.
func (a *Admission) look(w *waiter) (s *Share, first bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.open(); err != nil {
		return nil, false, err
	}
	if time.Since(w.looked) >= beatEvery {
		w.looked = time.Now()
		if err := a.row.beat(w.ticket); err != nil {
			return nil, false, err
		}
	}
	if a.waiting[0] != w {
		return nil, false, nil
	}
	s, err = a.now(w.ticket, w.need)
	return s, true, err
}

// leave gives the ticket back, with or without memory.
func (a *Admission) leave(w *waiter) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.waiting = slices.DeleteFunc(a.waiting, func(other *waiter) bool { return other == w })
	a.wakeFirst()
	return a.row.file.Leave(lockfile.Range{Start: w.ticket, Length: 1})
}

// wakeFirst has the first of this process look.
func (a *Admission) wakeFirst() {
	if len(a.waiting) == 0 {
		return
	}
	select {
	case a.waiting[0].wake <- struct{}{}:
	default:
	}
}

// place is where the time of a ticket is. Its budget is where the times of all end, and as far from there.
func place(ticket int64) int64 { return (ticket - queue) % beats * word }

const (
	word    = 8 // bytes
	budgets = beats * word
)

// beat says that a ticket is looked after, and what its budget is.
func (r *row) beat(ticket int64) error {
	now, err := clock()
	if err != nil {
		return err
	}
	// The budget first: a ticket without a time of its own is passed over.
	for _, w := range []struct{ value, at int64 }{{r.budget, place(ticket) + budgets}, {int64(now), place(ticket)}} {
		if _, err := r.file.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(w.value)), w.at); err != nil {
			return err
		}
	}
	return nil
}

// number is what is written somewhere; 0 where nothing was.
func (r *row) number(at int64) (int64, error) {
	var b [word]byte
	if _, err := r.file.ReadAt(b[:], at); err != nil && err != io.EOF {
		return 0, err
	}
	return int64(binary.NativeEndian.Uint64(b[:])), nil
}

// bars tells whether a ticket holds up those behind it in this process: it is looked after, and its budget is no smaller
// than this one. One with a smaller budget may wait for long for what is no lack here.
func (r *row) bars(ticket int64) (bool, error) {
	fresh, err := r.fresh(ticket)
	if err != nil || !fresh {
		return false, err
	}
	budget, err := r.number(place(ticket) + budgets)
	return budget == 0 || budget >= r.budget, err // none is said by an earlier version
}

// fresh tells whether a ticket is looked after.
func (r *row) fresh(ticket int64) (bool, error) {
	now, err := clock()
	if err != nil {
		return false, err
	}
	then, err := r.number(place(ticket)) // where none was written it is old
	return now-time.Duration(then) < old, err
}

// clock is the machine's, the same in all processes, and stands still while the machine sleeps.
func clock() (time.Duration, error) {
	var now unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	return time.Duration(now.Nano()), err
}
