// Package admission keeps the memory limits of all live runs of one user on one machine, whichever processes they are of,
// within a budget together, so that each run can really have what it was granted. A run that does not fit now waits its
// turn.
//
// There is no daemon and nothing is written down: all is locks on bytes of one file, which the kernel drops with whoever
// holds them. Each Admission opens the file once and remembers what it holds, since the kernel tells of the locks of others
// only.
//
//	byte 0            budget                          2^62
//	     |aaaaa|bbb|    |aa|  |                        |  3|4|5| |
//	     a byte for each byte of memory                a byte for each ticket of the queue
//
//	ticket   take the byte behind the last ticket that is held. It is yours to wait at: first come, first served.
//	wait     until no ticket before yours is held.
//	memory   count what is held; if it and your limit fit the budget, take free bytes, as many as your limit has,
//	         in as many pieces as need be.
//	leave    give the ticket back. The memory is held until the run's sandbox is gone.
//
// Where no ticket is held and the memory is free it is taken without one. Runs of one process wake each other; those of
// others are looked for, by the first of each process.
//
// The kernel lets nobody hold a byte that another holds, so a process that is stopped in the midst of this, or passed over,
// can upset the order and never the sum. One that has been stopped (Ctrl-Z) while it waits must not hold up the others:
// whoever waits writes the time into the file, at a place of its ticket's, and a ticket whose time is old is passed over.
//
// Processes with different budgets share the row of bytes: each counts all that is held and takes bytes within its own. A
// ticket tells its budget, in the file too, and holds up nobody whose budget is larger: what it waits for may be no lack
// there.
package admission

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"glovebox"
	"glovebox/internal/cgroup"
	"glovebox/internal/lockfile"
)

// Config says how much there is and where it is shared.
type Config struct {
	// Dir is the folder of the locks, which all processes of one user must share. Empty: lockfile.Folder.
	Dir string
	// Size is the budget. Zero: Percent of what the machine and the control group of this process allow.
	Size glovebox.Size
	// Percent is from 1 to 100. Zero: 75, which leaves the rest to the system, the supervisors and the inits.
	Percent int
}

const defaultPercent = 75

// Admission admits the runs of one engine. It is safe for concurrent use.
type Admission struct {
	dir    string
	budget int64
	most   time.Duration // to wait

	mu      sync.Mutex // held for calls that do not wait
	row     *row       // nil until it is needed
	held    int64      // bytes, of all shares
	shares  map[*Share]bool
	waiting []*waiter // in the order of their tickets
}

const (
	lockName = "memory.lock"
	queue    = int64(1) << 62 // the first ticket
	tickets  = int64(1) << 60 // how many there can be

	maxWaiting = 128             // waiting runs of all processes: bounds what they cost the machine
	maxWait    = 5 * time.Minute // for the runs before it, most of which end within their default of a minute
	old        = 5 * time.Second // a ticket that was not looked after for so long is passed over
	beatEvery  = time.Second     // how often a ticket is looked after
	beats      = 4096            // places for times; a ticket uses that of its number modulo this

	tries = 20 // to take memory that is free, where others are faster

	firstPause = time.Millisecond // between looks at locks of others, whose end nobody is told; it doubles
	lastPause  = 10 * time.Millisecond
)

// New finds out how large the budget is. Errors are *[glovebox.Error].
func New(cfg Config) (*Admission, error) {
	if cfg.Dir == "" {
		cfg.Dir = lockfile.Folder()
	}
	if cfg.Percent == 0 {
		cfg.Percent = defaultPercent
	}
	if cfg.Percent < 0 || cfg.Percent > 100 || cfg.Size < 0 || int64(cfg.Size) >= queue {
		return nil, glovebox.Errorf(glovebox.CodeInvalid, "set memory_budget to 1% to 100%, or to a size",
			"the memory budget is neither a percentage nor a size")
	}
	host, err := cgroup.Detect("/sys/fs/cgroup")
	if err != nil {
		return nil, glovebox.Internal("find the memory there is", err)
	}
	allowed, err := host.MemoryAllowed()
	if err != nil {
		return nil, glovebox.Internal("find the memory there is", err)
	}
	budget := int64(cfg.Size)
	if budget == 0 {
		budget = allowed / 100 * int64(cfg.Percent)
	}
	if budget > allowed {
		return nil, glovebox.Errorf(glovebox.CodeUnavailable,
			fmt.Sprintf("set memory_budget to less than %v, or leave it out", glovebox.Size(allowed)),
			"the memory budget is %v, and the machine or Glovebox's own control group allows %v", cfg.Size, glovebox.Size(allowed))
	}
	return &Admission{dir: cfg.Dir, budget: budget, most: maxWait, shares: map[*Share]bool{}}, nil
}

// Budget is what all live runs may have together.
func (a *Admission) Budget() glovebox.Size { return glovebox.Size(a.budget) }

// Fits says whether a run with this limit could ever be admitted, with what its sandbox takes beside. The error is a
// *[glovebox.Error] that names all.
func (a *Admission) Fits(limit, beside glovebox.Size) error {
	if int64(limit+beside) <= a.budget {
		return nil
	}
	if beside > 0 {
		fix := "set memory_budget in glovebox.yaml, or run it on a machine with more memory"
		if most := (a.budget - int64(beside)) >> 20; most > 0 {
			fix = fmt.Sprintf("ask for --memory %dMiB at most, or set memory_budget in glovebox.yaml", most)
		}
		return glovebox.Errorf(glovebox.CodeUnavailable, fix,
			"a run with %v of memory, beside which its sandbox takes %v, does not fit the budget of %v that all runs have together",
			limit, beside, a.Budget())
	}
	return glovebox.Errorf(glovebox.CodeUnavailable,
		fmt.Sprintf("ask for --memory %dMiB at most, or set memory_budget in glovebox.yaml", a.budget>>20),
		"a run with %v of memory does not fit the budget of %v that all runs have together", limit, a.Budget())
}

// Taken is what live runs hold now.
func (a *Admission) Taken() (glovebox.Size, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.open(); err != nil {
		return 0, err
	}
	sum, _, err := a.row.others()
	return glovebox.Size(sum + a.held), err
}

// Share is memory that one run holds.
type Share struct {
	of     *Admission
	row    *row
	size   int64
	pieces []lockfile.Range
}

// Release gives the memory back. Releasing again does nothing.
func (s *Share) Release() error {
	a := s.of
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.shares[s] {
		return nil
	}
	delete(a.shares, s)
	a.held -= s.size
	err := s.row.give(s.pieces)
	if s.row != a.row && len(s.row.mine) == 0 {
		err = errors.Join(err, s.row.file.Close())
	}
	a.wakeFirst()
	return err
}

// Close gives back all that is still held. Nothing may be acquired meanwhile.
func (a *Admission) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	rows := map[*row]bool{}
	if a.row != nil {
		rows[a.row] = true
	}
	for s := range a.shares {
		rows[s.row] = true
	}
	for r := range rows {
		_ = r.file.Close() // the locks go also where closing says it failed
	}
	a.row, a.held, a.shares = nil, 0, map[*Share]bool{}
}

// open opens the file, again when its name leads to another by now, as when somebody tidied up: whoever comes next opens
// that one. What is held in the old one stays held there, and counts.
func (a *Admission) open() error {
	if a.row != nil {
		if same, err := a.row.file.Named(); same || err != nil {
			return err
		}
	}
	f, err := lockfile.Open(a.dir, lockName)
	if err != nil {
		return err
	}
	was := a.row
	a.row = &row{file: f, budget: a.budget}
	if was == nil {
		return nil
	}
	for i, w := range a.waiting {
		if w.ticket, err = a.ticket(a.waiting[:i]); err != nil {
			return err
		}
	}
	if len(was.mine) == 0 {
		return was.file.Close()
	}
	return nil
}

// now takes memory if it fits now and no ticket of another process before this one holds it up; else it returns nil.
func (a *Admission) now(ticket, need int64) (*Share, error) {
	if first, err := a.row.first(ticket); !first || err != nil {
		return nil, err
	}
	for range tries {
		others, taken, err := a.row.others()
		if err != nil || others+a.held > a.budget-need {
			return nil, err
		}
		pieces, err := a.row.take(need, a.budget, taken)
		if err != nil {
			return nil, err
		}
		if pieces != nil {
			s := &Share{of: a, row: a.row, size: need, pieces: pieces}
			a.shares[s] = true
			a.held += need
			return s, nil
		}
		// Somebody else was faster.
	}
	return nil, nil
}

// Where one stands who takes no ticket: behind all, or, who passes the queue, before all.
const (
	behindAll = queue + tickets
	beforeAll = queue
)

// Try holds memory as Acquire does where it fits now, and else returns nil. It never waits. What is taken past the queue may
// make those wait for longer who are in it; else nothing is taken while there are any. Errors are *[glovebox.Error].
func (a *Admission) Try(limit glovebox.Size, past bool) (*Share, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.open(); err != nil {
		return nil, glovebox.Internal("open the queue for memory", err)
	}
	at := beforeAll
	if !past {
		if len(a.waiting) > 0 {
			return nil, nil
		}
		at = behindAll
	}
	s, err := a.now(at, int64(limit))
	if err != nil {
		return nil, glovebox.Internal("take memory", err)
	}
	return s, nil
}

// Waiting names the place of the run that has waited the longest for memory, of whichever process; 0 when none does.
func (a *Admission) Waiting() (place int64, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.open(); err != nil {
		return 0, glovebox.Internal("open the queue for memory", err)
	}
	if len(a.waiting) > 0 {
		place = a.waiting[0].ticket - queue + 1
	}
	err = a.row.file.Each(lockfile.Range{Start: queue, Length: tickets}, func(r lockfile.Range) bool {
		if at := r.Start - queue + 1; place == 0 || at < place {
			place = at
		}
		return true
	})
	if err != nil {
		return 0, glovebox.Internal("look who waits for memory", err)
	}
	return place, nil
}
