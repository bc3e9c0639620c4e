package trace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"

	"glovebox"
	"glovebox/internal/store"
)

// TestHeadIsACheckpoint: what a result says verifies with nothing but the public key and the documented format.
func TestHeadIsACheckpoint(t *testing.T) {
	tr := newTrace(t, t.TempDir())
	ref := fill(t, tr)[1]
	if strings.Trim(ref.Hash, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ._-") != "" {
		t.Errorf("%q may not survive copying", ref.Hash)
	}
	h, err := parseHead(ref)
	if err != nil {
		t.Fatal(err)
	}
	verifier, err := note.NewVerifier(mustHold(t, tr).Key)
	if err != nil {
		t.Fatal(err)
	}
	if !verifier.Verify(h.text(), []byte(h.signature[4:])) {
		t.Error("the signature is none of the text")
	}
	if h.size++; verifier.Verify(h.text(), []byte(h.signature[4:])) {
		t.Error("the signature is of any size")
	}
}

// TestKeys: a key that cannot be trusted refuses new runs with a fix, and what is there can be read all the same.
func TestKeys(t *testing.T) {
	other, _, err := note.GenerateKey(nil2{}, origin)
	if err != nil {
		t.Fatal(err)
	}
	foreign, _, err := note.GenerateKey(nil2{}, "someone")
	if err != nil {
		t.Fatal(err)
	}
	write := func(text string) func(string) error {
		return func(p string) error { return os.WriteFile(p, []byte(text), 0o600) }
	}
	for _, c := range []struct {
		name     string
		do       func(path string) error
		why, fix string
	}{
		{"open to a group", func(p string) error { return os.Chmod(p, 0o640) }, "open to others", "chmod 600 "},
		{"open to all", func(p string) error { return os.Chmod(p, 0o604) }, "open to others", "chmod 600 "},
		{"missing", os.Remove, "missing", "restore "},
		{"a folder", func(p string) error { return errors.Join(os.Remove(p), os.Mkdir(p, 0o700)) }, "no key", "restore "},
		{"a link", func(p string) error { return errors.Join(os.Rename(p, p+"2"), os.Symlink(p+"2", p)) }, "cannot be read", "readable"},
		{"a pipe", func(p string) error { return errors.Join(os.Remove(p), syscall.Mkfifo(p, 0o600)) }, "no key", "restore "},
		{"empty", write(""), "no key", "restore "},
		{"noise", write("PRIVATE+KEY+x+y+z"), "no key", "restore "},
		{"huge", write(strings.Repeat("x", 1<<20)), "no key", "restore "},
		{"of another kind", write(foreign), "no key", "restore "},
		{"another key", write(other), "another key", "put the key that signed them back"},
	} {
		t.Run(c.name, func(t *testing.T) { spoilKey(t, c.name, c.do, c.why, c.fix) })
	}
}

func spoilKey(t *testing.T, name string, do func(path string) error, why, fix string) {
	dir := t.TempDir()
	tr := newTrace(t, dir)
	fill(t, tr)
	path := filepath.Join(dir, "trace.key")
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Fatalf("%v, %v", info.Mode(), err)
	}
	key, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := do(path); err != nil {
		t.Fatal(err)
	}
	again := newAgain(t, tr)
	_, err = again.Start(t.Context(), someStart("run_next"))
	e := wantCode(t, "a start", err, glovebox.CodeUnavailable)
	if !strings.Contains(e.Public, why) || !strings.Contains(e.Fix, fix) || !strings.Contains(e.Fix, path) {
		t.Errorf("public %q, fix %q", e.Public, e.Fix)
	}
	if err := again.Ready(); name != "another key" {
		wantCode(t, "ready", err, glovebox.CodeUnavailable)
	}
	if rec, err := again.Get(t.Context(), "local", "run_1"); err != nil || rec.State != "ended" {
		t.Errorf("what is there cannot be read: %v", err)
	}
	if v, err := again.Verify(t.Context(), nil); name == "another key" {
		wantFirst(t, v, 1, problemForged)
	} else {
		wantCode(t, "verify", err, glovebox.CodeUnavailable)
	}
	// What the operator mends counts at once.
	if err := errors.Join(os.RemoveAll(path), os.WriteFile(path, key, 0o600)); err != nil {
		t.Fatal(err)
	}
	if name == "another key" {
		again = newAgain(t, tr)
	}
	mustStart(t, again, someStart("run_next"))
	mustHold(t, again)
}

// nil2 is randomness that is none, for keys that protect nothing.
type nil2 struct{}

func (nil2) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 7
	}
	return len(p), nil
}

func TestKeyElsewhere(t *testing.T) {
	s, err := store.Open(store.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	path := filepath.Join(t.TempDir(), "absent", "k")
	tr, err := New(t.Context(), Config{Store: s, Key: path})
	if err != nil {
		t.Fatal(err)
	}
	_, err = tr.Start(t.Context(), someStart("run_1"))
	if e := wantCode(t, "no folder", err, glovebox.CodeUnavailable); !strings.HasPrefix(e.Fix, "mkdir ") {
		t.Errorf("fix %q", e.Fix)
	}
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if tr, err = New(t.Context(), Config{Store: s, Key: path}); err != nil {
		t.Fatal(err)
	}
	mustStart(t, tr, someStart("run_1"))
	mustHold(t, tr)
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".*")); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
}

// TestOneKeyAmongMany: of many that begin at once one makes the key.
func TestOneKeyAmongMany(t *testing.T) {
	s, err := store.Open(store.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	path := filepath.Join(t.TempDir(), "k")
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			tr, err := New(t.Context(), Config{Store: s, Key: path})
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := tr.Start(t.Context(), someStart(fmt.Sprint("run_", i))); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	tr, err := New(t.Context(), Config{Store: s, Key: path})
	if err != nil {
		t.Fatal(err)
	}
	if v := mustHold(t, tr); v.Records != 16 {
		t.Errorf("%d records", v.Records)
	}
}

func TestHeadsToAFile(t *testing.T) {
	dir := t.TempDir()
	tr := newTrace(t, dir)
	tr.heads.to.File = filepath.Join(t.TempDir(), "heads")
	last := fill(t, tr)[3]
	text, err := os.ReadFile(tr.heads.to.File)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	var heads []glovebox.TraceRef
	for _, l := range lines {
		var ref glovebox.TraceRef
		if _, err := fmt.Sscanf(strings.Replace(l, ":", " ", 1), "%d %s", &ref.Seq, &ref.Hash); err != nil {
			t.Fatalf("%q: %v", l, err)
		}
		heads = append(heads, ref)
	}
	if mustHold(t, tr, heads...); len(heads) != 7 || heads[6] != last {
		t.Errorf("%d heads, the last %v", len(heads), heads[len(heads)-1])
	}
	if info, err := os.Stat(tr.heads.to.File); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if err := tr.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestHeadsFileIsRotated moves the file of heads away between a start and its end: the end's head is in a new one.
func TestHeadsFileIsRotated(t *testing.T) {
	tr := newTrace(t, t.TempDir())
	tr.heads.to.File = filepath.Join(t.TempDir(), "heads")
	defer tr.Close()
	mustStart(t, tr, someStart("run_1"))
	if err := os.Rename(tr.heads.to.File, tr.heads.to.File+".1"); err != nil {
		t.Fatal(err)
	}
	ref := mustEnd(t, tr, End{ID: "run_1", Result: someResult("run_1", glovebox.StatusExited)})
	if b, err := os.ReadFile(tr.heads.to.File); err != nil || string(b) != fmt.Sprintf("%d:%s\n", ref.Seq, ref.Hash) {
		t.Errorf("%q, %v", b, err)
	}
	if b, err := os.ReadFile(tr.heads.to.File + ".1"); err != nil || strings.Count(string(b), "\n") != 1 {
		t.Errorf("the moved file: %q, %v", b, err)
	}
}

// TestHeadsThatDoNotArrive: nothing begins before its head can be where heads go.
func TestHeadsThatDoNotArrive(t *testing.T) {
	dir := t.TempDir()
	open := filepath.Join(dir, "open")
	if err := errors.Join(os.WriteFile(open, nil, 0o600), os.Chmod(open, 0o622), os.Symlink("/dev/null", filepath.Join(dir, "link"))); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]Heads{
		"a folder": {File: dir}, "no folder": {File: dir + "/no/heads"}, "open to others": {File: open}, "a link": {File: dir + "/link"},
		"no device for it": {File: "/dev/full"}, "no logger": {Syslog: dir + "/log"}, "no socket": {Syslog: open},
	} {
		tr := newTrace(t, t.TempDir())
		tr.heads.to = to
		wantCode(t, name, tr.Ready(), glovebox.CodeUnavailable)
		_, err := tr.Start(t.Context(), someStart("run_1"))
		if e := wantCode(t, name, err, glovebox.CodeUnavailable); !strings.Contains(e.Public, "nothing is run") || !strings.Contains(e.Fix, "trace.heads") {
			t.Errorf("%s: %+v", name, e)
		}
		if _, err := tr.Get(t.Context(), "local", "run_1"); err == nil {
			t.Errorf("%s: it was recorded as begun", name)
		}
	}
	// One that breaks after it was looked at: the start that was recorded has its end.
	tr := newTrace(t, t.TempDir())
	tr.heads.to.File = filepath.Join(dir, "heads")
	if err := tr.Ready(); err != nil {
		t.Fatal(err)
	}
	unwritable, err := os.Open(tr.heads.to.File)
	if err != nil {
		t.Fatal(err)
	}
	defer unwritable.Close()
	tr.heads.file = unwritable
	_, err = tr.Start(t.Context(), someStart("run_1"))
	wantCode(t, "it cannot be written any more", err, glovebox.CodeUnavailable)
	if rec, err := tr.Get(t.Context(), "local", "run_1"); err != nil || rec.State != "ended" || rec.Error.Code != glovebox.CodeUnavailable {
		t.Errorf("%+v, %v", rec, err)
	}
	mustHold(t, tr)
}

func TestHeadsToSyslog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	listen := func() *net.UnixConn {
		c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	log := listen()
	tr := newTrace(t, t.TempDir())
	tr.heads.to.Syslog = path
	defer tr.Close()
	heard := func() string {
		b := make([]byte, 1000)
		if err := log.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		n, err := log.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		return string(b[:n])
	}
	mustStart(t, tr, someStart("run_1"))
	heard()
	ref := mustEnd(t, tr, End{ID: "run_1", Result: someResult("run_1", glovebox.StatusExited)})
	if got, want := heard(), fmt.Sprintf("trace head %d:%s", ref.Seq, ref.Hash); !strings.HasPrefix(got, "<86>") || !strings.HasSuffix(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	// A logger that was started again.
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	os.Remove(path)
	log = listen()
	defer log.Close()
	mustStart(t, tr, someStart("run_2"))
	heard()
	// One that does not read: it is given up after a while, and nothing hangs.
	var err error
	for i := 0; i < 10_000 && err == nil; i++ {
		_, err = tr.Start(t.Context(), someStart(fmt.Sprint("run_x_", i)))
	}
	wantCode(t, "a logger that does not read", err, glovebox.CodeUnavailable)
}

// TestFoundRecords: what was written before there was a log is sealed as it is found, and said so.
func TestFoundRecords(t *testing.T) {
	dir := t.TempDir()
	tr := newTrace(t, dir)
	start := `{"v":1,"kind":"run.start","run":"run_1","time":"2026-03-01T12:00:00.123456789Z","principal":{"tenant":"local","name":"ada","owner":true},` +
		`"lang":"python","args":["3"],"code":"secret()","code_bytes":8,"code_sha256":"aa","decision":{"allow":true,"rule":"default","reason":"why not",` +
		`"grant":{"isolation":"process","trust":"model","image":"host","limits":{}}},"image":"host","owner":{"pid":1,"start":2,"boot":"b"}}`
	end := `{"v":1,"kind":"run.end","run":"run_1","time":"2026-03-01T12:00:01Z","state":"ended","result":{"id":"run_1","ok":true,"status":"exited",` +
		`"exit_code":0,"signal":null,"reason":"because","limits_hit":[],"stdout":"hi","stderr":"","stdout_bytes":2,"stderr_bytes":0,` +
		`"stdout_truncated":false,"stderr_truncated":false,"untrusted":true,"flags":[],"isolation":"process","posture":{},"trust":"model","rule":"default",` +
		`"image":"host","start":"cold","served_by":"local","limits":{},"usage":{},"artifacts":[],"skipped":[],"egress":[],"trace":{"seq":0,"hash":""}}}`
	refused := strings.NewReplacer("run.start", "run.refused", "run_1", "run_2", `"image":"host","owner"`, `"error":{"code":"denied","message":"no","fix":"ask"},"owner"`).Replace(start)
	put := func(seq int, run, kind, at, body, hashOf string) string {
		ns, err := time.Parse(time.RFC3339Nano, at)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("INSERT INTO found VALUES (%d, '%s', '%s', %d, CAST('%s' AS BLOB), x'%s')", seq, run, kind, ns.UnixNano(), body, sumOf(hashOf))
	}
	const t0, t1 = "2026-03-01T12:00:00.123456789Z", "2026-03-01T12:00:01Z"
	ns0, ns1 := int64(1772366400123456789), int64(1772366401000000000)
	tamper(t, tr, put(1, "run_1", "run.start", t0, start, start), put(4, "run_1", "run.end", t1, end, end), // a gap, as an old crash may leave
		put(5, "run_2", "run.refused", t0, refused, refused),
		fmt.Sprintf("INSERT INTO runs (id, tenant, state, status, started_ns, ended_ns, start_seq, end_seq, owner_pid, owner_start, owner_boot) "+
			"VALUES ('run_1', 'local', 'ended', 'exited', %d, %d, 1, 4, 1, 2, 'b')", ns0, ns1),
		fmt.Sprintf("INSERT INTO runs (id, tenant, state, started_ns, ended_ns, start_seq, end_seq) VALUES ('run_2', 'local', 'refused', %d, %[1]d, 5, 5)", ns0),
		"INSERT INTO outputs VALUES ('run_1', 'stdout', 2, '"+sumOf("hi")+"', CAST('hi' AS BLOB))",
		"UPDATE log SET found = 3")
	again := newAgain(t, tr)
	list, err := again.List(t.Context(), "local", glovebox.TraceQuery{})
	if err != nil || len(list) != 2 {
		t.Fatalf("%d records, %v", len(list), err)
	}
	rec, err := again.Get(t.Context(), "local", "run_1")
	if err != nil || string(rec.Code) != "secret()" || rec.Args[0] != "3" || rec.CodeSHA256 != "aa" || rec.Decision.Reason != "why not" ||
		rec.Result == nil || string(rec.Result.Stdout) != "hi" || rec.Result.Reason != "because" || rec.Result.Trace.Seq != 2 {
		t.Errorf("%+v, %v", rec, err)
	}
	if rec, err := again.Get(t.Context(), "local", "run_2"); err != nil || rec.Error.Message != "no" || rec.Decision.Reason != "why not" {
		t.Errorf("%+v, %v", rec, err)
	}
	fill2 := someStart("run_3")
	mustStart(t, again, fill2)
	if v := mustHold(t, again); v.Found != 3 || v.Records != 4 {
		t.Errorf("%+v", v)
	}
	// Nothing of a text is in what stays.
	kinds, all := bodies(t, again)
	if skeletons := bytes.Join(all[:len(kinds)], nil); bytes.Contains(skeletons, []byte("secret()")) || bytes.Contains(skeletons, []byte("why not")) ||
		bytes.Contains(skeletons, []byte("because")) {
		t.Errorf("skeletons hold texts: %s", skeletons)
	}
	// One that was changed before it could be sealed is sealed too, and named. This is what an append finds first.
	tr = newTrace(t, t.TempDir())
	tamper(t, tr, put(1, "run_1", "run.start", t0, start, end), "UPDATE log SET found = 1",
		fmt.Sprintf("INSERT INTO runs (id, tenant, state, started_ns, start_seq, owner_pid, owner_start, owner_boot) VALUES ('run_1', 'local', 'running', %d, 1, 1, 2, 'b')", ns0))
	if seq := mustStart(t, tr, someStart("run_9")); seq != 2 {
		t.Errorf("the first new record is %d", seq)
	}
	wantFirst(t, verify(t, tr), 1, problemChanged)
}

func sumOf(s string) string { return commitment(nil, []byte(s)) }

// TestConcurrentLog: two processes append at once, and it is one log; when they are killed, it is one still.
func TestConcurrentLog(t *testing.T) {
	dir := t.TempDir()
	var wg sync.WaitGroup
	for i := range 2 {
		wg.Go(func() {
			if out, err := process(t, "count", fmt.Sprint("p", i), dir).CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
	wg.Wait()
	if v := mustHold(t, newTrace(t, dir)); v.Records != 4*runsEach {
		t.Errorf("%d records, want %d", v.Records, 4*runsEach)
	}
	for i := range 5 {
		cmds := make([]*killable, 2)
		for j := range cmds {
			cmds[j] = startKillable(t, fmt.Sprintf("k%d-%d", i, j), dir)
		}
		var acknowledged []string
		for _, c := range cmds {
			acknowledged = append(acknowledged, c.killAfter(t, 7+11*i)...)
		}
		tr := newTrace(t, dir)
		mustHold(t, tr)
		for _, id := range acknowledged {
			if _, err := tr.Get(t.Context(), "local", id); err != nil {
				t.Errorf("%s was acknowledged: %v", id, err)
			}
		}
	}
}

// TestAppendAfterARollback: an update that fails after its append leaves no gap.
func TestAppendAfterARollback(t *testing.T) {
	tr := newTrace(t, t.TempDir())
	boom := errors.New("boom")
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			id := fmt.Sprint("run_", i)
			if i%2 == 0 {
				if _, err := tr.Start(t.Context(), someStart(id)); err != nil {
					t.Error(err)
				}
				return
			}
			err := tr.store.Update(t.Context(), func(ctx context.Context, tx *store.Tx) error {
				rec, err := tr.startRecord(kindStart, someStart(id), nil)
				if err == nil {
					err = tr.append(ctx, tx, rec, 0)
				}
				return errors.Join(err, boom)
			})
			if !errors.Is(err, boom) || errors.Is(err, errBroken) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if v := mustHold(t, tr); v.Records != 20 {
		t.Errorf("%d records", v.Records)
	}
}
