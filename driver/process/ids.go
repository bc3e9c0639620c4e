package process

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"glovebox"
	"glovebox/internal/cgroup"
	"glovebox/internal/kernelfile"
	"glovebox/internal/lockfile"
	"glovebox/internal/sandboxinit/wire"
)

// IDPool is a range of user and group ids of the host from which each live sandbox takes a block of its own.
type IDPool struct {
	Start, Count uint32
}

// blockSize is how many ids a sandbox takes: one for its init, one for the program, the rest kept for later use.
const blockSize = 16

// idLocks is the file whose bytes stand for the blocks.
const idLocks = "ids.lock"

// defaultPool lies where systemd's table of ids (UIDS-GIDS) has nothing: above container ranges, below the ids that some
// programs take for negative numbers.
var defaultPool = IDPool{Start: 0x70000000, Count: 1 << 16}

// lowestID is the first id that a pool may hold: below it accounts of the host are expected (on most systems 1000 to 60000
// are people's, and 65534 and 65535 have meanings of their own).
const lowestID = 1 << 16

// whole returns the whole blocks of p, and fails when there is none or one could belong to somebody.
func (p IDPool) whole() (IDPool, error) {
	start := (uint64(p.Start) + blockSize - 1) / blockSize * blockSize
	end := (uint64(p.Start) + uint64(p.Count)) / blockSize * blockSize
	if start < lowestID || end > 1<<32-blockSize || end < start+blockSize {
		return IDPool{}, glovebox.Errorf(glovebox.CodeInvalid,
			fmt.Sprintf("leave drivers.process.uid_pool out, or take at least %d ids from %d on, such as 1879048192:65536",
				blockSize, lowestID),
			"the pool of user ids %d:%d holds no block of %d ids that nobody has", p.Start, p.Count, blockSize)
	}
	return IDPool{uint32(start), uint32(end - start)}, nil
}

// ids are the host ids of one sandbox.
type ids struct {
	init, program uint32         // both the starting user's, where single
	single        bool           // only the starting user's own id is mapped
	keepOwner     bool           // an ordinary user started it
	helper        bool           // newuidmap writes the maps
	pool          IDPool         // what the block is of; none where single
	token         uint32         // number of the block, which names the sandbox among live ones
	lock          *lockfile.File // holds the block until the sandbox is gone
}

func (i *ids) release() error {
	if i.lock == nil {
		return nil
	}
	return i.lock.Close()
}

// describe says what the program's id is outside, for the posture.
func (i *ids) describe() string {
	if i.single {
		return "the starting user's own id and groups (single)"
	}
	return fmt.Sprintf("own block, outside %d", i.program)
}

// takeIDs finds ids for one sandbox: as root a block of the pool, as a user a block of the user's subordinate ids, else the
// user's own id alone.
func (d *Driver) takeIDs() (*ids, error) {
	uid := os.Getuid()
	if uid == 0 {
		return takeBlock(d.cfg.IDs, d.cfg.RuntimeDir)
	}
	pool, ok := systemSubordinates().own(account())
	if ok && findProgram("newuidmap") != "" {
		i, err := takeBlock(pool, d.cfg.RuntimeDir)
		if err != nil {
			return nil, err
		}
		i.keepOwner, i.helper = true, true
		return i, nil
	}
	// A block of ids that are not used, for its token.
	i, err := takeBlock(defaultPool, d.cfg.RuntimeDir)
	if err != nil {
		return nil, err
	}
	i.single, i.keepOwner, i.init, i.program = true, true, uint32(uid), uint32(uid)
	return i, nil
}

// takeBlock locks one block of the pool. The lock is on one byte of one file and goes with the process that holds it, so
// nothing is left to clean up.
func takeBlock(pool IDPool, dir string) (*ids, error) {
	f, err := lockfile.Open(dir, idLocks)
	if err != nil {
		return nil, err
	}
	blocks := pool.Count / blockSize
	first := rand.Uint32N(max(blocks, 1))
	for n := range blocks {
		block := (first + n) % blocks
		token := pool.Start/blockSize + block
		taken, err := f.Take(lockfile.Range{Start: int64(token), Length: 1})
		if err != nil {
			return nil, errors.Join(fmt.Errorf("take ids: %w", err), f.Close())
		}
		if taken {
			return &ids{init: token * blockSize, program: token*blockSize + 1, pool: pool, token: token, lock: f}, nil
		}
	}
	f.Close()
	return nil, glovebox.Errorf(glovebox.CodeExhausted, "wait for runs to end, or widen drivers.process.uid_pool",
		"all %d blocks of user ids are in use", blocks)
}

// groupName names a sandbox's control groups so that others can tell whether their owner lives.
func (i *ids) groupName(id string) string { return fmt.Sprintf("%s-t%08x", id, i.token) }

// sweep removes the control groups of sandboxes whose supervisor died: those whose token nobody holds, or a new sandbox by
// another name. What still has processes stays; they are dying, since their lifeline is gone.
func (d *Driver) sweep(host *cgroup.Host, token uint32, name string) error {
	locks, err := lockfile.Open(d.cfg.RuntimeDir, idLocks)
	if err != nil {
		return err
	}
	defer locks.Close()
	return host.Sweep(d.parent(host), func(group string) bool {
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

// findProgram finds a tool of the system where systems keep them, whatever the caller's PATH. Empty: it is not there.
func findProgram(name string) string {
	for _, dir := range []string{"/usr/sbin/", "/usr/bin/", "/sbin/", "/bin/", "/usr/local/sbin/", "/usr/local/bin/"} {
		if unix.Access(dir+name, unix.X_OK) == nil {
			return dir + name
		}
	}
	return ""
}

// extent maps count ids from inside on to those from outside on.
type extent struct{ inside, outside, count uint32 }

// lines are extents as uid_map(5) has them.
func lines(extents []extent) string {
	var b strings.Builder
	for _, e := range extents {
		fmt.Fprintf(&b, "%d %d %d\n", e.inside, e.outside, e.count)
	}
	return b.String()
}

// extents are what stands behind the ids inside. Those of pool are the same inside as outside: a template maps them to its
// copies. Nothing else is mapped.
func (i *ids) extents(own int, pool IDPool) []extent {
	if i.single {
		return []extent{{wire.ProgramID, uint32(own), 1}}
	}
	list := []extent{{0, i.init, 1}, {wire.ProgramID, i.program, 1}}
	if before := i.init - pool.Start; pool.Count > 0 && before > 0 {
		list = append(list, extent{pool.Start, pool.Start, before})
	}
	if next := i.init + blockSize; next < pool.Start+pool.Count {
		list = append(list, extent{next, next, pool.Start + pool.Count - next})
	}
	return list
}

// writeMaps tells the kernel which ids of the host stand behind those inside.
func (s *sandbox) writeMaps(ctx context.Context, pid int) error {
	var pool IDPool
	if s.origin.template {
		pool = s.ids.pool
	}
	users, groups := s.ids.extents(os.Getuid(), pool), s.ids.extents(os.Getgid(), pool)
	if s.origin.template && s.ids.keepOwner && !s.ids.single {
		users = append(users, extent{wire.OwnerID, uint32(os.Getuid()), 1})
	}
	if s.ids.helper {
		return errors.Join(runHelper(ctx, "newuidmap", pid, users), runHelper(ctx, "newgidmap", pid, groups))
	}
	proc := fmt.Sprintf("/proc/%d/", pid)
	if s.ids.single {
		// user_namespaces(7): an ordinary user may map a group only after giving up setgroups.
		if err := kernelfile.Write(proc+"setgroups", "deny"); err != nil {
			return fmt.Errorf("forbid setgroups: %w", err)
		}
	}
	if err := kernelfile.Write(proc+"uid_map", lines(users)); err != nil {
		return fmt.Errorf("map user ids: %w", err)
	}
	if err := kernelfile.Write(proc+"gid_map", lines(groups)); err != nil {
		return fmt.Errorf("map group ids: %w", err)
	}
	return nil
}

// runHelper has a set-uid helper of the shadow tools write a map, as a user may not use subordinate ids otherwise.
func runHelper(ctx context.Context, helper string, pid int, extents []extent) error {
	args := append([]string{strconv.Itoa(pid)}, strings.Fields(lines(extents))...)
	cmd := exec.CommandContext(ctx, findProgram(helper), args...)
	cmd.Env = []string{}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %.200q", helper, err, out)
	}
	return nil
}
