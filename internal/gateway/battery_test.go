package gateway_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"glovebox"
	"glovebox/internal/egress"
)

// secured makes a TLS connection to the name, saying sni, without looking at who answers.
func (r *rig) secured(name, sni string, protocols ...string) (*tls.Conn, error) {
	conn := r.must(name, 443)
	c := tls.Client(conn, &tls.Config{ServerName: sni, RootCAs: r.cas, NextProtos: protocols,
		InsecureSkipVerify: sni == ""}) // the gateway must not come so far
	return c, c.Handshake()
}

// TestNames: every place that a name comes from is judged by the same rules.
func TestNames(t *testing.T) {
	allowed := []string{"good.test", "GOOD.test", "good.test.", "good.test:80", " good.test"}
	denied := []string{
		"good.test..", "good.test%00.x", "good.test@evil.test", "evil@good.test", "evil-good.test", "good.test.evil.test",
		"xgood.test", "gооd.test", "good。test", strings.Repeat("a", 64) + ".test", strings.Repeat("a.", 126) + "test", "",
		"good.test:81", "good.test:", "good.test:080x", "127.0.0.1", "2130706433", "0x7f.1", "0177.0.0.1", "127.1", "0", "0.0.0.0",
		"[::1]", "evil.test", "169.254.169.254", "metadata.google.internal", "good.test:65616", "good.test,evil.test", "good.test/",
	}
	r := newRig(t, terms{rules: good})
	var served atomic.Int64
	r.server("good.test", 80, false, false, func(w http.ResponseWriter, req *http.Request) {
		served.Add(1)
		if req.Host != "good.test" {
			t.Errorf("the server was asked for %q", req.Host)
		}
	})
	for _, name := range allowed {
		if code, body := raw(t, r.must("good.test", 80), "GET / HTTP/1.1\r\nHost: "+name+"\r\n\r\n"); code != 200 {
			t.Errorf("Host %q: %d %s", name, code, body)
		}
	}
	for _, name := range denied {
		code, body := raw(t, r.must("good.test", 80), "GET / HTTP/1.1\r\nHost: "+name+"\r\n\r\n")
		if code == 400 && !strings.HasPrefix(body, "{") {
			continue // it is no host header at all
		}
		if code != 403 || refusalOf(t, body).Reason != "authority-mismatch" {
			t.Errorf("Host %q: %d %s", name, code, body)
		}
	}
	if n := served.Load(); n != int64(len(allowed)) {
		t.Errorf("%d requests were served", n)
	}
}

func TestServerNames(t *testing.T) {
	for sni, want := range map[string]egress.Reason{
		"evil.test": egress.ReasonSNIMismatch, "": egress.ReasonSNIMissing, "xgood.test": egress.ReasonSNIMismatch,
		"good.test@evil.test": egress.ReasonNameInvalid, "good.test\x00.evil.test": egress.ReasonNameInvalid,
		"a_b.good.test": egress.ReasonSNIMismatch, "127.1": egress.ReasonNameInvalid, "10.0.0.1x": egress.ReasonSNIMismatch,
	} {
		r := newRig(t, terms{rules: good})
		r.server("good.test", 443, true, true, hello)
		if _, err := r.secured("good.test", sni); err == nil || !strings.Contains(err.Error(), "access denied") {
			t.Errorf("%q: %v", sni, err)
		}
		r.waitDenied(want)
		if r.internet.dialled() > 0 {
			t.Errorf("%q: something was dialled", sni)
		}
	}
}

// TestRequestsOfOneConnection: each request is judged, however many came before it on its connection.
func TestRequestsOfOneConnection(t *testing.T) {
	second := "GET /1 HTTP/1.1\r\nHost: good.test\r\n\r\nGET /2 HTTP/1.1\r\nHost: evil.test\r\n\r\n"
	check := func(r *rig, c io.ReadWriter) {
		t.Helper()
		if _, err := io.WriteString(c, second); err != nil {
			t.Fatal(err)
		}
		b := bufio.NewReader(c)
		for i, want := range []int{200, 403} {
			res, err := http.ReadResponse(b, nil)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(res.Body)
			if res.StatusCode != want {
				t.Errorf("answer %d: %d %s", i, res.StatusCode, body)
			}
		}
		f := r.waitDenied(egress.ReasonAuthorityMismatch)
		if f.Layer != "http" || f.Method != "GET" {
			t.Errorf("%+v", f)
		}
	}
	r := newRig(t, terms{rules: good})
	r.server("good.test", 80, false, false, hello)
	check(r, r.must("good.test", 80))
	r = newRig(t, terms{rules: good})
	r.server("good.test", 443, true, false, hello)
	c, err := r.secured("good.test", "good.test", "http/1.1")
	if err != nil {
		t.Fatal(err)
	}
	check(r, c)
}

// TestAuthorityOfStreams: a client of HTTP/2 that takes one connection for another host, as browsers do where a certificate
// fits both.
func TestAuthorityOfStreams(t *testing.T) {
	r := newRig(t, terms{rules: []glovebox.EgressRule{{Host: "good.test"}, {Host: "twin.test"}}})
	r.server("good.test", 443, true, true, hello)
	r.server("twin.test", 443, true, true, hello)
	c := r.client(true)
	for i, host := range []string{"good.test", "good.test", "twin.test", "evil.test", "good.test:8443", "good.test"} {
		req, err := http.NewRequestWithContext(t.Context(), "GET", "https://good.test/", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		res, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.ProtoMajor != 2 {
			t.Fatal(res.Proto)
		}
		if want := map[string]int{"good.test": 200}[host]; res.StatusCode != max(want, 0) && (want != 0 || res.StatusCode != 403) {
			t.Errorf("request %d to %s: %d %s", i, host, res.StatusCode, body)
		}
	}
	r.waitDenied(egress.ReasonAuthorityMismatch)
}

// helloOf is what a client of TLS says first.
func helloOf(t *testing.T, config *tls.Config) []byte {
	t.Helper()
	ours, theirs := net.Pipe()
	defer theirs.Close()
	go func() {
		_ = tls.Client(ours, config).Handshake()
		ours.Close()
	}()
	head := make([]byte, 5)
	if _, err := io.ReadFull(theirs, head); err != nil {
		t.Fatal(err)
	}
	body := make([]byte, int(head[3])<<8|int(head[4]))
	if _, err := io.ReadFull(theirs, body); err != nil {
		t.Fatal(err)
	}
	return append(head, body...)
}

// records cuts the handshake of one record into records of n bytes.
func records(hello []byte, n int) []byte {
	var out []byte
	for body := hello[5:]; len(body) > 0; {
		part := body[:min(n, len(body))]
		out = append(append(out, 22, 3, 1, byte(len(part)>>8), byte(len(part))), part...)
		body = body[len(part):]
	}
	return out
}

func TestHelloInPieces(t *testing.T) {
	for _, test := range []struct {
		sni     string
		records int
		want    string
	}{{"good.test", 7, "200"}, {"good.test", 1, "200"}, {"evil.test", 7, "alert"}, {"good.test", 0, "200"}} {
		r := newRig(t, terms{rules: good})
		r.server("good.test", 443, true, false, hello)
		conn := r.must("good.test", 443)
		cut := &cutter{Conn: conn, records: test.records}
		c := tls.Client(cut, &tls.Config{ServerName: test.sni, RootCAs: r.cas})
		err := c.Handshake()
		switch {
		case test.want == "alert":
			if err == nil || !strings.Contains(err.Error(), "access denied") {
				t.Errorf("%+v: %v", test, err)
			}
		case err != nil:
			t.Errorf("%+v: %v", test, err)
		default:
			if code, body := raw(t, c, "GET / HTTP/1.1\r\nHost: good.test\r\n\r\n"); code != 200 {
				t.Errorf("%+v: %d %s", test, code, body)
			}
		}
	}
}

// cutter sends the first record in records of so many bytes, or unchanged, and all of it byte by byte.
type cutter struct {
	net.Conn
	records int
	done    bool
}

func (c *cutter) Write(p []byte) (int, error) {
	if c.done {
		return c.Conn.Write(p)
	}
	c.done = true
	out := p
	if c.records > 0 {
		out = records(p, c.records)
	}
	for i := range out {
		if _, err := c.Conn.Write(out[i : i+1]); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

func TestHelloTooLong(t *testing.T) {
	r := newRig(t, terms{rules: good})
	long := make([]string, 5000)
	for i := range long {
		long[i] = fmt.Sprintf("p%d", i)
	}
	text := helloOf(t, &tls.Config{ServerName: "good.test", NextProtos: long[:1500]})
	c := r.must("good.test", 443)
	go func() { _, _ = c.Write(records(text, 1)) }()
	if b, err := io.ReadAll(c); !bytes.Equal(b, []byte{21, 3, 3, 0, 2, 2, 49}) {
		t.Errorf("%x %v", b, err)
	}
	r.waitDenied(egress.ReasonNotHTTPOrTLS)
}

func TestNotSpoken(t *testing.T) {
	socks, banner := "\x05\x01\x00", "SSH-2.0-OpenSSH_9.2\r\n"
	for name, test := range map[string]struct {
		port uint16
		text string
	}{
		"socks 443": {443, socks}, "socks 80": {80, socks}, "ssh 443": {443, banner}, "ssh 80": {80, banner},
		"garbage": {443, "\x00\x01\x02"}, "lower case": {80, "get / http/1.1\r\n\r\n"}, "no end": {80, strings.Repeat("A", 100)},
	} {
		r := newRig(t, terms{rules: good})
		c := r.must("good.test", test.port)
		if _, err := io.WriteString(c, test.text); err != nil {
			t.Fatal(err)
		}
		if b, _ := io.ReadAll(c); len(b) > 0 && !strings.HasPrefix(string(b), "HTTP/1.1 400") {
			t.Errorf("%s: %q", name, b)
		}
		r.waitDenied(egress.ReasonNotHTTPOrTLS)
		if r.internet.dialled() > 0 {
			t.Errorf("%s: something was dialled", name)
		}
	}
}

func TestWrongProtocolOfPort(t *testing.T) {
	r := newRig(t, terms{rules: good})
	r.server("good.test", 443, true, true, hello)
	r.server("good.test", 80, false, false, hello)
	code, body := raw(t, r.must("good.test", 443), "GET / HTTP/1.1\r\nHost: good.test\r\n\r\n")
	if code != 403 || refusalOf(t, body).Reason == "" {
		t.Error(code, body)
	}
	c := tls.Client(r.must("good.test", 80), &tls.Config{ServerName: "good.test", RootCAs: r.cas})
	if err := c.Handshake(); err == nil || !strings.Contains(err.Error(), "access denied") {
		t.Error(err)
	}
	if r.internet.dialled() > 0 {
		t.Error("something was dialled")
	}
}

func TestProxyRequests(t *testing.T) {
	r := newRig(t, terms{rules: good})
	r.server("good.test", 80, false, false, hello)
	for text, want := range map[string]string{
		"CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test:443\r\n\r\n":                    "connect",
		"CONNECT good.test:443 HTTP/1.1\r\nHost: good.test:443\r\n\r\n":                    "connect",
		"GET http://evil.test/ HTTP/1.1\r\nHost: good.test\r\n\r\n":                        "authority-mismatch",
		"GET http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n":                        "authority-mismatch",
		"GET https://good.test/ HTTP/1.1\r\nHost: good.test\r\n\r\n":                       "authority-mismatch",
		"GET ftp://good.test/ HTTP/1.1\r\nHost: good.test\r\n\r\n":                         "authority-mismatch",
		"GET http://u:p@good.test/ HTTP/1.1\r\nHost: good.test\r\n\r\n":                    "authority-mismatch",
		"TRACE / HTTP/1.1\r\nHost: good.test\r\n\r\n":                                      "method",
		"GET / HTTP/1.0\r\n\r\n":                                                           "authority-mismatch",
		"GET http://good.test/abs HTTP/1.1\r\nHost: good.test\r\n\r\n":                     "",
		"GET http://good.test/abs HTTP/1.1\r\nHost: evil.test\r\n\r\n":                     "", // the form beats the header, which is not sent
		"OPTIONS * HTTP/1.1\r\nHost: good.test\r\n\r\n":                                    "path",
		"GET / HTTP/1.1\r\nHost: good.test\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n": "",
	} {
		code, body := raw(t, r.must("good.test", 80), text)
		if want == "" {
			if code != 200 || !strings.Contains(body, " good.test ") {
				t.Errorf("%q: %d %s", text, code, body)
			}
		} else if code != 403 || refusalOf(t, body).Reason != want {
			t.Errorf("%q: %d %s", text, code, body)
		}
	}
}

// TestSmuggling: whatever is ambiguous is refused, or reaches the server as one well-formed request.
func TestSmuggling(t *testing.T) {
	head := "POST /one HTTP/1.1\r\nHost: good.test\r\n"
	inner := "GET /smuggled HTTP/1.1\r\nHost: good.test\r\n\r\n"
	chunk := "0\r\n\r\n"
	tests := []string{
		head + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk + inner,
		head + "Content-Length: 4\r\nContent-Length: 50\r\n\r\nabcd" + inner,
		head + "Content-Length: 4, 50\r\n\r\nabcd" + inner,
		head + "Transfer-Encoding: xchunked\r\n\r\n" + chunk + inner,
		head + "Transfer-Encoding: chunked, identity\r\n\r\n" + chunk + inner,
		head + "Transfer-Encoding : chunked\r\n\r\n" + chunk + inner,
		head + "Transfer-Encoding:\x0bchunked\r\n\r\n" + chunk + inner,
		head + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk + inner,
		head + "X: 1\r\n Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n" + inner,
		head + "Content-Length: 0\r\nHost: evil.test\r\n\r\n" + inner,
		head + "Content-Length: +4\r\n\r\nabcd" + inner,
		head + "Content-Length: 0x4\r\n\r\nabcd" + inner,
		head + "Transfer-Encoding: chunked\r\n\r\n4;a=\"\n\"\r\nabcd\r\n0\r\n\r\n" + inner,
		head + "Transfer-Encoding: chunked\r\n\r\n4\r\nabcdX\r\n0\r\n\r\n" + inner,
		head + "Transfer-Encoding: chunked\r\n\r\n10000000000000004\r\nabcd\r\n0\r\n\r\n" + inner,
		"GET /one HTTP/1.1\nHost: good.test\n\n" + inner,
		"GET /one HTTP/1.1\r\nHost: good.test\r\nContent-Length: 46\r\n\r\n" + inner,
		"GET /one\x00 HTTP/1.1\r\nHost: good.test\r\n\r\n" + inner,
		"GET /one HTTP/1.1\rX HTTP/1.1\r\nHost: good.test\r\n\r\n" + inner,
	}
	for _, text := range tests {
		r := newRig(t, terms{rules: good})
		sink := newSink(t)
		r.at("good.test", 80, sink.addr)
		c := r.must("good.test", 80)
		if _, err := io.WriteString(c, text); err != nil {
			t.Fatal(err)
		}
		b := bufio.NewReader(c)
		var codes []int
		for {
			_ = c.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
			res, err := http.ReadResponse(b, nil)
			if err != nil {
				break
			}
			_, _ = io.Copy(io.Discard, res.Body)
			codes = append(codes, res.StatusCode)
		}
		requests := sink.requests(t)
		passed := 0
		for _, code := range codes {
			if code == 200 {
				passed++
			}
		}
		if passed != len(requests) {
			t.Errorf("%q: %v were answered, and the server saw %q", text, codes, requests)
		}
		for i, got := range requests {
			if got != "POST /one" && got != "GET /one" && (i == 0 || got != "GET /smuggled") {
				t.Errorf("%q: the server saw %q", text, requests)
			}
		}
	}
}

// sink is a server that reads strictly what requests come and answers each.
type sink struct {
	addr    string
	seen    chan string
	handler http.HandlerFunc
}

func newSink(t *testing.T) *sink {
	t.Helper()
	s := &sink{seen: make(chan string, 16)}
	s.handler = func(_ http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return // it was cut off, and so is no request
		}
		s.seen <- r.Method + " " + r.URL.Path
		if r.Host != "good.test" || len(r.TransferEncoding) > 0 && r.Header.Get("Content-Length") != "" {
			t.Errorf("the server was sent %v for %s", r.Header, r.Host)
		}
	}
	server := httptest.NewServer(s.handler)
	t.Cleanup(server.Close)
	s.addr = server.Listener.Addr().String()
	return s
}

func (s *sink) requests(t *testing.T) []string {
	t.Helper()
	var list []string
	for {
		select {
		case r := <-s.seen:
			list = append(list, r)
		default:
			return list
		}
	}
}
