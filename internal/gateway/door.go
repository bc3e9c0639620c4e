package gateway

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"time"

	"glovebox/internal/egress"
)

// Bounds of HTTP on the sandbox's side.
const (
	maxHeader  = 64 << 10
	maxStreams = 64        // of one connection of HTTP/2
	maxUpload  = 256 << 10 // bytes of one such connection that were sent and not read yet
	idleTime   = 5 * time.Minute
)

// door is where connections come in that speak HTTP: a net.Listener.
type door struct {
	life  context.Context
	conns chan net.Conn
}

func newDoor(life context.Context) *door { return &door{life, make(chan net.Conn)} }

// put hands over conn, unless the attachment has ended.
func (d *door) put(conn net.Conn) bool {
	select {
	case d.conns <- conn:
		return true
	case <-d.life.Done():
		return false
	}
}

func (d *door) Accept() (net.Conn, error) {
	select {
	case conn := <-d.conns:
		return conn, nil
	case <-d.life.Done():
		return nil, net.ErrClosed
	}
}

func (d *door) Close() error   { return nil }
func (d *door) Addr() net.Addr { return sandboxAddr{} }

// flowKey is the key of a connection's flow in the context of its requests.
type flowKey struct{}

// newServer is what reads requests, of HTTP/1 and HTTP/2. It writes each anew, so that what one reader takes for one request
// is one for all.
func (a *Attachment) newServer() *http.Server {
	// Its lines have text of the program; decisions are recorded.
	quiet := slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	return &http.Server{
		Handler: a,
		// Else a request for no path is answered without being judged.
		DisableGeneralOptionsHandler: true,
		ReadHeaderTimeout:            helloTimeout,
		IdleTimeout:                  idleTime,
		MaxHeaderBytes:               maxHeader,
		ErrorLog:                     quiet,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, flowKey{}, flowOf(c))
		},
		ConnState: func(c net.Conn, state http.ConnState) {
			// What the server refused by itself came to nobody's judgement: no request, or a malformed one.
			f := flowOf(c)
			if state == http.StateClosed && f.requests.Load() == 0 && f.denial == nil && f.ctx.Err() == nil {
				a.ledger.denied(f.name, f.port, layerHTTP, egress.ReasonNotHTTPOrTLS, "")
			}
		},
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: maxStreams, MaxReceiveBufferPerConnection: maxUpload, MaxReceiveBufferPerStream: maxUpload,
		},
	}
}

func flowOf(c net.Conn) *flow {
	if secured, ok := c.(*tls.Conn); ok {
		c = secured.NetConn()
	}
	return c.(*flow)
}
