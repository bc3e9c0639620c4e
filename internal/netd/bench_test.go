package netd

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"glovebox/internal/netwire"
)

// The bars are ratios of one run: bytes per second through netd against an HTTP CONNECT proxy on a Unix socket, which is
// what a sandbox without an interface would use, and the time for a new connection against a direct one.
//
//	go test -run '^$' -bench . -benchtime 2s ./internal/netd

// upstream is a server on the loopback: it sends what is asked for in MiB, or takes all and says so.
func upstream(b testing.TB) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	megabyte := make([]byte, 1<<20)
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var n int
		if _, err := fmt.Sscan(r.URL.Query().Get("mib"), &n); err == nil {
			for range n {
				_, _ = w.Write(megabyte)
			}
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
	})}
	go func() { _ = s.Serve(l) }()
	b.Cleanup(func() { s.Close() })
	return l.Addr().String()
}

// relayTo copies both ways, and counts, as both a gateway and a proxy do whose sandboxes have a budget of bytes.
func relayTo(address string, counted *atomic.Int64) func(net.Conn) {
	return func(c net.Conn) {
		defer c.Close()
		up, err := net.Dial("tcp", address)
		if err != nil {
			return
		}
		defer up.Close()
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = io.Copy(counter{up, counted}, struct{ io.Reader }{c})
			_ = up.(*net.TCPConn).CloseWrite()
		}()
		_, _ = io.Copy(counter{c, counted}, struct{ io.Reader }{up})
		_ = c.(*net.UnixConn).CloseWrite()
		<-done
	}
}

type counter struct {
	w io.Writer
	n *atomic.Int64
}

func (c counter) Write(p []byte) (int, error) {
	c.n.Add(int64(len(p)))
	return c.w.Write(p)
}

// connectProxy is an HTTP CONNECT proxy on a Unix socket.
func connectProxy(b testing.TB, address string, counted *atomic.Int64) string {
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
			go func() {
				r, err := http.ReadRequest(bufio.NewReader(c))
				if err != nil || r.Method != http.MethodConnect {
					c.Close()
					return
				}
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
				relayTo(address, counted)(c)
			}()
		}
	}()
	return path
}

// processorTime is what the threads of processes have had of the processors: a machine that is busy makes no difference to
// it.
func processorTime(b *testing.B, pids ...int) (sum time.Duration) {
	b.Helper()
	for _, pid := range pids {
		files, err := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "task", "*", "schedstat"))
		if err != nil {
			b.Fatal(err)
		}
		for _, f := range files {
			var n int64
			text, err := os.ReadFile(f)
			if err != nil {
				continue // that thread has ended
			}
			if _, err := fmt.Sscan(string(text), &n); err != nil {
				b.Fatal(err)
			}
			sum += time.Duration(n)
		}
	}
	return sum
}

// ways are the ways to the upstream that are compared, and the netd of one of them.
func ways(b *testing.B, tap bool) (map[string]func() (net.Conn, error), int) {
	address := upstream(b)
	var counted atomic.Int64
	proxy := connectProxy(b, address, &counted)
	quotas := netwire.Quotas{OpenFlows: netwire.MaxStreams, FlowsPerSecond: netwire.MaxStreams}
	_, netd := startNetd(b, tap, netwire.Setup{Quotas: quotas}, all(relayTo(address, &counted)))
	through := net.JoinHostPort(resolve(b, "good.test"), "80")
	return map[string]func() (net.Conn, error){
		"direct": func() (net.Conn, error) { return net.Dial("tcp", address) },
		"netd":   func() (net.Conn, error) { return net.Dial("tcp", through) },
		"proxy": func() (net.Conn, error) {
			c, err := net.Dial("unix", proxy)
			if err != nil {
				return nil, err
			}
			_, _ = io.WriteString(c, "CONNECT good.test:80 HTTP/1.1\r\nHost: good.test:80\r\n\r\n")
			// No byte after the answer is read before the request.
			answer := make([]byte, len("HTTP/1.1 200 OK\r\n\r\n"))
			_, err = io.ReadFull(c, answer)
			return c, err
		},
	}, netd.Pid
}

func get(b *testing.B, dial func() (net.Conn, error), method, query string, body io.Reader, size int64) {
	c, err := dial()
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	r, err := http.NewRequest(method, "http://good.test/"+query, body)
	if err != nil {
		b.Fatal(err)
	}
	r.ContentLength, r.Close = size, true
	if err := r.Write(c); err != nil {
		b.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(c), r)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		b.Fatal(err)
	}
}

func compare(b *testing.B, measure func(b *testing.B, dial func() (net.Conn, error))) {
	for _, kind := range []string{"tun", "tap"} {
		b.Run(kind, func(b *testing.B) {
			all, netd := ways(b, kind == "tap")
			for _, way := range []string{"direct", "proxy", "netd"} {
				b.Run(way, func(b *testing.B) {
					before, there := processorTime(b, os.Getpid(), netd), processorTime(b, netd)
					measure(b, all[way])
					n := float64(b.N)
					b.ReportMetric(float64((processorTime(b, os.Getpid(), netd)-before).Microseconds())/n, "cpu-µs/op")
					b.ReportMetric(float64((processorTime(b, netd)-there).Microseconds())/n, "netd-µs/op")
				})
			}
		})
	}
}

func BenchmarkDownload(b *testing.B) {
	compare(b, func(b *testing.B, dial func() (net.Conn, error)) {
		b.SetBytes(64 << 20)
		for b.Loop() {
			get(b, dial, http.MethodGet, "?mib=64", nil, 0)
		}
	})
}

func BenchmarkUpload(b *testing.B) {
	zero, err := os.Open("/dev/zero")
	if err != nil {
		b.Fatal(err)
	}
	defer zero.Close()
	compare(b, func(b *testing.B, dial func() (net.Conn, error)) {
		b.SetBytes(64 << 20)
		for b.Loop() {
			get(b, dial, http.MethodPost, "", io.LimitReader(zero, 64<<20), 64<<20)
		}
	})
}

func BenchmarkNewConnection(b *testing.B) {
	compare(b, func(b *testing.B, dial func() (net.Conn, error)) {
		for b.Loop() {
			get(b, dial, http.MethodGet, "", nil, 0)
		}
	})
}

func BenchmarkRoundTrip(b *testing.B) {
	compare(b, func(b *testing.B, dial func() (net.Conn, error)) {
		c, err := dial()
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		r := bufio.NewReader(c)
		for b.Loop() {
			if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: good.test\r\n\r\n"); err != nil {
				b.Fatal(err)
			}
			answer, err := http.ReadResponse(r, nil)
			if err != nil {
				b.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, answer.Body)
		}
	})
}
