package main

import (
	"encoding/json"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"glovebox"
)

func TestExitCodes(t *testing.T) {
	for _, c := range []struct {
		code string
		want int
	}{
		{"exit 0", 0}, {"exit 7", 7}, {"exit 255", 255},
		{"signal SIGSEGV", 139}, {"signal SIGKILL", 137}, {"signal SIG40", 168},
		{"status wall_limit", 124}, {"status cpu_limit", 124}, {"status memory_limit", 137},
		{"status process_limit", 122}, {"status output_limit", 122}, {"status disk_limit", 122},
		{"status policy", 122}, {"status budget", 122}, {"status canceled", 130}, {"status nonsense", 125},
		{"lost program", 0}, {"lost caller", 130}, {"lost glovebox", 125}, {"exit 7\nlost glovebox", 125},
		{"lost caller\nlost glovebox", 125}, {"status canceled\nlost glovebox", 130}, {"status wall_limit\nlost caller", 130},
		{"fail invalid", 125}, {"fail denied", 126}, {"fail unavailable", 126}, {"fail exhausted", 125},
		{"fail not_found", 125}, {"fail conflict", 125}, {"fail internal", 125},
	} {
		for _, with := range [][]string{nil, {"--json"}} {
			tl := newTool(t)
			got, _, _ := tl.run(append([]string{"run", "-c", c.code}, with...)...)
			if got != c.want {
				t.Errorf("%s %v: exit code %d, want %d", c.code, with, got, c.want)
			}
			if tl.closed != 1 {
				t.Errorf("%s: closed %d times", c.code, tl.closed)
			}
		}
	}
}

func TestJSONIsAloneOnStdout(t *testing.T) {
	tl := newTool(t)
	for _, c := range []struct {
		name string
		args []string
		key  string
	}{
		{"result", []string{"run", "--json", "-c", "stdout hello\nstderr there\nreason it broke\nskip x"}, "id"},
		{"failure", []string{"run", "--json", "-c", "fail internal"}, "error"},
		{"refusal", []string{"run", "--json", "--trust", "hostile", "-c", "1"}, "error"},
		{"unknown flag", []string{"run", "--json", "--wal", "1s"}, "error"},
		{"before the flag", []string{"run", "--wall", "1", "--json"}, "error"},
		{"unknown verb", []string{"rnu", "--json"}, "error"},
		{"not built", []string{"serve", "--json"}, "error"},
		{"version", []string{"version", "--json"}, "version"},
		{"doctor", []string{"doctor", "--json"}, "ready"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, out, errs := tl.run(c.args...)
			var all map[string]any
			if err := json.Unmarshal([]byte(out), &all); err != nil || strings.Count(out, "\n") != 1 {
				t.Fatalf("stdout is not one line of JSON: %q: %v", out, err)
			}
			if _, ok := all[c.key]; !ok || errs != "" {
				t.Errorf("no %s in %s, or stderr is not empty: %q", c.key, out, errs)
			}
			if shown, ok := all["error"].(map[string]any); ok {
				for _, k := range []string{"code", "message", "fix"} {
					if shown[k] == "" || shown[k] == nil {
						t.Errorf("the error has no %s: %s", k, out)
					}
				}
			}
		})
	}
}

func TestJSONAfterTheDashesIsTheProgram(t *testing.T) {
	tl := newTool(t)
	if _, out, _ := tl.run("run", "-c", "stdout plain", "--", "--json"); out != "plain" {
		t.Errorf("got %q", out)
	}
}

func TestStreamsAreExactInPipes(t *testing.T) {
	tl := newTool(t)
	exit, out, errs := tl.run("run", "-c", `stdout a\e[31mb\n`+"\n"+`stderr c\e]0;t`)
	if exit != 0 || out != "a\x1b[31mb\n" || errs != "c\x1b]0;t" {
		t.Errorf("%d %q %q", exit, out, errs)
	}
}

// TestReasonBeginsALine: what is said after a program's unfinished line does not read as if the program had said it.
func TestReasonBeginsALine(t *testing.T) {
	tl := newTool(t)
	both, err := os.Create("both")
	if err != nil {
		t.Fatal(err)
	}
	defer both.Close()
	tl.app.out, tl.app.errs = both, both
	tl.run("run", "-c", "stdout half\nstatus wall_limit\nreason too slow")
	if b, _ := os.ReadFile("both"); string(b) != "half\nglovebox: too slow\n" {
		t.Errorf("%q", b)
	}
	tl.app.out, tl.app.errs = &tl.out, &tl.errs
	_, out, errs := tl.run("run", "-c", "stdout half\nstatus wall_limit\nreason too slow")
	if out != "half" || errs != "glovebox: too slow\n" {
		t.Errorf("streams of their own: %q %q", out, errs)
	}
}

func TestReasonsAndErrors(t *testing.T) {
	tl := newTool(t)
	_, out, errs := tl.run("run", "-c", "status wall_limit\nreason too slow\nskip a/link")
	if out != "" || errs != "glovebox: too slow\nglovebox: not kept: a/link: a link\n" {
		t.Errorf("%q %q", out, errs)
	}
	_, _, errs = tl.run("run", "-c", `stderr glovebox: no such program\n`+"\nexit 127\nreason the program could not be started: no")
	if errs != "glovebox: no such program\n" {
		t.Errorf("told twice: %q", errs)
	}
	_, out, errs = tl.run("run", "-c", "fail internal")
	want := "glovebox run: failed (internal)\nwhy: it failed: multiple Read calls return no data or error\nfix: mend it\n"
	if out != "" || errs != want {
		t.Errorf("%q %q", out, errs)
	}
}

// TestLog: what the engine logs is seen on standard error, inert, and never on standard output.
func TestLog(t *testing.T) {
	for _, with := range [][]string{nil, {"--json"}} {
		tl := newTool(t)
		exit, out, errs := tl.run(append([]string{"run", "-c", "log a \x1b[2J\u202eb\u0007"}, with...)...)
		if exit != 0 || strings.Contains(out, "level=") || strings.Count(out, "\n") != len(with) {
			t.Errorf("%v: exit code %d, stdout %q", with, exit, out)
		}
		if strings.Count(errs, "\n") != 1 || !strings.Contains(errs, "level=ERROR") || strings.ContainsAny(errs, "\x1b\u202e\a") {
			t.Errorf("%v: stderr %q", with, errs)
		}
	}
}

// TestRequest checks that every flag arrives in the request.
func TestRequest(t *testing.T) {
	tl := newTool(t)
	tl.write(t, "main.mjs", "request")
	tl.write(t, "data.csv", "x")
	wd, _ := os.Getwd()
	exit, _, errs := tl.run("run", "main.mjs", "--trust", "model", "--isolation", "process", "--input", "data.csv",
		"--input", "data.csv:in/b.csv", "--env", "A=b=c", "--env", "E=", "--wall", "1.5s", "--cpu", "1m", "--cpus", "0.5",
		"--memory", "1GiB", "--disk", "10MB", "--files", "100", "--open-files", "50", "--processes", "7",
		"--egress-limit", "1KiB", "--output-limit", "2KiB", "--view-limit", "3KiB", "--image", "host", "--output", "out",
		"--quiet", "--raw", "--local", "--", "-x", "--json")
	if exit != 0 {
		t.Fatal(errs)
	}
	want := glovebox.Request{
		Lang: "node", Code: "request", CodeName: "main.mjs", Args: []string{"-x", "--json"}, Trust: "model",
		Isolation: "process", Image: "host", Env: map[string]string{"A": "b=c", "E": ""}, Collect: true,
		Inputs: []glovebox.Input{{Name: "data.csv", Path: filepath.Join(wd, "data.csv")},
			{Name: "in/b.csv", Path: filepath.Join(wd, "data.csv")}},
		Limits: glovebox.Limits{Wall: 1500 * time.Millisecond, CPU: time.Minute, CPUs: 0.5, Memory: glovebox.GiB, Disk: 1e7,
			Files: 100, OpenFiles: 50, Processes: 7, Egress: glovebox.KiB, Output: 2 * glovebox.KiB, View: 3 * glovebox.KiB},
	}
	if diff := cmp.Diff(want, tl.request); diff != "" {
		t.Error(diff)
	}
}

func TestExecTakesEverythingAfterTheProgram(t *testing.T) {
	tl := newTool(t)
	for _, args := range [][]string{
		{"exec", "--wall", "2s", "--", "stdout", "--wall", "-c"}, {"exec", "--wall", "2s", "stdout", "--wall", "-c"},
	} {
		if exit, _, errs := tl.run(args...); exit != 0 {
			t.Fatal(errs)
		}
		want := glovebox.Request{Argv: []string{"stdout", "--wall", "-c"}, Limits: glovebox.Limits{Wall: 2 * time.Second}}
		if diff := cmp.Diff(want, tl.request); diff != "" {
			t.Error(diff)
		}
	}
}

func TestCodeFromStdin(t *testing.T) {
	tl := newTool(t)
	tl.app.in = strings.NewReader("stdout from stdin")
	if exit, out, errs := tl.run("run", "-"); exit != 0 || out != "from stdin" {
		t.Error(exit, out, errs)
	}
}

func TestStdin(t *testing.T) {
	tl := newTool(t)
	tl.write(t, "in.txt", "from a file")
	tl.app.in = strings.NewReader("the caller's own")
	for args, want := range map[string]string{"": "", "--stdin in.txt": "from a file", "--stdin -": "the caller's own"} {
		if _, out, errs := tl.run(append([]string{"run", "-c", "stdin"}, strings.Fields(args)...)...); out != want {
			t.Errorf("%q: got %q %q, want %q", args, out, errs, want)
		}
	}
	if err := syscall.Mkfifo("fifo", 0o600); err != nil {
		t.Fatal(err)
	}
	go os.WriteFile("fifo", []byte("late"), 0)
	if _, out, errs := tl.run("run", "-c", "stdin", "--stdin", "fifo"); out != "late" {
		t.Errorf("%q %q", out, errs)
	}
}

func TestOutputFolder(t *testing.T) {
	tl := newTool(t)
	exit, _, errs := tl.run("run", "-c", "artifact a/b.txt\nartifact c", "--output", "new/deep")
	if b, err := os.ReadFile("new/deep/a/b.txt"); exit != 0 || err != nil || string(b) != "content of a/b.txt" {
		t.Fatalf("%d %q %q %v", exit, errs, b, err)
	}
	if exit, _, errs = tl.run("run", "-c", "artifact c", "--output", "new/deep"); exit != 125 || tl.closed != 1 {
		t.Errorf("a folder that holds files was used, or looked at after the run: %d %q", exit, errs)
	}
	tl.write(t, "elsewhere", "untouched")
	os.Remove("new/deep/c")
	if err := os.Symlink("../../elsewhere", "new/deep/c"); err != nil {
		t.Fatal(err)
	}
	if exit, _, errs = tl.run("run", "-c", "artifact c", "--output", "new/deep", "--overwrite"); exit != 0 {
		t.Errorf("%d %q", exit, errs)
	}
	if b, _ := os.ReadFile("elsewhere"); string(b) != "untouched" {
		t.Errorf("written through a link: %q", b)
	}
	if b, _ := os.ReadFile("new/deep/c"); string(b) != "content of c" {
		t.Errorf("not replaced: %q", b)
	}
	tl.run("run", "-c", "1", "--trust", "hostile", "--output", "refused")
	if _, err := os.Stat("refused"); err == nil {
		t.Error("a refused run left a folder")
	}
	if exit, _, errs = tl.run("run", "-c", "artifact broken", "--output", "half"); exit != 125 {
		t.Errorf("%d %q", exit, errs)
	}
}

func TestSignalsCancel(t *testing.T) {
	// The second of each may come when nothing of the run catches it any more, and must not end the tests.
	late := make(chan os.Signal, 1)
	signal.Notify(late, endings...)
	defer signal.Stop(late)
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		tl := newTool(t)
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		tl.app.out = w
		var sent sync.WaitGroup
		sent.Go(func() {
			r.Read(make([]byte, 100)) // what it prints before it waits
			syscall.Kill(os.Getpid(), sig)
			syscall.Kill(os.Getpid(), sig)
		})
		if exit, _, errs := tl.run("run", "-c", "wait"); exit != 130 || tl.closed != 1 {
			t.Errorf("%v: exit code %d, closed %d times: %q", sig, exit, tl.closed, errs)
		}
		sent.Wait()
	}
}

// TestSignalsEndTheCopy interrupts within a file that has no end: what was copied stays, and the run is told of as it was.
func TestSignalsEndTheCopy(t *testing.T) {
	tl := newTool(t)
	exit, _, errs := tl.run("run", "-c", "artifact a\nartifact endless\nartifact b", "--output", "out")
	if exit != 130 || tl.closed != 1 || !strings.Contains(errs, "1 of 3 outputs were copied") {
		t.Errorf("%d %q", exit, errs)
	}
	if names, err := os.ReadDir("out"); err != nil || len(names) != 1 || names[0].Name() != "a" {
		t.Errorf("left: %v %v", names, err)
	}
	tl.records = []glovebox.Record{{ID: "run_1", Result: &glovebox.Result{ID: "run_1", Artifacts: []glovebox.Artifact{{Path: "endless"}}}}}
	if exit, _, errs := tl.run("trace", "show", "run_1", "--output", "got"); exit != 130 || !strings.Contains(errs, "0 of 1 outputs") {
		t.Errorf("%d %q", exit, errs)
	}
}

func TestNobodyReads(t *testing.T) {
	tl := newTool(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	tl.app.out = w
	go func() {
		r.Read(make([]byte, 100))
		r.Close()
	}()
	exit, _, errs := tl.run("run", "-c", "flood")
	if exit != 130 || !strings.Contains(errs, "nobody reads standard output") {
		t.Errorf("%d %q", exit, errs)
	}
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	tl.app.out = full
	for _, args := range [][]string{{"run", "-c", "flood"}, {"run", "--json", "-c", "exit 0"}} {
		exit, _, errs := tl.run(args...)
		if exit != 125 || !strings.Contains(errs, "no space left") || !strings.Contains(errs, "run_1") {
			t.Errorf("%d %q", exit, errs)
		}
	}
}

// TestNobodyReadsOtherVerbs: a closed pipe is a quiet end; a full disk is none.
func TestNobodyReadsOtherVerbs(t *testing.T) {
	for _, args := range [][]string{
		{"trace", "ls"}, {"trace", "ls", "--json"}, {"trace", "show", "run_2"}, {"trace", "show", "run_2", "--json"},
		{"doctor"}, {"doctor", "--json"}, {"version"}, {"version", "--json"}, {"--help"}, {"run", "--help"},
	} {
		tl := newTool(t)
		tl.records = []glovebox.Record{hostile()}
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		r.Close()
		tl.app.out = w
		if exit, _, errs := tl.run(args...); exit != 0 || errs != "" {
			t.Errorf("%v: %d %q", args, exit, errs)
		}
		w.Close()
	}
	tl := newTool(t)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	tl.app.out = full
	if exit, _, errs := tl.run("trace", "ls"); exit != 125 || !strings.Contains(errs, "no space left") {
		t.Errorf("%d %q", exit, errs)
	}
}

func TestServers(t *testing.T) {
	tl := newTool(t)
	exit, _, errs := tl.run("run", "--server", "http://x", "-c", "1")
	if exit != 126 || !strings.Contains(errs, "--server with http is not") {
		t.Error(exit, errs)
	}
	tl.env["GLOVEBOX_SERVER"] = "http://x"
	if exit, _, errs := tl.run("run", "-c", "1"); exit != 126 || !strings.Contains(errs, "GLOVEBOX_SERVER with http is not") {
		t.Error(exit, errs)
	}
	if exit, _, errs := tl.run("run", "--local", "-c", "1"); exit != 0 {
		t.Error(exit, errs)
	}
	tl.env["GLOVEBOX_SERVER"] = ""
	tl.write(t, "bad.yaml", "memory_bugdet: 1GiB\n")
	for file, says := range map[string]string{
		"missing.yaml": "there is no configuration", "bad.yaml": "did you mean memory_budget", "": "no server answers",
	} {
		args := []string{"trace", "ls", "--server", "unix:/nowhere/sock"}
		if file != "" {
			args = append(args, "--config", filepath.Join(tl.env["HOME"], file))
		}
		if exit, _, errs := tl.run(args...); exit == 0 || !strings.Contains(errs, says) {
			t.Errorf("%s: %d %s", file, exit, errs)
		}
		tl.app.config = ""
	}
}
