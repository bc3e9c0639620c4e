package cgroup

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// prepare makes the parent ready in every hierarchy, once: groups in it can then have limits.
func (h *Host) prepare(parent string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.prepared[parent] {
		return nil
	}
	for _, p := range h.hierarchies() {
		if err := h.prepareIn(p, parent); err != nil {
			return fmt.Errorf("prepare control groups: %w", err)
		}
	}
	h.prepared[parent] = true
	return nil
}

func (h *Host) forget(parent string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.prepared, parent)
}

// prepareIn walks from the top of a hierarchy to the parent. A version 1 cpuset starts empty and takes its values from
// above; in version 2 each folder must hand the controllers down. A folder above the parent that belongs to others hands
// down what it does: what a run cannot go without and does not get is missed when its limit is set.
func (h *Host) prepareIn(p place, parent string) error {
	at := p.dir
	for _, step := range append([]string{""}, strings.Split(parent[1:], "/")...) {
		above := at
		at = filepath.Join(at, step)
		if step != "" {
			if err := os.Mkdir(at, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
		}
		if p.v2 {
			err := h.handDown(at)
			if others := errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS); others && at != p.dir+parent {
				err = nil
			}
			if err != nil {
				return err
			}
		} else if step != "" && h.places["cpuset"] == p {
			if err := inherit(above, at); err != nil {
				return err
			}
		}
	}
	return nil
}

// inherit fills an empty version 1 cpuset.
func inherit(above, at string) error {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		if has, err := read(at, file); err != nil {
			return err
		} else if has != "" {
			continue
		}
		value, err := read(above, file)
		if err != nil {
			return err
		}
		if err := write(at, file, value); err != nil {
			return err
		}
	}
	return nil
}

// handDown lets the children of a version 2 group have the controllers that a run uses. Only what is missing is written, so
// that folders above a delegated one need not be writable.
func (h *Host) handDown(dir string) error {
	if !slices.ContainsFunc(controllers(), func(c string) bool { return h.places[c] == *h.unified }) {
		return nil // they are all of version 1
	}
	enabled, err := read(dir, "cgroup.subtree_control")
	if err != nil {
		return err
	}
	offered, err := read(dir, "cgroup.controllers")
	if err != nil {
		return err
	}
	var missing []string
	for _, c := range controllers() {
		here := h.places[c] == *h.unified && slices.Contains(strings.Fields(offered), c)
		if here && !slices.Contains(strings.Fields(enabled), c) {
			missing = append(missing, "+"+c)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	err = write(dir, "cgroup.subtree_control", strings.Join(missing, " "))
	if errors.Is(err, syscall.EBUSY) {
		// A group that hands controllers down has no processes of its own. If all that is in the way is this process, it
		// steps aside; those of others are not touched.
		if err := stepAside(dir); err != nil {
			return err
		}
		err = write(dir, "cgroup.subtree_control", strings.Join(missing, " "))
	}
	return err
}

// supervisorLeaf is where a supervisor is that stepped aside.
const supervisorLeaf = "glovebox-supervisor"

// stepAside moves this process from a group into a leaf of it.
func stepAside(dir string) error {
	members, err := read(dir, "cgroup.procs")
	if err != nil {
		return err
	}
	if self := strconv.Itoa(os.Getpid()); members != self {
		return fmt.Errorf("processes of others are in the control group: %w", syscall.EBUSY)
	}
	leaf := filepath.Join(dir, supervisorLeaf)
	if err := os.Mkdir(leaf, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return write(leaf, "cgroup.procs", "0")
}

// TooFewCPUsError says that a group was to have more CPUs than its parent has.
type TooFewCPUsError struct{ Asked, Allowed int }

func (e *TooFewCPUsError) Error() string {
	return fmt.Sprintf("there are %d CPUs for a group that is to have %d", e.Allowed, e.Asked)
}

// limitCPUs keeps the group to n CPUs. Without the controller it only chooses them. A parent that has fewer is a
// *TooFewCPUsError.
func (g *Group) limitCPUs(n int) error {
	p, controlled := g.cpuset()
	allowed, err := g.host.allowed(p, controlled, g.parent)
	if err != nil {
		return err
	}
	if n > len(allowed) {
		return &TooFewCPUsError{n, len(allowed)}
	}
	if !controlled {
		g.cpus = g.host.take(allowed, n, g.dirs[g.order[0]])
		return nil
	}
	if n < len(allowed) {
		g.cpus = g.host.take(allowed, n, g.dirs[p])
	} else if p.v2 {
		return nil // empty means the parent's
	}
	if !p.v2 {
		mems, err := read(p.dir+g.parent, "cpuset.mems")
		if err != nil {
			return err
		}
		if err := write(g.dirs[p], "cpuset.mems", mems); err != nil {
			return err
		}
		if g.cpus == nil {
			return write(g.dirs[p], "cpuset.cpus", formatCPUs(allowed))
		}
	}
	return write(g.dirs[p], "cpuset.cpus", formatCPUs(g.cpus))
}

// allowed are the CPUs that groups in parent can have.
func (h *Host) allowed(p place, controlled bool, parent string) ([]int, error) {
	if controlled {
		file := "cpuset.cpus"
		if p.v2 {
			file = "cpuset.cpus.effective"
		}
		list, err := read(p.dir+parent, file)
		if err != nil {
			return nil, err
		}
		return ParseCPUs(list)
	}
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, err
	}
	var cpus []int
	for n := range len(set) * 64 {
		if set.IsSet(n) {
			cpus = append(cpus, n)
		}
	}
	return cpus, nil
}

// take chooses n of the CPUs, those with the fewest live groups of this Host, ties in an order that differs by name so that
// several supervisors do not all start with the same.
func (h *Host) take(allowed []int, n int, name string) []int {
	hash := fnv.New32a()
	hash.Write([]byte(name))
	start := int(hash.Sum32() % uint32(len(allowed)))
	turned := slices.Concat(allowed[start:], allowed[:start])
	h.mu.Lock()
	defer h.mu.Unlock()
	slices.SortStableFunc(turned, func(a, b int) int { return h.load[a] - h.load[b] })
	chosen := turned[:n]
	for _, c := range chosen {
		h.load[c]++
	}
	slices.Sort(chosen)
	return chosen
}

func (h *Host) giveBack(cpus []int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range cpus {
		if h.load[c]--; h.load[c] == 0 {
			delete(h.load, c)
		}
	}
}
