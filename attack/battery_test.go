package attack

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"glovebox"
)

// fence is a Service that runs nothing. It answers as one whose fences hold would, for every program of the battery, and lets
// one thing through where a test says so.
type fence struct {
	glovebox.Service // nil: nothing else of it may be used

	proc    string // where its processes are shown
	folder  string // a folder that holds a planted file
	leak    func(f *fence, c *trial)
	mu      sync.Mutex
	runs    int
	args    [][]string // of all runs
	stdout  map[string]string
	outputs map[string]string // contents of all artifacts
}

// trial is one run of the fence's.
type trial struct {
	req   glovebox.Request
	res   *glovebox.Result
	text  string            // all that it prints
	tree  map[string]string // its process, as files below proc/100; a value that begins with -> is a link
	stays bool              // its process outlives it
	err   error
}

func newFence(t *testing.T) *fence {
	t.Helper()
	dir, err := os.MkdirTemp("", "fence-") // short: it is the folder of a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	t.Setenv("TMPDIR", dir)
	f := &fence{proc: t.TempDir(), folder: t.TempDir(), stdout: map[string]string{}, outputs: map[string]string{}}
	f.show(t.Fatal, "self", map[string]string{"net/tcp": "sl\n", "net/tcp6": "sl\n", "net/udp": "sl\n", "net/udp6": "sl\n",
		"ns/user": "->user:[1]", "ns/mnt": "->mnt:[1]", "ns/pid": "->pid:[1]", "ns/net": "->net:[1]", "ns/ipc": "->ipc:[1]",
		"ns/uts": "->uts:[1]"})
	return f
}

func (f *fence) config() Config {
	return Config{Service: f, Proc: f.proc, Folders: []string{f.folder}, Disposable: true, teardown: time.Millisecond}
}

// show makes files of a process.
func (f *fence) show(fail func(...any), pid string, tree map[string]string) {
	for name, text := range tree {
		path := filepath.Join(f.proc, pid, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			fail(err)
		}
		if link, ok := strings.CutPrefix(text, "->"); ok {
			if err := os.Symlink(link, path); err != nil {
				fail(err)
			}
		} else if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			fail(err)
		}
	}
}

const goodStatus = "State:\tS (sleeping)\nNSpid:\t100\t5\nUid:\t7000\t7000\t7000\t7000\nGid:\t7000\t7000\t7000\t7000\n" +
	"CapInh:\t0000\nCapPrm:\t0000\nCapEff:\t0000\nCapBnd:\t0000\nCapAmb:\t0000\nNoNewPrivs:\t1\nSeccomp:\t2\nCpus_allowed_list:\t3\n"

// statLine is a stat file with these fields from 3 on changed.
func statLine(fields map[int]string) string {
	line := "100 (a ) b)"
	for n := 3; n <= 52; n++ {
		value := "0"
		if n == 6 {
			value = "5"
		}
		if v, ok := fields[n]; ok {
			value = v
		}
		line += " " + value
	}
	return line
}

func goodTree(run string) map[string]string {
	return map[string]string{"status": goodStatus, "task/5/status": goodStatus, "comm": "python3\n",
		"cgroup": "4:memory:/glovebox/" + run + "-t1\n0::/glovebox/" + run + "-t1/run\n", "stat": statLine(nil), "oom_score_adj": "0\n",
		"limits":      "Limit  Soft  Hard\nMax open files            256                  256                  files\n",
		"personality": "00000000\n", "mountinfo": "36 35 0:99 / / ro - tmpfs tmpfs ro\n37 36 0:98 / /workspace rw - tmpfs tmpfs rw\n",
		"net/dev": "Inter-|\n face |\n    lo: 0\n", "net/route": "Iface\n", "net/ipv6_route": "00 lo\n", "net/raw": "sl\n",
		"net/packet": "sk\n", "ns/user": "->user:[2]", "ns/mnt": "->mnt:[2]", "ns/pid": "->pid:[2]", "ns/net": "->net:[2]",
		"ns/ipc": "->ipc:[2]", "ns/uts": "->uts:[2]", "fd/0": "->/dev/null", "fdinfo/0": "flags:\t0100000\n"}
}

func (f *fence) Run(ctx context.Context, _ glovebox.Principal, req glovebox.Request, sink glovebox.Sink) (*glovebox.Result, error) {
	f.mu.Lock()
	f.runs++
	id, pid := fmt.Sprintf("run_%d", f.runs), strconv.Itoa(100+f.runs)
	c := &trial{req: req, tree: goodTree(id), text: "end\n", res: &glovebox.Result{ID: id, Status: glovebox.StatusExited, ExitCode: new(0),
		Untrusted: true, StdoutBytes: 4, Limits: req.Limits, Isolation: glovebox.IsolationProcess, Usage: glovebox.Usage{CPUMS: new(int64(1000)),
			MemoryPeakBytes: new(int64(1)), DiskBytes: new(int64(1)), ProcessesPeak: new(int64(1))}}}
	f.args = append(f.args, req.Args)
	answer(f, c)
	if f.leak != nil {
		f.leak(f, c)
	}
	fail := func(args ...any) { c.err = errors.New(fmt.Sprint(args...)) }
	f.show(fail, pid, c.tree)
	f.mu.Unlock()
	if strings.HasPrefix(c.text, "held\n") || strings.HasPrefix(c.text, "listening") {
		sink.Event(glovebox.Event{Kind: "stdout", Run: id, Data: []byte(c.text[:3])})
		sink.Event(glovebox.Event{Kind: "stdout", Run: id, Data: []byte(c.text[3:])})
		<-ctx.Done()
	}
	if !c.stays {
		os.RemoveAll(filepath.Join(f.proc, pid))
	}
	if c.err != nil {
		return nil, c.err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stdout[id] = c.text
	if c.res.Stdout == "" {
		c.res.Stdout = glovebox.Untrusted(c.text)
	}
	return c.res, nil
}

func (f *fence) Output(_ context.Context, _ glovebox.Principal, run, stream string, _, _ int64) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if stream == "stderr" {
		return nil, nil
	}
	return []byte(f.stdout[run]), nil
}

func (f *fence) Artifact(_ context.Context, _ glovebox.Principal, _, path string) (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader(f.outputs[path])), nil
}

func (c *trial) collect(paths ...string) {
	for _, p := range paths {
		c.res.Artifacts = append(c.res.Artifacts, glovebox.Artifact{Path: p})
	}
}

func (c *trial) end(status glovebox.Status, exit int, limit string) {
	c.res.Status, c.res.ExitCode, c.res.LimitsHit, c.text = status, &exit, nil, ""
	if limit != "" {
		c.res.LimitsHit = []string{limit}
	}
	if exit < 0 {
		c.res.ExitCode = nil
	}
}

// answer is what a program does where every fence holds.
func answer(f *fence, c *trial) {
	arg := strings.Join(c.req.Args, " ")
	switch file := c.req.CodeName; {
	case file == "hold.py", file == "neighbour_hold.py":
		c.text = "held\n"
		c.res.Status, c.res.ExitCode = glovebox.StatusCanceled, nil
	case file == "nt17_inbound.py":
		c.text = "listening 4\n"
		c.res.Status, c.res.ExitCode = glovebox.StatusCanceled, nil
	case file == "fs06_artifact_links.sh":
		c.collect("ok.txt", "real/ok.txt", "second-name.txt")
	case file == "fs28_pipes.sh":
		c.collect("ok.txt")
	case file == "ou25_names.py":
		for n := range 12 {
			c.collect("name" + strconv.Itoa(n))
		}
	case strings.HasPrefix(file, "rs"), strings.HasPrefix(file, "fs2"), strings.HasPrefix(file, "ks17"):
		answerLimits(c, file, arg)
	case file == "stop_itself.sh":
		c.end(glovebox.StatusWallLimit, -1, "wall")
	case file == "il13_processors.sh":
		c.text = "1\nend\n"
	case file == "ou_print.py":
		c.res.Flags = []string{"ansi", "bidi", "invisible", "invalid_utf8", "instruction_like", "exfil_link"}
		if arg == "markers" {
			c.end(glovebox.StatusExited, 3, "")
		}
	case file == "ou21_middle.py":
		c.res.Stdout, c.res.StdoutTruncated = "first what matters\n…\nlast what matters", true
		c.res.StdoutBytes = int64(len("first what matters\n") + 2000000 + len("\nlast what matters"))
	case strings.HasPrefix(file, "ct_hello"), file == "ct05_chains.sh":
		c.text = "hello\n"
	case file == "ct04_shell.sh":
		c.text = "a\nline\npipe 0\npipefail 1\njob 3\none\ntwo\ntrapped\nthree\nco\n1\nlisted\ncopy\nout\n"
	case file == "ct10_ends.sh" && arg == "signal 11":
		c.end(glovebox.StatusSignaled, -1, "")
		c.res.Signal = new("SIGSEGV")
	case file == "ct10_ends.sh":
		c.end(glovebox.StatusExited, map[string]int{"code 7": 7, "missing": 127}[arg], "")
	}
}

// answerLimits is answer for the programs that meet a limit.
func answerLimits(c *trial, file, arg string) {
	switch {
	case file == "rs02_sleep.sh", file == "rs09_deaf.py":
		c.end(glovebox.StatusWallLimit, -1, "wall")
	case file == "rs24_both.py":
		c.res.StdoutBytes, c.res.StderrBytes = 2<<20, 2<<20
	case file == "rs28_closed.py":
		c.end(glovebox.StatusExited, 7, "")
		c.collect("done")
	case file == "rs47_inner.py" && arg == "124":
		c.end(glovebox.StatusExited, 124, "")
	case file == "rs47_inner.py":
		c.end(glovebox.StatusSignaled, -1, "")
		c.res.Signal = new(map[string]string{"alarm": "SIGALRM", "kill": "SIGKILL"}[arg])
	case file == "rs01_spin.py", file == "rs20_spinners.py":
		c.end(glovebox.StatusCPULimit, -1, "cpu")
	case file == "rs03_forks.sh":
		c.end(glovebox.StatusProcessLimit, 5, "processes")
	case file == "rs05_children.py":
		c.end(glovebox.StatusProcessLimit, 3, "processes")
	case file == "rs12_memory.py":
		c.end(glovebox.StatusMemoryLimit, -1, "memory")
	case file == "rs23_flood.py":
		n, _ := strconv.ParseInt(c.req.Args[1], 10, 64)
		if c.end(glovebox.StatusOutputLimit, -1, "output"); n <= 1<<16 {
			c.end(glovebox.StatusExited, 4, "")
			c.res.LimitsHit = nil
		}
		c.res.StdoutBytes = n
	case file == "fs22_fill.py":
		c.end(glovebox.StatusDiskLimit, 3, "disk")
	case file == "fs23_inodes.py":
		c.end(glovebox.StatusDiskLimit, 3, "files")
	case file == "ks17_killed.py":
		c.end(glovebox.StatusPolicy, -1, "")
	case file == "ks17_numbers.py":
		c.text = ""
		for n := 480; n <= 600; n++ {
			c.text += fmt.Sprintf("call %d %d\n", n, unix.ENOSYS)
		}
		c.text += "end\n"
	}
}

// attackWith runs some programs of the battery against a fence.
func attackWith(t *testing.T, f *fence, ids ...string) *Report {
	t.Helper()
	some := slices.DeleteFunc(Programs(), func(p Program) bool { return len(ids) > 0 && !slices.Contains(ids, p.ID) })
	r, err := run(t.Context(), f.config(), some)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestWhatHoldsIsTold(t *testing.T) {
	f := newFence(t)
	r := attackWith(t, f)
	for _, o := range r.Programs {
		if o.Verdict != Held && o.Verdict != Said {
			t.Errorf("%s: %s: %s %q %q", o.ID, o.Verdict, o.Reason, o.Found, o.Claims)
		}
	}
	if !r.OK || r.Total.Broke+r.Total.NotTried != 0 || r.Total.Held < 60 || r.Total.Said == 0 || len(r.Programs) != len(Programs()) {
		t.Errorf("ok is %v, total %+v", r.OK, r.Total)
	}
	if r.Isolation != glovebox.IsolationProcess {
		t.Errorf("rung %q", r.Isolation)
	}
	for _, dir := range []string{f.folder, os.Getenv("TMPDIR"), "/dev/shm"} {
		if left, _ := filepath.Glob(filepath.Join(dir, "*glovebox*")); left != nil && dir != "/dev/shm" {
			t.Errorf("left behind: %q", left)
		}
		if left, _ := filepath.Glob(filepath.Join(dir, ".glovebox-planted-*")); left != nil {
			t.Errorf("left behind: %q", left)
		}
	}
	if os.Getenv("GLOVEBOX_CANARY") != "" {
		t.Error("left behind: a variable")
	}
}

// planted is the file that the battery planted in the fence's folder.
func (f *fence) planted() string {
	found, _ := filepath.Glob(filepath.Join(f.folder, ".glovebox-planted-*"))
	return found[0]
}

func contents(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func visit(network, address string) {
	if c, err := net.Dial(network, address); err == nil {
		c.Write([]byte("x"))
		io.ReadAll(c)
		c.Close()
	}
}

// TestEveryProgramIsWatched lets one thing through at every program, and demands that every one of them breaks by it.
func TestEveryProgramIsWatched(t *testing.T) {
	for name, leak := range map[string]func(f *fence, c *trial){
		"a file in base64": func(f *fence, c *trial) {
			c.text = base64.StdEncoding.EncodeToString([]byte("x"+contents(f.planted()))) + "\n" + c.text
		},
		"the environment in an output": func(f *fence, c *trial) {
			c.collect("stolen")
			f.outputs["stolen"] = os.Getenv("GLOVEBOX_CANARY")
		},
		"the environment in a reason": func(_ *fence, c *trial) { c.res.Reason = os.Getenv("GLOVEBOX_CANARY_SECRET_ACCESS_KEY") },
		"a changed file":              func(f *fence, _ *trial) { os.Chmod(f.planted(), 0o600+os.FileMode(f.runs%8)) },
		"a visitor": func(*fence, *trial) {
			doors, _ := filepath.Glob(filepath.Join(os.Getenv("TMPDIR"), "glovebox-battery-*", "door.sock"))
			visit("unix", doors[0])
		},
		"a survivor":      func(_ *fence, c *trial) { c.stays = true },
		"a claim":         func(_ *fence, c *trial) { c.text += "\nbroke: all of it\n" },
		"a failed engine": func(_ *fence, c *trial) { c.err = glovebox.Internal("run", errors.New("it crashed")) },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFence(t)
			f.leak = func(f *fence, c *trial) {
				if c.req.CodeName != "neighbour_hold.py" && c.req.CodeName != "leave.py" {
					leak(f, c)
				}
			}
			r := attackWith(t, f, slices.DeleteFunc(ids(), func(id string) bool { return id == "LT-16" })...)
			for _, o := range r.Programs {
				if o.Verdict != Broke && o.ID != "LT-16" {
					t.Errorf("%s: %s %s", o.ID, o.Verdict, o.Reason)
				}
			}
			if r.OK {
				t.Error("the report says that all is well")
			}
			if name == "a failed engine" {
				return // which leaves no run
			}
			if last := r.Programs[len(r.Programs)-1]; last.ID != "LT-16" || (last.Verdict == Broke) != (name == "a survivor") {
				t.Errorf("at the end: %+v", last)
			}
		})
	}
}

func ids() []string {
	var all []string
	for _, p := range Programs() {
		all = append(all, p.ID)
	}
	return all
}

// theft is one thing that a broken fence lets through to one program.
type theft struct {
	program, name string
	leak          func(f *fence, c *trial)
}

// thefts take each planted thing in the way in which a program would.
func thefts() []theft {
	read := func(path func(c *trial) string) func(*fence, *trial) {
		return func(_ *fence, c *trial) { c.text = contents(path(c)) + "\nend\n" }
	}
	arg := func(n int) func(*trial) string { return func(c *trial) string { return c.req.Args[n] } }
	dial := func(network string) func(*fence, *trial) {
		return func(_ *fence, c *trial) { visit(network, "127.0.0.1:"+c.req.Args[0]) }
	}
	return []theft{
		{"FS-01", "a file by its path", read(arg(1))},
		{"CR-12", "a file by its name", func(f *fence, c *trial) { c.text = contents(filepath.Join(f.folder, c.req.Args[0])) + "\nend\n" }},
		{"CR-01", "the environment", func(_ *fence, c *trial) { c.text = strings.Join(os.Environ(), "\n") + "\nend\n" }},
		{"FS-04", "a descriptor that was left open", func(_ *fence, c *trial) {
			for n := range 200 {
				buf := make([]byte, 100)
				if flags, err := unix.FcntlInt(uintptr(n), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 && n > 2 {
					if got, err := unix.Pread(n, buf, 0); err == nil {
						c.text = string(buf[:got]) + "\nend\n"
					}
				}
			}
		}},
		{"NT-01", "a listener", dial("tcp")},
		{"NT-02", "a packet with a name", func(_ *fence, c *trial) {
			if s, err := net.Dial("udp", "127.0.0.1:"+c.req.Args[1]); err == nil {
				s.Write([]byte(c.req.Args[0]))
				s.Close()
			}
		}},
		{"NT-12", "an abstract socket", func(_ *fence, c *trial) { visit("unix", "@"+strings.TrimPrefix(c.req.Args[0], "abstract=")) }},
		{"NT-13", "a socket by path", func(_ *fence, c *trial) { visit("unix", strings.TrimPrefix(c.req.Args[0], "path=")) }},
		{"CR-04", "a shared segment", func(_ *fence, c *trial) {
			id, _ := strconv.Atoi(c.req.Args[1])
			if at, err := unix.SysvShmAttach(id, 0, unix.SHM_RDONLY); err == nil {
				c.text = string(bytes.Clone(at)) + "\nend\n"
				unix.SysvShmDetach(at)
			}
		}},
		{"CR-04", "a file of /dev/shm", func(_ *fence, c *trial) { c.text = contents("/dev/shm/"+c.req.Args[2]) + "\nend\n" }},
		{"CR-07", "memory of the caller", func(_ *fence, c *trial) {
			at, _ := strconv.ParseUint(c.req.Args[2], 10, 64)
			size, _ := strconv.Atoi(c.req.Args[3])
			buf := make([]byte, size)
			local := []unix.Iovec{{Base: &buf[0], Len: uint64(size)}}
			unix.ProcessVMReadv(os.Getpid(), local, []unix.RemoteIovec{{Base: uintptr(at), Len: size}}, 0)
			c.text = string(unsafe.String(&buf[0], size)) + "\nend\n"
		}},
		{"CR-09", "a key", func(_ *fence, c *trial) {
			buf := make([]byte, 100)
			if id, err := unix.KeyctlSearch(unix.KEY_SPEC_USER_KEYRING, "user", c.req.Args[0], 0); err == nil {
				n, _ := unix.KeyctlBuffer(unix.KEYCTL_READ, id, buf, 0)
				c.text = string(buf[:n]) + "\nend\n"
			}
		}},
		{"NT-18", "what another run says", func(f *fence, c *trial) {
			if c.req.CodeName == "nt18_neighbour.py" {
				c.text = f.args[len(f.args)-2][2] + "\nend\n"
			}
		}},
		{"LT-01", "what the run before left", func(f *fence, c *trial) {
			if c.req.CodeName == "lt01_look.py" {
				c.text = f.args[len(f.args)-2][0] + "\nend\n"
			}
		}},
		{"FS-18", "an input", func(_ *fence, c *trial) { os.WriteFile(c.req.Inputs[0].Path, []byte("changed"), 0o666) }},
		{"FS-12/touch", "the time of a file", func(_ *fence, c *trial) {
			os.Chtimes(c.req.Args[0], glovebox.Event{}.Time, glovebox.Event{}.Time.AddDate(2000, 0, 0))
		}},
	}
}

func TestEachTheftIsSeen(t *testing.T) {
	for _, x := range thefts() {
		t.Run(x.program+" "+x.name, func(t *testing.T) { breaks(t, x) })
	}
}

// breaks demands that the program breaks by the theft. (That it holds without one is TestWhatHoldsIsTold.)
func breaks(t *testing.T, x theft) {
	t.Helper()
	f := newFence(t)
	f.leak = x.leak
	r := attackWith(t, f, x.program)
	if o := r.Programs[0]; o.Verdict != Broke || len(o.Found) == 0 || len(o.Claims) > 0 || r.OK {
		t.Errorf("%s %s %q, the program claims %q", o.Verdict, o.Reason, o.Found, o.Claims)
	}
}
