package cgroup

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/moby/sys/mountinfo"

	"glovebox/internal/kernelfile"
)

// Host is what a machine offers: its hierarchies and which controller is in which. Make one with Detect.
type Host struct {
	places  map[string]place // by controller
	unified *place           // the version 2 hierarchy, with or without controllers
	own     string           // this process's group in the version 2 hierarchy
	swaps   string           // file that lists the machine's swap areas
	mkdir   func(dir string) error

	mu       sync.Mutex
	prepared map[string]bool // parents
	load     map[int]int     // live groups by CPU
}

// place is a hierarchy: a mount point and the version of its files.
type place struct {
	dir string
	v2  bool
}

// controllers are those a run uses; cpuacct only exists apart in version 1 and counts where version 2 does not, freezer
// kills where there is no version 2.
func controllers() []string { return []string{"memory", "pids", "cpu", "cpuacct", "cpuset", "freezer"} }

// indispensable are the controllers that no run goes without.
func indispensable() []string { return []string{"memory", "pids", "cpu"} }

// Detect looks at what is mounted at root and below, "/sys/fs/cgroup" on almost every machine. It fails when it cannot
// tell or when there is nothing.
func Detect(root string) (*Host, error) {
	mounts, err := kernelfile.Read("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("find control groups: %w", err)
	}
	membership, err := kernelfile.Read("/proc/self/cgroup")
	if err != nil {
		return nil, fmt.Errorf("find control groups: %w", err)
	}
	return detect(root, strings.NewReader(mounts), strings.NewReader(membership))
}

// detect is Detect for any mount table and membership.
func detect(root string, mounts, membership io.Reader) (*Host, error) {
	h := &Host{places: map[string]place{}, swaps: "/proc/swaps", own: "/", prepared: map[string]bool{}, load: map[int]int{},
		mkdir: func(dir string) error { return os.Mkdir(dir, 0o755) }}
	found, err := mountinfo.GetMountsFromReader(mounts, mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil {
		return nil, fmt.Errorf("find control groups: %w", err)
	}
	for _, m := range found {
		if m.Mountpoint != root && !strings.HasPrefix(m.Mountpoint, root+"/") {
			continue
		}
		if m.FSType == "cgroup2" {
			if h.unified == nil {
				h.unified = &place{m.Mountpoint, true}
			}
			continue
		}
		for _, c := range strings.Split(m.VFSOptions, ",") {
			if _, twice := h.places[c]; !twice && slices.Contains(controllers(), c) {
				h.places[c] = place{m.Mountpoint, false}
			}
		}
	}
	if h.unified != nil {
		list, err := read(h.unified.dir, "cgroup.controllers")
		if err != nil {
			return nil, fmt.Errorf("find control groups: %w", err)
		}
		for _, c := range strings.Fields(list) {
			if _, older := h.places[c]; !older && slices.Contains(controllers(), c) {
				h.places[c] = *h.unified
			}
		}
	}
	if h.unified != nil && h.Mode() == "hybrid" && os.Geteuid() != 0 {
		// There a version 2 group could only kill, and an ordinary user has no part of that tree.
		h.unified = nil
	}
	h.dropCounter()
	if len(h.places) == 0 && h.unified == nil {
		return nil, fmt.Errorf("find control groups: none mounted at %s", root)
	}
	return h, h.findOwn(membership)
}

// dropCounter leaves out a hierarchy that would only count CPU time, where every version 2 group does so anyway: each
// hierarchy costs a run a group to make, to join and to remove.
func (h *Host) dropCounter() {
	counter, ok := h.places["cpuacct"]
	if !ok || counter.v2 || h.unified == nil {
		return
	}
	for c, p := range h.places {
		if c != "cpuacct" && p == counter {
			return
		}
	}
	text, err := read(h.unified.dir, "cpu.stat")
	if _, counts := field(text, "usage_usec"); err == nil && counts {
		delete(h.places, "cpuacct")
	}
}

// findOwn reads this process's group in the version 2 hierarchy. A path that leads out of the mounted tree counts as its
// top.
func (h *Host) findOwn(membership io.Reader) error {
	b, err := io.ReadAll(io.LimitReader(membership, 1<<20))
	if err != nil {
		return fmt.Errorf("find own control group: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		if path, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::/"); ok && filepath.IsLocal(path) {
			h.own = "/" + strings.TrimSuffix(strings.TrimSuffix(path, supervisorLeaf), "/")
		}
	}
	return nil
}

// Mode is "v2" when a version 2 hierarchy has all the controllers there are, "v1" when there is no such hierarchy, and
// "hybrid" between.
func (h *Host) Mode() string {
	if h.unified == nil {
		return "v1"
	}
	for _, p := range h.places {
		if !p.v2 {
			return "hybrid"
		}
	}
	return "v2"
}

// Parent is where the groups of runs belong unless the configuration says otherwise: "/glovebox" for root, and below the own
// group for an ordinary user of version 2, who can only be given a part of the tree.
func (h *Host) Parent() string {
	if os.Geteuid() != 0 && h.Mode() == "v2" {
		return filepath.Join(h.own, "glovebox")
	}
	return "/glovebox"
}

// Delegated reports whether the calling user can make groups with limits in its own group: on version 2 an ordinary user
// needs one that was handed over, with memory, pids and cpu, and with no process of others in the way. To root, and in
// version 1, where the own group does not matter, it is true.
func (h *Host) Delegated() bool {
	if os.Geteuid() == 0 || h.Mode() != "v2" {
		return true
	}
	own := filepath.Join(h.unified.dir, h.own)
	if writable(own) != nil {
		return false
	}
	offered, _ := read(own, "cgroup.controllers")
	enabled, _ := read(own, "cgroup.subtree_control")
	lacks := func(list string) bool {
		return slices.ContainsFunc(indispensable(), func(c string) bool { return !slices.Contains(strings.Fields(list), c) })
	}
	if lacks(offered) {
		return false
	}
	alone, err := read(own, "cgroup.procs")
	return !lacks(enabled) || err == nil && alone == strconv.Itoa(os.Getpid())
}

// Bounded reports whether this process's version 2 group has a limit of memory or CPU, or a choice of CPUs, that a group of
// its own elsewhere under the user's service manager would not have.
func (h *Host) Bounded() bool {
	if h.unified == nil {
		return false
	}
	shared := []string{"/", fmt.Sprintf("user-%d.slice", os.Geteuid()), fmt.Sprintf("user@%d.service", os.Geteuid())}
	for at := h.own; !slices.Contains(shared, filepath.Base(at)); at = filepath.Dir(at) {
		for _, file := range []string{"memory.max", "memory.high", "cpu.max"} {
			limit, err := read(h.unified.dir+at, file)
			if err == nil && limit != "max" && !strings.HasPrefix(limit, "max ") {
				return true
			}
		}
		if cpus, err := read(h.unified.dir+at, "cpuset.cpus"); err == nil && cpus != "" {
			return true
		}
	}
	return false
}

// Sweep removes the empty groups under parent whose names are not live: what a supervisor that died left over. It leaves
// groups that still have processes alone and reports them.
func (h *Host) Sweep(parent string, live func(name string) bool) error {
	if err := checkParent(parent); err != nil {
		return err
	}
	var errs []error
	for _, p := range h.hierarchies() {
		entries, err := os.ReadDir(p.dir + parent)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("sweep control groups: %w", err))
		}
		for _, e := range entries {
			if !e.IsDir() || live(e.Name()) {
				continue
			}
			if err := sweepTree(filepath.Join(p.dir+parent, e.Name())); err != nil {
				errs = append(errs, fmt.Errorf("sweep control groups: %w", err))
			}
		}
	}
	return errors.Join(errs...)
}

// sweepTree removes a group and what is below it: the parts of a run's, and those of the groups within it.
func sweepTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if e.IsDir() {
			err = errors.Join(err, sweepTree(filepath.Join(dir, e.Name())))
		}
	}
	if err != nil {
		return err
	}
	return rmdirSoon(dir)
}

// hierarchies are the distinct ones in use, the one that kills first.
func (h *Host) hierarchies() []place {
	var all []place
	if p, ok := h.killer(); ok {
		all = append(all, p)
	}
	for _, c := range controllers() {
		p, ok := h.places[c]
		if ok && !slices.Contains(all, p) && (c != "freezer" || h.unified == nil) {
			all = append(all, p)
		}
	}
	return all
}

// killer is the hierarchy whose groups kill: version 2 where there is one, else the freezer's.
func (h *Host) killer() (place, bool) {
	if h.unified != nil {
		return *h.unified, true
	}
	p, ok := h.places["freezer"]
	return p, ok
}
