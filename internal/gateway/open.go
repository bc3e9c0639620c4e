package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"slices"
	"time"

	"glovebox/internal/egress"
	"glovebox/internal/netwire"
)

// helloTimeout is how long a client may take to say what it wants.
const helloTimeout = 10 * time.Second

// brokerName is the name of the broker's own host inside. No rule is for it, and no name server knows it.
const brokerName = "broker.internal"

// open decides on a connection that the sandbox asks for.
func (a *Attachment) open(e netwire.Event) {
	f := &flow{a: a, id: e.Flow, name: e.Host, port: e.Port}
	if e.Host == "" {
		f.name = e.Address.String()
	}
	f.ctx, f.end = context.WithCancelCause(a.life)
	a.mu.Lock()
	full, closed := len(a.flows) >= a.gateway.config.Quotas.Flows, a.closed
	if !full && !closed {
		a.flows[f.id] = f
	}
	a.mu.Unlock()
	switch {
	case full:
		a.ledger.denied(f.name, f.port, layerTCP, egress.ReasonQuota, "")
	case !closed && a.start(func() { a.handle(f, e) }):
		return
	}
	f.end(errEnded)
	a.remove(f)
	a.refuse(f.id)
}

// handle carries a connection from its SYN to where somebody else serves it, or to its end.
func (a *Attachment) handle(f *flow, e netwire.Event) {
	verdict, denial := a.connect(f, e)
	if denial != nil {
		a.ledger.denied(f.name, f.port, denial.layer, denial.reason, denial.rule)
		if f.port != 80 && f.port != 443 {
			f.reset()
			return
		}
		f.denial = denial // which those who speak HTTP or TLS are told
	}
	if denial == nil && !f.broker {
		f.host2 = a.hostAllowance(f.host)
		f.admit("")
		if slices.Contains(verdict.Protocols, egress.TCP) {
			a.passTCP(f)
			return
		}
	}
	if !f.accept() {
		return
	}
	a.sniff(f)
}

// connect judges who is to be connected to.
func (a *Attachment) connect(f *flow, e netwire.Event) (egress.Verdict, *refusal) {
	none := egress.Verdict{}
	if e.Host == "" {
		return none, &refusal{reason: egress.ReasonIPLiteral, layer: layerTCP}
	}
	host, err := egress.ParseHost(e.Host)
	if err != nil {
		return none, &refusal{reason: egress.ReasonNameInvalid, layer: layerTCP}
	}
	f.host, f.name = host, host.String()
	if a.bytes.left(1) == 0 {
		return none, &refusal{reason: egress.ReasonBudget, layer: layerTCP}
	}
	if a.isBroker(host) {
		f.broker = f.port == 80
		if !f.broker {
			return none, &refusal{reason: egress.ReasonPort, layer: layerTCP}
		}
		return none, nil
	}
	v := a.judgeConnect(host, f.port)
	if !v.Allowed {
		return v, &refusal{reason: v.Reason, rule: v.Rule, layer: layerTCP}
	}
	return v, nil
}

// judgeConnect asks the rules as they are now. No rules let nothing pass.
func (a *Attachment) judgeConnect(host egress.Host, port uint16) egress.Verdict {
	rules := a.rules.Load()
	if rules == nil {
		return egress.Verdict{Reason: egress.ReasonHostNotAllowed}
	}
	return rules.Connect(host, port)
}

func (a *Attachment) judgeStream(host egress.Host, port uint16, p egress.Protocol) egress.Verdict {
	rules := a.rules.Load()
	if rules == nil {
		return egress.Verdict{Reason: egress.ReasonHostNotAllowed}
	}
	return rules.Stream(host, port, p)
}

// mayReach tells whether any rule is for the name at a port that a name alone would mean.
func (a *Attachment) mayReach(host egress.Host) bool {
	v := a.judgeConnect(host, 443)
	if v.Allowed || a.judgeConnect(host, 80).Allowed {
		return true
	}
	return v.Reason == egress.ReasonPort // it may be reached at others
}

func (a *Attachment) isBroker(host egress.Host) bool {
	return a.binding != nil && a.binding.Handler() != nil && host.String() == brokerName
}

// accept connects the flow to this end. It tells whether there is a connection now.
func (f *flow) accept() bool {
	ours, theirs, err := newPipe()
	if err != nil {
		f.a.gateway.config.Log.Error("egress", "run", f.a.terms.Run, "error", err)
		f.reset()
		return false
	}
	defer theirs.Close()
	f.mu.Lock()
	gone := f.done
	if !gone {
		f.conn = ours
	}
	f.mu.Unlock()
	if gone {
		_ = ours.Close() // nobody waits for it
		return false
	}
	if err := f.a.netd.Accept(f.id, theirs); err != nil {
		_ = f.Close() // the program gave up
		return false
	}
	return true
}

func (f *flow) accepted() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.conn != nil
}

// sniff reads what the client says first, and serves it as what it is.
func (a *Attachment) sniff(f *flow) {
	_ = f.conn.SetReadDeadline(now().Add(helloTimeout)) // a connection that is closed fails at the next Read
	isTLS, err := f.isTLS()
	switch {
	case errors.Is(err, errNotSpoken):
		a.deny(f, refusal{reason: egress.ReasonNotHTTPOrTLS, layer: layerTCP})
	case err != nil && len(f.early) == 0 && errors.Is(err, io.EOF):
		_ = f.Close() // it said nothing, and is gone
	case err != nil:
		if f.denial == nil && context.Cause(f.ctx) == nil {
			a.ledger.denied(f.name, f.port, layerTCP, egress.ReasonNotHTTPOrTLS, "")
		}
		f.reset()
	case isTLS:
		a.sniffTLS(f)
	default:
		_ = f.conn.SetReadDeadline(time.Time{})
		if !f.broker && f.denial == nil && a.judgeStream(f.host, f.port, egress.HTTP).Allowed {
			f.admit(egress.HTTP)
		}
		a.serveHTTP(f, f) // which tells each request why not
	}
}

// errNotSpoken is of first bytes that are neither HTTP nor TLS.
var errNotSpoken = errors.New("neither HTTP nor TLS")

// isTLS tells TLS from HTTP by the first bytes: a record of a handshake, or a method and a space.
func (f *flow) isTLS() (bool, error) {
	for buf := make([]byte, 512); ; {
		for i, b := range f.early {
			switch {
			case i == 0 && b == 22:
				return true, nil
			case i > 0 && b == ' ':
				return false, nil
			case b >= 'A' && b <= 'Z' || i > 0 && (b == '-' || b == '_'), i < 2 && (b == '\r' || b == '\n'):
			default:
				return false, errNotSpoken
			}
			if i > 32 {
				return false, errNotSpoken
			}
		}
		if _, err := f.peek(buf); err != nil {
			return false, err
		}
	}
}

// sniffTLS reads the hello and ends TLS here, or passes the stream on, as the rules say.
func (a *Attachment) sniffTLS(f *flow) {
	h, read, err := readHello(f.ctx, f)
	f.early = append(slices.Clone(read), f.early...)
	if f.denial != nil {
		f.finish(accessDenied)
		return
	}
	if err != nil {
		if context.Cause(f.ctx) == nil {
			a.ledger.denied(f.name, f.port, layerTLS, egress.ReasonNotHTTPOrTLS, "")
		}
		f.finish(accessDenied)
		return
	}
	if f.broker {
		a.deny(f, refusal{reason: egress.ReasonNotHTTPOrTLS, layer: layerTLS})
		return
	}
	if reason := h.judge(f.host); reason != "" {
		a.deny(f, refusal{reason: reason, layer: layerTLS})
		return
	}
	v := a.judgeStream(f.host, f.port, egress.HTTPS)
	inspect := v.Allowed && v.Mode == egress.Inspect
	if !v.Allowed {
		v = a.judgeStream(f.host, f.port, egress.TLS)
	}
	switch {
	case !v.Allowed:
		a.deny(f, refusal{reason: v.Reason, rule: v.Rule, layer: layerTLS})
	case inspect:
		f.admit(egress.HTTPS)
		a.endTLS(f)
	case h.ech:
		a.deny(f, refusal{reason: egress.ReasonECH, rule: v.Rule, layer: layerTLS})
	default:
		f.admit(egress.TLS)
		a.passTLS(f, v)
	}
}

// deny refuses a connection whose client has said what it wants, in a way that it understands.
func (a *Attachment) deny(f *flow, r refusal) {
	if f.denial == nil { // else it was told
		a.ledger.denied(f.name, f.port, r.layer, r.reason, r.rule)
	}
	if r.layer == layerTLS {
		f.finish(accessDenied)
		return
	}
	f.reset()
}

// endTLS is the server of the name that the client asked for, in the name of the sandbox's own authority.
func (a *Attachment) endTLS(f *flow) {
	f.secure = true
	host, err := a.upstreamHost(place{f.host, f.port})
	if err != nil {
		a.ledger.denied(f.name, f.port, layerTLS, egress.ReasonQuota, "")
		f.reset()
		return
	}
	conn := tls.Server(f, host.server)
	_ = f.conn.SetDeadline(now().Add(helloTimeout))
	if err := conn.HandshakeContext(f.ctx); err != nil {
		if context.Cause(f.ctx) == nil {
			// Most often a client that trusts other authorities than the sandbox is shown.
			a.ledger.deniedFor(f, layerTLS, egress.ReasonClientTLS, err)
		}
		_ = conn.Close()
		return
	}
	_ = f.conn.SetDeadline(time.Time{})
	a.serveHTTP(f, conn)
}

// serveHTTP hands a connection to the server of all requests.
func (a *Attachment) serveHTTP(f *flow, conn net.Conn) {
	if !a.door.put(conn) {
		_ = f.Close()
	}
}

// admit notes what the flow was judged as, so that it ends when it may be that no more. The rules may have changed
// since they were asked, so they are asked again.
func (f *flow) admit(p egress.Protocol) {
	f.mu.Lock()
	f.judged, f.carries = true, p
	f.mu.Unlock()
	f.a.rejudgeFlow(f, egress.ReasonPolicyChanged)
}
