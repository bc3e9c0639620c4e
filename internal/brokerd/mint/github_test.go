package mint

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"glovebox/internal/broker"
)

// gitHub is the service's side: it checks the app's own token as the real one does, with the standard library alone.
type gitHub struct {
	t   *testing.T
	key *rsa.PublicKey

	mu     sync.Mutex
	ahead  time.Duration // of its clock
	given  map[string]string
	status int // instead
	live   map[string]bool
	n      int
}

func (g *gitHub) now() time.Time { return time.Now().Add(g.ahead) }

// app checks the app's token and says what is wrong with it.
func (g *gitHub) app(token string) string {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return "not three parts"
	}
	var header struct{ Alg, Typ string }
	var claims struct {
		Iss      string
		Iat, Exp int64
	}
	for i, to := range []any{&header, &claims} {
		b, err := base64.RawURLEncoding.DecodeString(parts[i])
		if err != nil || json.Unmarshal(b, to) != nil {
			return "no JSON"
		}
	}
	sum := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
	signature, err := base64.RawURLEncoding.DecodeString(parts[2])
	now := g.now().Unix()
	switch {
	case err != nil || header.Alg != "RS256" || rsa.VerifyPKCS1v15(g.key, crypto.SHA256, sum[:], signature) != nil:
		return "signature"
	case claims.Iss != "Iv1.app":
		return "issuer"
	case claims.Iat > now:
		return "issued in the future"
	case claims.Exp <= now:
		return "expired"
	case claims.Exp > now+600:
		return "'Expiration time' claim ('exp') is too far in the future"
	}
	return ""
}

func (g *gitHub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	w.Header().Set("Date", g.now().UTC().Format(http.TimeFormat))
	w.Header().Set("Content-Type", "application/json")
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if r.Header.Get("Accept") != "application/vnd.github+json" || r.Header.Get("X-Github-Api-Version") != "2022-11-28" ||
		r.Header.Get("User-Agent") == "" {
		w.WriteHeader(403)
		return
	}
	switch r.Method + " " + r.URL.Path {
	case "DELETE /api/v3/installation/token":
		if !g.live[token] {
			w.WriteHeader(401)
			return
		}
		delete(g.live, token)
		w.WriteHeader(204)
	case "POST /api/v3/app/installations/77/access_tokens":
		var asked struct {
			Repositories []string
			Permissions  map[string]string
		}
		if wrong := g.app(token); wrong != "" {
			w.WriteHeader(401)
			fmt.Fprintf(w, `{"message":%q}`, wrong)
			return
		}
		if g.status != 0 {
			w.WriteHeader(g.status)
			return
		}
		err := json.NewDecoder(r.Body).Decode(&asked)
		if err != nil || !cmp.Equal(asked.Repositories, []string{"shop"}) ||
			!cmp.Equal(asked.Permissions, map[string]string{"contents": "write"}) {
			g.t.Errorf("asked for %+v (%v)", asked, err)
		}
		g.n++
		token := fmt.Sprintf("ghs_%d", g.n)
		g.live[token] = true
		w.WriteHeader(201)
		json.NewEncoder(w).Encode(map[string]any{"token": token, "permissions": g.given,
			"expires_at": g.now().Add(time.Hour).UTC().Format(time.RFC3339)})
	default:
		w.WriteHeader(404)
	}
}

func newGitHub(t *testing.T) (*world, *gitHub) {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	g := &gitHub{t: t, key: &key.PublicKey, live: map[string]bool{},
		given: map[string]string{"contents": "write", "metadata": "read"}}
	tokens := &broker.Tokens{GitHubApp: &broker.GitHubAppTokens{App: "Iv1.app", Installation: 77, Repositories: []string{"shop"},
		Permissions: map[string]string{"contents": "write"}, API: "https://example.com/api/v3/"}}
	return newWorld(t, tokens, map[string]string{secretName: string(text)}, g.ServeHTTP), g
}

// TestGitHubApp: an installation's token of an hour for what was asked for alone, ended with the run.
func TestGitHubApp(t *testing.T) {
	w, g := newGitHub(t)
	l := w.lease()
	first := w.token(l)
	if got := first.Expires.Sub(w.now).Round(time.Minute); got != time.Hour {
		t.Errorf("a life of %v", got)
	}
	w.pass(49 * time.Minute)
	g.ahead = 49 * time.Minute
	w.token(l)
	if len(g.live) != 2 {
		t.Errorf("live: %v", g.live)
	}
	if err := l.Close(t.Context()); err != nil || len(g.live) != 0 {
		t.Errorf("left %v (%v)", g.live, err)
	}
}

// TestGitHubRevoked: a token that somebody else ended is no failure at the run's end.
func TestGitHubRevoked(t *testing.T) {
	w, g := newGitHub(t)
	l := w.lease()
	w.token(l)
	clear(g.live)
	if err := l.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestGitHubClock: a token's life is counted by the service's clock, and a clock that is too far off is named.
func TestGitHubClock(t *testing.T) {
	w, g := newGitHub(t)
	g.ahead = 45 * time.Second
	if got := w.token(w.lease()).Expires.Sub(w.now).Round(time.Minute); got != time.Hour {
		t.Errorf("a life of %v by a clock that differs", got)
	}
	for _, ahead := range []time.Duration{-2 * time.Minute, 15 * time.Minute} {
		g.ahead = ahead
		said, fix := w.refusal(w.lease())
		wantText(t, "the refusal", said, "status 401")
		wantText(t, "the fix", fix, "set this machine's clock: it is ")
	}
}

// TestGitHubRefusals: each with its own fix; a token that may do more than was asked for is ended, not lent.
func TestGitHubRefusals(t *testing.T) {
	for status, want := range map[int]string{401: "private key", 403: "suspended", 404: "installation", 422: "repositories",
		500: "status page"} {
		w, g := newGitHub(t)
		g.status = status
		said, fix := w.refusal(w.lease())
		wantText(t, "the refusal", said, fmt.Sprintf("status %d", status))
		wantText(t, "the fix", fix, want)
	}
	for _, given := range []map[string]string{
		{"contents": "admin"}, {"contents": "write", "issues": "read"}, {"contents": "owner"}, {"metadata": "write"},
	} {
		w, g := newGitHub(t)
		g.given = given
		said, _ := w.refusal(w.lease())
		wantText(t, "the refusal", said, "may do more than was asked for")
		if len(g.live) != 0 {
			t.Errorf("%v: left %v", given, g.live)
		}
	}
	w, _ := newGitHub(t)
	w.sources[secretName] = "-----BEGIN NONSENSE-----"
	said, _ := w.refusal(w.lease())
	wantText(t, "without a key", said, "holds no RSA private key")
}
