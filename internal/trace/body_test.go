package trace

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"glovebox"
)

func TestRecordsAreOneLineOfJSON(t *testing.T) { // AU-01, AU-03
	tr := newTrace(t, t.TempDir())
	forged := "a\r\n{\"kind\":\"run.end\",\"run\":\"run_1\"}\n\x1b[2J\u202e\u2028\x00\x7f\u009b\U000e0041"
	s := someStart("run_1" + forged)
	s.Argv, s.Args, s.EnvNames = []string{forged}, []string{forged}, []string{forged}
	s.Code, s.Lang, s.Image, s.Principal.Name = []byte(forged), forged, forged, forged
	s.Decision.Reason, s.Inputs[0].Name = forged, forged
	mustStart(t, tr, s)
	res := someResult(s.ID, glovebox.StatusExited)
	res.Stdout, res.Reason = glovebox.Untrusted(forged), forged
	res.Egress = []glovebox.EgressFlow{{Host: forged, Reason: forged}}
	res.Skipped = []glovebox.Skipped{{Path: forged, Reason: forged}}
	batch := tr.Artifacts()
	n, sha, err := batch.Put(strings.NewReader("x"))
	if err = errors.Join(err, batch.Commit()); err != nil {
		t.Fatal(err)
	}
	res.Artifacts = []glovebox.Artifact{{Path: forged, Bytes: n, SHA256: sha, MediaType: forged}}
	mustEnd(t, tr, End{ID: s.ID, Result: res})
	kinds, all := bodies(t, tr)
	if len(kinds) != 2 {
		t.Errorf("two actions made the records %v", kinds)
	}
	for n, body := range all {
		if i := bytes.IndexFunc(body, func(r rune) bool { return r < ' ' || r > '~' }); i >= 0 {
			t.Errorf("a body holds %q", body[i:min(len(body), i+8)])
		}
		var v map[string]any
		if err := json.Unmarshal(body, &v); err != nil || n < len(kinds) && v["run"] != s.ID {
			t.Errorf("a body does not read back: %v, %q", err, v["run"])
		}
	}
	mustHold(t, tr)
	rec, err := tr.Get(t.Context(), "local", s.ID)
	if err != nil || string(rec.Code) != forged || rec.Result.Artifacts[0].Path != forged || rec.Argv[0] != forged || string(rec.Result.Stdout) != forged {
		t.Errorf("what was recorded does not read back: %v", err)
	}
}

func TestHugeFields(t *testing.T) { // AU-12
	tr := newTrace(t, t.TempDir())
	s := someStart("run_1")
	s.Code = bytes.Repeat([]byte("é"), 5<<20)
	s.Args, s.EnvNames = slices.Repeat([]string{"argument"}, 10_000), []string{strings.Repeat("N", 1<<20)}
	s.Inputs = slices.Repeat([]glovebox.InputRecord{{Name: strings.Repeat("i", 4000)}}, 5000)
	s.Decision.Grant.Egress = slices.Repeat([]glovebox.EgressRule{{Host: strings.Repeat("h", 5000)}}, 5000)
	s.Lang, s.Image, s.Decision.Reason = strings.Repeat("l", 1<<20), strings.Repeat("m", 1<<20), strings.Repeat("r", 1<<20)
	mustStart(t, tr, s)
	res := someResult("run_1", glovebox.StatusExited)
	res.Stdout, res.Stderr = glovebox.Untrusted(strings.Repeat("é", 1<<20)), glovebox.Untrusted(strings.Repeat("\x00", 1<<20))
	res.Egress = slices.Repeat([]glovebox.EgressFlow{{Host: strings.Repeat("h", 5000)}}, 10_000)
	mustEnd(t, tr, End{ID: "run_1", Result: res})
	_, all := bodies(t, tr)
	for _, body := range all {
		if len(body) > 600<<10 {
			t.Errorf("a body has %d bytes", len(body))
		}
	}
	rec, err := tr.Get(t.Context(), "local", "run_1")
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(s.Code)
	if len(rec.Code) != codeBytes || rec.CodeBytes != int64(len(s.Code)) || rec.CodeSHA256 != hex.EncodeToString(sum[:]) {
		t.Errorf("code: %d bytes kept of %d, hash %s", len(rec.Code), rec.CodeBytes, rec.CodeSHA256)
	}
	for name, items := range map[string]int64{"args": 10_000, "env_names": 1, "inputs": 5000, "egress": 10_000} {
		if c := rec.Cut[name]; c.Items != items || c.Bytes == 0 || len(c.SHA256) != 64 {
			t.Errorf("%s is told as %+v", name, c)
		}
	}
	if len(rec.Args) != listItems || !rec.Result.StdoutTruncated || !rec.Result.StderrTruncated {
		t.Errorf("%d arguments are kept; views truncated: %v, %v", len(rec.Args), rec.Result.StdoutTruncated,
			rec.Result.StderrTruncated)
	}
}

func FuzzStartReadsBack(f *testing.F) {
	tr := newTrace(f, f.TempDir())
	f.Add("x", "y", []byte("code"))
	f.Add("\n\x1b", "\xff\xfe", []byte{0xff, 0})
	n := 0
	f.Fuzz(func(t *testing.T, arg, name string, code []byte) {
		n++
		s := someStart(fmt.Sprint("run_", os.Getpid(), "_", n))
		s.Args, s.EnvNames, s.Code = []string{arg}, []string{name}, code
		if _, err := tr.Start(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		rec, err := tr.Get(t.Context(), "local", s.ID)
		if err != nil {
			t.Fatal(err)
		}
		if len(code) <= codeBytes && string(rec.Code) != string(code) {
			t.Errorf("code %q reads back as %q", code, string(rec.Code))
		}
		if want := string([]rune(arg)); len(arg) <= stringBytes && rec.Args[0] != want { // bytes that are no text become a mark
			t.Errorf("argument %q reads back as %q", arg, rec.Args[0])
		}
	})
}
