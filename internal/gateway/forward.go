package gateway

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync"

	"glovebox/internal/egress"
	"glovebox/internal/upstream"
)

// buffers lends what is copied through, of one size.
type buffers struct{ pool sync.Pool }

func newBuffers(size int) *buffers {
	return &buffers{sync.Pool{New: func() any {
		b := make([]byte, size)
		return &b
	}}}
}

func (b *buffers) Get() []byte  { return *b.pool.Get().(*[]byte) }
func (b *buffers) Put(p []byte) { b.pool.Put(&p) }

// newProxy is what writes requests anew and brings back the answers, as they come.
func (a *Attachment) newProxy() *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Rewrite:        rewrite,
		Transport:      a,
		FlushInterval:  -1,
		ModifyResponse: modify,
		ErrorHandler:   failed,
		BufferPool:     a.gateway.bodies,
		ErrorLog:       slog.NewLogLogger(slog.DiscardHandler, slog.LevelError), // see newServer
	}
}

func exchangeOf(ctx context.Context) *exchange { return ctx.Value(exchangeKey{}).(*exchange) }

// stripped are headers of a request that tell who is between, or that are for whoever is.
var stripped = []string{"Via", "Forwarded", "X-Real-Ip", "Alt-Used", "Host", "Max-Forwards"}

// rewrite makes the request that is sent out of the one that was judged.
func rewrite(p *httputil.ProxyRequest) {
	x := exchangeOf(p.In.Context())
	u, ok := x.target()
	if !ok {
		x.end(errPath)
	}
	p.Out.URL, p.Out.Host = u, u.Host
	for name := range p.Out.Header {
		if strings.HasPrefix(name, "X-Forwarded-") || strings.HasPrefix(name, "Proxy-") {
			delete(p.Out.Header, name)
		}
	}
	for _, name := range stripped {
		p.Out.Header.Del(name)
	}
	if !x.upgrade {
		p.Out.Header.Del("Connection")
		p.Out.Header.Del("Upgrade")
		p.Out.Header.Del("Http2-Settings")
	}
	// The same map: its values come after the body.
	p.Out.Trailer = p.In.Trailer
}

var errPath = errors.New("the path has no one form")

// modify takes off an answer what would lead around the gateway.
func modify(res *http.Response) error {
	x := exchangeOf(res.Request.Context())
	x.status = res.StatusCode
	if reason := res.Header.Get(ReasonHeader); reason != "" {
		res.Header.Del(ReasonHeader)
		if x.bound() {
			x.failure = &refusal{status: res.StatusCode, reason: egress.Reason(reason)}
		}
	}
	for _, name := range []string{"Alt-Svc", "Alternate-Protocol", "Via", "Proxy-Authenticate"} {
		res.Header.Del(name)
	}
	if res.StatusCode == http.StatusSwitchingProtocols {
		if !x.upgrade {
			return errors.New("the server changed the protocol, for which nobody asked")
		}
		return nil
	}
	res.Body = &download{res.Body, x}
	return nil
}

// RoundTrip sends a judged request: by the broker where a secret is bound for its host, else by itself.
func (a *Attachment) RoundTrip(r *http.Request) (*http.Response, error) {
	x := exchangeOf(r.Context())
	if err := context.Cause(r.Context()); err != nil {
		return nil, err
	}
	if x.bound() {
		return a.binding.RoundTrip(r)
	}
	host, err := a.upstreamHost(place{x.f.host, x.f.port})
	if err != nil {
		return nil, err
	}
	return host.transport.RoundTrip(r)
}

// failed answers for a request to which no answer came.
func failed(w http.ResponseWriter, r *http.Request, err error) {
	x := exchangeOf(r.Context())
	if cause := context.Cause(r.Context()); cause != nil {
		err = cause
	}
	why := classify(err)
	why.rule = x.verdict.Rule
	x.err = err
	if why.reason == "" {
		panic(http.ErrAbortHandler) // the program, or the sandbox, is gone
	}
	x.failure, x.status = &why, why.code()
	if x.r.ProtoMajor < 2 {
		w.Header().Set("Connection", "close")
	}
	why.answer(w, x.f.name, x.f.port)
}

// classify gives an error its reason. None means that there is nobody to be told.
func classify(err error) refusal {
	var dial *upstream.Error
	var cert *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	var alert tls.AlertError
	switch {
	case errors.Is(err, errBodyLimit):
		return refusal{status: http.StatusRequestEntityTooLarge, reason: egress.ReasonBodyCap}
	case errors.Is(err, errPlaceholder):
		return refusal{reason: egress.ReasonSecretWrongHost}
	case errors.Is(err, errBody):
		return refusal{status: http.StatusBadRequest, reason: egress.ReasonNotHTTPOrTLS}
	case errors.Is(err, errPolicy):
		return refusal{reason: egress.ReasonPolicyChanged}
	case errors.Is(err, errExpired):
		return refusal{reason: egress.ReasonExpired}
	case errors.Is(err, errPath):
		return refusal{reason: egress.ReasonPath}
	case errors.Is(err, errEnded), errors.Is(err, context.Canceled):
		return refusal{}
	case errors.As(err, &dial) && dial.Reason == egress.ReasonUpstreamIPPrivate:
		return refusal{reason: dial.Reason}
	case errors.As(err, &cert), errors.As(err, &record), errors.As(err, &alert), isCertificate(err):
		return refusal{status: http.StatusBadGateway, reason: egress.ReasonUpstreamTLS}
	}
	return refusal{status: http.StatusBadGateway, reason: egress.ReasonUpstreamFailed}
}

// isCertificate tells of errors about certificates, and of a handshake that came to nothing, which have no type in common.
func isCertificate(err error) bool {
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	return errors.As(err, &unknown) || errors.As(err, &name) || errors.As(err, &invalid) ||
		strings.Contains(err.Error(), "tls: ") || strings.Contains(err.Error(), "TLS handshake timeout")
}
