package policy

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"glovebox"
)

// TestSecretsAreNarrowed: a request is lent what is configured, where every request is judged, and less at most.
func TestSecretsAreNarrowed(t *testing.T) {
	p := mustNew(t, Config{
		Egress: Egress{Rules: []glovebox.EgressRule{
			{Host: "*.example.com"}, {Host: "alt.example.com", Ports: []int{8443}}, {ID: "pin", Host: "pin.example.org", Mode: "sni"},
			{ID: "both", Host: "both.example.org"}, {Host: "both.example.org", Protocols: []string{"tls"}},
		}},
		Secrets: []Secret{{Name: "TOKEN", Hosts: []string{"api.example.com", "alt.example.com:8443", "pin.example.org", "both.example.org"}},
			{Name: "OTHER", Hosts: []string{"api.example.com"}}},
		TenantSecrets: map[string][]string{"acme": {"OTHER"}, "none": {}},
	})
	ref := func(name, host string) glovebox.SecretRef { return glovebox.SecretRef{Name: name, Host: host} }
	for name, tt := range map[string]struct {
		tenant string
		allow  string
		asked  []glovebox.SecretRef
		want   []glovebox.SecretRef
		rule   string
		fix    string
	}{
		"lent": {allow: "https://api.example.com", asked: []glovebox.SecretRef{ref("TOKEN", "API.example.com.")},
			want: []glovebox.SecretRef{ref("TOKEN", "api.example.com")}},
		"another port": {allow: "https://alt.example.com:8443", asked: []glovebox.SecretRef{ref("TOKEN", "alt.example.com:8443")},
			want: []glovebox.SecretRef{ref("TOKEN", "alt.example.com:8443")}},
		"the usual port is spelt": {allow: "https://api.example.com", asked: []glovebox.SecretRef{ref("TOKEN", "api.example.com:443")},
			want: []glovebox.SecretRef{ref("TOKEN", "api.example.com")}},
		"below a star":     {allow: "*.example.com", asked: []glovebox.SecretRef{ref("TOKEN", "api.example.com")}, want: []glovebox.SecretRef{ref("TOKEN", "api.example.com")}},
		"twice":            {allow: "*.example.com", asked: []glovebox.SecretRef{ref("TOKEN", "api.example.com"), ref("TOKEN", "api.example.com:443")}, rule: "request.invalid", fix: "once"},
		"unknown":          {allow: "*.example.com", asked: []glovebox.SecretRef{ref("TOKEM", "api.example.com")}, rule: "secret.unknown", fix: "did you mean --secret TOKEN?"},
		"wrong host":       {allow: "*.example.com", asked: []glovebox.SecretRef{ref("TOKEN", "evil.example.com")}, rule: "secret.host", fix: "secrets.TOKEN.hosts"},
		"wrong port":       {allow: "*.example.com", asked: []glovebox.SecretRef{ref("TOKEN", "alt.example.com")}, rule: "secret.host", fix: "alt.example.com:8443"},
		"star":             {allow: "*.example.com", asked: []glovebox.SecretRef{ref("TOKEN", "*.example.com")}, rule: "request.invalid", fix: "NAME@HOST"},
		"plain http":       {allow: "*.example.com", asked: []glovebox.SecretRef{ref("TOKEN", "http://api.example.com")}, rule: "request.invalid", fix: "NAME@HOST"},
		"no host":          {allow: "*.example.com", asked: []glovebox.SecretRef{ref("TOKEN", "")}, rule: "request.invalid", fix: "NAME@HOST"},
		"not allowed":      {asked: []glovebox.SecretRef{ref("TOKEN", "api.example.com")}, rule: "secret.unreached", fix: "--allow https://api.example.com"},
		"only http":        {allow: "http://api.example.com", asked: []glovebox.SecretRef{ref("TOKEN", "api.example.com")}, rule: "secret.unreached", fix: "--allow https://api.example.com"},
		"sni":              {allow: "pin.example.org", asked: []glovebox.SecretRef{ref("TOKEN", "pin.example.org")}, rule: "secret.blind", fix: `"pin"`},
		"a way around":     {allow: "both.example.org tls://both.example.org", asked: []glovebox.SecretRef{ref("TOKEN", "both.example.org")}, rule: "secret.blind", fix: `"both"`},
		"tenant's":         {tenant: "acme", allow: "*.example.com", asked: []glovebox.SecretRef{ref("OTHER", "api.example.com")}, want: []glovebox.SecretRef{ref("OTHER", "api.example.com")}},
		"not the tenant's": {tenant: "acme", allow: "*.example.com", asked: []glovebox.SecretRef{ref("TOKEN", "api.example.com")}, rule: "secret.denied", fix: "tenants"},
		"tenant with none": {tenant: "none", allow: "*.example.com", asked: []glovebox.SecretRef{ref("TOKEN", "api.example.com")}, rule: "secret.denied", fix: "tenants"},
	} {
		t.Run(name, func(t *testing.T) {
			who := glovebox.Principal{Tenant: "local", Name: "x"}
			if tt.tenant != "" {
				who.Tenant = tt.tenant
			}
			d := p.Decide(who, glovebox.Request{Code: "1", Trust: "model", Allow: strings.Fields(tt.allow), Secrets: tt.asked},
				having(glovebox.IsolationProcess))
			if d.Allow != (tt.rule == "") || tt.rule != "" && d.Rule != tt.rule || !strings.Contains(d.Fix, tt.fix) {
				t.Fatalf("decided %+v", d)
			}
			if diff := cmp.Diff(tt.want, d.Grant.Secrets); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestSecretsRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		config Config
		op     string
	}{
		"twice":   {Config{Secrets: []Secret{{Name: "A"}, {Name: "A"}}}, "secrets"},
		"no name": {Config{Secrets: []Secret{{}}}, "secrets"},
		"star":    {Config{Secrets: []Secret{{Name: "A", Hosts: []string{"*.example.com"}}}}, "secrets.A.hosts"},
		"no such": {Config{TenantSecrets: map[string][]string{"acme": {"A"}}}, "tenants"},
	} {
		_, err := New(tt.config)
		if e, ok := err.(*glovebox.Error); !ok || e.Op != tt.op || e.Fix == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}
