package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"glovebox"
	"glovebox/internal/output"
)

// slot is a terminal that can be read while it is written.
type slot struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *slot) Write(p []byte) (int, error) { s.mu.Lock(); defer s.mu.Unlock(); return s.b.Write(p) }
func (s *slot) Close() error                { return nil }
func (s *slot) take() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.b.Reset()
	return s.b.String()
}

func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var term slot
		s := &screen{began: time.Now(), cancel: func(error) {}, out: &term, errs: &term, status: &term, outTerminal: true,
			errsTerminal: true, stop: make(chan struct{}), stopped: make(chan struct{})}
		go s.progress()
		time.Sleep(900 * time.Millisecond)
		if got := term.take(); got != "" {
			t.Errorf("progress within the first second: %q", got)
		}
		s.Event(glovebox.Event{Kind: "usage", Usage: glovebox.Usage{MemoryPeakBytes: new(int64(41 << 20))}})
		time.Sleep(1200 * time.Millisecond)
		if got := term.take(); !strings.HasSuffix(got, "running 2s, memory peak 41MiB") {
			t.Errorf("got %q", got)
		}
		s.Event(glovebox.Event{Kind: "stdout", Data: []byte("half a line")})
		if got := term.take(); got != "\r\x1b[Khalf a line" {
			t.Errorf("the line is not cleared before output: %q", got)
		}
		time.Sleep(5 * time.Second)
		if got := term.take(); got != "" {
			t.Errorf("drawn over a line that the program has not ended: %q", got)
		}
		s.Event(glovebox.Event{Kind: "stderr", Data: []byte("\n")})
		time.Sleep(time.Second)
		term.take()
		if err := s.close(); err != nil {
			t.Error(err)
		}
		if got := term.take(); got != "\r\x1b[K" {
			t.Errorf("the line is not cleared at the end: %q", got)
		}
	})
}

// blocked is a reader that does not read.
type blocked struct{ release chan struct{} }

func (b blocked) Write(p []byte) (int, error) { <-b.release; return len(p), nil }
func (b blocked) Close() error                { return nil }

func TestStuckWriterIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := blocked{make(chan struct{})}
		s := &screen{out: b, cancel: func(error) {}, stop: make(chan struct{}), stopped: make(chan struct{})}
		close(s.stopped)
		go s.Event(glovebox.Event{Kind: "stdout", Data: []byte("x")})
		synctest.Wait()
		began := time.Now()
		if err := s.close(); !errors.Is(err, errNobodyReads) || time.Since(began) > time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		close(b.release)
	})
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }
func (f failing) Close() error              { return nil }

func TestClosedPipeCancels(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	s := &screen{out: failing{syscall.EPIPE}, errs: failing{io.ErrClosedPipe}, cancel: cancel, stop: make(chan struct{}),
		stopped: make(chan struct{})}
	close(s.stopped)
	s.Event(glovebox.Event{Kind: "stderr", Data: []byte("x")})
	if ctx.Err() != nil {
		t.Error("a closed standard error cancels the run")
	}
	s.Event(glovebox.Event{Kind: "stdout", Data: []byte("x")})
	if !errors.Is(context.Cause(ctx), errNobodyReads) || !errors.Is(s.close(), errNobodyReads) {
		t.Errorf("cause %v", context.Cause(ctx))
	}
}

func TestTerminalIsNeutral(t *testing.T) {
	var b bytes.Buffer
	w := through(&b, true)
	for _, part := range []string{"a\x1b", "]52;c;eA", "==\x07b\x1b[2", "J\n"} {
		if _, err := io.WriteString(w, part); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil || strings.Contains(b.String(), "\x1b") || !strings.HasPrefix(b.String(), "ab") {
		t.Errorf("%q %v", b.String(), err)
	}
	if text, _ := output.Text([]byte(line("x\ny\x1b[2J"))); text != "x y" {
		t.Errorf("%q", text)
	}
}
