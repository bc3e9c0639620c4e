package mint

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	"glovebox"
	"glovebox/internal/broker"
)

// Words of RFC 8693.
const (
	grantExchange   = "urn:ietf:params:oauth:grant-type:token-exchange"
	typeAccessToken = "urn:ietf:params:oauth:token-type:access_token"
)

// authStyle says how a client shows its secret. It is never tried out: that would send it twice.
func authStyle(auth string) oauth2.AuthStyle {
	if auth == "body" {
		return oauth2.AuthStyleInParams
	}
	return oauth2.AuthStyleInHeader
}

// clientCredentials are tokens of a client's own (RFC 6749 section 4.4).
type clientCredentials struct {
	service
	cfg *broker.OAuth2Tokens
}

func (c *clientCredentials) mint(ctx context.Context, _ Run) (Token, error) {
	secret, err := c.secret(ctx, c.name)
	if err != nil {
		return Token{}, err
	}
	return c.ask(ctx, &clientcredentials.Config{ClientID: c.cfg.ClientID, ClientSecret: secret, TokenURL: c.cfg.TokenURL,
		Scopes: c.cfg.Scopes, AuthStyle: authStyle(c.cfg.Auth),
		EndpointParams: params("audience", c.cfg.Audience, "resource", c.cfg.Resource)})
}

func (c *clientCredentials) revoke(ctx context.Context, t Token) error {
	secret, err := c.secret(ctx, c.name)
	if err != nil {
		return err
	}
	return c.revokeToken(ctx, c.cfg.RevokeURL, c.cfg.Auth, c.cfg.ClientID, secret, t)
}

// params are form values, without those that are empty.
func params(pairs ...string) url.Values {
	v := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			v.Set(pairs[i], pairs[i+1])
		}
	}
	return v
}

// exchange gets another token for the one at hand (RFC 8693).
type exchange struct {
	service
	cfg *broker.ExchangeTokens
}

func (x *exchange) mint(ctx context.Context, _ Run) (Token, error) {
	subject, err := x.secret(ctx, x.name)
	if err != nil {
		return Token{}, err
	}
	secret, err := x.clientSecret(ctx)
	if err != nil {
		return Token{}, err
	}
	form := params("subject_token", subject, "subject_token_type", cmp.Or(x.cfg.SubjectType, typeAccessToken),
		"audience", x.cfg.Audience, "resource", x.cfg.Resource)
	if x.cfg.Actor != "" {
		actor, err := x.secret(ctx, x.cfg.Actor)
		if err != nil {
			return Token{}, err
		}
		form.Set("actor_token", actor)
		form.Set("actor_token_type", cmp.Or(x.cfg.ActorType, typeAccessToken))
	}
	form.Set("grant_type", grantExchange)
	return x.ask(ctx, &clientcredentials.Config{ClientID: x.cfg.ClientID, ClientSecret: secret, TokenURL: x.cfg.TokenURL,
		Scopes: x.cfg.Scopes, AuthStyle: x.style(), EndpointParams: form})
}

// style is how the client shows itself: one without a secret only names itself.
func (x *exchange) style() oauth2.AuthStyle {
	if x.cfg.ClientSecret == "" {
		return oauth2.AuthStyleInParams
	}
	return authStyle(x.cfg.Auth)
}

func (x *exchange) clientSecret(ctx context.Context) (string, error) {
	if x.cfg.ClientSecret == "" {
		return "", nil
	}
	return x.secret(ctx, x.cfg.ClientSecret)
}

func (x *exchange) revoke(ctx context.Context, t Token) error {
	secret, err := x.clientSecret(ctx)
	if err != nil {
		return err
	}
	return x.revokeToken(ctx, x.cfg.RevokeURL, x.cfg.Auth, x.cfg.ClientID, secret, t)
}

// refresher gets access tokens by a refresh token (RFC 6749 section 6). A service may give another refresh token each time;
// that one is kept in memory, so that uses take turns.
type refresher struct {
	service
	cfg  *broker.OAuth2Tokens
	turn chan struct{}

	had  string // what the source had when it was read last
	next string // the refresh token that came last
}

func (r *refresher) mint(ctx context.Context, _ Run) (Token, error) {
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-ctx.Done():
		return Token{}, context.Cause(ctx)
	}
	first, err := r.secret(ctx, r.name)
	if err != nil {
		return Token{}, err
	}
	if first != r.had {
		r.had, r.next = first, first // the operator put a new one there
	}
	secret, err := r.clientSecret(ctx)
	if err != nil {
		return Token{}, err
	}
	cfg := &clientcredentials.Config{ClientID: r.cfg.ClientID, ClientSecret: secret, TokenURL: r.cfg.TokenURL,
		Scopes: r.cfg.Scopes, AuthStyle: r.style(), EndpointParams: params("refresh_token", r.next)}
	cfg.EndpointParams.Set("grant_type", "refresh_token")
	t, err := r.fetch(ctx, cfg)
	if err != nil {
		return Token{}, err
	}
	if t.RefreshToken != "" {
		r.next = t.RefreshToken
	}
	return r.usable(r.cfg.TokenURL, t)
}

func (r *refresher) style() oauth2.AuthStyle {
	if r.cfg.ClientSecret == "" {
		return oauth2.AuthStyleInParams
	}
	return authStyle(r.cfg.Auth)
}

func (r *refresher) clientSecret(ctx context.Context) (string, error) {
	if r.cfg.ClientSecret == "" {
		return "", nil
	}
	return r.secret(ctx, r.cfg.ClientSecret)
}

func (r *refresher) revoke(ctx context.Context, t Token) error {
	secret, err := r.clientSecret(ctx)
	if err != nil {
		return err
	}
	return r.revokeToken(ctx, r.cfg.RevokeURL, r.cfg.Auth, r.cfg.ClientID, secret, t)
}

// ask asks a token endpoint.
func (s service) ask(ctx context.Context, cfg *clientcredentials.Config) (Token, error) {
	t, err := s.fetch(ctx, cfg)
	if err != nil {
		return Token{}, err
	}
	return s.usable(cfg.TokenURL, t)
}

func (s service) fetch(ctx context.Context, cfg *clientcredentials.Config) (*oauth2.Token, error) {
	t, err := cfg.Token(context.WithValue(ctx, oauth2.HTTPClient, s.client))
	var refusal *oauth2.RetrieveError
	var unreached *url.Error
	switch {
	case errors.As(err, &refusal) && refusal.Response != nil && refusal.Response.StatusCode >= 300:
		return nil, s.refused(cfg.TokenURL, refusal.Response.StatusCode, refusal.ErrorCode,
			cmp.Or(s.skew(refusal.Response), oauthFix(refusal.ErrorCode)))
	case errors.As(err, &unreached):
		return nil, s.unreached(cfg.TokenURL, unreached)
	case err != nil:
		// The library's words may quote the answer, which may quote what was sent.
		return nil, s.unusable(cfg.TokenURL, "holds no token")
	}
	return t, nil
}

// usable is an answer as a Token.
func (s service) usable(address string, t *oauth2.Token) (Token, error) {
	if !strings.EqualFold(t.Type(), "bearer") {
		return Token{}, s.unusable(address, "holds a token that is no bearer token")
	}
	if !sendable(t.AccessToken) {
		return Token{}, s.unusable(address, "holds a token that fits no header")
	}
	return Token{Value: t.AccessToken}.lasting(s.now(), life(t.Extra("expires_in"))), nil
}

// life is how long a token is good by expires_in, which some services write as a string.
func life(expiresIn any) time.Duration {
	var seconds float64
	switch v := expiresIn.(type) {
	case float64:
		seconds = v
	case string:
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			return 0
		}
		seconds = float64(n)
	case nil:
		return unknownLife
	}
	return time.Duration(min(seconds, maxLife.Seconds())) * time.Second
}

// maxLife bounds how long a token is kept, whatever a service says.
const maxLife = 24 * time.Hour

// sendable reports whether a token can be put in a header as it is.
func sendable(token string) bool {
	if token == "" {
		return false
	}
	for i := range len(token) {
		if token[i] <= ' ' || token[i] > '~' {
			return false
		}
	}
	return true
}

// oauthFix is what mends an error of RFC 6749 section 5.2, RFC 8693 section 2.2.2 or RFC 8707.
func oauthFix(code string) string {
	switch code {
	case "invalid_client", "unauthorized_client":
		return "check client_id and what the client's secret is, and whether it may ask for such tokens"
	case "invalid_grant":
		return "renew what the source holds: it has expired, was revoked or was used up"
	case "invalid_scope":
		return "check scopes"
	case "invalid_target":
		return "check audience and resource"
	case "unsupported_grant_type":
		return "check token_url: this service has no such tokens"
	}
	return "see the token service's own log"
}

// revokeToken ends a token (RFC 7009).
func (s service) revokeToken(ctx context.Context, address, auth, id, secret string, t Token) error {
	if address == "" {
		return errIrrevocable
	}
	form := params("token", t.Value, "token_type_hint", "access_token")
	inBody := auth == "body" || secret == ""
	if inBody {
		form.Set("client_id", id)
		if secret != "" {
			form.Set("client_secret", secret)
		}
	}
	req, err := http.NewRequestWithContext(ctx, "POST", address, strings.NewReader(form.Encode()))
	if err != nil {
		return glovebox.Internal("revoke a token", err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if !inBody {
		req.SetBasicAuth(url.QueryEscape(id), url.QueryEscape(secret))
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return s.unreached(address, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return s.refused(address, resp.StatusCode, "", "revoke it at the service itself")
	}
	return nil
}
