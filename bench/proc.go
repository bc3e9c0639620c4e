package bench

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// tick is what the kernel counts CPU time in for other processes: USER_HZ, which is 100 on every architecture we build for.
const tick = 10 * time.Millisecond

// task is one process of the machine.
type task struct {
	pid, parent int
	own         time.Duration // CPU time
	cpu         time.Duration // its own and of its waited-for descendants
}

// descendants returns a process and all its living descendants.
func descendants(pid int) ([]task, error) {
	all, err := tasks()
	if err != nil {
		return nil, err
	}
	children := map[int][]task{}
	var tree []task
	for _, t := range all {
		children[t.parent] = append(children[t.parent], t)
		if t.pid == pid {
			tree = append(tree, t)
		}
	}
	if len(tree) == 0 {
		return nil, fmt.Errorf("process %d has ended", pid)
	}
	for i := 0; i < len(tree); i++ {
		tree = append(tree, children[tree[i].pid]...)
	}
	return tree, nil
}

func tasks() ([]task, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var all []task
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		text, err := os.ReadFile("/proc/" + name + "/stat")
		if err != nil {
			continue // it has ended
		}
		if t, ok := parseStat(pid, string(text)); ok {
			all = append(all, t)
		}
	}
	return all, nil
}

// parseStat reads /proc/PID/stat. The name, which is the process's own to choose, is in parentheses and may hold any.
func parseStat(pid int, text string) (task, bool) {
	i := strings.LastIndexByte(text, ')')
	if i < 0 {
		return task{}, false
	}
	fields := strings.Fields(text[i+1:]) // from field 3 of proc(5) on
	const parent, utime, stime, cstime = 4, 14, 15, 17
	if len(fields) < cstime-2 {
		return task{}, false
	}
	t := task{pid: pid}
	var err error
	if t.parent, err = strconv.Atoi(fields[parent-3]); err != nil {
		return task{}, false
	}
	for i, f := range fields[utime-3 : cstime-2] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return task{}, false
		}
		if t.cpu += time.Duration(n) * tick; utime+i == stime {
			t.own = t.cpu
		}
	}
	return t, true
}

// proportional is the proportional share of memory of processes, in bytes. Those that have ended meanwhile have none.
func proportional(tree []task) (int64, error) {
	var sum int64
	for _, t := range tree {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", t.pid))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue
		}
		if err != nil {
			return 0, err
		}
		n, ok := parsePss(string(text))
		if !ok {
			return 0, fmt.Errorf("smaps_rollup of process %d has no Pss", t.pid)
		}
		sum += n
	}
	return sum, nil
}

func parsePss(text string) (int64, bool) {
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "Pss:" && f[2] == "kB" {
			n, err := strconv.ParseInt(f[1], 10, 64)
			return n << 10, err == nil
		}
	}
	return 0, false
}

// sandboxGroup is a line of /proc/PID/cgroup that names the sandbox of the process.
var sandboxGroup = regexp.MustCompile(`(?m)/([A-Za-z0-9_-]+)/(?:init|run)$`)

// sandboxes counts the sandboxes of those processes that have mapped a file with this in its path.
func sandboxes(tree []task, mapped string) int {
	seen := map[string]bool{}
	for _, t := range tree {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", t.pid))
		if err != nil {
			continue // it has ended
		}
		m := sandboxGroup.FindSubmatch(text)
		if m == nil || seen[string(m[1])] {
			continue
		}
		maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", t.pid))
		if err == nil && strings.Contains(string(maps), mapped) {
			seen[string(m[1])] = true
		}
	}
	return len(seen)
}

// sandboxesGroup is the control group that all sandboxes of a server are in, as a path below every hierarchy. It is seen at
// one of the sandboxes.
func sandboxesGroup(tree []task) (string, error) {
	for _, t := range tree {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", t.pid))
		if err != nil {
			continue // it has ended
		}
		for line := range strings.Lines(string(text)) {
			_, path, ok := strings.Cut(strings.TrimRight(line, "\n"), "::") // version 2
			if m := sandboxGroup.FindStringIndex(path); ok && m != nil {
				return path[:m[0]], nil
			}
		}
	}
	return "", errors.New("no control group of version 2 with sandboxes was found")
}

// groupUsage finds the file that counts the CPU time of a control group of version 2 and of all groups that were in it.
func groupUsage(group string) (string, error) {
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		file := root + group + "/cpu.stat"
		if _, err := os.Stat(file); err == nil {
			return file, nil
		}
	}
	return "", fmt.Errorf("control group %s has no cpu.stat", group)
}

func readUsage(file string) (time.Duration, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if name, n, _ := strings.Cut(strings.TrimSpace(line), " "); name == "usage_usec" {
			usec, err := strconv.ParseInt(n, 10, 64)
			return time.Duration(usec) * time.Microsecond, err
		}
	}
	return 0, fmt.Errorf("%s has no usage_usec", file)
}

// machineCPU is the time that all CPUs were busy, since the machine started.
func machineCPU() (time.Duration, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	return parseBusy(line)
}

// parseBusy reads the first line of /proc/stat: user nice system idle iowait irq softirq steal, the rest is in user.
func parseBusy(line string) (time.Duration, error) {
	f := strings.Fields(line)
	if len(f) < 8 || f[0] != "cpu" {
		return 0, fmt.Errorf("/proc/stat begins with %.100q", line)
	}
	var sum time.Duration
	for i, s := range f[1:8] {
		if i == 3 || i == 4 {
			continue // idle, and idle while waiting for a disk
		}
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return 0, err
		}
		sum += time.Duration(n) * tick
	}
	return sum, nil
}

// Machine is where it was measured.
type Machine struct {
	CPU         string `json:"cpu"`
	CPUs        int    `json:"cpus"`
	MemoryBytes int64  `json:"memory_bytes"`
	Kernel      string `json:"kernel"`
	Distro      string `json:"distro"`
	Load        string `json:"load_before"` // of the last 1, 5 and 15 minutes
}

func machine() Machine {
	m := Machine{CPUs: runtime.NumCPU(), CPU: value("/proc/cpuinfo", "model name", ":"), Kernel: runtime.GOOS}
	if text, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = "Linux " + strings.TrimSpace(string(text)) + " " + runtime.GOARCH
	}
	if kb, err := strconv.ParseInt(strings.TrimSuffix(value("/proc/meminfo", "MemTotal", ":"), " kB"), 10, 64); err == nil {
		m.MemoryBytes = kb << 10
	}
	m.Distro = strings.Trim(value("/etc/os-release", "PRETTY_NAME", "="), `"`)
	if text, err := os.ReadFile("/proc/loadavg"); err == nil {
		m.Load = strings.Join(strings.Fields(string(text))[:3], " ")
	}
	return m
}

// busy reports whether more wanted to run in the minute before than there are CPUs.
func (m Machine) busy() bool {
	last, _, _ := strings.Cut(m.Load, " ")
	load, err := strconv.ParseFloat(last, 64)
	return err == nil && load > float64(m.CPUs)
}

// value returns what a file of lines with names says of a name, or "unknown".
func value(file, name, sep string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return "unknown"
	}
	for line := range strings.Lines(string(text)) {
		if key, v, ok := strings.Cut(line, sep); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(v)
		}
	}
	return "unknown"
}
