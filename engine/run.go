package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"glovebox"
	"glovebox/driver"
	"glovebox/internal/admission"
	"glovebox/internal/cleanup"
	"glovebox/internal/lease"
	"glovebox/internal/output"
	"glovebox/internal/trace"
)

// undoLimit bounds what is undone after a run.
const undoLimit = 30 * time.Second

// run is one run on its way through the stages.
type run struct {
	*Engine
	id       string
	who      glovebox.Principal
	req      glovebox.Request
	sink     glovebox.Sink
	begun    time.Time
	decision glovebox.Decision
	image    Image
	command  driver.Command
	stdin    *stdin // nil: empty
	inputs   []glovebox.InputRecord
	given    string // the folder that inputs were copied to; empty: there are none
	trace    *trace.Trace
	memory   *admission.Admission
	share    *admission.Share // nil: it was cancelled before it had its memory
	queued   time.Duration

	undo    cleanup.Stack // what goes on beside the caller once the end is recorded
	folder  lateFolder
	way     *way // nil: nothing leaves its sandbox
	flows   flows
	spare   *lease.Lease // nil: the run has a sandbox of its own making
	unfit   error        // why the spare does not serve
	begunAs string       // how its sandbox came to be, as results say it
	box     driver.Sandbox
	release func(context.Context) error // ends box, once
	proc    driver.Process
	capture *output.Capture
	tell    *teller
}

// Run implements glovebox.Runs.
func (e *Engine) Run(ctx context.Context, who glovebox.Principal, req glovebox.Request, sink glovebox.Sink) (
	*glovebox.Result, error) {
	ctx, leave, err := e.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	r := &run{Engine: e, id: trace.NewID(e.cfg.Now()), who: who, req: req, sink: sink, begun: time.Now(),
		begunAs: "cold"}
	res, err := r.run(ctx)
	r.log(res, err)
	e.beside(func() {
		ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
		defer stop()
		if err := r.undo.Run(ctx); err != nil {
			e.cfg.Log.Error("run.cleanup", "id", r.id, "err", err)
		}
	})
	if err != nil {
		return nil, publicError(err)
	}
	return res, nil
}

// publicError makes sure that what a caller gets is an *Error itself, not something around one.
func publicError(err error) error {
	var known *glovebox.Error
	if errors.As(err, &known) {
		return known
	}
	return glovebox.Internal("run", err)
}

func (r *run) run(ctx context.Context) (*glovebox.Result, error) {
	// Before anything that may use the folder, so that it is undone after all of it: the folder is made when it is needed.
	r.undo.Push("remove the run's folder", r.folder.remove)
	if err := r.admit(ctx); err != nil {
		return nil, r.refuse(ctx, err)
	}
	if r.decision.Grant.Isolation == glovebox.IsolationRemote {
		return r.runThere(ctx)
	}
	if err := r.queue(ctx); err != nil && ctx.Err() == nil {
		return nil, r.refuse(ctx, err)
	}
	if err := r.takeInputs(ctx); err != nil && ctx.Err() == nil {
		return nil, r.refuse(ctx, err)
	}
	if err := r.openWay(ctx); err != nil && ctx.Err() == nil {
		return nil, r.refuse(ctx, err)
	}
	if err := r.takeSpare(ctx); err != nil { // after all that can be refused, which would use one up
		return nil, r.refuse(ctx, err)
	}
	recorded, err := r.start(ctx)
	if !recorded {
		return nil, err
	}
	r.busy.Go(func() { r.tend(); r.retain() }) // beside the program, where nobody waits for it
	var f facts
	if err == nil {
		f, err = r.watch(ctx)
	}
	r.way.end(ctx) // nothing of the program is alive, or it is about to be ended
	out, outErr := r.finishOutput(ctx)
	var v verdict
	switch {
	case err == nil:
		v, err = judge(f, r.decision.Grant.Limits)
	case ctx.Err() != nil && r.proc == nil:
		// It was cancelled before the code was released. What failed is the start, because of that.
		f.killed = glovebox.StatusCanceled
		v, err = verdict{status: f.killed, hit: []string{}, reason: "the run was cancelled before its program was started"}, nil
	}
	if err != nil {
		return nil, r.fail(ctx, err, out)
	}
	return r.end(ctx, r.result(ctx, f, v, out, outErr), out)
}

// admit decides whether the request is run and as what. Its errors are refusals.
func (r *run) admit(ctx context.Context) error {
	r.decision = r.decide(ctx, r.who, r.req)
	if d := r.decision; !d.Allow {
		return &glovebox.Error{Code: d.Code, Op: "decide", Public: d.Reason, Fix: d.Fix}
	}
	if r.decision.Grant.Isolation == glovebox.IsolationRemote {
		return nil // the rest is the other's
	}
	var err error
	if err = r.takeImage(ctx); err != nil {
		return err
	}
	if r.command, err = command(r.req, r.image); err != nil {
		return err
	}
	if r.memory, err = r.Engine.memory(); err != nil {
		return err
	}
	if err = r.memory.Fits(r.decision.Grant.Limits.Memory, r.extra()); err != nil {
		return err
	}
	if err = r.canOpen(ctx); err != nil {
		return err
	}
	if r.stdin = newStdin(r.req); r.stdin != nil { // an interface around a nil pointer would not be nil
		r.command.Stdin = r.stdin
	}
	return nil
}

// takeImage finds the run's image, which is in use until its sandbox is gone.
func (r *run) takeImage(ctx context.Context) (err error) {
	name := r.decision.Grant.Image
	if name == hostImage {
		r.image, err = r.Engine.image()
		return err
	}
	image, done, err := r.stored.use(ctx, name)
	if err != nil {
		return err
	}
	r.image = image
	r.undo.Push("let go of the image", done)
	return nil
}

// queue waits until the run's memory is free and holds it until the sandbox is gone. Its errors are refusals or ctx's.
func (r *run) queue(ctx context.Context) (err error) {
	begun := time.Now()
	err = r.acquire(ctx)
	r.queued = time.Since(begun)
	if err == nil {
		r.undo.Push("give back memory", r.giveBackMemory) // before there is a sandbox, so that it is gone by then
	}
	return err
}

// giveBackMemory lets other runs have the memory, but not while something of this one may still use it.
func (r *run) giveBackMemory(ctx context.Context) error {
	if r.release != nil && r.release(ctx) != nil || r.way.close(ctx) != nil {
		return errors.New("the sandbox could not be closed: its memory stays taken until this engine is closed")
	}
	return r.share.Release()
}

// takeInputs copies what the program is given. Its errors are refusals or ctx's.
func (r *run) takeInputs(ctx context.Context) (err error) {
	if len(r.req.Inputs) == 0 {
		return nil
	}
	dir, err := r.needFolder()
	if err != nil {
		return err
	}
	r.given = filepath.Join(dir, "inputs")
	r.inputs, err = takeInputs(ctx, r.policy(), r.who, r.req.Inputs, r.given)
	return err
}

// needFolder makes the run's folder, unless it is there, and returns its path. It waits for the data_dir, which is examined
// as it is opened. It is safe for concurrent use.
func (r *run) needFolder() (string, error) {
	if _, err := r.record(); err != nil {
		return "", err
	}
	dir, err := r.folder.need(r.runs, r.id)
	if err != nil {
		return "", glovebox.Internal("make the run's folder", err)
	}
	return dir, nil
}

// start records that the run begins while the driver makes a sandbox, then releases the code into it. recorded tells that
// there is a start record, which needs an end.
func (r *run) start(ctx context.Context) (recorded bool, err error) {
	making, stop := context.WithCancel(ctx)
	defer stop()
	var recordErr, boxErr, netdErr error
	var both sync.WaitGroup
	record := func() {
		// A start is recorded also when the caller has gone: what follows needs it.
		if recordErr = r.recordStart(context.WithoutCancel(ctx)); recordErr != nil {
			stop()
		}
	}
	if r.way != nil {
		both.Go(func() {
			if netdErr = r.way.takeNetd(making); netdErr != nil {
				stop()
			}
		})
	}
	if r.spare == nil {
		both.Go(record)
		boxErr = r.makeBox(making)
	} else {
		both.Go(func() { r.fitSpare(making) }) // which releases nothing
		record()                               // takes longer, and begins at once
	}
	both.Wait()
	switch {
	case recordErr != nil:
		return r.trace != nil, recordErr
	case netdErr != nil && ctx.Err() == nil:
		return true, netdErr
	case boxErr != nil:
		return true, boxErr
	case ctx.Err() != nil:
		return true, ctx.Err()
	}
	limits := r.decision.Grant.Limits
	r.tell = newTeller(r.id, r.sink)
	r.capture, err = output.New(output.Config{Limit: limits.Output, View: limits.View, Dir: r.needFolder, Live: r.tell.live})
	if err != nil {
		return true, err
	}
	r.tell.start(ctx, r.cfg.Now(), limits)
	return true, r.exec(ctx)
}

// letGo releases the code into the run's sandbox.
func (r *run) letGo(ctx context.Context) (err error) {
	r.way.serve()
	if r.proc, err = r.box.Exec(ctx, r.command); err != nil {
		r.proc = nil // an interface around a nil pointer would not be nil
		return fmt.Errorf("release the code: %w", err)
	}
	return nil
}

// makeBox makes a sandbox, with its network if it has one.
func (r *run) makeBox(ctx context.Context) error {
	if r.share == nil {
		return context.Cause(ctx)
	}
	d := r.drivers[r.decision.Grant.Isolation]
	spec := driver.Spec{ID: r.id, Limits: r.decision.Grant.Limits, Root: r.image.Root(), Inputs: r.given,
		Network: r.way != nil}
	box, err := d.Start(ctx, spec)
	if errors.Is(err, driver.ErrLeftBehind) {
		r.release = func(context.Context) error { return driver.ErrLeftBehind } // so that its memory stays taken
	}
	if err != nil {
		return fmt.Errorf("make the sandbox: %w", err)
	}
	r.adopt(box, box.Close)
	return r.way.connect(ctx, box)
}

// recordStart commits the start record; r.trace is set once there is one.
func (r *run) recordStart(ctx context.Context) error {
	t, err := r.record()
	if err != nil {
		return err
	}
	if _, err := t.Start(ctx, r.startRecord()); err != nil {
		return err
	}
	r.trace = t
	return nil
}

// imageName is empty for a request that was refused before its image was looked at.
func (r *run) imageName() string {
	if r.image == nil {
		return ""
	}
	return r.image.Identity()
}

func (r *run) startRecord() trace.Start {
	return trace.Start{ID: r.id, Principal: r.who, Lang: language(r.req), Argv: r.req.Argv, Args: r.req.Args,
		Code: []byte(r.req.Code), EnvNames: slices.Sorted(maps.Keys(r.req.Env)), Inputs: r.inputs, Decision: r.decision,
		Image: r.imageName()}
}

// watch supervises the program to the end of its tree.
func (r *run) watch(ctx context.Context) (facts, error) {
	w := &watch{box: r.box, proc: r.proc, limits: r.decision.Grant.Limits, capture: r.capture, tell: r.tell,
		drained: make(chan struct{}), violated: r.way.ends()}
	f, err := w.run(ctx)
	if err == nil {
		return f, nil
	}
	// The sandbox is the second way to end the tree, and closes the streams.
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
	defer stop()
	r.tell.abandon()
	err = errors.Join(err, r.release(ctx))
	select {
	case <-w.drained:
	case <-time.After(drainLimit):
		r.capture = nil // somebody still writes to it
	}
	return f, err
}

// finishOutput is what was printed, once nothing reads any more. Its error says that not all could be kept.
func (r *run) finishOutput(ctx context.Context) (out output.Captured, err error) {
	r.tell.close(ctx)
	if r.capture == nil {
		return output.Captured{Flags: []string{}}, nil
	}
	return r.capture.Finish()
}

// refuse records a refusal before start and returns what the caller is told.
func (r *run) refuse(ctx context.Context, why error) error {
	told := publicError(why).(*glovebox.Error)
	t, err := r.record()
	if err == nil {
		_, err = t.Refused(context.WithoutCancel(ctx), r.startRecord(), told)
	}
	if err != nil {
		// Nothing runs either way; the refusal helps the caller more than the trouble with the record.
		r.cfg.Log.Error("record refusal", "id", r.id, "err", err)
	}
	return told
}

// fail records that Glovebox failed after the start was recorded, and returns what the caller is told. Everything of the run
// is dead before that.
func (r *run) fail(ctx context.Context, why error, out output.Captured) error {
	told := publicError(why).(*glovebox.Error)
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
	defer stop()
	if r.release != nil {
		if err := r.release(ctx); err != nil {
			r.cfg.Log.Error("close the sandbox", "id", r.id, "err", err)
		}
	}
	whole := trace.End{ID: r.id, Err: told, Stdout: kept(out.Stdout), Stderr: kept(out.Stderr)}
	bare := *told
	if out.Stdout.Bytes+out.Stderr.Bytes > 0 {
		bare.Public += "; what the program printed could not be kept"
	}
	_, n, err := r.recordEnd(ctx, whole, trace.End{ID: r.id, Err: &bare})
	switch n {
	case 0:
		return told
	case 1:
		return &bare
	}
	return errors.Join(err, why)
}

// end records the result and completes it. The sandbox, which nothing is read from any more, is removed meanwhile. Where the
// data_dir has no room for what the run left, its end is recorded without that, and the result says so.
func (r *run) end(ctx context.Context, res *glovebox.Result, out output.Captured) (*glovebox.Result, error) {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
	defer stop()
	if r.release != nil {
		r.beside(func() {
			ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
			defer stop()
			r.release(ctx) // the undo stack reports what went wrong
		})
	}
	whole := trace.End{ID: r.id, Result: res, Stdout: kept(out.Stdout), Stderr: kept(out.Stderr)}
	small := withoutKept(*res)
	bare := glovebox.Errorf(glovebox.CodeInternal, "free space for the data_dir", "how the run ended could not be recorded")
	ref, n, err := r.recordEnd(ctx, whole, trace.End{ID: r.id, Result: small}, trace.End{ID: r.id, Err: bare})
	switch n {
	case 0:
	case 1:
		res = small
	default:
		told := *publicError(err).(*glovebox.Error)
		if r.proc != nil {
			told.Public = "the program ran, but " + told.Public
		}
		return nil, &told
	}
	res.Trace = ref
	return res, nil
}

// recordEnd records one of the ends, the first that can be: each needs less room than the one before. It returns which, -1
// for none, and what kept the first from being recorded.
func (r *run) recordEnd(ctx context.Context, ends ...trace.End) (ref glovebox.TraceRef, n int, why error) {
	for n, end := range ends {
		ref, err := r.trace.End(ctx, end)
		if err == nil {
			return ref, n, why
		}
		r.cfg.Log.Error("record end", "id", r.id, "try", n, "err", err)
		if why == nil {
			why = err
		}
		if publicError(err).(*glovebox.Error).Code != glovebox.CodeInternal {
			break // there is an end already
		}
	}
	return ref, -1, why
}

func kept(s output.Stream) trace.Kept {
	return trace.Kept{Data: s.Memory, Path: s.Path, SHA256: s.SHA256}
}

// log writes the run's canonical line: nothing of its code, environment or output is in it.
func (r *run) log(res *glovebox.Result, err error) {
	attrs := []slog.Attr{slog.String("id", r.id), slog.String("tenant", r.who.Tenant), slog.String("rule", r.decision.Rule),
		slog.Duration("took", time.Since(r.begun)), slog.Duration("queued", r.queued)}
	if err != nil {
		var known *glovebox.Error
		code := glovebox.CodeInternal
		if errors.As(err, &known) {
			code = known.Code
		}
		level := slog.LevelInfo
		if code == glovebox.CodeInternal {
			level = slog.LevelError
		}
		r.cfg.Log.LogAttrs(context.Background(), level, "run", append(attrs, slog.String("error", string(code)),
			slog.Any("err", err))...)
		return
	}
	attrs = append(attrs, slog.String("isolation", string(res.Isolation)), slog.String("status", string(res.Status)),
		slog.String("start", res.Start),
		slog.Int64("stdout_bytes", res.StdoutBytes), slog.Int64("stderr_bytes", res.StderrBytes))
	if res.Usage.WallMS != nil {
		attrs = append(attrs, slog.Int64("wall_ms", *res.Usage.WallMS))
	}
	r.cfg.Log.LogAttrs(context.Background(), slog.LevelInfo, "run", attrs...)
}

var _ glovebox.Service = (*Engine)(nil)
