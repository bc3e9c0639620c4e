package trace

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"glovebox"
	"glovebox/internal/store"
)

// owner is the Trace that answers for a run. Start keeps the number of a process that is used again from being taken for the
// same; Boot is this start of the machine, the namespace in which the number counts, and a word that tells the Traces of a
// process apart. An owner claims its name in the store for as long as its store is open, which is what others go by: what
// /proc says they may not see, or it is of another machine.
type owner struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // in ticks since the machine started
	Boot  string `json:"boot"`
}

// name is what an owner claims.
func (o owner) name() string { return fmt.Sprintf("owner %d %d %s", o.PID, o.Start, o.Boot) }

func newOwner() (owner, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return owner{}, err
	}
	namespace, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return owner{}, err
	}
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return owner{}, err
	}
	// The name, in parentheses, can hold anything: what counts comes after the last of them.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 20 {
		return owner{}, errors.New("/proc/self/stat does not tell when this process started")
	}
	start, err := strconv.ParseUint(string(fields[19]), 10, 64) // field 22 in all
	if err != nil {
		return owner{}, err
	}
	life := strings.TrimSpace(string(boot)) + " " + namespace + " " + rand.Text()
	return owner{PID: os.Getpid(), Start: start, Boot: life}, nil
}

// gone reports whether a run's owner is certainly no more: nobody claims its name.
func (t *Trace) gone(o owner) (bool, error) {
	if o == t.self {
		return false, nil
	}
	claimed, err := t.store.Claimed(o.name())
	return err == nil && !claimed, err
}

// Interrupted closes the runs whose owner died before it recorded their end, with an internal error that says so, and
// returns how many there were. When there were any it also has the store look whether the crash did it harm. Call it
// once after New, beside the work and not before it: it is cheap when there is nothing to close.
func (t *Trace) Interrupted(ctx context.Context) (int, error) {
	left, err := t.orphans(ctx)
	if err != nil || len(left) == 0 {
		return 0, Explain("find interrupted runs", err)
	}
	failure := glovebox.Errorf(glovebox.CodeInternal, "run it again; the engine's log or the kernel's tells why it ended",
		"interrupted: Glovebox itself ended before the run did")
	closed := 0
	for ids := range slices.Chunk(left, closeTogether) {
		n, err := t.interrupt(ctx, ids, failure)
		closed += n
		if err != nil {
			return closed, Explain("close interrupted run", err)
		}
	}
	return closed, Explain("look after the store", t.store.Tend(ctx))
}

const closeTogether = 100 // runs of one transaction

// interrupt closes those of the runs that are still running: another process may have done it meanwhile.
func (t *Trace) interrupt(ctx context.Context, ids []string, failure *glovebox.Error) (closed int, err error) {
	records := make([]*record, len(ids))
	for i, id := range ids {
		if records[i], err = t.endRecord(End{ID: id, Err: failure}, "interrupted", nil); err != nil {
			return 0, err
		}
	}
	var last head
	err = t.store.Update(ctx, func(ctx context.Context, tx *store.Tx) error {
		for i, id := range ids {
			switch state, err := stateOf(ctx, tx, id); {
			case err != nil:
				return err
			case state != "running":
				continue
			}
			if err := t.closeRun(ctx, tx, records[i], 0); err != nil {
				return err
			}
			last = records[i].head
			closed++
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	t.heads.late(last)
	return closed, nil
}

func (t *Trace) orphans(ctx context.Context) ([]string, error) {
	var left []string
	err := t.store.View(ctx, func(tx *store.Tx) error {
		rows, err := tx.Query(ctx, `SELECT id, owner_pid, owner_start, owner_boot FROM runs WHERE state = 'running'
			ORDER BY owner_boot, owner_pid, owner_start`)
		if err != nil {
			return err
		}
		defer rows.Close()
		dead := map[owner]bool{}
		for rows.Next() {
			var id string
			var o owner
			if err := rows.Scan(&id, &o.PID, &o.Start, &o.Boot); err != nil {
				return err
			}
			known, ok := dead[o]
			if !ok {
				if known, err = t.gone(o); err != nil {
					return err
				}
				dead[o] = known
			}
			if known {
				left = append(left, id)
			}
		}
		return rows.Err()
	})
	return left, err
}
