package brokerd

import (
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"glovebox"
	"glovebox/internal/broker"
)

func bearer() broker.Spec { return broker.Spec{Name: "TOKEN", Attach: broker.PlaceBearer} }

func httpsTo(hosts ...string) (rules []glovebox.EgressRule) {
	for _, h := range hosts {
		rules = append(rules, glovebox.EgressRule{Host: h, Protocols: []string{"https"}})
	}
	return rules
}

// What a server is sent depends on who it proves to be.
func TestUpstreamMustProve(t *testing.T) {
	spec := bearer()
	spec.Hosts = []string{host, "other.test", "private.test"}
	r := newRig(t, nil, spec)
	for url, want := range map[string]string{"https://other.test/": "upstream-tls", "https://private.test/": "upstream-ip-private"} {
		if a := r.do("POST", url, "body"); a.refused == nil || a.refused.reason != want {
			t.Errorf("%s: %+v, want %s", url, a, want)
		}
	}
	for name, make := range map[string]func(*httptest.Server){
		"self-signed": func(s *httptest.Server) { s.StartTLS() }, // its certificate is not among the roots: see below
		"no TLS":      func(s *httptest.Server) { s.Start() },
		"old TLS": func(s *httptest.Server) {
			s.TLS = &tls.Config{MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10}
			s.StartTLS()
		},
	} {
		t.Run(name, func(t *testing.T) {
			came := 0
			s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { came++ }))
			s.Config.ErrorLog = discarded()
			make(s)
			defer s.Close()
			other := &rig{t: t, log: &safeBuffer{}, env: map[string]string{}, file: r.file, upstream: r.upstream}
			if name == "self-signed" {
				other.upstream = nil
			}
			spec := bearer()
			spec.File, spec.Hosts = r.file, []string{host}
			other.startAt([]broker.Spec{spec}, netip.MustParseAddrPort(s.Listener.Addr().String()))
			other.bind(httpsTo(host), []glovebox.SecretRef{{Name: "TOKEN"}})
			if a := other.do("POST", "/", "body"); a.refused == nil || a.refused.reason != "upstream-tls" || a.refused.status != http.StatusBadGateway {
				t.Errorf("%+v", a)
			}
			if came != 0 || leaks(other.log.String(), canary) {
				t.Errorf("%d requests came; the log: %s", came, other.log)
			}
		})
	}
	if r.count() != 0 {
		t.Errorf("%d requests came upstream", r.count())
	}
}

// The broker believes nobody's judgement but its own.
func TestJudgedAgain(t *testing.T) {
	spec := bearer()
	spec.Hosts = []string{host, "unlent.test"}
	r := newRig(t, nil, spec)
	_, err := r.client.Bind(t.Context(), broker.Run{}, httpsTo(host), []glovebox.SecretRef{{Name: "TOKEN", Host: "unlent.test"}})
	if err == nil {
		t.Error("a secret was lent for a host that the run may not reach")
	}
	sni := []glovebox.EgressRule{{Host: host, Mode: "sni", Protocols: []string{"https"}}}
	if _, err = r.client.Bind(t.Context(), broker.Run{}, sni, []glovebox.SecretRef{{Name: "TOKEN", Host: host}}); err == nil {
		t.Error("a secret was lent where nothing is inspected")
	}
	for _, ref := range []glovebox.SecretRef{{Name: "NONE"}, {Name: "TOKEN", Host: "evil.test"}, {Name: "TOKEN", Host: host + ":444"}, {Name: "TOKEN", Host: "*.test"}} {
		if _, err := r.client.Bind(t.Context(), broker.Run{}, httpsTo(host, "evil.test"), []glovebox.SecretRef{ref}); err == nil {
			t.Errorf("%v was lent", ref)
		}
	}
	for url, want := range map[string]string{"https://evil.test/": "host-not-allowed", "https://" + host + ":444/": "port", "/a//b/../c": "path", "/%2e%2e/x": "path", "/a%2fb": "path"} {
		if a := r.do("GET", url, ""); a.refused == nil || a.refused.reason != want {
			t.Errorf("%s: %+v, want %s", url, a, want)
		}
	}
	if err := r.binding.Replace(t.Context(), httpsTo("evil.test")); err != nil {
		t.Fatal(err)
	}
	if a := r.do("GET", "/", ""); a.refused == nil || a.refused.reason != "host-not-allowed" {
		t.Errorf("after the rules changed: %+v", a)
	}
	if r.count() != 0 {
		t.Errorf("%d requests came upstream", r.count())
	}
}

// Whatever ends, nothing is lent after it.
func TestEnds(t *testing.T) {
	stuck := make(chan struct{})
	r := newRig(t, func(w http.ResponseWriter, q *http.Request) {
		if q.URL.Path == "/stuck" {
			w.(http.Flusher).Flush()
			close(stuck)
			<-q.Context().Done()
		}
	}, bearer())
	if a := r.do("GET", "/", ""); a.err != nil {
		t.Fatal(a.err)
	}
	ended := make(chan answered, 1)
	go func() { ended <- r.do("GET", "/stuck", "") }()
	<-stuck
	if err := r.binding.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a := <-ended; a.err == nil {
		t.Error("a request outlived what was lent")
	}
	if a := r.do("GET", "/", ""); a.err == nil || a.refused != nil {
		t.Errorf("after Close: %+v", a)
	}
	r.bind(httpsTo(host), []glovebox.SecretRef{{Name: "TOKEN"}})
	kill(t, brokers(t)[0])
	deadline := time.Now().Add(10 * time.Second)
	for r.do("GET", "/", "").err == nil {
		if time.Now().After(deadline) {
			t.Fatal("requests are answered though the broker has ended")
		}
	}
	if err := r.binding.Close(t.Context()); err != nil {
		t.Errorf("close where there is nothing: %v", err)
	}
	r.bind(httpsTo(host), []glovebox.SecretRef{{Name: "TOKEN"}})
	if a := r.do("GET", "/", ""); a.err != nil {
		t.Errorf("a new broker: %v", a.err)
	}
	if err := r.client.Close(); err != nil || len(brokers(t)) != 0 {
		t.Errorf("%v; left: %v", err, brokers(t))
	}
	if _, err := r.client.Bind(t.Context(), broker.Run{}, nil, nil); err == nil {
		t.Error("a closed client lends")
	}
}

// brokers are the broker processes that this test started.
func brokers(t testing.TB) (pids []int) {
	t.Helper()
	tasks, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range tasks {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // a thread that ended
		}
		for word := range strings.FieldsSeq(string(b)) {
			pid, err := strconv.Atoi(word)
			if err != nil {
				t.Fatal(err)
			}
			if line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); string(line) == "glovebox-broker\x00" {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

func kill(t *testing.T, pid int) {
	t.Helper()
	p, err := os.FindProcess(pid)
	if err == nil {
		err = p.Kill()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Where a value cannot be had, nothing is sent, and it is said why.
func TestSources(t *testing.T) {
	for name, tt := range map[string]struct {
		spec broker.Spec
		file func(path string) error
		want string
	}{
		"no file":        {file: os.Remove, want: "no such file"},
		"others read it": {file: func(p string) error { return os.Chmod(p, 0o640) }, want: "0640"},
		"others write":   {file: func(p string) error { return os.Chmod(p, 0o602) }, want: "0602"},
		"a link": {file: func(p string) error {
			if err := os.Rename(p, p+"2"); err != nil {
				return err
			}
			return os.Symlink(p+"2", p)
		}, want: "is a link"},
		"a hard link": {file: func(p string) error { return os.Link(p, p+"2") }, want: "hard links"},
		"a folder":    {file: func(p string) error { os.Remove(p); return os.Mkdir(p, 0o600) }, want: "no regular file"},
		"another's": {file: func(p string) error {
			if os.Geteuid() != 0 {
				return os.Chmod(p, 0o644)
			}
			return os.Chown(p, 12345, -1)
		}, want: ""},
		"empty":       {file: func(p string) error { return os.WriteFile(p, nil, 0o600) }, want: "empty"},
		"short":       {file: func(p string) error { return os.WriteFile(p, []byte("1234567"), 0o600) }, want: "fewer than 8"},
		"lines":       {file: func(p string) error { return os.WriteFile(p, []byte("12345678\r\nX-Evil: 1"), 0o600) }, want: "line break"},
		"long":        {file: func(p string) error { return os.WriteFile(p, make([]byte, maxValue+1), 0o600) }, want: "64 KiB"},
		"no variable": {spec: broker.Spec{Env: "NOT_GIVEN"}, want: "not set"},
		"no command":  {spec: broker.Spec{Command: []string{"/nowhere"}}, want: "cannot be started"},
		"it fails":    {spec: broker.Spec{Command: []string{"/bin/sh", "-c", "echo " + canary + " | tee /dev/stderr; exit 7"}}, want: "exit status 7"},
		"it floods":   {spec: broker.Spec{Command: []string{"/bin/sh", "-c", "head -c 1000000 /dev/zero"}}, want: "64 KiB"},
		"it is given": {spec: broker.Spec{Command: []string{"/bin/sh", "-c", "test \"$GIVEN\" && test -z \"$NOT\" && env >&2 && exit 9"}, Pass: []string{"GIVEN"}}, want: "exit status 9"},
	} {
		t.Run(name, func(t *testing.T) {
			spec := bearer()
			spec.Env, spec.Command, spec.Pass = tt.spec.Env, tt.spec.Command, tt.spec.Pass
			r := newRig(t, nil, spec)
			if tt.file != nil {
				if err := tt.file(r.file); err != nil {
					t.Fatal(err)
				}
			}
			a := r.do("POST", "/", "body")
			if a.refused == nil || a.refused.status != http.StatusBadGateway || !strings.Contains(a.refused.text, tt.want) || r.count() != 0 {
				t.Errorf("%+v, %d came upstream; want %s", a, r.count(), tt.want)
			}
			checked, err := r.client.Check(t.Context())
			if err != nil || checked[0].Error == nil || !strings.Contains(checked[0].Error.Message, tt.want) || checked[0].Error.Fix == "" {
				t.Errorf("check: %+v, %v", checked, err)
			}
			if leaks(a.refused.text+r.log.String()+fmt.Sprint(checked), canary) {
				t.Errorf("the value is seen: %s %s", a.refused.text, r.log)
			}
		})
	}
}

// A value that was changed at its source is used once the old one is refused, for a request that can be sent again.
func TestChangedValue(t *testing.T) {
	r := newRig(t, func(w http.ResponseWriter, q *http.Request) {
		if q.Header.Get("Authorization") != "Bearer the-new-value" {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}, bearer())
	if a := r.do("GET", "/", ""); a.status != http.StatusUnauthorized || r.count() != 1 {
		t.Errorf("an old value: %+v, sent %d times", a, r.count())
	}
	write(t, r.file, "the-new-value")
	if a := r.do("POST", "/", strings.Repeat("x", maxSmall+1)); a.status != http.StatusUnauthorized || r.count() != 2 {
		t.Errorf("a body that is gone: %+v, sent %d times", a, r.count())
	}
	a := r.do("POST", "/", "body")
	if _, body := r.last(); a.status != http.StatusOK || r.count() != 4 || body != "body" {
		t.Errorf("a new value: %+v, sent %d times, %q", a, r.count(), body)
	}
}

// Bodies pass as they come, both ways at once.
func TestStreams(t *testing.T) {
	r := newRig(t, func(w http.ResponseWriter, q *http.Request) {
		b := make([]byte, 5)
		for {
			if _, err := io.ReadFull(q.Body, b); err != nil {
				return
			}
			w.Write(b)
			w.(http.Flusher).Flush()
		}
	}, broker.Spec{Name: "TOKEN", Attach: broker.PlaceBearer, OnViolation: broker.ViolationEnd})
	body, feed := io.Pipe()
	q, err := http.NewRequestWithContext(t.Context(), "POST", "https://"+host+"/", body)
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("X-Stream", "1")
	answers := make(chan *http.Response, 1)
	go func() {
		resp, err := r.binding.RoundTrip(q)
		if err != nil {
			t.Error(err)
		}
		answers <- resp
	}()
	feed.Write([]byte("first"))
	resp := <-answers
	b := make([]byte, 5)
	for _, word := range []string{"first", "again", "third"} {
		if word != "first" {
			feed.Write([]byte(word))
		}
		if _, err := io.ReadFull(resp.Body, b); err != nil || string(b) != word {
			t.Fatalf("%q, %v", b, err)
		}
	}
	feed.Write([]byte("xx" + r.env["TOKEN"])) // a placeholder late in a body ends it
	feed.Close()
	if _, err := io.ReadAll(resp.Body); err == nil {
		t.Error("a body with a placeholder passed")
	}
	if !r.binding.Ends() {
		t.Error("the run goes on")
	}
	resp.Body.Close()
}

// The value is nowhere that another process, or a reader of logs and records, could find it.
func TestCanary(t *testing.T) {
	r := newRig(t, nil, bearer(), broker.Spec{Name: "OTHER", Env: "GIVEN", Attach: broker.PlaceBearer, Hosts: []string{"other.test"}})
	if a := r.do("GET", "/", ""); a.err != nil {
		t.Fatal(a.err)
	}
	pids := brokers(t)
	if len(pids) != 1 {
		t.Fatalf("brokers: %v", pids)
	}
	dir := fmt.Sprintf("/proc/%d/", pids[0])
	for _, name := range []string{"environ", "cmdline", "comm", "status", "limits"} {
		b, err := os.ReadFile(dir + name)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(b), canary) || name == "environ" && len(b) != 0 {
			t.Errorf("%s: %q", name, b)
		}
		if name == "limits" && !strings.Contains(strings.Join(strings.Fields(string(b)), " "), "Max core file size 0 0") {
			t.Errorf("it may leave a core:\n%s", b)
		}
	}
	info, err := os.Stat(dir + "environ")
	if err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() != 0 && info.Mode().Perm()&0o077 == 0 {
		if _, err := os.ReadFile(dir + "mem"); err == nil {
			t.Error("its memory can be read")
		}
	}
	if text := fmt.Sprintf("%v %+v %#v %s", r.binding, r.binding, r.binding.Env(), r.log); leaks(text, canary) {
		t.Errorf("the value is seen: %s", text)
	}
}

// A client of another kind is not served.
func TestServeRefuses(t *testing.T) {
	for name, talk := range map[string]func(*net.UnixConn){
		"nothing":      func(c *net.UnixConn) {},
		"no stream":    func(c *net.UnixConn) { c.Write([]byte(`{"kind":"setup"}`)) },
		"no JSON":      func(c *net.UnixConn) { openFor(t, c, "x") },
		"another kind": func(c *net.UnixConn) { openFor(t, c, `{"kind":"run"}`) },
	} {
		t.Run(name, func(t *testing.T) {
			mine, theirs := controls(t)
			done := make(chan error, 1)
			go func() { done <- Serve(theirs, Config{}) }()
			talk(mine)
			mine.Close()
			select {
			case err := <-done:
				if err == nil {
					t.Error("served")
				}
			case <-time.After(10 * time.Second):
				t.Error("it waits for ever")
			}
		})
	}
}

// controls are the two ends of a control socket.
func controls(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "control")
		c, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		ends[i] = c.(*net.UnixConn)
	}
	return ends[0], ends[1]
}

// openFor sends a message with a stream.
func openFor(t *testing.T, c *net.UnixConn, text string) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.WriteMsgUnix([]byte(text), syscall.UnixRights(fds[0]), nil); err != nil {
		t.Fatal(err)
	}
	syscall.Close(fds[0])
	syscall.Close(fds[1])
}

func discarded() *log.Logger { return slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) }
