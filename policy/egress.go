package policy

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"glovebox"
	"glovebox/internal/egress"
)

// Egress is what may leave a sandbox that asks for it. The zero value lets nothing leave, but what the owner types.
type Egress struct {
	// AllowPrivate are the private networks (CIDR) to which names may lead, unless a rule has its own, which then lie within; a
	// rule whose own are not nil and empty has none.
	AllowPrivate []string
	// Rules are the operator's. A request selects from them.
	Rules []glovebox.EgressRule
	// Tenants maps a tenant to rules of its own, which are in place of those of Rules that allow. Those that deny hold for all.
	Tenants map[string][]glovebox.EgressRule
}

// Any is false where there is nothing that a request could select.
func (e Egress) Any() bool { return len(e.Rules)+len(e.Tenants) > 0 }

// maxAllow bounds the hosts that one request may ask for, and maxRules those of a configuration.
const (
	maxAllow = 256
	maxRules = 4096
)

// complete checks e and gives each rule a name and the networks that it has of e. The first result is what there is for
// tenants that the second does not have.
func (e Egress) complete() (all []glovebox.EgressRule, tenants map[string][]glovebox.EgressRule, err error) {
	for _, cidr := range e.AllowPrivate {
		if _, err := egress.ParsePrivate(cidr); err != nil {
			return nil, nil, badKey("egress.allow_private", "name private networks only", "%v", err)
		}
	}
	if all, err = e.list("policy.egress", e.Rules); err != nil {
		return nil, nil, err
	}
	deny := slices.DeleteFunc(slices.Clone(all), func(r glovebox.EgressRule) bool { return !r.Deny })
	tenants = map[string][]glovebox.EgressRule{}
	for name, own := range e.Tenants {
		rules, err := e.list(fmt.Sprintf("tenants.%s.egress", name), own)
		if err != nil {
			return nil, nil, err
		}
		tenants[name] = append(slices.Clip(deny), rules...)
		if _, err := egress.Compile(tenants[name]); err != nil {
			return nil, nil, bad("tenants", "give each rule an id of its own, or none", "tenant %s: %v", quote(name), err)
		}
	}
	return all, tenants, nil
}

// list checks rules that stand at a key of the configuration.
func (e Egress) list(key string, rules []glovebox.EgressRule) ([]glovebox.EgressRule, error) {
	if len(rules) > maxRules {
		return nil, bad(key+".rules", "write fewer, with *.example.com where that will do",
			"there are %d rules, and there may be %d", len(rules), maxRules)
	}
	rules = slices.Clone(rules)
	for i := range rules {
		r, at := &rules[i], fmt.Sprintf("%s.rules.%d", key, i+1)
		if _, err := egress.Compile(rules[i : i+1]); err != nil {
			return nil, bad(at, "mend the rule, or leave it out", "%v", err)
		}
		if r.ID == "" {
			r.ID = at
		}
		if r.AllowPrivate == nil && !r.Deny {
			r.AllowPrivate = e.AllowPrivate
			continue
		}
		for _, cidr := range r.AllowPrivate {
			if len(e.AllowPrivate) > 0 && !within(e.AllowPrivate, cidr) {
				return nil, bad(at, "leave it out, or add it to policy.egress.allow_private",
					"allow_private of the rule, %s, is not within policy.egress.allow_private", cidr)
			}
		}
	}
	if _, err := egress.Compile(rules); err != nil {
		return nil, bad(key+".rules", "give each rule an id of its own, or none", "%v", err)
	}
	return rules, nil
}

// bad makes the error for a key of the configuration.
func bad(key, fix, format string, args ...any) error {
	e := glovebox.Errorf(glovebox.CodeInvalid, fix, format, args...)
	e.Op = key
	return e
}

// within compares networks that were checked.
func within(around []string, cidr string) bool {
	network := netip.MustParsePrefix(cidr)
	return slices.ContainsFunc(around, func(a string) bool {
		wide := netip.MustParsePrefix(a)
		return wide.Bits() <= network.Bits() && wide.Contains(network.Addr())
	})
}

// EgressRules are the rules that a request of a tenant selects from, each with its name.
func (p *Policy) EgressRules(tenant string) []glovebox.EgressRule {
	return slices.Clone(p.rulesOf(tenant))
}

func (p *Policy) rulesOf(tenant string) []glovebox.EgressRule {
	if own, ok := p.egressOf[tenant]; ok {
		return own
	}
	return p.egress
}

// Warnings are what an operator should know of the rules of all tenants: each a sentence.
func (p *Policy) Warnings() []string {
	var all []string
	for _, rules := range append([][]glovebox.EgressRule{p.egress}, slices.Collect(maps.Values(p.egressOf))...) {
		some, _ := egress.Warnings(rules) // they compile
		all = append(all, some...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// grantEgress is what a request may let leave: of the rules what it asks for, and where the owner typed it at the command
// line what was typed. Rules that deny hold in any case.
func (p *Policy) grantEgress(who glovebox.Principal, allow []string) ([]glovebox.EgressRule, *glovebox.Decision) {
	const fix = "write it as in api.example.com, https://api.example.com:8443, tcp://db.example.com:5432 or *.example.com"
	if len(allow) == 0 {
		return nil, nil
	}
	if len(allow) > maxAllow {
		return nil, invalid("ask for fewer, with *.example.com where that will do", "allow has %d hosts and may have %d",
			len(allow), maxAllow)
	}
	var asks []egress.Ask
	for _, a := range allow {
		ask, err := egress.ParseAsk(a)
		if err != nil {
			return nil, invalid(fix, "allow %v", err)
		}
		asks = append(asks, ask)
	}
	selected, missing, err := egress.Select(p.rulesOf(who.Tenant), asks)
	if err != nil {
		return nil, invalid(fix, "allow: %v", err)
	}
	if who.Typed() {
		missing = append(missing, p.beyond(who.Tenant, asks, missing)...)
	}
	for i, a := range missing {
		if !who.Typed() {
			return nil, refuse("egress.denied", glovebox.CodeDenied,
				fmt.Sprintf("have the operator add to policy.egress.rules in glovebox.yaml: %s", Line(a.Rule())),
				"no rule of the policy lets %s be reached", a.Pattern())
		}
		r := a.Rule()
		r.ID, r.AllowPrivate = fmt.Sprintf("--allow %d (%s)", i+1, a.Pattern()), p.private
		selected = append(selected, r)
	}
	return named(selected), nil
}

// beyond are the stars of which rules name some hosts only: typed, they mean all that is below.
func (p *Policy) beyond(tenant string, asks, missing []egress.Ask) (more []egress.Ask) {
	for _, a := range asks {
		if _, exact := a.Pattern().Exact(); exact {
			continue
		}
		covered := slices.ContainsFunc(missing, func(m egress.Ask) bool { return m.Pattern() == a.Pattern() }) ||
			slices.ContainsFunc(p.rulesOf(tenant), func(r glovebox.EgressRule) bool {
				wide, err := egress.ParsePattern(r.Host)
				return err == nil && !r.Deny && wide.Covers(a.Pattern())
			})
		if !covered {
			more = append(more, a)
		}
	}
	return more
}

// StillLeaves is what of rules that a run was granted, which may be by another policy, may leave by this one too: a rule
// that is not as it was is left out, and what either policy denies is denied. So nothing opens that was closed.
func (p *Policy) StillLeaves(who glovebox.Principal, allow []string, granted []glovebox.EgressRule) []glovebox.EgressRule {
	var now []glovebox.EgressRule
	for _, a := range allow {
		rules, _ := p.grantEgress(who, []string{a}) // what would be refused now gives none
		now = append(now, rules...)
	}
	for _, r := range p.rulesOf(who.Tenant) {
		if r.Deny {
			now = append(now, r)
		}
	}
	var kept []glovebox.EgressRule
	for _, r := range granted {
		if r.Deny || slices.ContainsFunc(now, func(n glovebox.EgressRule) bool { return sameRule(n, r) }) {
			kept = append(kept, r)
		}
	}
	for _, r := range now {
		if r.Deny && !slices.ContainsFunc(kept, func(k glovebox.EgressRule) bool { return sameRule(k, r) }) {
			kept = append(kept, r)
		}
	}
	return named(kept)
}

// sameRule compares what rules say, not what they are called.
func sameRule(a, b glovebox.EgressRule) bool {
	a.ID, b.ID = "", ""
	return reflect.DeepEqual(a, b)
}

// named gives rules that were selected twice names of their own.
func named(rules []glovebox.EgressRule) []glovebox.EgressRule {
	seen := map[string]bool{}
	for i := range rules {
		id := rules[i].ID
		for n := 2; seen[rules[i].ID]; n++ {
			rules[i].ID = fmt.Sprintf("%s (%d)", id, n)
		}
		seen[rules[i].ID] = true
	}
	return rules
}

// Opens is true where rules let a tenant reach all that is asked for; else only whoever types it at the command line does.
func (p *Policy) Opens(tenant string, allow []string) bool {
	if _, refused := p.grantEgress(glovebox.Principal{Tenant: tenant}, allow); refused != nil {
		return false
	}
	var asks []egress.Ask
	for _, a := range allow {
		ask, _ := egress.ParseAsk(a) // which was done
		asks = append(asks, ask)
	}
	return len(p.beyond(tenant, asks, nil)) == 0
}
