package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"glovebox"
)

var owner1 = glovebox.Principal{Tenant: "local", Name: "uid:0", Owner: true}

type sinkFunc func(glovebox.Event)

func (f sinkFunc) Event(e glovebox.Event) { f(e) }

// answering is a client of a server that answers each connection with text, whatever is asked.
func answering(t *testing.T, text string) *Client {
	t.Helper()
	dir, err := os.MkdirTemp("", "client")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Read(make([]byte, 4096))
			io.WriteString(c, text)
			c.Close()
		}
	}()
	c := New(Config{Socket: socket, UID: os.Getuid()})
	t.Cleanup(func() { c.Close(); l.Close(); <-ended })
	return c
}

// TestForeignAnswers: what is no answer of a door is an internal error, however it is wrong; never a result, never "not sent".
func TestForeignAnswers(t *testing.T) {
	stream := func(events string) string {
		return "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + events
	}
	for name, text := range map[string]string{
		"nothing":          "",
		"no HTTP":          "hello\n",
		"page":             "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 6\r\n\r\n<html>",
		"unknown code":     "HTTP/1.1 400 Bad Request\r\n\r\n" + `{"error":{"code":"gone","message":"m","fix":"f"}}`,
		"no code":          "HTTP/1.1 403 Forbidden\r\n\r\n{}",
		"no result":        stream(""),
		"half a result":    stream("event: result\ndata: {\"id\":\"run_1\""),
		"half a line":      stream("event: result\ndata: {}"),
		"bad result":       stream("event: result\ndata: []\n\n"),
		"bad event":        stream("event: stdout\ndata: []\n\n"),
		"unknown event":    stream("event: magic\ndata: {}\n\n"),
		"event of no kind": stream("data: {}\n\n"),
		"bad error":        stream("event: error\ndata: {\"error\":{\"code\":\"gone\"}}\n\n"),
	} {
		c := answering(t, text)
		res, err := c.Run(t.Context(), owner1, glovebox.Request{Code: "1"}, sinkFunc(func(glovebox.Event) {}))
		var e *glovebox.Error
		if res != nil || !errors.As(err, &e) || e.Code != glovebox.CodeInternal || errors.Is(err, ErrNotSent) || e.Fix == "" {
			t.Errorf("%s: %+v, %v", name, res, err)
		}
	}
	c := answering(t, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}")
	if res, err := c.Run(t.Context(), owner1, glovebox.Request{Code: "1"}, nil); res != nil || err == nil {
		t.Errorf("half an answer: %+v, %v", res, err)
	}
	if _, err := c.Doctor(t.Context()); err == nil {
		t.Error("half a report was taken for a whole")
	}
	if piece, err := c.Output(t.Context(), owner1, "r", "stdout", 0, 9); err == nil {
		t.Errorf("half a piece was taken for a whole: %q", piece)
	}
}

// TestSilence: a server that says nothing for too long is given up, but not while the sink is what takes the time.
func TestSilence(t *testing.T) {
	for name, test := range map[string]struct {
		every time.Duration // between the comments of the server
		sink  time.Duration // that the sink takes
		quiet bool
	}{
		"comments": {10 * time.Second, 0, false},
		"silence":  {quietMost + time.Second, 0, true},
		"sink":     {time.Second, 10 * quietMost, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				from, to := io.Pipe()
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					fmt.Fprint(to, "event: stdout\ndata: {\"text\":\"x\"}\n\n")
					for range 20 {
						time.Sleep(test.every)
						fmt.Fprint(to, ": alive\n\n")
					}
					fmt.Fprint(to, "event: result\ndata: {\"id\":\"run_1\"}\n\n")
					to.Close()
				}()
				a := &attempt{heard: map[string]int64{}, sink: sinkFunc(func(glovebox.Event) { time.Sleep(test.sink) })}
				res, err := a.listen(from, func(cause error) { to.CloseWithError(cause) })
				if quiet := errors.Is(err, errQuiet); quiet != test.quiet || !quiet && (err != nil || res.ID != "run_1") {
					t.Errorf("%+v, %v", res, err)
				}
				from.Close() // the server's writes fail
				<-ended
			})
		})
	}
}

// TestLateResult: a server that takes a cancellation and never tells the result is given up in the end.
func TestLateResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &attempt{Client: New(Config{Socket: "/nowhere"}), heard: map[string]int64{}}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		begun := time.Now()
		o, waited := a.watch(ctx, t.Context(), make(chan outcome))
		if waited || o.err == nil || time.Since(begun) != cancelWait {
			t.Errorf("%+v, %v, after %v", o, waited, time.Since(begun))
		}
	})
}

// TestCancelAgain: a cancellation that comes before the run is passed on again.
func TestCancelAgain(t *testing.T) {
	dir, err := os.MkdirTemp("", "client")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	l, err := net.Listen("unix", filepath.Join(dir, "sock"))
	if err != nil {
		t.Fatal(err)
	}
	asked, canceled := 0, make(chan struct{})
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "POST" {
			<-canceled
			io.WriteString(w, `{"id":"run_1","status":"canceled"}`)
			return
		}
		if asked++; asked < 3 { // one at a time
			w.WriteHeader(404)
			io.WriteString(w, `{"error":{"code":"not_found"}}`)
			return
		}
		w.WriteHeader(202)
		close(canceled)
	})}
	ended := make(chan error)
	go func() { ended <- server.Serve(l) }()
	c := New(Config{Socket: filepath.Join(dir, "sock"), UID: os.Getuid()})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	res, err := c.Run(ctx, owner1, glovebox.Request{Code: "1"}, nil)
	if err != nil || res.Status != glovebox.StatusCanceled || asked != 3 {
		t.Errorf("%+v, %v, asked %d times", res, err, asked)
	}
	c.Close()
	server.Close()
	<-ended
}

func FuzzListen(f *testing.F) {
	f.Add("event: start\ndata: {\"run\":\"r\",\"limits\":{\"wall_ms\":1}}\n\nevent: stdout\ndata: {\"data_base64\":\"/w==\"}\n\n")
	f.Add(": alive\n\nevent: result\ndata: {\"id\":\"run_1\",\"limits\":{}}\n\n")
	f.Add("event: error\ndata: {\"error\":{\"code\":\"internal\"}}\n\n")
	f.Fuzz(func(t *testing.T, text string) {
		a := &attempt{heard: map[string]int64{}, sink: sinkFunc(func(glovebox.Event) {})}
		res, err := a.listen(strings.NewReader(text), func(error) {})
		if (res == nil) == (err == nil) {
			t.Errorf("%+v, %v", res, err)
		}
	})
}
