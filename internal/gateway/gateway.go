package gateway

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"net"
	"sync"
	"time"

	"glovebox"
	"glovebox/internal/upstream"
)

// Dialer connects to what a name stands for, and judges where that is. It is an upstream.Dialer.
type Dialer interface {
	DialContext(ctx context.Context, t upstream.Target) (net.Conn, error)
}

// Config is what a Gateway is made of.
type Config struct {
	// Dialer is how anything is reached.
	Dialer Dialer
	// Roots are the authorities that the machine trusts, as PEM: servers are verified against them, and each sandbox is shown
	// them beside its own. There must be one at least.
	Roots []byte
	// Log gets one line for each decision, or for several that are the same. Nil logs nothing.
	Log *slog.Logger
	// Quotas bound what one sandbox may do. Zero fields mean the values that Quotas names.
	Quotas Quotas
}

// Quotas bound what one sandbox may do, beside the bytes of its run's limits.
type Quotas struct {
	Flows             int           // connections at a time; 0 means 256
	Requests          int           // of HTTP at a time; 0 means 128
	RequestsPerMinute int           // of HTTP, in all; 0 means 3000
	HostBytes         glovebox.Size // to and from one name; 0 means no bound of its own
}

// Gateway opens attachments. Methods are safe for concurrent use.
type Gateway struct {
	config  Config
	roots   *x509.CertPool
	store   []byte // the same as Java has it
	bodies  *buffers
	streams *buffers

	mu       sync.Mutex
	attached map[*Attachment]struct{}
	closed   bool
}

// New makes a Gateway. It fails with code invalid where config cannot be used.
func New(config Config) (*Gateway, error) {
	if config.Dialer == nil {
		return nil, glovebox.Errorf(glovebox.CodeInternal, "report this", "a gateway was made without a dialer")
	}
	if config.Log == nil {
		config.Log = slog.New(slog.DiscardHandler)
	}
	q := &config.Quotas
	if q.Flows < 0 || q.Requests < 0 || q.RequestsPerMinute < 0 || q.HostBytes < 0 {
		return nil, glovebox.Errorf(glovebox.CodeInvalid, "give positive numbers, or none for the usual ones",
			"a quota of the gateway is negative")
	}
	if q.Flows == 0 {
		q.Flows = 256
	}
	if q.Requests == 0 {
		q.Requests = 128
	}
	if q.RequestsPerMinute == 0 {
		q.RequestsPerMinute = 3000
	}
	g := &Gateway{config: config, roots: x509.NewCertPool(), attached: map[*Attachment]struct{}{},
		bodies: newBuffers(32 << 10), streams: newBuffers(128 << 10)}
	var certs []*x509.Certificate
	for rest := config.Roots; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		// A bundle may have one certificate that Go refuses; it is then trusted by nobody here.
		if cert, err := x509.ParseCertificate(block.Bytes); block.Type == "CERTIFICATE" && err == nil {
			g.roots.AddCert(cert)
			certs = append(certs, cert)
		}
	}
	if len(certs) == 0 {
		return nil, glovebox.Errorf(glovebox.CodeUnavailable,
			"install the package ca-certificates, or name a file of certificates in the configuration",
			"this machine has no certificates of authorities, by which servers could be verified")
	}
	var err error
	if g.store, err = encodeStore(certs); err != nil {
		return nil, glovebox.Internal("show the machine's authorities to Java", err)
	}
	g.config.Roots = append(bytes.TrimRight(bytes.Clone(config.Roots), "\n"), '\n')
	return g, nil
}

// Close closes all attachments that are left and waits until nothing passes any more.
func (g *Gateway) Close(ctx context.Context) error {
	g.mu.Lock()
	g.closed = true
	left := make([]*Attachment, 0, len(g.attached))
	for a := range g.attached {
		left = append(left, a)
	}
	g.mu.Unlock()
	var first error
	for _, a := range left {
		if err := a.Close(ctx); err != nil && first == nil {
			first = err
		}
	}
	return first
}

func (g *Gateway) add(a *Attachment) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return glovebox.Errorf(glovebox.CodeUnavailable, "try again when Glovebox has started again", "the gateway is closed")
	}
	g.attached[a] = struct{}{}
	return nil
}

func (g *Gateway) remove(a *Attachment) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.attached, a)
}

// now is the clock by which certificates are dated.
func now() time.Time { return time.Now() }
