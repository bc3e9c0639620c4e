package trace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"glovebox"
	"glovebox/internal/store"
)

// secretText stands in every text of a run, to be looked for afterwards.
const secretText = "tell-nobody-4711"

// recordSecret records a run all of whose texts hold secretText, with an artifact and a large output, ended at a time.
func recordSecret(t *testing.T, tr *Trace, id string, at time.Time, artifact string) glovebox.TraceRef {
	t.Helper()
	tr.now = func() time.Time { return at }
	s := someStart(id)
	s.Code, s.Args, s.EnvNames, s.Decision.Reason = []byte(secretText), []string{secretText}, []string{secretText}, secretText
	s.Inputs[0].Name = secretText
	s.Decision.Grant.Egress = []glovebox.EgressRule{{ID: secretText, Host: secretText, Paths: []string{secretText}}}
	s.Decision.Grant.Secrets = []glovebox.SecretRef{{Name: secretText, Host: secretText}}
	mustStart(t, tr, s)
	res := someResult(id, glovebox.StatusExited)
	res.Stdout, res.Stderr, res.Reason = secretText, secretText, secretText
	res.Egress = []glovebox.EgressFlow{{Host: secretText, Rule: secretText, Reason: secretText, Method: secretText, Path: secretText}}
	batch := tr.Artifacts()
	n, sha, err := batch.Put(strings.NewReader(artifact))
	if err = errors.Join(err, batch.Commit()); err != nil {
		t.Fatal(err)
	}
	res.Artifacts = []glovebox.Artifact{{Path: secretText, Bytes: n, SHA256: sha, MediaType: "text/plain"}}
	return mustEnd(t, tr, End{ID: id, Result: res, Stdout: Kept{Data: []byte(secretText)},
		Stderr: Kept{Data: []byte(strings.Repeat(secretText+id, inlineBytes/10))}})
}

func TestRetentionByAge(t *testing.T) {
	dir := t.TempDir()
	tr := newTrace(t, dir)
	tr.retention.Age, tr.blobRest = 24*time.Hour, 0
	head := recordSecret(t, tr, "run_old", testTime.Add(-48*time.Hour), "shared")
	recordSecret(t, tr, "run_old2", testTime.Add(-25*time.Hour), "own")
	tr.now = func() time.Time { return testTime.Add(-72 * time.Hour) }
	mustStart(t, tr, someStart("run_live")) // older than all, and it goes on
	recordSecret(t, tr, "run_new", testTime.Add(-time.Hour), "shared")
	before := mustHold(t, tr)
	tr.now = func() time.Time { return testTime }
	if n, more, err := tr.Retain(t.Context()); n != 2 || more || err != nil {
		t.Fatalf("%d runs erased, more %v, %v", n, more, err)
	}
	if n, _, err := tr.Retain(t.Context()); n != 0 || err != nil {
		t.Errorf("a second time: %d, %v", n, err)
	}
	v := mustHold(t, tr, head, before.Head)
	if fmt.Sprint(v.Erased) != "[[1 4]]" || v.Records != before.Records+1 {
		t.Errorf("%+v", v)
	}
	rec, err := tr.Get(t.Context(), "local", "run_old")
	if err != nil || rec.Erased.IsZero() || rec.Code != "" || rec.Args != nil || rec.Result.Stdout != "" || len(rec.Result.Artifacts) != 0 {
		t.Errorf("%+v, %v", rec, err)
	}
	// The skeleton is still there.
	if rec.Result.Status != glovebox.StatusExited || rec.Principal.Name != "ada" || rec.Decision.Rule != "default" || rec.Result.Usage.WallMS == nil ||
		rec.CodeBytes == 0 || rec.Result.Trace != head {
		t.Errorf("skeleton %+v", rec)
	}
	_, err = tr.Output(t.Context(), "local", "run_old", "stdout", 0, 10)
	if e := wantCode(t, "erased output", err, glovebox.CodeNotFound); !strings.Contains(e.Public, "erased by retention") {
		t.Errorf("%q", e.Public)
	}
	for id, want := range map[string]string{"run_new": "ended", "run_live": "running"} {
		if rec, err := tr.Get(t.Context(), "local", id); err != nil || rec.State != want || !rec.Erased.IsZero() || rec.Code == "" {
			t.Errorf("%s: %+v, %v", id, rec, err)
		}
	}
	f, err := tr.OpenArtifact(t.Context(), "local", "run_new", secretText)
	if err != nil {
		t.Fatal("an artifact that another run left too is gone")
	}
	f.Close()
	if blobs, err := filepath.Glob(filepath.Join(dir, "blobs/??/*")); err != nil || len(blobs) != 2 {
		t.Errorf("blobs %v, %v: want those of the new run", blobs, err)
	}
	// It goes on: a later pass erases the rest, and then nothing of any text is left on the disk.
	tr.now = func() time.Time { return testTime.Add(1000 * time.Hour) }
	mustEnd(t, tr, End{ID: "run_live", Err: glovebox.Errorf(glovebox.CodeInternal, "x", "x")})
	if n, _, err := tr.Retain(t.Context()); n != 1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	mustHold(t, tr, head, before.Head)
	if err := tr.store.Close(); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, dir)
}

// nothingLeft looks for secretText in every byte of a folder.
func nothingLeft(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		if bytes.Contains(b, []byte(secretText)) {
			t.Errorf("%s still holds what was erased", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestRetentionByBytes(t *testing.T) {
	tr := newTrace(t, t.TempDir())
	for i := range 10 {
		recordSecret(t, tr, fmt.Sprint("run_", i), testTime.Add(time.Duration(i)*time.Minute), fmt.Sprint("artifact", i))
	}
	kept := func() (n int64) {
		err := tr.store.View(t.Context(), func(tx *store.Tx) error {
			return tx.QueryRow(t.Context(), "SELECT bytes FROM log").Scan(&n)
		})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	all := kept()
	tr.retention.Bytes = glovebox.Size(all)
	if n, _, err := tr.Retain(t.Context()); n != 0 || err != nil {
		t.Errorf("%d erased within the bound, %v", n, err)
	}
	tr.retention.Bytes = glovebox.Size(all * 6 / 10)
	if n, _, err := tr.Retain(t.Context()); n != 4 || err != nil {
		t.Errorf("%d erased, %v", n, err)
	}
	if now := kept(); now > all*6/10 {
		t.Errorf("%d of %d bytes are kept", now, all)
	}
	if v := mustHold(t, tr); fmt.Sprint(v.Erased) != "[[1 8]]" {
		t.Errorf("%v", v.Erased)
	}
	// Blobs that are young may be about to be named again: they rest.
	var waiting int
	err := tr.store.View(t.Context(), func(tx *store.Tx) error {
		return tx.QueryRow(t.Context(), "SELECT count(*) FROM unnamed").Scan(&waiting)
	})
	if err != nil || waiting != 8 {
		t.Errorf("%d blobs wait, %v", waiting, err)
	}
	// One is put again, and is not removed when its rest is over.
	recordSecret(t, tr, "run_again", testTime.Add(time.Hour), "artifact0")
	tr.blobRest = 0
	if _, _, err := tr.Retain(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustHold(t, tr)
	if f, err := tr.OpenArtifact(t.Context(), "local", "run_again", secretText); err != nil {
		t.Error(err)
	} else {
		f.Close()
	}
}

// TestRetentionIsBounded: one call does so much and no more, and says that there is more.
func TestRetentionIsBounded(t *testing.T) {
	tr := newTrace(t, t.TempDir())
	tr.retention.Age = time.Hour
	refusal := glovebox.Errorf(glovebox.CodeDenied, "ask", "no")
	for i := range eraseTogether + 1 {
		if _, err := tr.Refused(t.Context(), someStart(fmt.Sprint("run_", i)), refusal); err != nil {
			t.Fatal(err)
		}
	}
	tr.now = func() time.Time { return testTime.Add(2 * time.Hour) }
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if n, more, err := tr.Retain(ctx); n != eraseTogether || !more || err != nil {
		t.Errorf("%d, %v, %v", n, more, err)
	}
	if n, more, err := tr.Retain(ctx); n != 1 || more || err != nil {
		t.Errorf("%d, %v, %v", n, more, err)
	}
	if v := mustHold(t, tr); len(v.Erased) != 1 || v.Erased[0] != [2]int64{1, eraseTogether + 1} {
		t.Errorf("%v", v.Erased)
	}
}

// TestErasedIsNotGuessed: the same payload is bound by another hash each time, so what stays does not tell it.
func TestErasedIsNotGuessed(t *testing.T) {
	tr := newTrace(t, t.TempDir())
	mustStart(t, tr, someStart("run_1"))
	mustStart(t, tr, someStart("run_2"))
	kinds, all := bodies(t, tr)
	one, two := all[len(kinds)], all[len(kinds)+1]
	if !bytes.Equal(one, two) {
		t.Fatalf("the payloads differ:\n%s\n%s", one, two)
	}
	for _, part := range []string{`"payload":"`, sumOf("print('hi')\n")} {
		cut := func(b []byte) string { _, rest, _ := strings.Cut(string(b), part); return rest[:min(len(rest), 64)] }
		if a, b := cut(all[0]), cut(all[1]); a == b && a != "" || part != `"payload":"` && a != "" {
			t.Errorf("the skeletons tell the payload: %q %q", a, b)
		}
	}
}

// grown makes a log of n synthetic records in a moment: all of them are the same, so that complete trees repeat.
func grown(tb testing.TB, n int64) *Trace {
	tb.Helper()
	tr := newTrace(tb, tb.TempDir())
	mustStart(tb, tr, someStart("run_first"))
	k, err := tr.keys.get()
	if err != nil {
		tb.Fatal(err)
	}
	leaf := []byte(`{"kind":"synthetic"}`)
	level := []tlog.Hash{tlog.RecordHash(leaf)}
	for i := range 62 {
		level = append(level, tlog.NodeHash(level[i], level[i]))
	}
	h := head{size: n}
	all := frontier{}
	for _, id := range frontierOf(n) {
		l, _ := tlog.SplitStoredHashIndex(id)
		all[id] = level[l]
	}
	if h.root, err = tlog.TreeHash(n, all); err != nil {
		tb.Fatal(err)
	}
	if err := k.sign(&h); err != nil {
		tb.Fatal(err)
	}
	// The heads of the records before the last are not real: an append looks at the last alone.
	sizes := fmt.Sprintf("WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < %d) ", n)
	do := []string{"DELETE FROM records", "DELETE FROM payloads", "DELETE FROM hashes", "DELETE FROM runs",
		"INSERT INTO records " + sizes + fmt.Sprintf("SELECT i, 'run_' || i, 'run.start', i, CAST('%s' AS BLOB), x'%x', x'%x' FROM n", leaf, h.root[:], h.signature),
		"INSERT INTO payloads " + sizes + "SELECT i, randomblob(32), CAST('{}' AS BLOB) FROM n",
		fmt.Sprintf("UPDATE log SET size = %d", n)}
	for l, hash := range level {
		if count := n >> l; count > 0 {
			// StoredHashIndex(l, i), spelt in SQL: the hashes of all trees that were completed up to it.
			do = append(do, "INSERT INTO hashes "+fmt.Sprintf("WITH RECURSIVE n(i) AS (VALUES (0) UNION ALL SELECT i + 1 FROM n WHERE i < %d) ", count-1)+
				fmt.Sprintf("SELECT %s, x'%x' FROM n", storedIndexSQL(l), hash[:]))
		}
	}
	tamper(tb, tr, do...)
	return newAgain(tb, tr)
}

func storedIndexSQL(level int) string {
	// The last leaf below tree i of the level has the number m = ((i + 1) << level) - 1; before it are m + m/2 + m/4 + … hashes.
	m := fmt.Sprintf("(((i + 1) << %d) - 1)", level)
	terms := []string{m}
	for s := 1; s < 40; s++ {
		terms = append(terms, fmt.Sprintf("(%s >> %d)", m, s))
	}
	return strings.Join(terms, " + ") + fmt.Sprintf(" + %d", level)
}

// TestAppendToALongLog: an append to a log of a million records costs what one to a short log costs, and reads as many stored
// hashes as the size has bits.
func TestAppendToALongLog(t *testing.T) {
	n := int64(20_000)
	if os.Getenv("GLOVEBOX_TEST_LONG") == "1" {
		n = 1 << 20
	}
	for _, size := range []int64{n - 1, n} { // with one hash for each bit, and with few
		if got, want := len(frontierOf(size)), bits.OnesCount64(uint64(size)); got != want {
			t.Errorf("an append to %d records reads %d hashes, want %d", size, got, want)
		}
		tr := grown(t, size)
		for i := range 3 {
			if seq := mustStart(t, tr, someStart(fmt.Sprint("run_next_", i))); seq != size+1+int64(i) {
				t.Errorf("record %d, want %d", seq, size+1)
			}
		}
	}
}

func BenchmarkAppend(b *testing.B) {
	for _, n := range []int64{1, 1000, 100_000, 1<<20 - 1} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			tr := grown(b, n)
			mustStart(b, tr, someStart("run_warm"))
			for i := 0; b.Loop(); i++ {
				mustStart(b, tr, someStart(fmt.Sprint("run_next_", i)))
			}
		})
	}
}
