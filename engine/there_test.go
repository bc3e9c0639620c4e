package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"glovebox"
	"glovebox/driver"
	"glovebox/driver/drivertest"
	"glovebox/policy"
)

// far is another Glovebox between which and the engine something can be put.
type far struct {
	*Engine
	run      func(context.Context, glovebox.Principal, glovebox.Request, glovebox.Sink) (*glovebox.Result, error)
	artifact func(path string) (io.ReadCloser, error)
	rungs    func() ([]glovebox.Rung, error)
	asked    atomic.Int32
}

func (f *far) Run(ctx context.Context, who glovebox.Principal, req glovebox.Request, sink glovebox.Sink) (*glovebox.Result, error) {
	f.asked.Add(1)
	if f.run != nil {
		return f.run(ctx, who, req, sink)
	}
	return f.Engine.Run(ctx, who, req, sink)
}

func (f *far) Artifact(ctx context.Context, who glovebox.Principal, run, path string) (io.ReadCloser, error) {
	if f.artifact != nil {
		return f.artifact(path)
	}
	return f.Engine.Artifact(ctx, who, run, path)
}

func (f *far) Rungs(ctx context.Context) ([]glovebox.Rung, error) {
	if f.rungs != nil {
		return f.rungs()
	}
	return f.Engine.Rungs(ctx)
}

// twoEngines are one that has no rung of its own, and another that does its runs.
func twoEngines(t *testing.T, fake *drivertest.Fake, here, there policy.Config) (*Engine, *far) {
	t.Helper()
	if fake.Dir == "" {
		fake.Dir = t.TempDir()
	}
	other, err := New(Config{DataDir: t.TempDir(), Drivers: []driver.Driver{fake}, Image: fakeImage{}, RuntimeDir: t.TempDir(), Policy: there,
		ServedBy: "the other"})
	if err != nil {
		t.Fatal(err)
	}
	f := &far{Engine: other}
	dir := t.TempDir()
	e, err := New(Config{DataDir: dir, Image: fakeImage{}, RuntimeDir: t.TempDir(), Policy: here,
		Remote: Remote{Service: f, Name: "unix:/other"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		if _, err := other.Doctor(context.Background()); codeOf(err) != glovebox.CodeUnavailable {
			t.Errorf("the other was not closed: %v", err)
		}
		if left, _ := os.ReadDir(filepath.Join(dir, "runs")); len(left) > 0 {
			t.Errorf("folders left: %v", left)
		}
		if left := fake.Live(); len(left) > 0 {
			t.Errorf("sandboxes left: %v", left)
		}
	})
	return e, f
}

// hearing is what a sink heard.
type hearing struct {
	mu   sync.Mutex
	kind []string
	text bytes.Buffer
	do   func(glovebox.Event)
}

func (s *hearing) Event(e glovebox.Event) {
	if s.do != nil {
		s.do(e)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kind = append(s.kind, e.Kind+" "+e.Run)
	if e.Kind == "stdout" {
		s.text.Write(e.Data)
	}
}

// TestRemote: a run that another does is told, kept and recorded as one of this engine's own, and both records say what the
// other has.
func TestRemote(t *testing.T) {
	long := strings.Repeat("0123456789abcdef", 20<<10)
	fake := &drivertest.Fake{Rung: glovebox.IsolationGVisor, Program: func(_ context.Context, p *drivertest.Proc) driver.Exit {
		in, _ := io.ReadAll(p.Stdin)
		a, errA := os.ReadFile(filepath.Join(p.Spec.Inputs, "given"))
		b, errB := os.ReadFile(filepath.Join(p.Spec.Inputs, "folder/inner/b"))
		fmt.Fprintf(p.Stderr, "%s|%s|%s|%v|%v|%s\x1b[31m", in, a, b, errA, errB, p.Command.Argv[len(p.Command.Argv)-1])
		fmt.Fprint(p.Stdout, long)
		p.Leave("x/chart.txt", []byte("chart"))
		p.Leave("empty", nil)
		return driver.Exit{Code: 3}
	}}
	e, f := twoEngines(t, fake, policy.Config{}, policy.Config{})
	dir := t.TempDir()
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "folder/inner"), 0o755),
		os.WriteFile(filepath.Join(dir, "folder/inner/b"), []byte("B"), 0o600)); err != nil {
		t.Fatal(err)
	}
	heard := &hearing{}
	res, err := e.Run(t.Context(), owner, glovebox.Request{Code: "x", Args: []string{"arg"}, Isolation: "remote",
		StdinFrom: strings.NewReader("in\xff"), Collect: true, Limits: glovebox.Limits{Wall: 5*time.Second + 7},
		Inputs: []glovebox.Input{{Name: "given", Content: "A"}, {Name: "folder", Path: filepath.Join(dir, "folder")}}}, heard)
	if err != nil {
		t.Fatal(err)
	}
	if res.OK || res.Status != glovebox.StatusExited || *res.ExitCode != 3 || res.Isolation != "remote" || res.Asked != "remote" ||
		res.Rule != "isolation.raised" || res.ServedBy != "remote unix:/other" || res.Image != "host@pkgs:0123456789ab" ||
		res.Posture["fake"] != "yes" || res.Usage.MemoryPeakBytes == nil || res.Limits.Wall != 5*time.Second+7 {
		t.Errorf("%+v", res)
	}
	if res.StdoutBytes != int64(len(long)) || !res.StdoutTruncated || strings.Contains(string(res.Stderr), "\x1b") ||
		!strings.HasPrefix(string(res.Stderr), "in") || !strings.Contains(string(res.Stderr), "|A|B|<nil>|<nil>|arg") {
		t.Errorf("stdout %d bytes, stderr %q", res.StdoutBytes, string(res.Stderr))
	}
	if heard.text.String() != long || heard.kind[0] != "start "+res.ID {
		t.Errorf("heard %d bytes, first %v", heard.text.Len(), heard.kind[0])
	}
	far, err := f.Engine.Trace(t.Context(), owner, res.Remote.Run)
	if err != nil || far.Decision.Grant.Isolation != "gvisor" || far.Decision.Grant.Trust != "influenced" {
		t.Fatalf("the other's record: %+v, %v", far, err)
	}
	if want := (glovebox.RemoteRun{ServedBy: "unix:/other", Run: far.ID, Isolation: "gvisor", Rule: far.Result.Rule,
		Trace: far.Result.Trace}); *res.Remote != want || want.Trace.Hash == "" {
		t.Errorf("remote %+v, want %+v", *res.Remote, want)
	}
	near, err := e.Trace(t.Context(), owner, res.ID)
	if err != nil || *near.Result.Remote != *res.Remote || len(near.Inputs) != 2 || near.Decision.Grant.AtLeast == "" {
		t.Errorf("the record: %+v, %v", near, err)
	}
	piece, err := e.Output(t.Context(), owner, res.ID, "stdout", 16, 32)
	if err != nil || string(piece) != long[16:48] {
		t.Errorf("%q, %v", piece, err)
	}
	var left []string
	for _, a := range res.Artifacts {
		r, err := e.Artifact(t.Context(), owner, res.ID, a.Path)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		r.Close()
		left = append(left, fmt.Sprint(a.Path, " ", string(text), " ", err))
	}
	if diff := cmp.Diff([]string{"empty  <nil>", "x/chart.txt chart <nil>"}, left); diff != "" {
		t.Errorf("%s, skipped %v", diff, res.Skipped)
	}
	if v, err := e.Verify(t.Context(), owner, []glovebox.TraceRef{res.Trace}); err != nil || !v.OK {
		t.Errorf("%+v, %v", v, err)
	}
}

// TestRemoteEnds: how a run there ends is how it is told here.
func TestRemoteEnds(t *testing.T) {
	hanging := func(ctx context.Context, p *drivertest.Proc) driver.Exit {
		fmt.Fprint(p.Stdout, "begun")
		<-ctx.Done()
		return driver.Exit{}
	}
	t.Run("wall", func(t *testing.T) {
		e, _ := twoEngines(t, &drivertest.Fake{Program: hanging}, policy.Config{}, policy.Config{})
		res, err := e.Run(t.Context(), owner, glovebox.Request{Code: "x", Trust: "model", Isolation: "remote",
			Limits: glovebox.Limits{Wall: 50 * time.Millisecond}}, nil)
		if err != nil || res.Status != glovebox.StatusWallLimit || res.Stdout != "begun" || !strings.Contains(res.Reason, "--wall") ||
			len(res.LimitsHit) != 1 {
			t.Errorf("%+v, %v", res, err)
		}
	})
	t.Run("cancelled", func(t *testing.T) {
		e, _ := twoEngines(t, &drivertest.Fake{Program: hanging}, policy.Config{}, policy.Config{})
		ctx, cancel := context.WithCancel(t.Context())
		res, err := e.Run(ctx, owner, glovebox.Request{Code: "x", Trust: "model", Isolation: "remote"}, &hearing{do: func(ev glovebox.Event) {
			if ev.Kind == "stdout" {
				cancel()
			}
		}})
		if err != nil || res.Status != glovebox.StatusCanceled || res.Stdout != "begun" {
			t.Errorf("%+v, %v", res, err)
		}
	})
	t.Run("cancelled before", func(t *testing.T) {
		fake := &drivertest.Fake{Program: hanging}
		e, f := twoEngines(t, fake, policy.Config{}, policy.Config{})
		ctx, cancel := context.WithCancel(t.Context())
		f.run = func(ctx context.Context, _ glovebox.Principal, _ glovebox.Request, _ glovebox.Sink) (*glovebox.Result, error) {
			cancel()
			return nil, errors.New("cancelled")
		}
		res, err := e.Run(ctx, owner, glovebox.Request{Code: "x", Trust: "model", Isolation: "remote"}, nil)
		if err != nil || res.Status != glovebox.StatusCanceled || res.Remote != nil {
			t.Errorf("%+v, %v", res, err)
		}
	})
	t.Run("never", func(t *testing.T) {
		e, f := twoEngines(t, &drivertest.Fake{}, policy.Config{}, policy.Config{})
		e.other.end, e.other.begin = 400*time.Millisecond, 10*time.Second
		f.run = func(ctx context.Context, _ glovebox.Principal, _ glovebox.Request, sink glovebox.Sink) (*glovebox.Result, error) {
			begun := time.Now()
			for ctx.Err() == nil && time.Since(begun) < 3*time.Second { // again and again is once
				sink.Event(glovebox.Event{Kind: "start", Run: "run_x"})
				time.Sleep(5 * time.Millisecond)
			}
			return nil, context.Cause(ctx)
		}
		_, err := e.Run(t.Context(), owner, glovebox.Request{Code: "x", Trust: "model", Isolation: "remote",
			Limits: glovebox.Limits{Wall: 20 * time.Millisecond}}, nil)
		if codeOf(err) != glovebox.CodeInternal || !strings.Contains(err.Error(), "in time") {
			t.Errorf("%v", err)
		}
	})
}

// TestRemoteIsHeldToItsWord: a rung that the other does not have is refused before anything is sent, and a run that got less
// than was demanded, or came back as something else, is an error with a record.
func TestRemoteIsHeldToItsWord(t *testing.T) {
	demand := policy.Config{Remote: "gvisor"}
	request := glovebox.Request{Code: "x", Trust: "model", Isolation: "remote", Collect: true}
	t.Run("too low", func(t *testing.T) {
		fake := &drivertest.Fake{}
		e, f := twoEngines(t, fake, demand, policy.Config{})
		_, err := e.Run(t.Context(), owner, request, nil)
		var known *glovebox.Error
		if !errors.As(err, &known) || known.Code != glovebox.CodeUnavailable || !strings.Contains(known.Public, "no rung that is gvisor or stronger") ||
			!strings.Contains(known.Fix, "doctor --server unix:/other") || f.asked.Load() != 0 {
			t.Errorf("%#v, asked %d times", err, f.asked.Load())
		}
	})
	t.Run("a stronger one is there", func(t *testing.T) {
		e, _ := twoEngines(t, &drivertest.Fake{Rung: glovebox.IsolationMicroVM}, demand, policy.Config{})
		if res, err := e.Run(t.Context(), owner, request, nil); err != nil || res.Remote.Isolation != "microvm" {
			t.Errorf("%+v, %v", res, err)
		}
	})
	t.Run("no answer", func(t *testing.T) {
		e, f := twoEngines(t, &drivertest.Fake{Rung: glovebox.IsolationGVisor}, demand, policy.Config{})
		f.rungs = func() ([]glovebox.Rung, error) {
			return nil, glovebox.Errorf(glovebox.CodeUnavailable, "start one", "no server answers")
		}
		_, err := e.Run(t.Context(), owner, request, nil)
		if codeOf(err) != glovebox.CodeUnavailable || !strings.Contains(err.Error(), "no server answers") || f.asked.Load() != 0 {
			t.Errorf("%v", err)
		}
	})
	for name, c := range map[string]struct {
		change func(*glovebox.Result)
		says   string
	}{
		"less":              {func(r *glovebox.Result) { r.Isolation = "process" }, `on the rung "process"`},
		"another far away":  {func(r *glovebox.Result) { r.Isolation = "remote" }, "on the rung"},
		"a weak one beyond": {func(r *glovebox.Result) { r.Isolation, r.Remote = "remote", &glovebox.RemoteRun{Isolation: "process"} }, "on the rung"},
		"no rung":           {func(r *glovebox.Result) { r.Isolation = "\x1b[2J" }, `on the rung "?[2J"`},
		"no status":         {func(r *glovebox.Result) { r.Status = "fine" }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			e, f := twoEngines(t, &drivertest.Fake{Rung: glovebox.IsolationGVisor}, demand, policy.Config{})
			f.run = func(ctx context.Context, who glovebox.Principal, req glovebox.Request, sink glovebox.Sink) (*glovebox.Result, error) {
				res, err := f.Engine.Run(ctx, who, req, sink)
				if err == nil {
					c.change(res)
				}
				return res, err
			}
			_, err := e.Run(t.Context(), owner, request, nil)
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Fatalf("%v", err)
			}
			list, err := e.Traces(t.Context(), owner, glovebox.TraceQuery{})
			if err != nil || len(list) != 1 || list[0].State != "ended" || list[0].Error == nil {
				t.Errorf("%+v, %v", list, err)
			}
		})
	}
}

// TestRemoteLosesThings: output that was not heard is fetched, what cannot be is said, and a file that is not what the other
// said is none.
func TestRemoteLosesThings(t *testing.T) {
	program := func(_ context.Context, p *drivertest.Proc) driver.Exit {
		fmt.Fprint(p.Stdout, "hello")
		p.Leave("good", []byte("good"))
		p.Leave("bad", []byte("bad"))
		return driver.Exit{}
	}
	e, f := twoEngines(t, &drivertest.Fake{Program: program}, policy.Config{}, policy.Config{})
	f.run = func(ctx context.Context, who glovebox.Principal, req glovebox.Request, _ glovebox.Sink) (*glovebox.Result, error) {
		res, err := f.Engine.Run(ctx, who, req, nil) // so that nothing is heard
		if err == nil {
			// A size below zero makes no room for another.
			res.Artifacts = append(res.Artifacts, glovebox.Artifact{Path: "../up", Bytes: 1}, res.Artifacts[1],
				glovebox.Artifact{Path: "less than nothing", Bytes: -1 << 50}, glovebox.Artifact{Path: "huge", Bytes: 1 << 50})
			res.StderrBytes = 7 // which there is not
			res.Posture["\x1b[2J"] = strings.Repeat("x", 1<<20)
			res.Reason = "\u202e"
		}
		return res, err
	}
	f.artifact = func(path string) (io.ReadCloser, error) {
		if path == "huge" {
			t.Error("a file that does not fit was fetched")
		}
		if path == "bad" {
			return io.NopCloser(strings.NewReader("BAD")), nil
		}
		return io.NopCloser(strings.NewReader("good")), nil
	}
	res, err := e.Run(t.Context(), owner, glovebox.Request{Code: "x", Trust: "model", Isolation: "remote", Collect: true}, nil)
	if err != nil || res.Stdout != "hello" {
		t.Fatalf("%+v, %v", res, err)
	}
	if !strings.Contains(res.Reason, "not all that the program printed came back") || strings.Contains(res.Reason, "\u202e") {
		t.Errorf("reason %q", res.Reason)
	}
	if len(res.Artifacts) != 1 || res.Artifacts[0].Path != "good" || len(res.Skipped) != 5 ||
		res.Skipped[4].Reason != "there is more than the limits of the run allow" {
		t.Errorf("artifacts %v, skipped %v", res.Artifacts, res.Skipped)
	}
	if len(res.Posture["?[2J"]) != maxToldWord {
		t.Errorf("posture %.300v", res.Posture)
	}
}

// TestRemoteFails: an error of the other's is told as its, with what was printed by then in the record; what cannot go there
// is refused before.
func TestRemoteFails(t *testing.T) {
	e, f := twoEngines(t, &drivertest.Fake{}, policy.Config{}, policy.Config{Limits: policy.Limits{Ceiling: glovebox.Limits{CPUs: 1}}})
	request := glovebox.Request{Code: "x", Trust: "model", Isolation: "remote", Limits: glovebox.Limits{CPUs: 2}}
	_, err := e.Run(t.Context(), owner, request, nil)
	if codeOf(err) != glovebox.CodeDenied || !strings.Contains(err.Error(), "unix:/other") || !strings.Contains(err.Error(), "ceiling") {
		t.Errorf("a lower ceiling there: %v", err)
	}
	f.run = func(_ context.Context, _ glovebox.Principal, _ glovebox.Request, sink glovebox.Sink) (*glovebox.Result, error) {
		sink.Event(glovebox.Event{Kind: "start", Run: "run_x"})
		sink.Event(glovebox.Event{Kind: "stdout", Data: []byte("last words")})
		return nil, glovebox.Errorf(glovebox.CodeInternal, "look\x1b[2J", "the server did not answer to its end\x1b[2J")
	}
	_, err = e.Run(t.Context(), owner, request, nil)
	if codeOf(err) != glovebox.CodeInternal || !strings.Contains(err.Error(), "the server did not answer to its end?[2J") ||
		strings.Contains(err.(*glovebox.Error).Fix, "\x1b") {
		t.Errorf("it died: %v", err)
	}
	list, err := e.Traces(t.Context(), owner, glovebox.TraceQuery{})
	if err != nil || list[0].State != "ended" || list[0].Error == nil {
		t.Fatalf("%+v, %v", list, err)
	}
	if piece, err := e.Output(t.Context(), owner, list[0].ID, "stdout", 0, 100); err != nil || string(piece) != "last words" {
		t.Errorf("%q, %v", piece, err)
	}
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "full/empty"), 0o755); err != nil {
		t.Fatal(err)
	}
	asked := f.asked.Load()
	for name, change := range map[string]func(*glovebox.Request){
		"is empty": func(r *glovebox.Request) { r.Inputs = []glovebox.Input{{Name: "a", Path: filepath.Join(dir, "full")}} },
		"more than 11MiB": func(r *glovebox.Request) {
			r.Inputs = []glovebox.Input{{Name: "a", Content: strings.Repeat("x", 12<<20)}}
		},
		"more than 4MiB":    func(r *glovebox.Request) { r.StdinFrom = io.LimitReader(zeros{}, 5<<20) },
		"have 14.0MiB":      func(r *glovebox.Request) { r.Stdin = strings.Repeat("x", 14<<20) },
		"no such file":      func(r *glovebox.Request) { r.Inputs = []glovebox.Input{{Name: "a", Path: "/nowhere/at/all"}} },
		"its reader failed": func(r *glovebox.Request) { r.StdinFrom = io.MultiReader(strings.NewReader("a"), broken{}) },
	} {
		r := request
		r.Limits.CPUs = 1
		change(&r)
		if _, err := e.Run(t.Context(), owner, r, nil); codeOf(err) != glovebox.CodeInvalid || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if f.asked.Load() != asked {
		t.Error("something was sent")
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("broken") }

// TestSlowSinkOfARemoteRun: a sink that blocks until the run has ended there hears all of it, and one that never returns is
// given up when its caller cancels.
func TestSlowSinkOfARemoteRun(t *testing.T) {
	text := strings.Repeat("line\n", 50_000)
	program := func(_ context.Context, p *drivertest.Proc) driver.Exit {
		fmt.Fprint(p.Stdout, text)
		return driver.Exit{}
	}
	e, _ := twoEngines(t, &drivertest.Fake{Program: program}, policy.Config{}, policy.Config{})
	request := glovebox.Request{Code: "x", Trust: "model", Isolation: "remote"}
	var once sync.Once
	slow := &hearing{do: func(glovebox.Event) { once.Do(func() { time.Sleep(200 * time.Millisecond) }) }}
	if res, err := e.Run(t.Context(), owner, request, slow); err != nil || !res.OK || slow.text.String() != text {
		t.Errorf("%+v, %v, heard %d bytes", res, err, slow.text.Len())
	}
	ctx, cancel := context.WithCancel(t.Context())
	let := make(chan struct{})
	defer close(let)
	stuck := &hearing{do: func(ev glovebox.Event) {
		if ev.Kind == "stdout" {
			cancel()
			<-let
		}
	}}
	if res, err := e.Run(ctx, owner, request, stuck); err != nil || res.Status != glovebox.StatusCanceled && !res.OK {
		t.Errorf("%+v, %v", res, err)
	}
}

// TestRemoteIsBounded: so many runs are there at a time, and one more is refused; one that is cancelled while the other is
// asked what it has ends as cancelled.
func TestRemoteIsBounded(t *testing.T) {
	e, f := twoEngines(t, &drivertest.Fake{}, policy.Config{}, policy.Config{})
	request := glovebox.Request{Code: "x", Trust: "model", Isolation: "remote"}
	for range maxThere {
		e.other.runs <- struct{}{}
	}
	if _, err := e.Run(t.Context(), owner, request, nil); codeOf(err) != glovebox.CodeExhausted || f.asked.Load() != 0 {
		t.Errorf("%v", err)
	}
	for range maxThere {
		<-e.other.runs
	}
	ctx, cancel := context.WithCancel(t.Context())
	e.other.until = time.Time{}
	f.rungs = func() ([]glovebox.Rung, error) { cancel(); return f.Engine.Rungs(context.Background()) }
	if res, err := e.Run(ctx, owner, request, nil); err != nil || res.Status != glovebox.StatusCanceled || f.asked.Load() != 0 {
		t.Errorf("%+v, %v", res, err)
	}
}
