package main

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"
	"unicode"

	"glovebox"
)

// inert fails if text holds anything that a terminal acts on or that hides.
func inert(t *testing.T, text string) {
	t.Helper()
	for i, r := range text {
		if r != '\n' && !unicode.IsPrint(r) {
			t.Fatalf("%U at byte %d of:\n%q", r, i, text)
		}
	}
}

func TestTraceIsInert(t *testing.T) {
	tl := newTool(t)
	tl.records = []glovebox.Record{hostile()}
	for _, args := range [][]string{{"trace", "ls"}, {"trace", "ls", "--json"}, {"trace", "show", "run_2"},
		{"trace", "show", "--json", "run_2"}} {
		exit, out, errs := tl.run(args...)
		if exit != 0 || errs != "" {
			t.Fatal(args, exit, errs)
		}
		inert(t, out)
		for l := range strings.Lines(out) {
			if strings.HasPrefix(l, "fix:") {
				t.Errorf("%v: text of a program passes for a line of ours: %q", args, l)
			}
		}
	}
}

func TestTraceJSONKeepsTheText(t *testing.T) {
	tl := newTool(t)
	tl.records = []glovebox.Record{hostile()}
	_, out, _ := tl.run("trace", "show", "--json", "run_2")
	var got glovebox.Record
	if err := json.Unmarshal([]byte(out), &got); err != nil || got.Code != hostile().Code {
		t.Errorf("%v: %q", err, string(got.Code))
	}
	_, out, _ = tl.run("trace", "ls", "--json")
	var all []glovebox.Record
	if err := json.Unmarshal([]byte(out), &all); err != nil || len(all) != 1 {
		t.Errorf("%v: %s", err, out)
	}
	tl.records = nil
	if _, out, _ := tl.run("trace", "ls", "--json"); out != "[]\n" {
		t.Errorf("%q", out)
	}
}

func TestTraceVerifies(t *testing.T) {
	tl := newTool(t)
	tl.verification = glovebox.Verification{OK: true, Records: 4, Head: glovebox.TraceRef{Seq: 4, Hash: "ab.cd"}, Heads: 2,
		Erased: [][2]int64{{1, 2}}, Found: 1}
	exit, out, errs := tl.run("trace", "verify", "--head", "2:ab.cd", "--head", " 3:ef\n .gh ")
	if exit != 0 || errs != "" || !strings.Contains(out, "\nall of it holds\n") || !strings.Contains(out, "erased: records 1 to 2") ||
		!strings.Contains(out, "found: 1 records") || !strings.Contains(out, "head: 4:ab.cd") {
		t.Errorf("%d %q %q", exit, out, errs)
	}
	if len(tl.heads) != 2 || tl.heads[0] != (glovebox.TraceRef{Seq: 2, Hash: "ab.cd"}) || tl.heads[1] != (glovebox.TraceRef{Seq: 3, Hash: "ef.gh"}) {
		t.Errorf("heads %v", tl.heads)
	}
	evil := *hostile().Result.Signal
	tl.verification = glovebox.Verification{More: 7, Problems: []glovebox.TraceProblem{{Seq: 3, Run: evil, Kind: "changed", Text: evil}}}
	exit, out, _ = tl.run("trace", "verify")
	if inert(t, out); exit != 1 || !strings.HasPrefix(out, "first: record 3, ") || !strings.Contains(out, "and 7 more") ||
		!strings.HasSuffix(out, "\nit does not hold\n") {
		t.Errorf("%d %q", exit, out)
	}
	exit, out, _ = tl.run("trace", "verify", "--json")
	var v glovebox.Verification
	if err := json.Unmarshal([]byte(out), &v); err != nil || exit != 1 || v.OK || v.Problems[0].Seq != 3 {
		t.Errorf("%d %v %q", exit, err, out)
	}
	inert(t, out)
}

func TestTraceExports(t *testing.T) {
	tl := newTool(t)
	for i := range 2*exportTogether + 1 {
		r := hostile()
		r.ID = fmt.Sprint("run_", i)
		tl.records = append(tl.records, r)
	}
	for _, c := range []struct {
		args string
		want int
	}{{"", 2*exportTogether + 1}, {"--limit 3", 3}, {"--limit 50", 50}, {"--limit 51", 51}, {"--limit 1000", 101}, {"--before run_99", 1}} {
		exit, out, errs := tl.run(append([]string{"trace", "export"}, strings.Fields(c.args)...)...)
		if inert(t, out); exit != 0 || errs != "" || strings.Count(out, "\n") != c.want {
			t.Errorf("%s: %d, %d lines, %q", c.args, exit, strings.Count(out, "\n"), errs)
		}
		n := 0
		for l := range strings.Lines(out) {
			var r glovebox.Record
			if err := json.Unmarshal([]byte(l), &r); err != nil || r.Code != hostile().Code || c.args == "" && r.ID != fmt.Sprint("run_", n) {
				t.Errorf("line %d: %v %.200q", n, err, l)
			}
			n++
		}
	}
	tl.run("trace", "export", "--since", "2026-01-02T03:04:05Z", "--until", "7d", "--status", "exited")
	if q := tl.query; !q.Since.Equal(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)) || time.Since(q.Until) < 7*24*time.Hour ||
		time.Since(q.Until) > 8*24*time.Hour || q.Status != "exited" {
		t.Errorf("query %+v", q)
	}
}

func TestErasedIsSaid(t *testing.T) {
	tl := newTool(t)
	tl.records = []glovebox.Record{{ID: "run_1", State: "ended", Lang: "python", Erased: time.Unix(1e9, 0)}}
	if _, out, _ := tl.run("trace", "ls"); !strings.Contains(out, "(erased)") {
		t.Errorf("%q", out)
	}
	if _, out, _ := tl.run("trace", "show", "run_1"); !strings.Contains(out, "erased:") || !strings.Contains(out, "by retention on 2001-09-09") {
		t.Errorf("%q", out)
	}
	if _, out, _ := tl.run("trace", "export"); !strings.Contains(out, `"erased":"2001-09-09T`) {
		t.Errorf("%q", out)
	}
}

func TestTraceRefusals(t *testing.T) {
	tl := newTool(t)
	for args, says := range map[string]string{
		"trace":                           "trace show ID",
		"trace lst":                       "did you mean `glovebox trace ls`?",
		"trace verify x":                  "takes no arguments",
		"trace verify --head 5":           "is no tree head",
		"trace verify --head :x":          "is no tree head",
		"trace verify --head -1:x":        "is no tree head",
		"trace verify --heads 1:x":        "did you mean --head?",
		"trace export --all":              "there is no flag --all",
		"trace export --limit 0":          "out of range",
		"trace export --since soon":       "--since \"soon\" is no time",
		"trace export --since -5h":        "is no time",
		"trace export --until 0001-01-01": "is no time",
		"trace ls --since=":               "--since is empty",
		"trace show":                      "takes one id",
		"trace show a b":                  "takes one id",
		"trace show run_9":                "there is no run",
		"trace ls x":                      "takes no arguments",
		"trace ls --limit 0":              "out of range",
		"trace ls --limit 1001":           "out of range",
		"trace ls --status wal_limit":     "did you mean wall_limit?",
		"trace ls --status refused":       "of a run that ended is one of exited, signaled,",
		"trace ls --status=exited:1":      "\"exited:1\" is no status",
	} {
		exit, out, errs := tl.run(strings.Fields(args)...)
		if exit == 0 || out != "" || !strings.Contains(errs, says) {
			t.Errorf("%s: %d %q %q", args, exit, out, errs)
		}
	}
}

// TestTraceFetches: what --output of run could not take is still to be had.
func TestTraceFetches(t *testing.T) {
	tl := newTool(t)
	tl.records = []glovebox.Record{
		{ID: "run_1", Result: &glovebox.Result{ID: "run_1", Artifacts: []glovebox.Artifact{{Path: "a/b"}}}}, {ID: "run_2"},
	}
	if exit, _, errs := tl.run("trace", "show", "run_1", "--output", "got"); exit != 0 {
		t.Fatalf("%d %q", exit, errs)
	}
	if b, err := os.ReadFile("got/a/b"); err != nil || string(b) != "content of a/b" {
		t.Errorf("%q, %v", b, err)
	}
	if exit, _, errs := tl.run("trace", "show", "run_1", "--output", "got"); exit != 125 || !strings.Contains(errs, "conflict") {
		t.Errorf("%d %q", exit, errs)
	}
	if exit, _, errs := tl.run("trace", "show", "run_1", "--output", "got", "--overwrite"); exit != 0 {
		t.Errorf("%d %q", exit, errs)
	}
	if exit, _, errs := tl.run("trace", "show", "run_2", "--output", "none"); exit != 125 || !strings.Contains(errs, "no outputs") {
		t.Errorf("%d %q", exit, errs)
	}
}

// TestCompleteRuns offers the ids of runs, and nothing of what ran acts on the terminal.
func TestCompleteRuns(t *testing.T) {
	tl := newTool(t)
	tl.records = []glovebox.Record{hostile(), {ID: "run_9", Lang: "python", Code: "print(1)"}}
	exit, out, _ := tl.run("__complete", "trace", "show", "")
	if exit != 0 || !strings.Contains(out, "\nrun_9\tpython: print(1)\n") || tl.closed != 1 {
		t.Errorf("%d %q", exit, out)
	}
	inert(t, strings.ReplaceAll(out, "\t", " "))
	if exit, out, _ = tl.run("__complete", "trace", "show", "run_9", ""); exit != 0 || strings.Contains(out, "run_") {
		t.Errorf("a second id is offered: %d %q", exit, out)
	}
}

// TestSharedOutputFolder: of two runs that fill one folder the second learns how to get what it made.
func TestSharedOutputFolder(t *testing.T) {
	tl := newTool(t)
	open := tl.app.open
	tl.app.open = func(s settings, log *slog.Logger) (glovebox.Service, error) {
		tl.write(t, "shared/x", "of the other run")
		return open(s, log)
	}
	exit, _, errs := tl.run("run", "-c", "artifact x", "--output", "shared")
	if exit != 125 || !strings.Contains(errs, "conflict") || !strings.Contains(errs, "glovebox trace show run_1 --output DIR") {
		t.Errorf("%d %q", exit, errs)
	}
}

func TestDoctor(t *testing.T) {
	tl := newTool(t)
	exit, out, errs := tl.run("doctor")
	if exit != 0 || errs != "" || !strings.Contains(out, "landlock  ok") || strings.Contains(out, "mend") {
		t.Errorf("%d %q %q", exit, out, errs)
	}
	tl.ready = false
	exit, out, _ = tl.run("doctor")
	if exit != 126 || !strings.Contains(out, "MISSING") || !strings.Contains(out, "fix process landlock: mend landlock") {
		t.Errorf("%d %q", exit, out)
	}
}

// TestDoctorSaysAFixOnce: what mends several controls is not to be read several times.
func TestDoctorSaysAFixOnce(t *testing.T) {
	tl := newTool(t)
	var controls []glovebox.Control
	for _, name := range []string{"one", "two", "three"} {
		controls = append(controls, glovebox.Control{Isolation: "process", Name: name, Required: true, Fix: "mend it all"})
	}
	tl.app.showReport(&glovebox.Report{Controls: controls})
	if out := tl.out.String(); strings.Count(out, "mend it all") != 1 || strings.Count(out, "the same as for one") != 2 {
		t.Errorf("%q", out)
	}
}

func TestSignalNumber(t *testing.T) {
	for name, want := range map[string]int{"SIGHUP": 1, "SIGSEGV": 11, "SIG64": 64, "SIG65": 0, "": 0, "x": 0, "SIG": 0} {
		if got := signalNumber(name); got != want {
			t.Errorf("%q: %d, want %d", name, got, want)
		}
	}
}

func BenchmarkVersion(b *testing.B) {
	for b.Loop() {
		var out strings.Builder
		a := &app{out: &out, errs: &out, getenv: func(string) string { return "" }}
		if a.main([]string{"version"}) != 0 {
			b.Fatal(out.String())
		}
	}
}
