package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"glovebox"
	"glovebox/driver"
)

// The clockwork of supervision.
const (
	pollSlow   = 50 * time.Millisecond  // counters are read at least this often
	pollFast   = 5 * time.Millisecond   // and never more often than this
	usageEvery = time.Second            // how often the sink hears of them
	lastWords  = 250 * time.Millisecond // for the streams to end by themselves after the leader did
	drainLimit = time.Second            // for a dead tree's streams to end, and for a sink after a cancel
	killLimit  = 10 * time.Second       // for the kernel to end a tree
)

// capture is what supervision needs of output.Capture.
type capture interface {
	// Copy reads a stream to its end.
	Copy(stream string, r io.Reader) error
	// Exceeded is closed when more than the output limit was read.
	Exceeded() <-chan struct{}
}

// watch supervises one process from its release to the death of the last of its tree.
type watch struct {
	box     driver.Sandbox
	proc    driver.Process
	limits  glovebox.Limits
	capture capture
	tell    *teller
	drained chan struct{} // made by the caller, closed when both streams are read to their ends
	// violated is closed when the program used what it was lent where it may not, and that is to end it; nil: never.
	violated <-chan struct{}

	told time.Time // when the sink last heard of usage
}

// run returns the facts of a run once the whole tree is dead and its streams are read to their ends. An error is Glovebox's
// own failure; the tree is then killed as well as could be done, and closing the sandbox does the rest; streams may still be
// read until drained is closed. One goroutine takes every decision to kill, so that what is recorded first is what happened.
func (w *watch) run(ctx context.Context) (facts, error) {
	var copying sync.WaitGroup
	failed := make([]error, 2)
	copying.Go(func() { failed[0] = w.capture.Copy("stdout", w.proc.Stdout()) })
	copying.Go(func() { failed[1] = w.capture.Copy("stderr", w.proc.Stderr()) })
	go func() { copying.Wait(); close(w.drained) }()

	killed, guardErr := w.guard(ctx)
	f := facts{killed: killed, wall: time.Since(w.proc.Released())}
	var diskErr error
	if killed == "" && guardErr == nil {
		f.disk, diskErr = w.box.Disk() // as the leader left it, before its children go on
		w.wait(ctx)
	}
	kill, stop := context.WithTimeout(context.WithoutCancel(ctx), killLimit)
	defer stop()
	if err := w.proc.Kill(kill); err != nil {
		w.tell.abandon()
		return f, errors.Join(guardErr, fmt.Errorf("end the tree: %w", err))
	}
	drainErr := w.drain(ctx)
	if err := errors.Join(guardErr, diskErr, drainErr); err != nil {
		return f, err
	}
	if err := errors.Join(failed...); err != nil {
		return f, fmt.Errorf("read output: %w", err)
	}
	return w.last(f)
}

// guard returns when the leader has ended or has to be killed, and then why. A leader that ended first is never said to be
// killed.
func (w *watch) guard(ctx context.Context) (glovebox.Status, error) {
	wall := time.NewTimer(time.Until(w.proc.Released().Add(w.limits.Wall)))
	defer wall.Stop()
	poll := time.NewTimer(w.pause(0))
	defer poll.Stop()
	for {
		var cause glovebox.Status
		var err error
		select {
		case <-w.proc.Exited():
			return "", nil
		case <-wall.C:
			cause = glovebox.StatusWallLimit
		case <-ctx.Done():
			cause = glovebox.StatusCanceled
		case <-w.capture.Exceeded():
			cause = glovebox.StatusOutputLimit
		case <-w.violated:
			cause = glovebox.StatusPolicy
		case <-poll.C:
			var s driver.Sample
			if s, err = w.proc.Sample(); err != nil {
				err = fmt.Errorf("read the counters that the limits depend on: %w", err)
				break
			}
			cause = w.over(s)
			w.report(s)
			poll.Reset(w.pause(s.CPU))
		}
		if cause == "" && err == nil {
			continue
		}
		if ended(w.proc.Exited()) {
			return "", nil // last looks at the counters again
		}
		return cause, err
	}
}

// pause is how long until the counters are worth reading again: no longer than a tree that uses all its CPUs needs to get to
// the limit.
func (w *watch) pause(used time.Duration) time.Duration {
	left := float64(w.limits.CPU-used) / max(w.limits.CPUs, 0.001)
	return time.Duration(min(max(left, float64(pollFast)), float64(pollSlow)))
}

// over tells which limit the counters are beyond. The kernel's own kill came before anything this reading could add.
func (w *watch) over(s driver.Sample) glovebox.Status {
	switch {
	case s.OOMKills > 0:
		return glovebox.StatusMemoryLimit
	case s.CPU >= w.limits.CPU:
		return glovebox.StatusCPULimit
	}
	return ""
}

func (w *watch) report(s driver.Sample) {
	now := time.Now()
	if now.Sub(w.told) < usageEvery {
		return
	}
	w.told = now
	u := usageOf(s)
	u.WallMS = new(now.Sub(w.proc.Released()).Milliseconds())
	w.tell.usage(now, u)
}

// wait gives the streams a moment to end by themselves: usually they already have, and a child that outlives the leader gets
// to say its last words.
func (w *watch) wait(ctx context.Context) {
	if ended(w.drained) { // a timer for nothing wakes a thread
		return
	}
	moment := time.NewTimer(lastWords)
	defer moment.Stop()
	select {
	case <-w.drained:
	case <-ctx.Done():
	case <-w.capture.Exceeded():
	case <-moment.C:
	}
}

// drain waits until what a dead tree left in its pipes is read. A slow sink may take its time until the caller cancels; a
// stream that does not end although nobody can hold it is a failure.
func (w *watch) drain(ctx context.Context) error {
	for !ended(w.drained) {
		before := w.tell.count()
		pause := time.NewTimer(drainLimit)
		select {
		case <-w.drained:
			pause.Stop()
			return nil
		case <-pause.C:
		}
		switch {
		case ctx.Err() != nil && w.tell.abandon():
		case w.tell.busy() || w.tell.count() != before:
		default:
			return errors.New("a stream did not end although all that could write to it is dead")
		}
	}
	return nil
}

// last reads what is only known for good when all is dead.
func (w *watch) last(f facts) (facts, error) {
	var err error
	if f.killed != "" {
		if f.disk, err = w.box.Disk(); err != nil {
			return f, fmt.Errorf("read the state of the disk: %w", err)
		}
	}
	if f.sample, err = w.proc.Sample(); err != nil {
		return f, fmt.Errorf("read the final counters: %w", err)
	}
	f.exceeded = ended(w.capture.Exceeded())
	if ended(w.proc.Exited()) {
		f.exit = w.proc.Exit()
		return f, nil
	}
	select {
	case <-w.proc.Exited():
		f.exit = w.proc.Exit()
		return f, nil
	case <-time.After(drainLimit):
		return f, errors.New("the tree is dead and the leader's end is not reported")
	}
}

func ended(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
