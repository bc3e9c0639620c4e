package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"glovebox"
)

// Remote is another Glovebox, which runs what is granted the rung of that name.
type Remote struct {
	// Service asks it. Nil: there is none. The engine closes it.
	Service glovebox.Service
	// Name says where it is, in results and errors, such as unix:/run/other/sock.
	Name string
}

const (
	otherLook  = 5 * time.Second // how long what it said of its rungs is taken to be so still
	otherRetry = time.Second     // the same where it said nothing
	otherWait  = 20 * time.Second

	lateBegin = 10 * time.Minute // in which a run there has begun, its wait for memory included
	lateEnd   = time.Minute      // beyond its wall clock limit, in which it has ended there

	maxThere = 256 // runs at a time that are there
)

// other is what an engine knows of another Glovebox. It is safe for concurrent use.
type other struct {
	Remote
	runs chan struct{} // a token for each run that is there

	begin, end time.Duration // lateBegin and lateEnd, but in tests

	turn chan struct{} // whoever looks holds it; it guards the rest

	until time.Time
	rungs []glovebox.Isolation // that it can deliver itself, the lowest first
	err   error
}

func newOther(r Remote) *other {
	return &other{Remote: r, runs: make(chan struct{}, maxThere), turn: make(chan struct{}, 1), begin: lateBegin, end: lateEnd}
}

// pick is the lowest rung that the other can deliver now and that is no lower than at. It asks for no run: nothing of a
// request is near it by then.
func (o *other) pick(ctx context.Context, at glovebox.Isolation) (glovebox.Isolation, error) {
	if o.Service == nil {
		return "", glovebox.Errorf(glovebox.CodeUnavailable, "set drivers.remote in glovebox.yaml: {url: unix:/path}",
			"no other Glovebox is configured")
	}
	select {
	case o.turn <- struct{}{}:
		defer func() { <-o.turn }()
	case <-ctx.Done():
		return "", o.silent()
	}
	if now := time.Now(); !now.Before(o.until) {
		o.rungs, o.err = o.look(ctx)
		if ctx.Err() != nil {
			return "", o.silent() // and nothing was learnt
		}
		o.until = time.Now().Add(otherLook)
		if o.err != nil {
			o.until = time.Now().Add(otherRetry)
		}
	}
	if o.err != nil {
		return "", o.err
	}
	for _, r := range o.rungs {
		if r.Rank() >= at.Rank() {
			return r, nil
		}
	}
	fix := fmt.Sprintf("`glovebox doctor --server %s` tells what it lacks", o.Name)
	return "", glovebox.Errorf(glovebox.CodeUnavailable, fix, "the other Glovebox at %s has no rung that is %s or stronger",
		o.Name, at)
}

// silent says that the other took too long to say what it has.
func (o *other) silent() error {
	return glovebox.Errorf(glovebox.CodeUnavailable, "see what is wrong there, or run it on a rung of this machine",
		"the other Glovebox at %s did not say in time what it can deliver", o.Name)
}

// look asks the other which rungs its machine has.
func (o *other) look(ctx context.Context) (rungs []glovebox.Isolation, err error) {
	ctx, stop := context.WithTimeout(ctx, otherWait)
	defer stop()
	all, err := o.Service.Rungs(ctx)
	if err != nil {
		var known *glovebox.Error
		if !errors.As(err, &known) {
			known = glovebox.Internal("ask the other Glovebox", err).(*glovebox.Error)
		}
		return nil, &glovebox.Error{Code: glovebox.CodeUnavailable, Op: "look at the other Glovebox", Err: err,
			Fix: sentence(known.Fix), Public: fmt.Sprintf("the other Glovebox at %s does not answer: %s", o.Name,
				sentence(known.Public))}
	}
	for _, r := range all {
		if r.Available && r.Isolation.Rank() > 0 && r.Isolation != glovebox.IsolationRemote {
			rungs = append(rungs, r.Isolation)
		}
	}
	slices.SortFunc(rungs, func(a, b glovebox.Isolation) int { return a.Rank() - b.Rank() })
	return rungs, nil
}

// control is what doctor says of it.
func (o *other) control(ctx context.Context) glovebox.Control {
	c := glovebox.Control{Isolation: glovebox.IsolationRemote, Name: "another glovebox", Required: true}
	_, err := o.pick(ctx, glovebox.IsolationProcess)
	var known *glovebox.Error
	switch {
	case errors.As(err, &known):
		c.Detail, c.Fix = known.Public, known.Fix
	case err != nil:
		c.Detail, c.Fix = "it was not asked to the end", "ask again"
	default:
		c.Available, c.Detail = true, o.Name
	}
	return c
}
