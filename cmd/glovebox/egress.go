package main

import (
	"time"

	"glovebox"
	"glovebox/policy"
)

// words adds the values of a list.
func words(to *[]string) *key {
	return &key{item: func(v string) error { *to = append(*to, v); return nil }}
}

// some is a list that has items, if it is there.
func some(k *key) *key {
	k.some = true
	return k
}

// egressRule reads one of policy.egress.rules, or of a tenant's.
func (s *settings) egressRule(to *[]glovebox.EgressRule) *element {
	var r glovebox.EgressRule
	return &element{
		keys: map[string]*key{
			"id":   scalar(func(v string) error { r.ID = v; return nil }),
			"host": scalar(func(v string) error { r.Host = v; return nil }),
			"ports": {some: true, item: func(v string) error {
				n, err := parseCount(v)
				if err == nil && (n < 1 || n > 65535) {
					err = glovebox.Errorf(glovebox.CodeInvalid, "write 1 to 65535", "%q is no port", short(v))
				}
				r.Ports = append(r.Ports, int(n))
				return err
			}},
			"protocols": some(words(&r.Protocols)), "methods": some(words(&r.Methods)), "paths": some(words(&r.Paths)),
			"push":          words(&r.Push),
			"allow_private": {item: words(&r.AllowPrivate).item, seen: func() { r.AllowPrivate = []string{} }}, // [] is none
			"mode":          scalar(func(v string) error { r.Mode = v; return nil }),
			"deny":          scalar(yesOrNo(&r.Deny)),
			"websocket":     scalar(yesOrNo(&r.WebSocket)),
			"body_limit": scalar(func(v string) (err error) {
				r.BodyLimit, err = parseSize(v)
				return notZero(r.BodyLimit != 0, err)
			}),
			"expires": scalar(func(v string) (err error) {
				r.Expires, err = time.Parse(time.RFC3339, v)
				if r.Expires = r.Expires.UTC(); err != nil {
					return glovebox.Errorf(glovebox.CodeInvalid, "write it as 2026-12-31T18:00:00Z", "%q is no moment", short(v))
				}
				return nil
			}),
		},
		done: func() error {
			one := policy.Egress{AllowPrivate: s.policy.Egress.AllowPrivate, Rules: []glovebox.EgressRule{r}}
			if _, err := policy.New(policy.Config{Egress: one}); err != nil {
				return err
			}
			*to = append(*to, r)
			return nil
		},
	}
}
