package bench

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"glovebox"
)

var update = flag.Bool("update", false, "rewrite golden files")

func TestPercentile(t *testing.T) {
	for _, c := range []struct {
		name    string
		n       int // values 1 to n ms
		percent int
		want    time.Duration
	}{
		{"nothing", 0, 50, 0},
		{"one", 1, 50, 1},
		{"one, high", 1, 99, 1},
		{"the lower of two", 2, 50, 1},
		{"the middle of three", 3, 50, 2},
		{"exact", 100, 95, 95},
		{"rounded up", 101, 95, 96},
		{"high of few", 20, 99, 20},
		{"high of many", 1000, 99, 990},
		{"just above a rank", 101, 1, 2},
		{"all", 7, 100, 7},
		{"none of them", 7, 0, 1},
	} {
		var values []time.Duration
		for i := range c.n {
			values = append(values, time.Duration(i+1)*time.Millisecond)
		}
		if got := percentile(values, c.percent); got != c.want*time.Millisecond {
			t.Errorf("%s: percentile %d of 1 to %d is %v, want %d ms", c.name, c.percent, c.n, got, c.want)
		}
	}
	got := spread([]time.Duration{3 * time.Millisecond, 1500 * time.Microsecond, 2 * time.Millisecond})
	if diff := cmp.Diff(Spread{P50: 2, P95: 3, P99: 3, Max: 3}, got); diff != "" {
		t.Error(diff)
	}
}

// TestWorkloads: each program prints what is computed here, on this machine's own interpreters.
func TestWorkloads(t *testing.T) {
	tried := 0
	for _, j := range workloads() {
		program := found(map[string]string{"python": "python3", "node": "node", "bash": "bash"}[j.lang])
		if program == "" || j.needs != "" && exec.Command(program, "-I", "-c", "import "+j.needs).Run() != nil {
			t.Logf("%s cannot be tried here", j.title())
			continue
		}
		tried++
		o := startCommand(t.Context(), t.TempDir(), interpreted(program, j.lang, j.code))
		if o.err != nil {
			t.Errorf("%s: %v", j.title(), o.err)
			continue
		}
		if diff := cmp.Diff(j.want, string(o.out)); diff != "" {
			t.Errorf("%s: %s", j.title(), diff)
		}
		if o.first <= 0 || o.done < o.first || o.cpu <= 0 {
			t.Errorf("%s: first byte after %v, end after %v, CPU time %v", j.title(), o.first, o.done, o.cpu)
		}
	}
	if tried == 0 {
		t.Skip("there is no interpreter")
	}
	if lines := strings.Count(csvWant(), "\n"); lines != 10 || strings.Count(pandasWant(), "\n") != 10 {
		t.Errorf("the tables have %d lines and others, want 10", lines)
	}
}

// TestFirstByte: the time to the first byte is not that to the last, and what failed says what it said.
func TestFirstByte(t *testing.T) {
	o := startCommand(t.Context(), t.TempDir(), []string{"/bin/sh", "-c", "echo 1; sleep 0.3; echo 2; echo so what >&2; exit 3"})
	if o.first <= 0 || o.done < o.first+250*time.Millisecond || string(o.out) != "1\n2\n" {
		t.Errorf("%q, first after %v, end after %v", o.out, o.first, o.done)
	}
	if o.err == nil || !strings.Contains(o.err.Error(), "exit status 3: so what") {
		t.Error(o.err)
	}
}

// TestInterrupt: a command that is interrupted is asked to end before it is killed, and is a session of its own.
func TestInterrupt(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	o := startCommand(ctx, t.TempDir(), []string{"/bin/sh", "-c",
		`trap 'echo asked; exit 0' TERM; cut -d " " -f 1,6 /proc/$$/stat; while :; do sleep 0.01; done`})
	var pid, session int
	if _, err := fmt.Sscanf(string(o.out), "%d %d\nasked\n", &pid, &session); err != nil || pid != session {
		t.Errorf("%q: %v, %v", o.out, err, o.err)
	}
}

// TestStocked: what is kept ready is counted when it is enough and grows no more.
func TestStocked(t *testing.T) {
	for name, c := range map[string]struct {
		seen []int // in each tenth of a second, then the last
		want int
		took time.Duration
	}{
		"at once":           {[]int{2}, 2, time.Second},
		"after a while":     {[]int{0, 0, 0, 1, 2}, 2, 1400 * time.Millisecond},
		"more":              {[]int{2, 2, 2, 2, 2, 3}, 3, 1500 * time.Millisecond},
		"for a moment":      {[]int{2, 1}, 0, 5 * time.Second},
		"never":             {[]int{1}, 0, 5 * time.Second},
		"there is no more":  {[]int{2, -1}, 0, 100 * time.Millisecond},
		"a rest in between": {[]int{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2}, 2, 2200 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			started := time.Now()
			f, err := stocked(t.Context(), func() (family, error) {
				n := c.seen[min(int(time.Since(started)/(100*time.Millisecond)), len(c.seen)-1)]
				if n < 0 {
					return family{}, errors.New("it has ended")
				}
				return family{spares: n}, nil
			}, 2, 5*time.Second)
			if took := time.Since(started); (err == nil) != (c.want > 0) || err == nil && f.spares != c.want || took != c.took {
				t.Errorf("%s: %d after %v, %v, want %d after %v", name, f.spares, took, err, c.want, c.took)
			}
		})
	}
}

// TestCell: what is wrong with a run is counted as what it is, and its time is not.
func TestCell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		outcomes := []outcome{
			{id: "a", out: []byte("1\n"), first: time.Millisecond, done: 2 * time.Millisecond, start: "fork"},
			{id: "b", out: []byte("2\n"), first: time.Hour, done: time.Hour, start: "fork"},
			{err: errors.New("it broke"), done: time.Hour},
			{id: "d", out: []byte("1\n"), first: 3 * time.Millisecond, done: 4 * time.Millisecond, start: "cold"},
		}
		n := 0
		s := &subject{name: "subject", rung: "rung",
			run: func(context.Context, workload) outcome { o := outcomes[n%len(outcomes)]; n++; return o },
			ended: func(_ context.Context, run string) (bool, error) {
				if run == "b" {
					return false, errors.New("there is no such record")
				}
				return run != "d", nil
			}}
		c := newCell(s, workload{name: "print", lang: "python", want: "1\n"}, 1)
		for range outcomes {
			c.once(t.Context())
		}
		row := c.finish(t.Context())
		want := Row{Workload: "print", Lang: "python", Subject: "subject", Rung: "rung", Callers: 1, Runs: 4, Failed: 1, Wrong: 1,
			Lost: 2, FirstFailure: `printed "2\n", want "1\n"`, First: Spread{1, 3, 3, 3}, Done: Spread{2, 4, 4, 4}, CPUMS: new(0.0),
			Starts: map[string]int{"fork": 2, "cold": 1}}
		if diff := cmp.Diff(want, row); diff != "" {
			t.Error(diff)
		}
	})
}

// TestHang: a run that does not end is a failure, and not the end of the measurement.
func TestHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell(&subject{run: func(ctx context.Context, _ workload) outcome {
			<-ctx.Done()
			return outcome{}
		}}, workload{}, 1)
		started := time.Now()
		c.once(t.Context())
		if took := time.Since(started); took != mostOne || c.row.Failed != 1 || c.row.FirstFailure != errTooLong.Error() {
			t.Errorf("after %v: %+v", took, c.row)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if c.once(ctx); c.row.Runs != 1 {
			t.Error("an interrupted run was counted")
		}
	})
}

// TestFlood: all callers ask all the time, and go on until there were enough runs.
func TestFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// A bubble's clock does not go on while somebody waits for a lock, so that the answers are counted by the cell.
		s := &subject{run: func(ctx context.Context, _ workload) outcome {
			wait(ctx, 100*time.Millisecond)
			return outcome{first: 1, done: 100 * time.Millisecond}
		}}
		for _, c := range []struct {
			long        time.Duration
			least, want int
			took, until time.Duration
		}{
			{time.Second, 0, 50, time.Second, time.Hour},
			{time.Second, 52, 55, 1100 * time.Millisecond, time.Hour}, // each caller that found too few begun begins one more
			{time.Second, 520, 60, 1200 * time.Millisecond, 1150 * time.Millisecond},
			{time.Second, 0, 50, time.Second, time.Millisecond},
		} {
			cell := newCell(s, workload{}, 5)
			started := time.Now()
			cell.until = started.Add(c.until)
			cell.flood(t.Context(), c.long, c.least)
			if took := time.Since(started); took != c.took || cell.row.Runs < c.want-3 || cell.row.Runs > c.want {
				t.Errorf("%v, at least %d: %d runs in %v, want %d in %v", c.long, c.least, cell.row.Runs, took, c.want, c.took)
			}
		}
	})
}

func TestCheck(t *testing.T) {
	good := Default(true)
	for name, c := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"a workload":    {func(c *Config) { c.Workloads = []string{"print", "prnt"} }, `there is no workload "prnt"`},
		"no rounds":     {func(c *Config) { c.Rounds = 0 }, "0 rounds cannot be measured"},
		"no callers":    {func(c *Config) { c.Callers = nil }, "no number of callers is given"},
		"zero callers":  {func(c *Config) { c.Callers = []int{1, 0} }, "0 callers at a time cannot be measured"},
		"many callers":  {func(c *Config) { c.Callers = []int{5000} }, "5000 callers at a time cannot be measured"},
		"too long":      {func(c *Config) { c.Seconds = 61 }, "61 seconds cannot be measured"},
		"not a number":  {func(c *Config) { c.Seconds -= c.Seconds / 0.0 * 0 }, "NaN seconds cannot be measured"},
		"what is right": {func(*Config) {}, ""},
	} {
		cfg := good
		cfg.Callers = slices.Clone(good.Callers)
		c.change(&cfg)
		err := cfg.check()
		var e *glovebox.Error
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.want != "" && (!errors.As(err, &e) || e.Public != c.want || e.Fix == "" || e.Code != glovebox.CodeInvalid):
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
}

func TestHigherRungs(t *testing.T) {
	control := func(rung glovebox.Isolation, required, available bool) glovebox.Control {
		return glovebox.Control{Isolation: rung, Required: required, Available: available}
	}
	got := higherRungs([]glovebox.Control{
		control("microvm", true, true), control("microvm", false, false), // what it lacks it can do without
		control("process", true, true),
		control("gvisor", true, true), control("gvisor", true, true),
		control("remote", true, false), control("remote", true, true),
	})
	if diff := cmp.Diff([]glovebox.Isolation{"gvisor", "microvm"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestBars(t *testing.T) {
	r := sample()
	r.Growth = nil // a report of growth has no bars
	got := map[string]string{}
	for _, b := range bars(r) {
		verdict := "not measured"
		if b.Measured != nil {
			verdict = fmt.Sprintf("%.4g %v", *b.Measured, b.Pass)
		}
		got[b.What] = verdict
	}
	want := map[string]string{
		"warm print: first byte, by the whole time of the bare interpreter":                   "0.15 true",
		"warm print: end, by the same":                                                        "0.36 false",
		"warm print in a row: first byte, by the whole time of the bare interpreter in a row": "0.125 false",
		"warm print in a row: end, by the same":                                               "0.375 false",
		"warm pandas: end, by the same":                                                       "not measured",
		"cold print, the whole command: end, by bubblewrap":                                   "1.3 true",
		"print, 10 callers: runs per second, by bubblewrap":                                   "2 true",
		"pandas, 10 callers: runs per second, by bubblewrap":                                  "not measured",
		"print, 50 callers, 2000 runs: 99th percentile, by the median":                        "5 true",
		"the same: runs that failed, were wrong or were lost":                                 "1 false",
		"memory of a spare with pandas loaded":                                                "12.5 false",
		"memory of the server with 100 live runs":                                             "80 true",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, b := range bars(r) {
		if b.Info != strings.Contains(b.What, "in a row") {
			t.Errorf("%s: for information is %v", b.What, b.Info)
		}
	}
	// No run came out right of any subject, of those that are compared with, or of those that are: there are no times.
	for _, ours := range []bool{true, false} {
		for _, theirs := range []bool{true, false} {
			r := sample()
			r.Growth, r.Memory = nil, nil
			for i, row := range r.Rows {
				if side(row) == "ours" && !ours || side(row) == "theirs" && !theirs {
					r.Rows[i].First, r.Rows[i].Done, r.Rows[i].PerSecond = Spread{}, Spread{}, 0
				}
			}
			for _, b := range bars(r) {
				if !(ours && theirs) && strings.Contains(b.What, ", by ") && !strings.HasSuffix(b.What, "by the median") && b.Measured != nil {
					t.Errorf("ours %v, theirs %v: measured: %+v", ours, theirs, b)
				}
			}
		}
	}
	for _, b := range bars(&Report{}) {
		if b.Measured != nil || b.Pass {
			t.Errorf("%s: measured in a report of nothing: %+v", b.What, b)
		}
	}
}

// sample is a report with a bit of everything.
func sample() *Report {
	row := func(subject, workload string, callers int, first, done, rate float64) Row {
		rung := "process"
		if subject == bareName {
			rung = "none"
		}
		return Row{Workload: workload, Lang: "python", Subject: subject, Rung: rung, Callers: callers, Runs: 40,
			First: Spread{first, first * 2, first * 3, first * 4}, Done: Spread{done, done * 2, done * 5, done * 6},
			PerSecond: rate, CPUMS: new(done / 2)}
	}
	r := &Report{
		Machine: Machine{CPU: "A <CPU> & more", CPUs: 2, MemoryBytes: 24 << 30, Kernel: "Linux 6.1", Distro: "Some \x1b[2J 12",
			Load: "0.10 0.20 0.30"},
		TookMS: 12345.6,
		Rows: []Row{
			row(bareName, "print", 1, 10, 12.5, 0), row(bwrapName, "print", 1, 15, 20, 0), row(coldName, "print", 1, 22, 26, 0),
			row(warmName, "print", 1, 1.875, 4.5, 0), row(bareName, "pandas", 1, 300, 350, 0),
			row(bwrapName, "print", 10, 90, 100, 95), row(warmName, "print", 10, 40, 50, 190),
			row(warmName, "print", floodCallers, 150, 200, 220),
		},
		Memory: &Memory{Server: new(int64(30 << 20)), SparesFew: 3, FewBytes: 90 << 20, SparesMany: 13, ManyBytes: 215 << 20,
			Spare: new(int64(25 << 19)), Live: 100, ServerLive: new(int64(80 << 20)), SandboxLive: new(int64(9 << 20))},
		Notes: []string{"runsc: left out, it is not installed", "evil: \x1b]0;x\a\u202e"},
	}
	for _, inARow := range []Row{row(bareName, "print", 1, 6, 8, 0), row(warmName, "print", 1, 1, 3, 0)} {
		inARow.InARow = true
		r.Rows = slices.Insert(r.Rows, 0, inARow) // whoever looks for the others must not be content with these
	}
	r.Rows[5].Starts = map[string]int{"fork": 39, "cold": 1}
	last := &r.Rows[len(r.Rows)-1]
	last.Runs, last.Lost, last.FirstFailure, last.CPUMS, last.MachineCPUMS = 2000, 1, "no\nrecord", nil, new(7.25)
	g := Growth{Of: "live sandboxes"}
	for n := 1.0; n <= 1000; n *= 10 {
		g.add("start", "ms", n, 20+n/100)
		g.add("memory of each", "MiB", n, 9)
		if n > 1 {
			g.add("a short run", "ms", n, n)
		}
	}
	r.Bars = bars(r)
	r.Growth = []Growth{g}
	return r
}

// TestGolden compares what is shown with files, which -update rewrites.
func TestGolden(t *testing.T) {
	r := sample()
	for name, write := range map[string]func(*strings.Builder) error{
		"report.md.golden":  func(b *strings.Builder) error { return r.Text(b) },
		"report.svg.golden": func(b *strings.Builder) error { return r.SVG(b) },
	} {
		var b strings.Builder
		if err := write(&b); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join("testdata", name)
		if *update {
			if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), b.String()); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if strings.ContainsAny(b.String(), "\x1b\a\u202e") {
			t.Errorf("%s: what others wrote could act on a terminal", name)
		}
	}
}

func TestReportOK(t *testing.T) {
	for _, row := range []Row{{Failed: 1}, {Wrong: 1}, {Lost: 1}} {
		if r := (Report{Rows: []Row{{Runs: 1}, row}}); r.OK() {
			t.Errorf("%+v is fine", row)
		}
	}
	if r := (Report{Rows: []Row{{Runs: 1}}}); !r.OK() {
		t.Error("a report of what went well is not fine")
	}
}

// TestBusyMachine: a report of a machine that had other work says so.
func TestBusyMachine(t *testing.T) {
	for load, busy := range map[string]bool{
		"2.01 0.00 0.00": true, "14.5 9 9": true, "2.00 9.00 9.00": false, "0.10 0.20 0.30": false, "": false,
	} {
		r := &Report{Machine: Machine{CPUs: 2, Load: load}}
		var b strings.Builder
		if err := r.Text(&b); err != nil {
			t.Fatal(err)
		}
		if said := strings.Contains(b.String(), "These numbers say little"); said != busy {
			t.Errorf("load %q: said %v", load, said)
		}
	}
}
