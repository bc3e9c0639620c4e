package policy

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"

	"glovebox"
	"glovebox/internal/egress"
)

// Egress is what may leave a sandbox that asks for it. The zero value lets nothing leave, but what the owner types.
type Egress struct {
	// AllowPrivate are the private networks (CIDR) to which names may lead, unless a rule has its own, which then lie within.
	AllowPrivate []string
	// Rules are the operator's. A request selects from them.
	Rules []glovebox.EgressRule
}

// maxAllow bounds the hosts that one request may ask for, and maxRules those of a configuration.
const (
	maxAllow = 256
	maxRules = 4096
)

// complete checks e and gives each rule a name and the networks that it has of e.
func (e Egress) complete() ([]glovebox.EgressRule, error) {
	var around []netip.Prefix
	for _, cidr := range e.AllowPrivate {
		network, err := egress.ParsePrivate(cidr)
		if err != nil {
			return nil, badKey("egress.allow_private", "name private networks only", "%v", err)
		}
		around = append(around, network)
	}
	if len(e.Rules) > maxRules {
		return nil, badKey("egress.rules", "write fewer, with *.example.com where that will do",
			"there are %d rules, and there may be %d", len(e.Rules), maxRules)
	}
	rules := slices.Clone(e.Rules)
	for i := range rules {
		r, key := &rules[i], fmt.Sprintf("egress.rules.%d", i+1)
		if _, err := egress.Compile(rules[i : i+1]); err != nil {
			return nil, badKey(key, "mend the rule, or leave it out", "%v", err)
		}
		if r.ID == "" {
			r.ID = fmt.Sprintf("policy.%s", key)
		}
		if len(r.AllowPrivate) == 0 && !r.Deny {
			r.AllowPrivate = e.AllowPrivate
			continue
		}
		for _, cidr := range r.AllowPrivate {
			network, _ := egress.ParsePrivate(cidr) // which Compile has done
			if len(around) > 0 && !within(around, network) {
				return nil, badKey(key, "leave it out, or add it to policy.egress.allow_private",
					"allow_private of the rule, %s, is not within policy.egress.allow_private", network)
			}
		}
	}
	if _, err := egress.Compile(rules); err != nil {
		return nil, badKey("egress.rules", "give each rule an id of its own, or none", "%v", err)
	}
	return rules, nil
}

func within(around []netip.Prefix, network netip.Prefix) bool {
	return slices.ContainsFunc(around, func(a netip.Prefix) bool {
		return a.Bits() <= network.Bits() && a.Contains(network.Addr())
	})
}

// EgressRules are the rules that this policy selects from, each with its name.
func (p *Policy) EgressRules() []glovebox.EgressRule { return slices.Clone(p.egress) }

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
	selected, missing, err := egress.Select(p.egress, asks)
	if err != nil {
		return nil, invalid(fix, "allow: %v", err)
	}
	for i, a := range missing {
		if !who.Typed() {
			return nil, refuse("egress.denied", glovebox.CodeDenied,
				fmt.Sprintf("have the operator add to policy.egress.rules in glovebox.yaml: {%s}", asRule(a)),
				"no rule of the policy lets %s be reached", a.Pattern())
		}
		r := a.Rule()
		r.ID, r.AllowPrivate = fmt.Sprintf("--allow %d (%s)", i+1, a.Pattern()), p.private
		selected = append(selected, r)
	}
	return named(selected), nil
}

// StillLeaves is what of rules that a run was granted, which may be by another policy, may leave by this one too: a rule that
// is not as it was is left out, and what either policy denies is denied. So nothing opens that was closed.
func (p *Policy) StillLeaves(who glovebox.Principal, allow []string, granted []glovebox.EgressRule) []glovebox.EgressRule {
	var now []glovebox.EgressRule
	for _, a := range allow {
		rules, _ := p.grantEgress(who, []string{a}) // what would be refused now gives none
		now = append(now, rules...)
	}
	for _, r := range p.egress {
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
	seen := map[string]int{}
	for i := range rules {
		seen[rules[i].ID]++
		if n := seen[rules[i].ID]; n > 1 {
			rules[i].ID = fmt.Sprintf("%s (%d)", rules[i].ID, n)
		}
	}
	return rules
}

// asRule is the rule that would allow what was asked for, as a configuration has it.
func asRule(a egress.Ask) string {
	r := a.Rule()
	text := fmt.Sprintf("host: %q", r.Host)
	if len(r.Ports) > 0 {
		text += fmt.Sprintf(", ports: [%d]", r.Ports[0])
	}
	if len(r.Protocols) > 0 {
		text += fmt.Sprintf(", protocols: [%s]", r.Protocols[0])
	}
	return text
}

// Opens is true where rules let anybody reach what is asked for; else only whoever types it at the command line does.
func (p *Policy) Opens(allow []string) bool {
	_, refused := p.grantEgress(glovebox.Principal{}, allow)
	return refused == nil
}
