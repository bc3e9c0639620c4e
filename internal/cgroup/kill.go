package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Kill ends every process of the group and returns when none is left, also those that are being forked meanwhile. It must
// not run while a process may still join. At the end of ctx it fails with the number of processes left.
func (g *Group) Kill(ctx context.Context) error {
	if empty, err := g.Empty(); empty || err != nil {
		return err
	}
	p, ok := g.host.killer()
	if !ok {
		return errors.New("kill control group: neither version 2 nor a freezer")
	}
	dir := g.dirs[p]
	if p.v2 {
		err := g.await(ctx, func() error { return write(dir, "cgroup.kill", "1") })
		if !errors.Is(err, fs.ErrNotExist) { // kernels before 5.14 have no such file
			return err
		}
	}
	return g.killFrozen(ctx, p)
}

// KillMembers is Kill for a group that others will be born in afterwards. It takes a little longer. Linux since 6.13 ends
// whatever is born (clone3 with CLONE_INTO_CGROUP) in a group that it was told to kill, however long ago: it compares how
// often with the group of the parent.
func (g *Group) KillMembers(ctx context.Context) error {
	if empty, err := g.Empty(); empty || err != nil {
		return err
	}
	p, ok := g.host.killer()
	if !ok {
		return errors.New("kill control group: neither version 2 nor a freezer")
	}
	return g.killFrozen(ctx, p)
}

// killFrozen kills without the kernel's help: in a frozen group nothing forks or ends, so that its list holds still. Killing
// goes on until the group is empty, whether or not it froze.
func (g *Group) killFrozen(ctx context.Context, p place) error {
	dir := g.dirs[p]
	file, frozen, thawed := "freezer.state", "FROZEN", "THAWED"
	if p.v2 {
		file, frozen, thawed = "cgroup.freeze", "1", "0"
	}
	defer write(dir, file, thawed) // whatever happens, what was not killed must be able to end
	return g.await(ctx, func() error {
		if err := write(dir, file, frozen); err != nil {
			return err
		}
		err := killMembers(dir)
		return errors.Join(err, write(dir, file, thawed))
	})
}

// killMembers sends SIGKILL to the members of a group and to no other process: a member is held by descriptor first and then
// looked up again, so that a number that changed hands in between is not trusted.
func killMembers(dir string) error {
	const batch = 256 // descriptors at a time
	pids, err := members(dir)
	if err != nil {
		return err
	}
	for some := range slices.Chunk(pids, batch) {
		held := make(map[int]int, len(some))
		for _, pid := range some {
			if fd, err := unix.PidfdOpen(pid, 0); err == nil {
				held[pid] = fd
			} else if err != unix.ESRCH && err != unix.EINVAL { // ended, or is no leader any more
				return errors.Join(fmt.Errorf("hold process: %w", err), release(held))
			}
		}
		still, err := members(dir)
		for _, pid := range still {
			if fd, ok := held[pid]; ok {
				if e := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); e != nil && e != unix.ESRCH {
					err = errors.Join(err, fmt.Errorf("kill process: %w", e))
				}
			}
		}
		if err := errors.Join(err, release(held)); err != nil {
			return err
		}
	}
	return nil
}

func release(held map[int]int) error {
	for _, fd := range held {
		syscall.Close(fd)
	}
	return nil
}

// members lists the processes of a group. Those of a process namespace out of sight show as 0 and are left out.
func members(dir string) ([]int, error) {
	text, err := read(dir, "cgroup.procs")
	if err != nil {
		return nil, err
	}
	var pids []int
	for s := range strings.FieldsSeq(text) {
		if n, err := strconv.Atoi(s); err == nil && n > 0 {
			pids = append(pids, n)
		}
	}
	return pids, nil
}

// await repeats an action until the group is empty, with growing waits.
func (g *Group) await(ctx context.Context, again func() error) error {
	for wait := 200 * time.Microsecond; ; wait = min(2*wait, 10*time.Millisecond) {
		if err := again(); err != nil {
			return fmt.Errorf("kill control group: %w", err)
		}
		if empty, err := g.Empty(); empty || err != nil {
			return err
		}
		if err := sleep(ctx, wait); err != nil {
			return fmt.Errorf("kill control group: %d processes left: %w", g.count(), err)
		}
	}
}

// sleep waits, or fails with ctx's cause.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (g *Group) count() int {
	n := 0
	for _, dir := range g.dirs {
		pids, _ := members(dir)
		n = max(n, len(pids))
	}
	return n
}

// Empty reports whether no process is in the group. Zombies do not count. A removed group is empty. Where there is version 2
// it alone is asked: whoever joins the version 1 groups was born in it and sees no way out.
func (g *Group) Empty() (bool, error) {
	for _, p := range g.order {
		text, err := "", error(nil)
		if p.v2 {
			text, err = read(g.dirs[p], "cgroup.events")
		} else {
			text, err = read(g.dirs[p], "cgroup.procs")
		}
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) {
			continue
		}
		if err != nil {
			return false, fmt.Errorf("look into control group: %w", err)
		}
		if p.v2 {
			n, known := field(text, "populated")
			if !known {
				return false, errors.New("look into control group: no word of its processes")
			}
			return n == 0, nil
		}
		if text != "" {
			return false, nil
		}
	}
	return true, nil
}

// Everywhere reports whether a process is in each of the groups.
func (g *Group) Everywhere() (bool, error) {
	for _, p := range g.order {
		procs, err := read(g.dirs[p], "cgroup.procs")
		if err != nil {
			return false, fmt.Errorf("look into control group: %w", err)
		}
		if procs == "" {
			return false, nil
		}
	}
	return true, nil
}

// Remove removes the groups and closes the descriptors. It waits until ctx's end for processes that are about to be gone,
// but kills none. Removing again does nothing; after a failure it can be tried again.
func (g *Group) Remove(ctx context.Context) error {
	for _, dir := range g.folders() {
		for wait := 200 * time.Microsecond; ; wait = min(2*wait, 10*time.Millisecond) {
			err := rmdir(dir)
			if err == nil {
				break
			}
			if !errors.Is(err, syscall.EBUSY) {
				return fmt.Errorf("remove control group: %w", err)
			}
			if late := sleep(ctx, wait); late != nil {
				return fmt.Errorf("remove control group: %w", errors.Join(late, err))
			}
		}
	}
	return g.Close()
}

// Close closes the descriptors and leaves the groups where they are. It is part of Remove; closing again does nothing.
func (g *Group) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended {
		return nil
	}
	g.ended = true
	g.host.giveBack(g.cpus)
	var errs []error
	files := slices.Clone(g.tasks)
	for _, f := range []*os.File{g.unified, g.cradle, g.freezer} {
		if f != nil {
			files = append(files, f)
		}
	}
	for _, f := range files {
		errs = append(errs, f.Close())
	}
	for _, f := range g.meters {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}
