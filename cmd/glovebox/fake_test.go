package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"glovebox"
	"glovebox/policy"
)

// fakeService decides with the real policy and then does what the code says instead of running it: each line of the code is
// one of
//
//	exit N · signal NAME · status S · reason TEXT · stdout TEXT · stderr TEXT · artifact PATH · skip PATH · wait ·
//	fail CODE · log TEXT · stdin · request · served · refuse HOST REASON
//
// wait ends when the run is cancelled; stdin prints standard input; request prints the request as JSON.
type fakeService struct {
	settings settings
	policy   *policy.Policy
	request  glovebox.Request
	records  []glovebox.Record
	ready    bool
	log      *slog.Logger
	closed   int

	query        glovebox.TraceQuery
	heads        []glovebox.TraceRef
	verification glovebox.Verification
}

func (f *fakeService) open(s settings, log *slog.Logger) (glovebox.Service, error) {
	f.log = log
	f.settings = s
	if s.policy.TrustRungs == nil { // its rung is the lowest
		s.policy.TrustRungs = map[glovebox.Trust]glovebox.Isolation{"influenced": "process", "hostile": "gvisor"}
	}
	p, err := policy.New(s.policy)
	f.policy = p
	return f, err
}

// processAlone is a machine that has this rung and no other.
func processAlone(rung, _ glovebox.Isolation) error {
	if rung == glovebox.IsolationProcess {
		return nil
	}
	return glovebox.Errorf(glovebox.CodeUnavailable, "install "+string(rung), "there is no %s", rung)
}

func (f *fakeService) Run(ctx context.Context, who glovebox.Principal, req glovebox.Request, sink glovebox.Sink) (
	*glovebox.Result, error) {
	f.request = req
	d := f.policy.Decide(who, req, processAlone)
	if !d.Allow {
		return nil, &glovebox.Error{Code: d.Code, Op: "decide", Public: d.Reason, Fix: d.Fix}
	}
	res := &glovebox.Result{ID: "run_1", Status: glovebox.StatusExited, ExitCode: new(0), Untrusted: true, Rule: d.Rule,
		Limits: d.Grant.Limits, Isolation: d.Grant.Isolation, Trust: d.Grant.Trust}
	script := req.Code
	if len(req.Argv) > 0 {
		script = strings.Join(req.Argv, " ")
	}
	for l := range strings.Lines(script) {
		word, rest, _ := strings.Cut(strings.TrimSuffix(l, "\n"), " ")
		if err := f.step(ctx, res, sink, word, rest); err != nil {
			return nil, err
		}
	}
	res.OK = res.Status == glovebox.StatusExited && *res.ExitCode == 0
	return res, nil
}

func (f *fakeService) step(ctx context.Context, res *glovebox.Result, sink glovebox.Sink, word, rest string) error {
	emit := func(stream, text string) {
		sink.Event(glovebox.Event{Kind: stream, Run: res.ID, Data: []byte(text)})
	}
	switch word {
	case "exit":
		n, _ := parseCount(rest)
		res.ExitCode = new(int(n))
	case "signal":
		res.Status, res.ExitCode, res.Signal = glovebox.StatusSignaled, nil, &rest
	case "status":
		res.Status, res.ExitCode = glovebox.Status(rest), nil
	case "reason":
		res.Reason = rest
	case "stdout", "stderr":
		emit(word, strings.ReplaceAll(strings.ReplaceAll(rest, `\e`, "\x1b"), `\n`, "\n"))
	case "artifact":
		res.Artifacts = append(res.Artifacts, glovebox.Artifact{Path: rest})
	case "skip":
		res.Skipped = append(res.Skipped, glovebox.Skipped{Path: rest, Reason: "a link", Fault: glovebox.FaultProgram})
	case "refuse":
		host, reason, _ := strings.Cut(rest, " ")
		res.Egress = append(res.Egress, glovebox.EgressFlow{Host: host, Port: 443, Reason: reason, Path: fmt.Sprint(len(res.Egress))})
	case "hit":
		res.LimitsHit = append(res.LimitsHit, rest)
	case "lost":
		res.Skipped = append(res.Skipped, glovebox.Skipped{Path: "x", Reason: "it could not be stored", Fault: rest})
	case "wait":
		emit("stdout", "waiting\n")
		<-ctx.Done()
		res.Status, res.ExitCode = glovebox.StatusCanceled, nil
	case "served":
		res.ServedBy = f.settings.servedBy
	case "flood":
		for range 10000 {
			emit("stdout", strings.Repeat("x", 1000))
			if ctx.Err() != nil {
				res.Status, res.ExitCode = glovebox.StatusCanceled, nil
				return nil
			}
		}
	case "fail":
		return &glovebox.Error{Code: glovebox.Code(rest), Public: "it \x1b[31mfailed", Fix: "mend it", Err: io.ErrNoProgress}
	case "log":
		f.log.Info("not shown")
		f.log.Error(rest, "err", errors.New(rest))
	case "stdin":
		b := []byte(f.request.Stdin)
		if f.request.StdinFrom != nil {
			b, _ = io.ReadAll(f.request.StdinFrom)
		}
		emit("stdout", string(b))
	case "request":
		b, _ := json.Marshal(f.request)
		emit("stdout", string(b)+"\n")
	}
	return nil
}

func (f *fakeService) Output(context.Context, glovebox.Principal, string, string, int64, int64) ([]byte, error) {
	return nil, nil
}

func (f *fakeService) Artifact(_ context.Context, _ glovebox.Principal, run, path string) (io.ReadCloser, error) {
	if path == "broken" {
		return nil, glovebox.Errorf(glovebox.CodeNotFound, "look again", "there is no artifact of %s", run)
	}
	if path == "endless" {
		return io.NopCloser(interrupting{}), nil
	}
	return io.NopCloser(strings.NewReader("content of " + path)), nil
}

// interrupting has no end, and interrupts whoever reads it, as somebody who has waited long enough.
type interrupting struct{}

func (interrupting) Read(p []byte) (int, error) {
	clear(p)
	return len(p), syscall.Kill(os.Getpid(), syscall.SIGINT)
}

func (f *fakeService) Trace(_ context.Context, _ glovebox.Principal, run string) (*glovebox.Record, error) {
	for i := range f.records {
		if f.records[i].ID == run {
			return &f.records[i], nil
		}
	}
	return nil, glovebox.Errorf(glovebox.CodeNotFound, "`glovebox trace ls` lists the ids", "there is no run %q", run)
}

func (f *fakeService) Traces(_ context.Context, _ glovebox.Principal, q glovebox.TraceQuery) ([]glovebox.Record, error) {
	f.query = q
	from := 0
	for i := range f.records {
		if f.records[i].ID == q.Before {
			from = i + 1
		}
	}
	return f.records[from:min(from+q.Limit, len(f.records))], nil
}

func (f *fakeService) Verify(_ context.Context, _ glovebox.Principal, heads []glovebox.TraceRef) (*glovebox.Verification, error) {
	f.heads = heads
	return &f.verification, nil
}

func (f *fakeService) Rungs(context.Context) ([]glovebox.Rung, error) {
	return []glovebox.Rung{{Isolation: "process", Available: f.ready}}, nil
}

func (f *fakeService) Doctor(context.Context) (*glovebox.Report, error) {
	return &glovebox.Report{Ready: f.ready, Machine: "m", User: "u", Controls: []glovebox.Control{
		{Isolation: "process", Name: "landlock", Available: f.ready, Required: true, Detail: "d", Fix: "mend landlock"},
	}, Images: []glovebox.Image{{Name: "host", Languages: map[string]string{"python": "/usr/bin/python3"}}}}, nil
}

func (f *fakeService) Close() error { f.closed++; return nil }

// hostile is a record whose every text tries to act on a terminal or to pass for something else.
func hostile() glovebox.Record {
	evil := "\x1b[2J\x1b]52;c;ZXZpbA==\x07a\nfix: run rm\u202e\u200b"
	return glovebox.Record{
		ID: "run_2", State: "ended", Started: time.Unix(1e9, 0), Ended: time.Unix(1e9+1, 0), Lang: "python",
		Args: []string{evil}, Code: glovebox.Untrusted(evil), EnvNames: []string{evil},
		Inputs:   []glovebox.InputRecord{{Name: evil}},
		Decision: glovebox.Decision{Allow: true, Rule: evil, Reason: evil}, Image: evil,
		Result: &glovebox.Result{Status: glovebox.StatusSignaled, Signal: &evil, Reason: evil, Stdout: glovebox.Untrusted(evil),
			Stderr: glovebox.Untrusted(evil), Flags: []string{evil}, Artifacts: []glovebox.Artifact{{Path: evil, MediaType: evil}},
			Skipped: []glovebox.Skipped{{Path: evil, Reason: evil}}},
	}
}

// tool is a command line with everything it touches made up.
type tool struct {
	*fakeService
	app       *app
	out, errs bytes.Buffer
	env       map[string]string
}

func newTool(t *testing.T) *tool {
	home := t.TempDir()
	tl := &tool{fakeService: &fakeService{ready: true}, env: map[string]string{"HOME": home}}
	tl.app = &app{in: strings.NewReader(""), out: &tl.out, errs: &tl.errs, uid: 1000, runtime: home, open: tl.open,
		getenv: func(name string) string { return tl.env[name] }}
	t.Chdir(home)
	return tl
}

// run runs one command line.
func (tl *tool) run(args ...string) (exit int, stdout, stderr string) {
	tl.out.Reset()
	tl.errs.Reset()
	tl.app.exit, tl.app.config, tl.app.server, tl.app.local = 0, "", "", false
	exit = tl.app.main(args)
	return exit, tl.out.String(), tl.errs.String()
}

func (tl *tool) write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
