package attack_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"glovebox"
)

const mib = 1 << 20

// pairs are the limits that two runs stay just under at the same time, and what the kernel counted of a run for each, where
// it counts.
var pairs = map[string]struct {
	limits glovebox.Limits
	limit  int64 // the amount, in the program's unit
	used   func(r *glovebox.Result) *int64
}{
	"memory": {glovebox.Limits{Memory: 256 * mib, Disk: 16 * mib}, 256 * mib,
		func(r *glovebox.Result) *int64 { return r.Usage.MemoryPeakBytes }},
	"disk, in memory": {glovebox.Limits{Memory: 256 * mib, Disk: 128 * mib}, 128 * mib,
		func(r *glovebox.Result) *int64 { return r.Usage.DiskBytes }},
	"disk": {glovebox.Limits{Memory: 64 * mib, Disk: 128 * mib}, 128 * mib,
		func(r *glovebox.Result) *int64 { return r.Usage.DiskBytes }},
	"files": {glovebox.Limits{Files: 2000}, 2000, nil},
	"processes": {glovebox.Limits{Processes: 100}, 100,
		func(r *glovebox.Result) *int64 { return r.Usage.ProcessesPeak }},
	"output": {glovebox.Limits{Output: 4 * mib}, 4 * mib,
		func(r *glovebox.Result) *int64 { return &r.StdoutBytes }},
	"cpu":        {glovebox.Limits{CPU: 2 * time.Second}, 2000, func(r *glovebox.Result) *int64 { return r.Usage.CPUMS }},
	"open files": {glovebox.Limits{OpenFiles: 1024}, 1024, nil},
}

// TestPairsUnderTheLimits has two runs at 95 parts of 100 of a limit at the same time: both wait, full, until both are full,
// and both end well. Each limit is for its own run alone.
func TestPairsUnderTheLimits(t *testing.T) {
	rounds := 1
	if long() {
		rounds = 20
	}
	s := newSoak(t)
	code := read(filepath.Join("programs", "ct11_pairs.py"))
	for name, c := range pairs {
		t.Run(name, func(t *testing.T) {
			if name != "cpu" { // which would not get its processor
				t.Parallel()
			}
			for range rounds {
				s.pair(t, strings.Split(name, ",")[0], limited(glovebox.Request{Code: code}, c.limits), c.limit, c.used)
			}
		})
	}
}

// full tells when a program has said that it has taken all it will.
type full struct {
	tail string
	now  func()
}

func (f *full) Event(e glovebox.Event) {
	if e.Kind != "stdout" {
		return
	}
	f.tail += string(e.Data)
	f.tail = f.tail[max(0, len(f.tail)-5):]
	if f.tail == "full\n" {
		f.now()
	}
}

func (s *soak) pair(t *testing.T, name string, req glovebox.Request, limit int64, used func(*glovebox.Result) *int64) {
	t.Helper()
	req.Args = []string{fmt.Sprintf("%s=%d", name, limit)}
	var both, all sync.WaitGroup
	both.Add(2)
	ready := make(chan struct{})
	for range 2 {
		word, give, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer word.Close()
		own := req
		own.StdinFrom = word
		isFull := sync.OnceFunc(both.Done)
		all.Go(func() {
			defer give.Close()
			<-ready
			give.WriteString("\n")
		})
		all.Go(func() {
			r, err := s.run(t.Context(), own, &full{now: isFull})
			isFull() // also when it failed before, so that the other does not wait
			if how := endOf(r, err); how != "exited code 0 []" {
				if err == nil {
					how += fmt.Sprintf(", reason %q, stderr %.500q", r.Reason, string(r.Stderr))
				}
				t.Errorf("%s: %s", name, how)
				return
			}
			// What was not really near the limit proves nothing.
			if used == nil {
				return
			}
			if n := used(r); n == nil || *n < limit*92/100 || *n > limit {
				t.Errorf("%s: %s used, with a limit of %d", name, show(n), limit)
			}
		})
	}
	both.Wait()
	close(ready)
	all.Wait()
}
