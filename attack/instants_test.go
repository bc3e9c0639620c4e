package attack_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"glovebox"
)

// edge is how close to the start and to the end of a run it is ended from outside.
const edge = 50 * time.Millisecond

// times is how often each thing is done.
func times() int {
	if long() {
		return 500
	}
	return 40
}

// last is how long the program of these tests goes on after its first word. Then it says end and exits with 7, so that an
// exit that the program did not come to is told from one that it did. Its child outlives it.
const last = 60 * time.Millisecond

const untilTheEnd = "sleep 60 >/dev/null 2>&1 & echo begin; sleep 0.06; echo x >/outputs/x; echo end; exit 7"

// judgeInstant tells what is wrong with the result of a run that was ended from outside at some instant. It may say that it
// was, or that the program ended by itself, but only if it did.
func judgeInstant(r *glovebox.Result, err error, status glovebox.Status) string {
	end := endOf(r, err)
	switch {
	case err != nil:
		return end
	case r.Status == status && r.ExitCode == nil && !r.OK:
		return ""
	case r.Status == glovebox.StatusExited && r.ExitCode != nil && *r.ExitCode == 7 && string(r.Stdout) == "begin\nend\n" && !r.OK:
		return ""
	}
	return fmt.Sprintf("%s, stdout %q, stderr %q", end, string(r.Stdout), string(r.Stderr))
}

// instants are the ways to end a run from inside this process: when, and what the result then says if it came in time.
var instants = map[string]struct {
	limits glovebox.Limits
	first  time.Duration // after the request; zero for a time that is counted from the program's first word
	status glovebox.Status
}{
	"cancel, first": {first: edge, status: glovebox.StatusCanceled},
	"cancel, last":  {status: glovebox.StatusCanceled},
	"limit, last":   {limits: glovebox.Limits{Wall: last}, status: glovebox.StatusWallLimit},
}

// TestEndedAtEveryInstant ends runs in their first and in their last moments. The result is never wrong, nothing is left and
// nobody else is hit: neither a process whose number lies beside those of the run nor a sandbox of the same engine.
func TestEndedAtEveryInstant(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(instants)) {
		t.Run(name, func(t *testing.T) {
			s := newSoak(t)
			leave := s.haveNeighbour(t)
			before := s.look(t)
			var mu sync.Mutex
			seen := map[glovebox.Status]int{}
			jobs := make(chan int)
			go func() {
				defer close(jobs)
				for n := range times() {
					jobs <- n
				}
			}()
			var all sync.WaitGroup
			for range 3 {
				all.Go(func() {
					for range jobs {
						status := s.endAtAnInstant(t, name)
						mu.Lock()
						seen[status]++
						mu.Unlock()
					}
				})
			}
			all.Wait()
			s.nothingLeft(t, before)
			leave()
			fmt.Printf("    %s: %v\n", t.Name(), seen)
			if seen[instants[name].status] < times()/10 {
				t.Errorf("of %d runs few came to be ended: %v", times(), seen)
			}
		})
	}
}

// endAtAnInstant is one run that is ended, with bystanders on both sides of it.
func (s *soak) endAtAnInstant(t *testing.T, name string) glovebox.Status {
	c := instants[name]
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req := shell(untilTheEnd)
	req.Collect, req.Limits = true, c.limits
	if req.Limits.Wall > 0 { // before or after the program's own end, which comes later by its time to start
		req.Limits.Wall += rand.N(edge+edge/2) - edge/5
	}
	sink := &told{}
	var timer *time.Timer
	switch {
	case c.first > 0:
		timer = time.AfterFunc(rand.N(c.first), cancel)
	case c.status == glovebox.StatusCanceled:
		sink.first = func() { time.AfterFunc(last-edge+rand.N(edge+edge/2), cancel) }
	}
	a := newBystander(t)
	beside := make(chan bystander)
	go func() { time.Sleep(rand.N(edge)); beside <- newBystander(t) }()
	r, err := s.run(ctx, req, sink)
	if timer != nil {
		timer.Stop()
	}
	a.dismiss(t)
	(<-beside).dismiss(t)
	if wrong := judgeInstant(r, err, c.status); wrong != "" {
		t.Errorf("wrong: %s", wrong)
	}
	if err != nil {
		return ""
	}
	return r.Status
}

// haveNeighbour starts a run that goes on meanwhile. What it returns ends it, and demands that nobody had before.
func (s *soak) haveNeighbour(t *testing.T) (leave func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	ready, ended := make(chan struct{}), make(chan string, 1)
	req := limited(shell("sleep 3000 & until grep -q sleep /proc/$!/comm; do :; done; echo here; wait"), glovebox.Limits{Wall: time.Hour})
	go func() { ended <- endOf(s.run(ctx, req, &told{first: func() { close(ready) }})) }()
	select {
	case <-ready:
	case how := <-ended:
		t.Fatalf("the neighbour did not come up: %s", how)
	}
	return func() {
		t.Helper()
		select {
		case how := <-ended:
			t.Fatalf("the neighbour was hit: %s", how)
		default:
		}
		cancel()
		if how := <-ended; how != "canceled SIGKILL []" {
			t.Errorf("the neighbour ended: %s", how)
		}
	}
}

// TestKilledAtEveryInstant kills commands, several at a time, in the first and in the last moments of their runs. All of it is
// dead soon, and the next command clears the rest away and ends their records.
func TestKilledAtEveryInstant(t *testing.T) {
	const atOnce, soon = 8, time.Second
	own := *need(t)
	dir := own.folder(t)
	own.data, own.config = filepath.Join(dir, "data"), filepath.Join(dir, "glovebox.yaml")
	own.cgroup += "-killed"
	own.pool.start += 0x2000000
	if own.caller == nil {
		own.uids = own.pool
	} else if err := handOver(own.cgroup, own.caller.id); err != nil {
		t.Fatal(err)
	}
	if err := own.writeConfig(own.config, own.cgroup, own.pool); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, dir := range groupDirs(own.cgroup) {
			if err := removeGroup(dir); err != nil {
				t.Error(err)
			}
		}
	})
	own.allIsWell(t, nil) // makes the data_dir
	before := own.lookAtHost(t)
	killed, slowest := 0, time.Duration(0)
	for n := 0; n < 2*times(); n += atOnce {
		var all sync.WaitGroup
		var mu sync.Mutex
		for k := range atOnce {
			all.Go(func() {
				if own.killOnce(t, (n+k)%2 == 0) {
					mu.Lock()
					killed++
					mu.Unlock()
				}
			})
		}
		all.Wait()
		start := time.Now()
		// The promise is one second; a machine may be five times slower than the one it was made for.
		if !settle(5*soon, func() bool { return own.survivors() == nil }) {
			t.Fatalf("alive after the kills: %q", own.survivors())
		}
		slowest = max(slowest, time.Since(start))
		if n%(10*atOnce) == 0 {
			own.allIsWell(t, &before)
		}
	}
	own.allIsWell(t, &before)
	fmt.Printf("    %s: %d of %d were killed in time, the slowest was dead after %v\n", t.Name(), killed, 2*times(),
		slowest.Round(time.Millisecond))
	if killed < times() {
		t.Errorf("only %d of %d commands were there to be killed", killed, 2*times())
	}
}

// killOnce kills one command, in the first or the last moments of its run, and tells whether it was still there.
func (l *laboratory) killOnce(t *testing.T, first bool) bool {
	cmd := l.glovebox(context.Background(), "exec", "--quiet", "--config", l.config, "--trust", "model", "--isolation", "process",
		"--output", filepath.Join(l.folder(t), "out"), "--", "sh", "-c", untilTheEnd)
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Error(err)
		return false
	}
	a := newBystander(t)
	defer a.dismiss(t)
	if err := cmd.Start(); err != nil {
		t.Error(err)
		return false
	}
	b := newBystander(t)
	defer b.dismiss(t)
	said, read := bufio.NewReader(out), ""
	if first {
		time.Sleep(rand.N(edge))
	} else {
		read, _ = said.ReadString('\n')
		time.Sleep(last - edge + rand.N(2*edge))
	}
	cmd.Process.Kill()
	rest, _ := io.ReadAll(said)
	cmd.Wait()
	read += string(rest)
	switch code := cmd.ProcessState.ExitCode(); {
	case code == -1:
		return true
	case code != 7 || read != "begin\nend\n":
		t.Errorf("a command that was not killed in time: exit %d, stdout %q, stderr %q", code, read, complaints.String())
	}
	return false
}

// allIsWell runs one more program and demands that nothing of earlier ones is left after it.
func (l *laboratory) allIsWell(t *testing.T, before *host) {
	t.Helper()
	if o := l.run(t, trial{program: "ct_hello.py"}); o.Stdout != "hello\n" {
		t.Errorf("the next run: %q, %+v", o.Stdout, o.Error)
	}
	if left := l.groups(); left != nil {
		t.Errorf("control groups left after the next run: %q", left)
	}
	if before != nil {
		var wrong []string
		settle(5*time.Second, func() bool { wrong = l.compare(*before, l.lookAtHost(t)); return wrong == nil })
		for _, w := range wrong {
			t.Error(w)
		}
	}
	out, err := l.glovebox(t.Context(), "trace", "ls", "--json", "--limit", "1000", "--config", l.config).Output()
	if err != nil || strings.Contains(string(out), `"running"`) {
		t.Errorf("a run has no end in the trace: %v, %.300q", err, out)
	}
}
