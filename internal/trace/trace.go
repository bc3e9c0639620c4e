// Package trace is the durable record of what ran: who asked, what was decided, what was started and how it ended.
//
// A record is a leaf of a Merkle log (golang.org/x/mod/sumdb/tlog): a skeleton that is never changed or removed and a
// payload that retention can erase, bound to it by a salted hash. After each record the head of the tree is signed. The
// log's hashes and the head are written in the transaction of the record, so that there are no gaps, whichever process dies
// when. Bodies are bounded whatever a run holds: what is too large is kept as its beginning with its length and hash. They
// hold names, never values, of what may be secret.
//
// Start, Refused and End return when the record is on the disk. Calls that come together share one sync of the disk.
package trace

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync/atomic"
	"time"

	"glovebox"
	"glovebox/internal/store"
)

// Config is what a Trace is made of.
type Config struct {
	// Store keeps the records. It stays the caller's and must be open while the Trace is used.
	Store *store.Store
	// Key is the path of the file of the key that signs. It is made, mode 0600, when it is missing and nothing was signed yet.
	Key string
	// Heads says where signed tree heads go besides the store.
	Heads Heads
	// Retention says what is erased when; see Retain.
	Retention Retention
	// Log gets what no caller can be told: heads of ended runs that did not arrive. Nil discards.
	Log *slog.Logger
	// Now tells the time; nil means time.Now.
	Now func() time.Time
}

// Trace writes and reads the record. Its methods are safe for concurrent use, by any number of processes on one store. Their
// errors are *[glovebox.Error]: unavailable when the record cannot be written, with what mends it. Those of End are
// internal, since something has run by then.
type Trace struct {
	store     *store.Store
	keys      keys
	heads     publisher
	retention Retention
	now       func() time.Time
	self      owner
	blobRest  time.Duration
	adopted   atomic.Bool
	last      atomic.Pointer[appended] // signed by this process on top of what it had checked
}

// New makes a Trace. It makes the key when there is none and nothing was signed yet. A key that cannot be used is told by
// the first write, and by Ready; what is there can be read without it. It claims in the store that it lives: until the store
// is closed nobody takes its runs for interrupted. The caller closes the Trace before the store.
func New(ctx context.Context, cfg Config) (*Trace, error) {
	if cfg.Store == nil || cfg.Key == "" {
		return nil, errors.New("new trace: no store or no key was named")
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	self, err := newOwner()
	if err != nil {
		return nil, fmt.Errorf("new trace: %w", err)
	}
	if err := cfg.Store.Claim(self.name()); err != nil {
		return nil, fmt.Errorf("new trace: %w", err)
	}
	t := &Trace{store: cfg.Store, keys: keys{path: cfg.Key}, heads: publisher{to: cfg.Heads, now: cfg.Now, log: cfg.Log},
		retention: cfg.Retention, now: cfg.Now, self: self, blobRest: blobRest}
	if _, err := t.keys.get(); !errors.Is(err, fs.ErrNotExist) {
		return t, nil // what is wrong with a key is told by whoever needs it
	}
	var size int64
	err = t.store.View(ctx, func(tx *store.Tx) error {
		return tx.QueryRow(ctx, "SELECT size FROM log WHERE id = 1").Scan(&size)
	})
	if err == nil && size == 0 {
		err = t.keys.make()
	}
	if err != nil && !errors.Is(err, sql.ErrNoRows) && !isKnown(err) {
		return nil, err
	}
	return t, nil
}

func isKnown(err error) bool {
	var known *glovebox.Error
	return errors.As(err, &known)
}

// Ready says why nothing can be recorded.
func (t *Trace) Ready() error {
	_, err := t.keys.get()
	if err == nil {
		err = t.heads.ready()
	}
	return Explain("look at the trace", err)
}

// Close closes where heads go.
func (t *Trace) Close() error { return t.heads.close() }

// NewID makes the id of a run: unique, hard to guess and, over milliseconds, in the order of now.
func NewID(now time.Time) string {
	const digits = "0123456789abcdefghijklmnopqrstuv" // in the order of their bytes, five bits each
	var id [20]byte
	for i, ms := 9, uint64(now.UnixMilli()); i >= 0; i, ms = i-1, ms>>5 {
		id[i] = digits[ms&31]
	}
	var random [10]byte
	_, _ = rand.Read(random[:]) // never fails: it ends the program instead
	for i, b := range random {
		id[10+i] = digits[b&31]
	}
	return "run_" + string(id[:])
}

// Start is what is recorded before anything of a run is released. Its slices are read during the call only.
type Start struct {
	ID        string // from NewID
	Principal glovebox.Principal
	Lang      string
	Argv      []string
	Args      []string
	Code      []byte   // kept whole up to 64 KiB, else its beginning; its length and hash always
	EnvNames  []string // names only: a value may be a secret
	Inputs    []glovebox.InputRecord
	Decision  glovebox.Decision
	Image     string
}

// Start records that a run begins and returns the number of the record, once it is on the disk and its head is where heads
// go: only then may the code be released. A run that was started already is a conflict. ctx ends the wait for a turn; an
// outcome is waited for.
func (t *Trace) Start(ctx context.Context, s Start) (int64, error) {
	rec, err := t.startRecord(kindStart, s, nil)
	if err != nil {
		return 0, Explain("record start", err)
	}
	if err := t.heads.ready(); err != nil {
		return 0, Explain("record start", err)
	}
	err = t.store.Update(ctx, func(ctx context.Context, tx *store.Tx) error {
		err := t.append(ctx, tx, rec, 0)
		if err == nil {
			_, err = tx.Exec(ctx, `INSERT INTO runs (id, tenant, state, started_ns, start_seq, owner_pid, owner_start, owner_boot)
				VALUES (?, ?, 'running', ?, ?, ?, ?, ?)`,
				s.ID, s.Principal.Tenant, rec.skeleton.Time.UnixNano(), rec.seq, t.self.PID, t.self.Start, t.self.Boot)
		}
		return notFresh(ctx, tx, s.ID, err)
	})
	if err != nil {
		return 0, Explain("record start", err)
	}
	if err := t.heads.publish(rec.head); err != nil {
		// It begins no more; its end is recorded as far as can be.
		_, _ = t.End(context.WithoutCancel(ctx), End{ID: s.ID, Err: err})
		return 0, err
	}
	return rec.seq, nil
}

// Refused records a request that was refused before anything was started: one record tells both what was asked and why
// not. refusal is what the caller is told.
func (t *Trace) Refused(ctx context.Context, s Start, refusal *glovebox.Error) (glovebox.TraceRef, error) {
	rec, err := t.startRecord(kindRefused, s, refusal)
	if err != nil {
		return glovebox.TraceRef{}, Explain("record refusal", err)
	}
	err = t.store.Update(ctx, func(ctx context.Context, tx *store.Tx) error {
		err := t.append(ctx, tx, rec, 0)
		if err == nil {
			ns := rec.skeleton.Time.UnixNano()
			_, err = tx.Exec(ctx, `INSERT INTO runs (id, tenant, state, started_ns, ended_ns, start_seq, end_seq)
				VALUES (?, ?, 'refused', ?, ?, ?, ?)`, s.ID, s.Principal.Tenant, ns, ns, rec.seq, rec.seq)
		}
		return notFresh(ctx, tx, s.ID, err)
	})
	if err == nil {
		t.heads.late(rec.head)
	}
	return rec.ref(err), Explain("record refusal", err)
}

// Kept is what was kept of one stream, in memory or, when Path is set, in a file. End takes the file over; after an error
// of End it may be tried again with the same Kept.
type Kept struct {
	Data   []byte
	Path   string
	SHA256 string // hex, of the kept bytes; checked when set
}

// End is how a run ended: with a Result or, when Glovebox failed, with Err. Its parts are read during the call only.
type End struct {
	ID     string
	Result *glovebox.Result // its Trace is ignored; its Artifacts were kept with Put
	Err    *glovebox.Error
	Stdout Kept
	Stderr Kept
}

// End records how a run ended, with its output and artifacts, in one transaction. There is one end for each start: a second
// one is a conflict, and one without a start is not found. The views of a Result are kept up to 16 KiB each. Any other error
// is internal and nothing of this end was kept: a smaller one may be tried.
func (t *Trace) End(ctx context.Context, e End) (glovebox.TraceRef, error) {
	if (e.Result == nil) == (e.Err == nil) {
		return glovebox.TraceRef{}, notRecorded("record end", errors.New("an end is a result or an error, one of them"))
	}
	outputs, err := t.keepOutputs(e)
	if err != nil {
		return glovebox.TraceRef{}, notRecorded("keep output", err)
	}
	rec, err := t.endRecord(e, "ended", outputs)
	if err != nil {
		return glovebox.TraceRef{}, notRecorded("record end", err)
	}
	var artifacts []glovebox.Artifact
	if e.Result != nil {
		artifacts = e.Result.Artifacts
	}
	err = t.store.Update(ctx, func(ctx context.Context, tx *store.Tx) error {
		// Here, since retention removes blobs within a transaction.
		if err := t.checkKept(outputs, artifacts); err != nil {
			return err
		}
		if err := t.closeRun(ctx, tx, rec, keptBytes(outputs, artifacts)); err != nil {
			return err
		}
		return insertKept(ctx, tx, e.ID, outputs, artifacts)
	})
	if err == nil {
		t.heads.late(rec.head)
	}
	return rec.ref(err), notRecorded("record end", err)
}

func insertKept(ctx context.Context, tx *store.Tx, id string, outputs []keptOutput, artifacts []glovebox.Artifact) error {
	for _, o := range outputs {
		_, err := tx.Exec(ctx, `INSERT INTO outputs (run, stream, bytes, sha256, data) VALUES (?, ?, ?, ?, ?)`,
			id, o.stream, o.bytes, o.sha, o.data)
		if err != nil {
			return err
		}
	}
	for _, a := range artifacts {
		_, err := tx.Exec(ctx, `INSERT INTO artifacts (run, path, sha256, bytes, media_type) VALUES (?, ?, ?, ?, ?)`,
			id, a.Path, a.SHA256, a.Bytes, a.MediaType)
		if err != nil {
			return err
		}
	}
	return nil
}

// closeRun appends the end record of a run that is running and marks the run.
func (t *Trace) closeRun(ctx context.Context, tx *store.Tx, rec *record, beside int64) error {
	id := rec.skeleton.Run
	err := t.append(ctx, tx, rec, beside)
	if err == nil {
		var closed int64
		closed, err = tx.Exec(ctx, `UPDATE runs SET state = ?, status = ?, ended_ns = ?, end_seq = ?
			WHERE id = ? AND state = 'running'`,
			rec.skeleton.State, rec.skeleton.status(), rec.skeleton.Time.UnixNano(), rec.seq, id)
		if err == nil && closed == 1 {
			return nil
		}
	}
	// What keeps a second end out, and one without a start, is the tables; why is looked for afterwards.
	was, failed := stateOf(ctx, tx, id)
	switch {
	case failed == nil && was == "":
		return noRun(id)
	case failed == nil && was != "running":
		return glovebox.Errorf(glovebox.CodeConflict, "read how it ended with `glovebox trace show "+beginning(id, 64)+"`",
			"the run %q has its end already: it is %s", beginning(id, 64), was)
	case err == nil:
		err = errors.Join(errors.New("the run is not the one that it was"), failed)
	}
	return err
}

// status is how the program of an end ended, empty when Glovebox failed.
func (k *skeleton) status() string {
	if k.Result == nil {
		return ""
	}
	return string(k.Result.Status)
}

// stateOf is the state of a run, empty when there is no such run.
func stateOf(ctx context.Context, tx *store.Tx, id string) (string, error) {
	var state string
	err := tx.QueryRow(ctx, "SELECT state FROM runs WHERE id = ?", id).Scan(&state)
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	return state, err
}

// notFresh says why a run could not be begun when that failed because there is one of its id, which the tables keep out.
func notFresh(ctx context.Context, tx *store.Tx, id string, err error) error {
	if err == nil {
		return nil
	}
	if was, failed := stateOf(ctx, tx, id); failed == nil && was != "" {
		err = glovebox.Errorf(glovebox.CodeConflict, "give each run an id of its own",
			"there is a run %q already: it is %s", beginning(id, 64), was)
	}
	return err
}

// Artifacts is where artifacts are kept while they are collected. They must be on the disk, by its Commit, before an end
// names them.
func (t *Trace) Artifacts() *store.Batch { return t.store.NewBatch() }
