package engine_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"glovebox"
	"glovebox/driver"
	"glovebox/driver/process"
	"glovebox/engine"
	"glovebox/internal/boot"
	"glovebox/internal/image"
)

// way is how the interpreters of an engine's runs are started.
type way struct {
	name string
	held bool // each in its sandbox, else as a copy of one, unless cold
	cold bool
	data bool // with more modules loaded
}

var ways = []way{{name: "cold", cold: true}, {name: "held", held: true}, {name: "copied"}, {name: "copied with data", data: true}}

// quick tells whether programs of a group are run in this way also where time is short: those that wait each in a sandbox of
// their own take long to start, and package boot's tests have most of them.
func (w way) quick(group string) bool {
	switch group {
	case "inside", "differs":
		return true
	case "python":
		return !w.held && !w.data
	}
	return !w.held || group != "sight"
}

var (
	baseModules = []string{"json", "csv", "re", "datetime", "statistics", "sqlite3", "math", "random", "collections", "itertools",
		"functools", "tempfile", "uuid", "threading", "ssl", "multiprocessing", "asyncio", "logging"}
	dataModules = []string{"numpy", "pandas", "openpyxl", "matplotlib"}
)

// warmDriver makes sandboxes whose interpreter waits, each when a run asks for it. The engine does not know.
type warmDriver struct {
	driver.Driver
	make func(context.Context, driver.Spec) (driver.HeldSandbox, error)
}

func (d warmDriver) Start(ctx context.Context, spec driver.Spec) (driver.Sandbox, error) {
	limits := spec.Limits
	spec.Limits.Memory += 64 * glovebox.MiB // so that the limits of the run are those of Resize
	s, err := d.make(ctx, spec)
	if err != nil {
		return nil, err
	}
	if err := s.Resize(limits); err != nil {
		return nil, errors.Join(err, s.Close(ctx))
	}
	return s, nil
}

// engineOf is an engine that runs programs of lang in a way.
func engineOf(t *testing.T, w way, lang string) *engine.Engine {
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
	var use driver.Driver = d
	if !w.cold {
		hold := holdOf(t, host, lang, w.data)
		make := func(ctx context.Context, spec driver.Spec) (driver.HeldSandbox, error) {
			return d.Hold(ctx, spec, hold)
		}
		if !w.held {
			template := sync.OnceValues(func() (driver.Template, error) {
				return d.Template(context.Background(), driver.Spec{ID: "template_of_test", Root: host.Root(), Limits: limitsOf(lang)}, hold)
			})
			make = func(ctx context.Context, spec driver.Spec) (driver.HeldSandbox, error) {
				tm, err := template()
				if err != nil {
					return nil, err
				}
				return tm.Fork(ctx, spec)
			}
			t.Cleanup(func() { // after the engine's
				if tm, err := template(); err == nil {
					if err := tm.Close(context.Background()); err != nil {
						t.Error(err)
					}
				}
			})
		}
		use = warmDriver{d, make}
	}
	e, err := engine.New(engine.Config{DataDir: filepath.Join(dir, "data"), Drivers: []driver.Driver{use}, Policy: lowRungs, Image: host})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return e
}

// holdOf is what is to wait for programs of lang.
func holdOf(t *testing.T, host *image.Image, lang string, data bool) driver.Hold {
	t.Helper()
	program, err := host.Interpreter(lang)
	if err != nil {
		t.Fatal(err)
	}
	name := map[string]string{"python": "main.py", "node": "main.js", "bash": "main.sh"}[lang]
	hold := driver.Hold{Lang: lang, Memory: 256 * glovebox.MiB, Command: driver.Command{
		Argv: boot.Cold(lang, program, "/code/"+name), CodeName: name, Dir: "/workspace",
		Env: []string{"HOME=/workspace", "LANG=C.UTF-8", "PATH=/usr/local/bin:/usr/bin:/bin", "TMPDIR=/tmp"}}}
	if lang == "python" {
		hold.Modules = baseModules
		if data {
			hold.Modules, hold.Memory = slices.Concat(baseModules, dataModules), 512*glovebox.MiB
		}
	}
	return hold
}

// limitsOf are those of the programs, low enough to meet them soon.
func limitsOf(code string) glovebox.Limits {
	cpu := time.Second
	if strings.Contains(code, "matplotlib") || strings.Contains(code, "pandas") { // a second is what loading them may take
		cpu = 20 * time.Second
	}
	return glovebox.Limits{Wall: 60 * time.Second, CPU: cpu, CPUs: 1, Memory: 256 * glovebox.MiB, Disk: 32 * glovebox.MiB, Files: 2000,
		OpenFiles: 200, Processes: 40, Egress: glovebox.MiB, Output: 8 * glovebox.MiB, View: 16 * glovebox.KiB}
}

// shown is all that a caller gets of a run, but for how much it used.
type shown struct {
	Out, Err  string
	Status    glovebox.Status
	Code      string
	Signal    string
	Reason    string
	Limits    []string
	Artifacts []string
	Skipped   int
}

// varies are addresses and names of threads, of which no two are the same, and how often an object is used.
var varies = regexp.MustCompile(`0x[0-9a-f]{6,}|started [0-9]+|refcount : [0-9]+`)

func show(t *testing.T, e *engine.Engine, req glovebox.Request) shown {
	t.Helper()
	var out, errs strings.Builder
	res, err := e.Run(t.Context(), tester, req, sinkFunc(func(ev glovebox.Event) {
		switch ev.Kind {
		case "stdout":
			out.Write(ev.Data)
		case "stderr":
			errs.Write(ev.Data)
		}
	}))
	if err != nil {
		return shown{Err: err.Error()}
	}
	s := shown{Out: varies.ReplaceAllString(out.String(), "VARIES"), Err: varies.ReplaceAllString(errs.String(), "VARIES"),
		Status: res.Status, Reason: res.Reason, Skipped: len(res.Skipped)}
	if res.ExitCode != nil {
		s.Code = fmt.Sprint(*res.ExitCode)
	}
	if res.Signal != nil {
		s.Signal = fmt.Sprint(*res.Signal)
	}
	for _, l := range res.LimitsHit {
		s.Limits = append(s.Limits, fmt.Sprint(l))
	}
	for _, a := range res.Artifacts {
		s.Artifacts = append(s.Artifacts, fmt.Sprintf("%s %d %s", a.Path, a.Bytes, a.SHA256))
	}
	return s
}

type sinkFunc func(glovebox.Event)

func (f sinkFunc) Event(e glovebox.Event) { f(e) }

// alike are the programs of a group of package boot's corpus.
func alike(t *testing.T, groups ...string) map[string]string {
	t.Helper()
	text, err := os.ReadFile("../internal/boot/testdata/alike.txt")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, part := range strings.Split(string(text), "\n-- ")[1:] {
		head, code, _ := strings.Cut(part, " --\n")
		if group, _, _ := strings.Cut(head, ": "); slices.Contains(groups, group) {
			found[head] = strings.TrimRight(code, "\n") + "\n"
		}
	}
	if len(found) < 10 {
		t.Fatalf("the corpus has %d programs of %v", len(found), groups)
	}
	return found
}

// TestAlike runs programs in each way and compares all that a caller gets, byte by byte.
func TestAlike(t *testing.T) {
	for _, lang := range []string{"python", "node", "bash"} {
		groups := []string{lang}
		if lang == "python" {
			groups = []string{"python", "sight", "inside", "differs"}
		}
		programs := alike(t, groups...)
		engines := map[string]*engine.Engine{}
		for _, w := range ways {
			if w.cold || w.held || lang == "python" {
				engines[w.name] = engineOf(t, w, lang)
			}
		}
		t.Run(lang, func(t *testing.T) {
			for _, name := range slices.Sorted(maps.Keys(programs)) {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					alikeOne(t, engines, lang, name, programs[name])
				})
			}
		})
	}
}

// differs are what may tell a program that its interpreter was there before it, with the reason. At least in one way each
// does.
var differs = map[string]string{
	"command line":             "the kernel shows what the waiting interpreter was started by",
	"environment at the start": "the kernel shows the environment that the waiting interpreter was started with",
	"modules there":            "they were loaded before, which is the purpose",
	"objects set aside":        "what was there before is kept from the garbage collector, which would copy it",
	"filters of warnings":      "numpy adds filters when it is loaded, and was loaded before",
	"finders of modules":       "six adds a finder when it is loaded, and was loaded before",
	"filters of system calls":  "a copy has its template's filter beneath its own",
	"signals caught":           "the C library catches one of its own from the first thread on, and matplotlib starts one when it is loaded",
	"backend before drawing":   "matplotlib has drawn before, and tells the backend that it draws with, not the one of its settings",
	"module of a name that is loaded": "a module of the program's with the name of one that was loaded before is not found, as if " +
		"the program had imported the other first",
	"called at the end": "modules that were loaded before want to be called at the end",
}

func alikeOne(t *testing.T, engines map[string]*engine.Engine, lang, name, code string) {
	group, name, _ := strings.Cut(name, ": ")
	long := os.Getenv("GLOVEBOX_TEST_LONG") == "1"
	why, mayDiffer := differs[name]
	if mayDiffer = mayDiffer && group == "differs"; group == "differs" && !mayDiffer {
		t.Fatal("no reason is given why it differs")
	}
	base := glovebox.Request{Lang: lang, Code: code, Limits: limitsOf(lang), Collect: true}
	requests := map[string]glovebox.Request{"bare": base}
	if group == "sight" || group == "differs" || lang != "python" {
		full := base
		full.Args, full.Stdin = []string{"a", "b c", "é", "-x", ""}, "one\ntwo\r\nthree"
		full.Env = map[string]string{"X": "y", "A_B": "c=d", "E": "", "TZ": "Asia/Tokyo"}
		requests["full"] = full
	}
	differ := false
	for kind, req := range requests {
		cold := show(t, engines["cold"], req)
		if cold.Status == "" {
			t.Errorf("it does not run: %s", cold.Err)
		}
		for _, w := range ways[1:] {
			e := engines[w.name]
			// Those that wait each in a sandbox would load pandas as a cold one does.
			if e == nil || w.held && strings.Contains(code, "pandas") || !long && !w.quick(group) {
				continue
			}
			got := show(t, e, req)
			if mayDiffer && got.Out != cold.Out {
				differ, got.Out = true, cold.Out
			}
			if d := cmp.Diff(cold, got); d != "" {
				t.Errorf("%s, %s (-cold +%s):\n%s", w.name, kind, w.name, d)
			}
		}
	}
	if mayDiffer && !differ {
		t.Errorf("it is in the list of differences (%s), and there is none", why)
	}
}

// TestCopiesShareNoRandomness runs one program in several copies of one interpreter: nothing that it draws is drawn twice.
func TestCopiesShareNoRandomness(t *testing.T) {
	const code = `
import asyncio, email.utils, multiprocessing as m, multiprocessing.process as p, os, random, secrets, sqlite3, ssl, tempfile, uuid
print('random', random.random(), random.Random().random())
print('uuid4', uuid.uuid4())
print('node of uuid1', uuid.getnode(), uuid.uuid1().clock_seq)
print('secrets', secrets.token_hex(8), random.SystemRandom().random(), os.urandom(8))
print('ssl', ssl.RAND_bytes(8))
print('temporary', tempfile.mktemp(), next(tempfile._get_candidate_names()))
print('authentication key', bytes(p.current_process()._config['authkey']))
print('lock', m.Lock()._semlock.name if hasattr(m.Lock()._semlock, 'name') else os.urandom(8), m.synchronize.SemLock._make_name())
print('sqlite', sqlite3.connect(':memory:').execute('select hex(randomblob(8)), random()').fetchall())
print('mail', email.utils.make_msgid(domain='x'))
random.seed()
print('seeded again', random.random())
try:
    import numpy, numpy.random as n, pandas
except ImportError:
    raise SystemExit
print('numpy', n.rand(), n.randint(1 << 62), n.RandomState().rand(), n.default_rng().random(), n.get_state()[1][:2])
print('pandas', pandas.Series(range(1 << 20)).sample(3).tolist())
`
	for _, w := range ways[2:] {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			e := engineOf(t, w, "python")
			seen := map[string]int{}
			for n := range 4 {
				s := show(t, e, glovebox.Request{Code: code, Limits: limitsOf("python")})
				if s.Code != "0" || strings.Count(s.Out, "\n") < 11 {
					t.Fatalf("it did not run: %+v", s)
				}
				for line := range strings.Lines(s.Out) {
					kind, values, _ := strings.Cut(line, " ")
					for _, value := range strings.Fields(values) {
						if _, again := seen[kind+value]; again && len(value) > 6 {
							t.Errorf("copies %d and %d both draw %s %s", seen[kind+value], n, kind, value)
						}
						seen[kind+value] = n
					}
				}
			}
		})
	}
}

// TestMemoryIsTheSame finds how much a program can have in each way: as much as a cold one, and no more, within a
// twentieth of its limit.
func TestMemoryIsTheSame(t *testing.T) {
	limits := limitsOf("python")
	for name, first := range map[string]string{"plain": "", "with pandas": "import pandas\n"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			most := map[string]int{}
			for _, w := range ways {
				if w.held && first != "" {
					continue
				}
				e := engineOf(t, w, "python")
				fits := func(percent int) bool {
					s := show(t, e, glovebox.Request{Limits: limits, Args: []string{fmt.Sprint(int(limits.Memory) / 100 * percent)},
						Code: first + "import sys\nb = b'x' * int(sys.argv[1])\nprint(len(b))\n"})
					if s.Code != "0" && s.Status != glovebox.StatusMemoryLimit {
						t.Fatalf("%s, %d %%: %+v", w.name, percent, s)
					}
					return s.Status == glovebox.StatusExited
				}
				low, high := 40, 102 // fits, does not fit
				if !fits(low) || fits(high) {
					t.Fatalf("%s: %d %% of the limit do not fit, or %d %% do", w.name, low, high)
				}
				for high-low > 1 {
					if middle := (low + high) / 2; fits(middle) {
						low = middle
					} else {
						high = middle
					}
				}
				most[w.name] = low
			}
			t.Logf("percent of the limit: %v", most)
			for way, percent := range most {
				if percent < most["cold"]-5 || percent > most["cold"]+5 {
					t.Errorf("%s: %d %% of the limit fit, and %d %% cold", way, percent, most["cold"])
				}
			}
		})
	}
}
