package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"glovebox"
)

func itoa(n int) string { return strconv.Itoa(n) }

// TestRefusals: what is wrong is named with what mends it, and no run comes of it.
func TestRefusals(t *testing.T) {
	w := newWorld(t)
	w.run = func(context.Context, glovebox.Principal, glovebox.Request, glovebox.Sink) (*glovebox.Result, error) {
		t.Error("it was run")
		return nil, errors.New("run")
	}
	post := func(body string) [3]string { return [3]string{"POST", "/v1/runs", body} }
	for name, test := range map[string]struct {
		ask          [3]string
		headers      []string
		status, says string
	}{
		"unknown field":       {post(`{"cod":"1"}`), nil, "400", `did you mean code?`},
		"unknown limit":       {post(`{"limits":{"wall":1}}`), nil, "400", `did you mean limits.wall_ms?`},
		"unknown of input":    {post(`{"inputs":[{"name":"a"},{"pth":"x"}]}`), nil, "400", `did you mean inputs[1].path?`},
		"principal":           {post(`{"code":"1","principal":{"owner":true}}`), nil, "400", `there is no field`},
		"wrong case":          {post(`{"Code":"1"}`), nil, "400", `did you mean code?`},
		"twice":               {post(`{"code":"1","code":"2"}`), nil, "400", `code is there twice`},
		"wrong kind":          {post(`{"code":1}`), nil, "400", `code cannot be number`},
		"list for object":     {post(`[]`), nil, "400", `the request is no object`},
		"object for list":     {post(`{"inputs":{}}`), nil, "400", `inputs is no list`},
		"two objects":         {post(`{"code":"1"}{}`), nil, "400", `something follows`},
		"cut":                 {post(`{"code":"1"`), nil, "400", `no JSON at byte`},
		"not JSON":            {post(`code`), nil, "400", `no JSON at byte`},
		"empty":               {post(``), nil, "400", `the body is empty`},
		"not UTF-8":           {post("{\"code\":\"\xff\"}"), nil, "400", `not UTF-8`},
		"too long a time":     {post(`{"limits":{"wall_ms":9223372036854775807}}`), nil, "400", `limits.wall_ms is beyond`},
		"two inputs":          {post(`{"stdin":"a","stdin_base64":"YQ=="}`), nil, "400", `both set`},
		"no base64":           {post(`{"stdin_base64":"?"}`), nil, "400", `stdin_base64 is not base64`},
		"parts":               {post(`x`), []string{"Content-Type: multipart/form-data; boundary=x"}, "503", `not available in this version`},
		"bad handle":          {post(`{"code":"1"}`), []string{"Glovebox-Handle: ../../../etc/passwd"}, "400", `no handle`},
		"other configuration": {post(`{"code":"1"}`), []string{"Glovebox-Config: d2"}, "409", `another configuration`},
		"list of runs":        {[3]string{"GET", "/v1/runs"}, nil, "503", `GET /v1/traces`},
		"method":              {[3]string{"PUT", "/v1/runs"}, nil, "400", `use POST`},
		"sessions":            {[3]string{"POST", "/v1/sessions"}, nil, "503", `/v1/sessions is not available`},
		"session files":       {[3]string{"GET", "/v1/sessions/s/files/x"}, nil, "503", `/v1/sessions is not available`},
		"events":              {[3]string{"GET", "/v1/runs/run_1/events"}, nil, "503", `events is not available`},
		"mcp":                 {[3]string{"POST", "/mcp"}, nil, "503", `/mcp is not available`},
		"metrics":             {[3]string{"GET", "/metrics"}, nil, "503", `/metrics is not available`},
		"console":             {[3]string{"GET", "/"}, nil, "503", `/ is not available`},
		"nothing":             {[3]string{"GET", "/v2/runs"}, nil, "404", `there is nothing`},
		"dots":                {[3]string{"GET", "/v1/traces/.."}, nil, "404", `there is no run ..`},
		"bad escape":          {[3]string{"GET", "/v1/traces/%zz"}, nil, "400", ``},
		"unknown parameter":   {[3]string{"GET", "/v1/traces?limt=3"}, nil, "400", `did you mean limit?`},
		"parameter twice":     {[3]string{"GET", "/v1/traces?limit=3&limit=4"}, nil, "400", `twice`},
		"no number":           {[3]string{"GET", "/v1/runs/run_1/output?offset=x"}, nil, "400", `offset cannot be`},
		"no time":             {[3]string{"GET", "/v1/traces?since=monday"}, nil, "400", `since cannot be`},
		"no status":           {[3]string{"GET", "/v1/traces?status=foo"}, nil, "400", `one of exited, signaled, wall_limit`},
		"almost a status":     {[3]string{"GET", "/v1/traces?status=wall"}, nil, "400", `\"wall\" is no status`},
		"no run to cancel":    {[3]string{"DELETE", "/v1/runs/run_9"}, nil, "404", `there is no run run_9`},
	} {
		t.Run(name, func(t *testing.T) {
			status, answer := w.call(t, test.ask[0], test.ask[1], test.ask[2], test.headers...)
			if !strings.HasPrefix(status, test.status+" ") || !strings.Contains(answer, test.says) {
				t.Errorf("got %s\n%s\nwant %s and %q", status, answer, test.status, test.says)
			}
			if test.says != "" && !strings.HasPrefix(answer, `{"error":{"code":"`) {
				t.Errorf("no error: %s", answer)
			}
		})
	}
}

// TestTooLarge: a body is not read beyond what a request may hold, said or not.
func TestTooLarge(t *testing.T) {
	w := newWorld(t)
	head := "POST /v1/runs HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
	got := w.ask(t, head+"Content-Length: 16777217\r\n\r\n")
	if !strings.HasPrefix(got, "HTTP/1.1 400") || !strings.Contains(got, "more than 16MiB") {
		t.Errorf("said: %s", got)
	}
	big := `{"code":"` + strings.Repeat("x", 1<<24) + `"}`
	got = w.ask(t, head+"Transfer-Encoding: chunked\r\n\r\n"+fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(big), big))
	if !strings.HasPrefix(got, "HTTP/1.1 400") || !strings.Contains(got, "more than 16MiB") {
		t.Errorf("not said: %s", got)
	}
}

// TestWho: who asks is said by the connection, and nobody else is answered.
func TestWho(t *testing.T) {
	w := newWorld(t)
	w.run = plainRun
	if status, answer := w.call(t, "POST", "/v1/runs", `{"code":"1"}`); status != "200 OK" {
		t.Errorf("%s %s", status, answer)
	}
	if got := <-w.who; got != byHTTP {
		t.Errorf("asked as %+v", got)
	}
	other := newWorld(t, func(c *Config) { c.UID++ })
	for _, path := range []string{"/v1/runs", "/v1/traces", "/healthz", "/nothing"} {
		if status, answer := other.call(t, "GET", path, ""); status != "403 Forbidden" || !strings.Contains(answer, `"code":"denied"`) {
			t.Errorf("%s: %s %s", path, status, answer)
		}
	}
}

// TestErrorsAreShown: a caller gets what an error says to the public, with its status, and the log the rest.
func TestErrorsAreShown(t *testing.T) {
	w := newWorld(t)
	for code, status := range map[glovebox.Code]string{
		"invalid": "400", "denied": "403", "unavailable": "503", "exhausted": "429", "not_found": "404", "conflict": "409",
		"internal": "500", "made_up": "500", "": "500",
	} {
		w.run = func(context.Context, glovebox.Principal, glovebox.Request, glovebox.Sink) (*glovebox.Result, error) {
			if code == "" {
				return nil, errors.New("secret cause")
			}
			return nil, &glovebox.Error{Code: code, Op: "op", Public: "it \u202efailed", Fix: "mend", Err: errors.New("secret cause")}
		}
		for _, accept := range []string{"*/*", "text/event-stream"} {
			got, answer := w.call(t, "POST", "/v1/runs", `{"code":"1"}`, "Accept: "+accept)
			want := `{"error":{"code":"` + string(code) + `","message":"it \u202efailed","fix":"mend"}}`
			if code == "" || code == "made_up" {
				want = `{"error":{"code":"internal",`
			}
			if !strings.HasPrefix(got, status+" ") || !strings.HasPrefix(answer, want) || strings.Contains(answer, "secret") {
				t.Errorf("%s, %s: %s %s", code, accept, got, answer)
			}
		}
	}
	w.stop()
	if log := w.log.String(); strings.Count(log, "secret cause") != 6 { // internal, made up and bare, twice each
		t.Errorf("the log: %s", log)
	}
}

// TestStreamOnTheWire: events are what anybody can read without a client of ours.
func TestStreamOnTheWire(t *testing.T) {
	w := newWorld(t)
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	w.run = func(_ context.Context, _ glovebox.Principal, req glovebox.Request, sink glovebox.Sink) (*glovebox.Result, error) {
		if !req.Collect {
			t.Error("outputs are not collected")
		}
		sink.Event(glovebox.Event{Kind: "start", Run: "run_1", Time: at, Limits: glovebox.Limits{Wall: time.Second}})
		sink.Event(glovebox.Event{Kind: "stdout", Run: "run_1", Time: at, Data: []byte("a\n\x1b\u202e")})
		sink.Event(glovebox.Event{Kind: "stderr", Run: "run_1", Time: at, Data: []byte{0xff, 0}})
		sink.Event(glovebox.Event{Kind: "egress", Run: "run_1", Time: at, Egress: glovebox.EgressFlow{Host: "a.test", Port: 443,
			Reason: "host-not-allowed", Path: "/\x1b]"}})
		sink.Event(glovebox.Event{Kind: "usage", Run: "run_1", Time: at, Usage: glovebox.Usage{CPUMS: new(int64(7))}})
		return &glovebox.Result{ID: "run_1"}, nil
	}
	got := w.ask(t, "POST /v1/runs HTTP/1.0\r\nAccept: text/event-stream\r\nContent-Length: 12\r\n\r\n"+`{"code":"1"}`)
	head, body, _ := strings.Cut(got, "\r\n\r\n")
	if !strings.HasPrefix(head, "HTTP/1.0 200") || !strings.Contains(head, "Content-Type: text/event-stream") {
		t.Errorf("head: %s", head)
	}
	const when = `{"run":"run_1","time":"2026-01-02T03:04:05.000000006Z",`
	for i, want := range []string{
		"event: start\ndata: " + when + `"limits":{"wall_ms":1000,`,
		"event: stdout\ndata: " + when + `"text":"a\n\u001b\u202e"}`,
		"event: stderr\ndata: " + when + `"data_base64":"/wA="}`,
		"event: egress\ndata: " + when + `"egress":{"host":"a.test","port":443,"allowed":false,"reason":"host-not-allowed","path":"/\u001b]"}`,
		"event: usage\ndata: " + when + `"usage":{"wall_ms":null,"cpu_ms":7,`,
		"event: result\ndata: " + `{"id":"run_1",`,
	} {
		events := strings.SplitAfter(body, "\n\n")
		if i >= len(events) || !strings.HasPrefix(events[i], want) {
			t.Errorf("event %d is not %s in\n%s", i, want, body)
		}
	}
}

// TestLeaving: a run whose client left is cancelled when the grace is over, and not before.
func TestLeaving(t *testing.T) {
	const grace = 150 * time.Millisecond
	for _, accept := range []string{"application/json", "text/event-stream"} {
		w := newWorld(t, func(c *Config) { c.Grace = grace })
		began, canceled := make(chan struct{}), make(chan error, 1)
		w.run = func(ctx context.Context, _ glovebox.Principal, _ glovebox.Request, sink glovebox.Sink) (*glovebox.Result, error) {
			sink.Event(glovebox.Event{Kind: "start", Run: "run_1"})
			close(began)
			<-ctx.Done()
			canceled <- context.Cause(ctx)
			for range 1000 { // what is told to nobody harms nobody
				sink.Event(glovebox.Event{Kind: "stdout", Run: "run_1", Data: make([]byte, 1000)})
			}
			return &glovebox.Result{}, nil
		}
		c, err := net.Dial("unix", w.socket)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(c, "POST /v1/runs HTTP/1.1\r\nHost: x\r\nAccept: "+accept+"\r\nContent-Length: 12\r\n\r\n"+`{"code":"1"}`)
		<-began
		left := time.Now()
		c.Close()
		if err := <-canceled; !errors.Is(err, errLeft) {
			t.Errorf("cancelled because of %v", err)
		}
		if took := time.Since(left); took < grace {
			t.Errorf("cancelled after %v", took)
		}
		w.stop()
	}
}

// TestCancel: a run is cancelled by its id or its handle, tells its result, and then it is no more.
func TestCancel(t *testing.T) {
	for _, by := range []string{"run_1", "abcdefgh12345678"} {
		w := newWorld(t)
		w.run = untilCanceled
		w.trace = func(run string) (*glovebox.Record, error) {
			return &glovebox.Record{ID: run, State: "running"}, nil
		}
		answered := make(chan string)
		go func() {
			_, answer := w.call(t, "POST", "/v1/runs", `{"code":"1"}`, "Glovebox-Handle: abcdefgh12345678")
			answered <- answer
		}()
		for deadline := time.Now().Add(10 * time.Second); ; {
			if l, id := w.door.live.find(byHTTP, by); l != nil && id != "" {
				break
			}
			if time.Now().After(deadline) {
				t.Fatal("it does not begin")
			}
			time.Sleep(time.Millisecond)
		}
		if l, _ := w.door.live.find(glovebox.Principal{Tenant: "other", Name: "x"}, by); l != nil {
			t.Error("another tenant finds it")
		}
		if _, answer := w.call(t, "GET", "/v1/runs/"+by, ""); !strings.Contains(answer, `{"id":"run_1","state":"running","status":null,`) {
			t.Errorf("it is %s", answer)
		}
		if status, answer := w.call(t, "POST", "/v1/runs", `{"code":"1"}`, "Glovebox-Handle: abcdefgh12345678"); status != "409 Conflict" {
			t.Errorf("the same handle again: %s %s", status, answer)
		}
		if status, answer := w.call(t, "DELETE", "/v1/runs/"+by, ""); status != "202 Accepted" {
			t.Errorf("%s %s", status, answer)
		}
		if answer := <-answered; !strings.Contains(answer, `"status":"canceled","exit_code":null,"signal":null,"reason":"its client cancelled it"`) {
			t.Errorf("the result: %s", answer)
		}
		if status, _ := w.call(t, "DELETE", "/v1/runs/"+by, ""); status != "409 Conflict" {
			t.Errorf("cancelled again: %s", status)
		}
		if w.door.Live() != 0 || len(w.door.live.byName) != 0 {
			t.Errorf("%d runs are left: %v", w.door.Live(), w.door.live.byName)
		}
	}
}

// TestStop: what is in progress gets time to end, then it is cancelled with a result, and nothing new begins.
func TestStop(t *testing.T) {
	w := newWorld(t)
	began := make(chan struct{})
	w.run = func(ctx context.Context, who glovebox.Principal, req glovebox.Request, sink glovebox.Sink) (*glovebox.Result, error) {
		close(began)
		return untilCanceled(ctx, who, req, sink)
	}
	answered := make(chan string)
	go func() {
		_, answer := w.call(t, "POST", "/v1/runs", `{"code":"1"}`)
		answered <- answer
	}()
	<-began
	ctx, done := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer done()
	begun := time.Now()
	n, err := w.door.Stop(ctx)
	if n != 1 || err != nil || time.Since(begun) < 200*time.Millisecond {
		t.Errorf("stopped %d, %v, after %v", n, err, time.Since(begun))
	}
	if answer := <-answered; !strings.Contains(answer, `"reason":"the server stops"`) {
		t.Errorf("the result: %s", answer)
	}
	if _, err := net.Dial("unix", w.socket); err == nil {
		t.Error("it still listens")
	}
	if err := w.door.live.enter(&live{}); !errors.Is(err, errDraining) {
		t.Errorf("a new run: %v", err)
	}
}

// TestStopIdle: with nothing in progress it ends at once.
func TestStopIdle(t *testing.T) {
	w := newWorld(t)
	w.run = plainRun
	if _, err := w.client.Run(t.Context(), owner, glovebox.Request{Code: "1"}, nil); err != nil { // a connection is kept
		t.Fatal(err)
	}
	begun := time.Now()
	if n, err := w.door.Stop(t.Context()); n != 0 || err != nil || time.Since(begun) > 2*time.Second {
		t.Errorf("stopped %d, %v, after %v", n, err, time.Since(begun))
	}
}

// TestSlowHeaders: whoever connects and says nothing, or says it slowly, does not keep a place for ever.
func TestSlowHeaders(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c, err := net.Dial("unix", w.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost:")
	c.SetReadDeadline(time.Now().Add(headerTime + 5*time.Second))
	if _, err := io.ReadAll(c); err != nil {
		t.Errorf("the connection was kept: %v", err)
	}
	if got := w.ask(t, "GET /healthz HTTP/1.1\r\nHost: x\r\nX: "+strings.Repeat("x", 2*maxHeaders)+"\r\n\r\n"); !strings.Contains(got, " 431 ") {
		t.Errorf("long headers: %.100s", got)
	}
}

// TestConnectionsAreBounded: beyond the bound a connection waits for another to end.
func TestConnectionsAreBounded(t *testing.T) {
	socket := shortDir(t) + "/sock"
	inner, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l := newListener(inner, 2)
	accepted := make(chan net.Conn, 3)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	for range 3 {
		c, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	first, second := <-accepted, <-accepted
	defer second.Close()
	select {
	case <-accepted:
		t.Error("a third was accepted")
	case <-time.After(50 * time.Millisecond):
	}
	first.Close()
	first.Close() // which gives back one place
	third := <-accepted
	defer third.Close()
	if len(l.slots) != 2 {
		t.Errorf("%d places are taken", len(l.slots))
	}
	l.Close() // also while it waits for a place
	<-ended
}

// TestHealth: it tells what is missing, and does not examine the machine for each who asks.
func TestHealth(t *testing.T) {
	w := newWorld(t)
	ready, asked, decision := true, 0, glovebox.Decision{Allow: true, Reason: "fine"}
	w.doctor = func() (*glovebox.Report, error) {
		asked++
		return &glovebox.Report{Ready: ready, Default: decision, Controls: []glovebox.Control{
			{Name: "memory", Required: true, Detail: "no group", Fix: "make one"}, {Name: "extra", Detail: "absent"},
			{Name: "fine", Required: true, Available: true},
		}}, nil
	}
	for range 3 {
		if status, answer := w.call(t, "GET", "/healthz", ""); status != "200 OK" ||
			answer != `{"ready":true,"version":"v9","runs":0,"missing":[]}`+"\n" {
			t.Errorf("%s %s", status, answer)
		}
	}
	if asked != 1 {
		t.Errorf("examined %d times", asked)
	}
	ready, w.door.health.at = false, time.Time{}
	if status, answer := w.call(t, "GET", "/healthz", ""); status != "503 Service Unavailable" ||
		answer != `{"ready":false,"version":"v9","runs":0,"missing":[{"name":"memory","detail":"no group","fix":"make one"}]}`+"\n" {
		t.Errorf("%s %s", status, answer)
	}
	decision, w.door.health.at = glovebox.Decision{Reason: "no gvisor", Fix: "get it"}, time.Time{}
	if _, answer := w.call(t, "GET", "/healthz", ""); !strings.Contains(answer, `[{"name":"rung","detail":"no gvisor","fix":"get it"},`) {
		t.Error(answer)
	}
}

// TestRunShown: what GET /v1/runs/{id} makes of a record.
func TestRunShown(t *testing.T) {
	w := newWorld(t)
	for state, want := range map[string]string{
		"running":     `{"id":"run_1","state":"running","status":null,"result":null,"error":null}`,
		"interrupted": `{"id":"run_1","state":"ended","status":null,"result":null,"error":{"code":"internal","message":"m","fix":"f"}}`,
		"ended":       `{"id":"run_1","state":"ended","status":"exited","result":{"id":"run_1",`,
	} {
		w.trace = func(run string) (*glovebox.Record, error) {
			rec := &glovebox.Record{ID: run, State: state}
			switch state {
			case "ended":
				rec.Result = &glovebox.Result{ID: run, Status: glovebox.StatusExited}
			case "interrupted":
				rec.Error = &glovebox.ErrorShown{Code: "internal", Message: "m", Fix: "f"}
			}
			return rec, nil
		}
		if status, answer := w.call(t, "GET", "/v1/runs/run_1", ""); status != "200 OK" || !strings.HasPrefix(answer, want) {
			t.Errorf("%s: %s %s", state, status, answer)
		}
	}
}
