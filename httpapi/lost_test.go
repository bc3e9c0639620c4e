package httpapi

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"glovebox"
	"glovebox/client"
)

// What can come between a client and its server.

// TestNotSent: what cannot be sent as it is, or not to this server, is told apart from what a server refuses.
func TestNotSent(t *testing.T) {
	w := newWorld(t)
	w.run = func(context.Context, glovebox.Principal, glovebox.Request, glovebox.Sink) (*glovebox.Result, error) {
		t.Error("it was run")
		return &glovebox.Result{}, nil
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink("/proc/self/status", link); err != nil {
		t.Fatal(err)
	}
	empty, err := os.Create(filepath.Join(t.TempDir(), "empty"))
	if err != nil {
		t.Fatal(err)
	}
	defer empty.Close()
	absent := client.New(client.Config{Socket: w.socket + "x", UID: os.Getuid()})
	others := client.New(client.Config{Socket: w.socket, UID: os.Getuid() + 1})
	otherwise := client.New(client.Config{Socket: w.socket, UID: os.Getuid(), Digest: "d2"})
	input := func(path string) glovebox.Request {
		return glovebox.Request{Code: "1", Inputs: []glovebox.Input{{Name: "x", Path: path}}}
	}
	for name, test := range map[string]struct {
		client *client.Client
		req    glovebox.Request
		code   glovebox.Code
	}{
		"no server":           {absent, glovebox.Request{Code: "1"}, "unavailable"},
		"another's server":    {others, glovebox.Request{Code: "1"}, "denied"},
		"other configuration": {otherwise, glovebox.Request{Code: "1"}, "conflict"},
		"a stream":            {w.client, glovebox.Request{Code: "1", StdinFrom: strings.NewReader("x")}, "unavailable"},
		"an empty file":       {w.client, glovebox.Request{Code: "1", StdinFrom: empty}, "unavailable"},
		"code":                {w.client, glovebox.Request{Code: "\xff"}, "invalid"},
		"an argument":         {w.client, glovebox.Request{Code: "1", Args: []string{"\xff"}}, "invalid"},
		"a variable":          {w.client, glovebox.Request{Code: "1", Env: map[string]string{"A": "\xff"}}, "invalid"},
		"a path":              {w.client, input("/x/\xff"), "invalid"},
		"own file":            {w.client, input("/proc/self/status"), "invalid"},
		"own descriptor":      {w.client, input("/dev/fd/3"), "invalid"},
		"link to own file":    {w.client, input(link), "invalid"},
		"half a millisecond":  {w.client, glovebox.Request{Code: "1", Limits: glovebox.Limits{Wall: time.Microsecond}}, "invalid"},
		"too large":           {w.client, glovebox.Request{Code: strings.Repeat("\x01", 3<<20)}, "invalid"},
	} {
		_, err := test.client.Run(t.Context(), owner, test.req, nil)
		var e *glovebox.Error
		if !errors.Is(err, client.ErrNotSent) || !errors.As(err, &e) || e.Code != test.code || e.Fix == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	w.door.live.drain()
	if _, err := w.client.Run(t.Context(), owner, glovebox.Request{Code: "1"}, nil); !errors.Is(err, client.ErrNotSent) {
		t.Errorf("a server that stops: %v", err)
	}
	for _, who := range []glovebox.Principal{{}, {Tenant: "local", Name: "x"}, {Tenant: "acme", Name: "x", Owner: true}} {
		if _, err := w.client.Run(t.Context(), who, glovebox.Request{Code: "1"}, nil); err == nil || errors.Is(err, client.ErrNotSent) {
			t.Errorf("for %+v: %v", who, err)
		}
	}
}

// TestStdinFile: a small file goes with the request from where it stands, and stands there still.
func TestStdinFile(t *testing.T) {
	w := newWorld(t)
	var got string
	w.run = func(_ context.Context, _ glovebox.Principal, req glovebox.Request, _ glovebox.Sink) (*glovebox.Result, error) {
		got = req.Stdin
		return &glovebox.Result{}, nil
	}
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	f.WriteString("skipped\xff\x00rest")
	f.Seek(7, io.SeekStart)
	for range 2 {
		if _, err := w.client.Run(t.Context(), owner, glovebox.Request{Code: "1", StdinFrom: f}, nil); err != nil || got != "\xff\x00rest" {
			t.Errorf("got %q, %v", got, err)
		}
	}
}

// TestCancelPasses: a cancelled context ends the run, whose result is told, before and after it has an id.
func TestCancelPasses(t *testing.T) {
	for _, started := range []bool{false, true} {
		for _, sink := range []glovebox.Sink{nil, sinkFunc(func(glovebox.Event) {})} {
			w := newWorld(t, func(c *Config) { c.Grace = time.Hour })
			ctx, cancel := context.WithCancel(t.Context())
			w.run = func(run context.Context, who glovebox.Principal, req glovebox.Request, s glovebox.Sink) (*glovebox.Result, error) {
				if started {
					s.Event(glovebox.Event{Kind: "start", Run: "run_1"})
				}
				cancel()
				<-run.Done()
				return &glovebox.Result{ID: "run_1", Status: glovebox.StatusCanceled}, nil
			}
			res, err := w.client.Run(ctx, owner, glovebox.Request{Code: "1"}, sink)
			if err != nil || res.Status != glovebox.StatusCanceled {
				t.Errorf("%+v, %v", res, err)
			}
			cancel()
			w.stop()
		}
	}
}

// TestCanceledBefore: also a context that was over before is told a result, as by an engine.
func TestCanceledBefore(t *testing.T) {
	w := newWorld(t)
	w.run = untilCanceled
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if res, err := w.client.Run(ctx, owner, glovebox.Request{Code: "1"}, nil); err != nil || res.Status != glovebox.StatusCanceled {
		t.Errorf("%+v, %v", res, err)
	}
}

// TestStuckSink: a sink that blocks holds up what is printed, but neither the end of the run nor its cancelling.
func TestStuckSink(t *testing.T) {
	for _, canceled := range []bool{false, true} {
		w := newWorld(t)
		ctx, cancel := context.WithCancel(t.Context())
		var mu sync.Mutex
		rec := &glovebox.Record{ID: "run_1", State: "running"}
		w.trace = func(string) (*glovebox.Record, error) { mu.Lock(); defer mu.Unlock(); c := *rec; return &c, nil }
		w.run = func(ctx context.Context, _ glovebox.Principal, _ glovebox.Request, s glovebox.Sink) (*glovebox.Result, error) {
			s.Event(glovebox.Event{Kind: "start", Run: "run_1"})
			told := make(chan struct{})
			go func() { // as an engine does, which leaves a stuck sink behind
				defer close(told)
				for range 100 {
					s.Event(glovebox.Event{Kind: "stdout", Run: "run_1", Data: make([]byte, 1<<16)})
				}
			}()
			if canceled {
				<-ctx.Done()
			} else {
				select {
				case <-told:
					t.Error("nothing held up the program")
				case <-time.After(300 * time.Millisecond): // its limit
				}
			}
			mu.Lock()
			defer mu.Unlock()
			rec.State, rec.Result = "ended", &glovebox.Result{ID: "run_1", Status: glovebox.StatusWallLimit}
			return rec.Result, nil
		}
		release := make(chan struct{})
		var n atomic.Int64
		res, err := w.client.Run(ctx, owner, glovebox.Request{Code: "1"}, sinkFunc(func(e glovebox.Event) {
			if e.Kind == "stdout" {
				n.Add(1)
				cancelIf(canceled, cancel)
				<-release
			}
		}))
		if err != nil || res.Status != glovebox.StatusWallLimit {
			t.Errorf("%+v, %v", res, err)
		}
		close(release)
		cancel()
		w.stop()
		if n.Load() > 1 {
			t.Errorf("%d events were told after the end", n.Load())
		}
	}
}

func cancelIf(really bool, cancel func()) {
	if really {
		cancel()
	}
}

// TestBrokenAnswer: what an answer that broke off did not tell is fetched from the record, the rest of the output included.
func TestBrokenAnswer(t *testing.T) {
	w := newWorld(t)
	// A proxy between the two cuts the first connection in the middle of the second event.
	socket := shortDir(t) + "/sock"
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for first := true; ; first = false {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s, err := net.Dial("unix", w.socket)
			if err != nil {
				return
			}
			go func() { io.Copy(s, c); s.Close() }()
			go func() {
				defer c.Close()
				if !first {
					io.Copy(c, s)
					return
				}
				buf := make([]byte, 4096)
				for {
					n, err := s.Read(buf)
					if i := strings.Index(string(buf[:n]), "second"); i >= 0 || err != nil {
						c.Write(buf[:max(i, 0)])
						return
					}
					c.Write(buf[:n])
				}
			}()
		}
	}()
	printed := "first é second third"
	want := &glovebox.Result{ID: "run_1", Status: glovebox.StatusExited, ExitCode: new(3)}
	w.run = func(_ context.Context, _ glovebox.Principal, _ glovebox.Request, s glovebox.Sink) (*glovebox.Result, error) {
		s.Event(glovebox.Event{Kind: "start", Run: "run_1"})
		s.Event(glovebox.Event{Kind: "stdout", Run: "run_1", Data: []byte(printed[:9])})
		s.Event(glovebox.Event{Kind: "stdout", Run: "run_1", Data: []byte(printed[9:])})
		return want, nil
	}
	w.trace = func(run string) (*glovebox.Record, error) {
		return &glovebox.Record{ID: run, State: "ended", Result: want}, nil
	}
	w.output = func(_, stream string, offset, limit int64) ([]byte, error) {
		if stream != "stdout" {
			return nil, nil
		}
		return []byte(printed)[offset:], nil
	}
	c := client.New(client.Config{Socket: socket, UID: os.Getuid()})
	defer c.Close()
	got := ""
	res, err := c.Run(t.Context(), owner, glovebox.Request{Code: "1"}, sinkFunc(func(e glovebox.Event) { got += string(e.Data) }))
	if err != nil || got != printed || cmp.Diff(want, res) != "" {
		t.Errorf("%q, %+v, %v", got, res, err)
	}
}

// TestServerDies: then the run's fate is not known, and it is not as if it had not been sent.
func TestServerDies(t *testing.T) {
	socket := shortDir(t) + "/sock"
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		c, err := l.Accept()
		if err == nil {
			c.Read(make([]byte, 100))
			l.Close()
			c.Close()
		}
	}()
	c := client.New(client.Config{Socket: socket, UID: os.Getuid()})
	_, err = c.Run(t.Context(), owner, glovebox.Request{Code: "1"}, nil)
	var e *glovebox.Error
	if !errors.As(err, &e) || e.Code != glovebox.CodeInternal || errors.Is(err, client.ErrNotSent) {
		t.Errorf("%v", err)
	}
}

// TestConnectionIsKept: one run after another takes no second connection.
func TestConnectionIsKept(t *testing.T) {
	w := newWorld(t)
	w.run = func(_ context.Context, _ glovebox.Principal, _ glovebox.Request, s glovebox.Sink) (*glovebox.Result, error) {
		s.Event(glovebox.Event{Kind: "start", Run: "run_1"})
		return &glovebox.Result{}, nil
	}
	for i := range 20 {
		sink := []glovebox.Sink{nil, sinkFunc(func(glovebox.Event) {})}[i%2]
		if _, err := w.client.Run(t.Context(), owner, glovebox.Request{Code: "1"}, sink); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(text, []byte(w.socket)); n != 2 { // who listens, and one that was accepted
		t.Errorf("%d sockets:\n%s", n, slices.Collect(linesWith(string(text), w.socket)))
	}
}

func linesWith(text, part string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for l := range strings.Lines(text) {
			if strings.Contains(l, part) && !yield(l) {
				return
			}
		}
	}
}
