// Package policy decides what a run may have: it maps where code came from to the rung that must hold it, fills in and
// bounds the limits, and refuses by name whatever is malformed, not permitted or not built.
//
// It is pure: no file, no clock, no state that changes after [New]. The same principal and request, and the same answers of
// the machine about its rungs, always yield the same decision, and every decision says which rule made it and why. A request
// can only make its own run stricter: no field of it switches off what another field or the configuration demands.
package policy

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"glovebox"
	"glovebox/internal/spelling"
)

// Config is what the operator permits. The zero value has the default said at each field.
type Config struct {
	// TrustRungs maps where code came from to the lowest rung that may hold it. What is left out is the built-in rung
	// (process for trusted and model, gvisor for influenced, microvm for hostile) or, if that is higher, the rung of the next
	// more trusted degree. Less trust never maps to a lower rung.
	TrustRungs map[glovebox.Trust]glovebox.Isolation
	// Remote is the least that another Glovebox must deliver where a run goes to one (the rung remote), whatever the run's
	// trust needs. Empty: what its trust needs.
	Remote glovebox.Isolation
	// Tenants maps a tenant to the rungs that it may have; one that is not in it may have all.
	Tenants map[string][]glovebox.Isolation
	// OnlyNamed are rungs that only a request that names them gets, such as an emulated machine: what makes them here is no
	// boundary that trust could count on.
	OnlyNamed []glovebox.Isolation
	// Limits are the defaults and ceilings.
	Limits Limits
	// Egress is what may leave.
	Egress Egress
	// Secrets are those that may be lent, and TenantSecrets the names of those that a tenant may have; one that is not in it
	// may have all.
	Secrets       []Secret
	TenantSecrets map[string][]string
	// Actions are the names of those that a request may ask for.
	Actions []string
	// Images are the runtime images that may be named besides host; empty means all that there are.
	Images []string
	// InputRoots are the folders beneath which principals other than the owner may name inputs: absolute, clean, not the
	// root folder. Empty means that they may name none.
	InputRoots []string
}

// Policy decides. It is safe for concurrent use and never changes.
type Policy struct {
	rungs   map[glovebox.Trust]glovebox.Isolation
	remote  glovebox.Isolation
	tenants map[string][]glovebox.Isolation
	named   []glovebox.Isolation // only to who names them
	limits  Limits
	images  []string // that may be named; none: all
	there   []string // besides host
	roots   []string
	egress  []glovebox.EgressRule
	private []string // networks of what the owner types
	// egressOf are the rules of tenants that have their own.
	egressOf map[string][]glovebox.EgressRule
	secrets  []Secret
	lent     map[string][]string // the names of secrets that a tenant may have; not there: all
	actions  []string            // that may be asked for
}

// New checks c and makes a Policy of it; it keeps no reference to c's maps and slices. A configuration that contradicts
// itself yields a *glovebox.Error with code invalid whose Op is the configuration key at fault, such as
// policy.limits.ceiling.wall.
func New(c Config) (*Policy, error) {
	rungs, err := trustRungs(c.TrustRungs)
	if err != nil {
		return nil, err
	}
	limits, err := c.Limits.complete()
	if err != nil {
		return nil, err
	}
	if err := checkRemote(c.Remote); err != nil {
		return nil, err
	}
	tenants, err := tenantRungs(c.Tenants)
	if err != nil {
		return nil, err
	}
	for _, root := range c.InputRoots {
		if err := checkRoot(root); err != nil {
			return nil, err
		}
	}
	rules, rulesOf, err := c.Egress.complete()
	if err != nil {
		return nil, err
	}
	if err := checkSecrets(c.Secrets, c.TenantSecrets); err != nil {
		return nil, err
	}
	return &Policy{rungs: rungs, remote: c.Remote, tenants: tenants, limits: limits, named: slices.Clone(c.OnlyNamed),
		images: slices.Clone(c.Images), roots: slices.Clone(c.InputRoots), egress: rules,
		private: slices.Clone(c.Egress.AllowPrivate), egressOf: rulesOf, secrets: slices.Clone(c.Secrets),
		lent: maps.Clone(c.TenantSecrets), actions: slices.Clone(c.Actions)}, nil
}

// WithImages is the same policy where there are images of these names besides host. Without it there is host alone.
func (p *Policy) WithImages(names []string) *Policy {
	more := *p
	more.there = names
	return &more
}

// DefaultLimits are those of a request that names none.
func (p *Policy) DefaultLimits() glovebox.Limits {
	limits, _ := p.limits.grant(glovebox.Limits{}) // nothing that is not asked for is refused
	return limits
}

// Ceiling is the most that a request may ask for.
func (p *Policy) Ceiling() glovebox.Limits { return p.limits.Ceiling }

// Needs is the lowest rung that may hold code of a degree of trust; empty where there is no such degree.
func (p *Policy) Needs(trust glovebox.Trust) glovebox.Isolation { return p.rungs[trust] }

// Decide says whether who may have req and with what: the rung, the image and every limit. It reads req and changes nothing
// of it; it does not read StdinFrom. can is asked which rungs there are. A refused decision has a code, a reason and a fix
// for the caller, and a zero Grant. A decision says what rung was asked for where the request was otherwise in order.
func (p *Policy) Decide(who glovebox.Principal, req glovebox.Request, can Machine) glovebox.Decision {
	if who.Tenant == "" || who.Name == "" {
		return *refuse("principal.none", glovebox.CodeDenied,
			"authenticate: the principal comes from the door, never from the request", "nobody is asking")
	}
	for _, check := range []func(*glovebox.Request) *glovebox.Decision{
		checkProgram, checkCodeName, checkArguments, checkEnvironment, checkStdin, checkInputs, checkBuilt,
	} {
		if d := check(&req); d != nil {
			return *d
		}
	}
	image, refused := p.image(req.Image)
	if refused != nil {
		return *refused
	}
	for _, in := range req.Inputs {
		if in.Path == "" {
			continue
		}
		if _, refused := p.place(who, in); refused != nil {
			return *refused
		}
	}
	limits, refused := p.limits.grant(req.Limits)
	if refused != nil {
		return *refused
	}
	leaves, refused := p.grantEgress(who, req.Allow)
	if refused != nil {
		return *refused
	}
	lent, refused := p.grantSecrets(who, req.Secrets, leaves)
	if refused != nil {
		return *refused
	}
	actions, refused := p.grantActions(req.Actions)
	if refused != nil {
		return *refused
	}
	d := p.rung(who.Tenant, req, can)
	if d.Allow {
		d.Grant.Image, d.Grant.Limits, d.Grant.Egress, d.Grant.Secrets = image, limits, leaves, lent
		d.Grant.Actions = actions
	}
	return d
}

// image resolves the name of an image.
func (p *Policy) image(name string) (string, *glovebox.Decision) {
	if name == "" {
		name = hostImage
	}
	switch {
	case name == hostImage:
		return name, nil
	case !slices.Contains(p.there, name):
		known := append([]string{hostImage}, p.there...)
		fix := meant("--image", name, known)
		if spelling.Nearest(name, known) == "" {
			fix += "; `glovebox image ls` lists them, `glovebox image build` and `glovebox image import` make one"
		}
		return "", refuse("image.unknown", glovebox.CodeNotFound, fix, "there is no image named %s", quote(name))
	case len(p.images) > 0 && !slices.Contains(p.images, name):
		return "", refuse("image.denied", glovebox.CodeDenied, "add "+name+" to images.allow in glovebox.yaml",
			"the image %s may not be used: images.allow does not name it", name)
	}
	return name, nil
}

const hostImage = "host"

var (
	trustWords = []string{string(glovebox.TrustTrusted), string(glovebox.TrustModel), string(glovebox.TrustInfluenced),
		string(glovebox.TrustHostile)}
	isolationWords = []string{string(glovebox.IsolationAuto), string(glovebox.IsolationProcess),
		string(glovebox.IsolationGVisor), string(glovebox.IsolationMicroVM), string(glovebox.IsolationRemote)}
)

// checkRoot refuses a spelling of an input root that would not mean what it seems to.
func checkRoot(root string) error {
	const fix = "name an absolute folder as it is on disk, without ., .., a trailing slash, variables or patterns"
	switch {
	case !path.IsAbs(root) || path.Clean(root) != root || strings.ContainsAny(root, "*?$\x00"):
		return badKey("input_roots", fix, "%s is not a plain absolute path", quote(root))
	case root == "/":
		return badKey("input_roots", fix, "the root folder cannot be an input root: it would show the whole machine")
	}
	return nil
}

// badKey makes the error for a key of the configuration beneath policy.
func badKey(key, fix, format string, args ...any) error {
	e := glovebox.Errorf(glovebox.CodeInvalid, fix, format, args...)
	e.Op = "policy." + key
	return e
}

// refuse makes a decision that refuses.
func refuse(rule string, code glovebox.Code, fix, format string, args ...any) *glovebox.Decision {
	return &glovebox.Decision{Rule: rule, Code: code, Reason: fmt.Sprintf(format, args...), Fix: fix}
}

// invalid makes a decision that refuses a malformed request.
func invalid(fix, format string, args ...any) *glovebox.Decision {
	return refuse("request.invalid", glovebox.CodeInvalid, fix, format, args...)
}
