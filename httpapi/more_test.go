package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"glovebox"
)

// TestBeat: whoever waits is told now and then that somebody is there, also before the run has begun.
func TestBeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := httptest.NewRecorder()
		d := &Door{cfg: Config{Log: slog.New(slog.DiscardHandler)}}
		s := newStream(&call{Door: d, w: w, r: httptest.NewRequest("POST", "/v1/runs", nil), rc: http.NewResponseController(w)}, &live{})
		time.Sleep(3*beatTime + time.Second)
		if err := s.end(nil, glovebox.Errorf(glovebox.CodeExhausted, "later", "no room")); err != nil {
			t.Errorf("after a beat an error is an event, not %v", err)
		}
		body := w.Body.String()
		if strings.Count(body, ": alive\n\n") != 3 || !strings.Contains(body, `event: error`+"\n"+`data: {"error":{"code":"exhausted"`) {
			t.Errorf("it was told %q", body)
		}
	})
}

// TestStuckClient: a client that does not read does not keep the door from ending.
func TestStuckClient(t *testing.T) {
	s := &stream{stop: make(chan struct{}), stopped: make(chan struct{})}
	w := &stuckWriter{header: http.Header{}, freed: make(chan struct{})}
	d := &Door{cfg: Config{Log: slog.New(slog.DiscardHandler)}}
	s.call = &call{Door: d, w: w, r: httptest.NewRequest("POST", "/v1/runs", nil), rc: http.NewResponseController(w)}
	s.run = &live{}
	close(s.stopped)
	told := make(chan struct{})
	w.begun = make(chan struct{})
	go func() {
		defer close(told)
		s.Event(glovebox.Event{Kind: "stdout", Data: []byte("x")})
	}()
	<-w.begun
	func() {
		defer func() {
			if got := recover(); got != http.ErrAbortHandler {
				t.Errorf("the answer ended with %v", got)
			}
		}()
		s.end(&glovebox.Result{}, nil)
	}()
	<-told
	s.Event(glovebox.Event{Kind: "stdout", Data: []byte("y")}) // which goes nowhere
	if w.writes != 1 {
		t.Errorf("%d writes", w.writes)
	}
}

// stuckWriter writes nothing until it has a deadline, and then fails.
type stuckWriter struct {
	header http.Header
	begun  chan struct{}
	freed  chan struct{}
	writes int
}

func (w *stuckWriter) Header() http.Header { return w.header }
func (w *stuckWriter) WriteHeader(int)     {}
func (w *stuckWriter) Write([]byte) (int, error) {
	w.writes++
	close(w.begun)
	<-w.freed
	return 0, errors.New("timeout")
}

func (w *stuckWriter) SetWriteDeadline(at time.Time) error {
	if !at.IsZero() {
		close(w.freed)
	}
	return nil
}

// TestPanic: a fault in the service ends one connection, is logged, and leaves no run behind.
func TestPanic(t *testing.T) {
	w := newWorld(t)
	w.run = func(ctx context.Context, who glovebox.Principal, req glovebox.Request, s glovebox.Sink) (*glovebox.Result, error) {
		if req.Code == "panic" {
			panic("fault")
		}
		return plainRun(ctx, who, req, s)
	}
	if _, err := w.client.Run(t.Context(), owner, glovebox.Request{Code: "panic"}, nil); err == nil {
		t.Error("there is a result")
	}
	if _, err := w.client.Run(t.Context(), owner, glovebox.Request{Code: "1"}, nil); err != nil {
		t.Error(err)
	}
	if w.door.Live() != 0 {
		t.Error("a run is left")
	}
	w.stop()
	if !strings.Contains(w.log.String(), "fault") {
		t.Errorf("the log: %s", w.log)
	}
}

// FuzzDecodeRequest: whatever is sent is read or refused as invalid, and what is read means the same to plain JSON.
func FuzzDecodeRequest(f *testing.F) {
	f.Add(`{"lang":"python","code":"…","args":["a"],"env":{"A":"b"},"inputs":[{"name":"x","path":"/x"}],"limits":{"wall_ms":1,"cpus":0.5}}`)
	f.Add(`{"argv":["a"],"stdin_base64":"/w==","collect":false,"code_name":"x.py","secrets":[{"name":"A","host":"b"}],"inputs":null}`)
	f.Add(`{"code":"1","code":"2"}`)
	f.Fuzz(func(t *testing.T, text string) {
		got, err := decodeRequest([]byte(text))
		var e *glovebox.Error
		if err != nil {
			if !errors.As(err, &e) || e.Code != glovebox.CodeInvalid || e.Fix == "" {
				t.Errorf("refused with %v", err)
			}
			return
		}
		want := struct {
			glovebox.Request
			CodeName string `json:"code_name"`
			Collect  *bool  `json:"collect"`
			Stdin    string `json:"stdin"`
			Raw      []byte `json:"stdin_base64"`
		}{}
		if err := json.Unmarshal([]byte(text), &want); err != nil {
			t.Skip("read where the standard library has a stricter type: ", err) // a newline in base64, a null limit
		}
		want.Request.CodeName, want.Request.Collect = want.CodeName, want.Collect == nil || *want.Collect
		if want.Request.Stdin = want.Stdin; len(want.Raw) > 0 {
			want.Request.Stdin = string(want.Raw)
		}
		if diff := cmp.Diff(want.Request, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%q is read as another: %s", text, diff)
		}
	})
}

// TestRunOutlivesNoClient: a client that stays and reads nothing holds up a run until its wall clock is over and a while, not
// for ever.
func TestRunOutlivesNoClient(t *testing.T) {
	w := newWorld(t)
	ended := make(chan struct{})
	w.run = func(_ context.Context, _ glovebox.Principal, _ glovebox.Request, sink glovebox.Sink) (*glovebox.Result, error) {
		defer close(ended)
		const wall = time.Second/2 - answerTime // so that the while is over soon
		sink.Event(glovebox.Event{Kind: "start", Run: "run_1", Limits: glovebox.Limits{Wall: wall}})
		for range 64 { // more than a socket holds
			sink.Event(glovebox.Event{Kind: "stdout", Run: "run_1", Data: bytes.Repeat([]byte("x"), 1<<20)})
		}
		return &glovebox.Result{ID: "run_1"}, nil
	}
	c, err := net.Dial("unix", w.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	io.WriteString(c, "POST /v1/runs HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\nContent-Length: 12\r\n\r\n{\"code\":\"x\"}")
	select {
	case <-ended:
	case <-time.After(5 * time.Second):
		t.Error("the run is held up")
	}
}

// examples are the pieces of JSON that docs/serve.md shows: a request and a result.
func examples(t *testing.T) (request, result string) {
	t.Helper()
	text, err := os.ReadFile("../docs/serve.md")
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(string(text), "\n```json\n")
	if len(parts) != 3 {
		t.Fatalf("docs/serve.md has %d pieces of JSON, want 2", len(parts)-1)
	}
	request, _, _ = strings.Cut(parts[1], "```")
	result, _, _ = strings.Cut(parts[2], "```")
	return request, result
}

// TestDocumented: what the manual shows is what is spoken.
func TestDocumented(t *testing.T) {
	w := newWorld(t)
	request, result := examples(t)
	want := glovebox.Request{Lang: "python", Args: []string{"unit.txt"}, Env: map[string]string{"UNIT": "EUR"}, Collect: true,
		Inputs: []glovebox.Input{{Name: "sales.csv", Content: "3.20\n4.10\n"}},
		Limits: glovebox.Limits{Wall: 5 * time.Second, Memory: 256 * glovebox.MiB}}
	w.run = func(_ context.Context, _ glovebox.Principal, got glovebox.Request, _ glovebox.Sink) (*glovebox.Result, error) {
		if !strings.HasPrefix(got.Code, "import os, sys\n") {
			t.Errorf("code %q", got.Code)
		}
		got.Code = ""
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		d := json.NewDecoder(strings.NewReader(result))
		d.DisallowUnknownFields()
		var res glovebox.Result
		if err := d.Decode(&res); err != nil {
			t.Errorf("the result: %v", err)
		}
		return &res, nil
	}
	status, answer := w.call(t, "POST", "/v1/runs", request)
	if status != "200 OK" {
		t.Fatal(status, answer)
	}
	// Each field that is answered is shown, and no other.
	names := func(text string) []string {
		var fields map[string]json.RawMessage
		if err := json.Unmarshal([]byte(text), &fields); err != nil {
			t.Fatal(err)
		}
		return slices.Sorted(maps.Keys(fields))
	}
	if diff := cmp.Diff(names(answer), names(result)); diff != "" {
		t.Error(diff)
	}
}

// TestFieldsAreDocumented: the manual names every field of a request, and with it every limit.
func TestFieldsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../docs/serve.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, ask := range []string{`{"":1}`, `{"limits":{"":1}}`, `{"inputs":[{"":1}]}`} {
		_, err := decodeRequest([]byte(ask))
		var known *glovebox.Error
		if !errors.As(err, &known) {
			t.Fatalf("%s: %v", ask, err)
		}
		_, list, ok := strings.Cut(known.Fix, "the fields here are ")
		if !ok {
			t.Fatalf("%s: %s", ask, known.Fix)
		}
		for name := range strings.SplitSeq(list, ", ") {
			if !strings.Contains(string(text), "`"+name+"`") && !strings.Contains(string(text), `"`+name+`"`) {
				t.Errorf("docs/serve.md does not tell of %s", name)
			}
		}
	}
}
