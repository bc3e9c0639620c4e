package engine

import (
	"context"
	"fmt"
	"sync"

	"glovebox"
	"glovebox/internal/egress"
	"glovebox/policy"
)

// policies is the policy as it is now, and what it has let out.
type policies struct {
	changing sync.Mutex // one change at a time

	mu   sync.Mutex
	now  *policy.Policy
	ways map[*way]struct{} // open ones
}

// policy is what runs are decided by now.
func (e *Engine) policy() *policy.Policy {
	e.rules.mu.Lock()
	defer e.rules.mu.Unlock()
	return e.rules.now
}

// SetPolicy changes the policy while runs are live. Runs that begin from now on are decided by it. What leaves live
// sandboxes is judged by it at once: of the rules that a run was granted it keeps those that the new policy has too, and
// connections beyond that end within a second; none of it gets more. All else that a live run was granted it keeps. It is
// safe for concurrent use. An error is one of policy.New, and leaves the policy as it was.
func (e *Engine) SetPolicy(c policy.Config) error {
	p, err := policy.New(c)
	if err != nil {
		return err
	}
	e.rules.changing.Lock()
	defer e.rules.changing.Unlock()
	e.rules.change(p)
	if w := e.ready(); w != nil {
		w.change(p.DefaultLimits())
	}
	return nil
}

func (r *policies) change(p *policy.Policy) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now = p
	for w := range r.ways {
		w.rejudge(p)
	}
}

// opened makes a way one whose rules change with the policy. A change since its run was decided holds for it as well.
func (w *way) opened() {
	r := &w.run.rules
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ways == nil {
		r.ways = map[*way]struct{}{}
	}
	r.ways[w] = struct{}{}
	w.rejudge(r.now)
}

// ended is the end of that.
func (w *way) ended() {
	r := &w.run.rules
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.ways, w)
}

// rejudge gives a way what p leaves of its run's grant. Rules that do not compile, which a policy's do, let nothing pass.
func (w *way) rejudge(p *policy.Policy) {
	left := p.StillLeaves(w.run.who, w.run.req.Allow, w.run.decision.Grant.Egress)
	rules, err := egress.Compile(left)
	if err != nil {
		rules, left = nil, nil
	}
	w.attachment.Replace(rules)
	if w.lent == nil {
		return
	}
	// Nothing reaches the broker but what the gateway lets through, so that nobody has to wait for it to judge alike.
	w.serving.Go(func() {
		ctx, stop := context.WithTimeout(context.Background(), wayLimit)
		defer stop()
		if err := w.lent.Replace(ctx, left); err != nil {
			w.run.cfg.Log.Error("tell the broker of a change of the policy", "id", w.run.id, "err", err)
		}
	})
}

// ruleControl tells of rules of egress that deserve a look. None is wrong.
func ruleControl(p *policy.Policy) glovebox.Control {
	c := glovebox.Control{Name: "egress: rules", Available: true, Detail: fmt.Sprintf("%d", len(p.EgressRules("")))}
	if w := p.Warnings(); len(w) > 0 {
		c.Detail = fmt.Sprintf("%s, %d to look at (`glovebox policy show`): %s", c.Detail, len(w), w[0])
	}
	return c
}
