package brokerd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"glovebox"
	"glovebox/internal/broker"
	"glovebox/internal/brokerd/action"
	"glovebox/internal/brokerd/mint"
	"glovebox/internal/egress"
	"glovebox/internal/upstream"
)

// tlsRoots are who upstreams' certificates may be of; nil means the system's.
type tlsRoots struct{ pool *x509.CertPool }

func newRoots(pem []byte) (tlsRoots, error) {
	if len(pem) == 0 {
		return tlsRoots{}, nil
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return tlsRoots{}, glovebox.Errorf(glovebox.CodeInvalid, "name a file of certificates in PEM",
			"the authorities that the broker shall trust hold no certificate")
	}
	return tlsRoots{pool}, nil
}

// binding is what one run was lent.
type binding struct {
	server    *server
	run       broker.Run
	rules     atomic.Pointer[egress.Rules]
	lent      []*loan
	detector  *broker.Detector // of the placeholders of lent, in its order
	transport *http.Transport
	proxy     *httputil.ReverseProxy
	tokens    *mint.Lease
	actions   *action.Run // nil: it may call none
	life      context.Context
	end       context.CancelCauseFunc
	said      atomic.Int64 // lines of the log
}

// maxSaid bounds what one run can have written into the log.
const maxSaid = 50

// say logs what the operator should know of the run's requests.
func (b *binding) say(what string, args ...any) {
	n := b.said.Add(1)
	if n > maxSaid {
		return
	}
	if n == maxSaid {
		args = append(args, "last", true)
	}
	b.server.log.Warn(what, append([]any{"run", b.run.ID}, args...)...)
}

// loan is one secret of a run.
type loan struct {
	spec        broker.Spec
	index       int // in binding.lent
	endpoints   []broker.Endpoint
	rules       *egress.Rules // for which requests it is
	placeholder string
}

var errEnded = errors.New("what was lent was taken back")

func (s *server) bind(_ context.Context, ask broker.BindAsk) error {
	b := &binding{server: s, run: ask.Run,
		tokens: s.mint.Open(mint.Run{ID: ask.Run.ID, Tenant: ask.Run.Tenant, Rule: ask.Run.Rule})}
	placeholders := make([]string, 0, len(ask.Lent))
	for i, l := range ask.Lent {
		made, err := s.loan(l, i)
		if err != nil {
			return err
		}
		b.lent, placeholders = append(b.lent, made), append(placeholders, l.Placeholder)
	}
	rules, err := egress.Compile(ask.Rules)
	if err != nil {
		return glovebox.Internal("bind a run", err)
	}
	b.rules.Store(rules)
	b.detector = broker.NewDetector(placeholders)
	b.life, b.end = context.WithCancelCause(s.life)
	b.transport, b.proxy = b.newTransport(), b.newProxy()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bindings == nil || ask.Binding == "" || s.bindings[ask.Binding] != nil {
		return glovebox.Internal("bind a run", errors.New("the binding is there already, or the broker ends"))
	}
	if len(ask.Actions) > 0 {
		b.actions = s.actions.Open(ask.Run, ask.Actions)
	}
	s.bindings[ask.Binding] = b
	return nil
}

// loan makes one of what the client says: hosts can only be fewer than the configuration has.
func (s *server) loan(l broker.Lent, index int) (*loan, error) {
	spec := s.specs[l.Name]
	if spec == nil || l.Placeholder == "" {
		return nil, glovebox.Errorf(glovebox.CodeDenied, "name a configured secret: `glovebox secret ls`",
			"there is no secret %.80q", l.Name)
	}
	rules, err := spec.Rules()
	if err != nil {
		return nil, err
	}
	configured, err := spec.Endpoints()
	if err != nil {
		return nil, err
	}
	made := &loan{spec: *spec, index: index, rules: rules, placeholder: l.Placeholder}
	for _, h := range l.Hosts {
		e, err := broker.ParseEndpoint(h)
		if err != nil || !slices.Contains(configured, e) {
			return nil, glovebox.Errorf(glovebox.CodeDenied, "add it to secrets."+l.Name+".hosts in glovebox.yaml",
				"secret %s is not for %.100q", l.Name, h)
		}
		made.endpoints = append(made.endpoints, e)
	}
	return made, nil
}

// find returns a binding by its name.
func (s *server) find(id string) (*binding, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.bindings[id]; b != nil {
		return b, nil
	}
	return nil, glovebox.Errorf(glovebox.CodeNotFound, "bind the run first", "the broker has lent nothing under this name")
}

func (s *server) replace(_ context.Context, ask broker.ReplaceAsk) error {
	b, err := s.find(ask.Binding)
	if err != nil {
		return err
	}
	rules, err := egress.Compile(ask.Rules)
	if err != nil {
		return glovebox.Internal("replace the rules of a run", err)
	}
	b.rules.Store(rules)
	b.transport.CloseIdleConnections() // they may lead to where nothing may lead any more
	return nil
}

func (s *server) unbind(_ context.Context, ask broker.UnbindAsk) error {
	s.mu.Lock()
	b := s.bindings[ask.Binding]
	delete(s.bindings, ask.Binding)
	s.mu.Unlock()
	if b != nil {
		b.close()
	}
	return nil
}

// close ends the requests of the run.
func (b *binding) close() {
	b.end(errEnded)
	if b.actions != nil {
		b.actions.Close()
	}
	b.revoke()
	b.transport.CloseIdleConnections()
}

// newTransport is for this run alone: no connection is another's.
func (b *binding) newTransport() *http.Transport {
	return &http.Transport{
		DialContext:            b.dial,
		TLSClientConfig:        &tls.Config{RootCAs: b.server.network.pool, MinVersion: tls.VersionTLS12},
		ForceAttemptHTTP2:      true,
		DisableCompression:     true,
		MaxIdleConns:           16,
		MaxIdleConnsPerHost:    8,
		MaxConnsPerHost:        128,
		IdleConnTimeout:        time.Minute,
		TLSHandshakeTimeout:    10 * time.Second,
		ExpectContinueTimeout:  time.Second,
		MaxResponseHeaderBytes: 256 << 10,
		WriteBufferSize:        32 << 10,
		ReadBufferSize:         32 << 10,
		HTTP2:                  &http.HTTP2Config{MaxReceiveBufferPerConnection: 4 << 20, MaxReceiveBufferPerStream: 1 << 20},
	}
}

// dial connects to a bound host, as the rules are now.
func (b *binding) dial(ctx context.Context, _, address string) (net.Conn, error) {
	e, err := endpointOf(address)
	if err != nil {
		return nil, err
	}
	v := b.rules.Load().Stream(e.Host, e.Port, egress.HTTPS)
	if !v.Allowed || v.Mode != egress.Inspect {
		return nil, &refusal{reason: egress.ReasonPolicyChanged, text: "the rules changed and no longer allow this host"}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(b.life, func() { cancel(errEnded) })
	defer stop()
	return b.server.dialer.DialContext(ctx, upstream.Target{Host: e.Host, Port: e.Port, AllowPrivate: v.AllowPrivate})
}

// endpointOf reads HOST:PORT, of which both must be there.
func endpointOf(authority string) (e broker.Endpoint, err error) {
	name, port, ok := strings.Cut(authority, ":")
	n, err := strconv.ParseUint(port, 10, 16)
	if !ok || err != nil || n == 0 {
		return e, errors.New("this is no host and port")
	}
	e.Port = uint16(n)
	e.Host, err = egress.ParseHost(name)
	return e, err
}

// newProxy writes requests anew and brings back the answers, as they come.
func (b *binding) newProxy() *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Rewrite:        rewrite,
		Transport:      sender{b},
		FlushInterval:  -1,
		ModifyResponse: scrubResponse,
		ErrorHandler:   failed,
		ErrorLog:       slog.NewLogLogger(slog.DiscardHandler, slog.LevelError), // it could quote a request
	}
}
