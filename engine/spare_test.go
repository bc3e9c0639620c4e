package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"glovebox"
	"glovebox/driver"
	"glovebox/driver/drivertest"
	"glovebox/internal/lease"
)

// warmWorld is an engine with a pool, over a driver in memory.
type warmWorld struct {
	*Engine
	t    *testing.T
	fake *drivertest.Fake
	dir  string
	log  *lockedBuffer

	mu   sync.Mutex
	fail func(step string) error
}

// newWarm makes one that has Python ready. The test closes it; by then nothing may be left.
func newWarm(t *testing.T, program func(context.Context, *drivertest.Proc) driver.Exit, change func(*Config)) *warmWorld {
	t.Helper()
	w := &warmWorld{t: t, dir: t.TempDir(), log: &lockedBuffer{}}
	w.fake = &drivertest.Fake{Program: program, Dir: t.TempDir(), Fail: w.step}
	cfg := Config{DataDir: w.dir, Drivers: []driver.Driver{w.fake}, Policy: lowRungs, Image: fakeImage{packages: []string{"numpy", "pandas", "scipy"}},
		RuntimeDir: t.TempDir(), MemoryBudget: 4 * glovebox.GiB, Pool: Pool{Spares: 4, Forks: true},
		Log: slog.New(slog.NewTextHandler(w.log, nil))}
	if change != nil {
		change(&cfg)
	}
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w.Engine = e
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if left, orphans := w.fake.Live(), w.fake.Orphans(); len(left)+len(orphans) > 0 {
			t.Errorf("sandboxes left: %v; closed after their template: %v", left, orphans)
		}
		if left, _ := os.ReadDir(filepath.Join(w.dir, "runs")); len(left) > 0 {
			t.Errorf("folders left: %v", left)
		}
		taken(t, e, 0)
	})
	w.settle()
	return w
}

func (w *warmWorld) step(name string) error {
	w.mu.Lock()
	fail := w.fail
	w.mu.Unlock()
	if fail == nil {
		return nil
	}
	return fail(name)
}

func (w *warmWorld) failing(fail func(step string) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fail = fail
}

// settle waits until every kind has its spares.
func (w *warmWorld) settle() {
	w.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		st := w.PoolStats()
		if len(st.Kinds) > 0 && !slices.ContainsFunc(st.Kinds, func(k lease.KindStats) bool { return k.Ready < min(k.Target, 2) || k.Making > 0 }) {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("nothing becomes ready: %+v; log:\n%s", st, w.log.b.String())
		}
	}
}

func (w *warmWorld) run(req glovebox.Request) *glovebox.Result {
	w.t.Helper()
	res, err := w.Run(w.t.Context(), owner, req, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	return res
}

// TestStart: what is taken where, the second time that it is asked for; and what is never served by what was made before.
func TestStart(t *testing.T) {
	env := func(name string) glovebox.Request {
		return glovebox.Request{Code: "x", Env: map[string]string{name: "v"}}
	}
	limits := func(l glovebox.Limits) glovebox.Request { return glovebox.Request{Code: "x", Limits: l} }
	for name, tt := range map[string]struct {
		req  glovebox.Request
		want string
	}{
		"python":               {glovebox.Request{Code: "x"}, "fork"},
		"with all of its own":  {glovebox.Request{Lang: "python", Code: "x", Args: []string{"a", "b"}, Stdin: "s", Collect: true, Inputs: []glovebox.Input{{Name: "a", Content: "A"}}, Env: map[string]string{"KEY": "v"}}, "fork"},
		"its own name":         {glovebox.Request{Code: "x", CodeName: "main.py"}, "fork"},
		"another name":         {glovebox.Request{Code: "x", CodeName: "other.py"}, "cold"},
		"data":                 {glovebox.Request{Code: "import pandas as pd"}, "fork"},
		"bash":                 {glovebox.Request{Lang: "bash", Code: "x"}, "spare"},
		"any program":          {glovebox.Request{Argv: []string{"/usr/bin/python"}}, "cold"},
		"hostile":              {glovebox.Request{Code: "x", Trust: glovebox.TrustHostile}, "spare"},
		"read at start":        {env("OMP_NUM_THREADS"), "cold"},
		"language":             {env("LC_ALL"), "cold"},
		"loader":               {env("LD_PRELOAD"), "cold"},
		"more memory":          {limits(glovebox.Limits{Memory: glovebox.GiB}), "fork"},
		"a workspace on disk":  {limits(glovebox.Limits{Memory: 300 * glovebox.MiB, Disk: 256 * glovebox.MiB}), "cold"},
		"another workspace":    {limits(glovebox.Limits{Disk: 100 * glovebox.MiB}), "cold"},
		"files":                {limits(glovebox.Limits{Files: 100}), "cold"},
		"descriptors":          {limits(glovebox.Limits{OpenFiles: 100}), "cold"},
		"CPUs":                 {limits(glovebox.Limits{CPUs: 2}), "cold"},
		"what is only watched": {limits(glovebox.Limits{Wall: time.Second, CPU: time.Second, Output: 100, View: 300, Processes: 5}), "fork"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			strong := &drivertest.Fake{Rung: glovebox.IsolationGVisor, Dir: t.TempDir()}
			w := newWarm(t, nil, func(c *Config) { c.Drivers = append(c.Drivers, strong) })
			w.run(tt.req)
			w.settle()
			res := w.run(tt.req)
			if res.Start != tt.want || !res.OK {
				t.Errorf("start = %s (%s), want %s", res.Start, res.Status, tt.want)
			}
			if st := w.PoolStats(); tt.want == "cold" && st.Taken > 0 || strings.Contains(w.log.b.String(), "starts cold") {
				t.Errorf("a spare was taken in vain: %+v", st)
			}
			if res.Posture == nil || res.Usage.StartMS == nil {
				t.Errorf("result = %+v", res)
			}
			rec, err := w.Trace(t.Context(), owner, res.ID)
			if err != nil || rec.State != "ended" || rec.Result.Start != tt.want {
				t.Errorf("record = %+v (%v)", rec, err)
			}
		})
	}
}

// TestPoolOff: what is not configured is not there.
func TestPoolOff(t *testing.T) {
	for name, pool := range map[string]Pool{"none": {}, "fresh": {Spares: 4}} {
		t.Run("pool "+name, func(t *testing.T) {
			e, err := New(Config{DataDir: t.TempDir(), Drivers: []driver.Driver{&drivertest.Fake{}}, Policy: lowRungs, Image: fakeImage{}, RuntimeDir: t.TempDir(),
				Pool: pool})
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			starts := map[string]bool{}
			for range 50 {
				res, err := e.Run(t.Context(), owner, glovebox.Request{Code: "x"}, nil)
				if err != nil {
					t.Fatal(err)
				}
				starts[res.Start] = true
			}
			if starts["fork"] || starts["spare"] != (name == "fresh") {
				t.Errorf("starts = %v", starts)
			}
		})
	}
}

// TestTenants: what is ready for one is not for another.
func TestTenants(t *testing.T) {
	w := newWarm(t, nil, nil)
	other := glovebox.Principal{Tenant: "other", Name: "x"}
	for _, want := range []string{"cold", "fork"} {
		res, err := w.Run(t.Context(), other, glovebox.Request{Code: "x"}, nil)
		if err != nil || res.Start != want {
			t.Errorf("result %+v, error %v, want a start that is %s", res, err, want)
		}
		w.settle()
	}
	if n := len(w.fake.Templates()); n != 3 { // two of the first, for both sets of modules
		t.Errorf("%d templates", n)
	}
}

// TestModules: the text of the code says which modules are loaded before. The others cost memory.
func TestModules(t *testing.T) {
	for code, want := range map[string]bool{
		"import pandas": true, "import numpy.linalg as l\n": true, "from pandas import *": true, "print(1)": false, "": false,
		"import pandas2, my_numpy, numpyß": false, "__import__('numpy')": true, "import openpyxl": false, // the image lacks it
	} {
		w := &ready{}
		kind := w.kind(&drivertest.Fake{}, "local", "python", driver.Command{}, code, glovebox.Grant{},
			fakeImage{packages: []string{"numpy", "pandas", "scipy"}})
		if got := slices.Contains(kind.Hold.Modules, "numpy"); got != want {
			t.Errorf("%q: modules %v", code, kind.Hold.Modules)
		}
		if got := kind.Hold.Memory == dataMemory; got != want {
			t.Errorf("%q: memory %v", code, kind.Hold.Memory)
		}
	}
}

// TestNoReuse: a thousand runs have a thousand sandboxes, and each sees what is its own alone.
func TestNoReuse(t *testing.T) {
	var mu sync.Mutex
	seen := map[string]bool{}
	program := func(_ context.Context, p *drivertest.Proc) driver.Exit {
		mu.Lock()
		if seen[p.Spec.ID] {
			t.Errorf("%s ran twice", p.Spec.ID)
		}
		seen[p.Spec.ID] = true
		mu.Unlock()
		in, _ := io.ReadAll(p.Stdin)
		var names []string
		if p.Spec.Inputs != "" {
			entries, err := os.ReadDir(p.Spec.Inputs)
			if err != nil {
				t.Error(err)
			}
			for _, e := range entries {
				names = append(names, e.Name())
			}
			if info, err := os.Stat(p.Spec.Inputs); err != nil || info.Mode().Perm() != 0o555 {
				t.Errorf("the folder of inputs may be written to: %v, %v", info.Mode(), err)
			}
		}
		fmt.Fprintf(p.Stdout, "%s %s %s %v", p.Command.Code, in, p.Command.Argv[len(p.Command.Argv)-1], names)
		for _, v := range p.Command.Env {
			if strings.HasPrefix(v, "RUN") {
				fmt.Fprint(p.Stdout, " ", v)
			}
		}
		if err := p.Leave("left", in); err != nil {
			t.Error(err)
		}
		return driver.Exit{}
	}
	w := newWarm(t, program, nil)
	const runs, callers = 1000, 8
	starts := map[string]int{}
	var all sync.WaitGroup
	for caller := range callers {
		all.Go(func() {
			for i := range runs / callers {
				name := fmt.Sprintf("RUN%d_%d", caller, i)
				req := glovebox.Request{Code: name, Args: []string{name}, Stdin: name, Env: map[string]string{name: name}, Collect: true}
				want := fmt.Sprintf("%[1]s %[1]s %[1]s [] %[1]s=%[1]s", name)
				if i%2 == 0 {
					req.Inputs = []glovebox.Input{{Name: name, Content: name}}
					want = fmt.Sprintf("%[1]s %[1]s %[1]s [%[1]s] %[1]s=%[1]s", name)
				}
				res, err := w.Run(t.Context(), owner, req, nil)
				if err != nil {
					t.Error(err)
					return
				}
				if string(res.Stdout) != want || len(res.Artifacts) != 1 || res.Artifacts[0].Bytes != int64(len(name)) {
					t.Errorf("%s: %q, want %q; artifacts %v", res.Start, res.Stdout, want, res.Artifacts)
				}
				mu.Lock()
				starts[res.Start]++
				mu.Unlock()
			}
		})
	}
	all.Wait()
	if len(seen) != runs || starts["fork"] < runs/20 {
		t.Errorf("%d sandboxes for %d runs: %v", len(seen), runs, starts)
	}
	t.Logf("starts: %v; %+v", starts, w.PoolStats())
}

func TestPoolMakesSense(t *testing.T) {
	for _, p := range []Pool{{Spares: -1}, {Spares: 1, Idle: -time.Second}} {
		if e, err := New(Config{DataDir: t.TempDir(), Pool: p}); err == nil {
			e.Close()
			t.Errorf("%+v is taken", p)
		}
	}
}

// TestBadInputUsesNoSpare: what is refused for its inputs costs nobody a spare.
func TestBadInputUsesNoSpare(t *testing.T) {
	w := newWarm(t, nil, nil)
	w.run(glovebox.Request{Code: "x"})
	w.settle()
	before := w.PoolStats()
	_, err := w.Run(t.Context(), owner, glovebox.Request{Code: "x", Inputs: []glovebox.Input{{Name: "a", Path: "/nowhere/at/all"}}}, nil)
	if codeOf(err) != glovebox.CodeInvalid {
		t.Fatalf("error = %v", err)
	}
	if after := w.PoolStats(); after.Taken != before.Taken || after.Direct != before.Direct {
		t.Errorf("before %+v, after %+v", before, after)
	}
}

// TestMoveInputs: what was copied is moved as it is, closed, also by whoever is not root, whom a closed folder refuses.
func TestMoveInputs(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	if err := os.Mkdir(to, 0o755); err != nil {
		t.Fatal(err)
	}
	inputs := []glovebox.Input{{Name: "a/b/c", Content: "C"}, {Name: "d", Content: "D"}}
	if _, err := takeInputs(t.Context(), nil, owner, inputs, from); err != nil {
		t.Fatal(err)
	}
	if err := moveInputs(from, to); err != nil {
		t.Fatal(err)
	}
	var got []string
	err := filepath.WalkDir(to, func(path string, e os.DirEntry, err error) error {
		info, failed := e.Info()
		got = append(got, strings.TrimPrefix(path, to)+" "+info.Mode().String())
		return errors.Join(err, failed)
	})
	want := []string{" dr-xr-xr-x", "/a dr-xr-xr-x", "/a/b dr-xr-xr-x", "/a/b/c -r--r--r--", "/d -r--r--r--"}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
	if _, err := os.Stat(from); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the first folder is still there: %v", err)
	}
	for _, path := range []string{to, to + "/a", to + "/a/b"} { // so that they can be removed
		if err := os.Chmod(path, 0o755); err != nil {
			t.Error(err)
		}
	}
}
