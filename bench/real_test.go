package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"glovebox"
	"glovebox/client"
	"glovebox/driver"
	"glovebox/driver/process"
	"glovebox/engine"
	"glovebox/policy"
)

// real is a configuration of a measurement of what is built here. It skips for an ordinary user, and fails where root was
// promised.
func real(t *testing.T) Config {
	t.Helper()
	switch {
	case os.Getuid() == 0:
	case os.Getenv("GLOVEBOX_TEST_ROOT") == "1":
		t.Fatal("root was promised")
	default:
		t.Skip("needs root")
	}
	dir, err := os.MkdirTemp("", "glovebox-bench-test-") // the ids of a sandbox must reach it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	// As the Makefile has it, so that what it compiled serves here too.
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", dir+"/", "glovebox/cmd/...")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	cfg := Default(true)
	cfg.Program, cfg.Dir = filepath.Join(dir, "glovebox"), dir
	cfg.Who = glovebox.Principal{Tenant: "local", Name: "test", Owner: true}
	cfg.Engine = func(config string) (glovebox.Service, error) {
		text, err := os.ReadFile(config)
		if err != nil {
			return nil, err
		}
		var keys struct {
			DataDir string `json:"data_dir"`
		}
		if err := json.Unmarshal(text, &keys); err != nil {
			return nil, err
		}
		d, err := process.New(process.Config{Init: filepath.Join(dir, "glovebox-init"), ScratchDir: keys.DataDir + "/scratch"})
		if err != nil {
			return nil, err
		}
		lowest := map[glovebox.Trust]glovebox.Isolation{"influenced": "process"}
		return engine.New(engine.Config{DataDir: keys.DataDir, Drivers: []driver.Driver{d}, Policy: policy.Config{TrustRungs: lowest}})
	}
	// What says nothing of itself is measured on the rung that is built here.
	cfg.Settings = map[string]any{"policy": map[string]any{"trust": map[string]any{"influenced": "process"}}}
	cfg.Client = func(socket string) (glovebox.Service, error) { return client.New(client.Config{Socket: socket}), nil }
	cfg.Rounds, cfg.Callers, cfg.Seconds, cfg.Workloads = 2, []int{1, 3}, 0.2, []string{"print"}
	cfg.flood, cfg.live = 20, 3
	return cfg
}

// TestReal measures on this machine, with what is built here.
func TestReal(t *testing.T) {
	cfg := real(t)
	t.Run("everything", func(t *testing.T) { testEverything(t, cfg) })
	t.Run("spares", func(t *testing.T) { testSpares(t, cfg) })
	t.Run("refusals", func(t *testing.T) { testRefusals(t, cfg) })
	t.Run("CPU time", func(t *testing.T) { testMeters(t, cfg) })
	t.Run("cancel", func(t *testing.T) { testCancel(t, cfg) })
}

// testEverything measures a little of everything.
func testEverything(t *testing.T, cfg Config) {
	r, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if !r.OK() {
		t.Errorf("runs failed: %+v", r.Rows)
	}
	for _, name := range []string{bareName, coldName, coldName + defaults, engineName, warmName, warmName + defaults} {
		row := r.row(name, "print", 1)
		if row == nil {
			t.Errorf("%s was not measured: %q", name, r.Notes)
			continue
		}
		if row.Runs != 2 || row.First.P50 <= 0 || row.Done.P50 < row.First.P50 ||
			(row.CPUMS == nil) != strings.HasPrefix(name, warmName) {
			t.Errorf("%s: %+v", name, *row)
		}
	}
	for _, name := range []string{bareName, warmName} {
		row := r.find(name, "print", 1, true)
		if row == nil || row.Runs < 3 || row.Done.P50 < row.First.P50 || row.PerSecond <= 0 {
			t.Errorf("%s was not measured in a row: %+v, %q", name, row, r.Notes)
		}
	}
	cold := r.row(coldName, "print", 3)
	if cold == nil || cold.Runs < 3 || cold.PerSecond <= 0 || cold.Callers != 3 {
		t.Errorf("%s with three callers: %+v, %q", coldName, cold, r.Notes)
	}
	if row := r.row(engineName, "print", 1); row != nil && row.Starts["cold"] != row.Runs {
		t.Errorf("%s: %+v", engineName, row.Starts)
	}
	warm := r.row(warmName, "print", 3)
	if warm == nil || warm.Runs < 3 || warm.Starts["fork"] == 0 || warm.CPUMS == nil || *warm.CPUMS <= 0 {
		t.Errorf("%s with three callers: %+v, %q", warmName, warm, r.Notes)
	}
	if m := r.Memory; m == nil || m.Live != 3 || m.ServerLive == nil || *m.ServerLive < 1<<20 || m.SandboxLive == nil ||
		*m.SandboxLive < 1<<18 {
		t.Errorf("memory: %+v, %q", r.Memory, r.Notes)
	}
	left, err := filepath.Glob(filepath.Join(cfg.Dir, "glovebox-bench-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("it left %q (%v)", left, err)
	}
	if left, _ := filepath.Glob(fmt.Sprintf("/sys/fs/cgroup/*/glovebox-bench-%d", os.Getpid())); len(left) > 0 {
		t.Errorf("it left %q", left)
	}
}

// testSpares: what one more spare takes is measured, and is the pages that it wrote, not all that pandas has loaded.
func testSpares(t *testing.T, cfg Config) {
	b := &bench{cfg: cfg, dir: t.TempDir(), until: time.Now().Add(time.Minute), report: &Report{}}
	b.cfg.Workloads = []string{"pandas"}
	if err := os.Chmod(b.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.close(); err != nil {
			t.Error(err)
		}
	}()
	switch err := b.prepare(t.Context()); {
	case err != nil && len(b.report.Notes) > 0:
		t.Skip(b.report.Notes) // there is no pandas
	case err != nil:
		t.Fatal(err)
	}
	m := &Memory{}
	if err := b.spares(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if m.Spare == nil || *m.Spare < 1<<20 || *m.Spare > 30<<20 || m.SparesFew != fewSpares || m.SparesMany < fewSpares+moreSpares || m.Server == nil {
		t.Errorf("%+v", *m)
	}
	for _, s := range b.servers {
		if s.process != nil {
			t.Error("the server goes on beside all that is measured next")
		}
	}
}

// testMeters: what a program uses is counted, by every way to count it.
func testMeters(t *testing.T, cfg Config) {
	var err error
	if cfg.Settings, err = ownGroup(cfg.Settings); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := removeGroup(); err != nil {
			t.Error(err)
		}
	}()
	b := &bench{cfg: cfg, dir: t.TempDir(), until: time.Now().Add(time.Minute), report: &Report{}}
	if err := os.Chmod(b.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.close(); err != nil {
			t.Error(err)
		}
	}()
	if err := b.prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := b.addServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	// A program that begins another, which does the work and is waited for.
	work := workload{name: "print", lang: "python", want: "1\n", code: `import os, time
if os.fork() == 0:
    while time.process_time() < 0.5: pass
    os._exit(0)
os.wait()
print(1)
`}
	for _, s := range b.subjects {
		c := newCell(s, work, 1)
		if err := c.metering(t.Context(), func() { c.once(t.Context()) }); err != nil {
			t.Error(err)
		}
		switch row := c.finish(t.Context()); {
		case row.FirstFailure != "":
			t.Errorf("%s: %s", s.name, row.FirstFailure)
		case s.unmetered && row.CPUMS != nil:
			t.Errorf("%s: %v ms, and it does not wait for what it starts", s.name, *row.CPUMS)
		case !s.unmetered && (row.CPUMS == nil || *row.CPUMS < 490 || *row.CPUMS > 2000):
			t.Errorf("%s: 500 ms of work cost %s ms", s.name, optional(row.CPUMS))
		}
	}
}

// testRefusals: a trace is filled with as many real records as were asked for.
func testRefusals(t *testing.T, cfg Config) {
	b := &bench{cfg: cfg, dir: t.TempDir(), until: time.Now().Add(time.Minute), report: &Report{}}
	if err := os.Chmod(b.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.close(); err != nil {
			t.Error(err)
		}
	}()
	config, err := b.configuration("refusals", nil)
	if err != nil {
		t.Fatal(err)
	}
	svc, err := b.cfg.Engine(config)
	if err != nil {
		t.Fatal(err)
	}
	defer svc.Close()
	n, err := b.refusals(t.Context(), svc, 100, b.until)
	if err != nil || n != 100 {
		t.Errorf("%d refusals: %v", n, err)
	}
	records, err := svc.Traces(t.Context(), b.cfg.Who, glovebox.TraceQuery{Limit: 1000})
	if err != nil || len(records) != 100 {
		t.Errorf("%d records: %v", len(records), err)
	}
	if v, err := svc.Verify(t.Context(), b.cfg.Who, nil); err != nil || !v.OK {
		t.Errorf("the trace does not hold: %+v %v", v, err)
	}
	if n, err := b.refusals(t.Context(), svc, 10, time.Now()); n != 0 || err != nil {
		t.Errorf("%d refusals when there was no time for one: %v", n, err)
	}
}

// testCancel: a measurement that is interrupted leaves nothing.
func testCancel(t *testing.T, cfg Config) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	cfg.Progress = func(what string) {
		if strings.Contains(what, "rounds") {
			cancel(cause)
		}
	}
	if r, err := Run(ctx, cfg); !errors.Is(err, cause) || r != nil || err.Error() != cause.Error() {
		t.Errorf("%v %v, want %v alone", r, err, cause)
	}
	left, err := filepath.Glob(filepath.Join(cfg.Dir, "glovebox-bench-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("it left %q (%v)", left, err)
	}
}

// TestServeFails: a server that ends or never listens is told of with what it said.
func TestServeFails(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "glovebox")
	if err := os.WriteFile(program, []byte("#!/bin/sh\necho 'why: no luck' >&2\nexit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	b := &bench{cfg: Config{Program: program}, dir: dir, report: &Report{}}
	_, err := b.serve(t.Context(), nil)
	if err == nil || !strings.Contains(err.Error(), "exit status 3: why: no luck") {
		t.Error(err)
	}
	if err := b.close(); err != nil {
		t.Error(err)
	}
}

// TestStop: what does not end when it is asked to is killed, and that is told.
func TestStop(t *testing.T) {
	for script, want := range map[string]string{
		"trap '' TERM; echo up >&2; while :; do sleep 0.01; done": "had not ended 50ms after it was asked to",
		"echo up >&2; exec sleep 60":                              "",
		"echo up >&2":                                             "",
	} {
		p, err := startCompanion([]string{"/bin/sh", "-c", script})
		if err != nil {
			t.Fatal(err)
		}
		wait(t.Context(), 100*time.Millisecond) // it has set its trap
		err = p.stop(50 * time.Millisecond)
		if got := ""; err != nil {
			if got = err.Error(); want == "" || !strings.Contains(got, want) {
				t.Errorf("%s: %s", script, got)
			}
		} else if want != "" {
			t.Errorf("%s: no error", script)
		}
		if !isDone(p.ended) {
			t.Errorf("%s: it lives", script)
		}
	}
	if _, err := startCompanion([]string{"/nonexistent"}); err == nil {
		t.Error("there is no such program, and it was started")
	}
}
