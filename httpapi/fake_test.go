package httpapi

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"glovebox"
	"glovebox/client"
)

var owner = glovebox.Principal{Tenant: "local", Name: "uid:0", Owner: true}

// byHTTP is the owner as the door tells who asks.
var byHTTP = glovebox.Principal{Tenant: "local", Name: "uid:0", Owner: true, Door: "http"}

// fake is a Service of which each test fills in what it needs.
type fake struct {
	run      func(context.Context, glovebox.Principal, glovebox.Request, glovebox.Sink) (*glovebox.Result, error)
	output   func(run, stream string, offset, limit int64) ([]byte, error)
	artifact func(run, path string) (io.ReadCloser, error)
	trace    func(run string) (*glovebox.Record, error)
	traces   func(glovebox.TraceQuery) ([]glovebox.Record, error)
	verify   func([]glovebox.TraceRef) (*glovebox.Verification, error)
	doctor   func() (*glovebox.Report, error)
	rungs    func() ([]glovebox.Rung, error)
	who      chan glovebox.Principal // gets who asked, if there is room
}

func (f *fake) ask(who glovebox.Principal) {
	select {
	case f.who <- who:
	default:
	}
}

func (f *fake) Run(ctx context.Context, who glovebox.Principal, req glovebox.Request, sink glovebox.Sink) (
	*glovebox.Result, error) {
	f.ask(who)
	return f.run(ctx, who, req, sink)
}

func (f *fake) Output(_ context.Context, who glovebox.Principal, run, stream string, offset, limit int64) ([]byte, error) {
	f.ask(who)
	return f.output(run, stream, offset, limit)
}

func (f *fake) Artifact(_ context.Context, who glovebox.Principal, run, path string) (io.ReadCloser, error) {
	f.ask(who)
	return f.artifact(run, path)
}

func (f *fake) Trace(_ context.Context, who glovebox.Principal, run string) (*glovebox.Record, error) {
	f.ask(who)
	if f.trace == nil {
		return nil, glovebox.Errorf(glovebox.CodeNotFound, "look again", "there is no run %s", run)
	}
	return f.trace(run)
}

func (f *fake) Traces(_ context.Context, who glovebox.Principal, q glovebox.TraceQuery) ([]glovebox.Record, error) {
	f.ask(who)
	return f.traces(q)
}

func (f *fake) Verify(_ context.Context, who glovebox.Principal, heads []glovebox.TraceRef) (*glovebox.Verification, error) {
	f.ask(who)
	return f.verify(heads)
}

func (f *fake) Rungs(context.Context) ([]glovebox.Rung, error) { return f.rungs() }

func (f *fake) Doctor(context.Context) (*glovebox.Report, error) { return f.doctor() }
func (f *fake) Close() error                                     { return nil }

// world is a door on a socket, with a client.
type world struct {
	*fake
	door   *Door
	client *client.Client
	socket string
	log    *bytes.Buffer // read it after stop only
	stop   func()
}

func newWorld(t testing.TB, change ...func(*Config)) *world {
	t.Helper()
	w := &world{fake: &fake{who: make(chan glovebox.Principal, 1)}, log: &bytes.Buffer{}}
	cfg := Config{Service: w.fake, UID: os.Getuid(), Owner: owner, Version: "v9", Digest: "d1",
		Log: slog.New(slog.NewTextHandler(w.log, nil))}
	for _, c := range change {
		c(&cfg)
	}
	var err error
	if w.door, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	w.socket = filepath.Join(shortDir(t), "sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: w.socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- w.door.Serve(l) }()
	w.client = client.New(client.Config{Socket: w.socket, UID: os.Getuid()})
	stopped := false
	w.stop = func() {
		if stopped {
			return
		}
		stopped = true
		w.client.Close()
		ctx, done := context.WithTimeout(t.Context(), 100*time.Millisecond)
		if t.Context().Err() != nil {
			ctx, done = context.WithTimeout(context.Background(), 100*time.Millisecond)
		}
		defer done()
		if _, err := w.door.Stop(ctx); err != nil {
			t.Errorf("stop: %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	}
	t.Cleanup(w.stop)
	return w
}

// shortDir is a folder whose name leaves room for that of a socket.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "door")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// ask sends text as a whole HTTP request on a connection of its own and returns all that is answered.
func (w *world) ask(t *testing.T, text string) string {
	t.Helper()
	c, err := net.Dial("unix", w.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	c.SetReadDeadline(time.Now().Add(20 * time.Second))
	answer, err := io.ReadAll(c)
	if err != nil {
		t.Fatal(err)
	}
	return string(answer)
}

// call asks for a path and returns status line and body.
func (w *world) call(t *testing.T, method, path, body string, headers ...string) (status, answer string) {
	t.Helper()
	var b strings.Builder
	for _, h := range append(headers, "Host: x", "Connection: close") {
		b.WriteString(h + "\r\n")
	}
	if body != "" {
		b.WriteString("Content-Length: " + itoa(len(body)) + "\r\n")
	}
	text := w.ask(t, method+" "+path+" HTTP/1.1\r\n"+b.String()+"\r\n"+body)
	head, rest, _ := strings.Cut(text, "\r\n\r\n")
	status, _, _ = strings.Cut(head, "\r\n")
	return strings.TrimPrefix(status, "HTTP/1.1 "), rest
}

// plainRun ends at once.
func plainRun(context.Context, glovebox.Principal, glovebox.Request, glovebox.Sink) (*glovebox.Result, error) {
	return &glovebox.Result{ID: "run_1", OK: true, Status: glovebox.StatusExited, ExitCode: new(0)}, nil
}

// untilCanceled tells its id and ends when it is cancelled.
func untilCanceled(ctx context.Context, _ glovebox.Principal, _ glovebox.Request, sink glovebox.Sink) (*glovebox.Result, error) {
	sink.Event(glovebox.Event{Kind: "start", Run: "run_1", Time: time.Now()})
	<-ctx.Done()
	return &glovebox.Result{ID: "run_1", Status: glovebox.StatusCanceled, Reason: context.Cause(ctx).Error()}, nil
}

// sinkFunc is a function as a Sink.
type sinkFunc func(glovebox.Event)

func (f sinkFunc) Event(e glovebox.Event) { f(e) }
