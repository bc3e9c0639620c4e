package drivertest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"glovebox/driver"
)

// A supervisor is killed by a process that stands between it and the test: the watcher adopts what the supervisor leaves
// behind, however it was started, so that it knows when the last of it is dead. Both are this test, started anew.
const (
	roleEnv   = "GLOVEBOX_SUITE_ROLE"   // watch or supervise
	kindEnv   = "GLOVEBOX_SUITE_KIND"   // cold, or the language of what waits
	markEnv   = "GLOVEBOX_SUITE_MARK"   // is in the names of its sandboxes
	budgetEnv = "GLOVEBOX_SUITE_BUDGET" // how long the watcher may go on
	upWord    = "suite: up"
	endWord   = "suite: watched "
)

// watched is what a watcher tells.
type watched struct {
	Kills  int
	Up     time.Duration // until a supervisor's program runs
	Before int           // processes of the first supervisor's, when it was killed
	Worst  time.Duration
	Errors []string
}

// again makes a command that is this test in another role.
func again(t testing.TB, role string) *exec.Cmd {
	t.Helper()
	exact := "^" + strings.Join(strings.Split(regexp.QuoteMeta(t.Name()), "/"), "$/^") + "$"
	cmd := exec.Command("/proc/self/exe", "-test.run="+exact, "-test.timeout=10m")
	cmd.Env = append(os.Environ(), roleEnv+"="+role)
	cmd.Stderr = t.Output()
	return cmd
}

// watch starts supervisors and kills them: one once its program runs, others at moments of the way there.
func watch(t *testing.T) {
	budget, err := time.ParseDuration(os.Getenv(budgetEnv))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	var w watched
	w.kill(t, -1)
	const most, least = 30, 4
	many := least
	if w.Up > 0 {
		many = min(most, max(least, int(budget/w.Up)))
	}
	for n := 0; n < many && len(w.Errors) == 0; n++ {
		w.kill(t, w.Up*time.Duration(n)/time.Duration(many))
	}
	text, err := json.Marshal(w)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(os.Stdout, "\n"+endWord+string(text))
}

func (w *watched) failed(format string, args ...any) {
	w.Errors = append(w.Errors, fmt.Sprintf(format, args...))
}

// kill starts a supervisor and kills it after a time, or when it is up; then nothing of it may live for longer than a
// second.
func (w *watched) kill(t *testing.T, after time.Duration) {
	cmd := again(t, "supervise")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if after >= 0 {
		time.Sleep(after)
	} else {
		in, said := bufio.NewScanner(out), ""
		for in.Scan() && !strings.HasPrefix(in.Text(), upWord) {
			said += in.Text() + "\n"
		}
		if w.Up = time.Since(begun); !strings.HasPrefix(in.Text(), upWord) {
			w.failed("the supervisor did not get up: %s", said)
		}
		w.Before = len((&bench{TB: t}).offspring()) - 1
	}
	died := time.Now()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	w.Kills++
	for {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		if err == syscall.ECHILD {
			break // and all that it left is dead, for it would be ours
		}
		if pid == 0 {
			if time.Since(died) > time.Second {
				w.failed("%v after the start, a second after the kill, there live: %v", after, (&bench{TB: t}).offspring())
				return
			}
			time.Sleep(time.Millisecond)
		}
	}
	w.Worst = max(w.Worst, time.Since(died))
}

// supervise makes a sandbox whose program and its daemons go on for ever, says so and waits to be killed.
func supervise(t *testing.T, s Subject) {
	s.Root = s.root()
	b := &bench{TB: t, driver: s.New(t), subject: s, limits: testLimits, slack: s.Slack, mark: os.Getenv(markEnv)}
	b.mark += "_" + strconv.Itoa(os.Getpid())
	var p driver.Process
	var err error
	if kind := os.Getenv(kindEnv); kind == "cold" {
		p, err = b.start().Exec(b.context(), probe("daemon"))
	} else {
		p, err = b.heldBeside(kind).Exec(b.context(), b.hold(kind).ask(codeOf(kind, "daemon")))
	}
	if err != nil {
		t.Fatal(err)
	}
	in := bufio.NewScanner(p.Stdout())
	for in.Scan() && in.Text() != "up" {
	}
	fmt.Fprintln(os.Stdout, "\n"+upWord)
	select {}
}

func caseLifeline(b *bench) { b.lifeline("cold") }

func caseLifelineWarm(b *bench) {
	if _, ok := b.driver.(driver.Warmer); !ok || len(b.subject.Interpreters) == 0 {
		b.Skip("this driver has nothing ready")
	}
	for _, lang := range b.languages() {
		b.lifeline(lang)
		return // one is as good as another
	}
}

// lifeline has supervisors killed and looks at what the watcher tells, and at what the next start leaves of it.
func (b *bench) lifeline(kind string) {
	b.Helper()
	cmd := again(named{b.TB, b.subject.test}, "watch")
	cmd.Env = append(cmd.Env, kindEnv+"="+kind, markEnv+"="+b.mark, budgetEnv+"=1500ms", "TMPDIR="+b.shortDir(),
		probeEnv+"="+b.subject.Probe)
	out, err := cmd.Output()
	_, last, _ := strings.Cut(string(out), endWord)
	var w watched
	if failed := json.NewDecoder(strings.NewReader(last)).Decode(&w); failed != nil {
		b.Fatalf("the watcher: %v, %v: %.2000s", err, failed, out)
	}
	for _, e := range w.Errors {
		b.Error(e)
	}
	if w.Kills < 5 || w.Before < 2 {
		b.Errorf("%d kills, %d processes before the first", w.Kills, w.Before)
	}
	b.Logf("%+v", w)
	// A driver of its own, since each looks but once for what the dead left.
	t, ok := b.TB.(*testing.T)
	if !ok {
		return
	}
	box, err := b.subject.New(t).Start(b.context(), b.spec())
	if err != nil {
		b.Fatalf("the next start: %v", err)
	}
	if err := box.Close(b.context()); err != nil {
		b.Errorf("close: %v", err)
	}
	if left := traces(b.mark); left != nil {
		b.Errorf("after the next start there are %q", left)
	}
}

// named is a test by another name.
type named struct {
	testing.TB
	name string
}

func (n named) Name() string { return n.name }

// shortDir is a folder that others may pass through; sockets in it have short paths.
func (b *bench) shortDir() string {
	b.Helper()
	dir, err := os.MkdirTemp("", "suite-")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		b.Fatal(err)
	}
	return filepath.Clean(dir)
}
