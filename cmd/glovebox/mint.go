package main

import (
	"strconv"
	"time"

	"glovebox"
	"glovebox/internal/broker"
	"glovebox/internal/egress"
)

// mintKeys read how tokens are made of a secret.
func mintKeys(to **broker.Tokens) *key {
	// kind makes the part of a way to make tokens when the first of its keys is read.
	t := func() *broker.Tokens {
		if *to == nil {
			*to = &broker.Tokens{}
		}
		return *to
	}
	return &key{keys: map[string]*key{
		"oauth2":     oauth2Keys(func() *broker.OAuth2Tokens { return made(&t().OAuth2) }),
		"exchange":   exchangeKeys(func() *broker.ExchangeTokens { return made(&t().Exchange) }),
		"github_app": githubKeys(func() *broker.GitHubAppTokens { return made(&t().GitHubApp) }),
		"sts":        stsKeys(func() *broker.STSTokens { return made(&t().STS) }),
		"caller":     callerKeys(func() *broker.CallerTokens { return made(&t().Caller) }),
		"allow_private": {item: func(v string) error {
			network, err := egress.ParsePrivate(v)
			if err != nil {
				return glovebox.Errorf(glovebox.CodeInvalid, "name private networks only", "%v", err)
			}
			t().AllowPrivate = append(t().AllowPrivate, network)
			return nil
		}},
	}}
}

// made is what p points to, which it makes where there is nothing.
func made[T any](p **T) *T {
	if *p == nil {
		*p = new(T)
	}
	return *p
}

// texts are keys whose values are put where of says.
func texts[T any](get func() *T, of map[string]func(*T) *string) map[string]*key {
	keys := map[string]*key{}
	for name, field := range of {
		keys[name] = scalar(func(v string) error { *field(get()) = v; return nil })
	}
	return keys
}

// list is a key whose values are added to what field says.
func list[T any](get func() *T, field func(*T) *[]string) *key {
	return &key{item: func(v string) error { f := field(get()); *f = append(*f, v); return nil }}
}

func oauth2Keys(get func() *broker.OAuth2Tokens) *key {
	type t = broker.OAuth2Tokens
	keys := texts(get, map[string]func(*t) *string{
		"token_url": func(o *t) *string { return &o.TokenURL }, "revoke_url": func(o *t) *string { return &o.RevokeURL },
		"client_id": func(o *t) *string { return &o.ClientID }, "client_secret": func(o *t) *string { return &o.ClientSecret },
		"auth": func(o *t) *string { return &o.Auth }, "audience": func(o *t) *string { return &o.Audience },
		"resource": func(o *t) *string { return &o.Resource },
	})
	keys["refresh"] = scalar(func(v string) error { return yesOrNo(&get().Refresh)(v) })
	keys["scopes"] = list(get, func(o *t) *[]string { return &o.Scopes })
	return &key{keys: keys}
}

func exchangeKeys(get func() *broker.ExchangeTokens) *key {
	type t = broker.ExchangeTokens
	keys := texts(get, map[string]func(*t) *string{
		"token_url": func(x *t) *string { return &x.TokenURL }, "revoke_url": func(x *t) *string { return &x.RevokeURL },
		"client_id": func(x *t) *string { return &x.ClientID }, "client_secret": func(x *t) *string { return &x.ClientSecret },
		"auth": func(x *t) *string { return &x.Auth }, "subject_type": func(x *t) *string { return &x.SubjectType },
		"actor": func(x *t) *string { return &x.Actor }, "actor_type": func(x *t) *string { return &x.ActorType },
		"audience": func(x *t) *string { return &x.Audience }, "resource": func(x *t) *string { return &x.Resource },
	})
	keys["scopes"] = list(get, func(x *t) *[]string { return &x.Scopes })
	return &key{keys: keys}
}

func githubKeys(get func() *broker.GitHubAppTokens) *key {
	type t = broker.GitHubAppTokens
	keys := texts(get, map[string]func(*t) *string{
		"app": func(g *t) *string { return &g.App }, "api": func(g *t) *string { return &g.API },
	})
	keys["installation"] = scalar(func(v string) (err error) {
		if get().Installation, err = strconv.ParseInt(v, 10, 64); err != nil {
			return glovebox.Errorf(glovebox.CodeInvalid, "write the installation's number", "%q is no whole number", short(v))
		}
		return nil
	})
	keys["repositories"] = list(get, func(g *t) *[]string { return &g.Repositories })
	keys["permissions"] = &key{named: func(name string) *element {
		return &element{done: func() error { return nil }, value: func(v string) error {
			if get().Permissions == nil {
				get().Permissions = map[string]string{}
			}
			get().Permissions[name] = v
			return nil
		}}
	}}
	return &key{keys: keys}
}

func stsKeys(get func() *broker.STSTokens) *key {
	type t = broker.STSTokens
	keys := texts(get, map[string]func(*t) *string{
		"role": func(s *t) *string { return &s.Role }, "region": func(s *t) *string { return &s.Region },
		"policy": func(s *t) *string { return &s.Policy }, "access_key_id": func(s *t) *string { return &s.AccessKeyID },
		"external_id": func(s *t) *string { return &s.ExternalID }, "endpoint": func(s *t) *string { return &s.Endpoint },
	})
	keys["duration"] = span(func() *time.Duration { return &get().Duration })
	return &key{keys: keys}
}

func callerKeys(get func() *broker.CallerTokens) *key {
	type t = broker.CallerTokens
	keys := texts(get, map[string]func(*t) *string{
		"audience": func(c *t) *string { return &c.Audience }, "issuer": func(c *t) *string { return &c.Issuer },
	})
	keys["lifetime"] = span(func() *time.Duration { return &get().Lifetime })
	return &key{keys: keys}
}

// span is a key whose value is a time.
func span(to func() *time.Duration) *key {
	return scalar(func(v string) (err error) {
		*to(), err = parseDuration(v)
		return notZero(*to() != 0, err)
	})
}
