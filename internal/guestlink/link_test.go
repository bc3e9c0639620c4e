package guestlink

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"glovebox"
	"glovebox/driver"
)

// pair makes two ends whose Run is running until the test ends.
func pair(t testing.TB, handler Handler) (host, far *Link) {
	t.Helper()
	a, b := net.Pipe()
	host, far = New(a, nil), New(b, handler)
	var running sync.WaitGroup
	running.Go(func() { _ = host.Run() })
	running.Go(func() { _ = far.Run() })
	t.Cleanup(func() {
		_ = host.Close()
		_ = far.Close()
		running.Wait()
	})
	return host, far
}

func TestCalls(t *testing.T) {
	known := glovebox.Errorf(glovebox.CodeUnavailable, "do this", "it cannot be had")
	host, _ := pair(t, func(_ context.Context, method string, args []byte) (any, error) {
		switch method {
		case "echo":
			var s []byte
			err := Decode(args, &s)
			return s, err
		case "known":
			return nil, fmt.Errorf("try: %w", known)
		case "regular":
			return nil, fmt.Errorf("open: %w", driver.ErrNotRegular)
		case "long":
			return strings.Repeat("x", maxAnswer), nil
		}
		return nil, fs.ErrNotExist
	})
	ctx := context.Background()
	var got []byte
	if err := host.Call(ctx, "echo", []byte("a\xff\x00b"), &got); err != nil || string(got) != "a\xff\x00b" {
		t.Errorf("echo = %q, %v", got, err)
	}
	err := host.Call(ctx, "known", nil, nil)
	if e := new(glovebox.Error); !errors.As(err, &e) || e.Public != known.Public || e.Fix != known.Fix || e.Code != known.Code {
		t.Errorf("a known error came as %#v", err)
	}
	if err := host.Call(ctx, "regular", nil, nil); !errors.Is(err, driver.ErrNotRegular) {
		t.Errorf("not regular came as %v", err)
	}
	if err := host.Call(ctx, "nothing", nil, nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("not there came as %v", err)
	}
	if err := host.Call(ctx, "long", nil, nil); err == nil {
		t.Error("an answer beyond its bound came")
	}
	host.Distrust()
	err = host.Call(ctx, "known", nil, nil)
	if e := new(glovebox.Error); err == nil || errors.As(err, &e) {
		t.Errorf("of an end that is not trusted came %#v", err)
	}
}

// TestCallGivenUp: the answer that comes late is nobody's, and harms nobody.
func TestCallGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		ctx, cancel := context.WithCancelCause(context.Background())
		gone := errors.New("gone")
		host, _ := pair(t, func(_ context.Context, method string, _ []byte) (any, error) {
			if method == "slow" {
				cancel(gone)
				<-answer
			}
			return method, nil
		})
		if err := host.Call(ctx, "slow", nil, nil); !errors.Is(err, gone) {
			t.Errorf("given up: %v", err)
		}
		close(answer)
		var got string
		if err := host.Call(context.Background(), "quick", nil, &got); err != nil || got != "quick" {
			t.Errorf("the next = %q, %v", got, err)
		}
	})
}

// TestNobodyReads: an end that does not read keeps nobody who calls longer than they wait, nor anybody else for ever.
func TestNobodyReads(t *testing.T) {
	for name, c := range map[string]struct {
		ahead bool // somebody else is sending
		ends  bool // whether that the caller gives up ends the link
	}{"in the middle of a frame": {false, true}, "behind another": {true, false}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, _ := net.Pipe()
				host := New(a, nil)
				var running sync.WaitGroup
				running.Go(func() { _ = host.Run() })
				if c.ahead {
					w := host.Writer()
					host.mu.Lock()
					w.room = window // which the other end granted before
					host.mu.Unlock()
					running.Go(func() { _, _ = w.Write(make([]byte, window)) })
					synctest.Wait()
				}
				gone, began := errors.New("gone"), time.Now()
				ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, gone)
				defer cancel()
				if err := host.Call(ctx, "x", nil, nil); !errors.Is(err, gone) || time.Since(began) != time.Second {
					t.Errorf("after %v: %v", time.Since(began), err)
				}
				if host.Alive() == c.ends {
					t.Errorf("alive: %v", host.Alive())
				}
				running.Wait()
				if since := time.Since(began); c.ahead && since != stallLimit {
					t.Errorf("who waits for nothing ended after %v", since)
				}
			})
		})
	}
}

// TestStream: all arrives in order, however slowly it is read, and nobody else waits for whoever does not read.
func TestStream(t *testing.T) {
	host, far := pair(t, nil)
	idle, r := host.Reader(), host.Reader()
	stuck, err := far.WriterOf(idle.ID())
	if err != nil {
		t.Fatal(err)
	}
	w, err := far.WriterOf(r.ID())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := far.WriterOf(r.ID()); err == nil {
		t.Error("a stream was opened twice")
	}
	want := strings.Repeat("0123456789", 10*window/10)
	var writing sync.WaitGroup
	writing.Go(func() { _, _ = io.WriteString(stuck, want) })
	writing.Go(func() { _, _ = io.WriteString(w, want); _ = w.Close() })
	got, err := io.ReadAll(r)
	if err != nil || string(got) != want {
		t.Errorf("%d of %d bytes, %v", len(got), len(want), err)
	}
	if err := idle.Close(); err != nil {
		t.Error(err)
	}
	writing.Wait() // a writer that nobody reads ends
	if _, err := stuck.Write([]byte("x")); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("write to nobody: %v", err)
	}
}

// TestStreamToFar: of a stream that the host writes nothing is sent before the other end has opened its own.
func TestStreamToFar(t *testing.T) {
	host, far := pair(t, nil)
	w := host.Writer()
	var writing sync.WaitGroup
	writing.Go(func() { _, _ = io.WriteString(w, "text"); _ = w.Close() })
	r, err := far.ReaderOf(w.ID())
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(r); err != nil || string(got) != "text" {
		t.Errorf("%q, %v", got, err)
	}
	writing.Wait()
}

// TestEnd: whoever waits learns that the link has ended.
func TestEnd(t *testing.T) {
	host, far := pair(t, func(ctx context.Context, _ string, _ []byte) (any, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
	r, w := host.Reader(), host.Writer()
	var waiting sync.WaitGroup
	waiting.Go(func() {
		var ended *EndedError
		if err := host.Call(context.Background(), "wait", nil, nil); !errors.As(err, &ended) {
			t.Errorf("call: %v", err)
		}
	})
	waiting.Go(func() {
		if n, err := r.Read(make([]byte, 1)); n != 0 || err != io.EOF {
			t.Errorf("read: %d, %v", n, err)
		}
	})
	waiting.Go(func() {
		if _, err := w.Write([]byte("x")); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("write: %v", err)
		}
	})
	if err := far.Close(); err != nil {
		t.Error(err)
	}
	waiting.Wait()
	if host.Alive() {
		t.Error("it lives on")
	}
}

// frame is one as it is on the wire.
func frame(kind byte, id uint32, body string) string {
	b := binary.LittleEndian.AppendUint32([]byte{kind}, id)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(body)))
	return string(b) + body
}

// TestRulesAreHeld: each rule that is broken ends the link.
func TestRulesAreHeld(t *testing.T) {
	credit := func(n uint32) string { return string(binary.LittleEndian.AppendUint32(nil, n)) }
	for name, sent := range map[string]string{
		"unknown kind":          frame(9, 1, ""),
		"kind zero":             frame(0, 1, ""),
		"a call to the host":    frame(kindCall, 1, "\x01a{}"),
		"an answer to nobody":   frame(kindAnswer, 77, "{}"),
		"bytes of no stream":    frame(kindData, 77, "x"),
		"the end of no stream":  frame(kindEnd, 77, ""),
		"data beyond its bound": frame(kindData, 1, strings.Repeat("x", maxData+1)),
		"an end with bytes":     frame(kindEnd, 1, "x"),
		"a credit of 3 bytes":   frame(kindCredit, 2, "abc"),
		"a credit too large":    frame(kindCredit, 2, credit(window+1)),
		"credits too large":     frame(kindCredit, 2, credit(window)) + frame(kindCredit, 2, credit(1)),
		"beyond the window":     strings.Repeat(frame(kindData, 1, strings.Repeat("x", maxData)), window/maxData+1),
		"after the end":         frame(kindEnd, 1, "") + frame(kindData, 1, "x"),
	} {
		a, b := net.Pipe()
		l := New(a, nil)
		if r, w := l.Reader(), l.Writer(); r.ID() != 1 || w.ID() != 2 {
			t.Fatal("other numbers")
		}
		var writing sync.WaitGroup
		writing.Go(func() { _, _ = io.WriteString(b, sent) })
		if err := l.Run(); !errors.Is(err, errProtocol) {
			t.Errorf("%s: %v", name, err)
		}
		_ = b.Close()
		writing.Wait()
	}
}

// TestServesSoMany: an end that floods the agent with calls loses it.
func TestServesSoMany(t *testing.T) {
	a, b := net.Pipe()
	l := New(a, func(ctx context.Context, _ string, _ []byte) (any, error) { <-ctx.Done(); return nil, nil })
	var writing sync.WaitGroup
	writing.Go(func() {
		for i := range uint32(maxServed + 1) {
			_, _ = io.WriteString(b, frame(kindCall, i, "\x01a{}"))
		}
	})
	if err := l.Run(); !errors.Is(err, errProtocol) {
		t.Error(err)
	}
	_ = b.Close()
	writing.Wait()
}

func TestDecodeIsStrict(t *testing.T) {
	for text, fine := range map[string]bool{`{"Version":"a"}`: true, `{"Version":"a","Other":1}`: false, `{"Version":"a"}{}`: false,
		`{"Version":1}`: false, ``: false, `{`: false} {
		var h Hello
		if err := Decode([]byte(text), &h); (err == nil) != fine {
			t.Errorf("%q: %v", text, err)
		}
	}
	s := Start{Spec: driver.Spec{ID: "a", Root: driver.Root{Files: []driver.File{{Path: "/a", Data: []byte{0xff, 0}}}}},
		Hold: &driver.Hold{Lang: "python", Command: driver.Command{Argv: []string{"x"}}}}
	body, err := encodeCall("m", s)
	if err != nil {
		t.Fatal(err)
	}
	method, args, err := splitCall(body)
	var got Start
	if err != nil || method != "m" || Decode(args, &got) != nil {
		t.Fatalf("%q %v", method, err)
	}
	if d := cmp.Diff(s, got); d != "" {
		t.Errorf("(-sent +got):\n%s", d)
	}
}

type half struct {
	io.Reader
	io.Writer
}

func (half) Close() error { return nil }

// FuzzHost: whatever a guest sends, the host's end ends with an error and keeps no more than its windows.
func FuzzHost(f *testing.F) {
	f.Add([]byte(frame(kindData, 1, "abc") + frame(kindEnd, 1, "")))
	f.Add([]byte(frame(kindAnswer, 3, `{"Result":{"Code":1}}`)))
	f.Add([]byte(frame(kindCredit, 2, "\x00\x01\x00\x00") + frame(kindStop, 2, "")))
	f.Fuzz(func(t *testing.T, sent []byte) {
		l := New(half{strings.NewReader(string(sent)), io.Discard}, nil)
		r, w := l.Reader(), l.Writer()
		answer := make(chan []byte, 1)
		l.calls[3] = answer
		if err := l.Run(); err == nil {
			t.Error("the link has not ended")
		}
		if len(r.buf) > window || w.room > window {
			t.Errorf("%d bytes and room of %d", len(r.buf), w.room)
		}
		select {
		case b := <-answer:
			var e driver.Exit
			_ = l.decodeAnswer(b, &e)
		default:
		}
	})
}

// FuzzAgent: likewise for the agent's end, which also serves calls.
func FuzzAgent(f *testing.F) {
	f.Add([]byte(frame(kindCall, 1, "\x04exec{}")))
	f.Fuzz(func(t *testing.T, sent []byte) {
		l := New(half{strings.NewReader(string(sent)), io.Discard}, func(_ context.Context, _ string, args []byte) (any, error) {
			var e Exec
			return e, Decode(args, &e)
		})
		if err := l.Run(); err == nil {
			t.Error("the link has not ended")
		}
	})
}
