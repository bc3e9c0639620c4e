package attack

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"sync"
	"time"

	"glovebox"
)

//go:embed programs
var programs embed.FS

// observed is what is known of a program's run after its end.
type observed struct {
	result    *glovebox.Result
	stdout    []byte // exactly, up to most
	stderr    []byte
	artifacts map[string][]byte
	took      time.Duration
	freed     room   // what the host's file systems lost, below nought when they gained
	unseen    string // why its processes could not be looked at, of a program that waits for that
}

const (
	wall     = 30 * time.Second // of a program that says nothing else
	patience = 30 * time.Second // beyond the wall clock, on a slow machine, until the outer clock ends a run
	most     = 4 << 20          // bytes of a stream or artifact that are searched
)

var languages = map[string]string{".py": "python", ".sh": "bash", ".js": "node"}

// attack runs one program and judges it. The error is that nothing more can be run.
func (l *laboratory) attack(ctx context.Context, p Program, r *Report) (Outcome, error) {
	out := Outcome{Program: p}
	if p.Disposable && !l.cfg.Disposable {
		out.Verdict, out.Reason = NotTried, "it exhausts something: say --disposable where that does no harm"
		return out, nil
	}
	before, visits, room := l.canaries(), l.listen.Visits.Load(), freeRoom(l.folders())
	begun := time.Now()
	if p.with != nil && p.with.look == nil { // somebody's run that was before
		if _, err := l.start(ctx, *p.with, nil); err != nil {
			return notTried(out, err), lost(err)
		}
	}
	var found []string
	ctx, end := context.WithCancel(ctx)
	defer end()
	if p.with != nil && p.with.look != nil { // somebody's run that lives beside it
		away, err := l.beside(ctx, *p.with)
		if err != nil {
			return notTried(out, err), lost(err)
		}
		defer away()
	}
	o, err := l.start(ctx, p, func(problems []string) { found = append(found, problems...) })
	out.TookMS = time.Since(begun).Milliseconds()
	found = append(found, l.after(before, visits)...)
	if err != nil {
		out.Found = append(found, failure(err)...)
		if out.Verdict = Broke; len(out.Found) == 0 {
			out = notTried(out, err)
		}
		return out, lost(err)
	}
	after := freeRoom(l.folders())
	o.freed.bytes, o.freed.files = room.bytes-after.bytes, room.files-after.files
	if got := o.result.Isolation; got.Rank() < l.cfg.Isolation.Rank() {
		found = append(found, fmt.Sprintf("it ran on the rung %s, below the rung %s that was asked for", got, l.cfg.Isolation))
	}
	out.Run, out.Start, r.Isolation, r.Posture = o.result.ID, o.result.Start, o.result.Isolation, o.result.Posture
	return l.judge(out, o, found), nil
}

// notTried says why a run did not take place.
func notTried(out Outcome, err error) Outcome {
	out.Verdict, out.Reason = NotTried, err.Error()
	var known *glovebox.Error
	if errors.As(err, &known) {
		out.Reason = known.Public
	}
	return out
}

// failure is what a program did to Glovebox itself.
func failure(err error) []string {
	var known *glovebox.Error
	if !errors.As(err, &known) || known.Code == glovebox.CodeInternal {
		return []string{"the run failed inside Glovebox, with a program that must not be able to do that: " + err.Error()}
	}
	return nil
}

// errLost is a run that cannot be ended.
var errLost = errors.New("a run did not end when it was cancelled")

func lost(err error) error {
	if errors.Is(err, errLost) {
		return err
	}
	return nil
}

// request is what a program asks for.
func (l *laboratory) request(p Program) (glovebox.Request, error) {
	code, err := programs.ReadFile("programs/" + p.file)
	if err != nil {
		return glovebox.Request{}, err
	}
	r := glovebox.Request{Code: string(code), CodeName: p.file, Lang: languages[path.Ext(p.file)],
		Isolation: l.cfg.Isolation, Trust: l.cfg.Trust, Collect: true,
		Limits: glovebox.Limits{Wall: wall, View: 256 * glovebox.KiB}}
	if l.cfg.Unnamed {
		r.CodeName = ""
	}
	if p.Disposable {
		r.Env = map[string]string{"HARNESS_OK": "1"}
	}
	if p.args != nil {
		r.Args = p.args(l)
	}
	if p.ask != nil {
		p.ask(l, &r)
	}
	return r, nil
}

// start runs a program to its end under an outer clock, looking at it on the way if it wants that.
func (l *laboratory) start(ctx context.Context, p Program, report func([]string)) (*observed, error) {
	req, err := l.request(p)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, req.Limits.Wall+patience)
	defer cancel()
	w := &watcher{sign: p.sign, cancel: cancel}
	if p.look != nil {
		w.look = func(run string) ([]string, error) { return p.look(l, l.users(run)) }
	}
	type end struct {
		res *glovebox.Result
		err error
	}
	ended := make(chan end, 1)
	begun := time.Now()
	go func() {
		res, err := l.cfg.Service.Run(ctx, l.cfg.Who, req, w)
		ended <- end{res, err}
	}()
	e := end{err: errLost}
	select {
	case e = <-ended:
	case <-ctx.Done():
		select {
		case e = <-ended:
		case <-time.After(patience):
		}
	}
	if e.err != nil {
		return nil, e.err
	}
	o := l.collect(context.WithoutCancel(ctx), e.res, time.Since(begun))
	l.ran(e.res.ID)
	problems, unseen := w.seen()
	if p.look != nil {
		o.unseen = unseen
	}
	if report != nil {
		report(problems)
		report(l.survivors(e.res.ID))
	}
	return o, nil
}

// users are the processes of a run that are the user's.
func (l *laboratory) users(run string) []process {
	var all []process
	for _, p := range processes(l.cfg.Proc, l.cfg.Sandbox(run)) {
		if !p.first {
			all = append(all, p)
		}
	}
	return all
}

func (l *laboratory) ran(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.runs = append(l.runs, id)
}

// survivors are what is alive of the user's.
func (l *laboratory) survivors(run string) []string {
	var all []string
	for _, p := range l.users(run) {
		all = append(all, fmt.Sprintf("process %d is alive after the result: %s", p.pid, strings.TrimSpace(p.read("comm"))))
	}
	return all
}

// remains waits until nothing at all of the runs is left, the sandboxes' own processes included, or names what is.
func (l *laboratory) remains(ctx context.Context) []string {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.teardown)
	defer cancel()
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for {
		var left []string
		for _, run := range l.runs {
			for _, p := range processes(l.cfg.Proc, l.cfg.Sandbox(run)) {
				left = append(left, fmt.Sprintf("process %d of %s is there: %s", p.pid, run, strings.TrimSpace(p.read("comm"))))
			}
		}
		if left == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return left
		case <-again.C:
		}
	}
}

// beside starts a run that lives until away is called, and waits until it is ready.
func (l *laboratory) beside(ctx context.Context, p Program) (away func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	ready, ended := make(chan struct{}), make(chan error, 1)
	p.look = func(*laboratory, []process) ([]string, error) {
		close(ready)
		<-ctx.Done()
		return nil, nil
	}
	go func() {
		_, err := l.start(ctx, p, nil)
		ended <- err
	}()
	away = func() { cancel(); <-ended }
	select {
	case <-ready:
		return away, nil
	case err := <-ended:
		cancel()
		if err == nil {
			err = glovebox.Errorf(glovebox.CodeUnavailable, "", "the run beside it ended before it was ready")
		}
		return nil, err
	}
}

// collect reads what a run left for its reader.
func (l *laboratory) collect(ctx context.Context, res *glovebox.Result, took time.Duration) *observed {
	o := &observed{result: res, took: took, artifacts: map[string][]byte{}}
	for name, to := range map[string]*[]byte{"stdout": &o.stdout, "stderr": &o.stderr} {
		if text, err := l.cfg.Service.Output(ctx, l.cfg.Who, res.ID, name, 0, most); err == nil {
			*to = text
		}
	}
	for i, a := range res.Artifacts {
		f, err := l.cfg.Service.Artifact(ctx, l.cfg.Who, res.ID, a.Path)
		if err != nil || i >= 100 {
			continue
		}
		text, err := io.ReadAll(io.LimitReader(f, most))
		if f.Close(); err == nil {
			o.artifacts[a.Path] = text
		}
	}
	return o
}

// words is all that a reader of the run may see, for a search.
func (o *observed) words() []byte {
	shown, _ := json.Marshal(o.result) // a Result is always JSON
	all := [][]byte{o.stdout, o.stderr, shown}
	for name, text := range o.artifacts {
		all = append(all, []byte(name), text)
	}
	return bytes.Join(all, []byte("\n"))
}

// watcher waits for a program's sign, then lets its processes be looked at, once, and ends it. It implements
// glovebox.Sink.
type watcher struct {
	sign   string
	cancel context.CancelFunc
	look   func(run string) ([]string, error)

	mu       sync.Mutex
	text     []byte
	done     bool
	problems []string
	failed   error
}

func (w *watcher) Event(e glovebox.Event) {
	if w.look == nil || e.Kind != "stdout" {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.done || len(w.text) > most {
		return
	}
	w.text = append(w.text, e.Data...)
	sign := w.sign
	if sign == "" {
		sign = "held"
	}
	if !bytes.Contains(append([]byte("\n"), w.text...), []byte("\n"+sign)) {
		return
	}
	w.done = true
	w.problems, w.failed = w.look(e.Run)
	w.cancel()
}

// seen is what the look found, and why there was none. Only after the run.
func (w *watcher) seen() (problems []string, unseen string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case !w.done:
		unseen = "it ended before it could be looked at"
	case w.failed != nil:
		unseen = w.failed.Error()
	}
	return w.problems, unseen
}

// folders are those whose file systems runs could fill.
func (l *laboratory) folders() []string {
	all := []string{os.TempDir()}
	for _, dir := range l.cfg.Folders {
		all = append(all, dir)
	}
	return all
}
