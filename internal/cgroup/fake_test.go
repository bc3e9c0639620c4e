package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"glovebox"

	"github.com/google/go-cmp/cmp"
)

// fake is a tree of plain files that looks like a machine's. A file system of version 2 fills new groups with files; here
// mkdir of the Host does.
type fake struct {
	*Host
	root string
}

func put(t testing.TB, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// group puts the files of a version 2 group. Those that limits are written to start empty, as a plain file keeps what a
// shorter write leaves of it.
func group(t testing.TB, dir string, leave ...string) {
	t.Helper()
	for file, text := range map[string]string{
		"cgroup.controllers": "cpuset cpu io memory pids\n", "cgroup.subtree_control": "", "cgroup.procs": "",
		"cgroup.events": "populated 0\nfrozen 0\n", "cgroup.kill": "", "cgroup.freeze": "0\n",
		"memory.max": "", "memory.swap.max": "", "memory.oom.group": "0\n", "memory.current": "1048576\n",
		"memory.peak": "2097152\n", "memory.events": "low 0\nhigh 0\nmax 3\noom 0\noom_kill 0\n",
		"pids.max": "", "pids.current": "3\n", "pids.peak": "5\n", "pids.events": "max 2\n",
		"cpu.max": "", "cpu.stat": "usage_usec 1500\nuser_usec 1000\n",
		"cpuset.cpus": "\n", "cpuset.cpus.effective": "0-3\n",
	} {
		put(t, filepath.Join(dir, file), text)
	}
	for _, file := range leave {
		if err := os.Remove(filepath.Join(dir, file)); err != nil {
			t.Fatal(err)
		}
	}
}

func newFake(t testing.TB, leave ...string) fake {
	t.Helper()
	root := t.TempDir()
	group(t, root)
	group(t, root+"/glovebox")
	h, err := detect(root, strings.NewReader("30 23 0:26 / "+root+" rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"),
		strings.NewReader("0::/user.slice/x.scope\n"))
	if err != nil {
		t.Fatal(err)
	}
	h.swaps = root + "/swaps"
	put(t, h.swaps, "Filename Type\n/dev/sda2 partition\n")
	h.mkdir = func(dir string) error {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		group(t, dir, leave...)
		return nil
	}
	return fake{h, root}
}

func (f fake) file(t *testing.T, path string) string {
	t.Helper()
	s, err := read(f.root, path)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestVersion2Limits(t *testing.T) {
	f := newFake(t)
	if f.Mode() != "v2" || f.own != "/user.slice/x.scope" {
		t.Errorf("mode %s, own group %s", f.Mode(), f.own)
	}
	g, err := limited(f.Host, "/glovebox", "run", Limits{Memory: 64 << 20, Processes: 64, CPUs: 1.5})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	got := map[string]string{}
	for _, file := range strings.Fields("memory.max memory.swap.max memory.oom.group pids.max cpu.max cpuset.cpus") {
		got[file] = f.file(t, "glovebox/run/run/"+file)
	}
	want := map[string]string{"memory.max": "67108864", "memory.swap.max": "0", "memory.oom.group": "1", "pids.max": "64",
		"cpu.max": "150000 100000", "cpuset.cpus": formatCPUs(g.cpus)}
	if d := cmp.Diff(want, got); d != "" || len(g.cpus) != 2 {
		t.Errorf("files (-want +got):\n%s", d)
	}
	for _, dir := range []string{"", "glovebox/", "glovebox/run/"} {
		if got := f.file(t, dir+"cgroup.subtree_control"); got != "+memory +pids +cpu +cpuset" {
			t.Errorf("%q hands down %q", dir, got)
		}
	}
	back, err := g.Limits()
	wantBack := map[string]string{"memory": "67108864", "swap": "0", "pids": "64", "cpu": "1.5", "cpuset": "0-3"}
	if d := cmp.Diff(wantBack, back); d != "" || err != nil {
		t.Errorf("limits (-want +got), %v:\n%s", err, d)
	}
}

func TestVersion2Sample(t *testing.T) {
	f := newFake(t)
	g, err := limited(f.Host, "/glovebox", "run", small())
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	want := Sample{CPU: 1500 * time.Microsecond, Memory: 1 << 20, MemoryPeak: 2 << 20, Processes: 3, ProcessesPeak: 5,
		ForksRefused: 2}
	for _, step := range []struct {
		name, events    string
		inside, outside int64
	}{
		{"none", "oom 0\noom_kill 0\n", 0, 0},
		{"at the own limit", "oom 2\noom_kill 3\n", 3, 0},
		{"at another limit", "oom 0\noom_kill 3\n", 0, 3},
		{"nothing said", "", -1, -1},
	} {
		put(t, f.root+"/glovebox/run/run/memory.events", step.events)
		want.OOMKills, want.OOMOutside = step.inside, step.outside
		got, err := g.Sample()
		if d := cmp.Diff(want, got); d != "" || err != nil {
			t.Errorf("%s (-want +got), %v:\n%s", step.name, err, d)
		}
	}
	put(t, f.root+"/glovebox/run/run/memory.current", "many\n")
	if _, err := g.Sample(); err == nil {
		t.Error("no error for a counter that is no number")
	}
}

func TestVersion2Missing(t *testing.T) {
	for name, c := range map[string]struct {
		leave []string
		swap  bool
		code  glovebox.Code // empty when it works
	}{
		"no swap files, no swap":    {[]string{"memory.swap.max"}, false, ""},
		"no swap files, swap":       {[]string{"memory.swap.max"}, true, glovebox.CodeUnavailable},
		"no kill":                   {[]string{"cgroup.kill"}, true, ""},
		"no peaks":                  {[]string{"memory.peak", "pids.peak"}, true, ""},
		"no group kill":             {[]string{"memory.oom.group"}, true, ""},
		"no limit of processes":     {[]string{"pids.max"}, true, glovebox.CodeUnavailable},
		"no limit of CPU":           {[]string{"cpu.max"}, true, glovebox.CodeUnavailable},
		"no limit of memory":        {[]string{"memory.max"}, true, glovebox.CodeUnavailable},
		"CPUs cannot be restricted": {[]string{"cpuset.cpus"}, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t, c.leave...)
			if !c.swap {
				put(t, f.swaps, "Filename Type\n")
			}
			g, err := limited(f.Host, "/glovebox", "run", small())
			if c.code != "" {
				var e *glovebox.Error
				if !errors.As(err, &e) || e.Code != c.code || e.Fix == "" || g != nil {
					t.Fatalf("got %v and %v, want a refusal with code %s", g, err, c.code)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer g.Close()
			kept := !strings.Contains(name, "CPUs")
			if g.ControlsCPUs() != kept || !kept && len(g.CPUs()) != 1 {
				t.Errorf("CPUs %v, controlled %v", g.CPUs(), g.ControlsCPUs())
			}
			s, err := g.Sample()
			if err != nil || strings.Contains(name, "peaks") != (s.MemoryPeak == -1 && s.ProcessesPeak == -1) {
				t.Errorf("sample %+v, %v", s, err)
			}
		})
	}
}

func TestVersion2NotHandedDown(t *testing.T) {
	f := newFake(t)
	put(t, f.root+"/cgroup.controllers", "memory pids\n")
	h, err := detect(f.root, strings.NewReader("30 23 0:26 / "+f.root+" rw - cgroup2 cgroup2 rw\n"), strings.NewReader(""))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := limited(h, "/glovebox", "run", small()); !isCode(err, glovebox.CodeUnavailable) {
		t.Errorf("without the cpu controller: %v", err)
	}
	for _, x := range h.Controls("/glovebox") {
		want := x.Name != "cpu" && x.Name != "cpuset"
		if x.Available != want || (x.Fix == "") != want || x.Detail == "" {
			t.Errorf("finding %+v", x)
		}
	}
}

// TestBounded looks for limits that a process would leave behind if it moved.
func TestBounded(t *testing.T) {
	uid := os.Geteuid()
	user := fmt.Sprintf("/user.slice/user-%d.slice", uid)
	manager := fmt.Sprintf("%s/user@%d.service", user, uid)
	for name, c := range map[string]struct {
		own, limited, file, value string
		want                      bool
	}{
		"none":                 {manager + "/app.slice/a.scope", manager + "/app.slice/a.scope", "memory.max", "max\n", false},
		"no quota":             {manager + "/app.slice/a.scope", manager + "/app.slice/a.scope", "cpu.max", "max 100000\n", false},
		"memory":               {manager + "/app.slice/a.scope", manager + "/app.slice/a.scope", "memory.max", "4096\n", true},
		"throttle":             {manager + "/app.slice/a.scope", manager + "/app.slice/a.scope", "memory.high", "0\n", true},
		"CPU":                  {user + "/session-1.scope", user + "/session-1.scope", "cpu.max", "1000 100000\n", true},
		"of the slice between": {manager + "/small.slice/a.scope", manager + "/small.slice", "memory.max", "4096\n", true},
		"of the manager":       {manager + "/app.slice/a.scope", manager, "memory.max", "4096\n", false},
		"of the user":          {user + "/session-1.scope", user, "memory.max", "4096\n", false},
		"of a service":         {"/system.slice/a.service", "/system.slice", "memory.max", "4096\n", true},
		"at the top":           {"/", "", "cpu.max", "1000 100000\n", false},
	} {
		f := newFake(t)
		f.own = c.own
		put(t, f.root+c.limited+"/"+c.file, c.value)
		if got := f.Bounded(); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestLimitRefuses(t *testing.T) {
	nan := 0.0
	nan /= nan
	for name, l := range map[string]Limits{
		"no memory":        {0, 1, 1},
		"negative memory":  {-1, 1, 1},
		"no processes":     {1 << 30, 0, 1},
		"no CPU":           {1 << 30, 1, 0},
		"CPU not a number": {1 << 30, 1, nan},
		"too many CPUs":    {1 << 30, 1, 1e18},
	} {
		f := newFake(t)
		g, err := f.New("/glovebox", "run")
		if err != nil {
			t.Fatal(err)
		}
		before := f.file(t, "glovebox/run/run/memory.max")
		if err := g.Limit(l); !isCode(err, glovebox.CodeInvalid) {
			t.Errorf("%s: %v", name, err)
		}
		if after := f.file(t, "glovebox/run/run/memory.max"); after != before {
			t.Errorf("%s: memory was limited to %s", name, after)
		}
		g.Close()
	}
}

func TestNewRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		parent, name string
	}{
		"relative parent": {"glovebox", "run"},
		"parent climbs":   {"/a/../b", "run"},
		"parent is top":   {"/", "run"},
		"name climbs":     {"/glovebox", ".."},
		"name with slash": {"/glovebox", "a/b"},
		"no name":         {"/glovebox", ""},
		"name with NUL":   {"/glovebox", "a\x00"},
	} {
		f := newFake(t)
		if _, err := f.New(c.parent, c.name); !isCode(err, glovebox.CodeInvalid) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Stat(f.root + "/glovebox/run"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: something was made: %v", name, err)
		}
	}
}

func TestDetect(t *testing.T) {
	root := t.TempDir()
	put(t, root+"/unified/cgroup.controllers", "hugetlb\n")
	const v1 = "31 23 0:27 / ROOT/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n" +
		"32 23 0:28 / ROOT/memory rw - cgroup cgroup rw,memory\n" +
		"33 23 0:29 / ROOT/freezer rw - cgroup cgroup rw,freezer\n34 23 0:30 / /elsewhere/pids rw - cgroup cgroup rw,pids\n"
	const unified = "35 23 0:31 / ROOT/unified rw - cgroup2 cgroup2 rw\n"
	for name, c := range map[string]struct {
		mounts, mode string
		hierarchies  int
	}{
		"version 1":      {v1, "v1", 3},
		"hybrid":         {v1 + unified, "hybrid", 3}, // no freezer
		"only elsewhere": {"34 23 0:30 / /elsewhere/pids rw - cgroup cgroup rw,pids\n", "", 0},
		"nothing":        {"", "", 0},
		"not a table":    {"x\n", "", 0},
	} {
		mounts := strings.NewReader(strings.ReplaceAll(c.mounts, "ROOT", root))
		h, err := detect(root, mounts, strings.NewReader("4:cpu:/a\n0::/b\n"))
		if c.mode == "" {
			if err == nil {
				t.Errorf("%s: found %+v", name, h)
			}
			continue
		}
		if c.mode == "hybrid" && os.Geteuid() != 0 {
			c.mode = "v1" // an ordinary user has no part of the version 2 tree there
		}
		if err != nil || h.Mode() != c.mode || len(h.hierarchies()) != c.hierarchies || h.own != "/b" {
			t.Errorf("%s: %v, %+v", name, err, h)
		}
	}
}

// TestDetectCounter: a hierarchy that only counts CPU time is used where nothing else does so.
func TestDetectCounter(t *testing.T) {
	const own = "30 23 0:26 / ROOT/cpuacct rw - cgroup cgroup rw,cpuacct\n31 23 0:27 / ROOT/cpu rw - cgroup cgroup rw,cpu\n"
	const shared = "31 23 0:27 / ROOT/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
	const unified = "35 23 0:31 / ROOT/unified rw - cgroup2 cgroup2 rw\n"
	for name, c := range map[string]struct {
		mounts, stat string
		used         bool
	}{
		"version 1":       {own, "usage_usec 1\n", true},
		"version 2 too":   {own + unified, "usage_usec 1\nuser_usec 1\n", false},
		"it counts less":  {own + unified, "nr_periods 1\n", true},
		"it has no file":  {own + unified, "", true},
		"it comes at all": {shared + unified, "usage_usec 1\n", true},
	} {
		root := t.TempDir()
		put(t, root+"/unified/cgroup.controllers", "")
		if c.stat != "" {
			put(t, root+"/unified/cpu.stat", c.stat)
		}
		h, err := detect(root, strings.NewReader(strings.ReplaceAll(c.mounts, "ROOT", root)), strings.NewReader(""))
		if err != nil {
			t.Fatal(err)
		}
		if os.Geteuid() != 0 {
			c.used = true // version 2 is not an ordinary user's there
		}
		if _, used := h.places["cpuacct"]; used != c.used {
			t.Errorf("%s: used %v, want %v", name, used, c.used)
		}
	}
}

func TestTakeSpreads(t *testing.T) {
	f := newFake(t)
	seen := map[string]bool{}
	for _, name := range []string{"a", "b", "c", "d"} {
		g, err := limited(f.Host, "/glovebox", name, small())
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close()
		seen[formatCPUs(g.cpus)] = true
	}
	if len(seen) != 4 {
		t.Errorf("four runs of one CPU are on %v", seen)
	}
}

// TestMoreCPUsThanAllowed is refused with how many there are, and as many as there are is not.
func TestMoreCPUsThanAllowed(t *testing.T) {
	f := newFake(t)
	l := small()
	l.CPUs = 4
	g, err := limited(f.Host, "/glovebox", "all", l)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	l.CPUs = 4.01
	var few *TooFewCPUsError
	if _, err := limited(f.Host, "/glovebox", "more", l); !errors.As(err, &few) || few.Asked != 5 || few.Allowed != 4 {
		t.Errorf("%v, want that there are 4 of 5", err)
	}
}

func TestParseCPUs(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "0\n": "0", "0-3": "0,1,2,3", "0-1,4,6-7": "0,1,4,6,7", ",": "",
		"a": "error", "3-1": "error", "-1": "error", "0-99999999999": "error", "0-65535,0-65535": "error", "1-2-3": "error",
	} {
		cpus, err := ParseCPUs(text)
		got := formatCPUs(cpus)
		if err != nil {
			got = "error"
		}
		if got != want {
			t.Errorf("%q: got %s, want %s", text, got, want)
		}
	}
}

func FuzzParseCPUs(f *testing.F) {
	f.Add("0-3,8")
	f.Fuzz(func(t *testing.T, s string) {
		cpus, err := ParseCPUs(s)
		if err == nil {
			if again, err := ParseCPUs(formatCPUs(cpus)); err != nil || !cmp.Equal(cpus, again) {
				t.Errorf("%q: %v, then %v, %v", s, cpus, again, err)
			}
		}
	})
}

func FuzzCounters(f *testing.F) {
	f.Add("oom 1\noom_kill 2\n", "oom_kill")
	f.Add("max", "max")
	f.Fuzz(func(t *testing.T, s, key string) {
		if n, ok := field(s, key); ok && n < 0 {
			t.Errorf("field %d", n)
		}
		if n, err := number(s); err == nil && n < 0 {
			t.Errorf("number %d", n)
		}
	})
}
