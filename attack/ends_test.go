package attack_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"glovebox"
)

// ends are programs that end in one way each, as soon as can be, with what the result must say of it: status, exit code,
// signal, limits.
var ends = map[string]struct {
	req  glovebox.Request
	want string
}{
	"exited 0": {shell("exit 0"), "exited code 0 []"},
	"exited 7": {shell("exit 7"), "exited code 7 []"},
	"signaled": {shell("kill -SEGV $$"), "signaled SIGSEGV []"},
	"wall":     {limited(shell("sleep 60"), glovebox.Limits{Wall: 100 * time.Millisecond}), "wall_limit SIGKILL [wall]"},
	"cpu": {limited(shell("while :; do :; done"), glovebox.Limits{CPU: 100 * time.Millisecond}),
		"cpu_limit SIGKILL [cpu]"},
	"memory": {limited(shell("exec tail /dev/zero"), glovebox.Limits{Memory: 80 << 20, Disk: 16 << 20}),
		"memory_limit SIGKILL [memory]"},
	"processes": {limited(shell("for n in 1 2 3 4 5 6 7 8; do sleep 60 & done; exit 0"), glovebox.Limits{Processes: 4}),
		"process_limit code 2 [processes]"},
	"output": {limited(shell("exec yes"), glovebox.Limits{Output: 64 << 10}), "output_limit SIGKILL [output]"},
	"disk": {limited(shell("exec dd if=/dev/zero of=/workspace/x bs=64k"), glovebox.Limits{Disk: 1 << 20}),
		"disk_limit code 1 [disk]"},
	"files": {limited(shell("n=0; while : >/tmp/$n; do n=$((n+1)); done; exit 3"), glovebox.Limits{Files: 40}),
		"disk_limit code 2 [files]"},
	"policy": {glovebox.Request{Argv: []string{"python3", "-ISc",
		"import ctypes; ctypes.CDLL(None).syscall(ctypes.c_long(0x40000000 | 39))"}}, "policy SIGSYS []"},
	"canceled": {shell("echo; sleep 60"), "canceled SIGKILL []"}, // at its first output
}

func shell(line string) glovebox.Request { return glovebox.Request{Argv: []string{"sh", "-c", line}} }

func limited(r glovebox.Request, l glovebox.Limits) glovebox.Request {
	if l.Wall == 0 {
		l.Wall = 10 * time.Minute // the machine may be slow; the limit that is meant comes first
	}
	r.Limits = l
	return r
}

// endOf says how a run ended in one line.
func endOf(r *glovebox.Result, err error) string {
	if err != nil {
		return "error: " + err.Error()
	}
	how := "neither code nor signal"
	switch {
	case r.ExitCode != nil && r.Signal != nil:
		how = "both code and signal"
	case r.ExitCode != nil:
		how = fmt.Sprintf("code %d", *r.ExitCode)
	case r.Signal != nil:
		how = *r.Signal
	}
	text := fmt.Sprintf("%s %s %v", r.Status, how, r.LimitsHit)
	if r.OK != (r.Status == glovebox.StatusExited && r.ExitCode != nil && *r.ExitCode == 0) {
		text += fmt.Sprintf(" but ok is %v", r.OK)
	}
	return text
}

// TestEveryEndIsTheSame ends runs in every way, many times, several at once on a machine under full load: equal programs have
// equal ends.
func TestEveryEndIsTheSame(t *testing.T) {
	times, callers := 10, 6
	if long() {
		times = 500
	}
	s := newSoak(t)
	fullLoad(t)
	kinds := slices.Sorted(maps.Keys(ends))
	jobs := make(chan string)
	go func() {
		defer close(jobs)
		for range times {
			for _, kind := range kinds {
				jobs <- kind
			}
		}
	}()
	var mu sync.Mutex
	seen := map[string]map[string]int{} // how often each kind ended how
	begun := time.Now()
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for kind := range jobs {
				how := endOf(s.endOnce(t, kind))
				mu.Lock()
				if seen[kind] == nil {
					seen[kind] = map[string]int{}
				}
				seen[kind][how]++
				mu.Unlock()
			}
		})
	}
	all.Wait()
	for _, kind := range kinds {
		if len(seen[kind]) != 1 || seen[kind][ends[kind].want] != times {
			t.Errorf("%s: want %d times %q, have %v", kind, times, ends[kind].want, seen[kind])
		}
	}
	fmt.Printf("    %s: %d runs of %d kinds in %v\n", t.Name(), times*len(kinds), len(kinds), time.Since(begun).Round(time.Millisecond))
}

func (s *soak) endOnce(t *testing.T, kind string) (*glovebox.Result, error) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var sink glovebox.Sink
	if kind == "canceled" {
		sink = &told{first: cancel}
	}
	return s.run(ctx, ends[kind].req, sink)
}
