package trace

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"golang.org/x/mod/sumdb/tlog"

	"glovebox"
	"glovebox/internal/store"
)

// The kinds of problems.
const (
	problemChanged   = "changed"
	problemRemoved   = "removed"
	problemReordered = "reordered"
	problemCutOff    = "cut_off"
	problemForged    = "forged"

	problemsMost = 100
	erasedMost   = 1000 // ranges
)

// verifier is one walk over all of the log, in the order of its records, in one unchanging view of the database.
type verifier struct {
	*Trace
	ctx  context.Context
	tx   *store.Tx
	key  *key
	out  *glovebox.Verification
	size int64 // as the log says

	tree     frontier  // recomputed: the complete trees of the records so far
	hashes   *sql.Rows // stored hashes, in order
	nextID   int64     // of the stored hash that was read last and not used; -1: none
	nextHash []byte
	wrong    bool // the tree has not been what was signed since some record, which was told

	outside  []head // by size; those before done are compared
	done     int
	trusted  int64           // the largest outside head that agrees
	seen     map[string]bool // blobs that were read, and whether they hold
	searched int             // how often a hash was looked for everywhere
	lacking  []int64         // records without their payload
	erased   map[int64]bool  // records that retention erased, as the log says
	bytes    int64           // that are kept
}

const seenMost = 100_000 // blobs to remember

// Verify checks everything: each record against its place in the tree, each head against its signature, payloads, outputs
// and artifacts against the hashes in the records, what lists of runs go by, and the heads from outside. Problems are in the
// result; an error means that it could not be checked. It holds a few bytes in memory for each record that was erased, and
// for the rest a bounded amount.
func (t *Trace) Verify(ctx context.Context, outside []glovebox.TraceRef) (*glovebox.Verification, error) {
	v := &verifier{Trace: t, ctx: ctx, tree: frontier{}, nextID: -1, seen: map[string]bool{}, erased: map[int64]bool{},
		out: &glovebox.Verification{Problems: []glovebox.TraceProblem{}, Erased: [][2]int64{}, Heads: len(outside)}}
	for _, ref := range outside {
		h, err := parseHead(ref)
		if err != nil {
			return nil, err
		}
		v.outside = append(v.outside, h)
	}
	slices.SortStableFunc(v.outside, func(a, b head) int { return cmp.Compare(a.size, b.size) })
	var err error
	if v.key, err = t.keys.get(); err != nil {
		return nil, err
	}
	if v.out.Key, err = v.key.public(); err != nil {
		return nil, Explain("verify the trace", err)
	}
	if err := t.adopt(ctx); err != nil {
		return nil, Explain("verify the trace", err)
	}
	err = t.store.View(ctx, func(tx *store.Tx) error {
		v.tx = tx
		return v.walk()
	})
	if err != nil {
		return nil, Explain("verify the trace", err)
	}
	slices.SortStableFunc(v.out.Problems, func(a, b glovebox.TraceProblem) int {
		return cmp.Compare(uint64(a.Seq-1), uint64(b.Seq-1)) // what is of no record comes last
	})
	v.out.OK = len(v.out.Problems) == 0
	return v.out, nil
}

func (v *verifier) problem(seq int64, run, kind, format string, args ...any) {
	if len(v.out.Problems) == problemsMost {
		v.out.More++
		return
	}
	v.out.Problems = append(v.out.Problems, glovebox.TraceProblem{Seq: seq, Run: beginning(run, 64), Kind: kind,
		Text: fmt.Sprintf(format, args...)})
}

func (v *verifier) walk() (err error) {
	err = v.tx.QueryRow(v.ctx, "SELECT CAST(size AS INTEGER) FROM log WHERE id = 1").Scan(&v.size)
	if errors.Is(err, sql.ErrNoRows) {
		v.problem(0, "", problemRemoved, "the row that tells the size of the log is missing")
		v.size = -1
	} else if err != nil {
		return err
	}
	if v.hashes, err = v.tx.Query(v.ctx, "SELECT id, hash FROM hashes ORDER BY id"); err != nil {
		return err
	}
	defer v.hashes.Close()
	rows, err := v.tx.Query(v.ctx, selectAll)
	if err != nil {
		return err
	}
	defer rows.Close()
	next := int64(1)
	for rows.Next() {
		r, err := scanRow(rows)
		if err != nil {
			return err
		}
		if r.seq < 1 || r.seq > max(v.size, next)+erasedMost {
			v.problem(r.seq, r.run, problemReordered, "there is a record %d, which was never appended", r.seq)
			continue
		}
		for ; next < r.seq; next++ {
			if len(v.out.Problems) == problemsMost {
				// Whoever tampered chose the number. What comes after so many that are missing cannot be placed any more.
				v.out.More += max(v.size-next+1, 1)
				return v.finish(next - 1)
			}
			if err := v.missing(next, problemRemoved); err != nil {
				return err
			}
		}
		if err := v.record(r); err != nil {
			return err
		}
		next++
	}
	if err := rows.Err(); err != nil {
		return err
	}
	for ; next <= v.size; next++ {
		if len(v.out.Problems) == problemsMost {
			v.out.More += v.size - next + 1
			break
		}
		if err := v.missing(next, problemCutOff); err != nil {
			return err
		}
	}
	return v.finish(next - 1)
}

// missing goes on over a record that is not there by the hash that was stored of it, so that the rest is still checked.
func (v *verifier) missing(seq int64, kind string) error {
	text := "record %d is missing"
	if kind == problemCutOff {
		text = "record %d is missing: the end of the log was cut off"
	}
	v.problem(seq, "", kind, text, seq)
	stored, err := v.storedHashes(seq)
	if err != nil {
		return err
	}
	if stored[0] == (tlog.Hash{}) {
		v.wrong = true // what comes later cannot agree
	}
	own, root, err := v.with(seq, stored[0])
	if err == nil {
		v.grow(seq, own, root)
	}
	return err
}

// with computes the hashes that a leaf would add to the tree, and the root of it.
func (v *verifier) with(seq int64, leaf tlog.Hash) (own []tlog.Hash, root tlog.Hash, err error) {
	own, err = tlog.StoredHashesForRecordHash(seq-1, leaf, v.tree)
	if err != nil {
		return nil, root, err
	}
	// The new tree consists of the last of its own hashes and, to the left of that, of what the old one consists of.
	last := tlog.StoredHashIndex(0, seq-1) + int64(len(own)-1)
	v.tree[last] = own[len(own)-1]
	root, err = tlog.TreeHash(seq, v.tree)
	delete(v.tree, last)
	return own, root, err
}

// grow makes the tree that of seq records and compares heads from outside of that size.
func (v *verifier) grow(seq int64, own []tlog.Hash, root tlog.Hash) {
	for level := range len(own) - 1 {
		delete(v.tree, tlog.StoredHashIndex(level, (seq-1)>>level-1))
	}
	v.tree[tlog.StoredHashIndex(0, seq-1)+int64(len(own)-1)] = own[len(own)-1]
	for ; v.done < len(v.outside) && v.outside[v.done].size == seq; v.done++ {
		h := v.outside[v.done]
		switch good, _ := v.key.signed(h); {
		case !good:
			v.problem(seq, "", problemForged, "the head of %d records from outside was not signed with this trace's key", seq)
		case h.root != root:
			v.problem(v.trusted+1, "", problemChanged, "the records %d to %d are not all what they were when the head of %d records "+
				"from outside was signed", v.trusted+1, seq, seq)
		default:
			v.trusted = seq
		}
	}
}

// storedHashes reads the hashes that are stored of a record: of its leaf and of the trees that it completes. A zero one
// stands for one that is missing.
func (v *verifier) storedHashes(seq int64) ([]tlog.Hash, error) {
	hashes := make([]tlog.Hash, bits.TrailingZeros64(uint64(seq))+1)
	first := tlog.StoredHashIndex(0, seq-1)
	for i := range hashes {
		id := first + int64(i)
		for v.nextID < id && v.hashes.Next() {
			if err := v.hashes.Scan(&v.nextID, &v.nextHash); err != nil {
				return nil, err
			}
		}
		if v.nextID == id && len(v.nextHash) == tlog.HashSize {
			hashes[i] = tlog.Hash(v.nextHash)
		}
	}
	return hashes, v.hashes.Err()
}

// finish checks what concerns the log as a whole. It has n records.
func (v *verifier) finish(n int64) error {
	v.out.Records = n
	if v.size >= 0 && n > v.size {
		v.problem(v.size+1, "", problemChanged, "there are %d records where the log says %d", n, v.size)
	}
	for _, h := range v.outside[v.done:] {
		if good, _ := v.key.signed(h); !good {
			v.problem(h.size, "", problemForged, "the head of %d records from outside was not signed with this trace's key", h.size)
			continue
		}
		v.problem(n+1, "", problemCutOff, "the records %d to %d are missing: there were %d when a head from outside was signed",
			n+1, h.size, h.size)
	}
	for _, seq := range v.lacking {
		if !v.erased[seq] {
			v.problem(seq, "", problemRemoved, "the payload of record %d is missing, and no record says that retention erased it",
				seq)
			continue
		}
		if last := len(v.out.Erased) - 1; last >= 0 && (v.out.Erased[last][1] == seq-1 || last == erasedMost-1) {
			v.out.Erased[last][1] = seq
		} else {
			v.out.Erased = append(v.out.Erased, [2]int64{seq, seq})
		}
	}
	if err := v.strays(); err != nil {
		return err
	}
	var bytes int64
	err := v.tx.QueryRow(v.ctx, "SELECT CAST(bytes AS INTEGER) FROM log WHERE id = 1").Scan(&bytes)
	if errors.Is(err, sql.ErrNoRows) {
		return nil // which was told
	}
	if err == nil && bytes != v.bytes && len(v.out.Problems) == 0 {
		v.problem(0, "", problemChanged, "%d bytes are kept where the log says %d", v.bytes, bytes)
	}
	return err
}

// strays looks for rows that no record speaks of.
func (v *verifier) strays() error {
	for _, q := range []struct{ what, text string }{
		{"the list of runs has a run that no record began", `SELECT u.id, CAST(u.start_seq AS INTEGER)
			FROM runs u LEFT JOIN records r ON r.seq = u.start_seq AND r.run = u.id WHERE r.seq IS NULL LIMIT 10`},
		{"the list of runs says that a run has ended, and no record does", `SELECT u.id, CAST(u.end_seq AS INTEGER)
			FROM runs u LEFT JOIN records r ON r.seq = u.end_seq AND r.run = u.id
			WHERE u.state <> 'running' AND r.seq IS NULL LIMIT 10`},
		{"there is output of a run that never was", `SELECT run, 0 FROM outputs
			WHERE run NOT IN (SELECT id FROM runs) LIMIT 10`},
		{"there is an artifact of a run that never was", `SELECT run, 0 FROM artifacts
			WHERE run NOT IN (SELECT id FROM runs) LIMIT 10`},
		{"there is a payload of a record that never was", `SELECT '', seq FROM payloads
			WHERE seq NOT IN (SELECT seq FROM records) LIMIT 10`},
	} {
		rows, err := v.tx.Query(v.ctx, q.text)
		if err != nil {
			return err
		}
		for rows.Next() && err == nil {
			var run string
			var seq int64
			if err = rows.Scan(&run, &seq); err == nil {
				v.problem(seq, run, problemChanged, "%s", q.what)
			}
		}
		if err := errors.Join(err, rows.Err(), rows.Close()); err != nil {
			return err
		}
	}
	return nil
}
