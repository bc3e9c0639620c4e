package engine

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"glovebox"
	"glovebox/driver"
	"glovebox/internal/output"
)

// The time in which /outputs is read.
const (
	collectLimit    = 2 * time.Minute
	collectCanceled = 2 * time.Second // after a run that was cancelled
)

// result is what a run is told as. Everything of it is dead.
func (r *run) result(ctx context.Context, f facts, v verdict, out output.Captured, outErr error) *glovebox.Result {
	grant := r.decision.Grant
	res := &glovebox.Result{
		ID: r.id, OK: v.status == glovebox.StatusExited && v.code != nil && *v.code == 0, Status: v.status,
		ExitCode: v.code, Signal: v.signal, Reason: v.reason, LimitsHit: v.hit,
		Stdout: out.Stdout.View, Stderr: out.Stderr.View, StdoutBytes: out.Stdout.Bytes, StderrBytes: out.Stderr.Bytes,
		StdoutTruncated: out.Stdout.Truncated, StderrTruncated: out.Stderr.Truncated, Untrusted: true, Flags: out.Flags,
		Asked: r.decision.Asked, Isolation: grant.Isolation, Posture: glovebox.Posture{}, Trust: grant.Trust,
		Rule: r.decision.Rule, Image: r.imageName(),
		Start: r.begunAs, ServedBy: r.cfg.ServedBy, Limits: grant.Limits,
		Artifacts: []glovebox.Artifact{}, Skipped: []glovebox.Skipped{}, Egress: []glovebox.EgressFlow{},
	}
	res.Usage.EgressBytes, res.Usage.QueueMS = new(int64), new(r.queued.Milliseconds()) // there is no way out
	if r.proc == nil {
		return res
	}
	res.Posture = r.proc.Posture()
	u := usageOf(f.sample)
	u.EgressBytes, u.QueueMS = res.Usage.EgressBytes, res.Usage.QueueMS
	u.WallMS, u.DiskBytes = new(f.wall.Milliseconds()), new(f.disk.Used)
	u.StartMS = new((r.proc.Released().Sub(r.begun) - r.queued).Milliseconds())
	res.Usage = u
	if res.Reason == "" {
		res.Reason = hint(r.req, v, out.Stderr.View, r.image)
	}
	if outErr != nil {
		r.cfg.Log.Error("keep output", "id", r.id, "err", outErr)
		remark(res, "not all of the output could be kept: the disk of the data_dir may be full")
	}
	r.tellEgress(res)
	if err := r.stdin.failure(); err != nil {
		r.cfg.Log.Warn("read standard input", "id", r.id, "err", err)
		remark(res, "standard input ended early: "+whyEarly(err))
	}
	if r.req.Collect {
		res.Artifacts, res.Skipped = r.collect(ctx)
		if v.status != glovebox.StatusCanceled && slices.ContainsFunc(res.Skipped, func(s glovebox.Skipped) bool {
			return s.Fault == glovebox.FaultCaller
		}) {
			remark(res, "its caller cancelled while its outputs were collected")
		}
	}
	return res
}

// remark adds a sentence to the reason, whatever it says already.
func remark(res *glovebox.Result, sentence string) {
	if res.Reason != "" {
		res.Reason += "; "
	}
	res.Reason += sentence
}

// withoutKept is a result of whose output nothing is kept but what it shows. It says so.
func withoutKept(res glovebox.Result) *glovebox.Result {
	res.Skipped = append(slices.Clone(res.Skipped), lost(res.Artifacts)...)
	res.Artifacts = []glovebox.Artifact{}
	remark(&res, "what it left could not be kept beyond what is shown: the disk of the data_dir may be full")
	return &res
}

// collect keeps the files of /outputs, also of a run that was cancelled, and stops when the caller cancels meanwhile. What
// cannot be kept is said, and costs the run nothing else.
func (r *run) collect(ctx context.Context) ([]glovebox.Artifact, []glovebox.Skipped) {
	limits := r.decision.Grant.Limits
	limit, cause := collectLimit, output.ErrNoTime
	if ctx.Err() != nil { // what the run had made until then is the caller's, who waits no longer
		ctx, limit, cause = context.WithoutCancel(ctx), collectCanceled, context.Canceled
	}
	ctx, stop := context.WithTimeoutCause(ctx, limit, cause)
	defer stop()
	kept := r.trace.Artifacts()
	artifacts, skipped, err := output.Collector{
		Open:       r.box.Open,
		NotRegular: func(err error) bool { return errors.Is(err, driver.ErrNotRegular) },
		Store:      kept.Put,
		Settle:     kept.Settle,
		MaxBytes:   limits.Disk, MaxFile: limits.Disk, MaxEntries: int(min(limits.Files, math.MaxInt32)),
	}.Collect(ctx)
	if err != nil {
		r.cfg.Log.Error("collect outputs", "id", r.id, "err", err)
		return []glovebox.Artifact{}, []glovebox.Skipped{{Path: ".", Reason: "the folder of outputs could not be read",
			Fault: glovebox.FaultGlovebox}}
	}
	if err := kept.Commit(); err != nil {
		r.cfg.Log.Error("keep outputs", "id", r.id, "err", err)
		return []glovebox.Artifact{}, append(skipped, lost(artifacts)...)
	}
	return artifacts, skipped
}

// lost are artifacts that could not be kept after all.
func lost(artifacts []glovebox.Artifact) []glovebox.Skipped {
	list := make([]glovebox.Skipped, len(artifacts))
	for i, a := range artifacts {
		list[i] = glovebox.Skipped{Path: a.Path, Reason: "it could not be kept", Fault: glovebox.FaultGlovebox}
	}
	return list
}
