package trace

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"glovebox"
	"glovebox/internal/store"
)

const (
	listDefault = 50
	listMost    = 1000
	listCode    = 1 << 10  // bytes of code in a list
	pieceMost   = 16 << 20 // bytes of one piece of output
)

const selectRuns = `SELECT r.id, r.tenant, r.state, r.erased_ns, r.start_seq, r.end_seq,
	a.skeleton, ap.salt, ap.body, b.skeleton, b.root, b.signature, bp.salt, bp.body
	FROM runs r JOIN records a ON a.seq = r.start_seq LEFT JOIN payloads ap ON ap.seq = a.seq
	LEFT JOIN records b ON b.seq = r.end_seq AND r.end_seq > r.start_seq LEFT JOIN payloads bp ON bp.seq = b.seq `

// Get returns the record of one run. A run of another tenant is not found, as if it did not exist.
func (t *Trace) Get(ctx context.Context, tenant, id string) (*glovebox.Record, error) {
	var rec *glovebox.Record
	if err := t.adopt(ctx); err != nil {
		return nil, Explain("read record", err)
	}
	err := t.store.View(ctx, func(tx *store.Tx) error {
		var err error
		rec, err = scanRecord(tx.QueryRow(ctx, selectRuns+"WHERE r.id = ? AND r.tenant = ?", id, tenant))
		if err != nil {
			return orNoRun(id, err)
		}
		if _, cut := rec.Cut["artifacts"]; cut && rec.Result != nil && rec.Erased.IsZero() {
			// A record lists some; all that were kept stand beside it.
			if _, rec.Result.Artifacts, err = readKept(ctx, tx, id); err == nil {
				delete(rec.Cut, "artifacts")
			}
		}
		return err
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
	if err := t.adopt(ctx); err != nil {
		return nil, Explain("list records", err)
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
		for _, bound := range []struct {
			clause string
			at     time.Time
		}{{" AND r.started_ns >= ?", q.Since}, {" AND r.started_ns < ?", q.Until}} {
			if !bound.at.IsZero() {
				where, args = where+bound.clause, append(args, bound.at.UnixNano())
			}
		}
		rows, err := tx.Query(ctx, selectRuns+where+" ORDER BY r.start_seq DESC LIMIT ?", append(args, q.Limit)...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			rec, err := scanRecord(rows)
			if altered := new(alteredError); errors.As(err, &altered) {
				// One that was tampered with does not hide the others.
				rec, err = altered.record, nil
			}
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

// scanRecord puts a run's records together, after checking each payload against its skeleton.
func scanRecord(row interface{ Scan(...any) error }) (*glovebox.Record, error) {
	var id, tenant, state string
	var erasedNS, startSeq, endSeq int64
	var first, last stored
	err := row.Scan(&id, &tenant, &state, &erasedNS, &startSeq, &endSeq, &first.skeleton, &first.salt, &first.body,
		&last.skeleton, &last.root, &last.signature, &last.salt, &last.body)
	if err != nil {
		return nil, err
	}
	first.seq, first.run, first.erased = startSeq, id, erasedNS != 0
	last.seq, last.run, last.erased = endSeq, id, erasedNS != 0
	k, p, err := first.open()
	if err != nil {
		return nil, err
	}
	if k.Principal == nil || k.Decision == nil || k.Principal.Tenant != tenant {
		return nil, first.altered(errors.New("it is no start of a run of its tenant"))
	}
	rec := &glovebox.Record{
		ID: id, State: state, Started: k.Time, Principal: *k.Principal, Lang: k.Lang, Argv: p.Argv, Args: p.Args,
		Code: glovebox.Untrusted(p.Code), CodeBytes: k.CodeBytes, CodeSHA256: p.CodeSHA256, EnvNames: p.EnvNames,
		Inputs: p.Inputs, Decision: *k.Decision, Image: k.Image, Cut: p.Cut, StartSeq: startSeq, Error: cmp.Or(p.Error, k.Error),
	}
	if p.CodeBase64 != nil {
		rec.Code = glovebox.Untrusted(p.CodeBase64)
	}
	if p.Decision != nil {
		rec.Decision.Reason, rec.Decision.Fix = p.Decision.Reason, p.Decision.Fix
		rec.Decision.Grant.Egress, rec.Decision.Grant.Secrets = p.Decision.Egress, p.Decision.Secrets
	}
	if first.erased {
		rec.Erased = time.Unix(0, erasedNS).UTC()
	}
	if state == "refused" {
		rec.Ended = k.Time
	}
	if last.skeleton == nil {
		return rec, nil
	}
	return rec, last.finish(rec)
}

// finish adds an end to the record of its run.
func (s *stored) finish(rec *glovebox.Record) error {
	k, p, err := s.open()
	if err != nil {
		return err
	}
	rec.Ended, rec.Result, rec.Error = k.Time, k.Result, cmp.Or(p.Error, k.Error)
	if rec.Result != nil {
		h := head{size: s.seq, signature: string(s.signature)}
		copy(h.root[:], s.root)
		rec.Result.Trace = h.ref()
		if t := p.Result; t != nil {
			r := rec.Result
			r.Reason, r.Stdout, r.Stderr = t.Reason, t.Stdout, t.Stderr
			r.Artifacts, r.Skipped, r.Egress = t.Artifacts, t.Skipped, t.Egress
		}
	}
	for name, c := range p.Cut {
		if rec.Cut == nil {
			rec.Cut = map[string]glovebox.Cut{}
		}
		rec.Cut[name] = c
	}
	return nil
}

// stored is a record as it lies in the database.
type stored struct {
	seq                  int64
	run                  string
	erased               bool
	skeleton, salt, body []byte
	root, signature      []byte
}

// alteredError is that a record is not what it was.
type alteredError struct {
	known  *glovebox.Error
	record *glovebox.Record // what is left to say of its run
}

func (e *alteredError) Error() string { return e.known.Error() }
func (e *alteredError) Unwrap() error { return e.known }

func (s *stored) altered(err error) error {
	known := &glovebox.Error{Code: glovebox.CodeInternal, Op: "read record", Err: err,
		Public: fmt.Sprintf("record %d of the trace was changed after it was written", s.seq), Fix: fixAltered}
	return &alteredError{known, &glovebox.Record{ID: s.run, State: "changed", StartSeq: s.seq,
		Error: &glovebox.ErrorShown{Code: known.Code, Message: known.Public, Fix: known.Fix}}}
}

const fixAltered = "`glovebox trace verify` names all that does not hold; a backup of the data_dir has what was there"

// open reads a record. The payload is empty when it was erased.
func (s *stored) open() (k skeleton, p payload, err error) {
	if err := json.Unmarshal(s.skeleton, &k); err != nil {
		return k, p, s.altered(err)
	}
	if k.Run != s.run {
		return k, p, s.altered(errors.New("it is not of the run that names it"))
	}
	if s.body == nil && (s.erased || k.Payload == "") {
		return k, p, nil
	}
	if s.body == nil || commitment(s.salt, s.body) != k.Payload {
		return k, p, s.altered(errors.New("its payload is not what it was sealed with"))
	}
	if err := p.read(s.body); err != nil {
		return k, p, s.altered(err)
	}
	return k, p, nil
}

// read reads a body, in either form.
func (p *payload) read(body []byte) error {
	if err := json.Unmarshal(body, p); err != nil {
		return err
	}
	if p.Found == nil {
		return nil
	}
	found, kept := p.Found, p.Kept
	err := json.Unmarshal(found, p)
	p.Found, p.Kept = found, kept
	return err
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
	if err := t.adopt(ctx); err != nil {
		return nil, Explain("read output", err)
	}
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
	var erased int64
	err := tx.QueryRow(ctx, "SELECT state, erased_ns FROM runs WHERE id = ? AND tenant = ?", id, tenant).Scan(&state, &erased)
	switch {
	case err != nil:
		return orNoRun(id, err)
	case state == "running":
		return glovebox.Errorf(glovebox.CodeConflict, "wait until it has ended", "the run is still running")
	case erased != 0:
		return glovebox.Errorf(glovebox.CodeNotFound, "keep more with trace.retention or trace.data_limit in the configuration",
			"what the run left was erased by retention on %s", time.Unix(0, erased).UTC().Format(time.DateTime))
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
