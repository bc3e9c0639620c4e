package trace

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"errors"
	"time"

	"glovebox"
	"glovebox/internal/store"
)

// foundRow is a record that was written before there was a log.
type foundRow struct {
	seq       int64
	run, kind string
	timeNS    int64
	body, sum []byte
}

// adopt seals the records that were written before there was a log, once among processes and in one transaction: each as it
// is found, marked so, since nothing proves what it was before. Whoever reads calls it first; append does it by itself.
func (t *Trace) adopt(ctx context.Context) error {
	if t.adopted.Load() {
		return nil
	}
	waiting := func(tx *store.Tx) (n int64, err error) {
		err = tx.QueryRow(ctx, "SELECT found FROM log WHERE id = 1").Scan(&n)
		if errors.Is(err, sql.ErrNoRows) {
			err = nil // Verify tells that it is missing
		}
		return n, err
	}
	var n int64
	err := t.store.View(ctx, func(tx *store.Tx) (err error) { n, err = waiting(tx); return err })
	if err == nil && n > 0 {
		err = t.store.Update(ctx, func(_ context.Context, tx *store.Tx) error {
			if n, err := waiting(tx); err != nil || n == 0 {
				return err // another process did it
			}
			return t.adoptAll(ctx, tx)
		})
	}
	if err == nil {
		t.adopted.Store(true)
	}
	return err
}

func (t *Trace) adoptAll(ctx context.Context, tx *store.Tx) error {
	// First, since each record that is appended asks for it.
	if _, err := tx.Exec(ctx, "UPDATE log SET found = 0 WHERE id = 1"); err != nil {
		return err
	}
	for last := int64(0); ; {
		rows, err := foundRows(ctx, tx, last)
		if err != nil {
			return err
		}
		for _, f := range rows {
			if err := t.adoptOne(ctx, tx, f); err != nil {
				return err
			}
			last = f.seq
		}
		if len(rows) == 0 {
			// What is erased later must not be left here.
			_, err := tx.Exec(ctx, "DELETE FROM found")
			return err
		}
	}
}

func foundRows(ctx context.Context, tx *store.Tx, after int64) (list []foundRow, err error) {
	rows, err := tx.Query(ctx, `SELECT seq, run, kind, time_ns, body, sha256 FROM found WHERE seq > ?
		ORDER BY seq LIMIT 100`, after)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var f foundRow
		if err := rows.Scan(&f.seq, &f.run, &f.kind, &f.timeNS, &f.body, &f.sum); err != nil {
			return nil, err
		}
		list = append(list, f)
	}
	return list, rows.Err()
}

func (t *Trace) adoptOne(ctx context.Context, tx *store.Tx, f foundRow) error {
	var k skeleton
	p := &payload{Found: f.body}
	sum := sha256.Sum256(f.body)
	found := "unsealed"
	// The fields of a skeleton had the same names in the body; its texts go.
	if json.Unmarshal(f.body, &k) != nil || string(sum[:]) != string(f.sum) {
		k, found = skeleton{}, "altered"
	}
	k.Found, k.Run, k.Kind, k.Time, k.Payload, k.Erased = found, f.run, f.kind, time.Unix(0, f.timeNS), "", nil
	k.Error = bare(k.Error)
	if k.Decision != nil {
		k.Decision.Reason, k.Decision.Fix = "", ""
	}
	if k.Result != nil {
		k.Result, _ = split(*k.Result)
	}
	var beside int64
	if f.kind == kindEnd {
		outputs, artifacts, err := readKept(ctx, tx, f.run)
		if err != nil {
			return err
		}
		p.Kept, beside = listKept(outputs, artifacts), keptBytes(outputs, artifacts)
	}
	rec, err := seal(k, p)
	if err != nil {
		return err
	}
	if err := t.append(ctx, tx, rec, beside); err != nil {
		return err
	}
	columns := map[string]string{kindStart: "start_seq = ?1", kindEnd: "end_seq = ?1",
		kindRefused: "start_seq = ?1, end_seq = ?1"}
	set, ok := columns[f.kind]
	if rec.seq == f.seq || !ok {
		return nil
	}
	_, err = tx.Exec(ctx, "UPDATE runs SET "+set+" WHERE id = ?2", rec.seq, f.run)
	return err
}

// readKept reads the rows of what a run left beside its record, without data.
func readKept(ctx context.Context, tx *store.Tx, run string) (
	outputs []keptOutput, artifacts []glovebox.Artifact, err error) {
	rows, err := tx.Query(ctx, `SELECT stream, CAST(bytes AS INTEGER), sha256 FROM outputs WHERE run = ?
		ORDER BY stream DESC`, run)
	if err != nil {
		return nil, nil, err
	}
	for rows.Next() && err == nil {
		var o keptOutput
		err = rows.Scan(&o.stream, &o.bytes, &o.sha)
		outputs = append(outputs, o)
	}
	if err := errors.Join(err, rows.Err(), rows.Close()); err != nil {
		return nil, nil, err
	}
	rows, err = tx.Query(ctx, `SELECT path, sha256, CAST(bytes AS INTEGER), media_type FROM artifacts WHERE run = ?
		ORDER BY path`, run)
	if err != nil {
		return nil, nil, err
	}
	for rows.Next() && err == nil {
		var a glovebox.Artifact
		err = rows.Scan(&a.Path, &a.SHA256, &a.Bytes, &a.MediaType)
		artifacts = append(artifacts, a)
	}
	return outputs, artifacts, errors.Join(err, rows.Err(), rows.Close())
}
