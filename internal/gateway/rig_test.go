package gateway_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"glovebox"
	"glovebox/internal/egress"
	"glovebox/internal/gateway"
	"glovebox/internal/netwire"
	"glovebox/internal/upstream"
)

// internet stands for what a gateway dials: servers of this test by the name and port that reach them.
type internet struct {
	mu     sync.Mutex
	places map[string]string // NAME:PORT → address
	dials  []upstream.Target
	hold   chan struct{} // if not nil, dials wait for it
}

func (i *internet) DialContext(ctx context.Context, t upstream.Target) (net.Conn, error) {
	i.mu.Lock()
	i.dials = append(i.dials, t)
	name := net.JoinHostPort(t.Host.String(), itoa(t.Port))
	addr, hold := i.places[name], i.hold
	i.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return nil, &upstream.Error{Reason: egress.ReasonUpstreamFailed, Err: ctx.Err()}
		}
	}
	if addr == "private" {
		return nil, &upstream.Error{Reason: egress.ReasonUpstreamIPPrivate, Err: errors.New("10.0.0.1")}
	}
	if addr == "" {
		return nil, &upstream.Error{Reason: egress.ReasonUpstreamFailed, Err: errors.New("no such name")}
	}
	var d net.Dialer
	return d.DialContext(ctx, "tcp", addr)
}

func (i *internet) dialled() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.dials)
}

func itoa(n uint16) string { return slog.IntValue(int(n)).String() }

// rig is a gateway with one attachment and a netd that is this test.
type rig struct {
	t        testing.TB
	internet *internet
	gateway  *gateway.Gateway
	a        *gateway.Attachment
	peer     *netwire.Peer
	log      *lines
	served   chan error
	ended    atomic.Int64
	answers  chan netwire.Command // to questions of a strict resolver
	bundle   []byte
	cas      *x509.CertPool // what the sandbox trusts

	sending sync.Mutex
	mu      sync.Mutex
	last    uint64
	opening map[uint64]chan *os.File
	streams map[uint64]net.Conn
	records []glovebox.EgressFlow
}

type terms struct {
	rules   []glovebox.EgressRule
	egress  glovebox.Size
	binding gateway.Binding
	quotas  gateway.Quotas
}

// authority signs the servers of these tests, and is the only one that the machine trusts.
type testCA struct {
	pem  []byte
	cert *x509.Certificate
	make func(names ...string) tls.Certificate
}

func compile(t testing.TB, list []glovebox.EgressRule) *egress.Rules {
	t.Helper()
	compiled, err := egress.Compile(list)
	if err != nil {
		t.Fatal(err)
	}
	return compiled
}

func newRig(t testing.TB, with terms) *rig {
	t.Helper()
	r := &rig{t: t, internet: &internet{places: map[string]string{}}, log: &lines{}, served: make(chan error, 1),
		answers: make(chan netwire.Command, 4),
		opening: map[uint64]chan *os.File{}, streams: map[uint64]net.Conn{}}
	g, err := gateway.New(gateway.Config{Dialer: r.internet, Roots: ca(t).pem, Quotas: with.quotas,
		Log: slog.New(slog.NewTextHandler(r.log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	r.gateway = g
	if with.egress == 0 {
		with.egress = glovebox.Size(1 << 40)
	}
	r.a, err = g.Attach(t.Context(), gateway.Terms{Run: "run1", Rules: compile(t, with.rules),
		Limits: glovebox.Limits{Egress: with.egress}, Binding: with.binding, Record: r.record,
		End: func(egress.Reason) { r.ended.Add(1) }})
	if err != nil {
		t.Fatal(err)
	}
	r.cas = x509.NewCertPool()
	if r.bundle = r.a.Files()[0].Data; !r.cas.AppendCertsFromPEM(r.bundle) {
		t.Fatal("the bundle has no certificate")
	}
	r.plug()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := g.Close(ctx); err != nil {
			t.Error(err)
		}
		if err := <-r.served; err != nil {
			t.Error(err)
		}
		r.peer.Close()
	})
	return r
}

// plug starts the attachment and this test's netd.
func (r *rig) plug() {
	ours, theirs, err := netwire.Pair()
	if err != nil {
		r.t.Fatal(err)
	}
	host, err := netwire.NewHost(ours)
	if err != nil {
		r.t.Fatal(err)
	}
	if r.peer, err = netwire.NewPeer(theirs); err != nil {
		r.t.Fatal(err)
	}
	go func() { r.served <- r.a.Serve(host) }()
	go r.netd()
}

func (r *rig) netd() {
	for {
		c, err := r.peer.Next()
		if err != nil {
			r.mu.Lock()
			for _, waiting := range r.opening {
				close(waiting)
			}
			clear(r.opening)
			r.mu.Unlock()
			return
		}
		if c.Kind == netwire.CommandAnswer {
			r.answers <- c
			continue
		}
		r.mu.Lock()
		waiting, stream := r.opening[c.Flow], r.streams[c.Flow]
		delete(r.opening, c.Flow)
		r.mu.Unlock()
		if waiting != nil {
			waiting <- c.Stream
		} else if stream != nil && c.Kind == netwire.CommandRefuse {
			stream.Close()
		}
	}
}

func (r *rig) record(f glovebox.EgressFlow) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.records = append(r.records, f)
}

func (r *rig) recorded() []glovebox.EgressFlow {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]glovebox.EgressFlow(nil), r.records...)
}

// open asks for a connection as a sandbox would: to a name, or to an address.
func (r *rig) open(name string, port uint16) (net.Conn, error) {
	r.sending.Lock() // numbers are sent in their order
	r.mu.Lock()
	r.last++
	id, answer := r.last, make(chan *os.File, 1)
	r.opening[id] = answer
	r.mu.Unlock()
	e := netwire.Event{Kind: netwire.KindOpen, Flow: id, Host: name, Port: port, Address: netip.MustParseAddr("198.18.1.1")}
	if addr, err := netip.ParseAddr(name); err == nil {
		e.Host, e.Address = "", addr
	}
	err := r.peer.Send(e)
	r.sending.Unlock()
	if err != nil {
		return nil, err
	}
	file, ok := <-answer
	if !ok || file == nil {
		return nil, syscall.ECONNREFUSED
	}
	defer file.Close()
	conn, err := net.FileConn(file)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	r.streams[id] = conn
	r.mu.Unlock()
	return conn, nil
}

func (r *rig) must(name string, port uint16) net.Conn {
	r.t.Helper()
	conn, err := r.open(name, port)
	if err != nil {
		r.t.Fatalf("connect to %s:%d: %v", name, port, err)
	}
	r.t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	return conn
}

// client is an HTTP client inside: it knows of no proxy, and trusts what the sandbox is shown.
func (r *rig) client(http2 bool) *http.Client {
	tr := &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: r.cas},
		ForceAttemptHTTP2: http2, ExpectContinueTimeout: 5 * time.Second,
		DialContext: func(_ context.Context, _, addr string) (net.Conn, error) {
			name, port, err := net.SplitHostPort(addr)
			if err != nil {
				return nil, err
			}
			n, err := net.LookupPort("tcp", port)
			if err != nil {
				return nil, err
			}
			return r.open(name, uint16(n))
		},
	}
	r.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 30 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// server starts a server of this test at NAME:PORT of its internet. TLS servers prove the name by the tests' authority.
func (r *rig) server(name string, port uint16, secure, http2 bool, handler http.HandlerFunc) *httptest.Server {
	s := httptest.NewUnstartedServer(handler)
	s.EnableHTTP2 = http2
	if secure {
		s.TLS = &tls.Config{Certificates: []tls.Certificate{ca(r.t).make(name)}}
		s.StartTLS()
	} else {
		s.Start()
	}
	r.t.Cleanup(s.Close)
	r.at(name, port, s.Listener.Addr().String())
	return s
}

func (r *rig) at(name string, port uint16, addr string) {
	r.internet.mu.Lock()
	defer r.internet.mu.Unlock()
	r.internet.places[net.JoinHostPort(name, itoa(port))] = addr
}

// reasons waits until as many records are there as are wanted, and returns what each says.
func (r *rig) waitRecord(what string, ok func(glovebox.EgressFlow) bool) glovebox.EgressFlow {
	r.t.Helper()
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		for _, f := range r.recorded() {
			if ok(f) {
				return f
			}
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("no record of %s in %+v", what, r.recorded())
		}
	}
}

func (r *rig) waitDenied(reason egress.Reason) glovebox.EgressFlow {
	r.t.Helper()
	return r.waitRecord("a refusal for "+string(reason), func(f glovebox.EgressFlow) bool {
		return !f.Allowed && f.Reason == string(reason)
	})
}

// lines is a log that is read while it is written.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

var ca = func() func(testing.TB) *testCA {
	var once sync.Once
	var made *testCA
	return func(t testing.TB) *testCA {
		t.Helper()
		once.Do(func() { made = newTestCA(t) })
		return made
	}
}()

func pemOf(der []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}) }
