package mint

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"glovebox/internal/broker"
)

// authServer is an authorization server: it checks what the RFCs let one check and remembers what it gave.
type authServer struct {
	t *testing.T

	mu       sync.Mutex
	id       string
	secret   string
	inBody   bool
	want     url.Values // the form beside how the client shows itself
	answer   map[string]any
	refuse   string // an error code instead
	status   int
	gave     []string
	revoked  []string
	requests int
}

func (a *authServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.requests++
	fail := func(status int, code string) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"error":%q,"error_description":"you sent %s"}`, code, a.secret)
	}
	if r.Method != "POST" || r.Header.Get("Content-Type") != "application/x-www-form-urlencoded" || r.URL.RawQuery != "" {
		fail(400, "invalid_request")
		return
	}
	if err := r.ParseForm(); err != nil {
		fail(400, "invalid_request")
		return
	}
	form := r.PostForm
	id, secret, basic := r.BasicAuth()
	id, _ = url.QueryUnescape(id)
	secret, _ = url.QueryUnescape(secret)
	if a.inBody {
		id, secret = form.Get("client_id"), form.Get("client_secret")
	}
	if basic == a.inBody || id != a.id || secret != a.secret || basic && (form.Has("client_id") || form.Has("client_secret")) {
		fail(401, "invalid_client")
		return
	}
	form.Del("client_id")
	form.Del("client_secret")
	if r.URL.Path == "/revoke" {
		a.revoked = append(a.revoked, form.Get("token"))
		return // 200 whatever it was
	}
	if a.refuse != "" {
		fail(a.status, a.refuse)
		return
	}
	if diff := cmp.Diff(a.want, form); diff != "" {
		a.t.Errorf("the form (-want +got):\n%s", diff)
		fail(400, "invalid_request")
		return
	}
	token := fmt.Sprintf("at-%d", a.requests)
	a.gave = append(a.gave, token)
	answer := map[string]any{"access_token": token, "token_type": "Bearer", "expires_in": 3600}
	for k, v := range a.answer {
		if answer[k] = v; v == nil {
			delete(answer, k)
		}
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(answer)
}

const canary = "s3cr3t+/=canary &?"

func clientTokens() *broker.Tokens {
	return &broker.Tokens{OAuth2: &broker.OAuth2Tokens{TokenURL: "https://example.com/token",
		RevokeURL: "https://example.com/revoke", ClientID: "glove:box", Scopes: []string{"read", "write"}, Audience: "api"}}
}

func clientServer(t *testing.T) *authServer {
	return &authServer{t: t, id: "glove:box", secret: canary,
		want: url.Values{"grant_type": {"client_credentials"}, "scope": {"read write"}, "audience": {"api"}}}
}

// TestClientCredentials: both ways of a client to show itself, exactly as the RFC has them, and the token's life.
func TestClientCredentials(t *testing.T) {
	for _, auth := range []string{"", "basic", "body"} {
		tokens, server := clientTokens(), clientServer(t)
		tokens.OAuth2.Auth, server.inBody = auth, auth == "body"
		w := newWorld(t, tokens, map[string]string{secretName: canary + "\n"}, server.ServeHTTP)
		l := w.lease()
		first := w.token(l)
		if got := first.Expires.Sub(w.now); got != time.Hour {
			t.Errorf("auth %q: a life of %v", auth, got)
		}
		w.pass(47 * time.Minute)
		if again := w.token(l); again.Value != first.Value {
			t.Errorf("auth %q: minted anew before 80 %% of its life", auth)
		}
		w.pass(2 * time.Minute)
		second := w.token(l)
		if second.Value == first.Value {
			t.Errorf("auth %q: not minted anew after 80 %% of its life", auth)
		}
		if diff := cmp.Diff([]string{first.Value, second.Value}, l.Secrets()); diff != "" {
			t.Errorf("auth %q: what answers must not hold (-want +got):\n%s", auth, diff)
		}
		if err := l.Close(t.Context()); err != nil {
			t.Errorf("auth %q: %v", auth, err)
		}
		if slices.Sort(server.revoked); !cmp.Equal(server.revoked, server.gave) {
			t.Errorf("auth %q: gave %v, revoked %v", auth, server.gave, server.revoked)
		}
		if _, err := l.Token(t.Context(), secretName); err == nil {
			t.Errorf("auth %q: a run that ended was lent a token", auth)
		}
	}
}

// TestOAuthAnswers: what is no token, and what is one all the same.
func TestOAuthAnswers(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer map[string]any
		life   time.Duration // of a token that there is
		said   string
	}{
		{"without a life", map[string]any{"expires_in": nil}, unknownLife, ""},
		{"life as text", map[string]any{"expires_in": "120"}, 2 * time.Minute, ""},
		{"life of years", map[string]any{"expires_in": 1 << 30}, maxLife, ""},
		{"type in small letters", map[string]any{"token_type": "bearer"}, time.Hour, ""},
		{"expired", map[string]any{"expires_in": 1}, 0, "had expired when it came"},
		{"expired long ago", map[string]any{"expires_in": -5}, 0, "had expired when it came"},
		{"another type", map[string]any{"token_type": "mac"}, 0, "no bearer token"},
		{"no token", map[string]any{"access_token": nil}, 0, "holds no token"},
		{"a header in it", map[string]any{"access_token": "a\r\nX-Evil: 1"}, 0, "fits no header"},
		{"no ASCII", map[string]any{"access_token": "tökén"}, 0, "fits no header"},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := clientServer(t)
			server.answer = c.answer
			w := newWorld(t, clientTokens(), map[string]string{secretName: canary}, server.ServeHTTP)
			if c.said == "" {
				if got := w.token(w.lease()).Expires.Sub(w.now); got != c.life {
					t.Errorf("a life of %v, want %v", got, c.life)
				}
				return
			}
			said, _ := w.refusal(w.lease())
			wantText(t, "the refusal", said, c.said)
		})
	}
}

// TestOAuthRefusals: each error of the protocol has its own fix, and the service's free text, which may hold what was sent,
// is passed on to nobody.
func TestOAuthRefusals(t *testing.T) {
	for code, fix := range map[string]string{"invalid_client": "client_id", "invalid_grant": "renew", "invalid_scope": "scopes",
		"invalid_target": "audience", "unsupported_grant_type": "token_url", "server_error": "log", "<script>": "log"} {
		server := clientServer(t)
		server.refuse, server.status = code, 400
		w := newWorld(t, clientTokens(), map[string]string{secretName: canary}, server.ServeHTTP)
		said, how := w.refusal(w.lease())
		wantText(t, code, said, "example.com made no token for secret KEY (status 400")
		wantText(t, code, how, fix)
		if strings.Contains(said, "script") {
			t.Errorf("a word that is none of the protocol's is passed on: %q", said)
		}
	}
}

// TestExchange: RFC 8693, with an actor and without a client's secret.
func TestExchange(t *testing.T) {
	want := url.Values{"grant_type": {"urn:ietf:params:oauth:grant-type:token-exchange"}, "subject_token": {canary},
		"subject_token_type": {"urn:ietf:params:oauth:token-type:jwt"}, "audience": {"orders"}, "scope": {"orders:read"}}
	x := broker.ExchangeTokens{TokenURL: "https://example.com/token", ClientID: "box",
		SubjectType: "urn:ietf:params:oauth:token-type:jwt", Audience: "orders", Scopes: []string{"orders:read"}}
	answer := map[string]any{"issued_token_type": "urn:ietf:params:oauth:token-type:access_token"}

	server := &authServer{t: t, id: "box", inBody: true, want: want, answer: answer}
	w := newWorld(t, &broker.Tokens{Exchange: &x}, map[string]string{secretName: canary}, server.ServeHTTP)
	w.token(w.lease())

	acting := x
	acting.ClientSecret, acting.Actor, acting.RevokeURL = "OTHER", "ACTOR", "https://example.com/revoke"
	withActor := url.Values{"actor_token": {"the actor"}, "actor_token_type": {"urn:ietf:params:oauth:token-type:access_token"}}
	for k, v := range want {
		withActor[k] = v
	}
	server = &authServer{t: t, id: "box", secret: "client's own", want: withActor, answer: answer}
	w = newWorld(t, &broker.Tokens{Exchange: &acting},
		map[string]string{secretName: canary, "OTHER": "client's own", "ACTOR": "the actor"}, server.ServeHTTP)
	l := w.lease()
	w.token(l)
	if err := l.Close(t.Context()); err != nil || !cmp.Equal(server.revoked, server.gave) {
		t.Errorf("gave %v, revoked %v, error %v", server.gave, server.revoked, err)
	}

	delete(w.sources, "ACTOR")
	said, _ := w.refusal(w.lease())
	wantText(t, "without the actor's token", said, "the file of secret ACTOR is not there")
}

// TestRefresh: a refresh token that the service replaces is used once, whichever run comes; one that the operator replaces is
// taken up; one that was used up is refused with what to do.
func TestRefresh(t *testing.T) {
	var mu sync.Mutex
	good, n := "first", 0
	answer := func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		if r.PostFormValue("grant_type") != "refresh_token" || r.PostFormValue("refresh_token") != good {
			w.WriteHeader(400)
			fmt.Fprint(w, `{"error":"invalid_grant"}`)
			return
		}
		n++
		good = fmt.Sprintf("next-%d", n)
		fmt.Fprintf(w, `{"access_token":"at-%d","token_type":"bearer","expires_in":60,"refresh_token":%q}`, n, good)
	}
	tokens := &broker.Tokens{OAuth2: &broker.OAuth2Tokens{TokenURL: "https://example.com/token", ClientID: "box", Refresh: true}}
	w := newWorld(t, tokens, map[string]string{secretName: "first"}, answer)
	values := map[string]bool{}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			got := w.token(w.lease())
			mu.Lock()
			defer mu.Unlock()
			values[got.Value] = true
		})
	}
	all.Wait()
	if len(values) != 8 {
		t.Errorf("eight runs share tokens: %v", values)
	}
	mu.Lock()
	good = "revoked by the service"
	mu.Unlock()
	said, fix := w.refusal(w.lease())
	wantText(t, "the refusal", said, "invalid_grant")
	wantText(t, "the fix", fix, "renew what the source holds")
	w.sources[secretName] = "revoked by the service"
	w.token(w.lease())
}

// TestUnreached: a service that cannot be reached, or whose certificate is another's, gets nothing and is told by name.
func TestUnreached(t *testing.T) {
	for name, address := range map[string]string{
		"no such host": "https://nowhere.test/token", "another port": "https://example.com:8443/token",
	} {
		tokens, server := clientTokens(), clientServer(t)
		tokens.OAuth2.TokenURL = address
		w := newWorld(t, tokens, map[string]string{secretName: canary}, server.ServeHTTP)
		said, _ := w.refusal(w.lease())
		wantText(t, name, said, "could not be asked for a token of secret KEY")
	}
	tokens, server := clientTokens(), clientServer(t)
	w := newWorld(t, tokens, map[string]string{secretName: canary}, server.ServeHTTP)
	w.mint.cfg.Roots = nil // the system's, which do not have the server's
	w.mint.kinds[secretName] = w.mint.kind(secretName, tokens)
	said, fix := w.refusal(w.lease())
	wantText(t, "an unknown certificate", said, "could not be asked")
	wantText(t, "the fix", fix, "certificate")
	if server.requests != 0 {
		t.Error("a service whose certificate nobody knows was sent something")
	}
}

// TestRedirect: a token service that points elsewhere is not followed there with the client's secret.
func TestRedirect(t *testing.T) {
	w := newWorld(t, clientTokens(), map[string]string{secretName: canary}, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "https://elsewhere.test/token", http.StatusTemporaryRedirect)
	})
	said, _ := w.refusal(w.lease())
	wantText(t, "the refusal", said, "status 307")
	if !cmp.Equal(w.dialed, []string{"example.com:443"}) {
		t.Errorf("dialed %v", w.dialed)
	}
}
