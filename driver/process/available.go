package process

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"glovebox"
	"glovebox/internal/cgroup"
)

// How long what was found of the machine is taken to be so still: by a look, and by a start that failed, which may be over
// soon.
const (
	lookEvery = 5 * time.Second
	failedFor = time.Second
)

// look is what was found of the machine last.
type look struct {
	mu    sync.Mutex
	until time.Time
	err   error
}

// failed notes what a start found that no look can: that the machine refuses a step of the making of any sandbox.
func (l *look) failed(err error) {
	var known *glovebox.Error
	if !errors.As(err, &known) || known.Code != glovebox.CodeUnavailable || !slices.Contains(ofMachine, known.Op) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.until, l.err = time.Now().Add(failedFor), known
}

// ofMachine are the steps whose refusal is about the machine, whatever was asked for.
var ofMachine = []string{"start init", "build sandbox"}

// Overhead is none: all that a sandbox uses counts within its limit.
func (d *Driver) Overhead() glovebox.Size { return 0 }

// Available tells what the rung lacks of this machine. It starts no process, so that it costs a run next to nothing: what
// only the making of a sandbox shows, such as a container's filter, it tells after one could not be made.
func (d *Driver) Available(ctx context.Context) error {
	l := &d.found
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if now.Before(l.until) {
		return l.err
	}
	err := d.lacks(ctx)
	if ctx.Err() != nil {
		return err // which may be all that it says
	}
	l.until, l.err = now.Add(lookEvery), err
	return err
}

func (d *Driver) lacks(ctx context.Context) error {
	for _, c := range []glovebox.Control{d.initControl(), d.filterControl()} {
		if !c.Available {
			return unavailable(c)
		}
	}
	if err := d.checkFence(); err != nil {
		return err
	}
	if r := d.around.NamespacesOff(); r != nil {
		return r.Because("look at the machine", nil)
	}
	host, err := d.groups.Find(ctx)
	var known *glovebox.Error
	switch {
	case errors.As(err, &known):
		return known
	case err != nil:
		c := noGroups()
		return &glovebox.Error{Code: glovebox.CodeUnavailable, Op: "look at the machine", Err: err, Fix: c.Fix,
			Public: "the process rung has no control groups: " + c.Detail}
	}
	for _, f := range host.Controls(d.groups.Parent(host)) {
		if !f.Available && !slices.Contains(replaceable, "cgroup "+f.Name) {
			return unavailable(control("cgroup "+f.Name, false, f.Detail, f.Fix))
		}
	}
	return nil
}

// noGroups is the control of control groups where there are none.
func noGroups() glovebox.Control {
	return control("cgroups", false, "none are mounted at /sys/fs/cgroup",
		"mount -t cgroup2 cgroup2 /sys/fs/cgroup; in a container: "+cgroup.ContainerFix)
}

// unavailable is the error for a control that is missing.
func unavailable(c glovebox.Control) error {
	e := glovebox.Errorf(glovebox.CodeUnavailable, c.Fix, "the process rung lacks %s: %s", c.Name, c.Detail)
	e.Op = "look at the machine"
	return e
}
