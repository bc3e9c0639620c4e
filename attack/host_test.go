package attack_test

import (
	"bufio"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	battery "glovebox/attack"
)

// host is what a run must leave as it found it.
type host struct {
	mounts  map[string]bool
	loops   map[string]bool // backing files of loop devices
	runs    map[string]bool // what is in data_dir/runs
	blobs   int
	modules string
	canary  map[string]string // identity of each canary file
	free    int64             // bytes left on the file system of the data_dir
	inodes  int64
}

func (l *laboratory) lookAtHost(t *testing.T) host {
	t.Helper()
	h := host{mounts: map[string]bool{}, loops: map[string]bool{}, runs: map[string]bool{}, canary: map[string]string{}}
	for _, line := range strings.Split(read("/proc/self/mountinfo"), "\n") {
		// A test of another package has a file system of its own.
		if strings.Contains(line, " /dev/shm/Test") || strings.Contains(line, " "+filepath.Join(os.TempDir(), "Test")) {
			continue
		}
		h.mounts[line] = true
	}
	backing, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, f := range backing {
		if name := strings.TrimSpace(read(f)); strings.Contains(name, l.dir) {
			h.loops[name] = true
		}
	}
	runs, _ := os.ReadDir(filepath.Join(l.data, "runs"))
	for _, r := range runs {
		h.runs[r.Name()] = true
	}
	for _, line := range strings.Split(read("/proc/modules"), "\n") {
		name, _, _ := strings.Cut(line, " ")
		h.modules += name + " "
	}
	for _, f := range l.files {
		h.canary[f] = identity(f)
	}
	var fs syscall.Statfs_t
	if err := syscall.Statfs(l.data, &fs); err != nil {
		t.Fatal(err)
	}
	h.free, h.inodes = int64(fs.Bavail)*fs.Bsize, int64(fs.Ffree)
	return h
}

func read(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(b)
}

// compare reports what a run changed on the host.
func (l *laboratory) compare(before, after host) []string {
	var wrong []string
	for _, m := range added(before.mounts, after.mounts) {
		wrong = append(wrong, "mount on the host: "+m)
	}
	for _, m := range added(after.mounts, before.mounts) {
		wrong = append(wrong, "mount gone from the host: "+m)
	}
	for _, f := range added(before.loops, after.loops) {
		wrong = append(wrong, "loop device left: "+f)
	}
	for _, f := range added(before.runs, after.runs) {
		wrong = append(wrong, "folder left in data_dir/runs: "+f)
	}
	if before.modules != after.modules {
		wrong = append(wrong, "kernel modules changed: "+before.modules+" -> "+after.modules)
	}
	for f, was := range before.canary {
		if after.canary[f] != was {
			wrong = append(wrong, fmt.Sprintf("canary %s changed: %s -> %s", f, was, after.canary[f]))
		}
	}
	return wrong
}

func added(before, after map[string]bool) []string {
	var all []string
	for _, k := range slices.Sorted(maps.Keys(after)) {
		if !before[k] {
			all = append(all, k)
		}
	}
	return all
}

// groupDirs are the folders of a control group in every hierarchy.
func groupDirs(parent string) []string {
	dirs, _ := filepath.Glob("/sys/fs/cgroup/*" + parent)
	if _, err := os.Stat("/sys/fs/cgroup" + parent); err == nil {
		dirs = append(dirs, "/sys/fs/cgroup"+parent)
	}
	return dirs
}

// survivors names every process that is in a control group of the runs under test, or has one of their user ids.
func (l *laboratory) survivors() []string {
	found := map[string]bool{}
	for _, dir := range groupDirs(l.cgroup) {
		filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err == nil && d.Name() == "cgroup.procs" {
				for _, pid := range strings.Fields(read(path)) {
					found[pid+" in "+path] = true
				}
			}
			return nil
		})
	}
	for _, p := range l.processes(l.uids) {
		found[fmt.Sprintf("%d by its user id: %s", p.pid, p.name)] = true
	}
	return slices.Sorted(maps.Keys(found))
}

// groups are the control groups of runs that exist.
func (l *laboratory) groups() []string {
	var all []string
	for _, dir := range groupDirs(l.cgroup) {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			if e.IsDir() {
				all = append(all, filepath.Join(dir, e.Name()))
			}
		}
	}
	return all
}

type hostProcess struct {
	pid    int
	name   string
	orphan bool // its parent is the first process
}

// processes are the host's processes whose user id is in the range. Dead ones that only the machine's first process can reap
// are not counted: when it does so is up to it.
func (l *laboratory) processes(ids idRange) []hostProcess {
	var all []hostProcess
	dirs, _ := filepath.Glob("/proc/[0-9]*/status")
	for _, d := range dirs {
		f, err := os.Open(d)
		if err != nil {
			continue
		}
		p := hostProcess{}
		p.pid, _ = strconv.Atoi(strings.Split(d, "/")[2])
		ours, dead := false, false
		for s := bufio.NewScanner(f); s.Scan(); {
			key, value, _ := strings.Cut(s.Text(), ":")
			switch value = strings.TrimSpace(value); key {
			case "Name":
				p.name = value
			case "State":
				dead = strings.HasPrefix(value, "Z")
			case "PPid":
				p.orphan = value == "1"
			case "Uid":
				for _, id := range strings.Fields(value) {
					n, _ := strconv.ParseUint(id, 10, 32)
					ours = ours || ids.has(uint32(n))
				}
			}
		}
		f.Close()
		if ours && !(dead && p.orphan) && !l.known[p.pid] {
			all = append(all, p)
		}
	}
	return all
}

func mkfifo(path string) error { return syscall.Mkfifo(path, 0o600) }

// settle waits a moment until a thing that others on the machine may change too is as it should be.
func settle(within time.Duration, good func() bool) bool {
	for end := time.Now().Add(within); ; time.Sleep(20 * time.Millisecond) {
		if good() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
	}
}

func identity(path string) string { return battery.Identity(path) }
