package main

import (
	"strings"

	"glovebox"
	"glovebox/client"
	"glovebox/engine"
	"glovebox/policy"
)

// gvisorSettings are drivers.gvisor. What is empty is the driver's own default.
type gvisorSettings struct{ runsc string }

func (g *gvisorSettings) keys() *key {
	return &key{keys: map[string]*key{"runsc": scalar(absolute(&g.runsc))}}
}

// microvmSettings are drivers.microvm. What is empty is the driver's own default.
type microvmSettings struct {
	qemu, kernel string
	emulated     bool // without KVM, for tests: that is no security boundary
}

func (m *microvmSettings) keys() *key {
	return &key{keys: map[string]*key{
		"qemu": scalar(absolute(&m.qemu)), "kernel": scalar(absolute(&m.kernel)), "emulated": scalar(yesOrNo(&m.emulated)),
	}}
}

// yesOrNo reads true or false.
func yesOrNo(to *bool) func(string) error {
	return func(v string) error {
		if v != "true" && v != "false" {
			return glovebox.Errorf(glovebox.CodeInvalid, "write true or false", "%q is neither", short(v))
		}
		*to = v == "true"
		return nil
	}
}

// remoteSettings are drivers.remote. An empty url: there is none.
type remoteSettings struct {
	url string // unix:/path
}

// keys are those of drivers.remote; isolation is the policy's.
func (r *remoteSettings) keys(isolation *glovebox.Isolation) *key {
	return &key{keys: map[string]*key{
		"url": scalar(func(v string) error {
			if scheme, _, _ := strings.Cut(v, ":"); scheme == "http" || scheme == "https" {
				return unbuilt("a remote by "+scheme, "name a socket of this machine: unix:/path")
			}
			_, err := unixAddress(v)
			r.url = v
			return err
		}),
		"isolation":  scalar(func(v string) error { *isolation = glovebox.Isolation(v); return nil }),
		"token_file": missingKey,
	}}
}

// open is the other Glovebox. It is asked at its first use.
func (r *remoteSettings) open(uid int) (engine.Remote, error) {
	if r.url == "" {
		return engine.Remote{}, nil
	}
	socket, err := unixAddress(r.url)
	if err != nil {
		return engine.Remote{}, err
	}
	return engine.Remote{Service: client.New(client.Config{Socket: socket, UID: uid}), Name: r.url}, nil
}

// tenant reads one of tenants. What it has of its own bounds it, also when that is nothing.
func (s *settings) tenant() *element {
	var (
		name    string
		rungs   []glovebox.Isolation
		rules   = []glovebox.EgressRule{}
		secrets = []string{}
		one     policy.Config
	)
	return &element{
		keys: map[string]*key{
			"name":   scalar(func(v string) error { name = v; return nil }),
			"rungs":  {item: func(v string) error { rungs = append(rungs, glovebox.Isolation(v)); return nil }},
			"budget": missingKey, "tokens": missingKey, "limits": missingKey,
			"egress": {keys: map[string]*key{"rules": {each: func() *element { return s.egressRule(&rules) }}},
				seen: func() { one.Egress.Tenants = map[string][]glovebox.EgressRule{} }},
			"secrets": {item: func(v string) error { secrets = append(secrets, v); return nil },
				seen: func() { one.TenantSecrets = map[string][]string{} }},
		},
		done: func() error {
			if name == "" {
				return glovebox.Errorf(glovebox.CodeInvalid, "write {name: acme, rungs: [gvisor]}", "this tenant has no name")
			}
			if _, twice := s.policy.Tenants[name]; twice {
				return glovebox.Errorf(glovebox.CodeInvalid, "keep one of them", "the tenant %q is there twice", short(name))
			}
			one.Tenants = map[string][]glovebox.Isolation{name: rungs}
			if _, err := policy.New(policy.Config{Tenants: one.Tenants}); err != nil {
				return err
			}
			s.addTenant(name, one, rules, secrets)
			return nil
		},
	}
}

// addTenant keeps what a tenant has of its own.
func (s *settings) addTenant(name string, one policy.Config, rules []glovebox.EgressRule, secrets []string) {
	p := &s.policy
	if p.Tenants == nil {
		p.Tenants = map[string][]glovebox.Isolation{}
	}
	p.Tenants[name] = one.Tenants[name]
	if one.Egress.Tenants != nil {
		if p.Egress.Tenants == nil {
			p.Egress.Tenants = one.Egress.Tenants
		}
		p.Egress.Tenants[name] = rules
	}
	if one.TenantSecrets != nil {
		if p.TenantSecrets == nil {
			p.TenantSecrets = one.TenantSecrets
		}
		p.TenantSecrets[name] = secrets
	}
}
