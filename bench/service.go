package bench

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"glovebox"
)

// fence is what is asked for: where the code came from and the rung at least. Empty fields are the defaults.
type fence struct {
	trust     glovebox.Trust
	isolation glovebox.Isolation
}

// processFence means the process rung and nothing above it.
var processFence = fence{glovebox.TrustModel, glovebox.IsolationProcess}

func (f fence) request(j workload) glovebox.Request {
	return glovebox.Request{Lang: j.lang, Code: j.code, Trust: f.trust, Isolation: f.isolation}
}

// flags are the same on the command line.
func (f fence) flags() []string {
	var flags []string
	if f.trust != "" {
		flags = append(flags, "--trust", string(f.trust))
	}
	if f.isolation != "" {
		flags = append(flags, "--isolation", string(f.isolation))
	}
	return flags
}

// ask runs the workload through a Service.
func (b *bench) ask(svc glovebox.Runs, f fence) func(context.Context, workload) outcome {
	return func(ctx context.Context, j workload) outcome { return b.request(ctx, svc, f.request(j)) }
}

func (b *bench) request(ctx context.Context, svc glovebox.Runs, req glovebox.Request) outcome {
	out := &timedBuffer{started: time.Now()}
	sink := &outputSink{stdout: out}
	res, err := svc.Run(ctx, b.cfg.Who, req, sink)
	o := outcome{done: time.Since(out.started), first: out.first, out: out.kept.Bytes()}
	if err != nil {
		var e *glovebox.Error
		if errors.As(err, &e) && e.Fix != "" {
			err = fmt.Errorf("%w; fix: %s", err, e.Fix)
		}
		o.err = err
		return o
	}
	o.id, o.start, o.rung = res.ID, res.Start, res.Isolation
	if !res.OK {
		o.err = fmt.Errorf("%s ended with status %s: %s %.300s", res.ID, res.Status, res.Reason, string(res.Stderr))
	}
	return o
}

// outputSink takes what a run prints.
type outputSink struct{ stdout *timedBuffer }

// Event keeps what the program prints on standard output.
func (s *outputSink) Event(e glovebox.Event) {
	if e.Kind == "stdout" && len(e.Data) > 0 {
		s.stdout.Write(e.Data)
	}
}

// ended looks up a record.
func (b *bench) ended(svc glovebox.Traces) func(context.Context, string) (bool, error) {
	return func(ctx context.Context, run string) (bool, error) {
		record, err := svc.Trace(ctx, b.cfg.Who, run)
		if err != nil {
			return false, err
		}
		return record.State == "ended", nil
	}
}

// ownCPU is the CPU time of this process and of its waited-for descendants.
func ownCPU() (time.Duration, error) {
	var sum time.Duration
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var u syscall.Rusage
		if err := syscall.Getrusage(who, &u); err != nil {
			return 0, err
		}
		sum += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return sum, nil
}
