package broker

import (
	"errors"
	"testing"
	"time"

	"glovebox"
)

func oauth(change func(*OAuth2Tokens)) Tokens {
	o := OAuth2Tokens{TokenURL: "https://login.example.com/token", ClientID: "box"}
	change(&o)
	return Tokens{OAuth2: &o}
}

func exchange(change func(*ExchangeTokens)) Tokens {
	x := ExchangeTokens{TokenURL: "https://login.example.com/token", Audience: "orders"}
	change(&x)
	return Tokens{Exchange: &x}
}

func app(change func(*GitHubAppTokens)) Tokens {
	g := GitHubAppTokens{App: "Iv1.x", Installation: 1, Repositories: []string{"shop"},
		Permissions: map[string]string{"contents": "read"}}
	change(&g)
	return Tokens{GitHubApp: &g}
}

func role(change func(*STSTokens)) Tokens {
	s := STSTokens{Role: "arn:aws:iam::123456789012:role/box", Region: "eu-central-1", Policy: "{}"}
	change(&s)
	return Tokens{STS: &s}
}

func caller(change func(*CallerTokens)) Tokens {
	c := CallerTokens{Audience: "orders"}
	change(&c)
	return Tokens{Caller: &c}
}

// TestTokensCheck: what cannot work, or would lend more than was meant, is refused by its key.
func TestTokensCheck(t *testing.T) {
	for _, c := range []struct {
		name   string
		tokens Tokens
		key    string // that is wrong; empty: nothing
	}{
		{"nothing", Tokens{}, "mint"},
		{"two kinds", Tokens{OAuth2: &OAuth2Tokens{}, Caller: &CallerTokens{}}, "mint"},
		{"client credentials", oauth(func(*OAuth2Tokens) {}), ""},
		{"refresh with a client's secret", oauth(func(o *OAuth2Tokens) { o.Refresh, o.ClientSecret = true, "X" }), ""},
		{"no id", oauth(func(o *OAuth2Tokens) { o.ClientID = "" }), "mint.oauth2.client_id"},
		{"secret twice", oauth(func(o *OAuth2Tokens) { o.ClientSecret = "X" }), "mint.oauth2.client_secret"},
		{"in clear", oauth(func(o *OAuth2Tokens) { o.TokenURL = "http://login.example.com/token" }), "mint.oauth2.token_url"},
		{"no address", oauth(func(o *OAuth2Tokens) { o.TokenURL = "" }), "mint.oauth2.token_url"},
		{"password in it", oauth(func(o *OAuth2Tokens) { o.TokenURL = "https://a:b@example.com/token" }), "mint.oauth2.token_url"},
		{"revoke in clear", oauth(func(o *OAuth2Tokens) { o.RevokeURL = "http://example.com" }), "mint.oauth2.revoke_url"},
		{"another way", oauth(func(o *OAuth2Tokens) { o.Auth = "jwt" }), "mint.oauth2.auth"},
		{"exchange", exchange(func(*ExchangeTokens) {}), ""},
		{"for nothing", exchange(func(x *ExchangeTokens) { x.Audience = "" }), "mint.exchange.audience"},
		{"secret of nobody", exchange(func(x *ExchangeTokens) { x.ClientSecret = "X" }), "mint.exchange.client_id"},
		{"type of no actor", exchange(func(x *ExchangeTokens) { x.ActorType = "t" }), "mint.exchange.actor"},
		{"app", app(func(*GitHubAppTokens) {}), ""},
		{"all repositories", app(func(g *GitHubAppTokens) { g.Repositories = nil }), "mint.github_app.repositories"},
		{"owner in it", app(func(g *GitHubAppTokens) { g.Repositories = []string{"acme/shop"} }), "mint.github_app.repositories"},
		{"all permissions", app(func(g *GitHubAppTokens) { g.Permissions = nil }), "mint.github_app.permissions"},
		{"a level of its own", app(func(g *GitHubAppTokens) { g.Permissions["contents"] = "all" }), "mint.github_app.permissions"},
		{"no installation", app(func(g *GitHubAppTokens) { g.Installation = 0 }), "mint.github_app.installation"},
		{"role", role(func(*STSTokens) {}), ""},
		{"no policy", role(func(s *STSTokens) { s.Policy = "" }), "mint.sts.policy"},
		{"five minutes", role(func(s *STSTokens) { s.Duration = 5 * time.Minute }), "mint.sts.duration"},
		{"a day", role(func(s *STSTokens) { s.Duration = 24 * time.Hour }), "mint.sts.duration"},
		{"no region", role(func(s *STSTokens) { s.Region = "" }), "mint.sts.region"},
		{"no ARN", role(func(s *STSTokens) { s.Role = "box" }), "mint.sts.role"},
		{"caller", caller(func(*CallerTokens) {}), ""},
		{"for everybody", caller(func(c *CallerTokens) { c.Audience = "" }), "mint.caller.audience"},
		{"an hour", caller(func(c *CallerTokens) { c.Lifetime = time.Hour }), "mint.caller.lifetime"},
	} {
		err := c.tokens.Check()
		var e *glovebox.Error
		switch {
		case c.key == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.key != "" && (!errors.As(err, &e) || e.Op != c.key || e.Fix == ""):
			t.Errorf("%s: %v, want one at %s", c.name, err, c.key)
		}
	}
}
