package attack

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"glovebox"
)

// tree is a fault that shows in the kernel's files about a process.
func tree(changes ...string) func(*fence, *trial) {
	return func(_ *fence, c *trial) {
		for i := 0; i < len(changes); i += 2 {
			c.tree[changes[i]] = changes[i+1]
		}
	}
}

// status is a fault in one line of the status of a thread; the first thread is as it must be.
func status(from, to string) func(*fence, *trial) {
	bad := strings.Replace(goodStatus, from, to, 1)
	if bad == goodStatus {
		panic("nothing changed")
	}
	return tree("task/7/status", bad)
}

func end(s glovebox.Status, exit int, limit string) func(*fence, *trial) {
	return func(_ *fence, c *trial) { c.end(s, exit, limit) }
}

// fine is a program that claims to have ended well.
var fine = end(glovebox.StatusExited, 0, "")

func fd(link, flags string) func(*fence, *trial) {
	return tree("fd/7", "->"+link, "fdinfo/7", "pos:\t0\nflags:\t"+flags+"\n")
}

func object(name string) func(*fence, *trial) { return fd("anon_inode:"+name, "02") }

func prints(text string) func(*fence, *trial) {
	return func(_ *fence, c *trial) { c.text = text }
}

func shows(text string) func(*fence, *trial) {
	return func(_ *fence, c *trial) { c.res.Stdout = glovebox.Untrusted(text) }
}

func unflagged(_ *fence, c *trial) { c.res.Flags = nil }

// hostMount is a line of a mount table: the file system of the host's root, to be written.
func hostMount(t *testing.T) string {
	return "38 36 " + device(t, "/") + " / /host rw,relatime - ext4 /dev/x rw\n"
}

// cgroups is where control groups are mounted.
func cgroups(t *testing.T) string {
	t.Helper()
	for line := range strings.Lines(contents("/proc/self/mountinfo")) {
		if strings.Contains(line, " - cgroup") {
			return strings.Fields(line)[4]
		}
	}
	t.Fatal("no control groups")
	return ""
}

func device(t *testing.T, path string) string {
	t.Helper()
	for line := range strings.Lines(contents("/proc/self/mountinfo")) {
		if f := strings.Fields(line); f[4] == path {
			return f[2]
		}
	}
	t.Fatal("no mount at " + path)
	return ""
}

// lateFaults and exitFaults break programs that must end at the clock, or well.
func lateFaults() []func(*fence, *trial) {
	return []func(*fence, *trial){fine, end(glovebox.StatusWallLimit, -1, ""), end(glovebox.StatusCPULimit, -1, "wall")}
}

func exitFaults() []func(*fence, *trial) {
	return []func(*fence, *trial){end(glovebox.StatusExited, 1, ""), end(glovebox.StatusWallLimit, -1, "wall")}
}

// faults are for every program that is judged by more than what holds for all: what must break it.
func faults(t *testing.T) map[string][]func(*fence, *trial) {
	type list = []func(*fence, *trial)
	all := map[string]list{
		"FS-06":        {func(_ *fence, c *trial) { c.collect("report.txt") }, func(_ *fence, c *trial) { c.res.Artifacts = nil }},
		"FS-14":        {fd("/dev/kmsg", "00"), fd("/dev/loop0", "00")},
		"FS-16":        {status("Uid:\t7000\t7000", "Uid:\t7000\t0"), status("Gid:\t7000", "Gid:\t0"), status("CapEff:\t0000", "CapEff:\t0001")},
		"FS-25":        {func(_ *fence, c *trial) { c.collect("../climbs") }, func(_ *fence, c *trial) { c.collect("\x1b[2J") }, func(_ *fence, c *trial) { c.collect("a\nb") }, func(_ *fence, c *trial) { c.res.Artifacts = nil }},
		"FS-28":        {func(_ *fence, c *trial) { c.collect("result.json") }},
		"FS-31/mounts": {tree("mountinfo", hostMount(t)), tree("mountinfo", "1 1 0:5 / /workspace/m rw - tmpfs glovebox-attack rw\n"), tree("mountinfo", "1 1 0:5 / /sys ro - sysfs sysfs rw\n")},
		"FS-41":        {fd("/proc/sys/kernel/hostname", "01"), fd("/sys/power/state", "02")},
		"NT-07": {tree("net/dev", "a\nb\n lo: 0\n eth0: 0\n"), tree("net/route", "Iface\neth0 0\n"),
			tree("net/ipv6_route", "00 eth0\n")},
		"NT-08": {tree("net/packet", "sk\nffff\n"), tree("net/raw", "sl\n1: 0\n"), tree("net/icmp6", "sl\n1: 0\n")},
		"NT-11": {fd("socket:[4711]", "02")},
		"NT-17": {func(f *fence, _ *trial) {
			os.WriteFile(filepath.Join(f.proc, "self/net/tcp6"), []byte("sl\n 0: 0000:6F38 0\n"), 0o644)
		}},
		"CR-05": {fd("/usr", "00"), fd("pipe:[1]", "01"), tree("fd/1", "->/")},
		"CR-09": {func(*fence, *trial) { unix.AddKey("user", "left", []byte("x"), unix.KEY_SPEC_USER_KEYRING) }},
		"CR-17": {tree("stat", statLine(map[int]string{7: "34816"})), tree("stat", statLine(map[int]string{6: ownSession()}))},
		"RS-34": {func(_ *fence, c *trial) { c.tree["cgroup"] = "4:memory:/\n0::/glovebox/" + c.res.ID + "-t1/run\n" },
			fd(cgroups(t), "00")},
		"RS-36": {tree("stat", statLine(map[int]string{41: "1"})), tree("stat", statLine(map[int]string{19: "-20"})), tree("oom_score_adj", "-1000\n"),
			tree("limits", "Limit\nMax open files  256  1048576  files\n"), tree("limits", "Limit\nMax open files  256  unlimited  files\n")},
		"KS-01/fsopen": {object("[fscontext]")}, "KS-01/fspick": {object("[fscontext]")}, "KS-06": {object("bpf-map")},
		"KS-07": {object("[userfaultfd]")}, "KS-07/user": {object("[userfaultfd]")}, "KS-10": {object("[perf_event]")},
		"KS-12": {object("[io_uring]")}, "KS-14": {object("[fanotify]")}, "KS-22": {fd("/secretmem (deleted)", "02")},
		"KS-25":     {object("[io_uring]"), object("seccomp notify")},
		"KS-03":     {tree("ns/net", "->net:[1]"), tree("ns/user", "->user:[1]")},
		"KS-17/x32": {fine, end(glovebox.StatusSignaled, -1, "")}, "KS-17/int80": {fine},
		"KS-20": {func(_ *fence, c *trial) { c.text = strings.Replace(c.text, "call 555 38", "call 555 255", 1) }, prints("call 480 38\nend\n")},
		"KS-21": {tree("personality", "00400000\n")},
		"KS-23": {status("Seccomp:\t2", "Seccomp:\t0")},
		"KS-23/privileges": {status("NoNewPrivs:\t1", "NoNewPrivs:\t0"), status("CapBnd:\t0000", "CapBnd:\t8000"), status("CapAmb:\t0000", "CapAmb:\t0001"),
			status("CapInh:\t0000", "CapInh:\t0001"), status("CapPrm:\t0000", "CapPrm:\t0001"), status("Uid:\t7000", "Uid:\t0")},
		"IL-02":       {func(_ *fence, c *trial) { c.text = c.res.ID + "-\n" + c.text }, func(_ *fence, c *trial) { c.text = contents("/proc/cmdline") + c.text }},
		"IL-13":       {status("Cpus_allowed_list:\t3", "Cpus_allowed_list:\t0-3"), status("Cpus_allowed_list:\t3", "Cpus_allowed_list:\t0,3")},
		"IL-13/count": {prints("2\nend\n"), prints("16\nend\n")},
		"LT-09":       exitFaults(),
		"LT-11":       {func(_ *fence, c *trial) { c.res.Status = glovebox.StatusExited }},
		"CT-04":       append(exitFaults(), prints("a\n")), "CT-11": exitFaults(), "CT-10/code": {fine, end(glovebox.StatusSignaled, -1, "")},
		"CT-10/signal": {fine, func(_ *fence, c *trial) { c.res.Signal = new("SIGKILL") }}, "CT-10/missing": {fine},
		"RS-09": lateFaults(), "RS-10": lateFaults(), "RS-30": exitFaults(), "RS-47/124": {end(glovebox.StatusWallLimit, 124, "wall")},
		"RS-47/alarm": {end(glovebox.StatusWallLimit, -1, "wall"), func(_ *fence, c *trial) { c.res.Signal = nil }},
		"RS-47/kill":  {end(glovebox.StatusMemoryLimit, -1, "memory")},
		"RS-24":       append(exitFaults(), func(_ *fence, c *trial) { c.res.StderrBytes-- }),
		"RS-28":       append(exitFaults(), func(_ *fence, c *trial) { c.res.Artifacts = nil }),
		"OU-21": {func(_ *fence, c *trial) { c.res.StdoutBytes++ }, func(_ *fence, c *trial) { c.res.StdoutTruncated = false }, shows("first what matters\n"),
			shows("first what matters\n" + strings.Repeat("x", 9000) + "\nlast what matters")},
	}
	addShared(all)
	return all
}

// addShared adds the faults of programs that are many of a kind.
func addShared(all map[string][]func(*fence, *trial)) {
	type list = []func(*fence, *trial)
	for id, more := range exhausting() {
		all[id] = more
	}
	for _, p := range Programs() {
		switch {
		case strings.HasPrefix(p.ID, "OU-") && p.file == "ou_print.py":
			all[p.ID] = list{shows("\x1b[31m"), shows("a\x9b"), shows("a\xff"), shows("\u202eb"), shows("\U000E0041"),
				func(_ *fence, c *trial) { c.res.Untrusted = false }, func(_ *fence, c *trial) { c.res.StdoutBytes = 0 }}
		case strings.HasPrefix(p.ID, "RS-02/"):
			all[p.ID] = lateFaults()
		case strings.HasPrefix(p.ID, "RS-06/"):
			all[p.ID] = exitFaults()
		case strings.HasPrefix(p.ID, "CT-00"), strings.HasPrefix(p.ID, "CT-05"):
			all[p.ID] = append(exitFaults(), prints("hell\n"))
		}
	}
	for id, text := range map[string]string{"OU-01": "[2J", "OU-01/title": "]8;", "OU-02": "x52;cx", "OU-08": "\u200bw"} {
		all[id] = append(all[id], shows(text), unflagged)
	}
	for _, id := range []string{"OU-02/eight", "OU-06", "OU-07", "OU-10", "OU-13", "OU-13/link"} {
		all[id] = append(all[id], unflagged)
	}
	all["OU-14"] = append(all["OU-14"], fine)
}

func ownSession() string { return strings.Fields(process{dir: "/proc/self"}.read("stat"))[5] }

// exhausting are the faults of programs that exhaust something: a bound that is passed, and an end that is told as another.
func exhausting() map[string][]func(*fence, *trial) {
	type list = []func(*fence, *trial)
	uses := func(change func(u *glovebox.Usage)) func(*fence, *trial) {
		return func(_ *fence, c *trial) { change(&c.res.Usage) }
	}
	cpu := list{fine, uses(func(u *glovebox.Usage) { u.CPUMS = new(int64(60000)) }), uses(func(u *glovebox.Usage) { u.CPUMS = nil })}
	many := list{fine, uses(func(u *glovebox.Usage) { u.ProcessesPeak = new(int64(49)) })}
	memory := list{fine, end(glovebox.StatusSignaled, -1, "memory"), uses(func(u *glovebox.Usage) { u.MemoryPeakBytes = new(int64(200 << 20)) })}
	disk := list{fine, uses(func(u *glovebox.Usage) { u.DiskBytes = new(int64(1 << 30)) })}
	flood := list{fine, end(glovebox.StatusOutputLimit, -1, "")}
	miscount := func(_ *fence, c *trial) { c.res.StdoutBytes++ }
	all := map[string]list{"RS-01": cpu, "RS-03": many, "RS-05": many, "RS-33": many[1:], "RS-13": disk, "FS-22": disk, "FS-23": {fine},
		"RS-23/stdout": flood, "RS-23/stderr": flood, "RS-20/threads": cpu, "RS-20/turn": cpu}
	for _, form := range []string{"alone", "child", "many", "shared", "memfd"} {
		all["RS-12/"+form] = memory
	}
	for _, n := range []int{1<<16 - 1, 1 << 16, 1<<16 + 1} {
		all["RS-26/"+strconv.Itoa(n)] = list{fine, miscount, func(_ *fence, c *trial) { c.res.Status = glovebox.StatusWallLimit }}
	}
	return all
}

// TestEveryJudgementCanFail breaks each program in each way in which its own judgement can.
func TestEveryJudgementCanFail(t *testing.T) {
	all := faults(t)
	for _, p := range Programs() {
		if (p.then != nil || p.look != nil) && len(all[p.ID]) == 0 && p.ID != "FS-21" && p.ID != "FS-31" {
			t.Errorf("%s has a judgement of its own that no fault breaks", p.ID)
		}
	}
	for id, list := range all {
		for n, fault := range list {
			t.Run(id+" "+strconv.Itoa(n), func(t *testing.T) { breaks(t, theft{program: id, leak: fault}) })
		}
	}
}

// What costs the host room, and a name in its image, are looked for outside; here the outside is made up.
func TestTheHostIsWatched(t *testing.T) {
	if got := costs(1<<30)(nil, &observed{freed: room{bytes: 2 << 30}}); len(got) != 1 {
		t.Errorf("room that is gone: %q", got)
	}
	if got := losesFiles(100)(nil, &observed{freed: room{files: 101}}); len(got) != 1 {
		t.Errorf("files that are gone: %q", got)
	}
	// A name that is in the root of every machine stands for a probe that was made there.
	if got := notOnHost(&laboratory{name: "tmp"}, nil); len(got) == 0 {
		t.Errorf("a probe in the root: %q", got)
	}
}

// Whoever could not do its work is not taken for one that was contained.
func TestNotTried(t *testing.T) {
	for name, c := range map[string]struct {
		program, reason string
		leak            func(*fence, *trial)
	}{
		"no end":  {"FS-01", "before it had tried all", prints("half\n")},
		"no word": {"KS-01", "before it had tried all", prints("")},
		"stopped": {"FS-01", "did not find the name", func(_ *fence, c *trial) { c.end(glovebox.StatusExited, 99, "") }},
		"crashed": {"CR-01", "signaled", func(_ *fence, c *trial) { c.text = "half\n"; c.res.Status = glovebox.StatusSignaled }},
		"no language": {"CT-00/node", "has no node", func(_ *fence, c *trial) {
			c.err = glovebox.Errorf(glovebox.CodeUnavailable, "install it", "the image has no node")
		}},
		"no tool":                        {"CT-05/go", "the image lacks go", prints("not in image: go\n")},
		"unseen":                         {"KS-23", "cannot be seen", tree("cgroup", "0::/\n")},
		"no status":                      {"KS-23", "cannot be seen", tree("task/5/status", "Name:\tx\n")},
		"no threads":                     {"KS-23/privileges", "cannot be seen", func(_ *fence, c *trial) { delete(c.tree, "task/5/status") }},
		"never held":                     {"KS-12", "before it could be looked at", prints("early\n")},
		"only the sandbox's own process": {"KS-23", "cannot be seen", tree("status", strings.Replace(goodStatus, "NSpid:\t100\t5", "NSpid:\t100\t1", 1))},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFence(t)
			f.leak = c.leak
			r := attackWith(t, f, c.program)
			o := r.Programs[0]
			if o.Verdict != NotTried || !strings.Contains(o.Reason, c.reason) {
				t.Errorf("%s %q %q, want %q", o.Verdict, o.Reason, o.Found, c.reason)
			}
			if r.OK {
				t.Error("all is well where nothing was tried")
			}
		})
	}
}

func TestDisposableIsAskedFor(t *testing.T) {
	f := newFence(t)
	cfg := f.config()
	cfg.Disposable = false
	r, err := Run(t.Context(), cfg)
	if err != nil || !r.OK || r.Total.NotTried < 20 {
		t.Fatalf("%v: %+v", err, r.Total)
	}
	for _, o := range r.Programs {
		if o.Disposable != (o.Verdict == NotTried) {
			t.Errorf("%s: %s", o.ID, o.Verdict)
		}
	}
	cfg.Axes = []string{"XX"}
	if _, err := Run(t.Context(), cfg); err == nil {
		t.Error("an unknown axis is taken")
	}
}

// TestProgramsAreWhole: ids are unique, axes known, files there, and there are enough.
func TestProgramsAreWhole(t *testing.T) {
	seen, axes := map[string]bool{}, map[string]int{}
	for _, p := range Programs() {
		if seen[p.ID] {
			t.Errorf("%s twice", p.ID)
		}
		seen[p.ID] = true
		axes[p.Axis]++
		if err := CheckAxes([]string{p.Axis}); err != nil || !strings.HasPrefix(p.ID, p.Axis+"-") {
			t.Errorf("%s has the axis %s", p.ID, p.Axis)
		}
		if p.Tries == "" || p.Judged == "" || p.said != (p.Judged == byWord) {
			t.Errorf("%s: %+v", p.ID, p)
		}
		if p.file == "" {
			continue
		}
		text, err := programs.ReadFile("programs/" + p.file)
		if err != nil {
			t.Error(err)
		}
		// Whoever only prints or works honestly may do so anywhere.
		guarded := strings.Contains(string(text), `= sandbox`) || strings.Contains(string(text), `!= "sandbox"`) ||
			p.Disposable && strings.Contains(string(text), "HARNESS_OK")
		if !guarded && p.Axis != "CT" && p.Axis != "OU" {
			t.Errorf("%s: %s does not look whether it is in a sandbox", p.ID, p.file)
		}
	}
	if len(seen) < 60 || len(axes) != len(Axes()) {
		t.Errorf("%d programs on %d axes", len(seen), len(axes))
	}
}
