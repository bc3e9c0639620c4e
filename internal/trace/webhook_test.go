package trace

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"glovebox"
)

// hook is a server that keeps what is posted to it and answers as it is told.
type hook struct {
	mu     sync.Mutex
	answer func(w http.ResponseWriter)
	got    []string
}

func (h *hook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var ref glovebox.TraceRef
	err := json.Unmarshal(body, &ref)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.got = append(h.got, fmt.Sprintf("%s %s %s %d:%s %v", r.Method, r.URL, r.Header.Get("Content-Type"), ref.Seq, ref.Hash, err))
	h.answer(w)
}

func TestHeadsToWebhook(t *testing.T) {
	h := &hook{answer: func(w http.ResponseWriter) { w.WriteHeader(http.StatusAccepted) }}
	server := httptest.NewServer(h)
	defer server.Close()
	tr := newTrace(t, t.TempDir())
	tr.heads.to.Webhook = server.URL + "/heads?token=of-the-operator"
	defer tr.Close()
	if err := tr.Ready(); err != nil {
		t.Fatal(err)
	}
	seq := mustStart(t, tr, someStart("run_1"))
	ref := mustEnd(t, tr, End{ID: "run_1", Result: someResult("run_1", glovebox.StatusExited)})
	h.mu.Lock()
	got := slices.Clone(h.got)
	h.mu.Unlock()
	const post = "POST /heads?token=of-the-operator application/json "
	if len(got) != 2 || !strings.HasPrefix(got[0], fmt.Sprintf("%s%d:", post, seq)) ||
		got[1] != fmt.Sprintf("%s%d:%s <nil>", post, ref.Seq, ref.Hash) {
		t.Errorf("posted %q, want the heads of %d and of %+v", got, seq, ref)
	}
	// What it refuses, redirects or drops has not arrived: nothing begins, and no message has the token.
	for name, answer := range map[string]func(http.ResponseWriter){
		"error":    func(w http.ResponseWriter) { w.WriteHeader(http.StatusInternalServerError) },
		"redirect": func(w http.ResponseWriter) { w.Header().Set("Location", server.URL); w.WriteHeader(http.StatusFound) },
		"hang up":  func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
	} {
		h.mu.Lock()
		h.answer = answer
		before := len(h.got)
		h.mu.Unlock()
		_, err := tr.Start(t.Context(), someStart("run_"+strings.ReplaceAll(name, " ", "_")))
		e := wantCode(t, name, err, glovebox.CodeUnavailable)
		if strings.Contains(e.Error()+e.Fix+e.Public, "of-the-operator") || !strings.Contains(e.Fix, "webhook") {
			t.Errorf("%s: %+v: %v", name, e, e.Err)
		}
		h.mu.Lock()
		if len(h.got) == before {
			t.Errorf("%s: nothing was posted", name)
		}
		h.mu.Unlock()
	}
	server.Close()
	_, err := tr.Start(t.Context(), someStart("run_gone"))
	if e := wantCode(t, "gone", err, glovebox.CodeUnavailable); strings.Contains(e.Error()+e.Fix, "of-the-operator") {
		t.Errorf("gone: %+v", e)
	}
	mustHold(t, tr)
}

func TestParseWebhook(t *testing.T) {
	for address, good := range map[string]bool{
		"https://log.example.com/heads": true, "https://[2001:db8::1]:8443/": true, "http://localhost:9/x": true,
		"http://127.0.0.1/": true, "http://[::1]:1/": true,
		"http://log.example.com/heads": false, "http://127.0.0.1.example.com/": false, "ftp://localhost/": false, "https://": false,
		"/heads": false, "https://a/#b": false, "http://localhost@evil.example/": false, "://": false,
	} {
		if to, err := ParseWebhook(address); (err == nil) != good {
			t.Errorf("%s: %v, %v", address, to, err)
		}
	}
	tr := newTrace(t, t.TempDir())
	tr.heads.to.Webhook = "http://log.example.com/"
	wantCode(t, "in the open", tr.Ready(), glovebox.CodeUnavailable)
}
