package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"time"
	"unicode"

	"glovebox"
	"glovebox/internal/output"
)

// Bounds of what is taken over from another Glovebox's result.
const (
	maxToldWord     = 200 // bytes
	maxToldSentence = 4 << 10
	maxToldList     = 1000
	maxToldPosture  = 100

	settleEvery = 64 // artifacts, each of which holds a descriptor until then
)

// check refuses a result that is none, and one of a weaker rung than was demanded.
func (t *there) check() error {
	res := t.res
	if res == nil {
		return errors.New("the other glovebox told neither result nor error")
	}
	if _, err := glovebox.ParseStatus(string(res.Status)); err != nil {
		return fmt.Errorf("read the result of the other glovebox: %w", err)
	}
	if got, want := t.delivered(), t.run.decision.Grant.AtLeast; got.Rank() < max(want.Rank(), 1) {
		return glovebox.Errorf(glovebox.CodeInternal, "see what is wrong at "+t.run.other.Name+": its runs are not what they say",
			"the other Glovebox ran it on the rung %q, and at least %s was demanded", word(string(got)), want)
	}
	return nil
}

// delivered is the rung that ran it, however many Gloveboxes are between.
func (t *there) delivered() glovebox.Isolation {
	if far := t.res.Remote; t.res.Isolation == glovebox.IsolationRemote && far != nil {
		return far.Isolation
	}
	if t.res.Isolation == glovebox.IsolationRemote {
		return ""
	}
	return t.res.Isolation
}

// result is what the run is told as. Without a result of the other's it was cancelled before it began.
func (t *there) result(ctx context.Context, out output.Captured, outErr error) *glovebox.Result {
	r, grant := t.run, t.run.decision.Grant
	res := &glovebox.Result{
		ID: r.id, Status: glovebox.StatusCanceled, Reason: "the run was cancelled before its program was started",
		LimitsHit: []string{}, Untrusted: true, Stdout: out.Stdout.View, Stderr: out.Stderr.View,
		StdoutBytes: out.Stdout.Bytes, StderrBytes: out.Stderr.Bytes, StdoutTruncated: out.Stdout.Truncated,
		StderrTruncated: out.Stderr.Truncated, Flags: out.Flags, Asked: r.decision.Asked, Isolation: grant.Isolation,
		Posture: glovebox.Posture{}, Trust: grant.Trust, Rule: r.decision.Rule, Start: r.begunAs,
		ServedBy: "remote " + r.other.Name, Limits: grant.Limits, Artifacts: []glovebox.Artifact{}, Skipped: []glovebox.Skipped{},
		Egress: []glovebox.EgressFlow{},
	}
	if t.res == nil {
		return res
	}
	t.takeOver(res)
	if outErr != nil {
		r.cfg.Log.Error("keep output", "id", r.id, "err", outErr)
		remark(res, "not all of the output could be kept: the disk of the data_dir may be full")
	}
	if r.req.Collect {
		r.fetch(ctx, t, res)
	}
	return res
}

// takeOver fills in what the other knows.
func (t *there) takeOver(res *glovebox.Result) {
	far := t.res
	res.Status, res.ExitCode, res.Reason = far.Status, far.ExitCode, sentence(far.Reason)
	res.OK = far.Status == glovebox.StatusExited && far.ExitCode != nil && *far.ExitCode == 0
	if far.Signal != nil {
		res.Signal = new(word(*far.Signal))
	}
	for _, name := range far.LimitsHit[:min(len(far.LimitsHit), maxToldList)] {
		res.LimitsHit = append(res.LimitsHit, word(name))
	}
	for name, value := range far.Posture {
		if len(res.Posture) < maxToldPosture {
			res.Posture[word(name)] = word(value)
		}
	}
	for _, f := range far.Egress[:min(len(far.Egress), maxToldList)] {
		f.Host, f.Reason, f.Layer, f.Rule = word(f.Host), sentence(f.Reason), word(f.Layer), word(f.Rule)
		f.Method, f.Path = word(f.Method), sentence(f.Path)
		res.Egress = append(res.Egress, f)
	}
	for _, s := range far.Skipped[:min(len(far.Skipped), maxToldList)] {
		s.Path, s.Reason, s.Fault = sentence(s.Path), sentence(s.Reason), word(s.Fault)
		res.Skipped = append(res.Skipped, s)
	}
	res.Image, res.Start, res.Usage = word(far.Image), word(far.Start), far.Usage
	if !t.began.IsZero() {
		queued := time.Duration(0)
		if far.Usage.QueueMS != nil {
			queued = time.Duration(*far.Usage.QueueMS) * time.Millisecond
		}
		res.Usage.StartMS = new(max(t.began.Sub(t.run.begun)-queued, 0).Milliseconds())
	}
	// What was printed beyond the limit is counted where it was read.
	all, heard := far.StdoutBytes+far.StderrBytes, res.StdoutBytes+res.StderrBytes
	res.StdoutTruncated = res.StdoutTruncated || far.StdoutBytes > res.StdoutBytes
	res.StderrTruncated = res.StderrTruncated || far.StderrBytes > res.StderrBytes
	res.StdoutBytes, res.StderrBytes = max(res.StdoutBytes, far.StdoutBytes), max(res.StderrBytes, far.StderrBytes)
	if heard < min(all, int64(t.run.decision.Grant.Limits.Output)) {
		remark(res, "not all that the program printed came back from the other Glovebox")
	}
	flags := slices.Clone(res.Flags)
	for _, f := range far.Flags[:min(len(far.Flags), maxToldPosture)] {
		flags = append(flags, word(f))
	}
	slices.Sort(flags)
	res.Flags = slices.Compact(flags)
	res.Remote = &glovebox.RemoteRun{ServedBy: t.run.other.Name, Run: word(far.ID), Isolation: t.delivered(),
		Rule: word(far.Rule), Trace: glovebox.TraceRef{Seq: far.Trace.Seq, Hash: word(far.Trace.Hash)}}
}

// word and sentence are text of the other's as it may be shown and kept: bounded, and of characters that print.
func word(s string) string     { return harmless(s, maxToldWord) }
func sentence(s string) string { return harmless(s, maxToldSentence) }

func harmless(s string, most int) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, s[:min(len(s), most)])
	return s
}

// fetch keeps the files that the run left there, each if it arrives as the other says it is.
func (r *run) fetch(ctx context.Context, t *there, res *glovebox.Result) {
	limit, cause := collectLimit, output.ErrNoTime
	if ctx.Err() != nil { // as with a run of this machine
		ctx, limit, cause = context.WithoutCancel(ctx), collectCanceled, context.Canceled
	}
	ctx, stop := context.WithTimeoutCause(ctx, limit, cause)
	defer stop()
	batch := r.trace.Artifacts()
	var unsettled []glovebox.Artifact
	settle := func(last bool) {
		keep := batch.Settle
		if last {
			keep = batch.Commit
		}
		if err := keep(); err != nil {
			r.cfg.Log.Error("keep outputs", "id", r.id, "err", err)
			res.Skipped = append(res.Skipped, lost(unsettled)...)
			unsettled = nil
		}
		res.Artifacts, unsettled = append(res.Artifacts, unsettled...), nil
	}
	left, seen := int64(r.decision.Grant.Limits.Disk), map[string]bool{}
	for i, a := range t.res.Artifacts {
		why := ""
		if i >= int(r.decision.Grant.Limits.Files) {
			res.Skipped = append(res.Skipped, glovebox.Skipped{Reason: fmt.Sprintf("… and %d more", len(t.res.Artifacts)-i),
				Fault: glovebox.FaultGlovebox})
			break
		}
		switch {
		case a.Bytes < 0 || a.Bytes > left: // less than nothing makes no room
			why = "there is more than the limits of the run allow"
		case !fs.ValidPath(a.Path) || sentence(a.Path) != a.Path || seen[a.Path]:
			why = "its path is none"
		case ctx.Err() != nil:
			why = "there was no time to fetch it"
		default:
			seen[a.Path] = true
			left -= a.Bytes
			n, sha, err := r.fetchOne(ctx, batch.Put, t.res.ID, a)
			if err != nil {
				r.cfg.Log.Error("fetch an output", "id", r.id, "err", err)
				why = "it did not arrive as it was"
			}
			a.Bytes, a.SHA256, a.MediaType = n, sha, word(a.MediaType)
		}
		if why != "" {
			res.Skipped = append(res.Skipped, glovebox.Skipped{Path: sentence(a.Path), Reason: why, Fault: glovebox.FaultGlovebox})
			continue
		}
		if unsettled = append(unsettled, a); len(unsettled) == settleEvery {
			settle(false)
		}
	}
	settle(true)
}

// fetchOne keeps one file. A file that is not what the other said is kept under its own hash and is no artifact.
func (r *run) fetchOne(ctx context.Context, put func(io.Reader) (int64, string, error), id string, a glovebox.Artifact) (
	int64, string, error) {
	from, err := r.other.Service.Artifact(ctx, r.who, id, a.Path)
	if err != nil {
		return 0, "", err
	}
	defer from.Close()
	n, sha, err := put(io.LimitReader(from, a.Bytes+1))
	if err == nil && (n != a.Bytes || sha != a.SHA256) {
		err = fmt.Errorf("%d bytes of hash %.64s came for %d of %.64s", n, sha, a.Bytes, a.SHA256)
	}
	return n, sha, err
}
