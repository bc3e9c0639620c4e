package process_test

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	"glovebox/internal/boot"
	"glovebox/internal/image"
)

// warm makes sandboxes whose interpreters wait.
type warm struct {
	t      testing.TB
	driver driver.Warmer
	image  *image.Image
	made   int
}

func newWarm(t testing.TB) *warm {
	t.Helper()
	im, err := image.Host(image.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return &warm{t: t, driver: newDriver(t).(driver.Warmer), image: im}
}

var codeNames = map[string]string{"python": "main.py", "node": "main.js", "bash": "main.sh"}

// hold is an interpreter that waits for its code.
func hold(t testing.TB, im *image.Image, lang string, modules ...string) driver.Hold {
	t.Helper()
	program, err := im.Interpreter(lang)
	if lang == "node" && err != nil {
		t.Skip("the image has no node: make test installs it")
	}
	if err != nil {
		t.Fatal(err)
	}
	return driver.Hold{Lang: lang, Modules: modules, Memory: 128 * glovebox.MiB, Command: driver.Command{
		Argv: boot.Cold(lang, program, "/code/"+codeNames[lang]), Dir: "/workspace", CodeName: codeNames[lang],
		Env: []string{"PATH=/usr/bin:/bin", "HOME=/workspace", "LANG=C.UTF-8", "TMPDIR=/tmp"}}}
}

func (w *warm) spec() driver.Spec {
	w.made++
	root := w.image.Root()
	return driver.Spec{ID: fmt.Sprintf("warm_%d_%d", os.Getpid(), w.made), Limits: limits(), Root: root}
}

// template starts one that is closed when the test ends.
func (w *warm) template(spec driver.Spec, h driver.Hold) driver.Template {
	w.t.Helper()
	tm, err := w.driver.Template(context.Background(), spec, h)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if err := tm.Close(context.Background()); err != nil {
			w.t.Error(err)
		}
	})
	return tm
}

// forked makes a copy that is closed when the test ends, before its template.
func (w *warm) forked(tm driver.Template, spec driver.Spec) driver.HeldSandbox {
	w.t.Helper()
	s, err := tm.Fork(context.Background(), spec)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			w.t.Error(err)
		}
	})
	return s
}

// ended is what a program printed and how it ended.
type ended struct {
	Out, Err string
	Exit     driver.Exit
}

// begin releases code to what waits in a sandbox of these limits.
func begin(t testing.TB, s driver.HeldSandbox, h driver.Hold, l glovebox.Limits, code string, stdin io.Reader, args ...string) driver.Process {
	t.Helper()
	if err := s.Resize(l); err != nil {
		t.Fatal(err)
	}
	cmd := h.Command
	cmd.Argv, cmd.Code, cmd.Stdin = slices.Concat(cmd.Argv, args), []byte(code), stdin
	p, err := s.Exec(context.Background(), cmd)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// finished waits for the end.
func finished(t testing.TB, p driver.Process) ended {
	t.Helper()
	var e ended
	var both sync.WaitGroup
	for from, to := range map[io.Reader]*string{p.Stdout(): &e.Out, p.Stderr(): &e.Err} {
		both.Go(func() { b, _ := io.ReadAll(from); *to = string(b) })
	}
	select {
	case <-p.Exited():
	case <-time.After(30 * time.Second):
		t.Fatal("it does not end")
	}
	both.Wait()
	e.Exit = p.Exit()
	return e
}

func (w *warm) run(s driver.HeldSandbox, h driver.Hold, code string, args ...string) ended {
	w.t.Helper()
	return finished(w.t, begin(w.t, s, h, limits(), code, nil, args...))
}

// TestHold runs code by interpreters that were started before.
func TestHold(t *testing.T) {
	w := newWarm(t)
	for lang, code := range map[string]string{
		"python": "import os,sys\nprint(sys.argv, os.environ['A'], sys.stdin.read(), os.getpid() > 1, sorted(os.listdir('/proc/self/fd')))",
		"node": "const fs=require('fs');console.log(process.argv.slice(1).join(), process.env.A, fs.readFileSync(0,'utf8')," +
			"process.pid>1)",
		"bash": `echo "$0 $*" "$A" "$(cat)" "$$"`,
	} {
		t.Run(lang, func(t *testing.T) {
			w := *w
			w.t = t
			h := hold(t, w.image, lang)
			s, err := w.driver.Hold(context.Background(), w.spec(), h)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close(context.Background())
			h2 := h
			h2.Command.Env = append(slices.Clone(h.Command.Env), "A=b c")
			got := finished(t, begin(t, s, h2, limits(), code, strings.NewReader("typed"), "x", "y z"))
			if got.Err != "" || got.Exit != (driver.Exit{}) || !strings.Contains(got.Out, "typed") || !strings.Contains(got.Out, "b c") ||
				!strings.Contains(got.Out, "y z") {
				t.Errorf("%+v", got)
			}
		})
	}
}

// TestForks makes copies that live at the same time: each has all of the fence, and nothing of another's.
func TestForks(t *testing.T) {
	w := newWarm(t)
	h := hold(t, w.image, "python", "json", "random", "sqlite3", "tempfile", "uuid")
	tm := w.template(w.spec(), h)
	cold := start(t, w.driver, limits(), "sleep 60")
	const code = `
import os, random, secrets, signal, sqlite3, tempfile, uuid
chance = sqlite3.connect(":memory:").execute("select hex(randomblob(8))").fetchone()[0]
print(chance, random.random(), secrets.token_hex(4), uuid.uuid4(), os.urandom(4).hex(), tempfile.mktemp())
print([os.listdir(d) for d in ("/workspace", "/tmp", "/dev/shm", "/outputs", "/inputs")])
print(sorted(os.listdir("/proc/self/fd")), os.getpid(), os.getppid(), os.getuid(), os.getcwd())
print([p for p in os.listdir("/proc") if p.isdigit()], signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL)
for d in "/workspace", "/tmp", "/dev/shm", "/outputs": open(d + "/canary", "w").write("canary")
input()
`
	const copies = 4
	var all []driver.Process
	var inputs []*io.PipeWriter
	for range copies {
		in, out := io.Pipe()
		all, inputs = append(all, begin(t, w.forked(tm, w.spec()), h, limits(), code, in)), append(inputs, out)
	}
	seen := map[string]bool{}
	want := strings.Join([]string{"[[], [], [], [], []]", "['0', '1', '2', '3'] 2 1 1000 /workspace", "['2'] True", ""}, "\n")
	for i, p := range all {
		if d := cmp.Diff(cold.Posture(), p.Posture(), cmp.FilterPath(func(p cmp.Path) bool {
			k := p.Last().String()
			return k == `["cgroup_memory"]` || k == `["cgroup_sockets"]` || // less what it shares
				k == `["user"]` || k == `["cgroup_cpuset"]` // its own
		}, cmp.Ignore())); d != "" {
			t.Errorf("posture (-cold +copy):\n%s", d)
		}
		fmt.Fprintln(inputs[i], "go")
		inputs[i].Close()
		got := finished(t, p)
		line, rest, _ := strings.Cut(got.Out, "\n")
		if got.Err != "" || got.Exit != (driver.Exit{}) || rest != want {
			t.Errorf("%+v", got)
		}
		for _, word := range strings.Fields(line) {
			if seen[word] {
				t.Errorf("two copies have %s", word)
			}
			seen[word] = true
		}
		if user := p.Posture()["user"]; seen[user] && !strings.Contains(user, "single") {
			t.Errorf("two copies are %s", user)
		} else {
			seen[user] = true
		}
	}
	if len(seen) < copies*6+1 {
		t.Errorf("%d different words of %d", len(seen), copies*6)
	}
}

// TestForkInputs: a copy is given inputs after it was made, and sees no other's.
func TestForkInputs(t *testing.T) {
	w := newWarm(t)
	h := hold(t, w.image, "python")
	spec := w.spec()
	spec.Inputs = t.TempDir()
	for dir := spec.Inputs; dir != "/tmp" && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			break // not ours
		}
	}
	tm := w.template(spec, h)
	for n := range 2 {
		one := w.spec()
		one.Inputs = filepath.Join(spec.Inputs, fmt.Sprint(n))
		if err := os.Mkdir(one.Inputs, 0o755); err != nil {
			t.Fatal(err)
		}
		s := w.forked(tm, one)
		if err := os.WriteFile(filepath.Join(one.Inputs, "a.csv"), fmt.Appendf(nil, "input %d", n), 0o444); err != nil {
			t.Fatal(err)
		}
		got := w.run(s, h, `
import os
print(os.listdir("/inputs"), open("/inputs/a.csv").read(), [l for l in open("/proc/self/mountinfo") if "inputs" in l and "`+
			filepath.Base(filepath.Dir(spec.Inputs))+`" in l])
for how in "w", "a", "x":
    try: open("/inputs/" + how, how)
    except OSError as e: print(e.strerror)
`)
		want := fmt.Sprintf("['a.csv'] input %d []\n", n) + strings.Repeat("Read-only file system\n", 3)
		if got.Out != want || got.Err != "" {
			t.Errorf("%+v", got)
		}
	}
	one := w.spec()
	one.Inputs = t.TempDir()
	if s, err := tm.Fork(context.Background(), one); err == nil {
		s.Close(context.Background())
		t.Error("inputs from elsewhere are shown")
	}
}

// TestHeldRefuses: what a sandbox was not made for it does not do, and stays whole.
func TestHeldRefuses(t *testing.T) {
	w := newWarm(t)
	h := hold(t, w.image, "python")
	tm := w.template(w.spec(), h)
	s := w.forked(tm, w.spec())
	for name, change := range map[string]func(*glovebox.Limits){
		"disk": func(l *glovebox.Limits) { l.Disk *= 2 }, "files": func(l *glovebox.Limits) { l.Files++ },
		"open files": func(l *glovebox.Limits) { l.OpenFiles-- }, "CPUs": func(l *glovebox.Limits) { l.CPUs = 0.5 },
		"too little memory for its disk": func(l *glovebox.Limits) { l.Memory = 70 * glovebox.MiB },
	} {
		l := limits()
		if change(&l); s.Resize(l) == nil {
			t.Errorf("it was resized for other %s", name)
		}
	}
	for name, change := range map[string]func(*driver.Command){
		"program":   func(c *driver.Command) { c.Argv = []string{"/bin/true", c.Argv[len(c.Argv)-1]} },
		"code name": func(c *driver.Command) { c.CodeName = "other.py" }, "no code": func(c *driver.Command) { c.Code = nil },
		"folder": func(c *driver.Command) { c.Dir = "/tmp" }, "zero": func(c *driver.Command) { c.Env = append(c.Env, "A=\x00") },
	} {
		cmd := h.Command
		cmd.Argv, cmd.Env, cmd.Code = slices.Clone(cmd.Argv), slices.Clone(cmd.Env), []byte("print(1)")
		if change(&cmd); true {
			if _, err := s.Exec(context.Background(), cmd); err == nil {
				t.Fatalf("it was executed with another %s", name)
			}
		}
	}
	if got := w.run(s, h, "print(1)"); got.Out != "1\n" {
		t.Errorf("%+v", got)
	}
	cmd := h.Command
	cmd.Code = []byte("print(2)")
	if _, err := s.Exec(context.Background(), cmd); err == nil {
		t.Error("it was used twice")
	}
	if s.Resize(limits()) == nil {
		t.Error("it was resized after its use")
	}
	var e *glovebox.Error
	if _, err := w.driver.Template(context.Background(), w.spec(), hold(t, w.image, "bash")); !errors.As(err, &e) ||
		e.Code != glovebox.CodeUnavailable || !errors.Is(err, driver.ErrNoTemplates) {
		t.Errorf("a template of bash: %v", err)
	}
}

// TestTemplateEnds: a template that ends says so, makes no more copies and takes those with it that there are.
func TestTemplateEnds(t *testing.T) {
	w := newWarm(t)
	h := hold(t, w.image, "python")
	tm := w.template(w.spec(), h)
	s := w.forked(tm, w.spec())
	p := begin(t, s, h, limits(), "import time; time.sleep(60)", nil)
	if err := tm.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]<-chan struct{}{"template": tm.Ended(), "copy": s.Lost(), "program": p.Exited()} {
		select {
		case <-c:
		case <-time.After(time.Second):
			t.Errorf("the %s lives", name)
		}
	}
	if x := p.Exit(); !x.Lost && x.Signal == 0 {
		t.Errorf("%+v", p.Exit())
	}
	if s, err := tm.Fork(context.Background(), w.spec()); err == nil {
		s.Close(context.Background())
		t.Error("it makes copies")
	}
}

// TestForkMemory: what a copy shares counts as if it had loaded it itself, so that the limit is where it is for a fresh one.
func TestForkMemory(t *testing.T) {
	w := newWarm(t)
	h := hold(t, w.image, "python", "json")
	tm := w.template(w.spec(), h)
	most := func(s driver.HeldSandbox, mib int) ended {
		return w.run(s, h, fmt.Sprintf("a = bytearray(%d << 20)\nfor i in range(0, len(a), 4096): a[i] = 1\nprint(len(a))", mib))
	}
	total := int(limits().Memory / glovebox.MiB)
	for _, c := range []struct {
		mib  int
		fits bool
	}{{total * 94 / 100, true}, {total, false}} {
		fresh, err := w.driver.Hold(context.Background(), w.spec(), h)
		if err != nil {
			t.Fatal(err)
		}
		defer fresh.Close(context.Background())
		for name, s := range map[string]driver.HeldSandbox{"fresh": fresh, "copy": w.forked(tm, w.spec())} {
			if got := most(s, c.mib); (got.Out != "") != c.fits {
				t.Errorf("%s, %d MiB of %d: %+v", name, c.mib, total, got)
			}
		}
	}
	p := begin(t, w.forked(tm, w.spec()), h, limits(), "sum(range(10000000))", nil)
	finished(t, p)
	sample, err := p.Sample()
	if err != nil || sample.CPU < 20*time.Millisecond || sample.MemoryPeak < 5<<20 || sample.MemoryPeak > 40<<20 {
		t.Errorf("%+v, %v", sample, err)
	}
}

// TestTemplateConfined looks at a template from outside: it has no descriptor, file or right that it does not need.
func TestTemplateConfined(t *testing.T) {
	needRoot(t)
	w := newWarm(t)
	h := hold(t, w.image, "python", "json")
	spec := w.spec()
	w.template(spec, h)
	pids, _ := members(t, "/glovebox")
	found := ""
	for _, pid := range pids {
		line, _ := os.ReadFile("/proc/" + pid + "/cmdline")
		groups, _ := os.ReadFile("/proc/" + pid + "/cgroup")
		if strings.Contains(string(line), "template(3") && strings.Contains(string(groups), "/"+spec.ID+"-") {
			found = pid
		}
	}
	if found == "" {
		t.Fatalf("it is not among %v", pids)
	}
	at := "/proc/" + found + "/"
	shares, _ := filepath.Glob("/sys/fs/cgroup/cpu*/glovebox/" + spec.ID + "-*/cpu.shares")
	weights, _ := filepath.Glob("/sys/fs/cgroup/glovebox/" + spec.ID + "-*/run/cpu.weight")
	favored := 0
	for _, file := range slices.Concat(shares, weights) {
		text, _ := os.ReadFile(file)
		if s := strings.TrimSpace(string(text)); s == "8192" || s == "800" {
			favored++
		}
	}
	if favored == 0 {
		t.Errorf("it is not favored: %q %q", shares, weights)
	}
	fds, err := os.ReadDir(at + "fd")
	if err != nil || len(fds) != 4 {
		t.Errorf("descriptors: %v, %v", fds, err)
	}
	environ, err := os.ReadFile(at + "environ")
	if err != nil || strings.ReplaceAll(string(environ), "\x00", "\n") != strings.Join(h.Command.Env, "\n")+"\n" {
		t.Errorf("environment %q, %v", environ, err)
	}
	for _, place := range []string{"root", "home", "var/lib", "etc/shadow", "sys/kernel", "opt"} {
		if _, err := os.Stat(at + "root/" + place); err == nil {
			t.Errorf("it sees /%s", place)
		}
	}
	status, err := os.ReadFile(at + "status")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"CapEff:\t00000000000000c0", "CapBnd:\t00000000000000c0", "NoNewPrivs:\t1", "Seccomp:\t2", "Threads:\t1"} {
		if !strings.Contains(string(status), line+"\n") {
			t.Errorf("not %q in\n%s", line, status)
		}
	}
}
