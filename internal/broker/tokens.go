package broker

import (
	"encoding/json"
	"errors"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"glovebox"
)

// Tokens says how short-lived tokens are made out of what a secret's source holds: then the source's value itself is never
// lent. Exactly one of the kinds is set. It is read-only once it was checked.
type Tokens struct {
	OAuth2    *OAuth2Tokens
	Exchange  *ExchangeTokens
	GitHubApp *GitHubAppTokens
	STS       *STSTokens
	Caller    *CallerTokens
	// AllowPrivate are the private networks in which the token service may lie. Without them it may lie in none.
	AllowPrivate []netip.Prefix
}

// OAuth2Tokens are access tokens by client credentials (RFC 6749 section 4.4), or, with Refresh, by a refresh token
// (section 6). The source holds the client's secret, with Refresh the refresh token.
type OAuth2Tokens struct {
	TokenURL  string
	RevokeURL string // RFC 7009; empty: tokens end by themselves
	ClientID  string
	// ClientSecret names the secret that holds the client's own secret, where Refresh makes the source hold something else.
	// Empty: a public client.
	ClientSecret string
	Refresh      bool
	Auth         string // how the client proves itself: basic (the default) or body
	Scopes       []string
	Audience     string
	Resource     string
}

// ExchangeTokens are tokens that were exchanged for the one that the source holds (RFC 8693).
type ExchangeTokens struct {
	TokenURL     string
	RevokeURL    string
	ClientID     string
	ClientSecret string // names a secret; empty: a public client
	Auth         string
	SubjectType  string // the type of the source's token; empty: urn:ietf:params:oauth:token-type:access_token
	Actor        string // names the secret that holds the token of the acting party; empty: none
	ActorType    string
	Scopes       []string
	Audience     string
	Resource     string
}

// GitHubAppTokens are installation tokens of a GitHub App, whose private key (PEM) the source holds.
type GitHubAppTokens struct {
	App          string // the app's id or client id
	Installation int64
	Repositories []string          // names without the owner; at least one
	Permissions  map[string]string // name → read, write or admin; at least one
	API          string            // empty: https://api.github.com
}

// STSTokens are credentials of a role of AWS. The source holds the secret access key of AccessKeyID, or the JSON that a
// credential_process prints.
type STSTokens struct {
	Role        string
	Region      string
	Policy      string        // the session's policy, JSON: what is lent is the role's and this one's common part
	Duration    time.Duration // 15 min (the default) to 12 h
	AccessKeyID string
	ExternalID  string
	Endpoint    string // empty: that of the region
}

// CallerTokens are Glovebox's own: they tell a first-party service which run calls. They need no source.
type CallerTokens struct {
	Audience string
	Issuer   string        // empty: glovebox
	Lifetime time.Duration // at most 5 min, which is the default
}

// MaxCallerLife bounds a caller token.
const MaxCallerLife = 5 * time.Minute

// Bounds of what AWS lets a session of a role last.
const (
	minSession = 15 * time.Minute
	maxSession = 12 * time.Hour
)

// wrongTokens is what is wrong with a key of mint.
func wrongTokens(key, fix, format string, args ...any) error {
	e := glovebox.Errorf(glovebox.CodeInvalid, fix, format, args...)
	e.Op = "mint." + key
	return e
}

// Check tells what is wrong, by the key below mint (as the error's Op).
func (t *Tokens) Check() error {
	kinds := 0
	for _, set := range []bool{t.OAuth2 != nil, t.Exchange != nil, t.GitHubApp != nil, t.STS != nil, t.Caller != nil} {
		if set {
			kinds++
		}
	}
	switch {
	case kinds != 1:
		e := wrongTokens("", "write one of oauth2, exchange, github_app, sts, caller", "it names %d ways to make a token", kinds)
		e.(*glovebox.Error).Op = "mint"
		return e
	case t.OAuth2 != nil:
		return t.OAuth2.check()
	case t.Exchange != nil:
		return t.Exchange.check()
	case t.GitHubApp != nil:
		return t.GitHubApp.check()
	case t.STS != nil:
		return t.STS.check()
	}
	return t.Caller.check()
}

// Sourceless reports whether nothing is read to make such tokens.
func (t *Tokens) Sourceless() bool { return t.Caller != nil }

// Others are the names of further secrets that are read to make such tokens.
func (t *Tokens) Others() []string {
	var names []string
	add := func(name string) {
		if name != "" {
			names = append(names, name)
		}
	}
	if t.OAuth2 != nil {
		add(t.OAuth2.ClientSecret)
	}
	if t.Exchange != nil {
		add(t.Exchange.ClientSecret)
		add(t.Exchange.Actor)
	}
	return names
}

// checkService refuses an address to which no secret may be sent. An empty one passes where it is optional.
func checkService(key, address string, required bool) error {
	if address == "" && !required {
		return nil
	}
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.Fragment != "" || u.RawQuery != "" {
		return wrongTokens(key, "write an address such as https://login.example.com/token",
			"this is no plain https address of a service")
	}
	return nil
}

// checkAuth refuses ways of a client to prove itself that are not there.
func checkAuth(kind, auth string) error {
	if !slices.Contains([]string{"", "basic", "body"}, auth) {
		return wrongTokens(kind+".auth", "write basic or body", "%.20q is no way to show a client's secret", auth)
	}
	return nil
}

func (o *OAuth2Tokens) check() error {
	if o.ClientID == "" {
		return wrongTokens("oauth2.client_id", "add client_id: ID", "the client has no id")
	}
	if o.ClientSecret != "" && !o.Refresh {
		return wrongTokens("oauth2.client_secret", "leave it out: the source holds it, or set refresh: true",
			"the client's secret is named twice")
	}
	if err := checkService("oauth2.token_url", o.TokenURL, true); err != nil {
		return err
	}
	if err := checkService("oauth2.revoke_url", o.RevokeURL, false); err != nil {
		return err
	}
	return checkAuth("oauth2", o.Auth)
}

func (x *ExchangeTokens) check() error {
	if x.ClientSecret != "" && x.ClientID == "" {
		return wrongTokens("exchange.client_id", "add client_id: ID", "a client with a secret needs an id")
	}
	if x.ActorType != "" && x.Actor == "" {
		return wrongTokens("exchange.actor", "add actor: NAME, or leave actor_type out", "there is no token of an actor")
	}
	if x.Audience == "" && x.Resource == "" && len(x.Scopes) == 0 {
		return wrongTokens("exchange.audience", "add audience, resource or scopes",
			"nothing says for what the token shall be good, so that it would be as good as the one it is exchanged for")
	}
	if err := checkService("exchange.token_url", x.TokenURL, true); err != nil {
		return err
	}
	if err := checkService("exchange.revoke_url", x.RevokeURL, false); err != nil {
		return err
	}
	return checkAuth("exchange", x.Auth)
}

func (g *GitHubAppTokens) check() error {
	name := regexp.MustCompile(`^[A-Za-z0-9._-]{1,100}$`)
	switch {
	case !name.MatchString(g.App):
		return wrongTokens("github_app.app", "write the app's id or client id", "the app is not named")
	case g.Installation <= 0:
		return wrongTokens("github_app.installation", "write the installation's number", "the installation is not named")
	case len(g.Repositories) == 0:
		return wrongTokens("github_app.repositories", "list repositories: [name]", "no repository is named, which would mean all")
	case len(g.Permissions) == 0:
		return wrongTokens("github_app.permissions", "list permissions: {contents: read}",
			"no permission is named, which would mean all of the app's")
	}
	for _, r := range g.Repositories {
		if !name.MatchString(r) {
			return wrongTokens("github_app.repositories", "write names without the owner", "%.40q is no name of a repository", r)
		}
	}
	for p, level := range g.Permissions {
		if !slices.Contains([]string{"read", "write", "admin"}, level) || !name.MatchString(p) {
			return wrongTokens("github_app.permissions", "write read, write or admin", "%.40q: %.20q is no permission", p, level)
		}
	}
	return checkService("github_app.api", g.API, false)
}

func (s *STSTokens) check() error {
	switch {
	case !strings.HasPrefix(s.Role, "arn:") || strings.Count(s.Role, ":") < 5:
		return wrongTokens("sts.role", "write the role's ARN", "the role is not named")
	case s.Region == "" && s.Endpoint == "":
		return wrongTokens("sts.region", "add region: eu-central-1", "the region is not named")
	case !json.Valid([]byte(s.Policy)):
		return wrongTokens("sts.policy", "write the session's policy as JSON",
			"there is no policy for the session, so that all of the role's rights would be lent")
	case s.Duration != 0 && (s.Duration < minSession || s.Duration > maxSession):
		return wrongTokens("sts.duration", "write 15m to 12h", "AWS lends a role for 15 minutes at least and 12 hours at most")
	}
	return checkService("sts.endpoint", s.Endpoint, false)
}

func (c *CallerTokens) check() error {
	switch {
	case c.Audience == "":
		return wrongTokens("caller.audience", "add audience: NAME", "a token for everybody can be passed on: name who it is for")
	case c.Lifetime < 0 || c.Lifetime > MaxCallerLife:
		return wrongTokens("caller.lifetime", "write at most 5m", "a caller's token lasts 5 minutes at most")
	}
	return nil
}

// checkMint refuses tokens that cannot be made as they are said. Others of specs are read to make them: such are lent
// to nobody.
func (s *Spec) checkMint(specs []Spec) error {
	if s.Mint == nil {
		return nil
	}
	if err := s.Mint.Check(); err != nil {
		var known *glovebox.Error
		if !errors.As(err, &known) {
			return err
		}
		at := *known
		at.Op = "secrets." + s.Name + "." + known.Op
		return &at
	}
	aws := s.Mint.STS != nil
	if p := s.Place(); aws != (p == PlaceSigV4) {
		return s.wrong("attach", "write attach: sigv4 with mint: sts, and only there",
			"tokens of this kind cannot be lent as %s", p)
	}
	if s.AccessKeyID != "" {
		return s.wrong("access_key_id", "write it below mint.sts", "the key's id is that of what tokens are made of")
	}
	for _, name := range s.Mint.Others() {
		i := slices.IndexFunc(specs, func(o Spec) bool { return o.Name == name })
		switch {
		case i < 0:
			return s.wrong("mint", "add it to secrets, with a source and without hosts", "there is no secret %.80q", name)
		case !specs[i].Kept():
			return s.wrong("mint", "leave hosts and attach out of secrets."+name,
				"secret %s is lent itself, so that tokens are not made with it", name)
		}
	}
	return nil
}
