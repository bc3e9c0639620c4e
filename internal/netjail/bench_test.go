package netjail

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"glovebox/internal/netwire"
)

// BenchmarkTake is what a run pays for its netd: one that is ready, and one that is made on demand. caller-ms is the CPU time
// of this process alone.
func BenchmarkTake(b *testing.B) {
	for _, ready := range []int{1, 0} {
		b.Run(map[int]string{1: "ready", 0: "on demand"}[ready], func(b *testing.B) {
			j, _ := jails(b, ready)
			var spent time.Duration
			for range b.N {
				b.StopTimer()
				soon(b, "ready", func() bool { return j.Ready() == ready })
				theirs, ours := link(b)
				before := cpu(b)
				b.StartTimer()
				n, err := j.Take(b.Context())
				if err != nil {
					b.Fatal(err)
				}
				if err := n.Start(b.Context(), netwire.Setup{}, theirs); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				spent += cpu(b) - before
				if err := n.Close(b.Context()); err != nil {
					b.Fatal(err)
				}
				theirs.Close()
				ours.Close()
			}
			b.ReportMetric(float64(spent.Microseconds())/1000/float64(b.N), "caller-ms/op")
		})
	}
}

// BenchmarkIdle is the memory of netds that wait, and of this process for them: in KiB, of what is nobody else's.
func BenchmarkIdle(b *testing.B) {
	j, _ := jails(b, 3)
	soon(b, "ready", func() bool { return j.Ready() == 3 })
	j.mu.Lock()
	defer j.mu.Unlock()
	var sum int64
	for _, w := range j.ready {
		s, err := w.netd.Sample()
		if err != nil {
			b.Fatal(err)
		}
		sum += s.Memory
	}
	for range b.N {
	}
	b.ReportMetric(float64(sum)/3/1024, "KiB/netd")
}

func cpu(b *testing.B) time.Duration {
	b.Helper()
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
