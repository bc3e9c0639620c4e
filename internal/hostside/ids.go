package hostside

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
	"glovebox/internal/kernelfile"
	"glovebox/internal/lockfile"
	"glovebox/internal/sandboxinit/wire"
)

// IDPool is a range of user and group ids of the host from which each live sandbox takes a block of its own.
type IDPool struct {
	Start, Count uint32
}

// BlockSize is how many ids a sandbox takes: one for its init, one for the program, the rest kept for later use.
const BlockSize = 16

// idLocks is the file whose bytes stand for the blocks.
const idLocks = "ids.lock"

// DefaultPool lies where systemd's table of ids (UIDS-GIDS) has nothing: above container ranges, below the ids that some
// programs take for negative numbers.
var DefaultPool = IDPool{Start: 0x70000000, Count: 1 << 16}

// lowestID is the first id that a pool may hold: below it accounts of the host are expected (on most systems 1000 to 60000
// are people's, and 65534 and 65535 have meanings of their own).
const lowestID = 1 << 16

// Whole returns the whole blocks of p, and fails when there is none or one could belong to somebody.
func (p IDPool) Whole() (IDPool, error) {
	start := (uint64(p.Start) + BlockSize - 1) / BlockSize * BlockSize
	end := (uint64(p.Start) + uint64(p.Count)) / BlockSize * BlockSize
	if start < lowestID || end > 1<<32-BlockSize || end < start+BlockSize {
		return IDPool{}, glovebox.Errorf(glovebox.CodeInvalid,
			fmt.Sprintf("leave drivers.process.uid_pool out, or take at least %d ids from %d on, such as 1879048192:65536",
				BlockSize, lowestID),
			"the pool of user ids %d:%d holds no block of %d ids that nobody has", p.Start, p.Count, BlockSize)
	}
	return IDPool{uint32(start), uint32(end - start)}, nil
}

// IDs are the host ids of one sandbox.
type IDs struct {
	Init, Program uint32         // both the starting user's, where single
	Single        bool           // only the starting user's own id is mapped
	KeepOwner     bool           // an ordinary user started it
	Token         uint32         // number of the block, which names the sandbox among live ones
	helper        bool           // newuidmap writes the maps
	pool          IDPool         // what the block is of; none where single
	lock          *lockfile.File // holds the block until the sandbox is gone
}

// Release lets others have the ids. Nothing may run under them any more.
func (i *IDs) Release() error {
	if i.lock == nil {
		return nil
	}
	return i.lock.Close()
}

// Describe says what the program's id is outside, for the posture.
func (i *IDs) Describe() string {
	if i.Single {
		return "the starting user's own id and groups (single)"
	}
	return fmt.Sprintf("own block, outside %d", i.Program)
}

// TakeIDs finds ids for one sandbox, with the locks in dir: as root a block of pool, as a user a block of the
// user's subordinate ids, else the user's own id alone.
func TakeIDs(pool IDPool, dir string) (*IDs, error) {
	uid := os.Getuid()
	if uid == 0 {
		return takeBlock(pool, dir)
	}
	pool, ok := SystemSubordinates().Own(Account())
	if ok && FindProgram("newuidmap") != "" {
		i, err := takeBlock(pool, dir)
		if err != nil {
			return nil, err
		}
		i.KeepOwner, i.helper = true, true
		return i, nil
	}
	// A block of ids that are not used, for its token.
	i, err := takeBlock(DefaultPool, dir)
	if err != nil {
		return nil, err
	}
	i.Single, i.KeepOwner, i.Init, i.Program = true, true, uint32(uid), uint32(uid)
	return i, nil
}

// takeBlock locks one block of the pool. The lock is on one byte of one file and goes with the process that holds it, so
// nothing is left to clean up.
func takeBlock(pool IDPool, dir string) (*IDs, error) {
	f, err := lockfile.Open(dir, idLocks)
	if err != nil {
		return nil, err
	}
	blocks := pool.Count / BlockSize
	first := rand.Uint32N(max(blocks, 1))
	for n := range blocks {
		block := (first + n) % blocks
		token := pool.Start/BlockSize + block
		taken, err := f.Take(lockfile.Range{Start: int64(token), Length: 1})
		if err != nil {
			return nil, errors.Join(fmt.Errorf("take ids: %w", err), f.Close())
		}
		if taken {
			return &IDs{Init: token * BlockSize, Program: token*BlockSize + 1, pool: pool, Token: token, lock: f}, nil
		}
	}
	f.Close()
	return nil, glovebox.Errorf(glovebox.CodeExhausted, "wait for runs to end, or widen drivers.process.uid_pool",
		"all %d blocks of user ids are in use", blocks)
}

// GroupName names a sandbox's control groups so that others can tell whether their owner lives.
func (i *IDs) GroupName(id string) string { return fmt.Sprintf("%s-t%08x", id, i.Token) }

// FindProgram finds a tool of the system where systems keep them, whatever the caller's PATH. Empty: it is not there.
func FindProgram(name string) string {
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
func (i *IDs) extents(own int, pool IDPool) []extent {
	if i.Single {
		return []extent{{wire.ProgramID, uint32(own), 1}}
	}
	list := []extent{{0, i.Init, 1}, {wire.ProgramID, i.Program, 1}}
	if before := i.Init - pool.Start; pool.Count > 0 && before > 0 {
		list = append(list, extent{pool.Start, pool.Start, before})
	}
	if next := i.Init + BlockSize; next < pool.Start+pool.Count {
		list = append(list, extent{next, next, pool.Start + pool.Count - next})
	}
	return list
}

// Map is what a user namespace that is made by the id own says of the ids, as uid_map(5) has it.
func (i *IDs) Map(own int) string { return lines(i.extents(own, IDPool{})) }

// WriteMaps tells the kernel which ids of the host stand behind those inside of the process pid. A template may map those of
// the pool on.
func (i *IDs) WriteMaps(ctx context.Context, pid int, template bool) error {
	var pool IDPool
	if template {
		pool = i.pool
	}
	users, groups := i.extents(os.Getuid(), pool), i.extents(os.Getgid(), pool)
	if template && i.KeepOwner && !i.Single {
		users = append(users, extent{wire.OwnerID, uint32(os.Getuid()), 1})
	}
	if i.helper {
		return errors.Join(runHelper(ctx, "newuidmap", pid, users), runHelper(ctx, "newgidmap", pid, groups))
	}
	proc := fmt.Sprintf("/proc/%d/", pid)
	if i.Single {
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
	cmd := exec.CommandContext(ctx, FindProgram(helper), args...)
	cmd.Env = []string{}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %.200q", helper, err, out)
	}
	return nil
}
