package trace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"glovebox"
	"glovebox/internal/store"
)

// fill records three runs, one with a blob of output and an artifact, and a refusal: seven records. It returns the heads.
func fill(t testing.TB, tr *Trace) []glovebox.TraceRef {
	t.Helper()
	var heads []glovebox.TraceRef
	for i := range 3 {
		id := fmt.Sprint("run_", i)
		mustStart(t, tr, someStart(id))
		res := someResult(id, glovebox.StatusExited)
		end := End{ID: id, Result: res, Stdout: Kept{Data: []byte("hi\n")}}
		if i == 1 {
			batch := tr.Artifacts()
			n, sha, err := batch.Put(strings.NewReader("picture"))
			if err = errors.Join(err, batch.Commit()); err != nil {
				t.Fatal(err)
			}
			res.Artifacts = []glovebox.Artifact{{Path: "b.png", Bytes: n, SHA256: sha, MediaType: "image/png"}}
			end.Stderr = Kept{Data: []byte(strings.Repeat("x", inlineBytes+1))}
		}
		heads = append(heads, mustEnd(t, tr, end))
	}
	ref, err := tr.Refused(t.Context(), someStart("run_no"), glovebox.Errorf(glovebox.CodeDenied, "ask", "no"))
	if err != nil {
		t.Fatal(err)
	}
	return append(heads, ref)
}

// tamper changes the database as whoever owns it can.
func tamper(t testing.TB, tr *Trace, statements ...string) {
	t.Helper()
	err := tr.store.Update(t.Context(), func(ctx context.Context, tx *store.Tx) error {
		for _, drop := range []string{"records_keep", "records_stay", "records_end_needs_start", "payloads_keep", "hashes_keep", "hashes_stay"} {
			if _, err := tx.Exec(ctx, "DROP TRIGGER IF EXISTS "+drop); err != nil {
				return err
			}
		}
		for _, s := range statements {
			if n, err := tx.Exec(ctx, s); err != nil {
				return fmt.Errorf("%s: %w", s, err)
			} else if n == 0 && !strings.HasPrefix(s, "DROP") && !strings.HasPrefix(s, "CREATE") {
				return fmt.Errorf("%s: nothing was changed", s)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func verify(t testing.TB, tr *Trace, heads ...glovebox.TraceRef) *glovebox.Verification {
	t.Helper()
	v, err := tr.Verify(t.Context(), heads)
	if err != nil {
		t.Fatal(err)
	}
	if v.OK != (len(v.Problems) == 0) {
		t.Errorf("ok is %v with problems %v", v.OK, v.Problems)
	}
	return v
}

func mustHold(t testing.TB, tr *Trace, heads ...glovebox.TraceRef) *glovebox.Verification {
	t.Helper()
	v := verify(t, tr, heads...)
	for _, p := range v.Problems {
		t.Errorf("record %d is %s: %s", p.Seq, p.Kind, p.Text)
	}
	return v
}

// wantFirst checks what verification names first.
func wantFirst(t testing.TB, v *glovebox.Verification, seq int64, kinds ...string) {
	t.Helper()
	if v.OK || v.Problems[0].Seq != seq || len(kinds) > 0 && !slices.Contains(kinds, v.Problems[0].Kind) {
		t.Errorf("problems %+v, want first %v of record %d", v.Problems, kinds, seq)
	}
}

// TestNothingOnTopOfChangedHashes: another process changed a stored hash behind the newest record; nothing is appended any
// more, by whoever appended last either, until it is put right.
func TestNothingOnTopOfChangedHashes(t *testing.T) {
	dir := t.TempDir()
	tr, other := newTrace(t, dir), newTrace(t, dir)
	mustStart(t, tr, someStart("run_a"))
	mustStart(t, other, someStart("run_b"))
	mustStart(t, tr, someStart("run_c"))
	tamper(t, other, "UPDATE hashes SET hash = zeroblob(32) WHERE id = 2") // of the first two records
	_, err := tr.Start(t.Context(), someStart("run_d"))
	wantCode(t, "a run on top of it", err, glovebox.CodeUnavailable)
	if !errors.Is(err, errBroken) {
		t.Errorf("error = %v", err)
	}
}

func TestVerifyHolds(t *testing.T) {
	tr := newTrace(t, t.TempDir())
	if v := mustHold(t, tr); v.Records != 0 || v.Key == "" {
		t.Errorf("an empty trace: %+v", v)
	}
	heads := fill(t, tr)
	v := mustHold(t, tr, heads...)
	if v.Records != 7 || v.Blobs != 5 || v.Heads != 4 || v.Head != heads[3] || len(v.Erased) != 0 || v.Found != 0 {
		t.Errorf("%+v", v)
	}
	for _, h := range []glovebox.TraceRef{{}, {Seq: 2}, {Seq: -1, Hash: heads[0].Hash}, {Seq: 2, Hash: heads[0].Hash[:156-3]}} {
		_, err := tr.Verify(t.Context(), []glovebox.TraceRef{h})
		wantCode(t, "a head that is none", err, glovebox.CodeInvalid)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := tr.Verify(ctx, nil); err == nil {
		t.Error("it was verified although nobody waits")
	}
}

// TestTamperEachColumn changes one byte of each column of each record, of its payload, its hashes and its run.
func TestTamperEachColumn(t *testing.T) {
	raw := func(column string) string { // any bytes
		return fmt.Sprintf("%s = CAST(CASE hex(substr(%[1]s, 1, 1)) WHEN '00' THEN x'01' ELSE x'00' END || substr(%[1]s, 2) AS BLOB)",
			column)
	}
	type change struct{ table, key, set string }
	changes := []change{
		{"records", "seq", "run = run || 'x'"}, {"records", "seq", "kind = kind || 'x'"}, {"records", "seq", "time_ns = time_ns + 1"},
		{"records", "seq", "skeleton = CAST(replace(CAST(skeleton AS TEXT), 'local', 'locam') || ' ' AS BLOB)"},
		{"records", "seq", raw("skeleton")}, {"records", "seq", raw("root")}, {"records", "seq", raw("signature")},
		{"records", "seq", "signature = CAST(substr(signature, 1, 67) || CASE substr(signature, 68) WHEN x'01' THEN x'02' ELSE x'01' END AS BLOB)"},
		{"payloads", "seq", raw("salt")}, {"payloads", "seq", raw("body")},
		{"payloads", "seq", "body = CAST(replace(CAST(body AS TEXT), 'reason', 'reasom') || ' ' AS BLOB)"},
	}
	for _, c := range changes {
		for seq := int64(1); seq <= 7; seq++ {
			t.Run(fmt.Sprint(c.table, " ", strings.Fields(c.set)[0], " ", seq), func(t *testing.T) {
				tr := newTrace(t, t.TempDir())
				fill(t, tr)
				tamper(t, tr, fmt.Sprintf("UPDATE %s SET %s WHERE %s = %d", c.table, c.set, c.key, seq))
				wantFirst(t, verify(t, tr), seq, problemChanged, problemForged)
			})
		}
	}
}

// TestTamperWithNumbers: whoever tampers may choose the numbers, and verification still ends and says what it found.
func TestTamperWithNumbers(t *testing.T) {
	tr := newTrace(t, t.TempDir())
	fill(t, tr)
	tamper(t, tr, "UPDATE log SET size = 1 << 61")
	tamper(t, tr, `INSERT INTO records (seq, run, kind, time_ns, skeleton, root, signature)
		SELECT 1 << 60, 'run_far', 'run.start', time_ns, skeleton, root, signature FROM records WHERE seq = 1`)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	v, err := tr.Verify(ctx, nil)
	if err != nil || v.OK || v.Problems[0].Seq != 8 || len(v.Problems) != problemsMost || v.More == 0 {
		t.Fatalf("%v, %+v", err, v)
	}
}

func TestTamper(t *testing.T) {
	swap := "UPDATE %s SET seq = -1 WHERE seq = %d;UPDATE %[1]s SET seq = %[2]d WHERE seq = %[3]d;UPDATE %[1]s SET seq = %[3]d WHERE seq = -1"
	tampered(t, []tampering{
		{"a record removed", "DELETE FROM records WHERE seq = 3", 3, problemRemoved},
		{"the first removed", "DELETE FROM records WHERE seq = 1", 1, problemRemoved},
		{"one removed with its hash", "DELETE FROM records WHERE seq = 4;DELETE FROM hashes WHERE id = 4", 4, problemRemoved},
		{"one removed and the rest moved", "DELETE FROM records WHERE seq = 3;UPDATE records SET seq = -seq WHERE seq > 3;" +
			"UPDATE records SET seq = -seq - 1 WHERE seq < 0", 3, problemReordered},
		{"two swapped", fmt.Sprintf(swap, "records", 2, 5), 2, problemReordered},
		{"neighbours swapped", fmt.Sprintf(swap, "records", 3, 4), 3, problemReordered},
		{"payloads swapped", fmt.Sprintf(swap, "payloads", 2, 4), 2, problemChanged},
		{"the tail cut off", "DELETE FROM records WHERE seq > 5", 6, problemCutOff},
		{"the tail cut off with its hashes", "DELETE FROM records WHERE seq > 5;DELETE FROM hashes WHERE id > 7", 6, problemCutOff},
		{"all of it", "DELETE FROM records", 1, problemCutOff},
		{"a copy appended", "INSERT INTO records SELECT 8, 'run_x', 'copy', time_ns, skeleton, root, signature FROM records WHERE seq = 7", 8, problemReordered},
		{"one appended far away", "INSERT INTO records SELECT 5000000, 'run_x', 'copy', time_ns, skeleton, root, signature FROM records WHERE seq = 7", 5000000, problemReordered},
		{"a stored leaf changed", "UPDATE hashes SET hash = zeroblob(32) WHERE id = 3", 3, problemChanged},
		{"a stored tree changed", "UPDATE hashes SET hash = zeroblob(32) WHERE id = 6", 4, problemChanged},
		{"a stored hash removed", "DELETE FROM hashes WHERE id = 7", 5, problemChanged},
		{"all hashes removed", "DELETE FROM hashes", 1, problemChanged},
		{"a payload removed", "DELETE FROM payloads WHERE seq = 4", 4, problemRemoved},
		{"a payload removed as if erased", "DELETE FROM payloads WHERE seq = 4;UPDATE runs SET erased_ns = 9 WHERE id = 'run_1'", 3, problemChanged},
		{"all payloads removed as if erased", "DELETE FROM payloads;UPDATE runs SET erased_ns = 9", 1, problemRemoved},
		{"a payload invented", "INSERT INTO payloads SELECT 99, salt, body FROM payloads WHERE seq = 1", 99, problemChanged},
		{"a size made smaller", "UPDATE log SET size = 6", 7, problemChanged},
		{"a size made larger", "UPDATE log SET size = 9", 8, problemCutOff},
		{"no size", "DELETE FROM log", 0, problemRemoved},
		{"bytes", "UPDATE log SET bytes = bytes + 1", 0, problemChanged},
	})
}

// TestTamperBeside changes what lies beside the log: outputs, artifacts and the list of runs.
func TestTamperBeside(t *testing.T) {
	tampered(t, []tampering{
		{"output", "UPDATE outputs SET data = CAST('ho' || char(10) AS BLOB) WHERE run = 'run_0'", 2, problemChanged},
		{"output and its hash", "UPDATE outputs SET data = CAST('' AS BLOB), sha256 = 'e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855' WHERE run = 'run_0'", 2, problemChanged},
		{"output moved", "UPDATE outputs SET run = 'run_2', stream = 'stderr' WHERE run = 'run_0'", 2, problemChanged},
		{"output removed", "DELETE FROM outputs WHERE run = 'run_2'", 6, problemChanged},
		{"output invented", "INSERT INTO outputs VALUES ('run_0', 'stderr', 0, '', x'')", 2, problemChanged},
		{"output of nobody", "INSERT INTO outputs VALUES ('run_y', 'stderr', 0, '', x'')", 0, problemChanged},
		{"artifact renamed", "UPDATE artifacts SET path = 'a.png'", 4, problemChanged},
		{"artifact resized", "UPDATE artifacts SET bytes = bytes + 1", 4, problemChanged},
		{"artifact typed", "UPDATE artifacts SET media_type = 'text/html'", 4, problemChanged},
		{"artifact replaced", "UPDATE artifacts SET sha256 = replace(sha256, 'a', 'b')", 4, problemChanged},
		{"artifact removed", "DELETE FROM artifacts", 4, problemChanged},
		{"a run given away", "UPDATE runs SET tenant = 'other' WHERE id = 'run_1'", 3, problemChanged},
		{"a run unlisted", "DELETE FROM runs WHERE id = 'run_1'", 3, problemChanged},
		{"a run renamed", "UPDATE runs SET id = 'run_x' WHERE id = 'run_1'", 3, problemChanged},
		{"a state", "UPDATE runs SET state = 'interrupted' WHERE id = 'run_1'", 4, problemChanged},
		{"a status", "UPDATE runs SET status = 'signaled' WHERE id = 'run_1'", 4, problemChanged},
		{"a beginning", "UPDATE runs SET started_ns = 1 WHERE id = 'run_1'", 3, problemChanged},
		{"an end", "UPDATE runs SET ended_ns = 1 WHERE id = 'run_1'", 4, problemChanged},
		{"a start elsewhere", "UPDATE runs SET start_seq = 1 WHERE id = 'run_1'", 1, problemChanged},
		{"an end elsewhere", "UPDATE runs SET end_seq = 6 WHERE id = 'run_1'", 4, problemChanged},
		{"an owner", "UPDATE runs SET owner_pid = 1 WHERE id = 'run_1'", 3, problemChanged},
		{"a start of an owner", "UPDATE runs SET owner_start = 1 WHERE id = 'run_1'", 3, problemChanged},
		{"a text for a number", "UPDATE runs SET started_ns = 'x' WHERE id = 'run_1'", 3, problemChanged},
		{"a text for a time", "UPDATE records SET time_ns = 'x' WHERE seq = 3", 3, problemChanged},
		{"a text for a size", "UPDATE log SET size = 'x'", 1, problemChanged},
		{"a text for bytes", "UPDATE artifacts SET bytes = 'x'", 4, problemChanged},
		{"a boot", "UPDATE runs SET owner_boot = 'x' WHERE id = 'run_1'", 3, problemChanged},
		{"running again", "UPDATE runs SET state = 'running', end_seq = 0, ended_ns = 0, status = '' WHERE id = 'run_1'", 4, problemChanged},
		{"a run invented", "INSERT INTO runs (id, tenant, state, started_ns, start_seq) VALUES ('run_x', 'local', 'running', 1, 3)", 3, problemChanged},
	})
}

// tampering is a change by whoever owns the database, statements separated by semicolons, and what must be named first.
type tampering struct {
	name, do string
	seq      int64
	kind     string
}

func tampered(t *testing.T, cases []tampering) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			tr := newTrace(t, t.TempDir())
			heads := fill(t, tr)
			tamper(t, tr, strings.Split(c.do, ";")...)
			wantFirst(t, verify(t, tr), c.seq, c.kind)
			if v := verify(t, tr, heads...); v.OK {
				t.Error("it holds with heads from outside")
			}
		})
	}
}

// TestTamperOnFiles changes the kept bytes beside the database.
func TestTamperOnFiles(t *testing.T) {
	for name, do := range map[string]func(path string) error{
		"changed":  func(p string) error { return errors.Join(os.Chmod(p, 0o600), os.WriteFile(p, []byte("other"), 0o600)) },
		"removed":  os.Remove,
		"emptied":  func(p string) error { return errors.Join(os.Chmod(p, 0o600), os.Truncate(p, 0)) },
		"a folder": func(p string) error { return errors.Join(os.Remove(p), os.Mkdir(p, 0o700)) },
	} {
		dir := t.TempDir()
		tr := newTrace(t, dir)
		fill(t, tr)
		blobs, err := filepath.Glob(filepath.Join(dir, "blobs/??/*"))
		if err != nil || len(blobs) != 2 {
			t.Fatalf("%v, %v", blobs, err)
		}
		for _, b := range blobs {
			if err := do(b); err != nil {
				t.Fatal(err)
			}
		}
		v := verify(t, tr)
		if wantFirst(t, v, 4, problemChanged); len(v.Problems) != 2 {
			t.Errorf("%s: %+v", name, v.Problems)
		}
	}
}

// forge changes record seq as one who can compute: its stored hashes and, where roots is set, all roots after it are made to
// fit; heads are signed with k, or left as they were.
func forge(t *testing.T, tr *Trace, seq int64, roots bool, k *key) {
	t.Helper()
	var rows []row
	err := tr.store.View(t.Context(), func(tx *store.Tx) error {
		all, err := tx.Query(t.Context(), selectAll)
		if err != nil {
			return err
		}
		defer all.Close()
		for all.Next() {
			r, err := scanRow(all)
			if err != nil {
				return err
			}
			rows = append(rows, *r)
		}
		return all.Err()
	})
	if err != nil {
		t.Fatal(err)
	}
	rows[seq-1].skeleton = append(rows[seq-1].skeleton, ' ')
	do := []string{fmt.Sprintf("UPDATE records SET skeleton = x'%x' WHERE seq = %d", rows[seq-1].skeleton, seq)}
	all := frontier{}
	for i, r := range rows {
		added, err := tlog.StoredHashesForRecordHash(int64(i), tlog.RecordHash(r.skeleton), all)
		if err != nil {
			t.Fatal(err)
		}
		for j, h := range added {
			id := tlog.StoredHashIndex(0, int64(i)) + int64(j)
			all[id] = h
			do = append(do, fmt.Sprintf("UPDATE hashes SET hash = x'%x' WHERE id = %d", h[:], id))
		}
		if !roots {
			continue
		}
		h := head{size: r.seq, signature: string(r.signature)}
		if h.root, err = tlog.TreeHash(r.seq, all); err != nil {
			t.Fatal(err)
		}
		if k != nil {
			if err := k.sign(&h); err != nil {
				t.Fatal(err)
			}
		}
		do = append(do, fmt.Sprintf("UPDATE records SET root = x'%x', signature = x'%x' WHERE seq = %d", h.root[:], h.signature, r.seq))
	}
	tamper(t, tr, do...)
}

func TestForged(t *testing.T) {
	for seq := int64(1); seq <= 7; seq++ {
		tr := newTrace(t, t.TempDir())
		fill(t, tr)
		forge(t, tr, seq, true, nil)
		wantFirst(t, verify(t, tr), seq, problemForged)
		_, err := newAgain(t, tr).Start(t.Context(), someStart("run_next"))
		if e := wantCode(t, "a run on top of it", err, glovebox.CodeUnavailable); !strings.Contains(e.Fix, "glovebox trace verify") {
			t.Errorf("fix %q", e.Fix)
		}
	}
}

// TestForgedBelowTheHeads leaves the heads as they were signed and makes everything below them fit the change.
func TestForgedBelowTheHeads(t *testing.T) {
	for seq := int64(1); seq <= 7; seq++ {
		tr := newTrace(t, t.TempDir())
		fill(t, tr)
		forge(t, tr, seq, false, nil)
		wantFirst(t, verify(t, tr), seq, problemChanged)
		_, err := newAgain(t, tr).Start(t.Context(), someStart("run_next"))
		wantCode(t, "a run on top of it", err, glovebox.CodeUnavailable)
	}
}

// newAgain is the trace as another process has it.
func newAgain(t testing.TB, tr *Trace) *Trace {
	t.Helper()
	again, err := New(t.Context(), Config{Store: tr.store, Key: tr.keys.path, Now: tr.now})
	if err != nil {
		t.Fatal(err)
	}
	return again
}

// TestRewrittenByTheOwner is what nothing inside can tell: only a head from outside does.
func TestRewrittenByTheOwner(t *testing.T) {
	tr := newTrace(t, t.TempDir())
	heads := fill(t, tr)
	k, err := tr.keys.get()
	if err != nil {
		t.Fatal(err)
	}
	forge(t, tr, 5, true, k)
	mustHold(t, tr)
	mustHold(t, tr, heads[0], heads[1])
	wantFirst(t, verify(t, tr, heads[2]), 1, problemChanged)
	// Heads before it narrow it down: 2 and 4 agree, so it is 5 or 6.
	v := verify(t, tr, heads...)
	if wantFirst(t, v, 5, problemChanged); !strings.Contains(v.Problems[0].Text, "5 to 6") {
		t.Errorf("%+v", v.Problems)
	}
}

// TestOlderCopy puts a whole older data_dir in place of the present one.
func TestOlderCopy(t *testing.T) {
	dir, old := t.TempDir(), t.TempDir()
	tr := newTrace(t, dir)
	mustStart(t, tr, someStart("run_a"))
	first := mustEnd(t, tr, End{ID: "run_a", Result: someResult("run_a", glovebox.StatusExited)})
	copyFiles(t, dir, old)
	last := fill(t, tr)[3]
	back := newTrace(t, old)
	mustHold(t, back)
	mustHold(t, back, first)
	v := verify(t, back, first, last)
	if wantFirst(t, v, 3, problemCutOff); !strings.Contains(v.Problems[0].Text, "3 to 9") {
		t.Errorf("%+v", v.Problems)
	}
	// It goes on from there, and grows beyond what it was.
	for i := range 6 {
		id := fmt.Sprint("run_other_", i)
		mustStart(t, back, someStart(id))
		mustEnd(t, back, End{ID: id, Result: someResult(id, glovebox.StatusExited)})
	}
	mustHold(t, back)
	wantFirst(t, verify(t, back, first, last), 3, problemChanged)
}

// copyFiles copies a data_dir without blobs, as it lies there, while nobody writes.
func copyFiles(t *testing.T, from, to string) {
	t.Helper()
	for _, name := range []string{"glovebox.db", "glovebox.db-wal", "trace.key"} {
		b, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(to, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestForgedHeadFromOutside(t *testing.T) {
	tr := newTrace(t, t.TempDir())
	heads := fill(t, tr)
	for i, h := range heads {
		letter := "A"
		if at := len(h.Hash) - 10; h.Hash[at] == 'A' {
			letter = "B"
		}
		h.Hash = h.Hash[:len(h.Hash)-10] + letter + h.Hash[len(h.Hash)-9:]
		wantFirst(t, verify(t, tr, h), heads[i].Seq, problemForged)
	}
	other := heads[1]
	other.Seq = heads[0].Seq // what was signed is of another size
	wantFirst(t, verify(t, tr, other), 2, problemForged)
	beyond := heads[1]
	beyond.Seq = 100
	wantFirst(t, verify(t, tr, beyond), 100, problemForged)
	elsewhere := newTrace(t, t.TempDir())
	fill(t, elsewhere)
	wantFirst(t, verify(t, elsewhere, heads[0]), 2, problemForged)
}

// TestListWithATamperedRecord: one record that was changed does not hide the others.
func TestListWithATamperedRecord(t *testing.T) {
	tr := newTrace(t, t.TempDir())
	for _, id := range []string{"run_1", "run_2", "run_3"} {
		mustStart(t, tr, someStart(id))
		mustEnd(t, tr, End{ID: id, Result: someResult(id, glovebox.StatusExited)})
	}
	tamper(t, tr, "UPDATE payloads SET body = CAST('{}' AS BLOB) WHERE seq = 3")
	list, err := tr.List(t.Context(), "local", glovebox.TraceQuery{})
	if err != nil || len(list) != 3 {
		t.Fatalf("%d runs, %v", len(list), err)
	}
	for _, rec := range list {
		bad := rec.ID == "run_2"
		if (rec.Error != nil) != bad || (rec.Result == nil) != bad || bad && !strings.Contains(rec.Error.Message, "record 3") {
			t.Errorf("%s: error %v, result %v", rec.ID, rec.Error, rec.Result)
		}
	}
	_, err = tr.Get(t.Context(), "local", "run_2")
	wantCode(t, "itself", err, glovebox.CodeInternal)
}
