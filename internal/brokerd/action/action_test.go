package action

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"glovebox"
	"glovebox/internal/broker"
)

const canary = "canary-secret-value"

// world is actions with an upstream that tells what it got.
type world struct {
	mu      sync.Mutex
	got     []string // METHOD URL header body
	answer  string
	status  int
	fail    error
	release chan struct{} // an upstream that waits
	actions *Actions
	log     bytes.Buffer
}

func pr(schema string, h broker.ActionHTTP) broker.Action {
	return broker.Action{Name: "pr", Schema: json.RawMessage(schema), HTTP: &h}
}

const schema = `{"type":"object","required":["repo"],"properties":{"repo":{"type":"string","maxLength":100},
	"title":{"type":"string"},"n":{"type":"integer","minimum":1},"labels":{"type":"array","items":{"type":"string"}}}}`

func open() broker.Action {
	return pr(schema, broker.ActionHTTP{Method: "POST", URL: "https://api.test/repos/acme/{repo}/pulls?per_page={n}",
		Headers: map[string]string{"X-Repo": "r-{repo}"}, Secret: "TOKEN",
		Body: json.RawMessage(`{"title":"{title}","about":"by {repo}","labels":"{labels}","n":"{n}","draft":true}`)})
}

func newWorld(t *testing.T, all ...broker.Action) *world {
	t.Helper()
	w := &world{answer: `{"number":7}`, status: 201}
	var err error
	w.actions, err = New(Config{Actions: all, Send: w.send, Start: w.start,
		Scrub: func(_ broker.Run, b []byte) []byte { return bytes.ReplaceAll(b, []byte(canary), []byte("[secret]")) }})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) send(ctx context.Context, _ broker.Run, secret string, r *http.Request) (*http.Response, error) {
	body := []byte{}
	if r.Body != nil {
		body, _ = io.ReadAll(r.Body)
	}
	w.mu.Lock()
	w.got = append(w.got, strings.Join([]string{r.Method, r.URL.String(), r.Header.Get("X-Repo"), secret, string(body)}, " "))
	release, fail := w.release, w.fail
	w.mu.Unlock()
	if release != nil {
		select {
		case <-release:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if fail != nil {
		return nil, fail
	}
	return &http.Response{StatusCode: w.status, Body: io.NopCloser(strings.NewReader(w.answer))}, nil
}

func (w *world) start(_ context.Context, command []string, input []byte) ([]byte, int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.got = append(w.got, strings.Join(command, " ")+" < "+string(input))
	return []byte(w.answer), 3, w.fail
}

func (w *world) seen() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string{}, w.got...)
}

func (w *world) open(granted ...string) *Run {
	return w.actions.Open(broker.Run{ID: "run_1", Tenant: "acme"}, granted)
}

// post calls an action.
func post(r *Run, name, args, key string) (int, string) {
	req := httptest.NewRequest("POST", "http://broker.internal/actions/"+name, strings.NewReader(args))
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	rec := httptest.NewRecorder()
	r.ServeHTTP(rec, req)
	return rec.Code, rec.Body.String()
}

// TestCall: a program is told what came of it, and no secret that came with that.
func TestCall(t *testing.T) {
	w := newWorld(t, open())
	run := w.open("pr")
	defer run.Close()
	w.answer = `{"number":7,"you_sent":"` + canary + `"}`
	code, body := post(run, "pr", `{"repo":"shop","labels":[]}`, "")
	if code != 200 || body != `{"action":"pr","ok":true,"status":201,"result":{"number":7,"you_sent":"[secret]"}}`+"\n" {
		t.Errorf("%d %s", code, body)
	}
	if got := w.seen(); len(got) != 1 {
		t.Errorf("sent %v", got)
	}
}

// TestTemplates: arguments cannot leave their place.
func TestTemplates(t *testing.T) {
	for _, c := range []struct{ args, sent, said string }{
		{`{"repo":"shop"}`, `POST https://api.test/repos/acme/shop/pulls r-shop TOKEN {"about":"by shop","draft":true}`, ""},
		{`{"repo":"shop","title":"a\"},{\"x\":1","n":3,"labels":["a"]}`, `POST https://api.test/repos/acme/shop/pulls?per_page=3 ` +
			`r-shop TOKEN {"about":"by shop","draft":true,"labels":["a"],"n":3,"title":"a\"},{\"x\":1"}`, ""},
		{`{"repo":"a b?c=d#e&f;g"}`, `POST https://api.test/repos/acme/a%20b%3Fc%3Dd%23e%26f%3Bg/pulls r-a b?c=d#e&f;g TOKEN ` +
			`{"about":"by a b?c=d#e&f;g","draft":true}`, ""},
		{`{"repo":"shop","n":12345678901234567}`, `POST https://api.test/repos/acme/shop/pulls?per_page=12345678901234567 r-shop TOKEN ` +
			`{"about":"by shop","draft":true,"n":12345678901234567}`, ""},
		{`{"repo":".."}`, "", "no part of a path"}, {`{"repo":"."}`, "", "no part of a path"},
		{`{"repo":"../evil"}`, "", "no part of a path"}, {`{"repo":"a/b"}`, "", "no part of a path"},
		{`{"repo":"a\\b"}`, "", "no part of a path"}, {`{"repo":"%2e%2e"}`, "", "no part of a path"},
		{`{"repo":""}`, "", "no part of a path"}, {`{"repo":"a\r\nHost: evil"}`, "", "no part of a path"},
		{`{"repo":"a\u0000"}`, "", "no part of a path"}, {`{"repo":"é"}`, "", "no header can"},
		{`{"repo":"x","evil":1}`, "", `there is no argument \"evil\"`}, {`{"repo":7}`, "", "do not fit the schema"},
		{`{"title":"x"}`, "", "do not fit the schema"}, {`{"repo":"x","n":0}`, "", "do not fit the schema"},
		{`[]`, "", "no JSON object"}, {`null`, "", "no JSON object"}, {`{"repo":"x"`, "", "no JSON object"},
		{`{"repo":"x"} {"repo":"y"}`, "", "no JSON object"}, {``, "", "do not fit the schema"},
	} {
		w := newWorld(t, open())
		run := w.open("pr")
		code, body := post(run, "pr", c.args, "")
		got := strings.Join(w.seen(), "\n")
		if got != c.sent || (code == 200) != (c.said == "") || !strings.Contains(body, c.said) {
			t.Errorf("%s: %d %s sent\n%s\nwant\n%s", c.args, code, body, got, c.sent)
		}
		run.Close()
	}
}

// TestWholePath: an argument of several segments stays below its folder.
func TestWholePath(t *testing.T) {
	a := pr(`{"type":"object","required":["key"],"properties":{"key":{"type":"string"}}}`,
		broker.ActionHTTP{Method: "PUT", URL: "https://api.test/bucket/run/{+key}"})
	for key, want := range map[string]string{"a/b.txt": "PUT https://api.test/bucket/run/a/b.txt   ", "a//b": "", "/a": "", "a/": "",
		"../x": "", "a/../../x": "", "a/..": "", "a/%2e%2e/x": "", "...": ""} {
		w := newWorld(t, a)
		run := w.open("pr")
		args, _ := json.Marshal(map[string]string{"key": key})
		post(run, "pr", string(args), "")
		if got := strings.Join(w.seen(), "\n"); got != want {
			t.Errorf("%s: sent %q, want %q", key, got, want)
		}
		run.Close()
	}
}

// TestNotGranted: what was not granted cannot be told from what is not there.
func TestNotGranted(t *testing.T) {
	w := newWorld(t, open())
	run := w.open()
	defer run.Close()
	code, body := post(run, "pr", `{"repo":"x"}`, "")
	code2, body2 := post(run, "qr", `{"repo":"x"}`, "")
	if code != 403 || code2 != 403 || strings.ReplaceAll(body2, "qr", "pr") != body || len(w.seen()) != 0 {
		t.Errorf("%d %s, %d %s, sent %v", code, body, code2, body2, w.seen())
	}
	rec := httptest.NewRecorder()
	run.ServeHTTP(rec, httptest.NewRequest("GET", "http://broker.internal/actions", nil))
	if rec.Body.String() != `{"actions":[]}`+"\n" {
		t.Errorf("listed %s", rec.Body)
	}
}

// TestIdempotency: the same key acts once, whoever comes when; other arguments are a conflict; what did nothing may be tried
// again.
func TestIdempotency(t *testing.T) {
	w := newWorld(t, open())
	w.release = make(chan struct{})
	run := w.open("pr")
	defer run.Close()
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if code, body := post(run, "pr", `{"repo":"x"}`, "k1"); code != 200 {
				t.Errorf("%d %s", code, body)
			}
		})
	}
	for len(w.seen()) == 0 {
		time.Sleep(time.Millisecond)
	}
	if code, body := post(run, "pr", `{"repo":"y"}`, "k1"); code != 409 {
		t.Errorf("other arguments: %d %s", code, body)
	}
	close(w.release)
	all.Wait()
	post(run, "pr", ` {"repo" : "x"}`, "k1")
	if n := len(w.seen()); n != 1 {
		t.Errorf("acted %d times", n)
	}
	// It is not known what a request did that failed under way: it is not sent again.
	w.fail = errors.New("connection reset after " + canary)
	first, said := post(run, "pr", `{"repo":"x"}`, "k2")
	w.fail = nil
	again, same := post(run, "pr", `{"repo":"x"}`, "k2")
	if first != 502 || again != 502 || said != same || len(w.seen()) != 2 || strings.Contains(said, canary) {
		t.Errorf("%d %s, %d %s, sent %d", first, said, again, same, len(w.seen()))
	}
	for _, key := range []string{strings.Repeat("k", 129), "a b", "é"} {
		if code, _ := post(run, "pr", `{"repo":"x"}`, key); code != 400 {
			t.Errorf("key %q: %d", key, code)
		}
	}
}

// TestLimits: so many calls of a run and no more; too long a result is cut.
func TestLimits(t *testing.T) {
	a := open()
	a.PerRun = 2
	w := newWorld(t, a)
	run := w.open("pr")
	defer run.Close()
	w.answer = strings.Repeat("x", maxResult+10)
	for i, want := range []int{200, 200, 429} {
		code, body := post(run, "pr", `{"repo":"x"}`, "")
		if code != want || want == 200 && (len(body) > maxResult+200 || !strings.Contains(body, `"truncated":true`)) {
			t.Errorf("call %d: %d, %d bytes", i, code, len(body))
		}
	}
	if code, _ := post(w.open("pr"), "pr", `{"repo":"x"}`, ""); code != 200 {
		t.Errorf("another run: %d", code)
	}
}

// TestCommand: a program outside has the arguments on its standard input alone.
func TestCommand(t *testing.T) {
	w := newWorld(t, broker.Action{Name: "deploy", Command: []string{"/usr/local/bin/deploy", "--json"},
		Schema: json.RawMessage(`{"type":"object","properties":{"env":{"enum":["test"]}}}`)})
	run := w.open("deploy")
	defer run.Close()
	w.answer = "not json " + canary
	code, body := post(run, "deploy", `{"env":"test"}`, "")
	if code != 200 || body != `{"action":"deploy","ok":false,"exit_code":3,"result":"not json [secret]"}`+"\n" ||
		strings.Join(w.seen(), "") != `/usr/local/bin/deploy --json < {"env":"test"}` {
		t.Errorf("%d %s %v", code, body, w.seen())
	}
	if code, _ := post(run, "deploy", `{"env":"prod"}`, ""); code != 400 || len(w.seen()) != 1 {
		t.Errorf("another value: %d", code)
	}
}

// TestApproval: nothing is done before the owner's word, which one of two gives; what is shown is what is done.
func TestApproval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := open()
		a.Approval, a.Wait = true, time.Minute
		w := newWorld(t, a)
		run := w.open("pr")
		type told struct {
			code int
			body string
		}
		call := func() chan told {
			done := make(chan told, 1)
			go func() {
				code, body := post(run, "pr", `{"repo":"x"}`, "")
				done <- told{code, body}
			}()
			synctest.Wait()
			return done
		}
		done := call()
		waiting := w.actions.Pending()
		if len(waiting) != 1 || len(w.seen()) != 0 {
			t.Fatalf("waiting %v, sent %v", waiting, w.seen())
		}
		p := waiting[0]
		shown := strings.Join([]string{p.Method, p.URL, p.Headers["X-Repo"][0], p.Secret, p.Body}, " ")
		var won, lost int
		var both sync.WaitGroup
		var mu sync.Mutex
		for _, approve := range []bool{true, true} {
			both.Go(func() {
				_, err := w.actions.Decide(p.ID, approve)
				mu.Lock()
				defer mu.Unlock()
				var e *glovebox.Error
				if err == nil {
					won++
				} else if errors.As(err, &e) && (e.Code == glovebox.CodeConflict || e.Code == glovebox.CodeNotFound) {
					lost++
				}
			})
		}
		both.Wait()
		if got := <-done; got.code != 200 || won != 1 || lost != 1 || strings.Join(w.seen(), "") != shown {
			t.Errorf("%v, won %d, lost %d, sent %v, shown %s", got, won, lost, w.seen(), shown)
		}
		done = call()
		if _, err := w.actions.Decide(w.actions.Pending()[0].ID, false); err != nil {
			t.Error(err)
		}
		if got := <-done; got.code != 403 || !strings.Contains(got.body, "approval-denied") {
			t.Errorf("denied: %v", got)
		}
		done = call()
		if got := <-done; got.code != 403 || !strings.Contains(got.body, "approval-expired") { // the clock goes on by itself
			t.Errorf("nobody came: %v", got)
		}
		done = call()
		run.Close()
		if got := <-done; got.code != 403 || !strings.Contains(got.body, "approval-canceled") {
			t.Errorf("the run ended: %v", got)
		}
		if len(w.actions.Pending()) != 0 || len(w.seen()) != 1 {
			t.Errorf("left %v, sent %v", w.actions.Pending(), w.seen())
		}
		if code, _ := post(run, "pr", `{"repo":"x"}`, ""); code != 503 {
			t.Errorf("after the end: %d", code)
		}
	})
}

// TestTimeout: a call that takes too long ends, and says that it may have been done.
func TestTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, open())
		w.release = make(chan struct{})
		run := w.open("pr")
		if code, body := post(run, "pr", `{"repo":"x"}`, ""); code != 504 || !strings.Contains(body, "did not end within 30s") {
			t.Errorf("%d %s", code, body)
		}
		run.Close()
	})
}

// TestCheck: what cannot be done safely is refused when it is loaded.
func TestCheck(t *testing.T) {
	for name, change := range map[string]func(*broker.Action){
		"no object":      func(a *broker.Action) { a.Schema = json.RawMessage(`{"type":"string"}`) },
		"no schema":      func(a *broker.Action) { a.Schema = json.RawMessage(`[`) },
		"refers outside": func(a *broker.Action) { a.Schema = json.RawMessage(`{"type":"object","$ref":"https://x.test/s.json"}`) },
		"bad pattern": func(a *broker.Action) {
			a.Schema = json.RawMessage(`{"type":"object","properties":{"repo":{"pattern":"("}}}`)
		},
		"unknown hole":    func(a *broker.Action) { a.HTTP.URL = "https://api.test/{what}" },
		"optional path":   func(a *broker.Action) { a.HTTP.URL = "https://api.test/{title}" },
		"optional header": func(a *broker.Action) { a.HTTP.Headers = map[string]string{"X-T": "{title}"} },
		"hole in host":    func(a *broker.Action) { a.HTTP.URL = "https://{repo}/x" },
		"in clear":        func(a *broker.Action) { a.HTTP.URL = "http://api.test/{repo}" },
		"dots":            func(a *broker.Action) { a.HTTP.URL = "https://api.test/../{repo}" },
		"host header":     func(a *broker.Action) { a.HTTP.Headers = map[string]string{"Host": "x"} },
		"plus beside":     func(a *broker.Action) { a.HTTP.URL = "https://api.test/x{+repo}" },
		"hole as a name":  func(a *broker.Action) { a.HTTP.URL = "https://api.test/x?{repo}=1" },
	} {
		a := open()
		change(&a)
		err := Check(a)
		var e *glovebox.Error
		if !errors.As(err, &e) || !strings.HasPrefix(e.Op, "actions.pr.") && name != "hole in host" && name != "in clear" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := Check(open()); err != nil {
		t.Error(err)
	}
}
