package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"

	"glovebox"
	"glovebox/driver"
	"glovebox/driver/drivertest"
	"glovebox/policy"
)

// lowRungs lets requests that say nothing of themselves have the process rung, which needs least of a machine.
var lowRungs = policy.Config{TrustRungs: map[glovebox.Trust]glovebox.Isolation{"influenced": "process", "hostile": "gvisor"}}

type fakeImage struct{ packages []string }

func (fakeImage) Root() driver.Root { return driver.Root{} }
func (fakeImage) Identity() string  { return "host@pkgs:0123456789ab" }
func (fakeImage) Interpreter(lang string) (string, error) {
	if lang == "node" {
		return "", glovebox.Errorf(glovebox.CodeUnavailable, "run as root: apt-get install nodejs", "no node")
	}
	return "/usr/bin/" + lang, nil
}

func (i fakeImage) Report() glovebox.Image {
	return glovebox.Image{Name: "host", Languages: map[string]string{"python": "/usr/bin/python3 3.11"}, Packages: i.packages}
}

func (fakeImage) Env() []string { return nil }
func (fakeImage) Forks() bool   { return true }
func (i fakeImage) Modules() []string {
	return slices.DeleteFunc(slices.Clone(i.packages), func(m string) bool { return m == "scipy" })
}

var owner = glovebox.Principal{Tenant: "local", Name: "tester", Owner: true}

// newEngine makes an engine on a fake driver that the test closes.
func newEngine(t *testing.T, fake *drivertest.Fake, dir string) *Engine {
	t.Helper()
	if fake.Dir == "" {
		fake.Dir = t.TempDir()
	}
	// Locks of its own: a test does not wait for what else goes on on the machine.
	e, err := New(Config{DataDir: dir, Drivers: []driver.Driver{fake}, Policy: lowRungs, Image: fakeImage{}, RuntimeDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if left := fake.Live(); len(left) > 0 {
			t.Errorf("sandboxes left: %v", left)
		}
		if left, _ := os.ReadDir(filepath.Join(dir, "runs")); len(left) > 0 {
			t.Errorf("folders left: %v", left)
		}
	})
	return e
}

func TestRunResult(t *testing.T) {
	fake := &drivertest.Fake{Program: func(_ context.Context, p *drivertest.Proc) driver.Exit {
		in, _ := io.ReadAll(p.Stdin)
		fmt.Fprintf(p.Stdout, "got %s\n", in)
		fmt.Fprint(p.Stderr, "warn \x1b[31m\n")
		p.Leave("folder/chart.txt", []byte("chart"))
		return driver.Exit{}
	}}
	e := newEngine(t, fake, t.TempDir())
	req := glovebox.Request{Code: "print(1)", Stdin: "hello", Collect: true, Env: map[string]string{"KEY": "secret-value"}}
	res, err := e.Run(t.Context(), owner, req, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !res.OK || res.Status != glovebox.StatusExited || *res.ExitCode != 0 || res.Stdout != "got hello\n" ||
		res.Image != "host@pkgs:0123456789ab" || res.Start != "cold" || res.ServedBy != "local" || !res.Untrusted {
		t.Errorf("result = %+v", res)
	}
	if d := cmp.Diff([]string{"ansi"}, res.Flags); d != "" {
		t.Errorf("flags (-want +got):\n%s", d)
	}
	if len(res.Artifacts) != 1 || res.Artifacts[0].Path != "folder/chart.txt" {
		t.Errorf("artifacts = %v, skipped %v", res.Artifacts, res.Skipped)
	}
	shown, err := json.Marshal(res)
	if err != nil || bytes.Contains(shown, []byte("[]null")) || bytes.Contains(shown, []byte(`":null,"limits_hit"`)) {
		t.Errorf("json = %s (%v)", shown, err)
	}
	for _, list := range []string{"flags", "limits_hit", "artifacts", "skipped", "egress"} {
		if bytes.Contains(shown, []byte(`"`+list+`":null`)) {
			t.Errorf("%s is null", list)
		}
	}
	piece, err := e.Output(t.Context(), owner, res.ID, "stdout", 4, 5)
	if err != nil || string(piece) != "hello" {
		t.Errorf("output = %q (%v)", piece, err)
	}
	f, err := e.Artifact(t.Context(), owner, res.ID, "folder/chart.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got, _ := io.ReadAll(f); string(got) != "chart" {
		t.Errorf("artifact = %q", got)
	}
	rec, err := e.Trace(t.Context(), owner, res.ID)
	if err != nil || rec.State != "ended" || rec.Result == nil || rec.Result.Status != res.Status {
		t.Errorf("record = %+v (%v)", rec, err)
	}
	if raw, _ := json.Marshal(rec); bytes.Contains(raw, []byte("secret-value")) || !bytes.Contains(raw, []byte("KEY")) {
		t.Errorf("record has the value of an environment variable, or not its name: %s", raw)
	}
	other := glovebox.Principal{Tenant: "other", Name: "x"}
	if _, err := e.Trace(t.Context(), other, res.ID); codeOf(err) != glovebox.CodeNotFound {
		t.Errorf("another tenant's look: %v", err)
	}
}

func codeOf(err error) glovebox.Code {
	var e *glovebox.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

func TestRunRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		who  glovebox.Principal
		req  glovebox.Request
		want glovebox.Code
	}{
		"nobody":         {glovebox.Principal{}, glovebox.Request{Code: "x"}, glovebox.CodeDenied},
		"no program":     {owner, glovebox.Request{}, glovebox.CodeInvalid},
		"rung":           {owner, glovebox.Request{Code: "x", Trust: glovebox.TrustHostile}, glovebox.CodeUnavailable},
		"no interpreter": {owner, glovebox.Request{Code: "x", Lang: "node"}, glovebox.CodeUnavailable},
		"lost input": {owner, glovebox.Request{Code: "x", Inputs: []glovebox.Input{{Name: "a", Path: "/no/such"}}},
			glovebox.CodeInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			fake := &drivertest.Fake{}
			e := newEngine(t, fake, t.TempDir())
			_, err := e.Run(t.Context(), tt.who, tt.req, nil)
			var known *glovebox.Error
			if !errors.As(err, &known) || known.Code != tt.want || known.Fix == "" || known.Public == "" {
				t.Fatalf("error = %#v, want %v with a fix", err, tt.want)
			}
			if calls := fake.Calls(); len(calls) > 0 {
				t.Errorf("the driver was used: %v", calls)
			}
			if tt.who.Tenant == "" {
				return
			}
			recs, err := e.Traces(t.Context(), owner, glovebox.TraceQuery{})
			if err != nil || len(recs) != 1 || recs[0].State != "refused" || recs[0].Error.Code != tt.want {
				t.Errorf("records = %+v (%v), want one refusal", recs, err)
			}
		})
	}
}

// TestRunFailures fails each step in turn. Whatever fails, a start has one end, nothing is left, and the caller gets an
// Error.
func TestRunFailures(t *testing.T) {
	for _, step := range []string{"start", "exec", "sample", "kill", "disk", "open", "close"} {
		t.Run(step, func(t *testing.T) {
			fake := &drivertest.Fake{Program: func(_ context.Context, p *drivertest.Proc) driver.Exit {
				fmt.Fprintln(p.Stdout, "hello")
				return driver.Exit{}
			}}
			fake.Fail = func(s string) error {
				if s == step {
					return errors.New("broken")
				}
				return nil
			}
			e := newEngine(t, fake, t.TempDir())
			res, err := e.Run(t.Context(), owner, glovebox.Request{Code: "x", Collect: true}, nil)
			truthful := step == "open" || step == "close" // the run itself is known
			if truthful != (err == nil) || truthful != (res != nil) {
				t.Fatalf("result %v, error %v", res, err)
			}
			if !truthful && codeOf(err) != glovebox.CodeInternal {
				t.Errorf("error = %v, want internal", err)
			}
			recs, err := e.Traces(t.Context(), owner, glovebox.TraceQuery{})
			if err != nil || len(recs) != 1 || recs[0].State != "ended" || truthful != (recs[0].Error == nil) {
				t.Errorf("records = %+v (%v), want one that ended", recs, err)
			}
		})
	}
}

// TestFolderOutlivesTheSandbox: a sandbox may use the run's folder until it is closed.
func TestFolderOutlivesTheSandbox(t *testing.T) {
	dir := t.TempDir()
	fake := &drivertest.Fake{}
	fake.Fail = func(step string) error {
		if step != "close" {
			return nil
		}
		time.Sleep(50 * time.Millisecond) // in which the next step would be taken, if it did not wait
		if left, err := os.ReadDir(filepath.Join(dir, "runs")); len(left) != 1 {
			t.Errorf("folders while the sandbox is closed: %v (%v)", left, err)
		}
		return nil
	}
	e := newEngine(t, fake, dir)
	req := glovebox.Request{Code: "x", Inputs: []glovebox.Input{{Name: "in", Content: "x"}}}
	if _, err := e.Run(t.Context(), owner, req, nil); err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

// TestFolderOnlyWhenNeeded: a run makes a folder for its inputs, and for output that does not fit memory, and else none.
func TestFolderOnlyWhenNeeded(t *testing.T) {
	for name, tt := range map[string]struct {
		printed int
		inputs  []glovebox.Input
		want    int
	}{
		"nothing":      {printed: 1000},
		"inputs":       {inputs: []glovebox.Input{{Name: "in", Content: "x"}}, want: 1},
		"large output": {printed: 100_000, want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			fake := &drivertest.Fake{Program: func(_ context.Context, p *drivertest.Proc) driver.Exit {
				p.Stdout.Write(make([]byte, tt.printed))
				p.Stdout.Write([]byte("x")) // once it is taken, so is what came before
				if made, err := os.ReadDir(filepath.Join(dir, "runs")); err != nil || len(made) != tt.want {
					t.Errorf("folders = %v (%v), want %d", made, err, tt.want)
				}
				return driver.Exit{}
			}}
			e := newEngine(t, fake, dir)
			res, err := e.Run(t.Context(), owner, glovebox.Request{Code: "x", Inputs: tt.inputs}, nil)
			if err != nil || !res.OK {
				t.Fatalf("%+v, %v", res, err)
			}
			all, err := e.Output(t.Context(), owner, res.ID, "stdout", 0, 1<<20)
			if err != nil || len(all) != tt.printed+1 {
				t.Errorf("kept %d bytes (%v), want %d", len(all), err, tt.printed+1)
			}
		})
	}
}

// TestStdinThatFails: a program that saw only the beginning of its input may have ended well; its caller has to know.
func TestStdinThatFails(t *testing.T) {
	for name, tt := range map[string]struct {
		tail io.Reader
		want string
	}{
		"ends":   {strings.NewReader(""), ""},
		"errno":  {iotest.ErrReader(&os.PathError{Op: "read", Path: "/host/secret", Err: syscall.EIO}), ": input/output error"},
		"cut":    {iotest.ErrReader(io.ErrUnexpectedEOF), ": unexpected EOF"},
		"reader": {iotest.ErrReader(errors.New("\x1b[2Jmine")), ": its reader failed"},
	} {
		t.Run(name, func(t *testing.T) {
			fake := &drivertest.Fake{Program: func(_ context.Context, p *drivertest.Proc) driver.Exit {
				io.Copy(p.Stdout, p.Stdin)
				return driver.Exit{}
			}}
			e := newEngine(t, fake, t.TempDir())
			req := glovebox.Request{Code: "x", StdinFrom: io.MultiReader(strings.NewReader("begun"), tt.tail)}
			res, err := e.Run(t.Context(), owner, req, nil)
			if err != nil || res.Stdout != "begun" || !res.OK {
				t.Fatalf("result %+v, error %v", res, err)
			}
			want := ""
			if tt.want != "" {
				want = "standard input ended early" + tt.want
			}
			if res.Reason != want {
				t.Errorf("reason %q, want %q", res.Reason, want)
			}
		})
	}
}

func TestRunCancelled(t *testing.T) {
	for _, step := range []string{"", "start", "exec", "disk"} {
		t.Run("at "+step, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			fake := &drivertest.Fake{Program: hang}
			fake.Fail = func(s string) error {
				if s == step {
					cancel()
				}
				return nil
			}
			if step == "" {
				cancel()
			}
			time.AfterFunc(100*time.Millisecond, cancel)
			e := newEngine(t, fake, t.TempDir())
			res, err := e.Run(ctx, owner, glovebox.Request{Code: "x", Inputs: []glovebox.Input{{Name: "a", Content: "A"}}}, nil)
			if err != nil || res.Status != glovebox.StatusCanceled || res.OK || res.Reason == "" {
				t.Fatalf("result %+v, error %v, want canceled", res, err)
			}
			rec, err := e.Trace(t.Context(), owner, res.ID)
			if err != nil || rec.State != "ended" || rec.Result == nil || rec.Result.Status != glovebox.StatusCanceled {
				t.Errorf("record = %+v (%v)", rec, err)
			}
		})
	}
}

// TestCancelledRunKeepsItsOutputs: what it had made by then is the caller's.
func TestCancelledRunKeepsItsOutputs(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	fake := &drivertest.Fake{Program: func(ctx context.Context, p *drivertest.Proc) driver.Exit {
		p.Leave("half.txt", []byte("half"))
		cancel()
		return hang(ctx, p)
	}}
	e := newEngine(t, fake, t.TempDir())
	res, err := e.Run(ctx, owner, glovebox.Request{Code: "x", Collect: true}, nil)
	if err != nil || res.Status != glovebox.StatusCanceled {
		t.Fatalf("result %+v, error %v, want canceled", res, err)
	}
	if len(res.Artifacts) != 1 || res.Artifacts[0].Path != "half.txt" || len(res.Skipped) != 0 {
		t.Errorf("artifacts %v, skipped %v", res.Artifacts, res.Skipped)
	}
}

func TestCloseCancelsRuns(t *testing.T) {
	fake := &drivertest.Fake{Program: hang}
	e := newEngine(t, fake, t.TempDir())
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			res, err := e.Run(t.Context(), owner, glovebox.Request{Code: "x"}, nil)
			if err == nil && res.Status != glovebox.StatusCanceled || err != nil && codeOf(err) != glovebox.CodeUnavailable {
				t.Errorf("result %+v, error %v", res, err)
			}
		})
	}
	time.Sleep(30 * time.Millisecond)
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	all.Wait()
	if _, err := e.Run(t.Context(), owner, glovebox.Request{Code: "x"}, nil); codeOf(err) != glovebox.CodeUnavailable {
		t.Errorf("run after close: %v", err)
	}
}

func TestRunWithoutATrace(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	fake := &drivertest.Fake{Program: hang, Dir: t.TempDir()}
	e, err := New(Config{DataDir: dir, Drivers: []driver.Driver{fake}, Policy: lowRungs, Image: fakeImage{}, RuntimeDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if _, err := e.Run(t.Context(), owner, glovebox.Request{Code: "x"}, nil); codeOf(err) != glovebox.CodeUnavailable {
		t.Errorf("error = %v, want unavailable", err)
	}
	for _, c := range fake.Calls() {
		if c == "exec" {
			t.Error("code was released although nothing could be recorded")
		}
	}
	if r, err := e.Doctor(t.Context()); err != nil || r.Ready {
		t.Errorf("doctor = %+v (%v), want not ready", r, err)
	}
}

// TestOpenFailsWithAnError: what is wrong with the data_dir is told to callers as it is kept, so it is an Error itself.
func TestOpenFailsWithAnError(t *testing.T) {
	dir := t.TempDir()
	e := &Engine{cfg: Config{DataDir: dir}, runs: filepath.Join(dir, "no/such/folder"), opened: make(chan struct{})}
	e.open()
	_, err := e.record()
	if known, ok := err.(*glovebox.Error); !ok || known.Code != glovebox.CodeInternal || known.Err == nil {
		t.Errorf("%T: %v", err, err)
	}
}

// events collects what a sink is told.
type events struct {
	mu    sync.Mutex
	kinds []string
	out   strings.Builder
}

func (s *events) Event(e glovebox.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kinds = append(s.kinds, e.Kind)
	s.out.Write(e.Data)
}

func TestRunTellsItsSink(t *testing.T) {
	long := strings.Repeat("0123456789", 50_000)
	fake := &drivertest.Fake{Program: func(_ context.Context, p *drivertest.Proc) driver.Exit {
		io.WriteString(p.Stdout, long)
		return driver.Exit{Code: 2}
	}}
	e := newEngine(t, fake, t.TempDir())
	var sink events
	res, err := e.Run(t.Context(), owner, glovebox.Request{Argv: []string{"prog"}}, &sink)
	if err != nil || *res.ExitCode != 2 || !res.StdoutTruncated {
		t.Fatalf("result %+v, error %v", res, err)
	}
	if sink.kinds[0] != "start" || sink.out.String() != long {
		t.Errorf("told %v and %d bytes", sink.kinds[:1], sink.out.Len())
	}
	piece, err := e.Output(t.Context(), owner, res.ID, "stdout", 0, int64(len(long)))
	if err != nil || string(piece) != long {
		t.Errorf("kept %d bytes (%v), want %d", len(piece), err, len(long))
	}
}

func TestLogHoldsNothingOfTheProgram(t *testing.T) {
	var log bytes.Buffer
	fake := &drivertest.Fake{Program: func(_ context.Context, p *drivertest.Proc) driver.Exit {
		fmt.Fprintln(p.Stdout, "printed-canary")
		return driver.Exit{}
	}}
	e, err := New(Config{DataDir: t.TempDir(), Drivers: []driver.Driver{fake}, Policy: lowRungs, Image: fakeImage{}, RuntimeDir: t.TempDir(),
		Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	req := glovebox.Request{Code: "code-canary", Env: map[string]string{"K": "env-canary"}, Stdin: "stdin-canary"}
	if _, err := e.Run(t.Context(), owner, req, nil); err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if got := log.String(); strings.Contains(got, "canary") || strings.Count(got, "msg=run ") != 1 {
		t.Errorf("log:\n%s", got)
	}
}

// TestNilContext is a mistake of the caller's, told as an error by every method, and harms nothing else.
func TestNilContext(t *testing.T) {
	e := newEngine(t, &drivertest.Fake{}, t.TempDir())
	var none context.Context
	for name, use := range map[string]func() error{
		"Run":      func() error { _, err := e.Run(none, owner, glovebox.Request{Code: "x"}, nil); return err },
		"Output":   func() error { _, err := e.Output(none, owner, "run_1", "stdout", 0, 1); return err },
		"Artifact": func() error { _, err := e.Artifact(none, owner, "run_1", "a"); return err },
		"Trace":    func() error { _, err := e.Trace(none, owner, "run_1"); return err },
		"Traces":   func() error { _, err := e.Traces(none, owner, glovebox.TraceQuery{}); return err },
		"Doctor":   func() error { _, err := e.Doctor(none); return err },
	} {
		if err := use(); codeOf(err) != glovebox.CodeInvalid {
			t.Errorf("%s: %v, want invalid", name, err)
		}
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

func TestNewRefuses(t *testing.T) {
	fake := &drivertest.Fake{}
	for name, cfg := range map[string]Config{
		"no data_dir": {Image: fakeImage{}},
		"two drivers": {DataDir: t.TempDir(), Image: fakeImage{}, Drivers: []driver.Driver{fake, fake}},
		"bad policy": {DataDir: t.TempDir(), Image: fakeImage{}, Policy: policy.Config{
			TrustRungs: map[glovebox.Trust]glovebox.Isolation{"x": "y"}}},
	} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
