package engine

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"glovebox"
	"glovebox/internal/output"
)

// Bounds of what goes to another Glovebox. Its door takes 16 MiB of JSON, in which bytes take a third more.
const (
	maxSentInputs = 1024 // files
	maxSentBytes  = 11 * glovebox.MiB
	maxSentStdin  = 4 * glovebox.MiB
)

// there is a run that another Glovebox does, as seen from here.
type there struct {
	run   *run
	res   *glovebox.Result // as the other told
	began time.Time        // zero: its program was not started, as far as is known
	late  *time.Timer      // fires when the other should have told of the next step
	last  time.Duration    // for the step after that

	turn  chan struct{} // held by whoever writes to the streams
	id    string        // of the run there
	pipes map[string]*io.PipeWriter
	heard map[string]int64 // bytes of each stream
	over  bool             // nothing more is heard
}

// runThere has another Glovebox do the run, and makes its result this one's: what the program printed and left is kept and
// recorded here, and what is shown of it is made here.
func (r *run) runThere(ctx context.Context) (*glovebox.Result, error) {
	if wantsWay(r.decision.Grant) {
		// The other would judge by its own rules, and these are not those that were granted here.
		return nil, r.refuse(ctx, glovebox.Errorf(glovebox.CodeUnavailable,
			"run it on a rung of this machine, or without --allow and --secret",
			"a run that another Glovebox does has no way out in this version"))
	}
	select {
	case r.other.runs <- struct{}{}:
		defer func() { <-r.other.runs }()
	default:
		return nil, r.refuse(ctx, glovebox.Errorf(glovebox.CodeExhausted, "try again later",
			"%d runs are with the other Glovebox already", maxThere))
	}
	req, err := r.requestThere(ctx)
	if err != nil && ctx.Err() == nil {
		return nil, r.refuse(ctx, err)
	}
	if err := r.recordStart(context.WithoutCancel(ctx)); err != nil {
		return nil, err
	}
	r.busy.Go(func() { r.tend(); r.retain() })
	t := &there{run: r, turn: make(chan struct{}, 1), heard: map[string]int64{}, pipes: map[string]*io.PipeWriter{}}
	if ctx.Err() == nil {
		err = t.do(ctx, req)
	}
	out, outErr := r.finishOutput(ctx)
	if err != nil && ctx.Err() != nil && t.began.IsZero() {
		err = nil // what failed is the start, because it was cancelled
	}
	if err != nil {
		return nil, r.fail(ctx, err, out)
	}
	return r.end(ctx, t.result(ctx, out, outErr), out)
}

// requestThere is what the other is asked for: all that was granted, by value, at a rung that is there.
func (r *run) requestThere(ctx context.Context) (glovebox.Request, error) {
	req, g := r.req, r.decision.Grant
	var err error
	if req.Isolation, err = r.other.pick(ctx, g.AtLeast); err != nil {
		return req, err
	}
	req.Trust, req.Image, req.Limits = g.Trust, g.Image, g.Limits
	// It is told whole milliseconds, and never more than was granted.
	req.Limits.Wall, req.Limits.CPU = g.Limits.Wall.Truncate(time.Millisecond), g.Limits.CPU.Truncate(time.Millisecond)
	if req.StdinFrom != nil {
		if req.Stdin, err = readAll(ctx, req.StdinFrom); err != nil {
			return req, err
		}
		req.StdinFrom = nil
	}
	if err := r.takeInputs(ctx); err != nil {
		return req, err
	}
	if req.Inputs, err = r.contents(); err != nil {
		return req, err
	}
	size := len(req.Code) + len(req.Stdin)
	for _, in := range req.Inputs {
		size += len(in.ContentBase64) / 4 * 3
	}
	if size > int(maxSentBytes) {
		return req, glovebox.Errorf(glovebox.CodeInvalid, "pass less, or run it on a rung of this machine",
			"code, standard input and inputs have %v together, and %v can go to another Glovebox in this version",
			glovebox.Size(size), maxSentBytes)
	}
	return req, nil
}

// readAll reads standard input to its end, which has to come before the code is sent.
func readAll(ctx context.Context, from io.Reader) (string, error) {
	var text []byte
	err := whileLasts(ctx, inputWait, func() (err error) {
		text, err = io.ReadAll(io.LimitReader(from, int64(maxSentStdin)+1))
		return err
	})
	switch {
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case err != nil:
		return "", &glovebox.Error{Code: glovebox.CodeInvalid, Op: "read standard input", Err: err,
			Public: "standard input could not be read: " + whyEarly(err), Fix: "pass it as a file: --stdin FILE"}
	case len(text) > int(maxSentStdin):
		return "", glovebox.Errorf(glovebox.CodeInvalid, "pass bulk with --input, or run it on a rung of this machine",
			"standard input has more than %v, the most that can go to another Glovebox in this version", maxSentStdin)
	}
	return string(text), nil
}

// contents are the run's inputs by value, read from the copies whose hashes are in the record.
func (r *run) contents() (list []glovebox.Input, err error) {
	if r.given == "" {
		return nil, nil
	}
	if len(r.inputs) > maxSentInputs {
		return nil, glovebox.Errorf(glovebox.CodeInvalid, "pack them into an archive and pass that",
			"the inputs are %d files, and %d can go to another Glovebox in this version", len(r.inputs), maxSentInputs)
	}
	left := int64(maxSentBytes)
	for _, in := range r.inputs {
		if left -= in.Bytes; left < 0 {
			return nil, glovebox.Errorf(glovebox.CodeInvalid, "pass less, or run it on a rung of this machine",
				"the inputs have more than %v, the most that can go to another Glovebox in this version", maxSentBytes)
		}
		text, err := os.ReadFile(filepath.Join(r.given, filepath.FromSlash(in.Name)))
		if err != nil {
			return nil, glovebox.Internal("read the copy of an input", err)
		}
		list = append(list, glovebox.Input{Name: in.Name, ContentBase64: base64.StdEncoding.EncodeToString(text)})
	}
	return list, r.refuseEmptyFolders()
}

// refuseEmptyFolders refuses what no list of files can tell.
func (r *run) refuseEmptyFolders() error {
	err := filepath.WalkDir(r.given, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() || path == r.given {
			return err
		}
		inside, err := os.ReadDir(path)
		if err == nil && len(inside) == 0 {
			name, _ := filepath.Rel(r.given, path)
			return glovebox.Errorf(glovebox.CodeInvalid, "put a file into it, or run it on a rung of this machine",
				"the input folder %.80q is empty, and cannot go to another Glovebox in this version", name)
		}
		return err
	})
	return glovebox.Internal("look at the copies of inputs", err)
}

// do has the other do it, and returns when it has ended there and all that was printed was read. An error is Glovebox's own
// failure, here or there.
func (t *there) do(ctx context.Context, req glovebox.Request) error {
	r, limits := t.run, t.run.decision.Grant.Limits
	r.tell = newTeller(r.id, r.sink)
	var err error
	r.capture, err = output.New(output.Config{Limit: limits.Output, View: limits.View, Dir: r.needFolder, Live: r.tell.live})
	if err != nil {
		return err
	}
	var reading sync.WaitGroup
	failed := make([]error, 2)
	for i, name := range []string{"stdout", "stderr"} {
		from, to := io.Pipe()
		t.pipes[name] = to
		reading.Go(func() { failed[i] = r.capture.Copy(name, from) })
	}
	asking, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	t.last = limits.Wall + r.other.end
	t.late = time.AfterFunc(r.other.begin, func() { stop(errLate) })
	defer t.late.Stop()
	t.res, err = r.other.Service.Run(asking, r.who, req, t)
	defer r.freeSink(ctx)()
	t.quiet()
	if err == nil {
		err = t.rest(context.WithoutCancel(ctx))
	}
	for _, p := range t.pipes {
		_ = p.Close() // never fails
	}
	reading.Wait()
	switch {
	case errors.Is(context.Cause(asking), errLate):
		return glovebox.Errorf(glovebox.CodeInternal, "see what is wrong at "+r.other.Name,
			"the other Glovebox did not end the run in time")
	case err != nil:
		return t.explain(err)
	}
	return errors.Join(append(failed, t.check())...)
}

var errLate = errors.New("the other glovebox is late")

// Event implements glovebox.Sink.
func (t *there) Event(e glovebox.Event) {
	t.turn <- struct{}{}
	defer func() { <-t.turn }()
	if t.over {
		return
	}
	r := t.run
	switch e.Kind {
	case "start":
		if !t.began.IsZero() {
			return // it begins once: each beginning would have the time of a whole run
		}
		t.began, t.id = time.Now(), e.Run
		t.late.Reset(t.last)
		r.tell.start(context.Background(), r.cfg.Now(), r.decision.Grant.Limits)
	case "stdout", "stderr":
		n, _ := t.pipes[e.Kind].Write(e.Data) // it is read to its end
		t.heard[e.Kind] += int64(n)
	case "usage":
		r.tell.usage(r.cfg.Now(), e.Usage)
	}
}

// quiet waits until nothing is heard any more.
func (t *there) quiet() {
	t.turn <- struct{}{}
	t.over = true
	<-t.turn
}

// freeSink gives a sink of the caller's up that is still slow some time after the caller cancelled. Until then it may take
// its time, as it may with a run of this machine. The function that it returns ends that.
func (r *run) freeSink(ctx context.Context) (end func()) {
	over, ended := make(chan struct{}), make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		moment := time.NewTimer(drainLimit)
		defer moment.Stop()
		select {
		case <-moment.C:
			r.tell.abandon()
		case <-over:
		}
	})
	return func() {
		close(over)
		if !stop() {
			<-ended
		}
	}
}

// rest fetches what was printed and not heard: a caller whose sink was slow is not told all while a run lasts.
func (t *there) rest(ctx context.Context) error {
	ctx, stop := context.WithTimeout(ctx, collectLimit)
	defer stop()
	for name, all := range map[string]int64{"stdout": t.res.StdoutBytes, "stderr": t.res.StderrBytes} {
		for t.heard[name] < all && t.heard["stdout"]+t.heard["stderr"] < int64(t.run.decision.Grant.Limits.Output) {
			piece, err := t.run.other.Service.Output(ctx, t.run.who, t.res.ID, name, t.heard[name], int64(glovebox.MiB))
			if err != nil {
				return fmt.Errorf("fetch output: %w", err)
			}
			if len(piece) == 0 {
				break // it has no more of it
			}
			_, _ = t.pipes[name].Write(piece)
			t.heard[name] += int64(len(piece))
		}
	}
	return nil
}

// explain says whose error it is. What the other advises is about its own machine or configuration.
func (t *there) explain(err error) error {
	var known *glovebox.Error
	if !errors.As(err, &known) {
		return fmt.Errorf("ask the other glovebox: %w", err)
	}
	told := *known
	told.Op, told.Err, told.Fix = "ask the other Glovebox", err, sentence(known.Fix)
	told.Public = fmt.Sprintf("the other Glovebox at %s: %s", t.run.other.Name, sentence(known.Public))
	return &told
}
