package brokerd

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"glovebox"
	"glovebox/internal/broker"
	"glovebox/internal/upstream"
)

// TestMain is a broker too: the client starts this very program as one. Its dialer leads every name to the server of the test,
// since the product's own refuses the loopback.
func TestMain(m *testing.M) {
	if os.Args[0] != "glovebox-broker" {
		os.Exit(m.Run())
	}
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	if err := Harden(log); err != nil {
		panic(err)
	}
	conn, err := net.FileConn(os.NewFile(3, "control"))
	if err != nil {
		panic(err)
	}
	err = Serve(conn.(*net.UnixConn), Config{Log: log, Dialer: func(n broker.Network) (Dialer, error) { return to(n.Resolvers[0]), nil }})
	if err != nil {
		panic(err)
	}
}

type to netip.AddrPort

func (d to) DialContext(ctx context.Context, t upstream.Target) (net.Conn, error) {
	if strings.HasPrefix(t.Host.String(), "private.") {
		return nil, &upstream.Error{Reason: "upstream-ip-private", Err: io.EOF}
	}
	return new(net.Dialer).DialContext(ctx, "tcp", netip.AddrPort(d).String())
}

// canary is the value of every secret of these tests.
const canary = "canary/Value+0123456789=secret"

// rig is a broker, what it reaches, and a run that was lent its secrets.
type rig struct {
	t        *testing.T
	client   *broker.Client
	binding  *broker.Binding
	env      map[string]string
	log      *safeBuffer
	upstream *httptest.Server
	file     string
	actions  []broker.Action

	mu   sync.Mutex
	seen []*http.Request // what came upstream, with bodies read
	body []string
}

// safeBuffer is what a log writes into.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// host has a certificate in the test server.
const host = "example.com"

// newRig starts an upstream that answers by answer (nil: 200), and lends the specs, whose empty source becomes a file.
func newRig(t *testing.T, answer http.HandlerFunc, specs ...broker.Spec) *rig {
	t.Helper()
	r := &rig{t: t, log: &safeBuffer{}, env: map[string]string{}, file: filepath.Join(t.TempDir(), "secret")}
	if err := os.WriteFile(r.file, []byte(canary+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.upstream = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		var body []byte
		if q.Header.Get("X-Stream") == "" {
			body, _ = io.ReadAll(q.Body)
		}
		r.mu.Lock()
		r.seen, r.body = append(r.seen, q.Clone(context.Background())), append(r.body, string(body))
		r.mu.Unlock()
		if answer != nil {
			answer(w, q)
		}
	}))
	r.upstream.EnableHTTP2 = true
	r.upstream.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	r.upstream.StartTLS()
	t.Cleanup(r.upstream.Close)
	var rules []glovebox.EgressRule
	var refs []glovebox.SecretRef
	for i := range specs {
		if specs[i].Source() == "none" {
			specs[i].File = r.file
		}
		if specs[i].Hosts == nil {
			specs[i].Hosts = []string{host}
		}
		refs = append(refs, glovebox.SecretRef{Name: specs[i].Name})
		for _, h := range specs[i].Hosts {
			e, err := broker.ParseEndpoint(h)
			if err != nil {
				t.Fatal(err)
			}
			rules = append(rules, glovebox.EgressRule{Host: e.Host.String(), Ports: []int{int(e.Port)}, Protocols: []string{"https"}})
		}
	}
	r.start(specs)
	r.bind(rules, refs)
	return r
}

// start makes the client of a broker.
func (r *rig) start(specs []broker.Spec) {
	r.t.Helper()
	r.startAt(specs, netip.MustParseAddrPort(r.upstream.Listener.Addr().String()))
}

// startAt makes the client of a broker for which all names lead to at. It trusts the rig's upstream, or else the system's.
func (r *rig) startAt(specs []broker.Spec, at netip.AddrPort) {
	t := r.t
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var roots []byte
	if r.upstream != nil {
		roots = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: r.upstream.Certificate().Raw})
	}
	r.client, err = broker.New(broker.Config{Program: self, Secrets: specs, Actions: r.actions, Roots: roots, Log: slog.New(slog.NewTextHandler(r.log, nil)),
		Network: broker.Network{Resolvers: []netip.AddrPort{at}}, Environ: map[string]broker.Secret{"GIVEN": broker.NewSecret(canary)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.client.Close() })
}

func (r *rig) bind(rules []glovebox.EgressRule, refs []glovebox.SecretRef) {
	r.t.Helper()
	var err error
	r.binding, err = r.client.Bind(r.t.Context(), broker.Run{ID: "run_test"}, rules, refs)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, v := range r.binding.Env() {
		name, value, _ := strings.Cut(v, "=")
		r.env[name] = value
	}
}

// refused is a refusal of the broker.
type refused struct {
	status int
	reason string
	text   string
}

// answered is what came of a request.
type answered struct {
	status  int
	header  http.Header
	trailer http.Header
	body    string
	refused *refused
	err     error
}

// do sends a request by the binding: url is a path, or all of it.
func (r *rig) do(method, url, body string, headers ...string) answered {
	r.t.Helper()
	if strings.HasPrefix(url, "/") {
		url = "https://" + host + url
	}
	var content io.Reader
	if body != "" {
		content = strings.NewReader(body)
	}
	ctx, cancel := context.WithTimeout(r.t.Context(), 20*time.Second)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, method, url, content)
	if err != nil {
		r.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		q.Header.Add(headers[i], headers[i+1])
	}
	resp, err := r.binding.RoundTrip(q)
	if err != nil {
		return answered{err: err}
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if reason := resp.Header.Get(broker.HeaderReason); reason != "" {
		if err != nil || resp.Header.Get(broker.HeaderSecret) != "" || !strings.Contains(string(text), `"reason":"`+reason+`"`) {
			r.t.Errorf("a refusal for %s: %v %s %v", reason, resp.Header, text, err)
		}
		return answered{refused: &refused{resp.StatusCode, reason, string(text)}, err: errors.New(string(text))}
	}
	return answered{status: resp.StatusCode, header: resp.Header, trailer: resp.Trailer, body: string(text), err: err}
}

// last is the last request that came upstream.
func (r *rig) last() (*http.Request, string) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.seen) == 0 {
		r.t.Fatal("nothing came upstream")
	}
	return r.seen[len(r.seen)-1], r.body[len(r.body)-1]
}

// count is how many requests came upstream.
func (r *rig) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.seen)
}

// send sends a request and returns what came, whatever it is.
func (r *rig) send(q *http.Request) (a refused) {
	r.t.Helper()
	resp, err := r.binding.RoundTrip(q)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return refused{resp.StatusCode, resp.Header.Get(broker.HeaderReason), string(text)}
}
