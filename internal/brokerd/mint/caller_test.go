package mint

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"glovebox/internal/broker"
)

// orders is a first-party service: it has the published key set and checks a caller token by the standard library alone.
type orders struct {
	keys []byte
	now  time.Time
}

// caller says whose the token is, or what is wrong with it.
func (o orders) caller(token string) (run, wrong string) {
	var set struct {
		Keys []struct{ Kty, Crv, X, Kid, Alg string }
	}
	if json.Unmarshal(o.keys, &set) != nil || len(set.Keys) != 1 {
		return "", "no key set"
	}
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return "", "not three parts"
	}
	var header struct{ Alg, Kid string }
	var claims struct {
		Iss, Sub, Jti, Tenant, Rule string
		Aud                         []string
		Iat, Nbf, Exp               int64
	}
	for i, to := range []any{&header, &claims} {
		b, err := base64.RawURLEncoding.DecodeString(parts[i])
		if err != nil || json.Unmarshal(b, to) != nil {
			return "", "no JSON"
		}
	}
	key, err := base64.RawURLEncoding.DecodeString(set.Keys[0].X)
	signature, err2 := base64.RawURLEncoding.DecodeString(parts[2])
	now := o.now.Unix()
	switch {
	case err != nil || err2 != nil || len(key) != ed25519.PublicKeySize:
		return "", "encoding"
	case header.Alg != "EdDSA" || header.Kid != set.Keys[0].Kid || set.Keys[0].Kty != "OKP" || set.Keys[0].Crv != "Ed25519":
		return "", "another key"
	case !ed25519.Verify(key, []byte(parts[0]+"."+parts[1]), signature):
		return "", "signature"
	case claims.Iss != "glovebox" || len(claims.Aud) != 1 || claims.Aud[0] != "orders":
		return "", "not for me"
	case claims.Jti == "" || claims.Tenant != "acme" || claims.Rule != "r1":
		return "", "incomplete"
	case now < claims.Nbf || now >= claims.Exp:
		return "", "not now"
	case claims.Exp-claims.Iat > 300:
		return "", "too long"
	}
	return claims.Sub, ""
}

func nobody(http.ResponseWriter, *http.Request) { panic("a caller token needs no service") }

// TestCallerToken: a service with the published keys knows which run calls, for at most five minutes.
func TestCallerToken(t *testing.T) {
	w := newWorld(t, &broker.Tokens{Caller: &broker.CallerTokens{Audience: "orders"}}, nil, nobody)
	keys, err := w.mint.KeySet()
	if err != nil {
		t.Fatal(err)
	}
	l := w.lease()
	got := w.token(l)
	at := func(d time.Duration) (string, string) { return orders{keys, w.now.Add(d)}.caller(got.Value) }
	for d, want := range map[time.Duration]string{0: "", -5 * time.Second: "", 4*time.Minute + 58*time.Second: "",
		-time.Minute: "not now", 5 * time.Minute: "not now"} {
		if run, wrong := at(d); wrong != want || wrong == "" && run != "run_1" {
			t.Errorf("after %v: run %q, %q, want %q", d, run, wrong, want)
		}
	}
	w.pass(4*time.Minute + time.Second)
	if next := w.token(l); next.Value == got.Value {
		t.Error("not minted anew after 80 % of its life")
	}
	// Another Glovebox's key is not this one's.
	other := newWorld(t, &broker.Tokens{Caller: &broker.CallerTokens{Audience: "orders"}}, nil, nobody)
	if _, wrong := (orders{keys, w.now}).caller(other.token(other.lease()).Value); wrong != "another key" {
		t.Errorf("another's token: %q", wrong)
	}
}

// TestCallerKey: the key is made once, whoever comes first, kept to its owner, and not used when others can have it.
func TestCallerKey(t *testing.T) {
	file := filepath.Join(t.TempDir(), "caller.key")
	var all sync.WaitGroup
	ids := make([]string, 8)
	for i := range ids {
		all.Go(func() {
			k := callerKey{file: file}
			if key, err := k.read(); err != nil {
				t.Error(err)
			} else {
				ids[i] = keyID(key.Public().(ed25519.PublicKey))
			}
		})
	}
	all.Wait()
	for _, id := range ids {
		if id == "" || id != ids[0] {
			t.Fatalf("several keys: %v", ids)
		}
	}
	entries, err := os.ReadDir(filepath.Dir(file))
	if err != nil || len(entries) != 1 {
		t.Errorf("left %v (%v)", entries, err)
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v (%v)", info.Mode(), err)
	}
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(string) error{
		"can be read by others": func(f string) error { return os.Chmod(f, 0o640) },
		"holds no key":          func(f string) error { return os.WriteFile(f, []byte("x"), 0o600) },
		"holds no Ed25519 key": func(f string) error {
			return os.WriteFile(f, []byte(strings.Replace(string(good), "MC4C", "MC4D", 1)), 0o600)
		},
		"too many levels of symbolic links": func(f string) error {
			if err := os.Rename(f, f+".real"); err != nil {
				return err
			}
			return os.Symlink(f+".real", f)
		},
	} {
		f := filepath.Join(t.TempDir(), "caller.key")
		if err := os.WriteFile(f, good, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := spoil(f); err != nil {
			t.Fatal(err)
		}
		_, err := (&callerKey{file: f}).read()
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
