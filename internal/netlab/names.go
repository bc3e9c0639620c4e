package netlab

import (
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// zone is what the name server knows. What ends in a dot is another name; an empty list is a name without addresses.
var zone = map[string][]string{
	"good.test": {Twin, Twin6}, "evil.test": {Twin, Twin6}, "bound.test": {Bound}, "other.test": {Bound}, "echo.test": {Echo},
	"wild.test": {Wild}, "*.wild.test": {Wild}, "git.test": {Git}, "index.test": {Index}, "raw.test": {Raw},
	"open.test": {Public},
	"ssh.test":  {Raw}, "pinned.test": {Echo}, "big.test": {Echo}, "v6.test": {Twin6}, "gone.test": {},
	// Servers whose TLS is wrong.
	"selfsigned.test": {Bad}, "wrongname.test": {Bad}, "expired.test": {Bad}, "old.test": {Bad},
	// Names that lead where nothing may lead.
	"loopback.test": {"127.0.0.1"}, "loopback6.test": {"::1"}, "ten.test": {"10.99.0.1"}, "metadata.test": {"169.254.169.254"},
	"mapped.test": {"::ffff:127.0.0.1"}, "mappedten.test": {"::ffff:10.99.0.1"}, "nat64.test": {"64:ff9b::7f00:1"},
	"sixtofour.test": {"2002:7f00:1::1"}, "zero.test": {"0.0.0.0"},
	"shared.test": {"100.64.0.1"}, "azure.test": {"168.63.129.16"},
	"aws6.test": {"fd00:ec2::254"}, "self.test": {Machine}, "self6.test": {Machine6}, "inside.test": {"198.18.0.1"},
	"broadcast.test": {"255.255.255.255"}, "multicast.test": {"224.0.0.1"}, "documentation.test": {"203.0.113.7"},
	"compat.test": {"::127.0.0.1"}, "teredo.test": {"2001:0:7f00:1::1"},
	// Names that change their mind.
	"rebind.test": {Twin}, "mixed.test": {"127.0.0.1", Twin},
	"alias.test": {"ten.test."}, "fair.test": {"good.test."},
}

// names is the authoritative name server of everything.
type names struct {
	lab *Lab

	mu    sync.Mutex
	asked int // for rebind.test
}

// serveNames answers at the name server's own address and at those of public resolvers, by UDP and TCP.
func (l *Lab) serveNames() error {
	l.names = &names{lab: l}
	for _, at := range append([]string{Twin}, resolvers...) {
		address := net.JoinHostPort(at, "53")
		var udp net.PacketConn
		err := l.internet.do(func() (err error) { udp, err = net.ListenPacket("udp", address); return err })
		if err != nil {
			return err
		}
		l.away = append(l.away, func() { udp.Close() })
		l.serving.Go(func() { l.names.packets(udp, at) })
		if err := l.listen(address, func(c net.Conn) { l.names.stream(c, at) }); err != nil {
			return err
		}
	}
	return nil
}

func (n *names) packets(c net.PacketConn, at string) {
	b := make([]byte, 64<<10)
	for {
		size, from, err := c.ReadFrom(b)
		if err != nil {
			return
		}
		if answer := n.answer(b[:size], at, false); answer != nil {
			_, _ = c.WriteTo(answer, from)
		}
	}
}

func (n *names) stream(c net.Conn, at string) {
	for {
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		var size [2]byte
		if _, err := io.ReadFull(c, size[:]); err != nil {
			return
		}
		b := make([]byte, binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(c, b); err != nil {
			return
		}
		answer := n.answer(b, at, true)
		if answer == nil {
			return
		}
		if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...)); err != nil {
			return
		}
	}
}

// answer keeps the question and answers it. What is no question is kept too.
func (n *names) answer(b []byte, at string, tcp bool) []byte {
	var p dnsmessage.Parser
	head, err := p.Start(b)
	if err != nil {
		keep(n.lab.seen, &n.lab.seen.all.Queries, Query{Name: "?", Type: "not a question", At: at, TCP: tcp})
		return nil
	}
	q, err := p.Question()
	if err != nil {
		return nil
	}
	kind := strings.TrimPrefix(q.Type.String(), "Type")
	keep(n.lab.seen, &n.lab.seen.all.Queries, Query{Name: q.Name.String(), Type: kind, At: at, TCP: tcp})
	addresses, known := n.find(strings.ToLower(strings.TrimSuffix(q.Name.String(), ".")))
	reply := dnsmessage.Header{ID: head.ID, Response: true, Authoritative: true, RecursionDesired: head.RecursionDesired,
		RecursionAvailable: true}
	if !known {
		reply.RCode = dnsmessage.RCodeNameError
	}
	build := dnsmessage.NewBuilder(nil, reply)
	if build.StartQuestions() != nil || build.Question(q) != nil || build.StartAnswers() != nil {
		return nil
	}
	name := q.Name
	for _, a := range addresses {
		h := dnsmessage.ResourceHeader{Name: name, Class: dnsmessage.ClassINET, TTL: 0}
		if strings.HasSuffix(a, ".") {
			target := dnsmessage.MustNewName(a)
			_ = build.CNAMEResource(h, dnsmessage.CNAMEResource{CNAME: target})
			more, _ := n.find(strings.TrimSuffix(a, "."))
			for _, m := range more {
				address(&build, dnsmessage.ResourceHeader{Name: target, Class: dnsmessage.ClassINET}, q.Type, m)
			}
			continue
		}
		address(&build, h, q.Type, a)
	}
	out, err := build.Finish()
	if err != nil {
		return nil
	}
	return out
}

func address(build *dnsmessage.Builder, h dnsmessage.ResourceHeader, asked dnsmessage.Type, text string) {
	a := netip.MustParseAddr(text)
	switch {
	case a.Is4() && asked == dnsmessage.TypeA:
		_ = build.AResource(h, dnsmessage.AResource{A: a.As4()})
	case a.Is6() && asked == dnsmessage.TypeAAAA:
		_ = build.AAAAResource(h, dnsmessage.AAAAResource{AAAA: a.As16()})
	}
}

// find is what the zone has of a name. rebind.test leads to a server the first time that somebody asks, and to the
// machine's own loopback from then on.
func (n *names) find(name string) ([]string, bool) {
	if name == "rebind.test" {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.asked++; n.asked > 2 { // a resolver asks for both versions at once
			return []string{"127.0.0.1"}, true
		}
	}
	if all, ok := zone[name]; ok {
		return all, true
	}
	if strings.HasSuffix(name, ".wild.test") {
		return zone["*.wild.test"], true
	}
	return nil, false
}
