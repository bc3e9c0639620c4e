package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"glovebox"
	"glovebox/internal/egress"
	"glovebox/internal/gateway"
	"glovebox/internal/netwire"
)

func TestBudget(t *testing.T) {
	r := newRig(t, terms{rules: good, egress: 256 * glovebox.KiB})
	r.server("good.test", 80, false, false, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.CopyN(w, zeros{}, 10<<20) })
	res, err := r.client(false).Get("http://good.test/")
	if err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(io.Discard, res.Body)
	res.Body.Close()
	if err == nil || n > 256<<10 {
		t.Errorf("%d bytes came, %v", n, err)
	}
	u := r.a.Usage()
	if !u.LimitHit || u.BytesDown > 256<<10 || u.BytesDown < 200<<10 || u.BytesUp == 0 || u.BytesUp+u.BytesDown > 256<<10 {
		t.Errorf("%+v", u)
	}
	r.waitDenied(egress.ReasonBudget)
	// The next is told why.
	code, body := get(t, r.client(false), "http://good.test/")
	if got := refusalOf(t, body); code != 403 || got.Reason != "budget" {
		t.Error(code, body)
	}
}

func TestQuotas(t *testing.T) {
	r := newRig(t, terms{rules: good, quotas: gateway.Quotas{Flows: 2, RequestsPerMinute: 3, HostBytes: 1 << 20}})
	r.server("good.test", 80, false, false, hello)
	a, b := r.must("good.test", 80), r.must("good.test", 80)
	if _, err := r.open("good.test", 80); err == nil {
		t.Error("a third connection")
	}
	r.waitDenied(egress.ReasonQuota)
	a.Close()
	for i := range 4 {
		code, body := raw(t, b, "GET / HTTP/1.1\r\nHost: good.test\r\n\r\n")
		if i < 3 && code != 200 {
			t.Error(i, code, body)
		}
		if i == 3 && (code != 429 || refusalOf(t, body).Reason != "quota") {
			t.Error(code, body)
		}
	}
}

// TestRequestsAtATime: HTTP/2 has many requests in few connections.
func TestRequestsAtATime(t *testing.T) {
	r := newRig(t, terms{rules: good, quotas: gateway.Quotas{Requests: 4}})
	r.server("good.test", 443, true, true, func(w http.ResponseWriter, req *http.Request) {
		w.WriteHeader(200)
		_ = http.NewResponseController(w).Flush()
		<-req.Context().Done()
	})
	c := r.client(true)
	for i := range 6 {
		res, err := c.Get("https://good.test/")
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if want := 200; i < 4 && res.StatusCode != want || i >= 4 && res.StatusCode != 429 {
			t.Errorf("request %d: %d", i, res.StatusCode)
		}
	}
	r.waitDenied(egress.ReasonQuota)
}

// TestNothingIsLeft: what an attachment started has ended with it.
func TestNothingIsLeft(t *testing.T) {
	before := runtime.NumGoroutine()
	r := newRig(t, terms{rules: []glovebox.EgressRule{{Host: "good.test"}, {Host: "sni.test", Mode: "sni"}}})
	r.server("good.test", 443, true, true, hello)
	r.server("sni.test", 443, true, true, hello)
	r.cas.AddCert(ca(t).cert)
	servers := runtime.NumGoroutine()
	for range 20 {
		c := r.client(true)
		get(t, c, "https://good.test/")
		get(t, c, "https://sni.test/")
		_, _ = c.Get("https://evil.test/")
		r.must("good.test", 443)
	}
	if err := r.a.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		n := runtime.NumGoroutine()
		if n <= servers+2 {
			break
		}
		if time.Now().After(deadline) {
			buf := make([]byte, 1<<20)
			t.Fatalf("%d goroutines, %d before:\n%s", n, before, buf[:runtime.Stack(buf, true)])
		}
	}
}

func TestHostBytes(t *testing.T) {
	r := newRig(t, terms{rules: good, quotas: gateway.Quotas{HostBytes: 64 << 10}})
	r.server("good.test", 80, false, false, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.CopyN(w, zeros{}, 1<<20) })
	res, err := r.client(false).Get("http://good.test/")
	if err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(io.Discard, res.Body)
	res.Body.Close()
	if err == nil || n > 64<<10 {
		t.Errorf("%d bytes came, %v", n, err)
	}
	if r.waitDenied(egress.ReasonQuota); r.a.Usage().LimitHit {
		t.Error("the limit of all hosts was not reached")
	}
}

func TestBodyLimit(t *testing.T) {
	r := newRig(t, terms{rules: []glovebox.EgressRule{{Host: "good.test", BodyLimit: 64 * glovebox.KiB}}})
	var whole atomic.Int64
	r.server("good.test", 443, true, true, func(_ http.ResponseWriter, req *http.Request) {
		if _, err := io.Copy(io.Discard, req.Body); err == nil {
			whole.Add(1)
		}
	})
	for i, c := range []*http.Client{r.client(false), r.client(true)} {
		for _, known := range []bool{true, false} {
			for size, want := range map[int64]int{64 << 10: 200, 64<<10 + 1: 413, 1 << 20: 413} {
				req, err := http.NewRequestWithContext(t.Context(), "POST", "https://good.test/up", io.LimitReader(zeros{}, size))
				if err != nil {
					t.Fatal(err)
				}
				if known {
					req.ContentLength = size
				}
				res, err := c.Do(req)
				if err != nil {
					t.Errorf("client %d, %d bytes, known %v: %v", i, size, known, err)
					continue
				}
				body, _ := io.ReadAll(res.Body)
				res.Body.Close()
				if res.StatusCode != want || want == 413 && refusalOf(t, string(body)).Reason != "body-cap" {
					t.Errorf("client %d, %d bytes, known %v: %d %s", i, size, known, res.StatusCode, body)
				}
			}
		}
	}
	if n := whole.Load(); n != 4 {
		t.Errorf("the server saw %d whole requests", n)
	}
	r.waitDenied(egress.ReasonBodyCap)
}

// TestSameIsToldOnce: a program that does the same again and again fills no log.
func TestSameIsToldOnce(t *testing.T) {
	r := newRig(t, terms{rules: good})
	for range 200 {
		if _, err := r.open("evil.test", 22); err == nil {
			t.Fatal("connected")
		}
	}
	for i := range 600 {
		if _, err := r.open(fmt.Sprintf("n%d.evil.test", i), 22); err == nil {
			t.Fatal("connected")
		}
	}
	if err := r.a.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	var sum int64
	list := r.recorded()
	for _, f := range list {
		sum += max(f.Count, 1)
	}
	if sum != 800 || len(list) > 300 {
		t.Errorf("%d records of %d decisions", len(list), sum)
	}
	if lines := strings.Count(r.log.String(), "\n"); lines != len(list) {
		t.Errorf("%d lines of %d records", lines, len(list))
	}
}

func TestLogHasNoQuery(t *testing.T) {
	r := newRig(t, terms{rules: good})
	r.server("good.test", 80, false, false, hello)
	get(t, r.client(false), "http://good.test/p?token=geheim")
	r.waitRecord("a request", func(f glovebox.EgressFlow) bool { return f.Allowed })
	if err := r.a.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	text := r.log.String()
	if strings.Contains(text, "geheim") || !strings.Contains(text, "query_sha256=") || !strings.Contains(text, "path=/p") ||
		!strings.Contains(text, "decision=allowed") || !strings.Contains(text, "run=run1") {
		t.Error(text)
	}
}

// TestNetdDies: with its netd a sandbox has lost all it had open.
func TestNetdDies(t *testing.T) {
	r := newRig(t, terms{rules: []glovebox.EgressRule{{Host: "good.test", WebSocket: true}}})
	gone := make(chan struct{})
	r.server("good.test", 80, false, false, func(w http.ResponseWriter, req *http.Request) {
		fmt.Fprintln(w, "begun")
		_ = http.NewResponseController(w).Flush()
		<-req.Context().Done()
		close(gone)
	})
	res, err := r.client(false).Get("http://good.test/")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	r.peer.Close()
	select {
	case err := <-r.served:
		r.served <- nil
		if err != nil && !errors.Is(err, io.EOF) {
			t.Error(err)
		}
	case <-time.After(time.Second):
		t.Fatal("Serve goes on")
	}
	select {
	case <-gone:
	case <-time.After(time.Second):
		t.Error("the server's side goes on")
	}
	ours, theirs, err := netwire.Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	again, err := netwire.NewHost(ours)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.a.Serve(again); err == nil {
		t.Error("an attachment served twice")
	}
}

// TestClose: it waits for nobody who is slow.
func TestClose(t *testing.T) {
	r := newRig(t, terms{rules: []glovebox.EgressRule{{Host: "good.test"}, {Host: "db.test", Ports: []int{1}, Protocols: []string{"tcp"}}}})
	r.server("good.test", 443, true, true, func(w http.ResponseWriter, req *http.Request) {
		w.WriteHeader(200)
		_ = http.NewResponseController(w).Flush()
		<-req.Context().Done()
	})
	res, err := r.client(true).Get("https://good.test/")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	r.must("good.test", 443) // which says nothing
	r.internet.mu.Lock()
	r.internet.hold = make(chan struct{})
	r.internet.mu.Unlock()
	dialled := make(chan error, 1)
	go func() {
		_, err := r.open("db.test", 1) // which is being dialled
		dialled <- err
	}()
	for r.internet.dialled() < 2 {
		time.Sleep(time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := r.a.Close(ctx); err != nil {
		t.Error(err)
	}
	if err := <-dialled; err == nil {
		t.Error("connected after the end")
	}
	if err := r.a.Close(ctx); err != nil {
		t.Error(err)
	}
	n := len(r.recorded())
	time.Sleep(50 * time.Millisecond)
	if len(r.recorded()) != n {
		t.Error("something was recorded after the end")
	}
}

// TestNoRules: an attachment without rules lets nothing pass.
func TestNoRules(t *testing.T) {
	r := newRig(t, terms{})
	r.server("good.test", 80, false, false, hello)
	r.a.Replace(nil)
	if code, body := get(t, r.client(false), "http://good.test/"); code != 403 || refusalOf(t, body).Reason != "host-not-allowed" {
		t.Error(code, body)
	}
	if r.internet.dialled() > 0 {
		t.Error("something was dialled")
	}
}

func TestStrictNames(t *testing.T) {
	r := newRig(t, terms{rules: good})
	for i, name := range []string{"good.test", "evil.test"} {
		id := uint64(1000 + i)
		if err := r.peer.Send(netwire.Event{Kind: netwire.KindAsk, Flow: id, Host: name}); err != nil {
			t.Fatal(err)
		}
		select {
		case c := <-r.answers:
			if c.Flow != id || c.Known != (name == "good.test") {
				t.Errorf("%s: %+v", name, c)
			}
		case <-time.After(5 * time.Second):
			t.Fatal("no answer")
		}
	}
	if f := r.waitDenied(egress.ReasonHostNotAllowed); f.Layer != "dns" || f.Host != "evil.test" {
		t.Errorf("%+v", f)
	}
}

func TestWhatNetdDropped(t *testing.T) {
	r := newRig(t, terms{rules: good})
	if err := r.peer.Send(netwire.Event{Kind: netwire.KindDropped, Why: netwire.WhyUDP, Count: 7,
		Address: netip.MustParseAddr("192.0.2.1"), Port: 443}); err != nil {
		t.Fatal(err)
	}
	f := r.waitDenied(egress.ReasonNotHTTPOrTLS)
	if f.Count != 7 || f.Host != "192.0.2.1" || f.Port != 443 {
		t.Errorf("%+v", f)
	}
}

// TestSlowHello: whoever says nothing, or says it too slowly, is not waited for.
func TestSlowHello(t *testing.T) {
	t.Parallel()
	r := newRig(t, terms{rules: good})
	text := append([]byte{22, 3, 1, 0, 200, 1, 0, 0, 196, 3, 3}, make([]byte, 100)...)
	began := time.Now()
	var all []net.Conn
	for _, port := range []uint16{443, 80, 443} {
		all = append(all, r.must("good.test", port))
	}
	go func() {
		for i := range text {
			if _, err := all[2].Write(text[i : i+1]); err != nil {
				return
			}
			time.Sleep(200 * time.Millisecond)
		}
	}()
	for i, c := range all {
		_, _ = io.Copy(io.Discard, c)
		if took := time.Since(began); took < 9*time.Second || took > 13*time.Second {
			t.Errorf("connection %d ended after %v", i, took)
		}
	}
	r.waitDenied(egress.ReasonNotHTTPOrTLS)
}
