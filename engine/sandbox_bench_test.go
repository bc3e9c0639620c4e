package engine_test

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"glovebox"
)

// byteSink tells when the first byte was heard.
type byteSink struct {
	once  sync.Once
	at    time.Time
	heard chan struct{}
}

func newByteSink() *byteSink { return &byteSink{heard: make(chan struct{})} }

func (s *byteSink) Event(e glovebox.Event) {
	if e.Kind == "stdout" {
		s.once.Do(func() { s.at = time.Now(); close(s.heard) })
	}
}

// BenchmarkSandboxRun is a whole run in a sandbox that was made for it.
func BenchmarkSandboxRun(b *testing.B) {
	for _, callers := range []int{1, 10} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			e := realEngine(b)
			var toByte, toResult, whole atomic.Int64
			once := func() {
				sink, begun := newByteSink(), time.Now()
				res, err := e.Run(b.Context(), tester, glovebox.Request{Argv: []string{"/bin/echo", "1"},
					Limits: glovebox.Limits{Memory: 128 * glovebox.MiB, Disk: glovebox.MiB}}, sink)
				told := time.Now()
				if err != nil || !res.OK {
					b.Errorf("%+v, %v", res, err)
					return
				}
				toByte.Add(int64(sink.at.Sub(begun)))
				toResult.Add(int64(told.Sub(sink.at)))
				whole.Add(int64(told.Sub(begun)))
			}
			once()
			for _, n := range []*atomic.Int64{&toByte, &toResult, &whole} {
				n.Store(0)
			}
			before := allCPU(b)
			b.ResetTimer()
			var next atomic.Int64
			var all sync.WaitGroup
			for range callers {
				all.Go(func() {
					for next.Add(1) <= int64(b.N) {
						once()
					}
				})
			}
			all.Wait()
			b.StopTimer()
			for unit, n := range map[string]int64{"µs-to-first-byte": toByte.Load(), "µs-byte-to-result": toResult.Load(),
				"µs-whole": whole.Load(), "cpu-µs/op": int64(allCPU(b) - before)} {
				b.ReportMetric(float64(n)/1e3/float64(b.N), unit)
			}
		})
	}
}

// allCPU is what this process and its children that ended have used.
func allCPU(b *testing.B) (sum time.Duration) {
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var u syscall.Rusage
		if err := syscall.Getrusage(who, &u); err != nil {
			b.Fatal(err)
		}
		sum += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return sum
}

// ownCPU is what this process has used.
func ownCPU(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// TestMemoryOfManyRuns: a supervisor of a hundred runs that say something and sleep stays small.
func TestMemoryOfManyRuns(t *testing.T) {
	const runs, most = 100, 40 << 20 // beside what a supervisor without runs has
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		t.Skip("the race detector has memory of its own for each goroutine")
	}
	e := realEngine(t)
	debug.FreeOSMemory() // what tests before this one had
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	before := residentBytes(t)
	var all sync.WaitGroup
	for range runs {
		sink := newByteSink()
		all.Go(func() {
			res, err := e.Run(ctx, tester, glovebox.Request{Argv: []string{"/bin/sh", "-c", "echo 1; exec sleep 600"},
				Limits: glovebox.Limits{Memory: 16 * glovebox.MiB, Disk: glovebox.MiB}}, sink)
			if err != nil || res.Status != glovebox.StatusCanceled {
				t.Errorf("%+v, %v", res, err)
			}
		})
		select {
		case <-sink.heard:
		case <-time.After(time.Minute):
			t.Fatal("it does not speak")
		}
	}
	grown := residentBytes(t)
	t.Logf("%.1f MiB before, %.1f MiB with %d runs", float64(before)/(1<<20), float64(grown)/(1<<20), runs)
	if grown-before > most {
		t.Errorf("%d bytes of memory more for %d runs, the most is %d", grown-before, runs, most)
	}
	stop()
	all.Wait()
}

// residentBytes is what this process has in memory, its share of what it shares.
func residentBytes(t *testing.T) int64 {
	b, err := os.ReadFile("/proc/self/smaps_rollup")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if value, ok := strings.CutPrefix(line, "Pss:"); ok {
			kib, err := strconv.ParseInt(strings.Fields(value)[0], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kib << 10
		}
	}
	t.Fatal("the kernel does not tell")
	return 0
}
