package gvisor

import (
	"cmp"
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"glovebox"
	"glovebox/internal/cgroup"
	"glovebox/internal/hostside"
)

// found is what the machine had when it was looked at. It is safe for concurrent use.
type found struct {
	mu  sync.Mutex
	at  time.Time // when that was; zero: never
	err error
}

// lookAgain is how long is believed what was found.
const lookAgain = 5 * time.Second

// Available is nil where the rung can be had, as far as a look tells that starts nothing.
func (d *Driver) Available(context.Context) error {
	d.found.mu.Lock()
	defer d.found.mu.Unlock()
	if d.found.at.IsZero() || time.Since(d.found.at) >= lookAgain {
		d.found.err, d.found.at = nil, time.Now()
		for _, c := range d.look() {
			if !c.Available {
				d.found.err = glovebox.Errorf(glovebox.CodeUnavailable, c.Fix, "the gvisor rung lacks %s: %s", c.Name, c.Detail)
				break
			}
		}
	}
	return d.found.err
}

// look examines what a look tells that starts nothing.
func (d *Driver) look() []glovebox.Control {
	return []glovebox.Control{d.programControl("runsc", "drivers.gvisor.runsc", d.cfg.Runsc),
		d.programControl("glovebox-init", hostside.InitKey, d.cfg.Init), d.idControl()}
}

// Controls examines the machine for each control of the rung.
func (d *Driver) Controls(ctx context.Context) []glovebox.Control {
	all := d.look()
	host, err := d.groups.Find(ctx)
	var known *glovebox.Error
	switch {
	case errors.As(err, &known):
		all = append(all, control("cgroups", false, known.Public, known.Fix))
	case err != nil:
		all = append(all, control("cgroups", false, "none are mounted at /sys/fs/cgroup",
			"mount -t cgroup2 cgroup2 /sys/fs/cgroup; in a container: "+cgroup.ContainerFix))
	default:
		for _, f := range host.Controls(d.groups.Parent(host)) {
			c := control("cgroup "+f.Name, f.Available, f.Detail, f.Fix)
			c.Required = f.Name != "cpuset" // in whose place there is affinity
			all = append(all, c)
		}
	}
	for i := range all {
		all[i].Required = all[i].Required || !strings.HasPrefix(all[i].Name, "cgroup ")
	}
	all = append(all, d.networkControl())
	trial := d.trialControl(ctx)
	trial.Required = true
	return append(all, trial)
}

// networkControl tells whether sandboxes can have a network. Without it, only runs that allow hosts are refused.
func (d *Driver) networkControl() glovebox.Control {
	if r := hostside.NetworkRefusal(d.cfg.NetworkDevice); r != nil {
		return control("network device", false, r.Public+"; runs that allow hosts are refused", r.Fix)
	}
	return control("network device", true, d.cfg.NetworkDevice, "")
}

func control(name string, available bool, detail, fix string) glovebox.Control {
	if available {
		fix = ""
	}
	return glovebox.Control{Isolation: glovebox.IsolationGVisor, Name: name, Available: available, Detail: detail, Fix: fix}
}

func (d *Driver) programControl(name, key, path string) glovebox.Control {
	if err := unix.Access(path, unix.X_OK); err != nil {
		r := hostside.Missing(name, key, path)
		return control(name, false, r.Public, r.Fix)
	}
	if name == "runsc" {
		version := readVersion(path)
		return control(name, version != "", cmp.Or(version, path+" was not built from gVisor"),
			"make build builds it; "+key+" in glovebox.yaml names another place")
	}
	return control(name, true, "found", "")
}

// idControl is about ids of the sandbox's own: without them runsc cannot give the program another id than its own.
func (d *Driver) idControl() glovebox.Control {
	const name = "own user ids"
	if os.Getuid() == 0 {
		if r := d.unmapped(); r != nil {
			return control(name, false, r.Public, r.Fix)
		}
		return control(name, true, fmt.Sprintf("%d blocks from %d", d.cfg.IDs.Count/hostside.BlockSize, d.cfg.IDs.Start), "")
	}
	uid, account := hostside.Account()
	pool, ok := hostside.SystemSubordinates().Own(uid, account)
	helper := hostside.FindProgram("newuidmap") != ""
	switch {
	case !helper:
		return control(name, false, "newuidmap is missing", hostside.SystemSubordinates().Fix(uid, account, ok, helper))
	case !ok:
		return control(name, false, "this user has no subordinate ids",
			hostside.SystemSubordinates().Fix(uid, account, ok, helper))
	}
	return control(name, true, fmt.Sprintf("%d blocks of subordinate ids", pool.Count/hostside.BlockSize), "")
}

// trialControl has a sandbox made where nothing is known to be missing.
func (d *Driver) trialControl(ctx context.Context) glovebox.Control {
	if err := d.Available(ctx); err != nil {
		return control(hostside.TrialName, false, "what it needs is missing", "mend what is missing above")
	}
	return hostside.Trial(ctx, d)
}

// readVersion tells which gVisor a runsc was built from; empty where it was not, or not by Go's own tools.
func readVersion(path string) string {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return ""
	}
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path == "gvisor.dev/gvisor" {
			return "gVisor " + m.Version
		}
	}
	return ""
}
