package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"glovebox/internal/egress"
	"glovebox/internal/upstream"
)

// maxPlaces bounds the hosts of which something is kept for one sandbox.
const maxPlaces = 256

// place is a host and port that the sandbox may reach.
type place struct {
	host egress.Host
	port uint16
}

// upstreamHost is what one sandbox has of one place: connections to it, and a certificate in its name. No other sandbox
// shares them.
type upstreamHost struct {
	a         *Attachment
	place     place
	private   []netip.Prefix // where it may lead, beside the internet
	server    *tls.Config    // for the sandbox's side
	transport *http.Transport

	mu     sync.Mutex
	leaf   *tls.Certificate
	used   time.Time
	closed bool
	conns  map[*upstreamConn]struct{}
}

// upstreamHost returns what there is of a place, and makes it.
func (a *Attachment) upstreamHost(at place) (*upstreamHost, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil, errEnded
	}
	h := a.places[at]
	if h == nil {
		if len(a.places) >= maxPlaces && !a.forget() {
			return nil, errors.New("too many hosts are in use at a time")
		}
		h = a.newUpstreamHost(at)
		a.places[at] = h
	}
	h.mu.Lock()
	h.used = now()
	h.mu.Unlock()
	return h, nil
}

// forget drops the place that was not used for the longest time and to which there is no connection. It is called with the
// lock held.
func (a *Attachment) forget() bool {
	var oldest *upstreamHost
	for _, h := range a.places {
		h.transport.CloseIdleConnections()
		h.mu.Lock()
		idle := len(h.conns) == 0
		h.mu.Unlock()
		if idle && (oldest == nil || h.used.Before(oldest.used)) {
			oldest = h
		}
	}
	if oldest == nil {
		return false
	}
	delete(a.places, oldest.place)
	return true
}

func (a *Attachment) newUpstreamHost(at place) *upstreamHost {
	h := &upstreamHost{a: a, place: at, conns: map[*upstreamConn]struct{}{},
		private: a.judgeConnect(at.host, at.port).AllowPrivate}
	h.server = &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2", "http/1.1"},
		// Small records are for slow links, and this one is within the machine.
		DynamicRecordSizingDisabled: true,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return h.certificate() // for the name that was judged, whatever is said here
		},
	}
	h.transport = &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return h.dial(ctx) },
		TLSClientConfig: &tls.Config{
			ServerName: at.host.String(), RootCAs: a.gateway.roots, MinVersion: tls.VersionTLS12,
			ClientSessionCache: tls.NewLRUClientSessionCache(4),
		},
		ForceAttemptHTTP2:      true,
		DisableCompression:     true,
		MaxIdleConns:           8,
		MaxIdleConnsPerHost:    8,
		MaxConnsPerHost:        128,
		IdleConnTimeout:        time.Minute,
		TLSHandshakeTimeout:    10 * time.Second,
		ExpectContinueTimeout:  time.Second,
		MaxResponseHeaderBytes: maxHeader,
		WriteBufferSize:        32 << 10,
		ReadBufferSize:         32 << 10,
		HTTP2:                  &http.HTTP2Config{MaxReceiveBufferPerConnection: 4 << 20, MaxReceiveBufferPerStream: 1 << 20},
	}
	return h
}

// certificate is one in the name of the place, which holds for an hour at least.
func (h *upstreamHost) certificate() (*tls.Certificate, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.leaf == nil || now().Add(leafRenew).After(h.leaf.Leaf.NotAfter) {
		leaf, err := h.a.ca.issue(h.place.host.String())
		if err != nil {
			return nil, err
		}
		h.leaf = leaf
	}
	return h.leaf, nil
}

// dial connects to the place as the rules are now.
func (h *upstreamHost) dial(ctx context.Context) (net.Conn, error) {
	conn, err := h.a.dial(ctx, h.place)
	if err != nil {
		return nil, err
	}
	kept := &upstreamConn{Conn: conn, h: h}
	h.mu.Lock()
	closed := h.closed
	if !closed {
		h.conns[kept] = struct{}{}
	}
	h.mu.Unlock()
	if closed {
		_ = conn.Close() // nobody has used it
		return nil, errEnded
	}
	return kept, nil
}

// dial connects to a place, judged now, until the attachment ends.
func (a *Attachment) dial(ctx context.Context, at place) (net.Conn, error) {
	v := a.judgeConnect(at.host, at.port)
	if !v.Allowed {
		return nil, errPolicy
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(a.life, func() { cancel(errEnded) })
	defer stop()
	return a.gateway.config.Dialer.DialContext(ctx, upstream.Target{Host: at.host, Port: at.port, AllowPrivate: v.AllowPrivate})
}

// close ends all connections to the place.
func (h *upstreamHost) close() {
	h.mu.Lock()
	h.closed = true
	conns := make([]*upstreamConn, 0, len(h.conns))
	for c := range h.conns {
		conns = append(conns, c)
	}
	h.mu.Unlock()
	h.transport.CloseIdleConnections()
	for _, c := range conns {
		_ = c.Close()
	}
}

// upstreamConn is a connection that is known while it is open.
type upstreamConn struct {
	net.Conn
	h *upstreamHost
}

func (c *upstreamConn) Close() error {
	c.h.mu.Lock()
	delete(c.h.conns, c)
	c.h.mu.Unlock()
	return c.Conn.Close()
}

// Replace changes the rules. What they no longer allow has ended within a second; nothing new is allowed by the old ones
// once Replace has returned. Nil allows nothing.
func (a *Attachment) Replace(rules *egress.Rules) {
	a.rules.Store(rules)
	a.rejudge(egress.ReasonPolicyChanged)
}

// rejudge ends what may be open no longer, for a reason.
func (a *Attachment) rejudge(why egress.Reason) {
	a.mu.Lock()
	flows := make([]*flow, 0, len(a.flows))
	for _, f := range a.flows {
		flows = append(flows, f)
	}
	exchanges := make([]*exchange, 0, len(a.active))
	for x := range a.active {
		exchanges = append(exchanges, x)
	}
	var lost []*upstreamHost
	for at, h := range a.places {
		if v := a.judgeConnect(at.host, at.port); !v.Allowed || !slices.Equal(v.AllowPrivate, h.private) {
			lost = append(lost, h)
			delete(a.places, at)
		}
	}
	a.mu.Unlock()
	cause := errPolicy
	if why == egress.ReasonExpired {
		cause = errExpired
	}
	for _, x := range exchanges {
		if !x.f.broker && !a.judgeRequest(x).Allowed {
			x.end(cause)
		}
	}
	for _, f := range flows {
		a.rejudgeFlow(f, why)
	}
	for _, h := range lost {
		h.close()
	}
}
