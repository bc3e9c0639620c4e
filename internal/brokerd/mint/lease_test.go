package mint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"glovebox"
)

// TestRenew: a token that a service refuses is replaced once.
func TestRenew(t *testing.T) {
	server := clientServer(t)
	w := newWorld(t, clientTokens(), map[string]string{secretName: canary}, server.ServeHTTP)
	l := w.lease()
	first := w.token(l)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if got, err := l.Renew(t.Context(), secretName, first); err != nil || got.Value == first.Value {
				t.Errorf("renewed to %q (%v)", got.Value, err)
			}
		})
	}
	all.Wait()
	if server.requests != 2 {
		t.Errorf("eight requests whose token was refused asked the service %d times, want 2 in all", server.requests)
	}
	second := w.token(l)
	_, err := l.Renew(t.Context(), secretName, second)
	var e *glovebox.Error
	if !errors.As(err, &e) || server.requests != 2 {
		t.Errorf("refused again: error %v after %d requests", err, server.requests)
	} else {
		wantText(t, "the refusal", e.Public, "refused again right after it was minted anew")
	}
	w.pass(renewTime)
	if got, err := l.Renew(t.Context(), secretName, second); err != nil || got.Value == second.Value {
		t.Errorf("a while later: %q (%v)", got.Value, err)
	}
	if err := l.Close(t.Context()); err != nil || len(server.revoked) != 3 {
		t.Errorf("revoked %v, of %v (%v)", server.revoked, server.gave, err)
	}
}

// TestFailures: a service that refuses is not asked again by each request, and a token that is still good outlasts it.
func TestFailures(t *testing.T) {
	server := clientServer(t)
	w := newWorld(t, clientTokens(), map[string]string{secretName: canary}, server.ServeHTTP)
	l := w.lease()
	first := w.token(l)
	server.refuse, server.status = "server_error", 503
	w.pass(50 * time.Minute)
	for range 5 {
		if got := w.token(l); got.Value != first.Value {
			t.Errorf("got %q", got.Value)
		}
	}
	if server.requests != 2 {
		t.Errorf("a service that fails was asked %d times, want 2 in all", server.requests)
	}
	w.pass(10 * time.Minute)
	w.refusal(l)
	w.refusal(l)
	if server.requests != 3 {
		t.Errorf("asked %d times, want 3 in all", server.requests)
	}
	server.refuse = ""
	w.pass(failedTime)
	if w.token(l).Value == first.Value {
		t.Error("not minted anew when the service answered again")
	}
}

// TestOneAtATime: many first requests of a run ask for one token; another run gets its own.
func TestOneAtATime(t *testing.T) {
	server := clientServer(t)
	w := newWorld(t, clientTokens(), map[string]string{secretName: canary}, server.ServeHTTP)
	l := w.lease()
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() { w.token(l) })
	}
	all.Wait()
	if server.requests != 1 {
		t.Errorf("asked %d times", server.requests)
	}
	if other := w.token(w.lease()); other.Value == w.token(l).Value {
		t.Error("two runs have the same token")
	}
}

// TestCloseDuringMint: a token that was being made when its run ended is revoked too.
func TestCloseDuringMint(t *testing.T) {
	server := clientServer(t)
	asked, go_ := make(chan struct{}), make(chan struct{})
	w := newWorld(t, clientTokens(), map[string]string{secretName: canary}, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/token" {
			close(asked)
			<-go_
		}
		server.ServeHTTP(w, r)
	})
	l := w.lease()
	var all sync.WaitGroup
	all.Go(func() { w.token(l) })
	<-asked
	all.Go(func() {
		if err := l.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
	close(go_)
	all.Wait()
	if len(server.revoked) != 1 {
		t.Errorf("revoked %v of %v", server.revoked, server.gave)
	}
}

// TestRevokeFails: what is still good is told, by name and time, without the token.
func TestRevokeFails(t *testing.T) {
	tokens, server := clientTokens(), clientServer(t)
	w := newWorld(t, tokens, map[string]string{secretName: canary}, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/revoke" {
			w.WriteHeader(503)
			return
		}
		server.ServeHTTP(w, r)
	})
	l := w.lease()
	got := w.token(l)
	err := l.Close(t.Context())
	if err == nil {
		t.Fatal("nobody was told")
	}
	wantText(t, "the error", err.Error(), "revoke a token of secret KEY, which is good until ")
	if strings.Contains(err.Error(), got.Value) {
		t.Errorf("the token is in %v", err)
	}
}

// TestTokenPrints: however a token is printed, its value is not there.
func TestTokenPrints(t *testing.T) {
	secret := Token{Value: "v4lue", AccessKeyID: "AKIA", Session: "s3ssion"}
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "token", secret, "in", struct{ T Token }{secret})
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "token", secret, "in", []Token{secret})
	j, err := json.Marshal(map[string]any{"t": secret, "p": &secret})
	if err != nil {
		t.Fatal(err)
	}
	all := log.String() + string(j)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		all += fmt.Sprintf(verb, secret) + fmt.Sprintf(verb, &secret) + fmt.Sprintf(verb, struct{ T Token }{secret})
	}
	for _, part := range []string{"v4lue", "s3ssion", fmt.Sprintf("%x", "v4lue")} {
		if strings.Contains(all, part) {
			t.Errorf("%q is in %s", part, all)
		}
	}
}
