package mint

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"glovebox"
	"glovebox/internal/broker"
)

const (
	gitHubAPI     = "https://api.github.com"
	gitHubVersion = "2022-11-28"
	// The service takes an app's own token for 10 minutes at most, and none that begins in its future.
	appTokenBack = time.Minute
	appTokenLife = 9 * time.Minute
)

// githubApp gets installation tokens of a GitHub App.
type githubApp struct {
	service
	cfg *broker.GitHubAppTokens
}

// installationToken is what the service answers.
type installationToken struct {
	Token       string            `json:"token"`
	ExpiresAt   time.Time         `json:"expires_at"`
	Permissions map[string]string `json:"permissions"`
}

func (g *githubApp) api() string { return strings.TrimSuffix(cmp.Or(g.cfg.API, gitHubAPI), "/") }

func (g *githubApp) mint(ctx context.Context, _ Run) (Token, error) {
	proof, err := g.proof(ctx)
	if err != nil {
		return Token{}, err
	}
	body, err := json.Marshal(struct {
		Repositories []string          `json:"repositories"`
		Permissions  map[string]string `json:"permissions"`
	}{g.cfg.Repositories, g.cfg.Permissions})
	if err != nil {
		return Token{}, err
	}
	address := fmt.Sprintf("%s/app/installations/%d/access_tokens", g.api(), g.cfg.Installation)
	resp, err := g.do(ctx, "POST", address, proof, body)
	if err != nil {
		return Token{}, g.unreached(address, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusCreated {
		return Token{}, g.refused(address, resp.StatusCode, "", cmp.Or(g.skew(resp), gitHubFix(resp.StatusCode)))
	}
	var got installationToken
	if err := json.NewDecoder(resp.Body).Decode(&got); err != nil || !sendable(got.Token) || got.ExpiresAt.IsZero() {
		return Token{}, g.unusable(address, "holds no token")
	}
	t := Token{Value: got.Token}.lasting(g.now(), min(g.remaining(got.ExpiresAt, resp), maxLife))
	if more := g.more(got.Permissions); more != "" {
		err := g.unusable(address, "holds a token that may do more than was asked for: "+more)
		return Token{}, joined(err, g.revoke(ctx, t))
	}
	return t, nil
}

// joined is err, with what went wrong while it was mended.
func joined(err, more error) error {
	if e, ok := err.(*glovebox.Error); ok && more != nil {
		e.Err = more
	}
	return err
}

// more is a permission that was given and not asked for. Each token may read what repositories there are.
func (g *githubApp) more(given map[string]string) string {
	rank := map[string]int{"read": 1, "write": 2, "admin": 3}
	for name, level := range given {
		if name == "metadata" && level == "read" {
			continue
		}
		if asked, ok := g.cfg.Permissions[name]; !ok || rank[level] == 0 || rank[level] > rank[asked] {
			return cmp.Or(plain(name), "one without a name")
		}
	}
	return ""
}

// proof is the app's own token, which its private key signed.
func (g *githubApp) proof(ctx context.Context) (string, error) {
	text, err := g.secret(ctx, g.name)
	if err != nil {
		return "", err
	}
	key, err := jwt.ParseRSAPrivateKeyFromPEM([]byte(text))
	if err != nil {
		// The library's words are not passed on: they are about the key's text.
		return "", glovebox.Errorf(glovebox.CodeUnavailable,
			"put the app's private key there, as the PEM file that was downloaded",
			"the source of secret %s holds no RSA private key", g.name)
	}
	now := g.now()
	signed, err := jwt.NewWithClaims(jwt.SigningMethodRS256, jwt.RegisteredClaims{
		Issuer:    g.cfg.App,
		IssuedAt:  jwt.NewNumericDate(now.Add(-appTokenBack)),
		ExpiresAt: jwt.NewNumericDate(now.Add(appTokenLife)),
	}).SignedString(key)
	if err != nil {
		return "", glovebox.Internal("sign the app's token", err)
	}
	return signed, nil
}

func (g *githubApp) do(ctx context.Context, method, address, token string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, address, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Accept", "application/vnd.github+json")
	req.Header.Set("X-GitHub-Api-Version", gitHubVersion)
	req.Header.Set("User-Agent", "glovebox")
	if len(body) > 0 {
		req.Header.Set("Content-Type", "application/json")
	}
	return g.client.Do(req)
}

func (g *githubApp) revoke(ctx context.Context, t Token) error {
	address := g.api() + "/installation/token"
	resp, err := g.do(ctx, "DELETE", address, t.Value, nil)
	if err != nil {
		return g.unreached(address, err)
	}
	defer resp.Body.Close()
	// One that is no longer taken is as good as revoked.
	if resp.StatusCode != http.StatusNoContent && resp.StatusCode != http.StatusUnauthorized {
		return g.refused(address, resp.StatusCode, "", "revoke it at the service itself")
	}
	return nil
}

// gitHubFix is what mends a refusal.
func gitHubFix(status int) string {
	switch status {
	case http.StatusUnauthorized:
		return "check app and its private key"
	case http.StatusNotFound:
		return "check installation, and that it is one of this app"
	case http.StatusForbidden:
		return "see whether the installation is suspended, or the app has asked too often"
	case http.StatusUnprocessableEntity:
		return "check repositories and permissions: the installation has not all of them"
	}
	return "see the status page of the service"
}
