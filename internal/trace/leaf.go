package trace

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"slices"

	"golang.org/x/mod/sumdb/tlog"

	"glovebox/internal/store"
)

// row is a stored record with the copies of its fields that are there to find it by, and what its run is listed as.
type row struct {
	stored
	kind   string
	timeNS int64
	listed listed
	// How many rows there are beside the record.
	outputs, artifacts int64
}

// listed is a run's row in the list of runs; all is nil when it is not listed.
type listed struct {
	tenant, state, status              sql.NullString
	started, ended, from, to, erasedNS sql.NullInt64
	pid, pidStart                      sql.NullInt64
	boot                               sql.NullString
}

// Numbers are cast, since the database takes a text in their place, which is to be named and not to end the walk.
const selectAll = `SELECT r.seq, r.run, r.kind, CAST(r.time_ns AS INTEGER), r.skeleton, r.root, r.signature, p.salt, p.body,
	u.tenant, u.state, u.status, CAST(u.started_ns AS INTEGER), CAST(u.ended_ns AS INTEGER), CAST(u.start_seq AS INTEGER),
	CAST(u.end_seq AS INTEGER), CAST(u.erased_ns AS INTEGER), CAST(u.owner_pid AS INTEGER), CAST(u.owner_start AS INTEGER),
	u.owner_boot,
	(SELECT count(*) FROM outputs o WHERE o.run = r.run), (SELECT count(*) FROM artifacts a WHERE a.run = r.run)
	FROM records r LEFT JOIN payloads p ON p.seq = r.seq LEFT JOIN runs u ON u.id = r.run ORDER BY r.seq`

func scanRow(rows *sql.Rows) (*row, error) {
	r := &row{}
	u := &r.listed
	err := rows.Scan(&r.seq, &r.run, &r.kind, &r.timeNS, &r.skeleton, &r.root, &r.signature, &r.salt, &r.body, &u.tenant,
		&u.state, &u.status, &u.started, &u.ended, &u.from, &u.to, &u.erasedNS, &u.pid, &u.pidStart, &u.boot,
		&r.outputs, &r.artifacts)
	return r, err
}

// record checks one record that is there: its place in the tree, its head, and what it commits to.
func (v *verifier) record(r *row) error {
	if err := v.place(r); err != nil {
		return err
	}
	var k skeleton
	if err := json.Unmarshal(r.skeleton, &k); err != nil {
		v.problem(r.seq, r.run, problemChanged, "record %d cannot be read", r.seq)
		return nil
	}
	if k.Run != r.run || k.Kind != r.kind || k.Time.UnixNano() != r.timeNS {
		v.problem(r.seq, k.Run, problemChanged, "record %d is listed by another run, kind or time than it has", r.seq)
	}
	switch k.Found {
	case "":
	case "altered":
		v.problem(r.seq, k.Run, problemChanged, "record %d had been changed before it was sealed", r.seq)
		fallthrough
	default:
		v.out.Found++
	}
	for _, seq := range k.Erased {
		v.erased[seq] = true
	}
	v.out.Head = head{size: r.seq, root: rootOf(r), signature: string(r.signature)}.ref()
	if !r.listed.agrees(&k, r.seq) && k.Found != "altered" {
		v.problem(r.seq, k.Run, problemChanged, "the list of runs does not say of record %d's run what the record says", r.seq)
	}
	v.bytes += int64(len(r.body))
	var p payload
	switch {
	case k.Payload == "":
		if r.body != nil {
			v.problem(r.seq, k.Run, problemChanged, "record %d has a payload and was sealed without", r.seq)
		}
		return nil
	case r.body == nil:
		v.lacking = append(v.lacking, r.seq)
		return nil
	case commitment(r.salt, r.body) != k.Payload || json.Unmarshal(r.body, &p) != nil:
		v.problem(r.seq, k.Run, problemChanged, "the payload of record %d was changed", r.seq)
		return nil
	case r.listed.erasedNS.Int64 != 0:
		v.problem(r.seq, k.Run, problemChanged, "the run of record %d is listed as erased, and it is not", r.seq)
	}
	if k.Kind != kindEnd {
		return nil
	}
	return v.kept(r, p.Kept)
}

func rootOf(r *row) (h tlog.Hash) {
	copy(h[:], r.root)
	return h
}

// place checks that the record is the leaf that was appended as its number, and the head that was signed after it.
func (v *verifier) place(r *row) error {
	stored, err := v.storedHashes(r.seq)
	if err != nil {
		return err
	}
	leaf, want := tlog.RecordHash(r.skeleton), rootOf(r)
	own, root, err := v.with(r.seq, leaf)
	if err != nil {
		return err
	}
	signed, mine := v.key.signed(head{size: r.seq, root: want, signature: string(r.signature)})
	told := false
	switch {
	case root == want:
		v.wrong = false
		if !slices.Equal(stored, own) {
			v.problem(r.seq, r.run, problemChanged, "a stored hash of record %d is missing or was changed", r.seq)
		}
	case stored[0] != leaf:
		// By what is stored it is another record that was appended here.
		if err := v.misplaced(r, leaf); err != nil {
			return err
		}
		told = true
		if own, root, err = v.with(r.seq, stored[0]); err != nil {
			return err
		}
		v.wrong = root != want
	case !v.wrong:
		v.wrong, told = true, true
		if signed {
			v.problem(r.seq, r.run, problemChanged, "record %d was changed together with its stored hash, or one before it was",
				r.seq)
		} else {
			v.problem(r.seq, r.run, problemForged, "record %d or the head that was signed after it was changed", r.seq)
		}
	}
	switch {
	case told || signed:
	case !mine:
		v.problem(r.seq, r.run, problemForged, "the head after record %d was not signed with this trace's key", r.seq)
	default:
		v.problem(r.seq, r.run, problemForged, "the signature of the head after record %d is forged", r.seq)
	}
	v.grow(r.seq, own, root)
	return nil
}

// misplaced tells of a record that is not what was appended in its place: it was changed, unless it was appended elsewhere.
func (v *verifier) misplaced(r *row, leaf tlog.Hash) error {
	var id int64
	if v.searched++; v.searched <= 10 { // each reads all hashes
		err := v.tx.QueryRow(v.ctx, "SELECT id FROM hashes WHERE hash = ? LIMIT 1", leaf[:]).Scan(&id)
		if err == nil {
			_, n := tlog.SplitStoredHashIndex(id)
			v.problem(r.seq, r.run, problemReordered, "record %d is not what was appended there, but what was appended as record %d",
				r.seq, n+1)
			return nil
		}
		if !errors.Is(err, sql.ErrNoRows) {
			return err
		}
	}
	v.problem(r.seq, r.run, problemChanged, "record %d was changed", r.seq)
	return nil
}

// agrees reports whether a run is listed as the record of it says.
func (u *listed) agrees(k *skeleton, seq int64) bool {
	switch k.Kind {
	case kindStart, kindRefused:
		if k.Principal == nil || !u.tenant.Valid || u.tenant.String != k.Principal.Tenant || u.from.Int64 != seq ||
			u.started.Int64 != k.Time.UnixNano() {
			return false
		}
		if k.Kind == kindRefused {
			return u.state.String == "refused" && u.to.Int64 == seq && u.ended.Int64 == k.Time.UnixNano() && u.status.String == "" &&
				u.pid.Int64 == 0 && u.pidStart.Int64 == 0 && u.boot.String == ""
		}
		running := u.state.String == "running" && u.to.Int64 == 0 && u.ended.Int64 == 0 && u.status.String == ""
		return k.Owner != nil && u.pid.Int64 == int64(k.Owner.PID) && u.pidStart.Int64 == int64(k.Owner.Start) &&
			u.boot.String == k.Owner.Boot && (running || u.to.Int64 > seq)
	case kindEnd:
		return u.state.String == k.State && u.status.String == k.status() && u.to.Int64 == seq &&
			u.ended.Int64 == k.Time.UnixNano()
	}
	return !u.tenant.Valid
}

// kept checks what a run left beside its end: the rows, and the bytes that they name.
func (v *verifier) kept(r *row, list *keptList) error {
	if list == nil {
		list = &keptList{}
	}
	if r.outputs == 0 && r.artifacts == 0 && len(list.Outputs) == 0 && list.Artifacts == 0 {
		return nil
	}
	outputs, artifacts, err := readKept(v.ctx, v.tx, r.run)
	if err != nil {
		return err
	}
	v.bytes += keptBytes(outputs, artifacts)
	there := listKept(outputs, artifacts)
	if !slices.Equal(there.Outputs, list.Outputs) {
		v.problem(r.seq, r.run, problemChanged, "what is kept of the output is not what record %d names", r.seq)
	}
	if there.Artifacts != list.Artifacts || there.ArtifactsSHA256 != list.ArtifactsSHA256 {
		v.problem(r.seq, r.run, problemChanged, "the artifacts that are kept are not those that record %d names", r.seq)
	}
	for _, o := range outputs {
		var data []byte
		err := v.tx.QueryRow(v.ctx, "SELECT data FROM outputs WHERE run = ? AND stream = ?", r.run, o.stream).Scan(&data)
		if err != nil {
			return err
		}
		holds := false
		if data != nil {
			v.out.Blobs++
			sum := sha256.Sum256(data)
			holds = hex.EncodeToString(sum[:]) == o.sha && int64(len(data)) == o.bytes
		} else if holds, err = v.blob(r.run, o.sha); err != nil {
			return err
		}
		if !holds {
			v.problem(r.seq, r.run, problemChanged, "the kept %s is missing or was changed: record %d names other bytes",
				o.stream, r.seq)
		}
	}
	for _, a := range artifacts {
		holds, err := v.blob(r.run, a.SHA256)
		if err != nil {
			return err
		}
		if !holds {
			v.problem(r.seq, r.run, problemChanged, "the artifact %q is missing or was changed: record %d names other bytes",
				beginning(a.Path, 256), r.seq)
		}
	}
	return nil
}

// blob reads a blob and reports whether its bytes are those of its name. One that retention removed meanwhile holds.
func (v *verifier) blob(run, sha string) (bool, error) {
	if holds, ok := v.seen[sha]; ok {
		return holds, nil
	}
	holds, err := v.readBlob(sha)
	if errors.Is(err, fs.ErrNotExist) {
		erased := int64(0)
		err = v.store.View(v.ctx, func(tx *store.Tx) error {
			return tx.QueryRow(v.ctx, "SELECT erased_ns FROM runs WHERE id = ?", run).Scan(&erased)
		})
		return erased != 0, err
	}
	if err == nil && len(v.seen) < seenMost {
		v.seen[sha] = holds
	}
	v.out.Blobs++
	return holds, err
}

func (v *verifier) readBlob(sha string) (bool, error) {
	f, err := v.store.Open(sha)
	if err != nil {
		return false, err
	}
	defer f.Close()
	stop := context.AfterFunc(v.ctx, func() { f.Close() })
	defer stop()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		if v.ctx.Err() != nil {
			return false, context.Cause(v.ctx)
		}
		return false, nil // it cannot be read, so it does not hold
	}
	return hex.EncodeToString(h.Sum(nil)) == sha, nil
}
