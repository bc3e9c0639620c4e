package mint

import (
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"glovebox"
	"glovebox/internal/broker"
)

// world is a mint with one secret, its sources and the token service that it asks.
type world struct {
	t       *testing.T
	sources map[string]string
	mint    *Mint
	logged  *strings.Builder

	mu     sync.Mutex
	now    time.Time
	dialed []string
}

const secretName = "KEY"

// newWorld makes one whose token service is answer, at service.test.
func newWorld(t *testing.T, tokens *broker.Tokens, sources map[string]string, answer http.HandlerFunc) *world {
	t.Helper()
	if err := tokens.Check(); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(answer)
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	w := &world{t: t, sources: sources, now: time.Now(), logged: &strings.Builder{}}
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	m, err := New(Config{
		Tokens: map[string]*broker.Tokens{secretName: tokens},
		Source: func(_ context.Context, name string) ([]byte, error) {
			v, ok := w.sources[name]
			if !ok {
				return nil, glovebox.Errorf(glovebox.CodeUnavailable, "put it there", "the file of secret %s is not there", name)
			}
			return []byte(v), nil
		},
		Dial: func(ctx context.Context, address string, _ []netip.Prefix) (net.Conn, error) {
			w.mu.Lock()
			w.dialed = append(w.dialed, address)
			w.mu.Unlock()
			if address != "example.com:443" { // the name in the server's certificate
				return nil, errors.New("there is no such host")
			}
			return new(net.Dialer).DialContext(ctx, "tcp", server.Listener.Addr().String())
		},
		Roots:   roots,
		KeyFile: filepath.Join(t.TempDir(), "caller.key"),
		Log:     slog.New(slog.NewTextHandler(w.logged, nil)),
		Now:     w.clock,
	})
	if err != nil {
		t.Fatal(err)
	}
	w.mint = m
	return w
}

func (w *world) clock() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

func (w *world) pass(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = w.now.Add(d)
}

func (w *world) lease() *Lease { return w.mint.Open(Run{ID: "run_1", Tenant: "acme", Rule: "r1"}) }

// token is a token that there must be.
func (w *world) token(l *Lease) Token {
	w.t.Helper()
	t, err := l.Token(w.t.Context(), secretName)
	if err != nil {
		w.t.Fatalf("no token: %v (%v)", err, errors.Unwrap(err))
	}
	return t
}

// refusal is the error of a mint that must fail: what it says, and how to mend it. No source's value may be in it.
func (w *world) refusal(l *Lease) (said, fix string) {
	w.t.Helper()
	got, err := l.Token(w.t.Context(), secretName)
	var e *glovebox.Error
	if !errors.As(err, &e) {
		w.t.Fatalf("token %q, error %v, want a refusal", got.Value, err)
	}
	if got.Value != "" {
		w.t.Errorf("a refusal came with a token")
	}
	for _, v := range w.sources {
		if whole := e.Error() + e.Fix + w.logged.String(); strings.Contains(whole, strings.TrimSpace(v)) {
			w.t.Errorf("a source's value is in what is said or logged: %s", whole)
		}
	}
	return e.Public, e.Fix
}

func wantText(t *testing.T, what, got, want string) {
	t.Helper()
	if !strings.Contains(got, want) {
		t.Errorf("%s is %q, want %q in it", what, got, want)
	}
}
