package trace

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"glovebox"
	"glovebox/internal/store"
)

const (
	listDefault = 50
	listMost    = 1000
	listCode    = 1 << 10  // bytes of code in a list
	pieceMost   = 16 << 20 // bytes of one piece of output
)

const selectRuns = `SELECT r.id, r.tenant, r.state, r.started_ns, r.ended_ns, r.start_seq, r.end_seq,
	a.body, a.sha256, b.body, b.sha256 FROM runs r JOIN records a ON a.seq = r.start_seq
	LEFT JOIN records b ON b.seq = r.end_seq AND r.end_seq > r.start_seq `

// Get returns the record of one run. A run of another tenant is not found, as if it did not exist.
func (t *Trace) Get(ctx context.Context, tenant, id string) (*glovebox.Record, error) {
	var rec *glovebox.Record
	err := t.store.View(ctx, func(tx *store.Tx) error {
		var err error
		rec, err = scanRecord(tx.QueryRow(ctx, selectRuns+"WHERE r.id = ? AND r.tenant = ?", id, tenant))
		return orNoRun(id, err)
	})
	if err != nil {
		return nil, Explain("read record", err)
	}
	return rec, nil
}

// List returns records of a tenant, newest first. To bound a list, code is cut to its first KiB and the text of standard
// output and error is left out of results; Get has them.
func (t *Trace) List(ctx context.Context, tenant string, q glovebox.TraceQuery) ([]glovebox.Record, error) {
	switch {
	case q.Limit == 0:
		q.Limit = listDefault
	case q.Limit < 0 || q.Limit > listMost:
		return nil, glovebox.Errorf(glovebox.CodeInvalid, fmt.Sprintf("ask for 1 to %d records", listMost),
			"%d is no number of records", q.Limit)
	}
	list := []glovebox.Record{}
	err := t.store.View(ctx, func(tx *store.Tx) error {
		where, args := "WHERE r.tenant = ?", []any{tenant}
		if q.Before != "" {
			var seq int64
			err := tx.QueryRow(ctx, "SELECT start_seq FROM runs WHERE id = ? AND tenant = ?", q.Before, tenant).Scan(&seq)
			if err != nil {
				return orNoRun(q.Before, err)
			}
			where, args = where+" AND r.start_seq < ?", append(args, seq)
		}
		if q.Status != "" {
			where, args = where+" AND r.status = ?", append(args, string(q.Status))
		}
		rows, err := tx.Query(ctx, selectRuns+where+" ORDER BY r.start_seq DESC LIMIT ?", append(args, q.Limit)...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			rec, err := scanRecord(rows)
			if err != nil {
				return err
			}
			rec.Code = glovebox.Untrusted(beginning(string(rec.Code), listCode))
			if rec.Result != nil {
				rec.Result.Stdout, rec.Result.Stderr = "", ""
			}
			list = append(list, *rec)
		}
		return rows.Err()
	})
	if err != nil {
		return nil, Explain("list records", err)
	}
	return list, nil
}

// scanRecord puts a run's records together, after checking each against its hash and its run.
func scanRecord(row interface{ Scan(...any) error }) (*glovebox.Record, error) {
	var id, tenant, state string
	var startedNS, endedNS, startSeq, endSeq int64
	var first, firstSum, last, lastSum []byte
	err := row.Scan(&id, &tenant, &state, &startedNS, &endedNS, &startSeq, &endSeq, &first, &firstSum, &last, &lastSum)
	if err != nil {
		return nil, err
	}
	var start startBody
	if err := open(first, firstSum, &start); err != nil {
		return nil, fmt.Errorf("record %d: %w", startSeq, err)
	}
	if start.Run != id || start.Principal.Tenant != tenant {
		return nil, fmt.Errorf("record %d is not of the run that names it", startSeq)
	}
	rec := &glovebox.Record{
		ID: id, State: state, Started: start.Time, Principal: start.Principal, Lang: start.Lang, Argv: start.Argv,
		Args: start.Args, Code: glovebox.Untrusted(start.Code), CodeBytes: start.CodeBytes, CodeSHA256: start.CodeSHA256,
		EnvNames: start.EnvNames, Inputs: start.Inputs, Decision: start.Decision, Image: start.Image, Cut: start.Cut,
		StartSeq: startSeq, Error: start.Error,
	}
	if start.CodeBase64 != nil {
		rec.Code = glovebox.Untrusted(start.CodeBase64)
	}
	if state == "refused" {
		rec.Ended = start.Time
	}
	if last == nil {
		return rec, nil
	}
	var end endBody
	if err := open(last, lastSum, &end); err != nil {
		return nil, fmt.Errorf("record %d: %w", endSeq, err)
	}
	if end.Run != id {
		return nil, fmt.Errorf("record %d is not of the run that names it", endSeq)
	}
	rec.Ended, rec.Result, rec.Error = end.Time, end.Result, end.Error
	if rec.Result != nil {
		rec.Result.Trace = glovebox.TraceRef{Seq: endSeq, Hash: hex.EncodeToString(lastSum)}
	}
	for name, c := range end.Cut {
		if rec.Cut == nil {
			rec.Cut = map[string]glovebox.Cut{}
		}
		rec.Cut[name] = c
	}
	return rec, nil
}

func open(body, sum []byte, into any) error {
	if got := sha256.Sum256(body); string(got[:]) != string(sum) {
		return errors.New("its body is not what its hash was made of")
	}
	return json.Unmarshal(body, into)
}

// Output reads a piece of what a run printed, exactly as it was kept. The piece is shorter than limit only at the end.
// Stream is stdout or stderr; limit is at most 16 MiB. While the run goes on it is a conflict.
func (t *Trace) Output(ctx context.Context, tenant, id, stream string, offset, limit int64) ([]byte, error) {
	if stream != "stdout" && stream != "stderr" {
		return nil, glovebox.Errorf(glovebox.CodeInvalid, "say stdout or stderr", "no stream is called %q", beginning(stream, 64))
	}
	if offset < 0 || limit < 0 || limit > pieceMost {
		return nil, glovebox.Errorf(glovebox.CodeInvalid, fmt.Sprintf("an offset is 0 or more, a limit 0 to %d bytes", pieceMost),
			"no piece of output is at %d with %d bytes", offset, limit)
	}
	var size int64
	var sha string
	var piece []byte
	var small bool
	err := t.store.View(ctx, func(tx *store.Tx) error {
		if err := ended(ctx, tx, tenant, id); err != nil {
			return err
		}
		err := tx.QueryRow(ctx, `SELECT bytes, sha256, data IS NOT NULL, substr(data, ?, ?) FROM outputs
			WHERE run = ? AND stream = ?`, min(offset, inlineBytes)+1, limit, id, stream).Scan(&size, &sha, &small, &piece)
		if errors.Is(err, sql.ErrNoRows) {
			small = true
			return unkept(ctx, tx, tenant, id, stream)
		}
		return err
	})
	if err != nil {
		return nil, Explain("read output", err)
	}
	if small {
		return piece, nil
	}
	f, err := t.store.Open(sha)
	if err != nil {
		return nil, Explain("read output", err)
	}
	defer f.Close()
	piece = make([]byte, max(0, min(limit, size-offset)))
	if _, err := f.ReadAt(piece, offset); err != nil {
		return nil, Explain("read output", err) // the piece lies within the blob, so that its end is an error too
	}
	return piece, nil
}

// unkept is for a stream of which nothing is kept: nil when nothing was printed on it.
func unkept(ctx context.Context, tx *store.Tx, tenant, id, stream string) error {
	rec, err := scanRecord(tx.QueryRow(ctx, selectRuns+"WHERE r.id = ? AND r.tenant = ?", id, tenant))
	if err != nil || rec.Result == nil {
		return err
	}
	printed := rec.Result.StdoutBytes
	if stream == "stderr" {
		printed = rec.Result.StderrBytes
	}
	if printed == 0 {
		return nil
	}
	return glovebox.Errorf(glovebox.CodeNotFound, "the run's record shows what there is of it: `glovebox trace show "+
		beginning(id, 64)+"`", "nothing of the %d bytes that the run printed on %s was kept", printed, stream)
}

// OpenArtifact opens a file that a run left in /outputs, by its Artifact.Path. The caller closes it.
func (t *Trace) OpenArtifact(ctx context.Context, tenant, id, path string) (io.ReadCloser, error) {
	var sha string
	err := t.store.View(ctx, func(tx *store.Tx) error {
		if err := ended(ctx, tx, tenant, id); err != nil {
			return err
		}
		err := tx.QueryRow(ctx, "SELECT sha256 FROM artifacts WHERE run = ? AND path = ?", id, path).Scan(&sha)
		if errors.Is(err, sql.ErrNoRows) {
			return glovebox.Errorf(glovebox.CodeNotFound, "the run's result lists its artifacts",
				"the run has no artifact %q", beginning(path, 256))
		}
		return err
	})
	if err != nil {
		return nil, Explain("open artifact", err)
	}
	f, err := t.store.Open(sha)
	if err != nil {
		return nil, Explain("open artifact", err)
	}
	return f, nil
}

// ended says why there is nothing to read of a run: it is not the tenant's, or it is not over.
func ended(ctx context.Context, tx *store.Tx, tenant, id string) error {
	var state string
	err := tx.QueryRow(ctx, "SELECT state FROM runs WHERE id = ? AND tenant = ?", id, tenant).Scan(&state)
	if err != nil {
		return orNoRun(id, err)
	}
	if state == "running" {
		return glovebox.Errorf(glovebox.CodeConflict, "wait until it has ended", "the run is still running")
	}
	return nil
}

func noRun(id string) error {
	return glovebox.Errorf(glovebox.CodeNotFound, "list the runs with `glovebox trace ls`",
		"there is no run %q", beginning(id, 64))
}

// orNoRun makes the absence of a row the absence of the run.
func orNoRun(id string, err error) error {
	if errors.Is(err, sql.ErrNoRows) {
		return noRun(id)
	}
	return err
}
