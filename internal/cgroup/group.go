package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"glovebox"
	"glovebox/internal/kernelfile"
)

// Limits bound a group. All are needed.
type Limits struct {
	Memory    int64   // bytes, tmpfs files of the processes included; there is no swap besides
	Processes int64   // processes and threads
	CPUs      float64 // bandwidth in CPUs, from 0.01
}

// period is the window of the bandwidth limit, the kernel's default.
const period = 100_000 // µs

func (l Limits) check() error {
	const fix = "ask for positive limits within reach of the machine"
	switch {
	case l.Memory < 1<<20:
		return glovebox.Errorf(glovebox.CodeInvalid, fix, "a memory limit of %d bytes is below 1 MiB", l.Memory)
	case l.Processes < 1:
		return glovebox.Errorf(glovebox.CodeInvalid, fix, "a limit of %d processes leaves none", l.Processes)
	case !(l.CPUs >= 0.01 && l.CPUs <= cpuBound):
		return glovebox.Errorf(glovebox.CodeInvalid, fix, "a limit of %v CPUs is not between 0.01 and %d", l.CPUs, cpuBound)
	}
	return nil
}

// Group is the control groups of one run. Remove it at the end, or at least Close it.
type Group struct {
	host   *Host
	parent string
	dirs   map[place]string
	order  []place // the killing one first, then in the order of making
	cpus   []int
	// memory is the limit as the kernel was given it, in bytes.
	memory int64

	home   string // the version 2 group above dirs' and the cradle; empty without version 2
	nested bool   // home lies in that of another group

	mu      sync.Mutex
	tasks   []*os.File
	unified *os.File
	cradle  *os.File
	freezer *os.File
	meters  map[string]*kernelfile.File // open counters by place and name; nil for one that is not there
	ended   bool                        // descriptors are closed, CPUs given back
}

// New makes the group parent/name in every hierarchy in use, without limits yet. On error nothing is left, save the parent.
// parent is absolute; name is made of letters, digits, "_" and "-" and must be new (else code conflict). Memory, pids and
// cpu are never done without: where one is missing the code is unavailable and the message says so.
func (h *Host) New(parent, name string) (*Group, error) { return h.group(parent, name, nil) }

// Below is New for a group whose processes those of g bear: its version 2 part lies within g's, where the kernel lets them
// (see Delegate). It must be removed before g.
func (g *Group) Below(name string) (*Group, error) { return g.host.group(g.parent, name, g) }

func (h *Host) group(parent, name string, above *Group) (g *Group, err error) {
	if err := checkParent(parent); err != nil {
		return nil, err
	}
	if !goodName(name) {
		return nil, glovebox.Errorf(glovebox.CodeInvalid, "use letters, digits, _ and -", "bad name for a control group")
	}
	if err := h.complete(parent); err != nil {
		return nil, err
	}
	g = &Group{host: h, parent: parent, nested: above != nil, dirs: map[place]string{}, meters: map[string]*kernelfile.File{}}
	defer func() {
		if err == nil {
			return
		}
		g.Close()
		err = h.explain(parent, err)
		for _, dir := range g.folders() {
			err = errors.Join(err, rmdir(dir))
		}
		g = nil
	}()
	if err := h.prepare(parent); err != nil {
		return g, err
	}
	for _, p := range h.hierarchies() {
		dir := filepath.Join(p.dir+parent, name)
		if p.v2 && above != nil {
			dir = filepath.Join(above.home, name)
		}
		err := h.mkdir(dir)
		if errors.Is(err, fs.ErrNotExist) && above == nil { // somebody removed the parent
			h.forget(parent)
			err = errors.Join(h.prepare(parent), h.mkdir(dir))
		}
		if err != nil {
			return g, fmt.Errorf("make control group: %w", err)
		}
		if p.v2 {
			if dir, err = g.makeHome(dir); err != nil {
				return g, fmt.Errorf("make control group: %w", err)
			}
		}
		g.dirs[p] = dir
		g.order = append(g.order, p)
	}
	return g, g.open()
}

// Limit sets the limits, once, before anything of the run's joins.
//
// A run of fewer CPUs than the parent has is kept to ceil(CPUs) of them, the least taken ones, so that programs that count
// CPUs see no more. Where the cpuset controller is missing they are only chosen (see ControlsCPUs).
func (g *Group) Limit(l Limits) error {
	if err := l.check(); err != nil {
		return err
	}
	g.memory = l.Memory
	if err := g.limit(l); err != nil {
		return g.host.explain(g.parent, fmt.Errorf("limit control group: %w", err))
	}
	return nil
}

// Relimit gives a group whose processes are idle another limit of memory, in bytes, and of processes.
func (g *Group) Relimit(memory, processes int64) error {
	if err := (Limits{Memory: memory, Processes: processes, CPUs: 1}).check(); err != nil {
		return err
	}
	p, pids := g.host.places["memory"], g.host.places["pids"]
	before := g.memory
	g.memory = memory
	err := error(nil)
	if memory > before && !p.v2 {
		// Memory and swap together may never be less than memory alone.
		err = g.limitSwap(p, memory)
	}
	if err == nil {
		err = g.limitMemory(p, memory)
	}
	if err == nil {
		err = write(g.dirs[pids], "pids.max", strconv.FormatInt(processes, 10))
	}
	if err != nil {
		return g.host.explain(g.parent, fmt.Errorf("limit control group: %w", err))
	}
	return nil
}

// Favor lets the group have eight times the share of a busy machine's CPU time that others have, within its own limit. Where
// shares cannot be set it has that of others.
func (g *Group) Favor() error {
	p := g.host.places["cpu"]
	file, value := "cpu.shares", "8192" // eight times the kernel's default, like the 800 of version 2
	if p.v2 {
		file, value = "cpu.weight", "800"
	}
	err := write(g.dirs[p], file, value)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// ControlsCPUs reports whether the group itself keeps the run to its CPUs. Where it does not the caller has to, to CPUs.
func (g *Group) ControlsCPUs() bool {
	_, controlled := g.cpuset()
	return controlled
}

// CPUs are the CPUs that Limit chose for the run, in order; empty where the group leaves it all that the parent has.
func (g *Group) CPUs() []int { return g.cpus }

// cpuset is where the group has the controller. In version 2 the top may have it and not hand it down this far: systemd
// gives ordinary users only memory, pids and cpu.
func (g *Group) cpuset() (place, bool) {
	p, ok := g.host.places["cpuset"]
	if ok && p.v2 {
		_, err := os.Stat(filepath.Join(g.dirs[p], "cpuset.cpus"))
		ok = err == nil
	}
	return p, ok
}

// goodName reports whether a name is made of letters, digits, "_" and "-". (An expression would be compiled at every start
// of the program, used or not.)
func goodName(name string) bool {
	const good = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"
	return name != "" && len(name) <= 128 && strings.Trim(name, good) == ""
}

func checkParent(parent string) error {
	if !filepath.IsAbs(parent) || filepath.Clean(parent) != parent || parent == "/" {
		return glovebox.Errorf(glovebox.CodeInvalid, "use an absolute, clean path such as /glovebox",
			"bad parent for control groups")
	}
	return nil
}

// makeHome divides a version 2 group: whoever starts the run's processes lives in "init", outside the run's limits, and what
// it starts is born in "run". A group that hands controllers down has no processes of its own.
func (g *Group) makeHome(home string) (run string, err error) {
	g.home = home
	if err := g.host.handDown(home); err != nil {
		return "", err
	}
	if err := g.host.mkdir(filepath.Join(home, "init")); err != nil {
		return "", err
	}
	run = filepath.Join(home, "run")
	return run, g.host.mkdir(run)
}

// folders are all that was made, the innermost first.
func (g *Group) folders() []string {
	var all []string
	for _, p := range slices.Backward(g.order) {
		if !p.v2 {
			all = append(all, g.dirs[p])
		}
	}
	if g.home != "" {
		all = append(all, filepath.Join(g.home, "run"), filepath.Join(g.home, "init"), g.home)
	}
	return all
}

// open opens what processes join by.
func (g *Group) open() error {
	for _, p := range g.order {
		if p.v2 {
			continue
		}
		f, err := openQuietly(filepath.Join(g.dirs[p], "tasks"), unix.O_WRONLY)
		if err != nil {
			return fmt.Errorf("open control group: %w", err)
		}
		g.tasks = append(g.tasks, f)
	}
	if p, ok := g.host.killer(); ok && !p.v2 {
		var err error
		if g.freezer, err = openQuietly(filepath.Join(g.dirs[p], "freezer.state"), unix.O_WRONLY); err != nil {
			return fmt.Errorf("open control group: %w", err)
		}
	}
	if g.home == "" {
		return nil
	}
	for name, to := range map[string]**os.File{"init": &g.cradle, "run": &g.unified} {
		f, err := openQuietly(filepath.Join(g.home, name), unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			return fmt.Errorf("open control group: %w", err)
		}
		*to = f
	}
	return nil
}

// Tasks are descriptors, open for writing, by which a process of one thread joins the version 1 groups: it writes "0" to
// each. (Writing to cgroup.procs would take a lock that waits for every CPU of the machine, milliseconds each time; a
// thread that moves itself takes none.) The Group owns them.
func (g *Group) Tasks() []*os.File { return g.tasks }

// Unified is the folder of the version 2 group, for a child to be born in (clone3 with CLONE_INTO_CGROUP). Nil where there
// is no version 2. The Group owns it.
func (g *Group) Unified() *os.File { return g.unified }

// Freezer is the state of the version 1 freezer that Kill uses, open for writing: whoever is left when a supervisor died in
// the middle of a Kill can write THAWED to it. Nil where version 2 kills. The Group owns it.
func (g *Group) Freezer() *os.File { return g.freezer }

// Cradle is the version 2 group beside the run's, with no limits of its own, for the process that starts the run's to be
// born in: the kernel lets it bear children into Unified only from there. Nil where there is no version 2. The Group owns
// it.
func (g *Group) Cradle() *os.File { return g.cradle }

// ParentTasks are as Tasks for the version 1 groups above, which have no limits of their own: for a process that was born
// in another group and is to be in none. The caller closes them.
func (g *Group) ParentTasks() ([]*os.File, error) {
	var files []*os.File
	for _, p := range g.order {
		if p.v2 {
			continue
		}
		f, err := openQuietly(filepath.Join(p.dir+g.parent, "tasks"), unix.O_WRONLY)
		if err != nil {
			for _, f := range files {
				f.Close()
			}
			return nil, fmt.Errorf("open control group: %w", err)
		}
		files = append(files, f)
	}
	return files, nil
}

// Delegate lets a process of these ids that was born in the Cradle bear children into Unified. For a group Below another it
// lets one in the other's Unified bear children into both.
func (g *Group) Delegate(uid, gid int) error {
	if g.home == "" {
		return nil
	}
	dirs := []string{g.home, filepath.Join(g.home, "run")}
	if g.nested {
		dirs = append(dirs, filepath.Join(g.home, "init"))
	}
	for _, dir := range dirs {
		file := filepath.Join(dir, "cgroup.procs")
		err := os.Chown(file, uid, gid)
		if errors.Is(err, fs.ErrPermission) {
			// An ordinary user may not give files away. Whoever wants to use the opened one also needs a process of its
			// own in this group, which the user alone can put there.
			err = os.Chmod(file, 0o666)
		}
		if err != nil {
			return fmt.Errorf("delegate control group: %w", err)
		}
	}
	return nil
}

// limit writes the limits. New groups have no others, so a file whose default is right is not written.
func (g *Group) limit(l Limits) error {
	memory, pids, cpu := g.host.places["memory"], g.host.places["pids"], g.host.places["cpu"]
	if err := g.limitMemory(memory, l.Memory); err != nil {
		return err
	}
	if err := write(g.dirs[pids], "pids.max", strconv.FormatInt(l.Processes, 10)); err != nil {
		return err
	}
	quota := strconv.FormatInt(int64(math.Ceil(l.CPUs*period)), 10)
	file := "cpu.cfs_quota_us"
	if cpu.v2 {
		file, quota = "cpu.max", quota+" "+strconv.Itoa(period)
	}
	if err := write(g.dirs[cpu], file, quota); err != nil {
		return err
	}
	return g.limitCPUs(int(math.Ceil(l.CPUs)))
}

// socketBytes bounds what may lie in the TCP sockets of a run on version 1.
const socketBytes = 64 << 20

func (g *Group) limitMemory(p place, bytes int64) error {
	dir, value := g.dirs[p], strconv.FormatInt(bytes, 10)
	limit := "memory.limit_in_bytes"
	if p.v2 {
		limit = "memory.max"
		// One process of a run that is out of memory is of no use without the others.
		if err := write(dir, "memory.oom.group", "1"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := write(dir, limit, value); err != nil {
		return err
	}
	if !p.v2 {
		// Version 1 counts what lies in sockets apart, beside the memory limit, and only once this limit is set.
		sockets := strconv.FormatInt(min(bytes/4, socketBytes), 10)
		if err := write(dir, "memory.kmem.tcp.limit_in_bytes", sockets); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return g.limitSwap(p, bytes)
}

// limitSwap gives the group no swap beside its memory.
func (g *Group) limitSwap(p place, bytes int64) error {
	file, value := "memory.memsw.limit_in_bytes", strconv.FormatInt(bytes, 10) // counts memory and swap together
	if p.v2 {
		file, value = "memory.swap.max", "0"
	}
	err := write(g.dirs[p], file, value)
	if errors.Is(err, fs.ErrNotExist) && !g.host.swapping() {
		return nil
	}
	return err
}

// swapping reports whether the machine swaps; if it cannot be told it does.
func (h *Host) swapping() bool {
	areas, err := os.ReadFile(h.swaps)
	if errors.Is(err, fs.ErrNotExist) {
		return false // a kernel without swap
	}
	lines := 0
	for _, c := range areas {
		if c == '\n' {
			lines++
		}
	}
	return err != nil || lines > 1 // below the heading
}
