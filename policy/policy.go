// Package policy decides what a run may have: it maps where code came from to the rung that must hold it, fills in and
// bounds the limits, and refuses by name whatever is malformed, not permitted or not built.
//
// It is pure: no file, no clock, no state that changes after [New]. The same principal and request always yield the same
// decision, and every decision says which rule made it and why. A request can only make its own run stricter: no field of
// it switches off what another field or the configuration demands.
package policy

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"glovebox"
)

// Config is what the operator permits. The zero value permits nothing to run, because no rung is available; everything else
// has the default said at its field.
type Config struct {
	// TrustRungs maps where code came from to the lowest rung that may hold it. What is left out is the built-in rung
	// (process for trusted, model and influenced; gvisor for hostile) or, if that is higher, the rung of the next more
	// trusted degree. Less trust never maps to a lower rung.
	TrustRungs map[glovebox.Trust]glovebox.Isolation
	// Available are the rungs that the engine can deliver on this machine.
	Available []glovebox.Isolation
	// Limits are the defaults and ceilings.
	Limits Limits
	// Images are the runtime images that may be named; empty means host alone.
	Images []string
	// InputRoots are the folders beneath which principals other than the owner may name inputs: absolute, clean, not the
	// root folder. Empty means that they may name none.
	InputRoots []string
}

// Policy decides. It is safe for concurrent use and never changes.
type Policy struct {
	rungs     map[glovebox.Trust]glovebox.Isolation
	available []glovebox.Isolation
	limits    Limits
	images    []string
	roots     []string
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
	for _, r := range c.Available {
		if r.Rank() < 1 {
			return nil, badKey("available", "name one of "+list(isolationWords[1:]), "%s is no rung", quote(string(r)))
		}
	}
	for _, root := range c.InputRoots {
		if err := checkRoot(root); err != nil {
			return nil, err
		}
	}
	images := slices.Clone(c.Images)
	if len(images) == 0 {
		images = []string{hostImage}
	}
	return &Policy{rungs, slices.Clone(c.Available), limits, images, slices.Clone(c.InputRoots)}, nil
}

// DefaultLimits are those of a request that names none.
func (p *Policy) DefaultLimits() glovebox.Limits {
	limits, _ := p.limits.grant(glovebox.Limits{}) // nothing that is not asked for is refused
	return limits
}

// Decide says whether who may have req and with what: the rung, the image and every limit. It reads req and changes nothing
// of it; it does not read StdinFrom. A refused decision has a code, a reason and a fix for the caller, and a zero Grant.
func (p *Policy) Decide(who glovebox.Principal, req glovebox.Request) glovebox.Decision {
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
	d := p.rung(req)
	if d.Allow {
		d.Grant.Image, d.Grant.Limits = image, limits
	}
	return d
}

// rung decides the rung from the trust and the isolation that were stated.
func (p *Policy) rung(req glovebox.Request) glovebox.Decision {
	trust, asked := req.Trust, req.Isolation
	if trust == "" {
		trust = glovebox.TrustInfluenced
	}
	if asked == "" {
		asked = glovebox.IsolationAuto
	}
	if !trust.Valid() {
		return *unknownWord("trust", string(trust), trustWords)
	}
	if asked.Rank() < 0 {
		return *unknownWord("isolation", string(asked), isolationWords)
	}
	needed := p.rungs[trust]
	rung, rule := needed, "trust."+string(trust)
	reason := fmt.Sprintf("%s code needs at least the %s rung", trust, needed)
	switch {
	case asked.Rank() > needed.Rank():
		rung, rule = asked, "isolation.raised"
		reason = fmt.Sprintf("the request asked for the %s rung, above the %s rung that %s code needs", asked, needed, trust)
	case asked != glovebox.IsolationAuto && asked != needed:
		reason += fmt.Sprintf("; %s was asked for, which is a floor and lowers nothing", asked)
	}
	if !slices.Contains(p.available, rung) {
		return *refuse("isolation.unavailable", glovebox.CodeUnavailable, p.otherRung(rung),
			"%s, and the %s rung is not available here", reason, rung)
	}
	return glovebox.Decision{Allow: true, Rule: rule, Reason: reason,
		Grant: glovebox.Grant{Isolation: rung, Trust: trust}}
}

// otherRung is the fix for a rung that is missing: a stronger one if there is one. It never advises a weaker one.
func (p *Policy) otherRung(missing glovebox.Isolation) string {
	for _, r := range isolationWords[1:] {
		stronger := glovebox.Isolation(r)
		if stronger.Rank() > missing.Rank() && slices.Contains(p.available, stronger) {
			return fmt.Sprintf("ask for the stronger rung that is available: --isolation %s", stronger)
		}
	}
	return fmt.Sprintf("run it where `glovebox doctor` shows the %s rung as available; "+
		"if you know more about where the code came from, say so with --trust", missing)
}

// image resolves the name of an image.
func (p *Policy) image(name string) (string, *glovebox.Decision) {
	if name == "" {
		name = hostImage
	}
	if slices.Contains(p.images, name) {
		return name, nil
	}
	return "", refuse("image.unknown", glovebox.CodeNotFound, meant("--image", name, p.images),
		"there is no image named %s", quote(name))
}

const hostImage = "host"

var (
	trustWords = []string{string(glovebox.TrustTrusted), string(glovebox.TrustModel), string(glovebox.TrustInfluenced),
		string(glovebox.TrustHostile)}
	isolationWords = []string{string(glovebox.IsolationAuto), string(glovebox.IsolationProcess),
		string(glovebox.IsolationGVisor), string(glovebox.IsolationMicroVM), string(glovebox.IsolationRemote)}
	builtInRungs = map[glovebox.Trust]glovebox.Isolation{
		glovebox.TrustTrusted:    glovebox.IsolationProcess,
		glovebox.TrustModel:      glovebox.IsolationProcess,
		glovebox.TrustInfluenced: glovebox.IsolationProcess,
		glovebox.TrustHostile:    glovebox.IsolationGVisor,
	}
)

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
