package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"glovebox"
	"glovebox/internal/output"
)

// screen shows a run as it goes: the program's output as it comes and, on a terminal, one line of progress that is gone
// before anything else is shown. It implements glovebox.Sink.
type screen struct {
	began  time.Time
	cancel context.CancelCauseFunc // ends the run when nobody reads standard output

	mu           sync.Mutex
	out, errs    io.WriteCloser // what the program's streams go through; nil: not shown
	status       io.Writer      // the terminal of the progress line; nil: none
	drawn        bool           // a progress line is on the terminal
	midLine      bool           // the program left a terminal in the middle of a line
	errsMid      bool           // the last that went where errs goes did not end its line
	joined       bool           // both streams go to the same place
	outTerminal  bool
	errsTerminal bool
	memory       *int64
	failed       error // the first failure to write standard output
	stop         chan struct{}
	stopped      chan struct{}
}

// errNobodyReads is why a run is cancelled whose standard output was closed.
var errNobodyReads = errors.New("nobody reads standard output any more")

const (
	quietStart  = time.Second            // a run shorter than this shows no progress
	redrawEvery = 500 * time.Millisecond // about twice for each sample
)

// newScreen starts showing a run. The caller closes it.
func (a *app) newScreen(r *runFlags, cancel context.CancelCauseFunc) *screen {
	s := &screen{began: time.Now(), cancel: cancel, stop: make(chan struct{}), stopped: make(chan struct{}),
		outTerminal: isTerminal(a.out), errsTerminal: isTerminal(a.errs), joined: sameFile(a.out, a.errs)}
	if !a.json {
		s.out, s.errs = through(a.out, s.outTerminal && !r.raw), through(a.errs, s.errsTerminal && !r.raw)
	}
	if s.errsTerminal && !r.quiet {
		s.status = a.errs
		go s.progress()
	} else {
		close(s.stopped)
	}
	return s
}

// through makes what is written inert if it goes to a terminal, and leaves it exact if not.
func through(w io.Writer, neutral bool) io.WriteCloser {
	if neutral {
		return output.Terminal(w)
	}
	return exact{w}
}

// exact passes bytes on.
type exact struct{ io.Writer }

func (exact) Close() error { return nil }

// Event shows output and keeps what the progress line tells.
func (s *screen) Event(e glovebox.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch e.Kind {
	case "stdout":
		if err := s.show(s.out, e.Data, s.outTerminal, s.joined); err != nil && s.failed == nil {
			s.failed = err
			if errors.Is(err, syscall.EPIPE) {
				s.failed = errNobodyReads
			}
			s.cancel(s.failed)
		}
	case "stderr":
		// Nobody is left to be told that this cannot be shown; the Result has it.
		_ = s.show(s.errs, e.Data, s.errsTerminal, true)
	case "usage":
		s.memory = e.Usage.MemoryPeakBytes
	}
}

// show writes a piece of a stream, which may go to a terminal and to where errs goes. s.mu is held.
func (s *screen) show(w io.Writer, p []byte, terminal, errs bool) error {
	if w == nil || len(p) == 0 {
		return nil
	}
	s.clear()
	if terminal {
		s.midLine = p[len(p)-1] != '\n'
	}
	if errs {
		s.errsMid = p[len(p)-1] != '\n'
	}
	_, err := w.Write(p)
	return err
}

// progress draws the line until stop is closed.
func (s *screen) progress() {
	defer close(s.stopped)
	t := time.NewTimer(quietStart)
	defer t.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-t.C:
			t.Reset(redrawEvery)
			// While output waits for its reader there is nothing to draw, and this must not wait with it.
			if s.mu.TryLock() {
				s.draw()
				s.mu.Unlock()
			}
		}
	}
}

// draw shows the line, but never over a line that the program has not ended. s.mu is held.
func (s *screen) draw() {
	if s.midLine {
		return
	}
	text := fmt.Sprintf("running %s", time.Since(s.began).Truncate(time.Second))
	if s.memory != nil {
		text += fmt.Sprintf(", memory peak %s", glovebox.Size(*s.memory))
	}
	fmt.Fprintf(s.status, "\r\x1b[K%s", text)
	s.drawn = true
}

// clear removes the line. s.mu is held.
func (s *screen) clear() {
	if s.drawn {
		fmt.Fprint(s.status, "\r\x1b[K")
		s.drawn = false
	}
}

// close ends the showing and returns the failure to write standard output, if any. A write that is stuck because its reader
// does not read is left behind after a moment: the run has been cancelled then, and this process ends next.
func (s *screen) close() error {
	close(s.stop)
	deadline := time.Now().Add(250 * time.Millisecond)
	for !s.mu.TryLock() {
		if time.Now().After(deadline) {
			return errNobodyReads
		}
		time.Sleep(5 * time.Millisecond)
	}
	defer s.mu.Unlock()
	<-s.stopped
	s.clear()
	for _, w := range []io.WriteCloser{s.out, s.errs} {
		if w == nil {
			continue
		}
		if err := w.Close(); err != nil && s.failed == nil && w == s.out {
			s.failed = err
		}
	}
	return s.failed
}

// sameFile reports whether both are the same open file, pipe or terminal.
func sameFile(a, b io.Writer) bool {
	f, ok := a.(*os.File)
	g, also := b.(*os.File)
	if !ok || !also {
		return false
	}
	one, err := f.Stat()
	other, err2 := g.Stat()
	return err == nil && err2 == nil && os.SameFile(one, other)
}

// isTerminal reports whether w is a terminal.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
