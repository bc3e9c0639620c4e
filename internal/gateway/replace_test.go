package gateway_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"glovebox"
	"glovebox/internal/egress"
	"glovebox/internal/gateway"
)

// TestReplace: what the new rules do not allow ends, wherever it is; what they do goes on.
func TestReplace(t *testing.T) {
	both := []glovebox.EgressRule{{Host: "good.test"}, {Host: "kept.test"}}
	for _, http2 := range []bool{false, true} {
		r := newRig(t, terms{rules: both})
		for _, name := range []string{"good.test", "kept.test"} {
			r.server(name, 443, true, http2, func(w http.ResponseWriter, req *http.Request) {
				for i := 0; req.Context().Err() == nil; i++ {
					fmt.Fprintln(w, i)
					_ = http.NewResponseController(w).Flush()
					time.Sleep(10 * time.Millisecond)
				}
			})
		}
		lost, err := r.client(http2).Get("https://good.test/")
		if err != nil {
			t.Fatal(err)
		}
		kept, err := r.client(http2).Get("https://kept.test/")
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		r.a.Replace(compile(t, both[1:]))
		if _, err := io.Copy(io.Discard, lost.Body); err == nil || time.Since(began) > time.Second {
			t.Error(err, time.Since(began))
		}
		if _, err := io.CopyN(io.Discard, kept.Body, 100); err != nil {
			t.Error(err)
		}
		lost.Body.Close()
		kept.Body.Close()
		r.waitDenied(egress.ReasonPolicyChanged)
		if _, err := r.client(http2).Get("https://good.test/"); err == nil {
			t.Error("what was closed was opened again")
		}
	}
}

// TestReplaceOfRequests: a request ends whose path the rules no longer allow, and its connection goes on.
func TestReplaceOfRequests(t *testing.T) {
	before := []glovebox.EgressRule{{Host: "good.test"}}
	after := []glovebox.EgressRule{{Host: "good.test", Paths: []string{"/kept"}}}
	r := newRig(t, terms{rules: before})
	r.server("good.test", 443, true, true, func(w http.ResponseWriter, req *http.Request) {
		fmt.Fprintln(w, "begun")
		_ = http.NewResponseController(w).Flush()
		if req.URL.Path != "/kept" {
			<-req.Context().Done()
		}
	})
	c := r.client(true)
	lost, err := c.Get("https://good.test/lost")
	if err != nil {
		t.Fatal(err)
	}
	defer lost.Body.Close()
	began := time.Now()
	r.a.Replace(compile(t, after))
	if _, err := io.Copy(io.Discard, lost.Body); err == nil || time.Since(began) > time.Second {
		t.Error(err, time.Since(began))
	}
	if code, body := get(t, c, "https://good.test/kept"); code != 200 {
		t.Error(code, body)
	}
	if code, body := get(t, c, "https://good.test/lost"); code != 403 || refusalOf(t, body).Reason != "path" {
		t.Error(code, body)
	}
}

func TestExpiry(t *testing.T) {
	r := newRig(t, terms{rules: []glovebox.EgressRule{{Host: "good.test", Expires: time.Now().Add(500 * time.Millisecond)}}})
	r.server("good.test", 80, false, false, func(w http.ResponseWriter, req *http.Request) {
		fmt.Fprintln(w, "begun")
		_ = http.NewResponseController(w).Flush()
		<-req.Context().Done()
	})
	res, err := r.client(false).Get("http://good.test/")
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if _, err := io.Copy(io.Discard, res.Body); err == nil || time.Since(began) > 1500*time.Millisecond {
		t.Error(err, time.Since(began))
	}
	res.Body.Close()
	code, body := get(t, r.client(false), "http://good.test/")
	if code != 403 || refusalOf(t, body).Reason == "" {
		t.Error(code, body)
	}
}

// TestRulesChangeUnderLoad: whatever is under way, nothing passes a second after the rules forbid it.
func TestRulesChangeUnderLoad(t *testing.T) {
	r := newRig(t, terms{rules: good, quotas: gateway.Quotas{RequestsPerMinute: 1 << 30}})
	var served atomic.Int64
	serve := func(w http.ResponseWriter, req *http.Request) {
		served.Add(1)
		_, _ = io.CopyN(w, zeros{}, 1<<16)
	}
	r.server("good.test", 80, false, false, serve)
	r.server("good.test", 443, true, true, serve)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for i := range 8 {
		c, url := r.client(i%2 == 0), []string{"http://good.test/", "https://good.test/"}[i/2%2]
		all.Go(func() {
			for ctx.Err() == nil {
				if res, err := c.Get(url); err == nil {
					_, _ = io.Copy(io.Discard, res.Body)
					res.Body.Close()
				}
			}
		})
	}
	defer func() { cancel(); all.Wait() }()
	for range 5 {
		before := served.Load()
		r.a.Replace(compile(t, good))
		for deadline := time.Now().Add(10 * time.Second); served.Load() == before; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("what was opened again stays closed")
			}
		}
		r.a.Replace(nil)
		time.Sleep(200 * time.Millisecond)
		closed := served.Load()
		time.Sleep(200 * time.Millisecond)
		if n := served.Load(); n != closed {
			t.Errorf("%d requests passed that no rule allows", n-closed)
		}
	}
}
