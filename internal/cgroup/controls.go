package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"glovebox"
)

// Finding is what this machine can do about one limit, for the calling user.
type Finding struct {
	Name      string // "memory", "swap", "pids", "cpu", "cpuset" or "kill"
	Available bool
	Detail    string // where it is, or why it is not there
	Fix       string // commands that mend it; empty when available
}

// Controls looks at what New would find under parent, without making anything.
func (h *Host) Controls(parent string) []Finding {
	if err := checkParent(parent); err != nil {
		return []Finding{{"memory", false, "bad parent for control groups", "use an absolute, clean path such as /glovebox"}}
	}
	var all []Finding
	for _, c := range []string{"memory", "pids", "cpu", "cpuset"} {
		p, ok := h.places[c]
		all = append(all, h.finding(c, p, ok, parent))
		if c == "memory" {
			all = append(all, h.swapFinding(all[0], parent))
		}
	}
	p, ok := h.killer()
	return append(all, h.finding("kill", p, ok, parent))
}

func (h *Host) finding(name string, p place, there bool, parent string) Finding {
	if !there {
		return Finding{name, false, "no hierarchy has the " + name + " controller", h.missingFix(name)}
	}
	version := "version 1"
	if p.v2 {
		version = "version 2"
	}
	if err := h.usable(name, p, parent); err != nil {
		fix := h.fixOf(err, parent)
		if fix == ScopeFix && name == "cpuset" {
			fix = cpusetFix
		}
		return Finding{name, false, version + ": " + err.Error(), fix}
	}
	return Finding{name, true, version, ""}
}

// usable tells whether this user can make groups with the controller under parent.
func (h *Host) usable(name string, p place, parent string) error {
	at, exists := p.dir+parent, true
	for len(at) > len(p.dir) {
		if _, err := os.Stat(at); err == nil {
			break
		} else if !errors.Is(err, fs.ErrNotExist) {
			return reason(err)
		}
		at, exists = filepath.Dir(at), false
	}
	if err := writable(at); err != nil {
		return reason(err)
	}
	if !p.v2 || name == "kill" {
		return nil
	}
	if enabled, err := read(at, "cgroup.subtree_control"); err == nil && slices.Contains(strings.Fields(enabled), name) {
		return nil
	}
	offered, err := read(at, "cgroup.controllers")
	if err != nil {
		return reason(err)
	}
	if !slices.Contains(strings.Fields(offered), name) {
		return errors.New("the controller is not handed down to this place")
	}
	if exists || at == p.dir {
		return nil
	}
	// The parent's own folder is missing: the one above must not have processes of its own, but ours.
	if n, err := members(at); err == nil && (len(n) > 1 || len(n) == 1 && n[0] != os.Getpid()) {
		return errors.New("processes of others are in the group above")
	}
	return nil
}

// reason shortens an error to what the kernel said, without a path.
func reason(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}

func (h *Host) swapFinding(memory Finding, parent string) Finding {
	switch {
	case !memory.Available:
		return Finding{"swap", false, "needs the memory controller", memory.Fix}
	case !h.swapping():
		return Finding{"swap", true, "the machine has no swap", ""}
	}
	p := h.places["memory"]
	file := "memory.memsw.limit_in_bytes"
	if p.v2 {
		file = "memory.swap.max"
	}
	// The top of version 2 has no such file, so any group below tells; the machine always has one.
	for _, below := range []string{parent, "", h.own, "/init.scope", "/system.slice"} {
		if _, err := os.Stat(filepath.Join(p.dir+below, file)); err == nil {
			return Finding{"swap", true, "limited", ""}
		}
	}
	return Finding{"swap", false, "the machine swaps and the kernel does not count it", swapFix}
}

const swapFix = "sudo swapoff -a, or start the kernel with swapaccount=1"

func (h *Host) missingFix(name string) string {
	if h.Mode() == "v2" {
		return "boot with cgroup_no_v1=all and without cgroup_disable=" + name + "; in a container, have it given the controller"
	}
	return "mount the controller: mount -t cgroup -o " + name + " cgroup /sys/fs/cgroup/" + name
}

// ContainerFix lets a container have control groups of its own to write.
const ContainerFix = "docker run --privileged, or --cgroupns=host -v /sys/fs/cgroup:/sys/fs/cgroup:rw"

// ScopeFix is the command by which an ordinary user of systemd gets control groups of version 2.
const ScopeFix = "systemd-run --user --scope -p Delegate=yes glovebox …"

// cpusetFix has systemd hand users the controller that it keeps from them by default.
const cpusetFix = "sudo mkdir -p /etc/systemd/system/user@.service.d && " +
	`printf '[Service]\nDelegate=cpu cpuset io memory pids\n' | ` +
	"sudo tee /etc/systemd/system/user@.service.d/delegate.conf && sudo systemctl daemon-reload, then log in anew"

// fixOf mends why groups cannot be made.
func (h *Host) fixOf(err error, parent string) string {
	if !errors.Is(err, syscall.EROFS) {
		return h.fix(parent)
	}
	var mounts []string
	for _, p := range h.hierarchies() {
		mounts = append(mounts, "sudo mount -o remount,rw "+p.dir)
	}
	return strings.Join(mounts, " && ") + "; in a container: " + ContainerFix
}

// fix is what gives this user a parent to work in.
func (h *Host) fix(parent string) string {
	if os.Geteuid() == 0 {
		return "run where the group " + parent + " is free of processes, or name another with drivers.process.cgroup in " +
			"glovebox.yaml"
	}
	if h.Mode() == "v2" {
		return ScopeFix
	}
	var dirs []string
	for _, p := range h.hierarchies() {
		dirs = append(dirs, p.dir+parent)
	}
	list := strings.Join(dirs, " ")
	// What a cpuset starts without is filled in by whoever makes the first group in it.
	return fmt.Sprintf("sudo mkdir -p %s && sudo chown -R %d:%d %s", list, os.Geteuid(), os.Getegid(), list)
}

// complete fails unless there is everything that no run goes without.
func (h *Host) complete(parent string) error {
	for _, c := range indispensable() {
		if _, ok := h.places[c]; !ok {
			return glovebox.Errorf(glovebox.CodeUnavailable, h.missingFix(c), "this machine has no %s controller", c)
		}
	}
	if _, ok := h.killer(); !ok {
		return glovebox.Errorf(glovebox.CodeUnavailable, h.missingFix("freezer"),
			"this machine has nothing to kill a group with")
	}
	return nil
}

// explain makes of a failure to set up a group what the caller may know and do about it.
func (h *Host) explain(parent string, err error) error {
	e := &glovebox.Error{Code: glovebox.CodeUnavailable, Op: "make control group", Err: err, Fix: h.fix(parent)}
	switch {
	case errors.Is(err, syscall.EEXIST): // not fs.ErrExist, which a folder that is not empty is too
		e.Code, e.Public, e.Fix = glovebox.CodeConflict, "a control group of this name exists", "use another name"
	case errors.Is(err, syscall.EROFS):
		e.Public, e.Fix = "the control groups are read-only here, as containers have them", h.fixOf(err, parent)
	case errors.Is(err, fs.ErrPermission):
		e.Public = "this user may not make control groups"
	case errors.Is(err, syscall.EBUSY):
		e.Public = "the parent control group has processes of its own"
	case errors.Is(err, fs.ErrNotExist):
		e.Public = "a control group lacks a file that limits need"
		if strings.Contains(err.Error(), "swap") || strings.Contains(err.Error(), "memsw") {
			e.Public, e.Fix = "the machine swaps and the kernel does not count it for control groups", swapFix
		}
	case errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.ENOMEM):
		e.Code, e.Public, e.Fix = glovebox.CodeExhausted, "no room for another control group", "wait for runs to end"
	default:
		return glovebox.Internal("make control group", err)
	}
	return e
}
