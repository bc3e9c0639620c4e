package trace

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"glovebox"
	"glovebox/internal/store"
)

// Retention bounds what is kept beyond the skeletons of records: code, arguments, texts, output, artifacts. Zero fields are
// no bound.
type Retention struct {
	Age   time.Duration // since a run's end
	Bytes glovebox.Size // of all that is kept; a file that two runs left counts twice
}

const (
	eraseTogether = 50 // runs of one transaction
	retainRounds  = 20 // transactions of one Retain
	// blobRest is how long a blob that nothing names any more rests: a run that is ending may have put it again, and names it
	// within minutes.
	blobRest = time.Hour
)

// Retain erases what the bounds say, oldest first, never of a run that goes on, and returns of how many runs. It does a
// bounded amount of work, at least a little even when ctx has ended; more tells that it has not come to the end. What
// was erased is recorded.
func (t *Trace) Retain(ctx context.Context) (runs int, more bool, err error) {
	if t.retention == (Retention{}) {
		return 0, false, nil
	}
	for range retainRounds {
		n, err := t.eraseSome(context.WithoutCancel(ctx))
		if runs += n; err != nil || n < eraseTogether || ctx.Err() != nil {
			more = n == eraseTogether
			return runs, more, Explain("erase by retention", errors.Join(err, t.removeBlobs(context.WithoutCancel(ctx))))
		}
	}
	return runs, true, Explain("erase by retention", t.removeBlobs(context.WithoutCancel(ctx)))
}

type erasable struct {
	run      string
	from, to int64 // its records
	endedNS  int64
}

// eraseSome erases up to eraseTogether runs. When there is nothing to erase it only reads.
func (t *Trace) eraseSome(ctx context.Context) (n int, err error) {
	var list []erasable
	err = t.store.View(ctx, func(tx *store.Tx) error { list, _, err = t.due(ctx, tx); return err })
	if err != nil || len(list) == 0 {
		return 0, err
	}
	var last head
	err = t.store.Update(ctx, func(ctx context.Context, tx *store.Tx) error {
		list, over, err := t.due(ctx, tx) // again: another process may have done it
		if err != nil {
			return err
		}
		var seqs []int64
		var freed int64
		now := t.now()
		for n = 0; n < len(list); n++ {
			e := list[n]
			if over <= freed && !t.old(e, now) {
				break
			}
			bytes, err := erase(ctx, tx, e, now)
			if err != nil {
				return err
			}
			freed += bytes
			if seqs = append(seqs, e.from); e.to != e.from {
				seqs = append(seqs, e.to)
			}
		}
		if n == 0 {
			return nil
		}
		rec, err := seal(skeleton{Kind: kindErased, Time: now, Erased: seqs}, nil)
		if err != nil {
			return err
		}
		err = t.append(ctx, tx, rec, -freed)
		last = rec.head
		return err
	})
	if err != nil {
		return 0, err
	}
	t.heads.late(last)
	return n, nil
}

func (t *Trace) old(e erasable, now time.Time) bool {
	return t.retention.Age > 0 && e.endedNS < now.Add(-t.retention.Age).UnixNano()
}

// due lists the oldest ended runs that may have to be erased, and how many bytes are over the bound.
func (t *Trace) due(ctx context.Context, tx *store.Tx) (list []erasable, over int64, err error) {
	if t.retention.Bytes > 0 {
		if err := tx.QueryRow(ctx, "SELECT bytes FROM log WHERE id = 1").Scan(&over); err != nil {
			return nil, 0, err
		}
		over -= int64(t.retention.Bytes)
	}
	before := int64(1<<63 - 1)
	if over <= 0 {
		before = t.now().Add(-t.retention.Age).UnixNano()
		if t.retention.Age == 0 {
			return nil, over, nil
		}
	}
	rows, err := tx.Query(ctx, `SELECT id, start_seq, end_seq, ended_ns FROM runs WHERE erased_ns = 0 AND state <> 'running'
		AND ended_ns < ? ORDER BY ended_ns LIMIT ?`, before, eraseTogether)
	if err != nil {
		return nil, over, err
	}
	defer rows.Close()
	for rows.Next() {
		var e erasable
		if err := rows.Scan(&e.run, &e.from, &e.to, &e.endedNS); err != nil {
			return nil, over, err
		}
		list = append(list, e)
	}
	return list, over, rows.Err()
}

// erase removes all of a run but its skeletons and returns how many bytes that were. Its blobs are noted for removeBlobs.
func erase(ctx context.Context, tx *store.Tx, e erasable, now time.Time) (bytes int64, err error) {
	err = tx.QueryRow(ctx, `SELECT (SELECT coalesce(sum(length(body)), 0) FROM payloads WHERE seq IN (?1, ?2)) +
		(SELECT coalesce(sum(bytes), 0) FROM outputs WHERE run = ?3) +
		(SELECT coalesce(sum(bytes), 0) FROM artifacts WHERE run = ?3)`, e.from, e.to, e.run).Scan(&bytes)
	if err != nil {
		return 0, err
	}
	for _, s := range []struct {
		text string
		args []any
	}{
		{"DELETE FROM payloads WHERE seq IN (?, ?)", []any{e.from, e.to}},
		{"INSERT OR IGNORE INTO unnamed SELECT sha256 FROM outputs WHERE run = ? AND data IS NULL", []any{e.run}},
		{"INSERT OR IGNORE INTO unnamed SELECT sha256 FROM artifacts WHERE run = ?", []any{e.run}},
		{"DELETE FROM outputs WHERE run = ?", []any{e.run}},
		{"DELETE FROM artifacts WHERE run = ?", []any{e.run}},
		{"UPDATE runs SET erased_ns = ? WHERE id = ?", []any{now.UnixNano(), e.run}},
	} {
		if _, err := tx.Exec(ctx, s.text, s.args...); err != nil {
			return 0, err
		}
	}
	return bytes, nil
}

// removeBlobs removes the blobs that nothing names any more. It runs within transactions, so that no end that names one of
// them is recorded meanwhile: End looks for its blobs within its own.
func (t *Trace) removeBlobs(ctx context.Context) error {
	last := ""
	for range retainRounds {
		var waiting int
		err := t.store.View(ctx, func(tx *store.Tx) error {
			return tx.QueryRow(ctx, "SELECT EXISTS (SELECT 1 FROM unnamed WHERE sha256 > ?)", last).Scan(&waiting)
		})
		if err != nil || waiting == 0 {
			return err
		}
		err = t.store.Update(ctx, func(ctx context.Context, tx *store.Tx) error {
			for range eraseTogether {
				var sha string
				var named bool
				err := tx.QueryRow(ctx, `SELECT sha256, EXISTS (SELECT 1 FROM outputs o WHERE o.sha256 = u.sha256 AND o.data IS NULL) OR
					EXISTS (SELECT 1 FROM artifacts a WHERE a.sha256 = u.sha256) FROM unnamed u WHERE sha256 > ? ORDER BY sha256 LIMIT 1`,
					last).Scan(&sha, &named)
				if errors.Is(err, sql.ErrNoRows) {
					return nil
				}
				if err != nil {
					return err
				}
				last = sha
				gone := true
				if !named {
					if gone, err = t.store.Remove(sha, time.Now().Add(-t.blobRest)); err != nil {
						return err
					}
				}
				if gone {
					if _, err := tx.Exec(ctx, "DELETE FROM unnamed WHERE sha256 = ?", sha); err != nil {
						return err
					}
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
