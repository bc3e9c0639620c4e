package attack

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// identity is everything about a file that a run must not change.
func identity(path string) string {
	info, err := os.Lstat(path)
	if err != nil {
		return err.Error()
	}
	s := info.Sys().(*syscall.Stat_t)
	text, err := os.ReadFile(path)
	if err != nil {
		text = nil
	}
	return fmt.Sprint(s.Ino, s.Mode, s.Uid, s.Gid, s.Nlink, s.Mtim, s.Ctim, string(text))
}

// process is one process of a run as the host sees it: a folder of the host's /proc.
type process struct {
	pid   int
	dir   string
	first bool // of its process namespace: the sandbox's own, which holds nothing of the user's
}

// processes are the living processes of a run: those whose control group is named after it, in any hierarchy. (Dead
// ones that
// only the machine's first process can reap hold nothing.)
func processes(proc, run string) []process {
	dirs, _ := filepath.Glob(filepath.Join(proc, "[0-9]*"))
	var all []process
	for _, dir := range dirs {
		groups, err := os.ReadFile(filepath.Join(dir, "cgroup"))
		if err != nil || run == "" || !inGroup(string(groups), run) {
			continue
		}
		p := process{dir: dir}
		status := p.read("status")
		ids := strings.Fields(value(status, "NSpid"))
		p.first = len(ids) > 1 && ids[len(ids)-1] == "1"
		state := value(status, "State") // none: it has gone since
		if p.pid, err = strconv.Atoi(filepath.Base(dir)); err == nil && state != "" && !strings.HasPrefix(state, "Z") {
			all = append(all, p)
		}
	}
	return all
}

// inGroup reports whether one of the paths of /proc/PID/cgroup has a folder that is named after a run: by its id, or
// by its id and
// what a driver adds behind a dash or an underscore.
func inGroup(groups, run string) bool {
	for line := range strings.Lines(groups) {
		for folder := range strings.SplitSeq(strings.TrimSuffix(line, "\n"), "/") {
			if rest, ok := strings.CutPrefix(folder, run); ok && (rest == "" || strings.ContainsRune("-_ ", rune(rest[0]))) {
				return true
			}
		}
	}
	return false
}

// read is a file of the process, empty when it cannot be read.
func (p process) read(name string) string {
	text, err := os.ReadFile(filepath.Join(p.dir, name))
	if err != nil {
		return ""
	}
	return string(text)
}

// status is a value of its status file.
func (p process) status(key string) string { return value(p.read("status"), key) }

// value is a value of a status file's text.
func value(status, key string) string {
	for line := range strings.Lines(status) {
		if v, ok := strings.CutPrefix(line, key+":"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// stat is its stat file from field 3 on, as proc(5) counts; the name before it may hold anything.
func (p process) stat() []string {
	text := p.read("stat")
	return strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
}

// threads are the status files of all its threads.
func (p process) threads() []process {
	dirs, _ := filepath.Glob(filepath.Join(p.dir, "task", "[0-9]*"))
	var all []process
	for _, dir := range dirs {
		all = append(all, process{pid: p.pid, dir: dir})
	}
	return all
}

// descriptor is an open file of a process.
type descriptor struct {
	number   string
	link     string // what /proc calls it
	mode     uint32 // type and permissions
	magic    int64  // kind of the file system
	device   uint64 // of a device node
	writable bool
}

// descriptors are the open files of a process. The error is that they may not be seen.
func (p process) descriptors() ([]descriptor, error) {
	entries, err := os.ReadDir(filepath.Join(p.dir, "fd"))
	if err != nil {
		return nil, err
	}
	var all []descriptor
	for _, e := range entries {
		d := descriptor{number: e.Name()}
		path := filepath.Join(p.dir, "fd", e.Name())
		if d.link, err = os.Readlink(path); err != nil {
			continue // closed since
		}
		var s unix.Stat_t
		var fs unix.Statfs_t
		if unix.Stat(path, &s) == nil {
			d.mode, d.device = s.Mode, s.Rdev
		}
		if unix.Statfs(path, &fs) == nil {
			d.magic = int64(fs.Type)
		}
		d.writable = writable(p.read("fdinfo/" + e.Name()))
		all = append(all, d)
	}
	return all, nil
}

// writable reads the flags of /proc/PID/fdinfo.
func writable(info string) bool {
	for line := range strings.Lines(info) {
		if text, ok := strings.CutPrefix(line, "flags:"); ok {
			flags, err := strconv.ParseUint(strings.TrimSpace(text), 8, 64)
			return err == nil && flags&unix.O_ACCMODE != unix.O_RDONLY
		}
	}
	return false
}

// room is what is left on the file systems of some folders, in bytes and in files.
type room struct{ bytes, files int64 }

func freeRoom(folders []string) room {
	var r room
	for _, dir := range folders {
		var fs unix.Statfs_t
		if unix.Statfs(dir, &fs) == nil {
			r.bytes += int64(fs.Bfree) * fs.Bsize
			r.files += int64(fs.Ffree)
		}
	}
	return r
}
