package gateway_test

import (
	"bufio"
	"bytes"
	"crypto/sha1"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"glovebox"
	"glovebox/internal/egress"
)

func TestExpectContinue(t *testing.T) {
	r := newRig(t, terms{rules: good})
	r.server("good.test", 443, true, false, func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/no" {
			w.WriteHeader(401) // without a look at the body
			return
		}
		b, err := io.ReadAll(req.Body)
		fmt.Fprintf(w, "%d %v", len(b), err)
	})
	for path, want := range map[string]int{"/yes": 200, "/no": 401} {
		body := &countingReader{Reader: strings.NewReader(strings.Repeat("x", 1<<20))}
		req, err := http.NewRequestWithContext(t.Context(), "PUT", "https://good.test"+path, body)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Expect", "100-continue")
		res, err := r.client(false).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != want || want == 200 && string(text) != "1048576 <nil>" {
			t.Errorf("%s: %d %s", path, res.StatusCode, text)
		}
		if want == 401 && body.n > 0 {
			t.Errorf("%d bytes of a body were sent that nobody wanted", body.n)
		}
	}
}

type countingReader struct {
	io.Reader
	n int
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n += n
	return n, err
}

// TestStreamsBothWays is what gRPC does: both sides speak in turn within one request, with trailers.
func TestStreamsBothWays(t *testing.T) {
	r := newRig(t, terms{rules: good})
	r.server("good.test", 443, true, true, func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Trailer", "Grpc-Status")
		w.Header().Set("Content-Type", "application/grpc")
		w.WriteHeader(200)
		if err := http.NewResponseController(w).Flush(); err != nil {
			t.Error(err)
		}
		lines := bufio.NewScanner(req.Body)
		for lines.Scan() {
			fmt.Fprintf(w, "echo %s\n", lines.Text())
			_ = http.NewResponseController(w).Flush()
		}
		w.Header().Set("Grpc-Status", "0"+req.Trailer.Get("Client-Said"))
	})
	in, out := io.Pipe()
	req, err := http.NewRequestWithContext(t.Context(), "POST", "https://good.test/Service/Method", in)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("TE", "trailers")
	req.Trailer = http.Header{"Client-Said": nil}
	res, err := r.client(true).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewReader(res.Body)
	for i := range 3 {
		fmt.Fprintf(out, "%d\n", i)
		line, err := lines.ReadString('\n')
		if want := fmt.Sprintf("echo %d\n", i); line != want || err != nil {
			t.Fatalf("%q %v", line, err)
		}
	}
	req.Trailer.Set("Client-Said", "7")
	out.Close()
	if _, err := lines.ReadString('\n'); err != io.EOF {
		t.Error(err)
	}
	if got := res.Trailer.Get("Grpc-Status"); got != "07" {
		t.Errorf("trailer %q", got)
	}
}

// TestEventsComeAtOnce: nothing is kept back that a server has sent.
func TestEventsComeAtOnce(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		r := newRig(t, terms{rules: good})
		next := make(chan struct{})
		r.server("good.test", 443, true, http2, func(w http.ResponseWriter, req *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			for i := range 3 {
				fmt.Fprintf(w, "data: %d\n\n", i)
				_ = http.NewResponseController(w).Flush()
				select {
				case <-next:
				case <-req.Context().Done():
				}
			}
		})
		res, err := r.client(http2).Get("https://good.test/events")
		if err != nil {
			t.Fatal(err)
		}
		b := bufio.NewReader(res.Body)
		for i := range 3 {
			line, err := b.ReadString('\n')
			if want := fmt.Sprintf("data: %d\n", i); line != want || err != nil {
				t.Errorf("%q %v", line, err)
			}
			_, _ = b.ReadString('\n')
			next <- struct{}{}
		}
		res.Body.Close()
	}
}

// TestLargeBodies: what passes is not kept.
func TestLargeBodies(t *testing.T) {
	const size = 96 << 20
	r := newRig(t, terms{rules: good})
	r.server("good.test", 443, true, true, func(w http.ResponseWriter, req *http.Request) {
		n, err := io.Copy(io.Discard, req.Body)
		if err != nil || n != size {
			t.Error(n, err)
		}
		_, _ = io.CopyN(w, zeros{}, size)
	})
	// What lives is measured, not what waits to be collected, and not what other tests left.
	live := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before, most := live(), int64(0)
	stop := make(chan struct{})
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		for {
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Millisecond):
				most = max(most, live()-before)
			}
		}
	}()
	req, err := http.NewRequestWithContext(t.Context(), "POST", "https://good.test/", io.LimitReader(zeros{}, size))
	if err != nil {
		t.Fatal(err)
	}
	req.ContentLength = size
	res, err := r.client(true).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(io.Discard, res.Body)
	res.Body.Close()
	close(stop)
	<-watched
	if n != size || err != nil {
		t.Error(n, err)
	}
	if most > 16<<20 {
		t.Errorf("%d MiB were kept", most>>20)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// webSocket upgrades a connection and says whether it could.
func webSocket(t *testing.T, c net.Conn, name string) (*bufio.Reader, int) {
	t.Helper()
	fmt.Fprintf(c, "GET /ws HTTP/1.1\r\nHost: %s\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n", name)
	b := bufio.NewReader(c)
	res, err := http.ReadResponse(b, nil)
	if err != nil {
		t.Fatal(err)
	}
	return b, res.StatusCode
}

// echoSocket is a server that becomes a web socket as far as its first answer, and then echoes.
func echoSocket(w http.ResponseWriter, req *http.Request) {
	if !strings.EqualFold(req.Header.Get("Upgrade"), "websocket") {
		w.WriteHeader(400)
		return
	}
	sum := sha1.Sum([]byte(req.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: %s\r\n\r\n",
		base64.StdEncoding.EncodeToString(sum[:]))
	_, _ = io.Copy(conn, rw)
}

func TestWebSocket(t *testing.T) {
	rules := []glovebox.EgressRule{{Host: "good.test"}, {Host: "ws.test", WebSocket: true}}
	r := newRig(t, terms{rules: rules})
	for _, name := range []string{"good.test", "ws.test"} {
		r.server(name, 443, true, true, echoSocket)
		r.server(name, 80, false, false, echoSocket)
	}
	if _, code := webSocket(t, r.must("good.test", 80), "good.test"); code != 403 {
		t.Error(code)
	}
	r.waitDenied(egress.ReasonWebSocket)
	c, err := r.secured("ws.test", "ws.test", "http/1.1")
	if err != nil {
		t.Fatal(err)
	}
	for _, conn := range []net.Conn{c, r.must("ws.test", 80)} {
		b, code := webSocket(t, conn, "ws.test")
		if code != 101 {
			t.Fatal(code)
		}
		for range 3 {
			fmt.Fprintln(conn, "hello")
			if line, err := b.ReadString('\n'); line != "hello\n" || err != nil {
				t.Fatal(line, err)
			}
		}
	}
	// It ends when the rules change, both ends of it.
	r.a.Replace(compile(t, rules[:1]))
	_ = c.SetReadDeadline(time.Now().Add(2 * time.Second))
	began := time.Now()
	if n, err := c.Read(make([]byte, 1)); err == nil || time.Since(began) > time.Second {
		t.Error(n, err, time.Since(began))
	}
	f := r.waitRecord("a web socket", func(f glovebox.EgressFlow) bool { return f.Path == "/ws" && f.Host == "ws.test" && f.Count == 1 })
	if f.BytesUp == 0 || f.BytesDown == 0 {
		t.Errorf("%+v", f)
	}
	r.waitDenied(egress.ReasonPolicyChanged)
}

func TestServerNameOnly(t *testing.T) {
	r := newRig(t, terms{rules: []glovebox.EgressRule{{Host: "sni.test", Protocols: []string{"tls"}},
		{Host: "mode.test", Mode: "sni"}}})
	for _, name := range []string{"sni.test", "mode.test"} {
		s := r.server(name, 443, true, true, hello)
		r.cas.AddCert(ca(t).cert)
		c, err := r.secured(name, name, "http/1.1")
		if err != nil {
			t.Fatal(err)
		}
		if got := c.ConnectionState().PeerCertificates[0]; !bytes.Equal(got.Raw, s.TLS.Certificates[0].Certificate[0]) {
			t.Error("the certificate is not the server's own")
		}
		if code, body := raw(t, c, "GET / HTTP/1.1\r\nHost: "+name+"\r\nConnection: close\r\n\r\n"); code != 200 {
			t.Error(code, body)
		}
		c.Close()
		f := r.waitRecord("tls", func(f glovebox.EgressFlow) bool { return f.Allowed && f.Host == name })
		if f.Layer != "tls" || f.BytesUp == 0 || f.BytesDown == 0 {
			t.Errorf("%+v", f)
		}
	}
	if _, err := r.secured("sni.test", "evil.test"); err == nil {
		t.Error("another name was said")
	}
	r.waitDenied(egress.ReasonSNIMismatch)
}

func TestEncryptedHello(t *testing.T) {
	r := newRig(t, terms{rules: []glovebox.EgressRule{{Host: "sni.test", Protocols: []string{"tls"}}, {Host: "good.test"}}})
	r.server("sni.test", 443, true, true, hello)
	r.server("good.test", 443, true, true, hello)
	c := tls.Client(r.must("sni.test", 443), &tls.Config{ServerName: "inner.test", RootCAs: r.cas,
		EncryptedClientHelloConfigList: echConfigs(t, "sni.test"), MinVersion: tls.VersionTLS13})
	if err := c.Handshake(); err == nil || !strings.Contains(err.Error(), "access denied") {
		t.Error(err)
	}
	r.waitDenied(egress.ReasonECH)
	// Where TLS is ended here there is no key that would open it: the outer name counts.
	c = tls.Client(r.must("good.test", 443), &tls.Config{ServerName: "inner.test", RootCAs: r.cas,
		EncryptedClientHelloConfigList: echConfigs(t, "good.test"), MinVersion: tls.VersionTLS13})
	if err := c.Handshake(); err == nil {
		t.Error("a hidden name was accepted")
	}
	if r.internet.dialled() > 0 {
		t.Error("something was dialled")
	}
}

func TestBytesOnly(t *testing.T) {
	rules := []glovebox.EgressRule{{Host: "db.test", Ports: []int{5432}, Protocols: []string{"tcp"}},
		{Host: "gone.test", Ports: []int{5432}, Protocols: []string{"tcp"}}}
	r := newRig(t, terms{rules: rules})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.WriteString(c, "server first\n")
				_, _ = io.Copy(c, c)
				c.Close()
			}()
		}
	}()
	r.at("db.test", 5432, l.Addr().String())
	c := r.must("db.test", 5432)
	b := bufio.NewReader(c)
	if line, err := b.ReadString('\n'); line != "server first\n" || err != nil {
		t.Fatal(line, err)
	}
	_, _ = io.WriteString(c, "one")
	_ = c.(*net.UnixConn).CloseWrite()
	if rest, err := io.ReadAll(b); string(rest) != "one" || err != nil {
		t.Error(string(rest), err)
	}
	r.waitRecord("tcp", func(f glovebox.EgressFlow) bool {
		return f.Allowed && f.Layer == "tcp" && f.BytesUp == 3 && f.BytesDown == 16
	})
	// What cannot be reached is not connected.
	if _, err := r.open("gone.test", 5432); err == nil {
		t.Error("connected to nobody")
	}
	r.waitDenied(egress.ReasonUpstreamFailed)
	open := r.must("db.test", 5432)
	began := time.Now()
	r.a.Replace(nil)
	if _, err := io.ReadAll(open); time.Since(began) > time.Second {
		t.Error(err, time.Since(began))
	}
	if _, err := r.open("db.test", 5432); err == nil {
		t.Error("connected without rules")
	}
}
