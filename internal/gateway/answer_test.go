package gateway_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"glovebox"
	"glovebox/internal/egress"
)

// TestHeaders: what tells of those between is not sent, nor what leads around them.
func TestHeaders(t *testing.T) {
	r := newRig(t, terms{rules: good})
	got := make(chan http.Header, 1)
	r.server("good.test", 443, true, true, func(w http.ResponseWriter, req *http.Request) {
		got <- req.Header.Clone()
		w.Header().Set("Alt-Svc", `h3=":443"`)
		w.Header().Set("Via", "1.1 x")
		w.Header().Set("Location", "https://evil.test/")
		w.WriteHeader(302)
	})
	req, err := http.NewRequestWithContext(t.Context(), "GET", "https://good.test/", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Anything", "Forwarded", "Via", "Proxy-Authorization",
		"Proxy-Connection", "Keep-Alive", "X-Real-Ip", "Kept"} {
		req.Header.Set(name, "v")
	}
	res, err := r.client(true).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	for name := range <-got {
		if name != "Kept" && name != "User-Agent" && name != "Accept-Encoding" {
			t.Errorf("the server was sent %s", name)
		}
	}
	if res.Header.Get("Alt-Svc") != "" || res.Header.Get("Via") != "" || res.StatusCode != 302 {
		t.Error(res.StatusCode, res.Header)
	}
	if res.Header.Get("Location") != "https://evil.test/" {
		t.Error("a redirect is for the client to follow")
	}
	// Which is judged as anything else.
	if _, err := r.client(true).Get("https://evil.test/"); err == nil {
		t.Error("a redirect led out")
	}
}

func TestUpstreamTLS(t *testing.T) {
	self := httptest.NewUnstartedServer(http.HandlerFunc(hello)) // a certificate of its own making
	self.StartTLS()
	defer self.Close()
	var bytesSeen atomic.Int64
	r := newRig(t, terms{rules: []glovebox.EgressRule{{Host: "self.test"}, {Host: "wrong.test"}, {Host: "plain.test"}, {Host: "old.test"},
		{Host: "absent.test"}, {Host: "private.test"}}})
	r.at("self.test", 443, self.Listener.Addr().String())
	wrong := r.server("other.test", 443, true, true, func(http.ResponseWriter, *http.Request) { bytesSeen.Add(1) })
	r.at("wrong.test", 443, wrong.Listener.Addr().String())
	plain := httptest.NewServer(http.HandlerFunc(hello))
	defer plain.Close()
	r.at("plain.test", 443, plain.Listener.Addr().String())
	old := httptest.NewUnstartedServer(http.HandlerFunc(hello))
	old.TLS = &tls.Config{MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10, Certificates: []tls.Certificate{ca(t).make("old.test")}}
	old.StartTLS()
	defer old.Close()
	r.at("old.test", 443, old.Listener.Addr().String())
	r.at("private.test", 443, "private")
	for name, want := range map[string]string{"self.test": "upstream-tls", "wrong.test": "upstream-tls", "plain.test": "upstream-tls",
		"old.test": "upstream-tls", "absent.test": "upstream-failed", "private.test": "upstream-ip-private"} {
		code, body := get(t, r.client(true), "https://"+name+"/")
		status := 502
		if name == "private.test" {
			status = 403
		}
		if code != status || refusalOf(t, body).Reason != want {
			t.Errorf("%s: %d %s", name, code, body)
		}
		r.waitDenied(egress.Reason(want))
	}
	if bytesSeen.Load() != 0 {
		t.Error("a server that did not prove its name was sent a request")
	}
}

// TestAuthorities: a sandbox's authority is its own, and is for what was judged.
func TestAuthorities(t *testing.T) {
	one, two := newRig(t, terms{rules: good}), newRig(t, terms{rules: good})
	one.server("good.test", 443, true, true, hello)
	two.server("good.test", 443, true, true, hello)
	one.cas = two.cas
	if _, err := one.client(true).Get("https://good.test/"); err == nil {
		t.Error("one sandbox trusts the authority of another")
	}
	one.waitDenied(egress.ReasonClientTLS)
	c, err := two.secured("good.test", "good.test")
	if err != nil {
		t.Fatal(err)
	}
	leaf, root := c.ConnectionState().PeerCertificates[0], c.ConnectionState().PeerCertificates[1]
	if leaf.IsCA || leaf.NotAfter.Sub(leaf.NotBefore) > 24*time.Hour || time.Since(leaf.NotBefore) < 50*time.Second ||
		len(leaf.DNSNames) != 1 || leaf.ExtKeyUsage[0] != x509.ExtKeyUsageServerAuth || leaf.SerialNumber.BitLen() < 64 {
		t.Errorf("%+v", leaf)
	}
	if !root.IsCA || !root.MaxPathLenZero || root.SerialNumber.Cmp(leaf.SerialNumber) == 0 {
		t.Errorf("%+v", root)
	}
	if bytes.Contains(two.bundle, []byte("PRIVATE")) || !bytes.Contains(two.bundle, ca(t).pem) {
		t.Error("a key is shown, or the machine's own authorities are not")
	}
}
