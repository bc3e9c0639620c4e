package engine_test

import (
	"context"
	"encoding/pem"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"glovebox"
	"glovebox/driver"
	"glovebox/driver/process"
	"glovebox/engine"
	"glovebox/internal/gateway"
	"glovebox/internal/image"
	"glovebox/internal/upstream"
)

// toServer is a dialler that leads every name to one server.
type toServer struct {
	address string
	dials   atomic.Int64
}

func (d *toServer) DialContext(ctx context.Context, _ upstream.Target) (net.Conn, error) {
	d.dials.Add(1)
	var dialer net.Dialer
	return dialer.DialContext(ctx, "tcp", d.address)
}

// egressEngine makes an engine on the process rung whose runs may reach example.com, which is a server of the test's.
func egressEngine(t testing.TB, pool engine.Pool) (*engine.Engine, *toServer) {
	t.Helper()
	needRoot(t)
	init, err := buildInit()
	if err != nil {
		t.Fatal(err)
	}
	netd := filepath.Join(filepath.Dir(init), "glovebox-netd")
	if _, err := os.Stat(netd); err != nil {
		build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", netd, "glovebox/cmd/glovebox-netd")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		t.Skip("needs /dev/net/tun: ", err)
	}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.URL.Query().Get("bytes"))
		_, _ = w.Write([]byte("hello " + r.Host + r.URL.Path + strings.Repeat("x", n)))
	}))
	t.Cleanup(server.Close)
	to := &toServer{address: server.Listener.Addr().String()}
	roots := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	host, err := image.Host(image.Config{})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	d, err := process.New(process.Config{Init: init, ScratchDir: filepath.Join(dir, "scratch")})
	if err != nil {
		t.Fatal(err)
	}
	p := lowRungs
	p.Egress.Rules = []glovebox.EgressRule{{ID: "example", Host: "example.com"}}
	cfg := engine.Config{DataDir: filepath.Join(dir, "data"), Drivers: []driver.Driver{d}, Policy: p, Image: host, Pool: pool,
		Network: engine.Network{Jail: d, Netd: netd, Gateway: func() (*gateway.Gateway, error) {
			return gateway.New(gateway.Config{Dialer: to, Roots: roots})
		}}}
	if pool.Spares > 0 {
		cfg.Network.Ready = 2
	}
	e, err := engine.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return e, to
}

const fetch = `import urllib.request, sys
try:
    print(urllib.request.urlopen("%", timeout=20).read(40).decode())
except Exception as e:
    print(e)
`

func fetches(url string) glovebox.Request {
	return glovebox.Request{Code: strings.Replace(fetch, "%", url, 1), Allow: []string{"example.com"}}
}

// TestRealEgress: a program in a sandbox, one of its own or one that was ready, reaches what was granted and nothing else;
// its decisions are in the result; without a grant there is no network.
func TestRealEgress(t *testing.T) {
	for _, start := range []string{"cold", "fork"} {
		t.Run(start, func(t *testing.T) {
			pool := engine.Pool{}
			if start == "fork" {
				pool = engine.Pool{Spares: 4, Forks: true}
			}
			e, to := egressEngine(t, pool)
			ask := func(req glovebox.Request) *glovebox.Result {
				t.Helper()
				if start == "fork" {
					warm(t, e)
				}
				res, err := e.Run(t.Context(), tester, req, nil)
				if err != nil {
					t.Fatal(err)
				}
				if !res.OK || res.Start != start {
					t.Errorf("%s, start %s: %s%s", res.Status, res.Start, string(res.Stdout), string(res.Stderr))
				}
				return res
			}
			res := ask(fetches("https://example.com/a"))
			want := glovebox.EgressFlow{Host: "example.com", Port: 443, Allowed: true, Layer: "http", Rule: "example", Method: "GET",
				Path: "/a"}
			if res.Stdout != "hello example.com/a\n" || res.Posture["network"] != "attached" || *res.Usage.EgressBytes < 20 {
				t.Errorf("%q, %v, %d bytes", string(res.Stdout), res.Posture, *res.Usage.EgressBytes)
			}
			if !slices.ContainsFunc(res.Egress, func(f glovebox.EgressFlow) bool {
				f.BytesUp, f.BytesDown, f.Count = 0, 0, 0
				return f == want
			}) {
				t.Errorf("it is told as %+v", res.Egress)
			}
			dials := to.dials.Load()
			res = ask(fetches("http://other.test/b"))
			if !strings.Contains(string(res.Stdout), "403") || to.dials.Load() != dials || len(res.Egress) != 1 ||
				res.Egress[0].Allowed || res.Egress[0].Reason != "host-not-allowed" || res.Egress[0].Host != "other.test" {
				t.Errorf("%q, %+v", string(res.Stdout), res.Egress)
			}
			bare := fetches("https://example.com/a")
			bare.Allow = nil
			if res = ask(bare); res.Posture["network"] == "attached" || strings.Contains(string(res.Stdout), "hello") {
				t.Errorf("without a grant: %q, %v", string(res.Stdout), res.Posture)
			}
		})
	}
}

// TestRealEgressLimit: what passes is bounded, the program goes on, and the result names the limit.
func TestRealEgressLimit(t *testing.T) {
	e, _ := egressEngine(t, engine.Pool{})
	req := fetches("https://example.com/a?bytes=4000000")
	req.Code = strings.Replace(req.Code, "read(40)", "read()[:5]", 1)
	req.Limits.Egress = 256 * glovebox.KiB
	res, err := e.Run(t.Context(), tester, req, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !res.OK || !slices.Contains(res.LimitsHit, "egress") || strings.HasPrefix(string(res.Stdout), "hello") ||
		*res.Usage.EgressBytes > int64(512*glovebox.KiB) {
		t.Errorf("%q, limits %v, %d bytes, %s", string(res.Stdout), res.LimitsHit, *res.Usage.EgressBytes, res.Reason)
	}
}

// TestRealNetdDies: when the netd ends the sandbox has no network, its program is told so at once, and goes on.
func TestRealNetdDies(t *testing.T) {
	e, _ := egressEngine(t, engine.Pool{})
	req := fetches("")
	req.Code = `import errno, socket, time
socket.create_connection(("example.com", 80)).close()
print("up", flush=True)
begun = time.monotonic()
while time.monotonic() - begun < 20:
    try:
        socket.create_connection(("198.18.0.1", 80), timeout=1).close()
    except OSError as e:
        if e.errno == errno.ENETUNREACH:
            break
    time.sleep(0.01)
time.sleep(0.5)
print(time.monotonic() - begun < 5)
`
	sink := newByteSink()
	go func() {
		<-sink.heard
		if err := killNetds(); err != nil {
			t.Error(err)
		}
	}()
	begun := time.Now()
	res, err := e.Run(t.Context(), tester, req, sink)
	if err != nil || !res.OK || !strings.HasSuffix(string(res.Stdout), "True\n") || !strings.Contains(res.Reason, "network ended") {
		t.Errorf("%v after %v: %+v %s%s", err, time.Since(begun), res, string(res.Stdout), string(res.Stderr))
	}
}

// killNetds kills the netds that are descendants of this process.
func killNetds() error {
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return err
	}
	err = errors.New("there is no netd")
	for _, path := range all {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if line, _ := os.ReadFile(path); string(line) != "/glovebox-netd\x00" || !descends(pid) {
			continue
		}
		p, found := os.FindProcess(pid)
		if err = found; err == nil {
			err = p.Kill()
		}
	}
	return err
}

func descends(pid int) bool {
	for pid > 1 {
		if pid == os.Getpid() {
			return true
		}
		status, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
		if err != nil {
			return false
		}
		_, rest, _ := strings.Cut(string(status), "\nPPid:\t")
		parent, _, _ := strings.Cut(rest, "\n")
		if pid, err = strconv.Atoi(parent); err != nil {
			return false
		}
	}
	return false
}

// cpuSink notes what CPU time this process had used when the run's code was about to be let go.
type cpuSink struct {
	b  *testing.B
	at time.Duration
}

func (s *cpuSink) Event(e glovebox.Event) {
	if e.Kind == "start" {
		s.at = ownCPU(s.b)
	}
}

// BenchmarkWarmEgress is a run in a sandbox that was ready, without and with a network: start-ms is from the request to the
// code's release, and cpu-ms the time that this process uses until then.
func BenchmarkWarmEgress(b *testing.B) {
	for _, allow := range [][]string{nil, {"example.com"}} {
		b.Run(map[bool]string{false: "none", true: "attached"}[allow != nil], func(b *testing.B) {
			e, _ := egressEngine(b, engine.Pool{Spares: 4, Forks: true})
			var starts int64
			var spent time.Duration
			for range b.N {
				b.StopTimer()
				warm(b, e)
				before := ownCPU(b)
				b.StartTimer()
				sink := &cpuSink{b: b}
				res, err := e.Run(b.Context(), tester, glovebox.Request{Code: "print(1)", Allow: allow}, sink)
				b.StopTimer()
				if err != nil || res.Start != "fork" {
					b.Fatal(res, err)
				}
				spent += sink.at - before
				starts += *res.Usage.StartMS
			}
			b.ReportMetric(float64(starts)/float64(b.N), "start-ms")
			b.ReportMetric(float64(spent.Microseconds())/1000/float64(b.N), "cpu-ms")
		})
	}
}
