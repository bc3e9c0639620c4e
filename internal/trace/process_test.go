package trace

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"glovebox"
	"glovebox/internal/store"
)

// roleEnv makes the test binary a process beside a test: "role name folder".
const roleEnv = "GLOVEBOX_TRACE_ROLE"

const runsEach = 200

func TestMain(m *testing.M) {
	fields := strings.SplitN(os.Getenv(roleEnv), " ", 3)
	if len(fields) < 3 {
		os.Exit(m.Run())
	}
	if err := play(fields[0], fields[1], fields[2]); err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// play is a process that records runs: "count" ends each of them, "start" none, and prints a run's id when it is
// acknowledged. It ends when standard input does.
func play(role, name, dir string) (err error) {
	s, err := store.Open(store.Config{Dir: dir})
	if err != nil {
		return err
	}
	defer s.Close()
	ctx := context.Background()
	tr, err := New(ctx, Config{Store: s, Key: filepath.Join(dir, "trace.key")})
	if err != nil {
		return err
	}
	for i := 0; i < runsEach || role == "start"; i++ {
		id := fmt.Sprintf("run_%s_%d", name, i)
		if _, err := tr.Start(ctx, someStart(id)); err != nil {
			return err
		}
		if role == "count" {
			if _, err := tr.End(ctx, End{ID: id, Result: someResult(id, glovebox.StatusExited)}); err != nil {
				return err
			}
			continue
		}
		if fmt.Println(id); role == "hold" {
			break
		}
	}
	if role == "hold" {
		_, err = bufio.NewReader(os.Stdin).ReadString('\n')
	}
	return err
}

func process(t *testing.T, role, name, dir string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleEnv+"="+role+" "+name+" "+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// killable is a process that starts runs until it is killed.
type killable struct {
	*exec.Cmd
	lines *bufio.Scanner
}

func startKillable(t *testing.T, name, dir string) *killable {
	t.Helper()
	cmd := process(t, "start", name, dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return &killable{cmd, bufio.NewScanner(out)}
}

// killAfter kills it when it has started n runs and returns all that it started.
func (k *killable) killAfter(t *testing.T, n int) (started []string) {
	t.Helper()
	for k.lines.Scan() {
		if !strings.HasPrefix(k.lines.Text(), "run_") {
			t.Fatalf("it says %q", k.lines.Text())
		}
		if started = append(started, k.lines.Text()); len(started) == n {
			if err := k.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := k.Wait(); err == nil {
		t.Fatal("the process was not killed")
	}
	return started
}

func TestManyProcessesOnOneFolder(t *testing.T) {
	dir := t.TempDir()
	var all []*exec.Cmd
	outs := make([]bytes.Buffer, 8)
	for i := range outs {
		cmd := process(t, "count", fmt.Sprint("p", i), dir)
		cmd.Stdout, cmd.Stderr = &outs[i], &outs[i]
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		all = append(all, cmd)
	}
	for i, cmd := range all {
		if err := cmd.Wait(); err != nil {
			t.Errorf("process %d: %v\n%s", i, err, outs[i].String())
		}
	}
	tr := newTrace(t, dir)
	var starts, ends, ended int
	err := tr.store.View(t.Context(), func(tx *store.Tx) error {
		return tx.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM records WHERE kind = 'run.start'),
			(SELECT count(*) FROM records WHERE kind = 'run.end'), (SELECT count(*) FROM runs WHERE state = 'ended')`).
			Scan(&starts, &ends, &ended)
	})
	if want := len(all) * runsEach; err != nil || starts != want || ends != want || ended != want {
		t.Errorf("%d starts, %d ends, %d runs ended, want %d of each; error %v", starts, ends, ended, want, err)
	}
}

func TestAKilledWriterLosesNothing(t *testing.T) {
	dir := t.TempDir()
	var acknowledged []string
	for round := range 4 {
		acknowledged = append(acknowledged, startKillable(t, fmt.Sprint("r", round), dir).killAfter(t, 21+13*round)...)
	}
	tr := newTrace(t, dir)
	for _, id := range acknowledged {
		if rec, err := tr.Get(t.Context(), "local", id); err != nil || rec.State != "running" {
			t.Fatalf("%s was acknowledged: %v", id, err)
		}
	}
	n, err := tr.Interrupted(t.Context())
	if err != nil || n < len(acknowledged) {
		t.Errorf("%d of at least %d runs were closed; error %v", n, len(acknowledged), err)
	}
	for _, id := range acknowledged {
		rec, err := tr.Get(t.Context(), "local", id)
		if err != nil {
			t.Fatal(err)
		}
		if rec.State != "interrupted" || rec.Error == nil || rec.Error.Code != glovebox.CodeInternal || rec.Ended.IsZero() {
			t.Fatalf("%s is %s with error %+v", id, rec.State, rec.Error)
		}
	}
	mustHold(t, tr)
	if n, err := tr.Interrupted(t.Context()); n != 0 || err != nil {
		t.Errorf("a second time %d runs were closed; error %v", n, err)
	}
}

func TestLivingOwnersAreLeftAlone(t *testing.T) {
	dir := t.TempDir()
	cmd := process(t, "hold", "other", dir)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != "run_other_0" {
		t.Fatalf("it says %q", lines.Text())
	}
	tr := newTrace(t, dir)
	mustStart(t, tr, someStart("run_mine"))
	if n, err := tr.Interrupted(t.Context()); n != 0 || err != nil {
		t.Errorf("%d runs of living owners were closed; error %v", n, err)
	}
	// Killed and not waited for yet: it has a number still, but runs no more.
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(10 * time.Second)
	for n := 0; n != 1; {
		if n, err = tr.Interrupted(t.Context()); err != nil || time.Now().After(deadline) {
			t.Fatalf("%d runs of a dead owner were closed; error %v", n, err)
		}
		time.Sleep(time.Millisecond)
	}
	_, err = tr.End(t.Context(), End{ID: "run_other_0", Result: someResult("run_other_0", glovebox.StatusExited)})
	wantCode(t, "an end after the interruption", err, glovebox.CodeConflict)
	in.Close()
	if err := cmd.Wait(); err == nil {
		t.Error("it was not killed")
	}
	if rec, err := tr.Get(t.Context(), "local", "run_mine"); err != nil || rec.State != "running" {
		t.Errorf("the living run: %v", err)
	}
}

func TestGone(t *testing.T) {
	dir := t.TempDir()
	tr := newTrace(t, dir)
	second := newTrace(t, dir)
	boot, _, _ := strings.Cut(tr.self.Boot, " ")
	other, err := store.Open(store.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	far := owner{1 << 30, 1, "another machine pid:[1]"}
	if err := other.Claim(far.name()); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		owner owner
		want  bool
	}{
		{"this trace", tr.self, false},
		{"another of this process", second.self, false},
		{"another of its number", owner{tr.self.PID, tr.self.Start + 1, tr.self.Boot}, true},
		{"no such number", owner{1 << 30, tr.self.Start, tr.self.Boot}, true},
		{"another namespace", owner{tr.self.PID, tr.self.Start, boot + " pid:[1]"}, true},
		{"one that cannot be seen and lives", far, false},
	} {
		if got, err := tr.gone(c.owner); got != c.want || err != nil {
			t.Errorf("%s: gone is %v (%v)", c.name, got, err)
		}
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := tr.gone(far); !got || err != nil {
		t.Errorf("one that lived: gone is %v (%v)", got, err)
	}
	if err := second.store.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := tr.gone(second.self); !got || err != nil {
		t.Errorf("one of this process that was closed: gone is %v (%v)", got, err)
	}
	if err := tr.store.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := tr.gone(far); err == nil {
		t.Error("a closed store tells who lives")
	}
}

func TestExplain(t *testing.T) {
	if err := Explain("x", nil); err != nil {
		t.Errorf("nil became %v", err)
	}
	file := t.TempDir() + "/file"
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := store.Open(store.Config{Dir: file})
	e := wantCode(t, "a file", Explain("open", err), glovebox.CodeUnavailable)
	if !strings.Contains(e.Public, "not a folder") || !strings.Contains(e.Fix, file) {
		t.Errorf("public %q, fix %q", e.Public, e.Fix)
	}
	tr := newTrace(t, t.TempDir())
	if err := tr.store.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = tr.Start(t.Context(), someStart("run_1"))
	wantCode(t, "a closed store", err, glovebox.CodeInternal)
}

func BenchmarkStart(b *testing.B) {
	tr := newTrace(b, b.TempDir())
	for i := 0; b.Loop(); i++ {
		mustStart(b, tr, someStart(fmt.Sprint("run_", i)))
	}
}

func BenchmarkEnd(b *testing.B) {
	tr := newTrace(b, b.TempDir())
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		id := fmt.Sprint("run_", i)
		mustStart(b, tr, someStart(id))
		b.StartTimer()
		mustEnd(b, tr, End{ID: id, Result: someResult(id, glovebox.StatusExited), Stdout: Kept{Data: []byte("hi\n")}})
	}
}

func BenchmarkInterruptedNone(b *testing.B) {
	tr := newTrace(b, b.TempDir())
	for b.Loop() {
		if _, err := tr.Interrupted(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
