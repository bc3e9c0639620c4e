package engine_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"glovebox"
	"glovebox/driver"
	"glovebox/driver/process"
	"glovebox/engine"
	"glovebox/internal/image"
	"glovebox/policy"
)

// lowRungs lets requests that say nothing of themselves have the rung that these tests make.
var lowRungs = policy.Config{TrustRungs: map[glovebox.Trust]glovebox.Isolation{"influenced": "process", "hostile": "gvisor"}}

var tester = glovebox.Principal{Tenant: "local", Name: "tester", Owner: true}

// initDir is where buildInit put it, for TestMain to remove.
var initDir string

// buildInit makes the init of sandboxes, once for all tests.
var buildInit = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "glovebox-init-")
	if err != nil {
		return "", err
	}
	initDir = dir
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", err
	}
	path := filepath.Join(dir, "glovebox-init")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, "glovebox/cmd/glovebox-init")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build glovebox-init: %w: %s", err, out)
	}
	return path, nil
})

func TestMain(m *testing.M) {
	if fields := strings.SplitN(os.Getenv(crowdEnv), " ", 3); len(fields) == 3 {
		if err := crowd(fields[0], fields[1], fields[2]); err != nil {
			fmt.Println("failed:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	code := m.Run()
	if initDir != "" {
		os.RemoveAll(initDir)
	}
	os.Exit(code)
}

// needRoot skips without root, unless the run promised it.
func needRoot(t testing.TB) {
	t.Helper()
	switch {
	case os.Getuid() == 0:
	case os.Getenv("GLOVEBOX_TEST_ROOT") == "1":
		t.Fatal("root was promised")
	default:
		t.Skip("needs root")
	}
}

// realEngine makes an engine on the process rung. It skips for an ordinary user, and fails where root was promised.
func realEngine(t testing.TB) *engine.Engine {
	t.Helper()
	return realEngineWith(t, engine.Pool{})
}

func realEngineWith(t testing.TB, pool engine.Pool) *engine.Engine {
	t.Helper()
	needRoot(t)
	init, err := buildInit()
	if err != nil {
		t.Fatal(err)
	}
	host, err := image.Host(image.Config{})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	d, err := process.New(process.Config{Init: init, ScratchDir: filepath.Join(dir, "scratch")})
	if err != nil {
		t.Fatal(err)
	}
	e, err := engine.New(engine.Config{DataDir: filepath.Join(dir, "data"), Drivers: []driver.Driver{d}, Policy: lowRungs, Image: host,
		Pool: pool})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if left, _ := os.ReadDir(filepath.Join(dir, "data", "runs")); len(left) > 0 {
			t.Errorf("folders left: %v", left)
		}
	})
	return e
}

// statusCase is a program that must end in one way.
type statusCase struct {
	req    glovebox.Request
	want   glovebox.Status
	code   int // -1: none
	stdout string
	hit    string
}

var statusCases = map[string]statusCase{
	"hello": {glovebox.Request{Code: "print('hello')"}, glovebox.StatusExited, 0, "hello\n", ""},
	"exit code": {glovebox.Request{Code: "import sys; print('x', end=''); sys.exit(7)"},
		glovebox.StatusExited, 7, "x", ""},
	"exit 124 by itself": {glovebox.Request{Lang: "bash", Code: "exit 124"}, glovebox.StatusExited, 124, "", ""},
	"stdin": {glovebox.Request{Lang: "bash", Code: "cat", Stdin: "from outside"},
		glovebox.StatusExited, 0, "from outside", ""},
	"stdin not read": {glovebox.Request{Lang: "bash", Code: "echo on", Stdin: strings.Repeat("x", 1<<20)},
		glovebox.StatusExited, 0, "on\n", ""},
	"argv": {glovebox.Request{Argv: []string{"echo", "a b", "$HOME"}},
		glovebox.StatusExited, 0, "a b $HOME\n", ""},
	"missing":     {glovebox.Request{Argv: []string{"no-such-program"}}, glovebox.StatusExited, 127, "", ""},
	"own SIGKILL": {glovebox.Request{Lang: "bash", Code: "kill -9 $$"}, glovebox.StatusSignaled, -1, "", ""},
	"own SIGXCPU": {glovebox.Request{Lang: "bash", Code: "kill -XCPU $$"}, glovebox.StatusSignaled, -1, "", ""},
	"segfault":    {glovebox.Request{Lang: "bash", Code: "kill -SEGV $$"}, glovebox.StatusSignaled, -1, "", ""},
	"a child outlives it": {glovebox.Request{Lang: "bash", Code: "sleep 60 & disown; echo left"},
		glovebox.StatusExited, 0, "left\n", ""},
	"wall": {glovebox.Request{Lang: "bash", Code: "echo before; sleep 60",
		Limits: glovebox.Limits{Wall: 300 * time.Millisecond}},
		glovebox.StatusWallLimit, -1, "before\n", "wall"},
	"wall, printed by python": {glovebox.Request{Code: "import time; print('seen'); time.sleep(60)",
		Limits: glovebox.Limits{Wall: time.Second}}, glovebox.StatusWallLimit, -1, "seen\n", "wall"},
	"cpu": {glovebox.Request{Lang: "bash", Code: "while :; do :; done", Limits: glovebox.Limits{CPU: 300 * time.Millisecond}},
		glovebox.StatusCPULimit, -1, "", "cpu"},
	"memory": {glovebox.Request{Code: "b = []\nwhile True: b.append(bytearray(1 << 20))",
		Limits: glovebox.Limits{Memory: 64 * glovebox.MiB, Disk: glovebox.MiB}}, glovebox.StatusMemoryLimit, -1, "", "memory"},
	"output": {glovebox.Request{Lang: "bash", Code: "yes", Limits: glovebox.Limits{Output: 10000, View: 256}},
		glovebox.StatusOutputLimit, -1, "*", "output"},
	"disk": {glovebox.Request{Lang: "bash", Code: "head -c 9000000 /dev/zero > big",
		Limits: glovebox.Limits{Disk: glovebox.MiB}}, glovebox.StatusDiskLimit, 1, "", "disk"},
	"disk, and it does not mind": {glovebox.Request{Lang: "bash", Code: "head -c 9000000 /dev/zero > big; exit 0",
		Limits: glovebox.Limits{Disk: glovebox.MiB}}, glovebox.StatusExited, 0, "", "disk"},
	"processes": {glovebox.Request{Code: "import os, time\nfor _ in range(50):\n" +
		"    if os.fork() == 0:\n        time.sleep(60)",
		Limits: glovebox.Limits{Processes: 10}}, glovebox.StatusProcessLimit, 1, "", "processes"},
}

// TestSandboxStatus runs small programs in real sandboxes; each must end in the one way that is true of it.
func TestSandboxStatus(t *testing.T) {
	e := realEngine(t)
	for name, tt := range statusCases {
		t.Run(name, func(t *testing.T) { tt.check(t, e) })
	}
}

// check runs the program and returns its result.
func (tt statusCase) check(t *testing.T, e *engine.Engine) *glovebox.Result {
	t.Helper()
	begun := time.Now()
	res, err := e.Run(t.Context(), tester, tt.req, nil)
	if err != nil {
		t.Fatal(err)
	}
	took := time.Since(begun)
	if res.Status != tt.want {
		t.Fatalf("status = %s (%s), want %s; stderr %s", res.Status, res.Reason, tt.want, string(res.Stderr))
	}
	switch {
	case tt.code < 0:
	case res.ExitCode == nil:
		t.Errorf("exit code = nil, want %d", tt.code)
	case *res.ExitCode != tt.code:
		t.Errorf("exit code = %d, want %d", *res.ExitCode, tt.code)
	}
	if tt.stdout != "*" && string(res.Stdout) != tt.stdout {
		t.Errorf("stdout = %q, want %q", string(res.Stdout), tt.stdout)
	}
	if got := strings.Join(res.LimitsHit, " "); got != tt.hit {
		t.Errorf("limits hit = %q, want %q", got, tt.hit)
	}
	if plain := tt.want == glovebox.StatusExited && tt.code != 127; plain != (res.Reason == "") {
		t.Errorf("reason = %q", res.Reason)
	}
	if took > 10*time.Second {
		t.Errorf("took %v", took)
	}
	if res.Posture["rung"] != "process" || res.Usage.CPUMS == nil || res.Usage.StartMS == nil {
		t.Errorf("posture %v, usage %+v", res.Posture, res.Usage)
	}
	return res
}

func TestSandboxFiles(t *testing.T) { checkFiles(t, realEngine(t)) }

// checkFiles runs a program that reads its inputs and leaves outputs, and returns its result.
func checkFiles(t *testing.T, e *engine.Engine) *glovebox.Result {
	t.Helper()
	src := t.TempDir()
	if err := os.MkdirAll(filepath.Join(src, "folder"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(src, "folder", "a.csv"), []byte("1,2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	res, err := e.Run(t.Context(), tester, glovebox.Request{Collect: true, Lang: "bash", Args: []string{"arg one"},
		Env: map[string]string{"GREETING": "hi"},
		Inputs: []glovebox.Input{{Name: "data", Path: filepath.Join(src, "folder")}, {Name: "note.txt", Content: "note"},
			{Name: "deep/er/x", Content: "x"}},
		Code: `set -e
cat /inputs/data/a.csv /inputs/note.txt /inputs/deep/er/x
echo; echo "$GREETING $1 $PWD $(id -u)"
! touch /inputs/data/new 2>/dev/null
! sh -c 'echo x > /inputs/note.txt' 2>/dev/null
mkdir /outputs/sub; cp /inputs/data/a.csv /outputs/sub/; ln -s /etc/passwd /outputs/link
`}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !res.OK || string(res.Stdout) != "1,2\nnotex\nhi arg one /workspace 1000\n" {
		t.Fatalf("ok %v (%s): stdout %q stderr %q", res.OK, res.Reason, string(res.Stdout), string(res.Stderr))
	}
	if len(res.Artifacts) != 1 || res.Artifacts[0].Path != "sub/a.csv" || len(res.Skipped) != 1 {
		t.Fatalf("artifacts %v, skipped %v", res.Artifacts, res.Skipped)
	}
	f, err := e.Artifact(t.Context(), tester, res.ID, "sub/a.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got, err := io.ReadAll(f); string(got) != "1,2\n" {
		t.Errorf("artifact = %q (%v)", got, err)
	}
	rec, err := e.Trace(t.Context(), tester, res.ID)
	if err != nil || rec.State != "ended" || len(rec.Inputs) != 3 {
		t.Errorf("record = %+v (%v)", rec, err)
	}
	return res
}

// TestSandboxPython looks at what boot must not change, inside the real thing.
func TestSandboxPython(t *testing.T) {
	e := realEngine(t)
	res, err := e.Run(t.Context(), tester, glovebox.Request{CodeName: "report.py", Code: "import multiprocessing as m\n" +
		"def f(x): return 2 * x\n" +
		"if __name__ == '__main__':\n" +
		"    for how in ('fork', 'spawn'):\n" +
		"        with m.get_context(how).Pool(2) as p: print(how, p.map(f, [1, 2]))\n" +
		"    raise ValueError('bad')\n"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if string(res.Stdout) != "fork [2, 4]\nspawn [2, 4]\n" || *res.ExitCode != 1 {
		t.Errorf("stdout %q, code %d", string(res.Stdout), *res.ExitCode)
	}
	want := "Traceback (most recent call last):\n  File \"/code/report.py\", line 6, in <module>\n" +
		"    raise ValueError('bad')\n" +
		"ValueError: bad\n"
	if string(res.Stderr) != want {
		t.Errorf("stderr = %s, want %s", string(res.Stderr), want)
	}
	res, err = e.Run(t.Context(), tester, glovebox.Request{Code: "import no_such_module_x"}, nil)
	if err != nil || !strings.Contains(res.Reason, "no_such_module_x") {
		t.Errorf("no hint for a missing module: %+v (%v)", res, err)
	}
}

// TestSandboxCancel cancels at many instants, the first and the last included: there is a result each time and nothing is
// left.
func TestSandboxCancel(t *testing.T) {
	e := realEngine(t)
	for after := time.Duration(0); after < 40*time.Millisecond; after += time.Millisecond {
		ctx, cancel := context.WithTimeout(t.Context(), after)
		res, err := e.Run(ctx, tester, glovebox.Request{Lang: "bash", Code: "setsid sleep 60 & sleep 0.02"}, nil)
		cancel()
		if err != nil {
			t.Fatalf("after %v: %v", after, err)
		}
		if res.Status != glovebox.StatusCanceled && res.Status != glovebox.StatusExited || res.OK != (res.ExitCode != nil) {
			t.Fatalf("after %v: status %s, code %v", after, res.Status, res.ExitCode)
		}
	}
	list, err := e.Traces(t.Context(), tester, glovebox.TraceQuery{Limit: 100})
	if err != nil || len(list) != 40 {
		t.Errorf("%d records (%v)", len(list), err)
	}
	for _, rec := range list {
		if rec.State != "ended" {
			t.Errorf("%s is %s", rec.ID, rec.State)
		}
	}
}

// TestSandboxManyAtOnce runs more at once than there are processors, each getting its own answer.
func TestSandboxManyAtOnce(t *testing.T) {
	e := realEngine(t)
	var all sync.WaitGroup
	for i := range 24 {
		all.Go(func() {
			word := strings.Repeat("x", i+1)
			res, err := e.Run(t.Context(), tester, glovebox.Request{Lang: "bash", Code: "echo $1", Args: []string{word}}, nil)
			if err != nil || string(res.Stdout) != word+"\n" {
				t.Errorf("run %d: %v (%v)", i, res, err)
			}
		})
	}
	all.Wait()
}

func TestSandboxDoctor(t *testing.T) {
	r, err := realEngine(t).Doctor(t.Context())
	if err != nil || !r.Ready {
		t.Errorf("not ready on a machine that runs the tests: %+v (%v)", r, err)
	}
}

// TestSandboxStdinThatNeverComes reads from a source that blocks for ever: no timer waits for it.
func TestSandboxStdinThatNeverComes(t *testing.T) {
	e := realEngine(t)
	for program, want := range map[string]glovebox.Status{"echo on": glovebox.StatusExited, "cat": glovebox.StatusWallLimit} {
		source, end := io.Pipe()
		begun := time.Now()
		res, err := e.Run(t.Context(), tester, glovebox.Request{Lang: "bash", Code: program, StdinFrom: source,
			Limits: glovebox.Limits{Wall: 300 * time.Millisecond}}, nil)
		end.Close()
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begun); res.Status != want || took > 5*time.Second {
			t.Errorf("%s: status %s after %v, want %s", program, res.Status, took, want)
		}
	}
}
