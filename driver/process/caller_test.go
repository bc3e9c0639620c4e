package process_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"glovebox"
	"glovebox/driver"
	"glovebox/driver/process"
	"glovebox/internal/image"
)

// TestCallerLeavesNoTrace starts sandboxes from a process whose own habits would spoil them: its mask of modes, its soft
// limits, its affinity.
func TestCallerLeavesNoTrace(t *testing.T) {
	needRoot(t)
	defer syscall.Umask(syscall.Umask(0o177))
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &files); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 64 << 20, Max: files.Max}); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_FSIZE, &files)
	l := limits()
	l.Disk, l.Memory, l.CPUs = 100*glovebox.MiB, 256*glovebox.MiB, 2
	r := start(t, newDriver(t), l, `
		cat /etc/hostname; touch made; stat -c %a made /etc /usr /dev /code; ulimit -f
		head -c 70000000 /dev/zero > big && stat -c %s big; nproc`)
	got := strings.ReplaceAll(r.output(t), "\n", " ")
	want := fmt.Sprintf("sandbox 644 755 755 755 755 unlimited 70000000 %d ", min(2, cpus(t)))
	if got != want {
		t.Errorf("inside: %q, want %q", got, want)
	}
}

// TestCallerHandsDownNoRank starts sandboxes from a thread with real-time scheduling, a better priority than others, I/O
// before others, a memory layout that is not random and sleeps that may be longer: the program has none of it, and its CPU
// time has its limit.
func TestCallerHandsDownNoRank(t *testing.T) {
	needRoot(t)
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestRankHelper$", "-test.v")
	cmd.Env = append(os.Environ(), "GLOVEBOX_TEST_RANK=1", "GLOVEBOX_TEST_ROOT=1")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestRankHelper") {
		t.Fatalf("%v\n%s", err, out)
	}
}

// TestRankHelper is the caller of TestCallerHandsDownNoRank, in a process of its own.
func TestRankHelper(t *testing.T) {
	if os.Getenv("GLOVEBOX_TEST_RANK") == "" {
		return
	}
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	const personalityNoRandom = 0x0040000
	if _, _, e := unix.Syscall(unix.SYS_PERSONALITY, personalityNoRandom, 0, 0); e != 0 {
		t.Fatal(e)
	}
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, -10); err != nil {
		t.Fatal(err)
	}
	const first = 1<<13 | 1 // IOPRIO_CLASS_RT, level 1
	if _, _, e := unix.Syscall(unix.SYS_IOPRIO_SET, 1, 0, first); e != 0 {
		t.Fatal(e)
	}
	priority := int32(10)
	if _, _, e := unix.Syscall(unix.SYS_SCHED_SETSCHEDULER, 0, unix.SCHED_FIFO, uintptr(unsafe.Pointer(&priority))); e != 0 {
		t.Fatal(e)
	}
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, 7_000_000, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	r := start(t, newDriver(t), limits(), `
		cat /proc/self/timerslack_ns; set -- $(cat /proc/self/stat); echo nice ${19} priority ${40} policy ${41}
		cat /proc/self/personality; ionice; for i in 1 2 3 4 5 6; do sed -n 's/-.*heap.*//p' /proc/self/maps; done | sort -u | wc -l`)
	got := strings.Fields(r.output(t))
	want := strings.Fields("50000 nice 0 priority 0 policy 0 00000000 none: prio 0 6")
	if !slices.Equal(got, want) {
		t.Errorf("inside: %q, want %q", got, want)
	}
}

// TestCallerWithLimits starts sandboxes from callers with each resource limit that a shell can set: the program has its own,
// however low or high the caller's is, and what a hard limit keeps it from is lower and no failure.
func TestCallerWithLimits(t *testing.T) {
	needRoot(t)
	ordinary := "core 1 1; pending 1024 1024; queues 0 0; stack 8388608 unlimited; locked 8388608 8388608; nice 0 0; realtime 0 0"
	for name, c := range map[string]struct {
		what       int
		soft, hard uint64
		want       string // in place of what an ordinary caller's program has
	}{
		"none":              {unix.RLIMIT_STACK, unix.RLIM_INFINITY, unix.RLIM_INFINITY, ""},
		"no cores":          {unix.RLIMIT_CORE, 0, 0, "core 0 0"},
		"few signals":       {unix.RLIMIT_SIGPENDING, 900, 900, "pending 900 900"},
		"no queues":         {unix.RLIMIT_MSGQUEUE, 0, 0, ""},
		"small soft stack":  {unix.RLIMIT_STACK, 128 << 10, unix.RLIM_INFINITY, ""},
		"small stack":       {unix.RLIMIT_STACK, 256 << 10, 256 << 10, "stack 262144 262144"},
		"no locked memory":  {unix.RLIMIT_MEMLOCK, 0, 0, "locked 0 0"},
		"few processes now": {unix.RLIMIT_NPROC, 3, 10000, ""},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command("/proc/self/exe", "-test.run=^TestLimitsHelper$", "-test.v")
			cmd.Env = append(os.Environ(), "GLOVEBOX_TEST_ROOT=1",
				fmt.Sprintf("GLOVEBOX_TEST_LIMIT=%d %d %d", c.what, c.soft, c.hard))
			if c.what == unix.RLIMIT_SIGPENDING {
				noPendingSignals(t)
			}
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "--- PASS: TestLimitsHelper") {
				t.Fatalf("%v\n%s", err, out)
			}
			for _, want := range strings.Split(ordinary, "; ") {
				if word, _, _ := strings.Cut(c.want, " "); word != "" && strings.HasPrefix(want, word+" ") {
					want = c.want
				}
				if !strings.Contains(string(out), "LIMIT "+want+"\n") {
					t.Errorf("the program does not have %q:\n%s", want, out)
				}
			}
		})
	}
}

// noPendingSignals waits until nobody of this user has many signals pending: the kernel counts those of all together.
func noPendingSignals(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		status, err := os.ReadFile("/proc/self/status")
		if err != nil {
			t.Fatal(err)
		}
		var pending int
		_, after, _ := strings.Cut(string(status), "SigQ:")
		if _, err := fmt.Sscan(strings.Replace(after, "/", " ", 1), &pending); err != nil || time.Now().After(deadline) {
			t.Fatalf("%d signals are pending (%v)", pending, err)
		}
		if pending < 100 {
			return
		}
	}
}

// TestLimitsHelper is the caller of TestCallerWithLimits, in a process of its own.
func TestLimitsHelper(t *testing.T) {
	var what int
	var own unix.Rlimit
	if n, _ := fmt.Sscan(os.Getenv("GLOVEBOX_TEST_LIMIT"), &what, &own.Cur, &own.Max); n != 3 {
		return
	}
	d := newDriver(t)
	if err := unix.Setrlimit(what, &own); err != nil {
		t.Fatal(err)
	}
	r := start(t, d, limits(), `
		sed -n 's/^Max core file size *\([^ ]*\) *\([^ ]*\).*/LIMIT core \1 \2/p
			s/^Max pending signals *\([^ ]*\) *\([^ ]*\).*/LIMIT pending \1 \2/p
			s/^Max msgqueue size *\([^ ]*\) *\([^ ]*\).*/LIMIT queues \1 \2/p
			s/^Max stack size *\([^ ]*\) *\([^ ]*\).*/LIMIT stack \1 \2/p
			s/^Max locked memory *\([^ ]*\) *\([^ ]*\).*/LIMIT locked \1 \2/p
			s/^Max nice priority *\([^ ]*\) *\([^ ]*\).*/LIMIT nice \1 \2/p
			s/^Max realtime priority *\([^ ]*\) *\([^ ]*\).*/LIMIT realtime \1 \2/p' /proc/self/limits`)
	fmt.Print(r.output(t))
}

func cpus(t *testing.T) int {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		t.Fatal(err)
	}
	return set.Count()
}

// TestHardLimitsOfTheCaller is about what a child cannot be given: it is refused by name.
func TestHardLimitsOfTheCaller(t *testing.T) {
	needRoot(t)
	host, err := image.Host(image.Config{})
	if err != nil {
		t.Fatal(err)
	}
	l := limits()
	l.OpenFiles = 1 << 40
	_, err = newDriver(t).Start(t.Context(), driver.Spec{ID: "too_many_files", Limits: l, Root: host.Root()})
	var e *glovebox.Error
	if !errors.As(err, &e) || e.Code != glovebox.CodeUnavailable || !strings.Contains(e.Fix, "--open-files") {
		t.Errorf("more files than this process may open: %v", err)
	}
}

// TestMoreCPUsThanThereAre are refused with how many there are.
func TestMoreCPUsThanThereAre(t *testing.T) {
	needRoot(t)
	host, err := image.Host(image.Config{})
	if err != nil {
		t.Fatal(err)
	}
	l := limits()
	l.CPUs = 4096
	s, err := newDriver(t).Start(t.Context(), driver.Spec{ID: "too_many_cpus", Limits: l, Root: host.Root()})
	if err == nil {
		s.Close(t.Context())
	}
	var e *glovebox.Error
	if !errors.As(err, &e) || e.Code != glovebox.CodeUnavailable || !strings.HasPrefix(e.Fix, "ask for --cpus ") {
		t.Errorf("4096 CPUs: %v", err)
	}
}

// TestLateAnswer gives up on a request and asks for something else: the answer of the first must never be taken for that of
// the second.
func TestLateAnswer(t *testing.T) {
	needRoot(t)
	r := start(t, newDriver(t), limits(), "echo A > /outputs/a; echo B > /outputs/b")
	r.output(t)
	if err := r.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := process.GiveUp(r.sandbox, "a"); err == nil {
		t.Fatal("an answer although nobody waited")
	}
	if f, err := r.sandbox.Open("b"); err == nil {
		b := make([]byte, 2)
		f.Read(b)
		f.Close()
		t.Errorf("b is %q after a was given up", b)
	}
}

// TestEnginesOfOneUserShareLocks makes drivers for several data_dirs of one user: none may sweep what another just made.
func TestEnginesOfOneUserShareLocks(t *testing.T) {
	needRoot(t)
	cgroup := fmt.Sprintf("/glovebox-shared-%d", os.Getpid())
	removeGroup(t, cgroup)
	host, err := image.Host(image.Config{})
	if err != nil {
		t.Fatal(err)
	}
	made := func() driver.Sandbox {
		d, err := process.New(process.Config{Init: initBinary, Cgroup: cgroup, ScratchDir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		spec := driver.Spec{ID: fmt.Sprintf("run_%d", len(t.TempDir())), Limits: limits(), Root: host.Root()}
		s, err := d.Start(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	first := made()
	defer first.Close(t.Context())
	second := made() // sweeps at its first start
	defer second.Close(t.Context())
	p, err := first.Exec(t.Context(), driver.Command{Argv: []string{"/bin/true"}, Env: []string{}, Dir: "/workspace"})
	if err != nil {
		t.Fatalf("the first sandbox is spoilt: %v", err)
	}
	<-p.Exited()
}

// TestEveryThreadOfInit looks from outside at every thread of an init whose caller is in groups of the host: none keeps them,
// an id of the host or a way to more rights.
func TestEveryThreadOfInit(t *testing.T) {
	needRoot(t)
	before, err := syscall.Getgroups()
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setgroups([]int{4, 27, 1234567}); err != nil {
		t.Fatal(err)
	}
	defer syscall.Setgroups(before)
	cgroup := fmt.Sprintf("/glovebox-threads-%d", os.Getpid())
	removeGroup(t, cgroup)
	d, err := process.New(process.Config{Init: initBinary, Cgroup: cgroup, ScratchDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	r := start(t, d, limits(), "echo up; exec sleep 60")
	up := make([]byte, 3)
	if _, err := io.ReadFull(r.Stdout(), up); err != nil {
		t.Fatal(err)
	}
	im, err := image.Host(image.Config{})
	if err != nil {
		t.Fatal(err)
	}
	w := &warm{t: t, driver: d, image: im}
	w.forked(w.template(w.spec(), hold(t, im, "python")), w.spec())
	pids, _ := members(t, cgroup)
	threads, inits := 0, 0
	for _, pid := range slices.Compact(slices.Sorted(slices.Values(pids))) {
		comm, err := os.ReadFile("/proc/" + pid + "/comm")
		if err != nil {
			t.Fatal(err)
		}
		if string(comm) != "glovebox-init\n" {
			continue
		}
		inits++
		tasks, err := filepath.Glob("/proc/" + pid + "/task/*/status")
		if err != nil {
			t.Fatal(err)
		}
		for _, task := range tasks {
			threads++
			checkInitThread(t, task)
		}
	}
	if inits != 3 || threads < 2*inits { // the program's, the template's and that of the template's copy
		t.Errorf("%d inits with %d threads were seen", inits, threads)
	}
}

func checkInitThread(t *testing.T, file string) {
	t.Helper()
	status, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	fields := map[string][]string{}
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		fields[name] = strings.Fields(value)
	}
	if len(fields["Groups"]) > 0 || !slices.Equal(fields["NoNewPrivs"], []string{"1"}) {
		t.Errorf("%s: groups %q, no new privileges %q", file, fields["Groups"], fields["NoNewPrivs"])
	}
	for _, ids := range []string{"Uid", "Gid"} {
		for _, id := range fields[ids] {
			if n, err := strconv.Atoi(id); err != nil || n < 0x70000000 {
				t.Errorf("%s: %s %q", file, ids, fields[ids])
			}
		}
	}
}

// TestRequestTouchesTheProgramOnly looks from outside at what init was started with: nothing that the request says reaches
// it, the names that loaders and runtimes heed least of all.
func TestRequestTouchesTheProgramOnly(t *testing.T) {
	needRoot(t)
	cgroup := fmt.Sprintf("/glovebox-request-%d", os.Getpid())
	removeGroup(t, cgroup)
	d, err := process.New(process.Config{Init: initBinary, Cgroup: cgroup, ScratchDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	host, err := image.Host(image.Config{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := d.Start(t.Context(), driver.Spec{ID: "request", Limits: limits(), Root: host.Root()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(t.Context())
	env := []string{"LD_PRELOAD=/workspace/x.so", "GODEBUG=inittrace=1", "GOMAXPROCS=9", "PATH=/workspace:/usr/bin:/bin", "IFS=x"}
	p, err := s.Exec(t.Context(), driver.Command{
		Argv: []string{"sh", "-c", "tr '\\0' '\\n' < /proc/self/environ; exec sleep 60", "word-of-the-request"}, Env: env, Dir: "/workspace",
	})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	lines := bufio.NewScanner(p.Stdout())
	for len(got) < len(env) && lines.Scan() {
		got = append(got, lines.Text())
	}
	if !slices.Equal(got, env) {
		t.Errorf("the program has %q, want %q", got, env)
	}
	pids, _ := members(t, cgroup)
	for _, pid := range pids {
		comm, _ := os.ReadFile("/proc/" + pid + "/comm")
		if string(comm) != "glovebox-init\n" {
			continue
		}
		for file, want := range map[string]string{"environ": "GOMAXPROCS=1\x00", "cmdline": "glovebox-init\x00"} {
			if b, err := os.ReadFile("/proc/" + pid + "/" + file); err != nil || string(b) != want {
				t.Errorf("init's %s is %q, %v", file, b, err)
			}
		}
		return
	}
	t.Error("init was not seen")
}

// TestMountTargetsFollowNoLink builds roots in which a link lies in the way of a mount, or is what is to be mounted: each is
// refused at that step, and nothing is left.
func TestMountTargetsFollowNoLink(t *testing.T) {
	needRoot(t)
	cgroup := fmt.Sprintf("/glovebox-links-%d", os.Getpid())
	removeGroup(t, cgroup)
	d, err := process.New(process.Config{Init: initBinary, Cgroup: cgroup, ScratchDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	host, err := image.Host(image.Config{})
	if err != nil {
		t.Fatal(err)
	}
	trap := t.TempDir()
	if err := errors.Join(os.Symlink("/etc", trap+"/way"), os.Symlink("../usr", trap+"/up"),
		os.WriteFile(trap+"/file", nil, 0o644), os.Symlink("/etc/shadow", trap+"/shadow")); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		mounts []driver.Mount
		step   string
	}{
		"through an absolute link": {[]driver.Mount{{Source: trap, Target: "/trap"}, {Source: trap + "/file", Target: "/trap/way/passwd"}},
			"place /trap/way/passwd"},
		"through a relative link": {[]driver.Mount{{Source: trap, Target: "/trap"}, {Source: trap, Target: "/trap/up/lib"}},
			"place /trap/up/lib"},
		"onto a link":     {[]driver.Mount{{Source: trap, Target: "/trap"}, {Source: trap, Target: "/trap/way"}}, "place /trap/way"},
		"of a link":       {[]driver.Mount{{Source: trap + "/shadow", Target: "/etc/shadow"}}, "open /etc/shadow of the host"},
		"beneath a file":  {[]driver.Mount{{Source: trap, Target: "/trap"}, {Source: trap, Target: "/trap/file/x"}}, "place /trap/file/x"},
		"of what is gone": {[]driver.Mount{{Source: trap + "/gone", Target: "/gone"}}, "open /gone of the host"},
	} {
		root := host.Root()
		root.Mounts = append(root.Mounts, c.mounts...)
		s, err := d.Start(t.Context(), driver.Spec{ID: "links", Limits: limits(), Root: root})
		if err == nil {
			s.Close(t.Context())
		}
		if err == nil || !strings.Contains(err.Error(), c.step) {
			t.Errorf("%s: %v, want the step %q", name, err, c.step)
		}
		if pids, groups := members(t, cgroup); len(pids) > 0 || groups > 0 {
			t.Errorf("%s: %d processes and %d control groups are left", name, len(pids), groups)
		}
	}
}
