package policy

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"glovebox"
	"glovebox/internal/egress"
)

// TestEgressIsSelected: a request selects from the operator's rules; the owner at the command line alone may name others.
func TestEgressIsSelected(t *testing.T) {
	p, err := New(Config{Egress: Egress{AllowPrivate: []string{"10.0.0.0/8"}, Rules: []glovebox.EgressRule{
		{ID: "api", Host: "api.example.com", Methods: []string{"GET"}},
		{Host: "intern.example.com", AllowPrivate: []string{"10.1.0.0/16"}},
		{ID: "out", Host: "out.example.com", AllowPrivate: []string{}},
		{ID: "no", Host: "bad.example.com", Deny: true},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	deny := glovebox.EgressRule{ID: "no", Host: "bad.example.com", Deny: true}
	api := glovebox.EgressRule{ID: "api", Host: "api.example.com", Methods: []string{"GET"}, AllowPrivate: []string{"10.0.0.0/8"},
		Protocols: []string{"https"}}
	intern := glovebox.EgressRule{ID: "policy.egress.rules.2", Host: "intern.example.com", AllowPrivate: []string{"10.1.0.0/16"},
		Protocols: []string{"https", "http"}}
	typed := glovebox.EgressRule{ID: "--allow 1 (other.example.com)", Host: "other.example.com", AllowPrivate: []string{"10.0.0.0/8"}}
	byHTTP := owner
	byHTTP.Door = "http"
	for name, tt := range map[string]struct {
		who   glovebox.Principal
		allow []string
		want  []glovebox.EgressRule
		code  glovebox.Code
		fix   string
	}{
		"nothing asked": {who: owner},
		"selected":      {who: stranger, allow: []string{"https://api.example.com", "intern.example.com"}, want: []glovebox.EgressRule{deny, api, intern}},
		"no private networks": {who: stranger, allow: []string{"out.example.com"}, want: []glovebox.EgressRule{deny,
			{ID: "out", Host: "out.example.com", AllowPrivate: []string{}, Protocols: []string{"https", "http"}}}},
		"not there":       {who: stranger, allow: []string{"other.example.com"}, code: glovebox.CodeDenied, fix: `{host: "other.example.com"}`},
		"another port":    {who: stranger, allow: []string{"api.example.com:8443"}, code: glovebox.CodeDenied, fix: "ports: [8443]"},
		"owner over HTTP": {who: byHTTP, allow: []string{"other.example.com"}, code: glovebox.CodeDenied, fix: "policy.egress.rules"},
		"owner typed":     {who: owner, allow: []string{"other.example.com"}, want: []glovebox.EgressRule{deny, typed}},
		"owner typed a star": {who: owner, allow: []string{"https://*.example.com"}, want: []glovebox.EgressRule{deny, api,
			{ID: "policy.egress.rules.2", Host: "intern.example.com", AllowPrivate: []string{"10.1.0.0/16"}, Protocols: []string{"https"}},
			{ID: "out", Host: "out.example.com", AllowPrivate: []string{}, Protocols: []string{"https"}},
			{ID: "--allow 1 (*.example.com)", Host: "*.example.com", Protocols: []string{"https"}, AllowPrivate: []string{"10.0.0.0/8"}}}},
		"a stranger's star": {who: stranger, allow: []string{"https://*.example.com"}, want: []glovebox.EgressRule{deny, api,
			{ID: "policy.egress.rules.2", Host: "intern.example.com", AllowPrivate: []string{"10.1.0.0/16"}, Protocols: []string{"https"}},
			{ID: "out", Host: "out.example.com", AllowPrivate: []string{}, Protocols: []string{"https"}}}},
		"malformed": {who: owner, allow: []string{"http://10.0.0.1"}, code: glovebox.CodeInvalid, fix: "api.example.com"},
		"too wide":  {who: owner, allow: []string{"*.github.io"}, code: glovebox.CodeInvalid, fix: "api.example.com"},
		"too many":  {who: owner, allow: slicesOf("a.example.com", maxAllow+1), code: glovebox.CodeInvalid, fix: "fewer"},
	} {
		t.Run(name, func(t *testing.T) {
			d := p.Decide(tt.who, glovebox.Request{Code: "1", Trust: "model", Allow: tt.allow}, having(glovebox.IsolationProcess))
			if d.Allow != (tt.code == "") || d.Code != tt.code || !strings.Contains(d.Fix, tt.fix) {
				t.Fatalf("decided %+v", d)
			}
			if diff := cmp.Diff(tt.want, d.Grant.Egress); diff != "" {
				t.Error(diff)
			}
		})
	}
	if p.Opens("local", []string{"*.example.com"}) || p.Opens("local", []string{"other.example.com"}) || !p.Opens("local", []string{"api.example.com"}) || !p.Opens("local", nil) {
		t.Error("what the rules open to anybody is not what was selected")
	}
}

// TestTenantsHaveTheirOwn: rules of a tenant are in place of those for all, also when they are none, but for what is denied.
func TestTenantsHaveTheirOwn(t *testing.T) {
	deny := glovebox.EgressRule{ID: "no", Host: "bad.example.com", Deny: true}
	p := mustNew(t, Config{Egress: Egress{
		Rules:   []glovebox.EgressRule{{Host: "all.example.com"}, deny},
		Tenants: map[string][]glovebox.EgressRule{"none": {}, "own": {{Host: "own.example.com"}, {Host: "bad.example.com"}}},
	}})
	for _, tt := range []struct {
		tenant, host string
		want         bool
	}{
		{"local", "all.example.com", true}, {"local", "own.example.com", false}, {"own", "all.example.com", false},
		{"own", "own.example.com", true}, {"none", "all.example.com", false}, {"none", "own.example.com", false},
	} {
		if p.Opens(tt.tenant, []string{tt.host}) != tt.want {
			t.Errorf("%s to %s", tt.tenant, tt.host)
		}
	}
	if got := p.EgressRules("own"); len(got) != 3 || got[0].ID != "no" || got[1].ID != "tenants.own.egress.rules.1" {
		t.Errorf("%+v", got)
	}
	if w := mustNew(t, Config{Egress: Egress{Rules: []glovebox.EgressRule{{Host: "pastebin.com"}},
		Tenants: map[string][]glovebox.EgressRule{"a": {{ID: "f", Host: "file.io"}}, "b": {{ID: "f", Host: "file.io"}}}}}).Warnings(); len(w) != 2 {
		t.Errorf("%q", w)
	}
	if got := p.EgressRules("none"); len(got) != 1 || !got[0].Deny {
		t.Errorf("%+v", got)
	}
}

// TestEgressRefused: a rule that cannot be is told by its place.
func TestEgressRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		egress Egress
		op     string
	}{
		"wide":             {Egress{Rules: []glovebox.EgressRule{{Host: "a.example.com"}, {Host: "*.com"}}}, "policy.egress.rules.2"},
		"loopback":         {Egress{AllowPrivate: []string{"127.0.0.0/8"}}, "policy.egress.allow_private"},
		"beyond the whole": {Egress{AllowPrivate: []string{"10.1.0.0/16"}, Rules: []glovebox.EgressRule{{Host: "a.example.com", AllowPrivate: []string{"10.0.0.0/8"}}}}, "policy.egress.rules.1"},
		"tenant's":         {Egress{Tenants: map[string][]glovebox.EgressRule{"acme": {{Host: "*.com"}}}}, "tenants.acme.egress.rules.1"},
		"tenant's id": {Egress{Rules: []glovebox.EgressRule{{ID: "a", Host: "a.example.com", Deny: true}},
			Tenants: map[string][]glovebox.EgressRule{"acme": {{ID: "a", Host: "b.example.com"}}}}, "tenants"},
		"one id twice": {Egress{Rules: []glovebox.EgressRule{{ID: "a", Host: "a.example.com"}, {ID: "a", Host: "b.example.com"}}}, "policy.egress.rules"},
	} {
		_, err := New(Config{Egress: tt.egress})
		e, ok := err.(*glovebox.Error)
		if !ok || e.Op != tt.op || e.Code != glovebox.CodeInvalid || e.Fix == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestNamesStayApart: what is selected twice compiles, whatever the operator's names are.
func TestNamesStayApart(t *testing.T) {
	p := mustNew(t, Config{Egress: Egress{Rules: []glovebox.EgressRule{{ID: "a", Host: "a.example.com"}, {ID: "a (2)", Host: "b.example.com"}}}})
	d := p.Decide(stranger, glovebox.Request{Code: "1", Trust: "model",
		Allow: []string{"a.example.com", "https://a.example.com", "b.example.com", "http://a.example.com"}}, having(glovebox.IsolationProcess))
	if _, err := egress.Compile(d.Grant.Egress); err != nil || len(d.Grant.Egress) != 4 {
		t.Errorf("%v of %+v", err, d.Grant.Egress)
	}
}

// TestStillLeaves: a change of the policy takes from a live run what it no longer permits, and gives it nothing.
func TestStillLeaves(t *testing.T) {
	rule := func(host string) glovebox.EgressRule { return glovebox.EgressRule{Host: host} }
	deny := glovebox.EgressRule{Host: "a.example.com", Deny: true}
	was := Egress{Rules: []glovebox.EgressRule{rule("a.example.com"), rule("b.example.com")}}
	allow := []string{"a.example.com", "b.example.com", "typed.example.com"}
	for name, tt := range map[string]struct {
		is    Egress
		lives string
	}{
		"the same":            {was, "a b typed"},
		"one less":            {Egress{Rules: was.Rules[1:]}, "b typed"},
		"one more":            {Egress{Rules: append(slices.Clone(was.Rules), rule("c.example.com"))}, "a b typed"},
		"none":                {Egress{}, "typed"},
		"another order":       {Egress{Rules: []glovebox.EgressRule{was.Rules[1], was.Rules[0]}}, "a b typed"},
		"denied":              {Egress{Rules: append(slices.Clone(was.Rules), deny)}, "b typed"},
		"narrower":            {Egress{Rules: []glovebox.EgressRule{{Host: "a.example.com", Methods: []string{"GET"}}, was.Rules[1]}}, "b typed"},
		"the tenant's denied": {Egress{Rules: was.Rules, Tenants: map[string][]glovebox.EgressRule{"local": {was.Rules[0], was.Rules[1], deny}}}, "b typed"},
		"the tenant's":        {Egress{Rules: was.Rules, Tenants: map[string][]glovebox.EgressRule{"local": {was.Rules[1]}}}, "b typed"},
		"private networks":    {Egress{Rules: was.Rules, AllowPrivate: []string{"10.0.0.0/8"}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			d := mustNew(t, Config{Egress: was}).Decide(owner, glovebox.Request{Code: "1", Trust: "model", Allow: allow}, having(glovebox.IsolationProcess))
			left := mustNew(t, Config{Egress: tt.is}).StillLeaves(owner, allow, d.Grant.Egress)
			rules, err := egress.Compile(left)
			if err != nil {
				t.Fatal(err)
			}
			var lives []string
			for _, name := range []string{"a", "b", "c", "typed"} {
				h, _ := egress.ParseHost(name + ".example.com")
				if rules.Stream(h, 443, egress.HTTPS).Allowed {
					lives = append(lives, name)
				}
			}
			if got := strings.Join(lives, " "); got != tt.lives {
				t.Errorf("%q lives, want %q", got, tt.lives)
			}
		})
	}
}

// TestActionsAreSelected: a request names configured actions, and others are denied.
func TestActionsAreSelected(t *testing.T) {
	p := mustNew(t, Config{Actions: []string{"open-pr", "say"}})
	for name, tt := range map[string]struct {
		asked, want []string
		code        glovebox.Code
		fix         string
	}{
		"none":    {},
		"some":    {asked: []string{"say", "open-pr", "say"}, want: []string{"say", "open-pr"}},
		"unknown": {asked: []string{"open-rp"}, code: glovebox.CodeDenied, fix: "did you mean open-pr?"},
		"many":    {asked: slicesOf("say", maxActions+1), code: glovebox.CodeInvalid, fix: "fewer"},
	} {
		d := p.Decide(stranger, glovebox.Request{Code: "1", Trust: "model", Actions: tt.asked}, having(glovebox.IsolationProcess))
		if d.Code != tt.code || !strings.Contains(d.Fix, tt.fix) || !slices.Equal(d.Grant.Actions, tt.want) {
			t.Errorf("%s: %+v", name, d)
		}
	}
}
