package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"glovebox"
)

// Machine tells whether a rung can be had now: nil, or an error that says what is missing, a *glovebox.Error with a fix. Of
// the remote rung it tells whether the other Glovebox has the rung at or a stronger one. It is asked about the rungs that a
// request could get, the lowest first.
type Machine func(rung, at glovebox.Isolation) error

// rung decides the rung from the trust and the isolation that were stated, the rungs that the tenant may have, and those
// that there are. A rung that is named, and not below what the trust needs, is delivered or refused. Otherwise it is the
// lowest that will do.
func (p *Policy) rung(tenant string, req glovebox.Request, can Machine) glovebox.Decision {
	c := choice{policy: p, tenant: tenant, trust: req.Trust, asked: req.Isolation, can: can, stated: req.Trust != ""}
	if !c.stated {
		c.trust = glovebox.TrustInfluenced
	}
	if c.asked == "" {
		c.asked = glovebox.IsolationAuto
	}
	if !c.trust.Valid() {
		return *unknownWord("trust", string(c.trust), trustWords)
	}
	if c.asked.Rank() < 0 {
		return *unknownWord("isolation", string(c.asked), isolationWords)
	}
	c.needed = p.rungs[c.trust]
	c.reason = fmt.Sprintf("%s code needs at least the %s rung", c.trust, c.needed)
	choose := c.lowest
	if c.asked.Rank() >= max(c.needed.Rank(), 1) {
		choose = c.named
	}
	d := choose()
	d.Asked = c.asked
	return d
}

// choice is the choosing of one request's rung.
type choice struct {
	policy *Policy
	tenant string
	trust  glovebox.Trust
	stated bool // else it is the default
	asked  glovebox.Isolation
	needed glovebox.Isolation // by the trust
	reason string
	can    Machine
}

// allowed are the rungs that the tenant may have and the trust allows, the lowest first.
func (c *choice) allowed() (all []glovebox.Isolation) {
	own, bounded := c.policy.tenants[c.tenant]
	for _, word := range isolationWords[1:] {
		r := glovebox.Isolation(word)
		if r.Rank() >= c.needed.Rank() && c.needed != "" && (!bounded || slices.Contains(own, r)) {
			all = append(all, r)
		}
	}
	return all
}

// named decides for the rung that the request names.
func (c *choice) named() glovebox.Decision {
	rule := c.rule()
	if c.asked != c.needed {
		rule = "isolation.raised"
		c.reason = fmt.Sprintf("the request asked for the %s rung, above the %s rung that %s code needs", c.asked, c.needed,
			c.trust)
	}
	allowed := c.allowed()
	if !slices.Contains(allowed, c.asked) {
		fix := "have the operator add " + string(c.asked) + " to the rungs of the tenant in glovebox.yaml"
		if len(allowed) > 0 {
			fix = "say --isolation " + list(words(allowed)) + ", or " + fix
		}
		return *refuse("tenant.rungs", glovebox.CodeDenied, fix, "%s, which the tenant %s may not have", c.reason, quote(c.tenant))
	}
	err := c.ask(c.asked)
	if err == nil {
		return c.grant(c.asked, rule)
	}
	fix := err.Fix
	for _, r := range allowed {
		if r.Rank() > c.asked.Rank() && c.unasked(r) == nil {
			fix += fmt.Sprintf("; or ask for a stronger rung that is available: --isolation %s", r)
			break
		}
	}
	return c.missing(c.asked, err, fix)
}

// unasked is ask about a rung that the request does not name.
func (c *choice) unasked(r glovebox.Isolation) *glovebox.Error {
	if slices.Contains(c.policy.named, r) {
		return OnlyNamed(r)
	}
	return c.ask(r)
}

// OnlyNamed says of one of Config.OnlyNamed why it is not had otherwise.
func OnlyNamed(r glovebox.Isolation) *glovebox.Error {
	return glovebox.Errorf(glovebox.CodeUnavailable,
		fmt.Sprintf("to try what is no boundary here all the same, name it: --isolation %s", r),
		"the %s rung is only emulated here, for tests, and nothing is given to it unasked", r)
}

// lowest decides for the lowest rung that will do.
func (c *choice) lowest() glovebox.Decision {
	if c.asked != glovebox.IsolationAuto {
		c.reason += fmt.Sprintf("; %s was asked for, which is a floor and lowers nothing", c.asked)
	}
	allowed := c.allowed()
	if len(allowed) == 0 {
		fix := fmt.Sprintf("have the operator add %s or a stronger rung to the rungs of the tenant in glovebox.yaml", c.needed)
		return *refuse("tenant.rungs", glovebox.CodeDenied, fix, "%s, and the tenant %s may have none of that kind", c.reason,
			quote(c.tenant))
	}
	rule := c.rule()
	if allowed[0] != c.needed {
		rule = "tenant.rungs"
		c.reason += fmt.Sprintf("; the lowest of those that the tenant %s may have is %s", quote(c.tenant), allowed[0])
	}
	var first *glovebox.Error
	for _, r := range allowed {
		err := c.unasked(r)
		if err == nil {
			if first != nil {
				rule = "isolation.available"
				c.reason += fmt.Sprintf("; %s is not available here, and %s is the lowest that is", allowed[0], r)
			}
			return c.grant(r, rule)
		}
		if first == nil {
			first = err
		}
	}
	fix := first.Fix
	if other := c.otherTrust(); other != "" {
		fix += "; " + other
	}
	return c.missing(allowed[0], first, fix)
}

func (c *choice) rule() string { return "trust." + string(c.trust) }

// otherTrust is what a caller may do who knows more about the code; empty where no more trust would get a lower rung. It
// never says that less is known.
func (c *choice) otherTrust() string {
	model := choice{policy: c.policy, tenant: c.tenant, trust: glovebox.TrustModel, can: c.can}
	model.needed = c.policy.rungs[model.trust]
	if !c.stated && model.needed.Rank() < c.needed.Rank() {
		for _, r := range model.allowed() {
			if model.unasked(r) == nil {
				return fmt.Sprintf("or, if you know that no stranger's text shaped the code: --trust model --isolation %s", r)
			}
		}
	}
	if c.policy.rungs[glovebox.TrustTrusted].Rank() >= c.needed.Rank() {
		return ""
	}
	return "or, if you know more about where the code came from, say so with --trust"
}

// ask asks the machine.
func (c *choice) ask(r glovebox.Isolation) *glovebox.Error {
	if c.can == nil {
		return glovebox.Errorf(glovebox.CodeUnavailable, "run it where `glovebox doctor` shows the rung as available",
			"this engine has no rungs")
	}
	err := c.can(r, c.atLeast(r))
	var known *glovebox.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &known):
		return known
	}
	return glovebox.Internal("look for the "+string(r)+" rung", err).(*glovebox.Error)
}

// atLeast is what another Glovebox must deliver: what the operator demands of it, what the trust needs, and the lowest that
// the tenant may have here.
func (c *choice) atLeast(r glovebox.Isolation) glovebox.Isolation {
	if r != glovebox.IsolationRemote {
		return r
	}
	at := c.needed
	if at == glovebox.IsolationRemote { // the trust is mapped to it: then what it would need here
		at = builtInRungs[c.trust]
	}
	if here := c.allowed(); here[0] != glovebox.IsolationRemote && here[0].Rank() > at.Rank() {
		at = here[0]
	}
	if c.policy.remote.Rank() > at.Rank() {
		at = c.policy.remote
	}
	return at
}

func (c *choice) grant(r glovebox.Isolation, rule string) glovebox.Decision {
	d := glovebox.Decision{Allow: true, Rule: rule, Reason: c.reason, Grant: glovebox.Grant{Isolation: r, Trust: c.trust}}
	if r == glovebox.IsolationRemote {
		d.Grant.AtLeast = c.atLeast(r)
		d.Reason += fmt.Sprintf("; the other Glovebox must deliver at least the %s rung", d.Grant.AtLeast)
	}
	return d
}

func (c *choice) missing(r glovebox.Isolation, err *glovebox.Error, fix string) glovebox.Decision {
	why := err.Public
	if rest, ok := strings.CutPrefix(why, "the "+string(r)+" rung "); ok { // which was just said
		why = "it " + rest
	}
	return *refuse("isolation.unavailable", glovebox.CodeUnavailable, strings.TrimPrefix(fix, "; "),
		"%s, and the %s rung is not available here: %s", c.reason, r, why)
}

func words(rungs []glovebox.Isolation) []string {
	all := make([]string, len(rungs))
	for i, r := range rungs {
		all[i] = string(r)
	}
	return all
}

// checkRemote refuses a demand that is no rung of another Glovebox.
func checkRemote(r glovebox.Isolation) error {
	if r == "" || r.Rank() > 0 && r != glovebox.IsolationRemote {
		return nil
	}
	known := isolationWords[1 : len(isolationWords)-1]
	e := glovebox.Errorf(glovebox.CodeInvalid, meant("", string(r), known), "%s is no rung that a Glovebox has itself",
		quote(string(r)))
	e.Op = "drivers.remote.isolation"
	return e
}

// tenantRungs checks the rungs of each tenant and copies them.
func tenantRungs(set map[string][]glovebox.Isolation) (map[string][]glovebox.Isolation, error) {
	all := map[string][]glovebox.Isolation{}
	for name, rungs := range set {
		bad := func(fix, format string, args ...any) error {
			e := glovebox.Errorf(glovebox.CodeInvalid, fix, format, args...)
			e.Op = "tenants"
			return e
		}
		if name == "" || !plain(name) || len(name) > maxTenant {
			return nil, bad("name it in a few printable characters", "%s is no name of a tenant", quote(name))
		}
		if len(rungs) == 0 {
			return nil, bad("list them, such as rungs: [gvisor, microvm]; or leave the tenant out for all",
				"the tenant %s may have no rung at all", quote(name))
		}
		for _, r := range rungs {
			if r.Rank() < 1 {
				return nil, bad(meant("", string(r), isolationWords[1:]), "tenant %s: %s is no rung", quote(name), quote(string(r)))
			}
		}
		all[name] = slices.Clone(rungs)
	}
	return all, nil
}

const maxTenant = 64

var builtInRungs = map[glovebox.Trust]glovebox.Isolation{
	glovebox.TrustTrusted:    glovebox.IsolationProcess,
	glovebox.TrustModel:      glovebox.IsolationProcess,
	glovebox.TrustInfluenced: glovebox.IsolationGVisor,
	glovebox.TrustHostile:    glovebox.IsolationMicroVM,
}

// trustRungs completes the map of trust to rung so that less trust is never a lower rung.
func trustRungs(set map[glovebox.Trust]glovebox.Isolation) (map[glovebox.Trust]glovebox.Isolation, error) {
	for t, r := range set {
		if !t.Valid() {
			return nil, badKey("trust."+string(t), meant("", string(t), trustWords), "%s is no trust", quote(string(t)))
		}
		if r.Rank() < 1 {
			return nil, badKey("trust."+string(t), meant("", string(r), isolationWords[1:]), "%s is no rung", quote(string(r)))
		}
	}
	all := map[glovebox.Trust]glovebox.Isolation{}
	floor, floorOf := glovebox.IsolationProcess, ""
	for _, word := range trustWords {
		t := glovebox.Trust(word)
		r, explicit := set[t]
		switch {
		case explicit && r.Rank() < floor.Rank():
			return nil, badKey("trust."+word, fmt.Sprintf("set it to %s or stronger", floor),
				"%s code would get the %s rung although %s code, which is trusted more, gets %s", word, r, floorOf, floor)
		case !explicit:
			r = builtInRungs[t]
			if r.Rank() < floor.Rank() {
				r = floor
			}
		}
		all[t] = r
		floor, floorOf = r, word
	}
	return all, nil
}
