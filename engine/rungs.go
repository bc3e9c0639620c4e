package engine

import (
	"context"
	"fmt"
	"slices"
	"time"

	"glovebox"
	"glovebox/policy"
)

// decideLimit bounds what the machine, or another, may take to say which rungs there are. Usually that is known.
const decideLimit = 30 * time.Second

// decide asks the policy, and for it the machine. A run that is cancelled meanwhile is decided all the same: it ends as one
// that was cancelled, and not as refused.
func (e *Engine) decide(ctx context.Context, who glovebox.Principal, req glovebox.Request) glovebox.Decision {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), decideLimit)
	defer stop()
	p := e.policy()
	if req.Image != "" && req.Image != hostImage {
		names, err := e.stored.store.Names()
		if err != nil {
			e.cfg.Log.Error("list the images", "err", err)
		}
		p = p.WithImages(names)
	}
	return p.Decide(who, req, e.machine(ctx))
}

// machine tells the policy which rungs can be had now.
func (e *Engine) machine(ctx context.Context) policy.Machine {
	return func(rung, at glovebox.Isolation) error {
		if rung == glovebox.IsolationRemote {
			_, err := e.other.pick(ctx, at)
			return err
		}
		d, ok := e.drivers[rung]
		if !ok {
			return absent(rung)
		}
		return d.Available(ctx)
	}
}

// Rungs implements glovebox.Admin. The remote rung is left out: it is another machine's.
func (e *Engine) Rungs(ctx context.Context) ([]glovebox.Rung, error) {
	ctx, leave, err := e.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	can, list := e.machine(ctx), []glovebox.Rung{}
	for _, rung := range []glovebox.Isolation{glovebox.IsolationProcess, glovebox.IsolationGVisor, glovebox.IsolationMicroVM} {
		shown := glovebox.Rung{Isolation: rung, Available: true, OverheadBytes: int64(e.overhead(rung))}
		err := can(rung, rung)
		if err == nil && slices.Contains(e.cfg.Policy.OnlyNamed, rung) {
			err = policy.OnlyNamed(rung) // whoever asks from elsewhere counts on it
		}
		if err != nil {
			known := publicError(err).(*glovebox.Error)
			shown.Available, shown.Detail, shown.Fix = false, known.Public, known.Fix
		}
		list = append(list, shown)
	}
	return list, nil
}

// overhead is what a sandbox of a rung takes beside its limit.
func (e *Engine) overhead(rung glovebox.Isolation) glovebox.Size {
	d, ok := e.drivers[rung]
	if !ok {
		return 0
	}
	return d.Overhead()
}

// extra is what the run takes beside its limit: its sandbox on the rung that it was granted, and its network if it has one.
func (r *run) extra() glovebox.Size {
	return r.overhead(r.decision.Grant.Isolation) + netdMemory(r.decision.Grant)
}

// absent says that this engine has no driver for a rung.
func absent(rung glovebox.Isolation) error {
	return glovebox.Errorf(glovebox.CodeUnavailable, absentFix(rung), "this engine has no %s rung", rung)
}

func absentFix(rung glovebox.Isolation) string {
	return fmt.Sprintf("run it where `glovebox doctor` shows the %s rung as available", rung)
}

// self asks for the engine itself.
func self(name string) glovebox.Principal {
	return glovebox.Principal{Tenant: home, Name: name, Owner: true}
}
