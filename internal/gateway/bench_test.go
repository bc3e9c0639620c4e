package gateway_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"glovebox"
)

// download reads a body of size bytes for each time round.
func download(b *testing.B, client *http.Client, url string, size int64) {
	b.SetBytes(size)
	before := cpu()
	defer func() { b.ReportMetric(float64((cpu()-before).Microseconds())/1000/float64(b.N), "cpu-ms/op") }()
	for b.Loop() {
		res, err := client.Get(url)
		if err != nil {
			b.Fatal(err)
		}
		n, err := io.Copy(io.Discard, res.Body)
		res.Body.Close()
		if n != size || err != nil {
			b.Fatal(n, err)
		}
	}
}

// cpu is the time of the processor that this process has used: on a machine that has other work too it varies less than the
// time that passes.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkDownload compares ways through a gateway with a proxy that a client asks by CONNECT over a unix socket, which
// sees nothing of what passes: the least that there is between a sandbox and a server.
func BenchmarkDownload(b *testing.B) {
	const size = 64 << 20
	serve := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(size))
		_, _ = io.CopyN(w, zeros{}, size)
	}
	for _, protocol := range []string{"http/1.1", "h2"} {
		http2 := protocol == "h2"
		b.Run("connect/"+protocol, func(b *testing.B) {
			r := newRig(b, terms{rules: good})
			r.server("good.test", 443, true, http2, serve)
			download(b, connectClient(b, r, http2), "https://good.test/", size)
		})
		b.Run("sni/"+protocol, func(b *testing.B) {
			r := newRig(b, terms{rules: []glovebox.EgressRule{{Host: "good.test", Mode: "sni"}}})
			r.server("good.test", 443, true, http2, serve)
			r.cas.AddCert(ca(b).cert)
			download(b, r.client(http2), "https://good.test/", size)
		})
		b.Run("inspect/"+protocol, func(b *testing.B) {
			r := newRig(b, terms{rules: good})
			r.server("good.test", 443, true, http2, serve)
			download(b, r.client(http2), "https://good.test/", size)
		})
	}
	b.Run("connect/plain", func(b *testing.B) {
		r := newRig(b, terms{rules: good})
		r.server("good.test", 80, false, false, serve)
		download(b, connectClient(b, r, false), "http://good.test/", size)
	})
	b.Run("gateway/plain", func(b *testing.B) {
		r := newRig(b, terms{rules: good})
		r.server("good.test", 80, false, false, serve)
		download(b, r.client(false), "http://good.test/", size)
	})
}

// BenchmarkConnection is a new connection with one small request.
func BenchmarkConnection(b *testing.B) {
	for _, way := range []string{"connect", "inspect", "sni"} {
		b.Run(way, func(b *testing.B) {
			rules := good
			if way == "sni" {
				rules = []glovebox.EgressRule{{Host: "good.test", Mode: "sni"}}
			}
			r := newRig(b, terms{rules: rules})
			r.server("good.test", 443, true, false, hello)
			client := r.client(false)
			if way == "connect" {
				client = connectClient(b, r, false)
			} else if way == "sni" {
				r.cas.AddCert(ca(b).cert)
			}
			for b.Loop() {
				if code, body := get(b, client, "https://good.test/"); code != 200 {
					b.Fatal(body)
				}
				client.CloseIdleConnections()
			}
		})
	}
}

// connectClient is a client that speaks to the proxy itself.
func connectClient(b *testing.B, r *rig, http2 bool) *http.Client {
	b.Helper()
	path := filepath.Join(b.TempDir(), "proxy")
	l, err := net.Listen("unix", path)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go connectServe(c, r)
		}
	}()
	trusted := x509.NewCertPool()
	trusted.AddCert(ca(b).cert)
	tr := &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: trusted},
		ForceAttemptHTTP2: http2,
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			c, err := net.Dial("unix", path)
			if err != nil {
				return nil, err
			}
			fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", addr, addr)
			head := make([]byte, len(connectOK))
			_, err = io.ReadFull(c, head)
			return c, err
		},
	}
	b.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

const connectOK = "HTTP/1.1 200 OK\r\n\r\n"

func connectServe(c net.Conn, r *rig) {
	defer c.Close()
	req, err := http.ReadRequest(bufio.NewReader(c))
	if err != nil {
		return
	}
	r.internet.mu.Lock()
	addr := r.internet.places[strings.TrimSuffix(req.Host, ".")]
	r.internet.mu.Unlock()
	up, err := net.Dial("tcp", addr)
	if err != nil {
		return
	}
	defer up.Close()
	_, _ = io.WriteString(c, connectOK)
	done := make(chan struct{})
	go func() {
		_, _ = io.Copy(up, c)
		close(done)
	}()
	_, _ = io.Copy(c, up)
	c.Close()
	<-done
}
