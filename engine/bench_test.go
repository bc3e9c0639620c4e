package engine

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"glovebox"
	"glovebox/driver"
	"glovebox/driver/drivertest"
)

// marks are the moments of one run that its caller waits for.
type marks struct{ asked, released, first, ended, told time.Time }

// first notes when the first byte was heard.
type firstByte struct{ at atomic.Int64 }

func (f *firstByte) Event(e glovebox.Event) {
	if e.Kind == "stdout" {
		f.at.CompareAndSwap(0, time.Now().UnixNano())
	}
}

// BenchmarkRun is what a run costs beside its sandbox, which is in memory here: the record, on a disk, is real.
func BenchmarkRun(b *testing.B) {
	for _, callers := range []int{1, 10} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) { benchmarkRun(b, callers) })
	}
}

func benchmarkRun(b *testing.B, callers int) {
	var released, ended sync.Map // by the code, which names the run
	fake := &drivertest.Fake{Program: func(_ context.Context, p *drivertest.Proc) driver.Exit {
		code := string(p.Command.Code)
		released.Store(code, time.Now())
		_, _ = p.Stdout.Write([]byte("1"))
		ended.Store(code, time.Now())
		return driver.Exit{}
	}}
	e, err := New(Config{DataDir: b.TempDir(), Drivers: []driver.Driver{fake}, Policy: lowRungs, Image: fakeImage{}, RuntimeDir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()
	take := func(t, key string, from *sync.Map) time.Time {
		at, ok := from.LoadAndDelete(key)
		if !ok {
			b.Error(t + " was not seen")
			return time.Time{}
		}
		return at.(time.Time)
	}
	once := func(code string) (m marks) {
		var first firstByte
		m.asked = time.Now()
		res, err := e.Run(b.Context(), owner, glovebox.Request{Code: code, Limits: glovebox.Limits{Memory: 32 * glovebox.MiB,
			Disk: glovebox.MiB}}, &first)
		m.told = time.Now()
		if err != nil || !res.OK || res.Stdout != "1" {
			b.Errorf("%+v, %v", res, err)
			return m
		}
		m.released, m.ended = take("the start", code, &released), take("the end", code, &ended)
		m.first = time.Unix(0, first.at.Load())
		return m
	}
	once("warm")
	var next atomic.Int64
	var mu sync.Mutex
	var toReleased, toFirst, toTold, whole time.Duration
	used := cpuTime()
	b.ResetTimer()
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for n := next.Add(1); n <= int64(b.N); n = next.Add(1) {
				m := once(fmt.Sprint("run ", n))
				mu.Lock()
				toReleased += m.released.Sub(m.asked)
				toFirst += m.first.Sub(m.released)
				toTold += m.told.Sub(m.ended)
				whole += m.told.Sub(m.asked)
				mu.Unlock()
			}
		})
	}
	all.Wait()
	b.StopTimer()
	for unit, d := range map[string]time.Duration{"µs-to-release": toReleased, "µs-to-first-byte": toFirst,
		"µs-exit-to-result": toTold, "µs-whole": whole, "cpu-µs/op": cpuTime() - used} {
		b.ReportMetric(float64(d.Nanoseconds())/1e3/float64(b.N), unit)
	}
}

// cpuTime is what this process has used.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
