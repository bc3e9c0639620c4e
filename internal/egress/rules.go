package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"glovebox"
)

// Rules are compiled rules. They do not change and are safe for concurrent use. A nil Rules denies everything.
type Rules struct{ rules []rule }

type rule struct {
	id        string
	pattern   Pattern
	ports     []uint16
	protocols []Protocol // empty: those that the ports imply
	methods   []string
	paths     []pathPattern
	mode      Mode
	deny      bool
	private   []netip.Prefix
	said      glovebox.EgressRule
}

// Compile checks rules and makes them ready. The error names the rule, what is wrong and what to write.
func Compile(rules []glovebox.EgressRule) (*Rules, error) {
	all := &Rules{}
	ids := map[string]bool{}
	for i, said := range rules {
		name := said.ID
		if name == "" {
			name = fmt.Sprintf("rule %d (%.300s)", i+1, said.Host)
		}
		if said.ID != "" && ids[said.ID] {
			return nil, fmt.Errorf("two rules are called %.100q; give each an id of its own", said.ID)
		}
		ids[said.ID] = true
		r, err := compile(said)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		r.id = name
		all.rules = append(all.rules, r)
	}
	return all, nil
}

func compile(said glovebox.EgressRule) (r rule, err error) {
	r = rule{said: said, deny: said.Deny}
	if r.pattern, err = parsePattern(said.Host, said.Deny); err != nil {
		return r, fmt.Errorf("host: %w", err)
	}
	for _, p := range said.Ports {
		if p < 1 || p > 65535 {
			return r, fmt.Errorf("ports: %d is no port; one is from 1 to 65535", p)
		}
		r.ports = append(r.ports, uint16(p))
	}
	for _, p := range said.Protocols {
		if !slices.Contains([]Protocol{HTTP, HTTPS, TLS, TCP}, Protocol(p)) {
			return r, fmt.Errorf("protocols: %.40q is unknown; the protocols are http, https, tls and tcp", p)
		}
		r.protocols = append(r.protocols, Protocol(p))
	}
	for _, m := range said.Methods {
		if m == "" || strings.Trim(m, "ABCDEFGHIJKLMNOPQRSTUVWXYZ-") != "" || m == "CONNECT" || m == "TRACE" {
			return r, fmt.Errorf("methods: %.40q is none that can be allowed; write one such as GET, in capitals", m)
		}
		r.methods = append(r.methods, m)
	}
	for _, p := range said.Paths {
		pattern, err := parsePathPattern(p)
		if err != nil {
			return r, fmt.Errorf("paths: %.200q: %w", p, err)
		}
		if r.deny {
			pattern = strings.Split(strings.ToLower(strings.Join(pattern, "/")), "/")
		}
		r.paths = append(r.paths, pattern)
	}
	for _, cidr := range said.AllowPrivate {
		network, err := ParsePrivate(cidr)
		if err != nil {
			return r, fmt.Errorf("allow_private: %w", err)
		}
		r.private = append(r.private, network)
	}
	return r, r.check()
}

// check refuses what cannot be done together.
func (r *rule) check() error {
	switch Mode(r.said.Mode) {
	case "", Inspect:
		r.mode = Inspect
	case SNI:
		r.mode = SNI
	default:
		return fmt.Errorf("mode: %.40q is unknown; the modes are inspect and sni", r.said.Mode)
	}
	asksOfRequests := len(r.methods)+len(r.paths)+len(r.said.Push) > 0 || r.said.BodyLimit != 0 || r.said.WebSocket
	blind := r.mode == SNI || slices.Contains(r.protocols, TLS) || slices.Contains(r.protocols, TCP)
	switch {
	case asksOfRequests && blind:
		return errors.New("methods, paths, push, body_limit and websocket are judged of requests, which mode sni and the " +
			"protocols tls and tcp do not open; leave them out or inspect")
	case slices.Contains(r.protocols, TCP) && len(r.ports) == 0:
		return errors.New("protocol tcp has no port of its own; name ports")
	case r.said.BodyLimit < 0:
		return fmt.Errorf("body_limit: %d is below 0", r.said.BodyLimit)
	case r.deny && (r.said.BodyLimit != 0 || r.said.WebSocket || len(r.private)+len(r.said.Push) > 0 || r.said.Mode != ""):
		return errors.New("a rule that denies has a host, ports, protocols, methods and paths alone")
	}
	return nil
}

// privateNetworks are those to which allow_private can open the way (RFC 1918, 6598, 4193). Loopback, link-local addresses
// and with them metadata services are not among them.
var privateNetworks = []netip.Prefix{
	netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.168.0.0/16"),
	netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("fc00::/7"),
}

// ParsePrivate reads a private network.
func ParsePrivate(cidr string) (netip.Prefix, error) {
	network, err := netip.ParsePrefix(cidr)
	if err != nil {
		return network, fmt.Errorf("%.60q is no network; write one such as 10.1.0.0/16", cidr)
	}
	if network != network.Masked() {
		return network, fmt.Errorf("%s has bits beyond its length; write %s", network, network.Masked())
	}
	for _, p := range privateNetworks {
		if p.Bits() <= network.Bits() && p.Contains(network.Addr()) {
			return network, nil
		}
	}
	return network, fmt.Errorf("%s is not within a private network (10/8, 172.16/12, 192.168/16, 100.64/10, fc00::/7)", network)
}

// speaks are the protocols that a rule means at a port.
func (r *rule) speaks(port uint16) []Protocol {
	named := slices.Contains(r.ports, port)
	switch {
	case len(r.ports) > 0 && !named:
		return nil
	case r.deny && len(r.protocols) == 0:
		return []Protocol{HTTP, HTTPS, TLS, TCP}
	case r.deny:
		return r.protocols
	case len(r.protocols) == 0 && port == 443:
		return []Protocol{HTTPS}
	case len(r.protocols) == 0 && port == 80:
		return []Protocol{HTTP}
	case len(r.protocols) == 0 && named:
		return []Protocol{HTTP, HTTPS}
	case named:
		return r.protocols
	}
	var own []Protocol
	for _, p := range r.protocols {
		if port == 443 && (p == HTTPS || p == TLS) || port == 80 && p == HTTP {
			own = append(own, p)
		}
	}
	return own
}

// asksNothing is true of a rule that holds for every request of its hosts.
func (r *rule) asksNothing() bool { return len(r.methods)+len(r.paths) == 0 }

func (r *rule) live(now time.Time) bool { return r.said.Expires.IsZero() || now.Before(r.said.Expires) }

// asked is a connection or a request to be judged.
type asked struct {
	host     Host
	port     uint16
	protocol Protocol // empty: any
	blind    bool     // what follows is not opened
	request  bool
	method   string
	path     []string
}

// Connect says whether anything may be said to a host at a port, and in which protocols.
func (r *Rules) Connect(h Host, port uint16) Verdict { return r.judge(asked{host: h, port: port}) }

// Stream says whether a connection may speak a protocol.
func (r *Rules) Stream(h Host, port uint16, p Protocol) Verdict {
	return r.judge(asked{host: h, port: port, protocol: p, blind: p == TLS || p == TCP})
}

// Request says whether a request may be made; its path is a CanonicalPath.
func (r *Rules) Request(h Host, port uint16, p Protocol, method, path string) Verdict {
	return r.judge(asked{host: h, port: port, protocol: p, request: true, method: method,
		path: strings.Split(strings.TrimPrefix(path, "/"), "/")})
}

// judge is the one place that compares: what denies first, then whatever allows. Where nothing allows the reason is what
// came closest.
func (r *Rules) judge(a asked) Verdict {
	no := Verdict{Reason: ReasonHostNotAllowed}
	if r == nil || a.host == (Host{}) || a.host.Reserved() {
		return no
	}
	now := time.Now()
	if d := r.denier(a, now); d != nil {
		return Verdict{Rule: d.id, Reason: ReasonHostNotAllowed}
	}
	var yes Verdict
	closest := 0
	for i := range r.rules {
		g := &r.rules[i]
		if g.deny || !g.pattern.Match(a.host) {
			continue
		}
		stage, reason, protocols := g.gives(a, now)
		switch {
		case reason == "":
			yes.widen(g, r.allowedProtocols(a, protocols, g.mode, now))
		case stage > closest:
			closest, no = stage, Verdict{Rule: g.id, Reason: reason}
		}
	}
	if yes.Allowed && a.protocol == "" && len(yes.Protocols) == 0 {
		return Verdict{Reason: ReasonHostNotAllowed}
	}
	if a.blind = yes.Allowed && yes.Mode == SNI && !a.request; a.blind && a.protocol == HTTPS {
		if d := r.denier(a, now); d != nil {
			return Verdict{Rule: d.id, Reason: ReasonHostNotAllowed}
		}
	}
	if yes.Allowed {
		return yes
	}
	return no
}

// denier is a rule that denies a; nil: none does.
func (r *Rules) denier(a asked, now time.Time) *rule {
	for i := range r.rules {
		if d := &r.rules[i]; d.deny && d.live(now) && d.denies(a) {
			return d
		}
	}
	return nil
}

// denies is true where a rule that denies holds for a. Of a connection only one that asks nothing of requests does, unless
// nobody would see the requests.
func (r *rule) denies(a asked) bool {
	if !r.pattern.Match(a.host) {
		return false
	}
	protocols := r.speaks(a.port)
	switch {
	case len(protocols) == 0:
		return false
	case a.protocol == "":
		return r.asksNothing() && len(r.protocols) == 0
	case a.blind && !r.asksNothing():
		return a.protocol == TCP || slices.Contains(protocols, HTTPS) || slices.Contains(protocols, a.protocol)
	case !slices.Contains(protocols, a.protocol):
		return false
	case !a.request:
		return r.asksNothing()
	}
	return r.wantsMethod(a.method) && (len(r.paths) == 0 || slices.ContainsFunc(readings(a.path), r.wantsPath))
}

// gives compares a with a rule that allows. A greater stage came closer.
func (r *rule) gives(a asked, now time.Time) (stage int, reason Reason, protocols []Protocol) {
	protocols = r.speaks(a.port)
	switch {
	case !r.live(now):
		return 1, ReasonExpired, nil
	case len(protocols) == 0:
		return 2, ReasonPort, nil
	case a.protocol != "" && !r.carries(protocols, a.protocol):
		return 3, ReasonNotHTTPOrTLS, nil
	case a.request && !r.wantsMethod(a.method):
		return 4, ReasonMethod, nil
	case a.request && !r.wantsPath(a.path):
		return 5, ReasonPath, nil
	}
	return 6, "", protocols
}

// carries is true where a rule with these protocols lets one be spoken. What is judged by its server name alone may be any
// TLS.
func (r *rule) carries(protocols []Protocol, p Protocol) bool {
	return slices.Contains(protocols, p) || p == TLS && r.mode == SNI && slices.Contains(protocols, HTTPS)
}

func (r *rule) wantsMethod(method string) bool {
	return len(r.methods) == 0 || slices.Contains(r.methods, method) || method == "HEAD" && slices.Contains(r.methods, "GET")
}

func (r *rule) wantsPath(path []string) bool {
	return len(r.paths) == 0 || slices.ContainsFunc(r.paths, func(p pathPattern) bool { return p.match(path) })
}

// allowedProtocols is protocols, of which https is judged in a mode, without those that a rule denies at the place asked
// for.
func (r *Rules) allowedProtocols(a asked, protocols []Protocol, mode Mode, now time.Time) []Protocol {
	if a.protocol != "" {
		return []Protocol{a.protocol}
	}
	return slices.DeleteFunc(slices.Clone(protocols), func(p Protocol) bool {
		blind := p == TLS || p == TCP || p == HTTPS && mode == SNI
		return r.denier(asked{host: a.host, port: a.port, protocol: p, blind: blind}, now) != nil
	})
}

// widen adds what a rule gives.
func (v *Verdict) widen(r *rule, protocols []Protocol) {
	if !v.Allowed {
		*v = Verdict{Allowed: true, Rule: r.id, Mode: r.mode, BodyLimit: r.said.BodyLimit, Expires: r.said.Expires}
	}
	if r.mode == Inspect {
		v.Mode = Inspect
	}
	for _, p := range protocols {
		if !slices.Contains(v.Protocols, p) {
			v.Protocols = append(v.Protocols, p)
		}
	}
	v.AllowPrivate = append(v.AllowPrivate, r.private...)
	v.WebSocket = v.WebSocket || r.said.WebSocket
	v.Push = append(v.Push, r.said.Push...)
	if v.BodyLimit != 0 {
		v.BodyLimit = max(v.BodyLimit, r.said.BodyLimit)
	}
	if r.said.BodyLimit == 0 {
		v.BodyLimit = 0
	}
	if r.said.Expires.IsZero() || !v.Expires.IsZero() && r.said.Expires.After(v.Expires) {
		v.Expires = r.said.Expires
	}
}
