package policy

import (
	"fmt"
	"slices"
	"strings"

	"glovebox"
	"glovebox/internal/egress"
)

// Secret is what a decision needs of a secret that is configured: never its value.
type Secret struct {
	Name string
	// Hosts are HOST or HOST:PORT, for which it is lent.
	Hosts []string
}

// maxSecrets bounds the secrets of one request.
const maxSecrets = 64

// checkSecrets refuses secrets that cannot be told apart, and tenants with secrets that there are not.
func checkSecrets(secrets []Secret, tenants map[string][]string) error {
	var names []string
	for _, s := range secrets {
		if s.Name == "" || slices.Contains(names, s.Name) {
			return bad("secrets", "give each a name of its own", "two secrets are called %s", quote(s.Name))
		}
		names = append(names, s.Name)
		for _, h := range s.Hosts {
			if _, err := endpoint(h); err != nil {
				return bad("secrets."+s.Name+".hosts", "write api.example.com or api.example.com:8443", "%v", err)
			}
		}
	}
	for tenant, own := range tenants {
		for _, name := range own {
			if !slices.Contains(names, name) {
				return bad("tenants", "add it to secrets, or leave it out", "tenant %s: there is no secret %s", quote(tenant),
					quote(name))
			}
		}
	}
	return nil
}

// bound is a place to which a secret is bound.
type bound struct {
	host egress.Host
	port uint16
}

func (b bound) String() string {
	if b.port == 443 {
		return b.host.String()
	}
	return fmt.Sprintf("%s:%d", b.host, b.port)
}

// endpoint reads HOST or HOST:PORT: one name, over https.
func endpoint(s string) (bound, error) {
	if !strings.Contains(s, "://") {
		s = "https://" + s
	}
	ask, err := egress.ParseAsk(s)
	if err != nil {
		return bound{}, err
	}
	host, exact := ask.Pattern().Exact()
	rule := ask.Rule()
	if !exact || rule.Protocols[0] != string(egress.HTTPS) {
		return bound{}, fmt.Errorf("%s: a secret is lent for one host by its name, over https", quote(s))
	}
	b := bound{host, 443}
	if len(rule.Ports) > 0 {
		b.port = uint16(rule.Ports[0])
	}
	return b, nil
}

// grantSecrets is what a request is lent: configured secrets, for hosts that are configured for them and that the run may
// reach with every request judged. A request can only narrow.
func (p *Policy) grantSecrets(who glovebox.Principal, asked []glovebox.SecretRef, leaves []glovebox.EgressRule) (
	[]glovebox.SecretRef, *glovebox.Decision) {
	if len(asked) == 0 {
		return nil, nil
	}
	if len(asked) > maxSecrets {
		return nil, invalid("ask for fewer", "%d secrets are asked for, and may be %d", len(asked), maxSecrets)
	}
	rules, err := egress.Compile(leaves)
	if err != nil {
		return nil, invalid("mend what is allowed", "secret: %v", err)
	}
	var lent []glovebox.SecretRef
	for _, ref := range asked {
		at, refused := p.secretAt(who.Tenant, ref)
		if refused != nil {
			return nil, refused
		}
		if refused := inspected(rules, ref.Name, at); refused != nil {
			return nil, refused
		}
		one := glovebox.SecretRef{Name: ref.Name, Host: at.String()}
		if slices.Contains(lent, one) {
			return nil, invalid("ask for it once", "secret %s is asked for twice for %s", quote(ref.Name), at)
		}
		lent = append(lent, one)
	}
	return lent, nil
}

// secretAt finds a secret that the tenant may have, and for it the host that is asked for.
func (p *Policy) secretAt(tenant string, ref glovebox.SecretRef) (bound, *glovebox.Decision) {
	own, bounded := p.lent[tenant]
	i := slices.IndexFunc(p.secrets, func(s Secret) bool { return s.Name == ref.Name })
	switch {
	case bounded && !slices.Contains(own, ref.Name):
		return bound{}, refuse("secret.denied", glovebox.CodeDenied,
			fmt.Sprintf("have the operator add %s to the secrets of this tenant, under tenants in glovebox.yaml", quote(ref.Name)),
			"the secret %s is not lent to tenant %s", quote(ref.Name), quote(tenant))
	case i < 0:
		var names []string
		for _, s := range p.secrets {
			if !bounded || slices.Contains(own, s.Name) {
				names = append(names, s.Name)
			}
		}
		fix := "have the operator add it to secrets in glovebox.yaml; `glovebox secret ls` lists those there are"
		if len(names) > 0 {
			fix = meant("--secret", ref.Name, names) + "; or " + fix
		}
		return bound{}, refuse("secret.unknown", glovebox.CodeDenied, fix, "there is no secret %s", quote(ref.Name))
	}
	at, err := endpoint(ref.Host)
	if err != nil {
		return at, invalid("say --secret NAME@HOST, such as "+ref.Name+"@api.example.com", "secret %s: %v", quote(ref.Name), err)
	}
	for _, h := range p.secrets[i].Hosts {
		if b, err := endpoint(h); err == nil && b == at {
			return at, nil
		}
	}
	return at, refuse("secret.host", glovebox.CodeDenied,
		fmt.Sprintf("ask for %s, or have the operator add %s to secrets.%s.hosts in glovebox.yaml", list(p.secrets[i].Hosts), at,
			ref.Name), "the secret %s is not lent for %s", quote(ref.Name), at)
}

// inspected refuses to lend where the gateway would not see each request.
func inspected(rules *egress.Rules, name string, at bound) *glovebox.Decision {
	v := rules.Stream(at.host, at.port, egress.HTTPS)
	switch {
	case !v.Allowed:
		return refuse("secret.unreached", glovebox.CodeInvalid, fmt.Sprintf("say --allow https://%s too", at),
			"the secret %s is for %s, which this run is not allowed to reach", quote(name), at)
	case v.Mode != egress.Inspect || rules.Stream(at.host, at.port, egress.TLS).Allowed ||
		rules.Stream(at.host, at.port, egress.TCP).Allowed:
		return refuse("secret.blind", glovebox.CodeDenied,
			fmt.Sprintf("let the rule %s inspect (no mode sni, no protocol tls or tcp), or do without the secret", quote(v.Rule)),
			"the secret %s cannot be lent for %s: what is sent there is not opened", quote(name), at)
	}
	return nil
}
