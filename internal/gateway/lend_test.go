package gateway_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"glovebox"
	"glovebox/internal/egress"
	"glovebox/internal/gateway"
)

// lender stands for a broker that has one secret for bound.test.
type lender struct {
	requests []*http.Request
	bodies   []string
	refuse   bool
	dead     bool
}

const placeholder = "glovebox-placeholder-0123456789abcdef"

func (l *lender) Bound(h egress.Host, port uint16) bool {
	return h.String() == "bound.test" && port == 443
}

func (l *lender) RoundTrip(r *http.Request) (*http.Response, error) {
	if l.dead {
		return nil, io.ErrUnexpectedEOF
	}
	l.requests = append(l.requests, r)
	body := []byte{}
	if r.Body != nil {
		body, _ = io.ReadAll(r.Body)
	}
	l.bodies = append(l.bodies, string(body))
	res := &http.Response{StatusCode: 200, ProtoMajor: 1, ProtoMinor: 1, Request: r, Header: http.Header{},
		Body: io.NopCloser(strings.NewReader("lent")), ContentLength: 4}
	if l.refuse {
		res.StatusCode = 403
		res.Header.Set(gateway.ReasonHeader, "foreign-credential")
	}
	return res, nil
}

func (l *lender) Finder() gateway.Finder { return &finder{} }
func (l *lender) Ends() bool             { return true }
func (l *lender) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "broker %s %s", r.Host, r.URL.RequestURI())
	})
}

type finder struct{ seen []byte }

func (f *finder) Find(p []byte) bool {
	f.seen = append(f.seen, p...)
	return bytes.Contains(f.seen, []byte(placeholder))
}

func newLent(t *testing.T, l *lender) (*rig, *atomic.Int64) {
	t.Helper()
	r := newRig(t, terms{binding: l, rules: []glovebox.EgressRule{{Host: "good.test"}, {Host: "bound.test"},
		{Host: "db.test", Ports: []int{5432}, Protocols: []string{"tcp"}}}})
	var whole atomic.Int64
	serve := func(w http.ResponseWriter, req *http.Request) {
		if _, err := io.Copy(io.Discard, req.Body); err == nil {
			whole.Add(1)
		}
		hello(w, req)
	}
	for _, name := range []string{"good.test", "bound.test"} {
		r.server(name, 443, true, true, serve)
		r.server(name, 80, false, false, serve)
	}
	return r, &whole
}

func TestBoundHost(t *testing.T) {
	l := &lender{}
	r, whole := newLent(t, l)
	req, err := http.NewRequestWithContext(t.Context(), "POST", "https://bound.test/v1/x?y=1", strings.NewReader("data"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+placeholder) // which is the broker's to judge
	res, err := r.client(true).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(res.Body)
	res.Body.Close()
	if string(body) != "lent" || l.bodies[0] != "data" || l.requests[0].URL.String() != "https://bound.test/v1/x?y=1" ||
		l.requests[0].Host != "bound.test" || l.requests[0].Header.Get("Authorization") == "" {
		t.Errorf("%s %q %+v", body, l.bodies, l.requests[0])
	}
	if whole.Load() > 0 || r.internet.dialled() > 0 {
		t.Error("the gateway sent it itself")
	}
	// A path that is not its own is not the broker's at all.
	l.refuse = true
	if code, _ := get(t, r.client(true), "https://bound.test/v1/x"); code != 403 {
		t.Error(code)
	}
	if f := r.waitDenied(egress.ReasonForeignCredential); f.Path != "/v1/x" {
		t.Errorf("%+v", f)
	}
	// A broker that is gone leaves what it was for closed.
	l.dead = true
	if code, text := get(t, r.client(true), "https://bound.test/v1/x"); code != 502 || refusalOf(t, text).Reason != "upstream-failed" {
		t.Error(code, text)
	}
	if r.internet.dialled() > 0 {
		t.Error("without its broker a bound host was dialled")
	}
}

// TestPlaceholderElsewhere: what was lent for one host goes to no other, in no place.
func TestPlaceholderElsewhere(t *testing.T) {
	tests := map[string]func() *http.Request{
		"header": func() *http.Request {
			req, _ := http.NewRequest("GET", "https://good.test/", nil)
			req.Header.Set("X-Key", placeholder)
			return req
		},
		"path": func() *http.Request {
			req, _ := http.NewRequest("GET", "https://good.test/a/"+placeholder, nil)
			return req
		},
		"query": func() *http.Request {
			req, _ := http.NewRequest("GET", "https://good.test/?k="+placeholder, nil)
			return req
		},
		"body": func() *http.Request {
			req, _ := http.NewRequest("POST", "https://good.test/", io.MultiReader(strings.NewReader(strings.Repeat("x", 70000)+placeholder[:9]),
				strings.NewReader(placeholder[9:])))
			return req
		},
		"plain http to its own host": func() *http.Request {
			req, _ := http.NewRequest("GET", "http://bound.test/", nil)
			req.Header.Set("Authorization", "Bearer "+placeholder)
			return req
		},
	}
	for name, make := range tests {
		r, whole := newLent(t, &lender{})
		res, err := r.client(true).Do(make())
		if err != nil {
			t.Fatal(name, err)
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != 403 || refusalOf(t, string(body)).Reason != "secret-wrong-host" {
			t.Errorf("%s: %d %s", name, res.StatusCode, body)
		}
		if whole.Load() > 0 {
			t.Errorf("%s: the server saw a whole request", name)
		}
		r.waitDenied(egress.ReasonSecretWrongHost)
		if n := r.ended.Load(); n != 1 {
			t.Errorf("%s: the run was ended %d times", name, n)
		}
	}
}

func TestPlaceholderInStream(t *testing.T) {
	r, _ := newLent(t, &lender{})
	s := newSink(t)
	r.at("db.test", 5432, s.addr)
	c := r.must("db.test", 5432)
	if _, err := io.WriteString(c, "GET /"+placeholder+" HTTP/1.1\r\nHost: good.test\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, c)
	r.waitDenied(egress.ReasonSecretWrongHost)
	if got := s.requests(t); len(got) > 0 {
		t.Errorf("the server saw %q", got)
	}
}

func TestBrokersOwnHost(t *testing.T) {
	r, _ := newLent(t, &lender{})
	if code, body := get(t, r.client(false), "http://broker.internal/actions/x?y"); code != 200 || body != "broker broker.internal /actions/x?y" {
		t.Error(code, body)
	}
	for _, url := range []string{"https://broker.internal/", "http://other.internal/"} {
		res, err := r.client(false).Get(url)
		if err == nil {
			res.Body.Close()
			if res.StatusCode != 403 {
				t.Error(url, res.StatusCode)
			}
		}
	}
	if code, _ := raw(t, r.must("broker.internal", 80), "GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n"); code != 403 {
		t.Error(code)
	}
	none := newRig(t, terms{rules: good})
	if code, body := get(t, none.client(false), "http://broker.internal/actions/x"); code != 403 || refusalOf(t, body).Reason != "host-not-allowed" {
		t.Error(code, body)
	}
}
