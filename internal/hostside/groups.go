package hostside

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"glovebox"
	"glovebox/internal/cgroup"
	"glovebox/internal/lockfile"
	"glovebox/internal/userscope"
)

// Groups are the machine's control groups as a driver uses them. It is safe for concurrent use.
type Groups struct {
	parent string // as configured
	locks  string // the folder of the locks that tell which sandboxes live

	mu    sync.Mutex
	host  *cgroup.Host // once found
	swept sync.Once
}

// NewGroups finds nothing yet. Runs get their groups below parent, a path below every hierarchy; empty is /glovebox for
// root, and for a user below the user's own group on version 2, and /glovebox-UID on version 1. locks is the folder of
// TakeIDs.
func NewGroups(parent, locks string) *Groups { return &Groups{parent: parent, locks: locks} }

// Parent is the control group under which runs get theirs.
func (g *Groups) Parent(host *cgroup.Host) string {
	switch {
	case g.parent != "":
		return g.parent
	case os.Getuid() != 0 && host.Mode() != "v2":
		return fmt.Sprintf("/glovebox-%d", os.Getuid())
	}
	return host.Parent()
}

// Find looks for the machine's control groups, once. An ordinary user who has been given no part of version 2's tree
// asks systemd for one, and this process moves there.
func (g *Groups) Find(ctx context.Context) (*cgroup.Host, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.host != nil {
		return g.host, nil
	}
	const tree = "/sys/fs/cgroup"
	host, err := cgroup.Detect(tree)
	if err != nil {
		return nil, err
	}
	if g.parent == "" && !host.Delegated() {
		if host.Bounded() {
			return nil, glovebox.Errorf(glovebox.CodeUnavailable,
				"set Delegate=yes where the limit is set (systemd-run -p Delegate=yes …)",
				"glovebox's own control group has a limit and is not its own to divide")
		}
		err := userscope.Enter(ctx)
		if err == nil {
			if host, err = cgroup.Detect(tree); err == nil && !host.Delegated() {
				err = errors.New("the scope that systemd gave lacks memory, pids or cpu")
			}
		}
		if err != nil {
			return nil, &glovebox.Error{Code: glovebox.CodeUnavailable, Op: "find control groups", Err: err,
				Public: "this user has no control groups, and systemd's user manager was not to be had for some", Fix: cgroup.ScopeFix}
		}
	}
	g.host = host
	return host, nil
}

// SweepOnce removes, the first time only, what supervisors that died left: not the group name, whose block of ids is token.
// What cannot be removed now will be at a later start.
func (g *Groups) SweepOnce(host *cgroup.Host, token uint32, name string) {
	g.swept.Do(func() { _ = g.sweep(host, token, name) })
}

// sweep removes the control groups of sandboxes whose supervisor died: those whose token nobody holds, or a new sandbox by
// another name. What still has processes stays; they are dying, since their lifeline is gone.
func (g *Groups) sweep(host *cgroup.Host, token uint32, name string) error {
	locks, err := lockfile.Open(g.locks, idLocks)
	if err != nil {
		return err
	}
	defer locks.Close()
	return host.Sweep(g.Parent(host), func(group string) bool {
		at := strings.LastIndex(group, "-t")
		if at < 0 || len(group) != at+len("-t")+8 {
			return true // not a name of ours
		}
		theirs, err := strconv.ParseUint(group[at+2:], 16, 32)
		if err != nil {
			return true
		}
		if uint32(theirs) == token {
			return group == name
		}
		live := false
		err = locks.Each(lockfile.Range{Start: int64(theirs), Length: 1}, func(lockfile.Range) bool { live = true; return false })
		return err != nil || live
	})
}
