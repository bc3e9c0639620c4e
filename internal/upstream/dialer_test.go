package upstream_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"glovebox/internal/egress"
	"glovebox/internal/upstream"
)

// nameServer answers questions of one test and notes them.
type nameServer struct {
	addr netip.AddrPort

	mu    sync.Mutex
	names map[string][]string // addresses, in turn
	asked []string
}

func newNameServer(t *testing.T, names map[string][]string) *nameServer {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &nameServer{addr: netip.MustParseAddrPort(conn.LocalAddr().String()), names: names}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			if answer := s.answer(t, buf[:n]); answer != nil {
				_, _ = conn.WriteTo(answer, from)
			}
		}
	}()
	t.Cleanup(func() { conn.Close(); <-done })
	return s
}

func (s *nameServer) answer(t *testing.T, question []byte) []byte {
	var m dnsmessage.Message
	if err := m.Unpack(question); err != nil || len(m.Questions) != 1 {
		t.Errorf("a bad question: %v", err)
		return nil
	}
	q := m.Questions[0]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, q.Name.String())
	addrs, ok := s.names[q.Name.String()]
	m.Response, m.RecursionAvailable, m.Additionals = true, true, nil
	if !ok {
		m.RCode = dnsmessage.RCodeNameError
	}
	for _, text := range addrs {
		addr := netip.MustParseAddr(text)
		head := dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, TTL: 0}
		switch {
		case addr.Is4() && q.Type == dnsmessage.TypeA:
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.AResource{A: addr.As4()}})
		case !addr.Is4() && q.Type == dnsmessage.TypeAAAA:
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.AAAAResource{AAAA: addr.As16()}})
		}
	}
	b, err := m.Pack()
	if err != nil {
		t.Error(err)
	}
	return b
}

func (s *nameServer) questions() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Compact(slices.Sorted(slices.Values(s.asked)))
}

func host(t *testing.T, name string) egress.Host {
	t.Helper()
	h, err := egress.ParseHost(name)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func reasonOf(err error) egress.Reason {
	var e *upstream.Error
	if errors.As(err, &e) {
		return e.Reason
	}
	return ""
}

// greeter listens on the loopback and says hello to each who connects.
func greeter(t *testing.T) uint16 {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "hello")
			c.Close()
		}
	}()
	return netip.MustParseAddrPort(l.Addr().String()).Port()
}

func dial(t *testing.T, d *upstream.Dialer, name string, port uint16, private ...string) (string, error) {
	t.Helper()
	target := upstream.Target{Host: host(t, name), Port: port}
	for _, p := range private {
		target.AllowPrivate = append(target.AllowPrivate, netip.MustParsePrefix(p))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	conn, err := d.DialContext(ctx, target)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	b, err := io.ReadAll(conn)
	return string(b), err
}

func newDialer(t *testing.T, config upstream.Config) *upstream.Dialer {
	t.Helper()
	d, err := upstream.New(config)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestDialsByName(t *testing.T) {
	names := newNameServer(t, map[string][]string{"good.test.": {"127.0.0.1"}})
	d := newDialer(t, upstream.Config{Resolvers: []netip.AddrPort{names.addr}})
	port := greeter(t)
	if _, err := dial(t, d, "good.test", port, "127.0.0.0/8", "0.0.0.0/0"); reasonOf(err) != egress.ReasonUpstreamIPPrivate {
		t.Errorf("the loopback was opened by a rule: %v", err)
	}
	d.Admit()
	if got, err := dial(t, d, "good.test", port); err != nil || got != "hello" {
		t.Error(got, err)
	}
	// Nothing but the name was asked for: no search list.
	if _, err := dial(t, d, "absent.test", port); reasonOf(err) != egress.ReasonUpstreamFailed {
		t.Error(err)
	}
	if got := names.questions(); !slices.Equal(got, []string{"absent.test.", "good.test."}) {
		t.Error(got)
	}
}

func TestPrivateAddresses(t *testing.T) {
	for _, addrs := range [][]string{
		{"127.0.0.1"}, {"10.0.0.1"}, {"169.254.169.254"}, {"::1"}, {"::ffff:127.0.0.1"}, {"64:ff9b::7f00:1"}, {"fd00:ec2::254"},
		{"10.0.0.1", "::1", "192.168.0.1"}, {"93.184.215.77"}, // the last is this machine's own
	} {
		names := newNameServer(t, map[string][]string{"p.test.": addrs})
		d := newDialer(t, upstream.Config{Resolvers: []netip.AddrPort{names.addr}})
		d.Own("93.184.215.77/24")
		began := time.Now()
		if _, err := dial(t, d, "p.test", 443); reasonOf(err) != egress.ReasonUpstreamIPPrivate {
			t.Errorf("%v: %v", addrs, err)
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("%v was tried for %v", addrs, took)
		}
	}
}

// TestOwnAddress: an address of this machine is refused even where a rule opens its network.
func TestOwnAddress(t *testing.T) {
	names := newNameServer(t, map[string][]string{"own.test.": {"10.77.0.1"}})
	d := newDialer(t, upstream.Config{Resolvers: []netip.AddrPort{names.addr}})
	d.Own("10.77.0.1/24")
	if _, err := dial(t, d, "own.test", 443, "10.77.0.0/16"); reasonOf(err) != egress.ReasonUpstreamIPPrivate {
		t.Error(err)
	}
}

func TestRecheck(t *testing.T) {
	d := newDialer(t, upstream.Config{})
	private := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	for address, want := range map[string]bool{
		"93.184.215.14:443": true, "10.1.2.3:443": true, "127.0.0.1:443": false, "192.168.0.1:443": false, "[::1]:443": false,
		"good.test:443": false, "": false,
	} {
		if err := d.Recheck(address, private); (err == nil) != want {
			t.Errorf("%s: %v", address, err)
		}
	}
}

func TestOtherNameServerAnswers(t *testing.T) {
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := netip.MustParseAddrPort(silent.LocalAddr().String())
	silent.Close() // nobody is there: the kernel says so
	names := newNameServer(t, map[string][]string{"good.test.": {"127.0.0.1"}})
	d := newDialer(t, upstream.Config{Resolvers: []netip.AddrPort{gone, names.addr}})
	d.Admit()
	if got, err := dial(t, d, "good.test", greeter(t)); err != nil || got != "hello" {
		t.Error(got, err)
	}
}

func TestSecondAddressAnswers(t *testing.T) {
	names := newNameServer(t, map[string][]string{"good.test.": {"127.0.0.9", "127.0.0.1"}})
	d := newDialer(t, upstream.Config{Resolvers: []netip.AddrPort{names.addr}})
	d.Admit()
	if got, err := dial(t, d, "good.test", greeter(t)); err != nil || got != "hello" {
		t.Error(got, err)
	}
}

func TestNoNameServer(t *testing.T) {
	d := newDialer(t, upstream.Config{})
	d.Admit()
	if _, err := dial(t, d, "localhost.test", 443); reasonOf(err) != egress.ReasonUpstreamFailed {
		t.Error(err)
	}
	if _, err := d.DialContext(t.Context(), upstream.Target{Port: 1}); err == nil {
		t.Error("no name was dialled")
	}
}

// connectProxy is an HTTP proxy that says what it was asked for and greets.
func connectProxy(t *testing.T, status string) (*url.URL, <-chan *http.Request) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	asked := make(chan *http.Request, 4)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			r, err := http.ReadRequest(bufio.NewReader(c))
			if err == nil {
				asked <- r
				// The server speaks first, in the same packet.
				_, _ = io.WriteString(c, "HTTP/1.1 "+status+"\r\nX-Proxy: yes\r\n\r\nhello")
			}
			c.Close()
		}
	}()
	return &url.URL{Scheme: "http", Host: l.Addr().String(), User: url.UserPassword("u", "p")}, asked
}

func TestThroughProxy(t *testing.T) {
	names := newNameServer(t, map[string][]string{"good.test.": {"93.184.215.14"}, "private.test.": {"10.0.0.1"}})
	proxy, asked := connectProxy(t, "200 OK")
	d := newDialer(t, upstream.Config{Resolvers: []netip.AddrPort{names.addr}, Proxy: proxy})
	if got, err := dial(t, d, "good.test", 8443); err != nil || got != "hello" {
		t.Error(got, err)
	}
	r := <-asked
	if r.Method != "CONNECT" || r.Host != "93.184.215.14:8443" || r.Header.Get("Proxy-Authorization") != "Basic dTpw" {
		t.Errorf("%s %s %v", r.Method, r.Host, r.Header)
	}
	if _, err := dial(t, d, "private.test", 443); reasonOf(err) != egress.ReasonUpstreamIPPrivate {
		t.Error(err)
	}
	if len(asked) > 0 {
		t.Errorf("the proxy was asked for a private address: %s", (<-asked).Host)
	}
}

func TestProxyResolves(t *testing.T) {
	proxy, asked := connectProxy(t, "200 OK")
	d := newDialer(t, upstream.Config{Proxy: proxy, ProxyResolves: true})
	if got, err := dial(t, d, "good.test", 443); err != nil || got != "hello" {
		t.Error(got, err)
	}
	if r := <-asked; r.Host != "good.test:443" {
		t.Error(r.Host)
	}
}

func TestProxyRefuses(t *testing.T) {
	proxy, _ := connectProxy(t, "403 No")
	d := newDialer(t, upstream.Config{Proxy: proxy, ProxyResolves: true})
	if _, err := dial(t, d, "good.test", 443); reasonOf(err) != egress.ReasonUpstreamFailed {
		t.Error(err)
	}
}

func TestConfig(t *testing.T) {
	for name, config := range map[string]upstream.Config{
		"a server without a port":    {Resolvers: []netip.AddrPort{{}}},
		"a proxy over TLS":           {Proxy: &url.URL{Scheme: "https", Host: "p:1"}},
		"a proxy without a host":     {Proxy: &url.URL{Scheme: "http"}},
		"a proxy resolves, and none": {ProxyResolves: true},
	} {
		if _, err := upstream.New(config); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}
