package brokerd

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"glovebox"
	"glovebox/internal/broker"
	"glovebox/internal/egress"
	"glovebox/internal/upstream"
)

// refusal is a request that is not done, and why, as the program is told. It holds no value.
type refusal struct {
	status int // 0 means 403
	reason egress.Reason
	text   string
	secret string // whose placeholder it was; empty: of none
}

// Error says why.
func (r *refusal) Error() string { return string(r.reason) + ": " + r.text }

// refusalBody is a refusal as JSON, as the gateway writes its own.
type refusalBody struct {
	Error  string        `json:"error"`
	Host   string        `json:"host"`
	Reason egress.Reason `json:"reason"`
	Ask    string        `json:"ask"`
}

// answer sends r to the client, which knows it by its headers.
func (r *refusal) answer(w http.ResponseWriter, host string) {
	host = strings.TrimSuffix(host, ":443")
	body, err := json.Marshal(refusalBody{"egress refused: " + r.text, host, r.reason, r.ask()})
	if err != nil {
		body = []byte("{}") // strings are never in want of that
	}
	h := w.Header()
	clear(h)
	h.Set(broker.HeaderReason, string(r.reason))
	if r.secret != "" {
		h.Set(broker.HeaderSecret, r.secret)
	}
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Length", strconv.Itoa(len(body)+1))
	status := r.status
	if status == 0 {
		status = http.StatusForbidden
	}
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // a client that is gone needs no answer
}

// ask is what can be done about r.
func (r *refusal) ask() string {
	switch r.reason {
	case egress.ReasonSecretWrongHost, egress.ReasonSecretLocation:
		return "send it where its configuration says, to its own host"
	case egress.ReasonForeignCredential:
		return "send none: the one that was lent is added"
	case egress.ReasonUpstreamTLS:
		return "tell whoever runs the server"
	case egress.ReasonUpstreamFailed:
		return "try again later; the operator's log names the cause"
	}
	return "ask the operator"
}

// exchange is one request with its answer.
type exchange struct {
	b        *binding
	r        *http.Request
	endpoint broker.Endpoint
	loan     *loan
	header   http.Header // of the request, without credentials
	query    string      // likewise
	wants    bool        // the credential is to be added
	form     string      // what the program had in the place, its placeholder included

	small []byte     // its body, where that was read before
	cred  credential // what was added
	added bool
	push  []string // the refs that its body may change; nil: it is no push
}

type exchangeKey struct{}

func exchangeOf(ctx context.Context) *exchange { return ctx.Value(exchangeKey{}).(*exchange) }

// ServeHTTP judges a request of the run, and sends it with what is lent.
func (b *binding) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Host == broker.Host && b.actions != nil {
		b.actions.ServeHTTP(w, r)
		return
	}
	x := &exchange{b: b, r: r}
	if refused := x.judge(); refused != nil {
		refused.answer(w, r.Host)
		return
	}
	ctx, end := context.WithCancelCause(context.WithValue(r.Context(), exchangeKey{}, x))
	defer end(nil)
	stop := context.AfterFunc(b.life, func() { end(errEnded) })
	defer stop()
	r = r.WithContext(ctx)
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = &upload{ReadCloser: r.Body, x: x, scan: b.detector.Scan()}
		if err := x.readSmall(r); err != nil {
			failed(w, r, err)
			return
		}
	}
	if x.push != nil && !x.judgePush(w, r) {
		return
	}
	b.proxy.ServeHTTP(w, r)
}

// maxSmall bounds a body that is looked through before anything is sent, and that can be sent again.
const maxSmall = 64 << 10

// readSmall reads a body that says that it is short, so that what is refused for it was not begun.
func (x *exchange) readSmall(r *http.Request) error {
	if r.ContentLength <= 0 || r.ContentLength > maxSmall {
		return nil
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	x.small = body
	r.Body = io.NopCloser(bytes.NewReader(body))
	return nil
}

// judge holds a request against the run's rules and what it was lent, as if nobody had judged it. Nil means that it may be
// sent.
func (x *exchange) judge() *refusal {
	r := x.r
	if r.Method == http.MethodConnect || r.Method == http.MethodTrace || strings.EqualFold(r.Method, "TRACK") {
		return &refusal{reason: egress.ReasonMethod, text: "this method is not sent where a secret is lent"}
	}
	var err error
	if x.endpoint, err = endpointOf(r.Host); err != nil {
		return &refusal{reason: egress.ReasonNameInvalid, text: "this is no host and port"}
	}
	path, err := egress.CanonicalPath(r.URL.EscapedPath())
	if err != nil || path != r.URL.EscapedPath() {
		return &refusal{reason: egress.ReasonPath, text: "the path is not in its one form"}
	}
	v := x.b.rules.Load().Request(x.endpoint.Host, x.endpoint.Port, egress.HTTPS, r.Method, path)
	if !v.Allowed {
		return &refusal{reason: v.Reason, text: "no rule of the run allows this request"}
	}
	if v.Mode != egress.Inspect {
		return &refusal{reason: egress.ReasonHostNotAllowed, text: "no secret is lent where requests are not judged"}
	}
	if refused := x.choose(path); refused != nil {
		return refused
	}
	if x.loan.spec.Attach == broker.PlaceGit {
		if refused := x.judgeGit(v.Push); refused != nil {
			return refused
		}
	}
	return x.takeOut()
}

// choose finds the secret that is lent for the request: one, or none is sent.
func (x *exchange) choose(path string) *refusal {
	no := &refusal{reason: egress.ReasonHostNotAllowed, text: "no secret was lent for this host"}
	for _, l := range x.b.lent {
		if !slices.Contains(l.endpoints, x.endpoint) {
			continue
		}
		v := l.rules.Request(x.endpoint.Host, x.endpoint.Port, egress.HTTPS, x.r.Method, path)
		switch {
		case !v.Allowed:
			no = &refusal{reason: v.Reason, text: "no secret was lent for such requests to this host"}
		case x.loan != nil:
			return &refusal{reason: egress.ReasonSecretWrongHost,
				text: "two secrets are lent for this request: which is meant is not clear"}
		default:
			x.loan = l
		}
	}
	if x.loan == nil {
		return no
	}
	return nil
}

// upload is a request's body while it passes, looked through for placeholders.
type upload struct {
	io.ReadCloser
	x    *exchange
	scan *broker.Scan
}

func (u *upload) Read(p []byte) (int, error) {
	n, err := u.ReadCloser.Read(p)
	if u.scan.Find(p[:n]) {
		return 0, u.x.misplaced(u.scan.Found())
	}
	if err == io.EOF {
		if refused := u.x.looked(u.x.r.Trailer); refused != nil {
			return 0, refused
		}
	}
	return n, err
}

// misplaced refuses a placeholder that is where it is not replaced.
func (x *exchange) misplaced(index int) *refusal {
	l := x.b.lent[index]
	if l != x.loan {
		return &refusal{reason: egress.ReasonSecretWrongHost, secret: l.spec.Name,
			text: "a placeholder of a secret was sent to a host or request that the secret is not for"}
	}
	return &refusal{reason: egress.ReasonSecretLocation, secret: l.spec.Name,
		text: "a placeholder of a secret was sent in a place that it is not for"}
}

// looked refuses placeholders in headers.
func (x *exchange) looked(h http.Header) *refusal {
	for name, values := range h {
		if i := x.b.detector.In(append([]string{name}, values...)...); i >= 0 {
			return x.misplaced(i)
		}
	}
	return nil
}

// rewrite makes the request that is sent, still without a credential.
func rewrite(p *httputil.ProxyRequest) {
	x := exchangeOf(p.In.Context())
	authority := x.endpoint.Host.String()
	if x.endpoint.Port != 443 {
		authority = x.endpoint.String()
	}
	path := p.In.URL.EscapedPath()
	plain, err := url.PathUnescape(path)
	if err != nil {
		plain = path // it was judged, so that it can be unescaped
	}
	p.Out.URL = &url.URL{Scheme: "https", Host: authority, Path: plain, RawPath: path, RawQuery: x.query}
	p.Out.Host = authority
	te := p.Out.Header["Te"] // the proxy has judged it
	p.Out.Header = x.header.Clone()
	for _, name := range []string{"Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding",
		"Upgrade"} {
		p.Out.Header.Del(name)
	}
	if te != nil {
		p.Out.Header["Te"] = te
	}
	if _, ok := p.Out.Header["User-Agent"]; !ok {
		p.Out.Header.Set("User-Agent", "") // none is made up
	}
	// What is compressed cannot be looked through.
	p.Out.Header.Set("Accept-Encoding", "identity")
	// The same map: its values come after the body.
	p.Out.Trailer = p.In.Trailer
}

// sender adds the credential and sends.
type sender struct{ b *binding }

// RoundTrip implements http.RoundTripper.
func (s sender) RoundTrip(r *http.Request) (*http.Response, error) {
	x := exchangeOf(r.Context())
	r = r.WithContext(untraced{r.Context()})
	if err := context.Cause(r.Context()); err != nil {
		return nil, err
	}
	if !x.wants {
		return s.b.transport.RoundTrip(r)
	}
	var err error
	if x.cred, err = x.credential(r.Context()); err != nil {
		return nil, err
	}
	resp, err := x.send(r)
	gone := r.Body != nil && r.Body != http.NoBody && x.small == nil
	if err != nil || resp.StatusCode != http.StatusUnauthorized || gone {
		return resp, err
	}
	old := x.cred
	if x.cred, err = x.another(r.Context()); err != nil || x.cred == old {
		x.cred = old
		return resp, nil
	}
	_ = resp.Body.Close() // of an answer that nobody reads
	return x.send(r)
}

// send sends a copy of r with the credential.
func (x *exchange) send(r *http.Request) (*http.Response, error) {
	out := r.Clone(r.Context())
	if out.Body = r.Body; x.small != nil {
		out.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(x.small)), nil }
		out.Body = io.NopCloser(bytes.NewReader(x.small))
	}
	if err := x.inject(out); err != nil {
		return nil, err
	}
	x.added = true
	return x.b.transport.RoundTrip(out)
}

// untraced hides who listens to the steps of a request: informational answers would pass unseen by the scrubber.
type untraced struct{ context.Context }

func (c untraced) Value(key any) any {
	v := c.Context.Value(key)
	if _, ok := v.(*httptrace.ClientTrace); ok {
		return nil
	}
	return v
}

// failed answers for a request to which no answer came.
func failed(w http.ResponseWriter, r *http.Request, err error) {
	if cause := context.Cause(r.Context()); cause != nil {
		err = cause
	}
	why := classify(err)
	if why == nil {
		panic(http.ErrAbortHandler) // the client is gone, or what was lent was taken back
	}
	x := exchangeOf(r.Context())
	var refused *refusal
	if !errors.As(err, &refused) { // what a program did is told to it, and recorded by the gateway
		cause, _ := newScrubber(x.cred.secrets()).maskString(err.Error()) // it may quote what a server sent back
		x.b.say("a request failed", "host", x.endpoint.String(), "reason", string(why.reason), "err", cause)
	}
	why.answer(w, x.endpoint.String())
}

// classify gives an error its reason; nil where there is nobody to be told.
func classify(err error) *refusal {
	var refused *refusal
	var dial *upstream.Error
	var known *glovebox.Error
	switch {
	case errors.As(err, &refused):
		return refused
	case errors.Is(err, errEnded), errors.Is(err, context.Canceled):
		return nil
	case errors.As(err, &known):
		return &refusal{status: http.StatusBadGateway, reason: egress.ReasonUpstreamFailed,
			text: "the request was not sent: " + known.Public}
	case errors.As(err, &dial):
		if dial.Reason == egress.ReasonUpstreamIPPrivate {
			return &refusal{reason: dial.Reason, text: "the name leads to a private address"}
		}
		return &refusal{status: http.StatusBadGateway, reason: dial.Reason, text: "the server cannot be reached"}
	case errors.Is(err, errEncoded):
		return &refusal{status: http.StatusBadGateway, reason: egress.ReasonUpstreamFailed, text: errEncoded.Error()}
	case untrusted(err):
		return &refusal{status: http.StatusBadGateway, reason: egress.ReasonUpstreamTLS,
			text: "the server's certificate does not prove that it is this host"}
	}
	return &refusal{status: http.StatusBadGateway, reason: egress.ReasonUpstreamFailed,
		text: "the server did not answer as it should"}
}

// untrusted tells of a server that could not prove who it is.
func untrusted(err error) bool {
	var cert *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	var alert tls.AlertError
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	return errors.As(err, &cert) || errors.As(err, &record) || errors.As(err, &alert) || errors.As(err, &unknown) ||
		errors.As(err, &name) || errors.As(err, &invalid) || strings.Contains(err.Error(), "tls: ") ||
		strings.Contains(err.Error(), "TLS handshake timeout")
}
