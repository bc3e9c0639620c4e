package trace

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"glovebox"
	"glovebox/internal/store"
)

var testTime = time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC)

func newTrace(t testing.TB, dir string) *Trace {
	t.Helper()
	s, err := store.Open(store.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	tr, err := New(t.Context(), Config{Store: s, Key: filepath.Join(dir, "trace.key"), Now: func() time.Time { return testTime }})
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func someStart(id string) Start {
	return Start{
		ID: id, Principal: glovebox.Principal{Tenant: "local", Name: "ada", Owner: true}, Lang: "python",
		Args: []string{"--n", "3"}, Code: []byte("print('hi')\n"), EnvNames: []string{"TOKEN"},
		Inputs: []glovebox.InputRecord{{Name: "in.csv", Bytes: 3, SHA256: "aa"}},
		Decision: glovebox.Decision{Allow: true, Rule: "default", Reason: "the owner asked", Grant: glovebox.Grant{
			Isolation: glovebox.IsolationProcess, Trust: glovebox.TrustModel, Image: "host",
			Limits:  glovebox.Limits{Wall: 30 * time.Second, Memory: 256 * glovebox.MiB},
			Egress:  []glovebox.EgressRule{{ID: "good", Host: "*.good.test", Ports: []int{443}, Paths: []string{"/a/**"}}},
			Secrets: []glovebox.SecretRef{{Name: "TOKEN", Host: "api.good.test"}}}},
		Image: "host@pkgs:1a2b",
	}
}

func someResult(id string, status glovebox.Status) *glovebox.Result {
	code, wall := 0, int64(12)
	return &glovebox.Result{ID: id, OK: true, Status: status, ExitCode: &code, Stdout: "hi\n", StdoutBytes: 3, Untrusted: true,
		LimitsHit: []string{}, Flags: []string{}, Isolation: glovebox.IsolationProcess, Posture: glovebox.Posture{"seccomp": "on"},
		Trust: glovebox.TrustModel, Rule: "default", Image: "host@pkgs:1a2b", Usage: glovebox.Usage{WallMS: &wall},
		Limits: glovebox.Limits{Wall: 30 * time.Second}, Artifacts: []glovebox.Artifact{}, Skipped: []glovebox.Skipped{},
		Egress: []glovebox.EgressFlow{}}
}

func mustStart(t testing.TB, tr *Trace, s Start) int64 {
	t.Helper()
	seq, err := tr.Start(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return seq
}

func mustEnd(t testing.TB, tr *Trace, e End) glovebox.TraceRef {
	t.Helper()
	ref, err := tr.End(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

// wantCode checks that err is one a caller may see, of the code, with a fix and without a host path.
func wantCode(t testing.TB, what string, err error, code glovebox.Code) *glovebox.Error {
	t.Helper()
	var e *glovebox.Error
	if !errors.As(err, &e) || e.Code != code {
		t.Errorf("%s: error %v, want the code %q", what, err, code)
		return &glovebox.Error{}
	}
	if e.Public == "" || e.Fix == "" || strings.Contains(e.Public, os.TempDir()) {
		t.Errorf("%s: public %q, fix %q", what, e.Public, e.Fix)
	}
	return e
}

// bodies are the stored rows: the kinds of the records, their skeletons, then their payloads.
func bodies(t testing.TB, tr *Trace) (kinds []string, all [][]byte) {
	t.Helper()
	var payloads [][]byte
	err := tr.store.View(t.Context(), func(tx *store.Tx) error {
		rows, err := tx.Query(t.Context(), "SELECT r.kind, r.skeleton, p.salt, p.body FROM records r JOIN payloads p USING (seq) ORDER BY seq")
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var kind string
			var skel, salt, body []byte
			if err := rows.Scan(&kind, &skel, &salt, &body); err != nil {
				return err
			}
			if !bytes.Contains(skel, []byte(`"payload":"`+commitment(salt, body)+`"`)) {
				t.Errorf("the skeleton of a %s does not commit to its payload", kind)
			}
			kinds, all, payloads = append(kinds, kind), append(all, skel), append(payloads, body)
		}
		return rows.Err()
	})
	if err != nil {
		t.Fatal(err)
	}
	return kinds, append(all, payloads...)
}

func TestARunFromStartToEnd(t *testing.T) {
	tr := newTrace(t, t.TempDir())
	start := someStart("run_1")
	seq := mustStart(t, tr, start)
	running, err := tr.Get(t.Context(), "local", "run_1")
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(start.Code)
	want := &glovebox.Record{ID: "run_1", State: "running", Started: testTime, Principal: start.Principal, Lang: "python",
		Args: start.Args, Code: glovebox.Untrusted(start.Code), CodeBytes: int64(len(start.Code)),
		CodeSHA256: hex.EncodeToString(sum[:]), EnvNames: start.EnvNames, Inputs: start.Inputs, Decision: start.Decision,
		Image: start.Image, StartSeq: seq}
	if d := cmp.Diff(want, running); d != "" {
		t.Errorf("running (-want +got):\n%s", d)
	}

	res := someResult("run_1", glovebox.StatusExited)
	ref := mustEnd(t, tr, End{ID: "run_1", Result: res, Stdout: Kept{Data: []byte("hi\n")}})
	if ref.Seq != seq+1 || len(ref.Hash) != 64+1+91 {
		t.Errorf("the end's reference is %+v, the start's number %d", ref, seq)
	}
	ended, err := tr.Get(t.Context(), "local", "run_1")
	if err != nil {
		t.Fatal(err)
	}
	want.State, want.Ended = "ended", testTime
	want.Result = someResult("run_1", glovebox.StatusExited)
	want.Result.Trace = ref
	if d := cmp.Diff(want, ended); d != "" {
		t.Errorf("ended (-want +got):\n%s", d)
	}
	if res.Trace != (glovebox.TraceRef{}) {
		t.Error("End wrote to the caller's result")
	}
	if out, err := tr.Output(t.Context(), "local", "run_1", "stdout", 0, 100); err != nil || string(out) != "hi\n" {
		t.Errorf("output: %q, %v", out, err)
	}
	kinds, _ := bodies(t, tr)
	if d := cmp.Diff([]string{kindStart, kindEnd}, kinds); d != "" {
		t.Errorf("records (-want +got):\n%s", d)
	}
}

func TestConflicts(t *testing.T) {
	tr := newTrace(t, t.TempDir())
	ctx := t.Context()
	end := End{ID: "run_1", Result: someResult("run_1", glovebox.StatusExited)}
	both := End{ID: "run_1", Result: end.Result, Err: &glovebox.Error{}}
	_, err := tr.End(ctx, end)
	wantCode(t, "an end without a start", err, glovebox.CodeNotFound)
	mustStart(t, tr, someStart("run_1"))
	_, err = tr.Start(ctx, someStart("run_1"))
	wantCode(t, "a second start", err, glovebox.CodeConflict)
	_, err = tr.Refused(ctx, someStart("run_1"), glovebox.Errorf(glovebox.CodeDenied, "ask", "no"))
	wantCode(t, "a refusal of what was started", err, glovebox.CodeConflict)
	_, err = tr.Output(ctx, "local", "run_1", "stdout", 0, 1)
	wantCode(t, "output of what goes on", err, glovebox.CodeConflict)
	mustEnd(t, tr, end)
	_, err = tr.End(ctx, end)
	wantCode(t, "a second end", err, glovebox.CodeConflict)
	for name, e := range map[string]End{"neither": {ID: "run_1"}, "both": both} {
		_, err = tr.End(ctx, e)
		wantCode(t, name, err, glovebox.CodeInternal)
	}
	for name, s := range map[string]Start{
		"no id": {}, "a long id": {ID: strings.Repeat("x", 2000)}, "an id that is no text": {ID: "\xff"},
		"a long tenant": {ID: "run_2", Principal: glovebox.Principal{Tenant: strings.Repeat("x", 2000)}},
	} {
		_, err := tr.Start(ctx, s)
		wantCode(t, name, err, glovebox.CodeInternal)
	}
	if kinds, _ := bodies(t, tr); len(kinds) != 2 {
		t.Errorf("records: %v, want a start and an end", kinds)
	}
}

func TestARecordForEveryEnd(t *testing.T) { // AU-07
	tr := newTrace(t, t.TempDir())
	ctx := t.Context()
	refusal := glovebox.Errorf(glovebox.CodeDenied, "ask the operator", "the policy says no")
	ref, err := tr.Refused(ctx, someStart("run_refused"), refusal)
	if err != nil {
		t.Fatal(err)
	}
	statuses := []glovebox.Status{
		glovebox.StatusExited, glovebox.StatusSignaled, glovebox.StatusWallLimit, glovebox.StatusCPULimit,
		glovebox.StatusMemoryLimit, glovebox.StatusProcessLimit, glovebox.StatusOutputLimit, glovebox.StatusDiskLimit,
		glovebox.StatusPolicy, glovebox.StatusBudget, glovebox.StatusCanceled}
	for _, status := range statuses {
		id := "run_" + string(status)
		mustStart(t, tr, someStart(id))
		mustEnd(t, tr, End{ID: id, Result: someResult(id, status)})
	}
	mustStart(t, tr, someStart("run_failed"))
	mustEnd(t, tr, End{ID: "run_failed", Err: &glovebox.Error{Code: glovebox.CodeInternal, Public: "the set-up failed",
		Fix: "doctor", Op: "mount", Err: errors.New("/secret/host/path")}})

	list, err := tr.List(ctx, "local", glovebox.TraceQuery{})
	if err != nil || len(list) != len(statuses)+2 {
		t.Fatalf("%d records, error %v", len(list), err)
	}
	for _, rec := range list {
		if rec.Principal.Name != "ada" || rec.CodeSHA256 == "" || rec.Image == "" || rec.Decision.Grant.Limits.Wall == 0 ||
			rec.Started.IsZero() || rec.Ended.IsZero() || rec.Decision.Rule == "" || (rec.Result == nil) == (rec.Error == nil) {
			t.Errorf("%s lacks something: %+v", rec.ID, rec)
		}
		if rec.Result != nil && (rec.Result.Usage.WallMS == nil || rec.Result.Trace.Hash == "") {
			t.Errorf("%s lacks its usage or its reference", rec.ID)
		}
	}
	failed, refused := list[0], list[len(list)-1]
	want := &glovebox.ErrorShown{Code: glovebox.CodeInternal, Message: "the set-up failed", Fix: "doctor"}
	if d := cmp.Diff(want, failed.Error); d != "" || failed.State != "ended" {
		t.Errorf("failed is %s (-want +got):\n%s", failed.State, d)
	}
	want = &glovebox.ErrorShown{Code: glovebox.CodeDenied, Message: "the policy says no", Fix: "ask the operator"}
	if d := cmp.Diff(want, refused.Error); d != "" || refused.State != "refused" || refused.StartSeq != ref.Seq {
		t.Errorf("refused is %s (-want +got):\n%s", refused.State, d)
	}
	if _, all := bodies(t, tr); bytes.Contains(bytes.Join(all, nil), []byte("/secret")) {
		t.Error("the cause of an error is in the record")
	}
}

func TestListAndTenants(t *testing.T) {
	tr := newTrace(t, t.TempDir())
	ctx := t.Context()
	for i := range 7 {
		s := someStart(fmt.Sprint("run_", i))
		if i == 3 {
			s.Principal.Tenant = "other"
		}
		mustStart(t, tr, s)
		status := glovebox.StatusExited
		if i%2 == 1 {
			status = glovebox.StatusWallLimit
		}
		mustEnd(t, tr, End{ID: s.ID, Result: someResult(s.ID, status), Stdout: Kept{Data: []byte("x")}})
	}
	for _, c := range []struct {
		name, tenant string
		q            glovebox.TraceQuery
		want         []string
	}{
		{"all", "local", glovebox.TraceQuery{}, []string{"run_6", "run_5", "run_4", "run_2", "run_1", "run_0"}},
		{"other", "other", glovebox.TraceQuery{}, []string{"run_3"}},
		{"nobody", "", glovebox.TraceQuery{}, nil},
		{"limit", "local", glovebox.TraceQuery{Limit: 2}, []string{"run_6", "run_5"}},
		{"before", "local", glovebox.TraceQuery{Limit: 2, Before: "run_4"}, []string{"run_2", "run_1"}},
		{"status", "local", glovebox.TraceQuery{Status: glovebox.StatusWallLimit}, []string{"run_5", "run_1"}},
	} {
		list, err := tr.List(ctx, c.tenant, c.q)
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, rec := range list {
			ids = append(ids, rec.ID)
		}
		if d := cmp.Diff(c.want, ids); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, d)
		}
	}
	_, err := tr.List(ctx, "local", glovebox.TraceQuery{Limit: 1001})
	wantCode(t, "too many", err, glovebox.CodeInvalid)
	_, err = tr.List(ctx, "local", glovebox.TraceQuery{Before: "run_3"})
	wantCode(t, "before another tenant's", err, glovebox.CodeNotFound)
	_, err = tr.Get(ctx, "local", "run_3")
	wantCode(t, "another tenant's record", err, glovebox.CodeNotFound)
	_, err = tr.Output(ctx, "local", "run_3", "stdout", 0, 1)
	wantCode(t, "another tenant's output", err, glovebox.CodeNotFound)
	_, err = tr.OpenArtifact(ctx, "local", "run_3", "x")
	wantCode(t, "another tenant's artifact", err, glovebox.CodeNotFound)
}

func TestOutputInPieces(t *testing.T) {
	tr := newTrace(t, t.TempDir())
	dir := t.TempDir()
	for _, size := range []int{0, 1, inlineBytes - 1, inlineBytes, inlineBytes + 1, 300_001} {
		content := make([]byte, size)
		for i := range content {
			content[i] = byte(i * 31 >> 3)
		}
		sum := sha256.Sum256(content)
		id, spill := fmt.Sprint("run_", size), filepath.Join(dir, fmt.Sprint(size))
		if err := os.WriteFile(spill, content, 0o600); err != nil {
			t.Fatal(err)
		}
		mustStart(t, tr, someStart(id))
		wrong := End{ID: id, Result: someResult(id, glovebox.StatusExited), Stdout: Kept{Data: []byte("x"), SHA256: "ff"}}
		_, err := tr.End(t.Context(), wrong)
		wantCode(t, "a hash of other bytes", err, glovebox.CodeInternal)
		res := someResult(id, glovebox.StatusExited)
		res.StdoutBytes, res.StderrBytes = int64(size), int64(size)
		mustEnd(t, tr, End{ID: id, Result: res,
			Stdout: Kept{Data: content, SHA256: hex.EncodeToString(sum[:])},
			Stderr: Kept{Path: spill, SHA256: hex.EncodeToString(sum[:])}})
		for _, stream := range []string{"stdout", "stderr"} {
			var got []byte
			for {
				piece, err := tr.Output(t.Context(), "local", id, stream, int64(len(got)), 40_000)
				if err != nil {
					t.Fatalf("%s of %d at %d: %v", stream, size, len(got), err)
				}
				got = append(got, piece...)
				if len(piece) < 40_000 {
					break
				}
			}
			if !bytes.Equal(got, content) {
				t.Errorf("%s of %d bytes reads as %d bytes, or others", stream, size, len(got))
			}
			for _, offset := range []int64{int64(size), int64(size) + 1, 1 << 62} {
				if piece, err := tr.Output(t.Context(), "local", id, stream, offset, 10); err != nil || len(piece) != 0 {
					t.Errorf("%s of %d at %d: %d bytes, %v", stream, size, offset, len(piece), err)
				}
			}
		}
	}
	for name, err := range map[string]error{
		"a stream":  second(tr.Output(t.Context(), "local", "run_1", "stdin", 0, 1)),
		"an offset": second(tr.Output(t.Context(), "local", "run_1", "stdout", -1, 1)),
		"a limit":   second(tr.Output(t.Context(), "local", "run_1", "stdout", 0, pieceMost+1)),
	} {
		wantCode(t, name, err, glovebox.CodeInvalid)
	}
}

func second[T any](_ T, err error) error { return err }

func TestEndAgainAfterAFailure(t *testing.T) {
	tr := newTrace(t, t.TempDir())
	spill := filepath.Join(t.TempDir(), "spill")
	content := bytes.Repeat([]byte("out"), 50_000)
	if err := os.WriteFile(spill, content, 0o600); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(content)
	e := End{ID: "run_1", Result: someResult("run_1", glovebox.StatusExited),
		Stdout: Kept{Path: spill, SHA256: hex.EncodeToString(sum[:])}}
	if _, err := tr.End(t.Context(), e); err == nil { // not started yet
		t.Fatal("an end without a start was taken")
	}
	mustStart(t, tr, someStart("run_1"))
	mustEnd(t, tr, e)
	if out, err := tr.Output(t.Context(), "local", "run_1", "stdout", 149_990, 100); err != nil || string(out) != "toutoutout" {
		t.Errorf("output: %q, %v", out, err)
	}
}

func TestArtifacts(t *testing.T) {
	tr := newTrace(t, t.TempDir())
	kept := tr.Artifacts()
	n, sha, err := kept.Put(strings.NewReader("picture"))
	if err := errors.Join(err, kept.Commit()); err != nil {
		t.Fatal(err)
	}
	mustStart(t, tr, someStart("run_1"))
	res := someResult("run_1", glovebox.StatusExited)
	res.Artifacts = []glovebox.Artifact{{Path: "a/b.png", Bytes: n, SHA256: sha, MediaType: "image/png"}}
	mustEnd(t, tr, End{ID: "run_1", Result: res})
	f, err := tr.OpenArtifact(t.Context(), "local", "run_1", "a/b.png")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got, err := io.ReadAll(f); err != nil || string(got) != "picture" {
		t.Errorf("artifact: %q, %v", got, err)
	}
	for _, path := range []string{"", "b.png", "a/../a/b.png", "/a/b.png"} {
		_, err := tr.OpenArtifact(t.Context(), "local", "run_1", path)
		wantCode(t, path, err, glovebox.CodeNotFound)
	}
	res.ID = "run_2"
	res.Artifacts[0].SHA256 = strings.Repeat("0", 64)
	mustStart(t, tr, someStart("run_2"))
	_, err = tr.End(t.Context(), End{ID: "run_2", Result: res})
	wantCode(t, "an artifact that was not kept", err, glovebox.CodeInternal)
}

func TestNewID(t *testing.T) {
	seen := map[string]bool{}
	var ids []string
	for i := range 1000 {
		id := NewID(testTime.Add(time.Duration(i) * time.Millisecond))
		if len(id) != 24 || !strings.HasPrefix(id, "run_") || strings.Trim(id[4:], "0123456789abcdefghijklmnopqrstuv") != "" {
			t.Fatalf("id %q", id)
		}
		if seen[id] {
			t.Fatalf("%s twice", id)
		}
		seen[id] = true
		ids = append(ids, id)
	}
	if !slices.IsSorted(ids) {
		t.Error("ids are not in the order of time")
	}
}

func TestManyAtOnce(t *testing.T) {
	tr := newTrace(t, t.TempDir())
	var wg sync.WaitGroup
	refs := make([]glovebox.TraceRef, 100)
	for i := range refs {
		wg.Go(func() {
			id := fmt.Sprint("run_", i)
			if _, err := tr.Start(t.Context(), someStart(id)); err != nil {
				t.Error(err)
			}
			var err error
			if refs[i], err = tr.End(t.Context(), End{ID: id, Result: someResult(id, glovebox.StatusExited)}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for i, ref := range refs {
		rec, err := tr.Get(t.Context(), "local", fmt.Sprint("run_", i))
		if err != nil || rec.Result == nil || rec.Result.Trace != ref {
			t.Errorf("run %d: %v, its reference %+v", i, err, ref)
		}
	}
}

// TestManyArtifacts: a record lists some of very many outputs, and whoever reads the run gets all.
func TestManyArtifacts(t *testing.T) {
	tr := newTrace(t, t.TempDir())
	kept := tr.Artifacts()
	n, sha, err := kept.Put(strings.NewReader("x"))
	if err := errors.Join(err, kept.Commit()); err != nil {
		t.Fatal(err)
	}
	mustStart(t, tr, someStart("run_1"))
	res := someResult("run_1", glovebox.StatusExited)
	for i := range 2500 {
		res.Artifacts = append(res.Artifacts, glovebox.Artifact{Path: fmt.Sprintf("f%05d", i), Bytes: n, SHA256: sha, MediaType: "text/plain"})
	}
	want := slices.Clone(res.Artifacts)
	mustEnd(t, tr, End{ID: "run_1", Result: res})
	rec, err := tr.Get(t.Context(), "local", "run_1")
	if err != nil {
		t.Fatal(err)
	}
	if _, cut := rec.Cut["artifacts"]; cut || !slices.Equal(rec.Result.Artifacts, want) {
		t.Errorf("%d of %d artifacts, cut %v", len(rec.Result.Artifacts), len(want), rec.Cut)
	}
	list, err := tr.List(t.Context(), "local", glovebox.TraceQuery{})
	if err != nil || len(list[0].Result.Artifacts) >= len(want) || list[0].Cut["artifacts"].Items == 0 {
		t.Errorf("a list is bounded: %v", err)
	}
}
