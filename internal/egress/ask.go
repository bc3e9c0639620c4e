package egress

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"glovebox"
)

// Ask is what a request asks to be allowed: a host, and what may be spoken with it at which ports.
type Ask struct {
	pattern   Pattern
	protocols []Protocol
	port      uint16 // 0: those of the protocols
}

// ParseAsk reads [https|http|tls|tcp://]HOST[:PORT]. Without a protocol it means https and http.
func ParseAsk(s string) (Ask, error) {
	var a Ask
	rest := s
	if name, after, ok := strings.Cut(s, "://"); ok {
		p := Protocol(name)
		if !slices.Contains([]Protocol{HTTP, HTTPS, TLS, TCP}, p) {
			return a, fmt.Errorf("%.300q: the protocol is one of https, http, tls and tcp", s)
		}
		a.protocols, rest = []Protocol{p}, after
	}
	if strings.ContainsAny(rest, "/?#@[]") {
		return a, fmt.Errorf("%.300q: write a host and perhaps a port, as in api.example.com:443; paths, users and addresses "+
			"have no place", s)
	}
	host, port, ok := strings.Cut(rest, ":")
	if ok {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 || port[0] == '+' || port[0] == '0' {
			return a, fmt.Errorf("%.300q: %.20q is no port; one is from 1 to 65535", s, port)
		}
		a.port = uint16(n)
	}
	if len(a.protocols) == 1 && a.protocols[0] == TCP && a.port == 0 {
		return a, fmt.Errorf("%.300q: tcp has no port of its own; write one, as in tcp://%s:5432", s, host)
	}
	var err error
	a.pattern, err = ParsePattern(host)
	return a, err
}

// Pattern is the hosts that are asked for.
func (a Ask) Pattern() Pattern { return a.pattern }

// Rule is a rule that allows what is asked for and nothing else.
func (a Ask) Rule() glovebox.EgressRule {
	r := glovebox.EgressRule{Host: a.pattern.String()}
	for _, p := range a.protocols {
		r.Protocols = append(r.Protocols, string(p))
	}
	if a.port != 0 {
		r.Ports = []int{int(a.port)}
	}
	return r
}

// Select is what of the rules was asked for: those that allow it, narrowed to it, and all that deny. What no rule allows at
// all is in missing. The rules must compile.
func Select(rules []glovebox.EgressRule, asks []Ask) (selected []glovebox.EgressRule, missing []Ask, err error) {
	all, err := Compile(rules)
	if err != nil {
		return nil, nil, err
	}
	for i := range all.rules {
		if r := all.rules[i]; r.deny {
			selected = append(selected, r.named())
		}
	}
	for _, a := range asks {
		found := false
		for i := range all.rules {
			if narrow, ok := all.rules[i].narrow(a); ok {
				found = true
				selected = append(selected, narrow)
			}
		}
		if !found {
			missing = append(missing, a)
		}
	}
	return selected, missing, nil
}

// named is the rule with the name under which decisions have it.
func (r *rule) named() glovebox.EgressRule {
	said := r.said
	said.ID = r.id
	return said
}

// narrow is a rule that allows what r and a both mean; false where that is nothing.
func (r *rule) narrow(a Ask) (glovebox.EgressRule, bool) {
	if r.deny {
		return glovebox.EgressRule{}, false
	}
	said := r.named()
	switch {
	case r.pattern.Covers(a.pattern):
		said.Host = a.pattern.String()
	case !a.pattern.Covers(r.pattern):
		return said, false
	}
	asked, err := compile(a.Rule())
	if err != nil {
		return said, false
	}
	ports := map[Protocol][]int{}
	for _, port := range r.portsFor(a) {
		wanted := asked.speaks(port)
		if len(a.protocols) == 0 && a.port != 0 {
			wanted = r.speaks(port) // a port alone is whatever the rule speaks there
		}
		for _, p := range r.speaks(port) {
			pinned := p == HTTPS && r.mode == SNI && slices.Contains(wanted, TLS)
			if slices.Contains(wanted, p) || pinned {
				ports[p] = append(ports[p], int(port))
			}
		}
	}
	return oneRule(said, ports)
}

// portsFor are the ports that may come out of narrowing.
func (r *rule) portsFor(a Ask) []uint16 {
	switch {
	case a.port != 0:
		return []uint16{a.port}
	case len(a.protocols) == 1:
		if a.protocols[0] == HTTP {
			return []uint16{80}
		}
		return []uint16{443}
	}
	return []uint16{443, 80}
}

// oneRule puts ports and protocols into a rule. https at 443 and http at 80 is what a rule means that names neither.
func oneRule(said glovebox.EgressRule, ports map[Protocol][]int) (glovebox.EgressRule, bool) {
	said.Ports, said.Protocols = nil, nil
	for _, p := range []Protocol{HTTPS, HTTP, TLS, TCP} {
		if len(ports[p]) > 0 {
			said.Protocols = append(said.Protocols, string(p))
		}
		for _, port := range ports[p] {
			if !slices.Contains(said.Ports, port) {
				said.Ports = append(said.Ports, port)
			}
		}
	}
	usual := func(p Protocol, port int) bool { return len(ports[p]) == 0 || slices.Equal(ports[p], []int{port}) }
	if usual(HTTPS, 443) && usual(HTTP, 80) && usual(TLS, 443) && len(ports[TCP]) == 0 {
		said.Ports = nil
	}
	return said, len(said.Protocols) > 0
}
