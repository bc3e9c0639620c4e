package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"glovebox"
	"glovebox/internal/egress"
)

// exchange is one request with its answer.
type exchange struct {
	a       *Attachment
	f       *flow
	r       *http.Request
	verdict egress.Verdict
	path    string // canonical, escaped: what is judged and what is sent
	query   string
	upgrade bool // it asks for a web socket, and may

	end      context.CancelCauseFunc
	began    time.Time
	status   int
	up, down atomic.Int64 // bytes of bodies
	before   [2]int64     // bytes of the connection when it began
	failure  *refusal     // how it failed, if it did
	err      error        // for the operator
	expiry   *time.Timer
}

type exchangeKey struct{}

// Errors that end a request while its body passes, or before.
var (
	errBodyLimit   = errors.New("the body is larger than the rule allows")
	errPlaceholder = errors.New("a placeholder was sent to where it is not for")
	errBody        = errors.New("the body cannot be read")
	errPolicy      = errors.New("the rules no longer allow it")
	errExpired     = errors.New("the rule that allowed it has ended")
)

// ServeHTTP judges a request, and passes it on or answers why not.
func (a *Attachment) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f := r.Context().Value(flowKey{}).(*flow)
	f.requests.Add(1)
	busy := a.busy.Add(1)
	defer a.busy.Add(-1)
	if busy > 2*int64(a.gateway.config.Quotas.Requests) {
		panic(http.ErrAbortHandler) // a program that does not read its answers does not make more of them
	}
	if f.denial != nil {
		w.Header().Set("Connection", "close")
		f.denial.answer(w, f.name, f.port)
		return
	}
	x := &exchange{a: a, f: f, r: r, began: now(), before: [2]int64{f.up.Load(), f.down.Load()}}
	if busy > int64(a.gateway.config.Quotas.Requests) {
		x.refuse(w, refusal{status: http.StatusTooManyRequests, reason: egress.ReasonQuota})
		return
	}
	if refused := x.judge(); refused != nil {
		x.refuse(w, *refused)
		return
	}
	ctx, end := context.WithCancelCause(context.WithValue(r.Context(), exchangeKey{}, x))
	defer end(nil)
	x.end = end
	stop := context.AfterFunc(a.life, func() { end(errEnded) })
	defer stop()
	if !a.begun(x) {
		panic(http.ErrAbortHandler) // the attachment has ended
	}
	defer a.ended(x)
	defer x.tell()
	if !f.broker && !a.judgeRequest(x).Allowed {
		end(errPolicy) // the rules changed before it was known to be there
	}
	r = r.WithContext(ctx)
	if f.broker {
		a.serveBroker(w, r, x)
		return
	}
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = &upload{ReadCloser: r.Body, x: x, left: bodyBound(x.verdict.BodyLimit), find: x.finder()}
	}
	a.proxy.ServeHTTP(w, r)
}

// bodyBound is how many bytes a body may have; below 0 there is no bound.
func bodyBound(limit glovebox.Size) int64 {
	if limit <= 0 {
		return -1
	}
	return int64(limit)
}

// judge holds a request against its connection, the rules and the quotas. Nil means that it may pass.
func (x *exchange) judge() *refusal {
	r, f := x.r, x.f
	if r.Method == http.MethodConnect {
		return &refusal{reason: egress.ReasonConnect}
	}
	if !x.authority() {
		return &refusal{reason: egress.ReasonAuthorityMismatch}
	}
	if r.Method == http.MethodTrace || strings.EqualFold(r.Method, "TRACK") {
		return &refusal{reason: egress.ReasonMethod} // it would show what was added to it
	}
	if !x.a.requests.more(x.began) {
		return &refusal{status: http.StatusTooManyRequests, reason: egress.ReasonQuota}
	}
	var err error
	if x.path, err = egress.CanonicalPath(r.URL.EscapedPath()); err != nil || !strings.HasPrefix(x.path, "/") {
		x.path = ""
		return &refusal{reason: egress.ReasonPath}
	}
	x.query = canonicalQuery(r.URL.RawQuery)
	if f.broker {
		return nil // who decides by itself
	}
	x.verdict = x.a.judgeRequest(x)
	if !x.verdict.Allowed {
		return &refusal{reason: x.verdict.Reason, rule: x.verdict.Rule}
	}
	if limit := bodyBound(x.verdict.BodyLimit); limit >= 0 && r.ContentLength > limit {
		return &refusal{status: http.StatusRequestEntityTooLarge, reason: egress.ReasonBodyCap, rule: x.verdict.Rule}
	}
	if x.asksUpgrade() {
		if !x.verdict.WebSocket {
			return &refusal{reason: egress.ReasonWebSocket, rule: x.verdict.Rule}
		}
		x.upgrade = true
	}
	if x.a.betrays(x) {
		x.a.betrayed()
		return &refusal{reason: egress.ReasonSecretWrongHost, rule: x.verdict.Rule}
	}
	return nil
}

// authority tells whether the request names the host that its connection is for, and nothing else.
func (x *exchange) authority() bool {
	r, f := x.r, x.f
	scheme, usual := "http", uint16(80)
	if f.secure {
		scheme, usual = "https", 443
	}
	if r.URL.Scheme != "" && r.URL.Scheme != scheme || r.URL.User != nil || r.URL.Opaque != "" {
		return false
	}
	if r.URL.Host != "" && r.URL.Host != r.Host {
		return false
	}
	// HTTP/2 may bring the name twice.
	for _, named := range r.Header["Host"] {
		if named != r.Host {
			return false
		}
	}
	name, port := r.Host, f.port
	if i := strings.LastIndexByte(name, ':'); i >= 0 {
		n, err := strconv.ParseUint(name[i+1:], 10, 16)
		if err != nil {
			return false
		}
		name, port = name[:i], uint16(n)
	} else if f.port != usual {
		port = f.port // some leave it out; what is sent on has it
	}
	host, err := egress.ParseHost(name)
	return err == nil && host == f.host && port == f.port
}

// asksUpgrade tells whether the request wants its connection to become a web socket. Other upgrades are not passed on, and a
// server answers as if nobody had asked.
func (x *exchange) asksUpgrade() bool {
	return hasToken(x.r.Header["Connection"], "upgrade") && hasToken(x.r.Header["Upgrade"], "websocket")
}

func hasToken(values []string, token string) bool {
	for _, v := range values {
		for part := range strings.SplitSeq(v, ",") {
			if strings.EqualFold(strings.TrimSpace(part), token) {
				return true
			}
		}
	}
	return false
}

// canonicalQuery escapes what may not stand in a request's first line.
func canonicalQuery(query string) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(query) {
		if c := query[i]; c <= ' ' || c >= 0x7f || c == '#' || c == '"' || c == '<' || c == '>' {
			b.WriteByte('%')
			b.WriteByte(hex[c>>4])
			b.WriteByte(hex[c&15])
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

func (a *Attachment) judgeRequest(x *exchange) egress.Verdict {
	rules := a.rules.Load()
	if rules == nil {
		return egress.Verdict{Reason: egress.ReasonHostNotAllowed}
	}
	protocol := egress.HTTP
	if x.f.secure {
		protocol = egress.HTTPS
	}
	return rules.Request(x.f.host, x.f.port, protocol, x.r.Method, x.path)
}

// refuse answers with a refusal and records it.
func (x *exchange) refuse(w http.ResponseWriter, why refusal) {
	x.a.ledger.note(glovebox.EgressFlow{Host: x.f.name, Port: int(x.f.port), Layer: layerHTTP, Reason: string(why.reason),
		Rule: why.rule, Method: shownMethod(x.r.Method), Path: x.path}, detail{query: x.query, status: why.code()})
	if x.r.ContentLength != 0 && x.r.ProtoMajor < 2 {
		w.Header().Set("Connection", "close")
	}
	why.answer(w, x.f.name, x.f.port)
}

// shownMethod bounds what a record has of a method.
func shownMethod(m string) string { return m[:min(len(m), 32)] }

// tell records a request that was let through, however it went on.
func (x *exchange) tell() {
	f := glovebox.EgressFlow{Host: x.f.name, Port: int(x.f.port), Allowed: true, Layer: layerHTTP, Rule: x.verdict.Rule,
		Method: shownMethod(x.r.Method), Path: x.path, BytesUp: x.up.Load(), BytesDown: x.down.Load()}
	if x.status == http.StatusSwitchingProtocols {
		f.BytesUp, f.BytesDown = x.f.up.Load()-x.before[0], x.f.down.Load()-x.before[1]
	}
	if x.f.broker {
		f.Layer = layerBroker
	}
	if x.failure != nil {
		f.Allowed, f.Reason = false, string(x.failure.reason)
	}
	x.a.ledger.note(f, detail{x.query, x.status, now().Sub(x.began), x.err})
}

// begun notes a request that passes, so that it ends when it may pass no more.
func (a *Attachment) begun(x *exchange) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return false
	}
	a.work.Add(1)
	a.active[x] = struct{}{}
	if at := x.verdict.Expires; !at.IsZero() {
		x.expiry = time.AfterFunc(time.Until(at)+time.Millisecond, func() { a.rejudge(egress.ReasonExpired) })
	}
	return true
}

func (a *Attachment) ended(x *exchange) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.active, x)
	if x.expiry != nil {
		x.expiry.Stop()
	}
	a.work.Done()
}

// upload is a request's body while it passes: counted, bounded, and looked through for placeholders.
type upload struct {
	io.ReadCloser
	x    *exchange
	left int64 // below 0 there is no bound
	find Finder
}

func (u *upload) Read(p []byte) (int, error) {
	n, err := u.ReadCloser.Read(p)
	u.x.up.Add(int64(n))
	if u.left >= 0 {
		if u.left -= int64(n); u.left < 0 {
			return 0, errBodyLimit
		}
	}
	if u.find != nil && (u.find.Find(p[:n]) || err == io.EOF && u.inTrailer()) {
		u.x.a.betrayed()
		return 0, errPlaceholder
	}
	if err != nil && err != io.EOF {
		err = fmt.Errorf("%w: %w", errBody, err)
	}
	return n, err
}

// inTrailer tells whether what comes behind the body has a placeholder.
func (u *upload) inTrailer() bool {
	for _, values := range u.x.r.Trailer {
		for _, v := range values {
			if f := u.x.finder(); f != nil && f.Find([]byte(v)) {
				return true
			}
		}
	}
	return false
}

// download is an answer's body while it passes.
type download struct {
	io.ReadCloser
	x *exchange
}

func (d *download) Read(p []byte) (int, error) {
	n, err := d.ReadCloser.Read(p)
	d.x.down.Add(int64(n))
	return n, err
}

// target is the URL that is sent. Its path is the canonical one, to the byte, or there is none.
func (x *exchange) target() (*url.URL, bool) {
	scheme, usual := "http", uint16(80)
	if x.f.secure {
		scheme, usual = "https", 443
	}
	plain, err := url.PathUnescape(x.path)
	authority := x.f.host.String()
	if x.f.port != usual {
		authority += ":" + strconv.Itoa(int(x.f.port))
	}
	u := &url.URL{Scheme: scheme, Host: authority, Path: plain, RawPath: x.path, RawQuery: x.query}
	return u, err == nil && u.EscapedPath() == x.path
}
