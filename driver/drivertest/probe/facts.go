package main

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// facts prints what the program sees of itself and of where it is: a list of words for each name.
func facts([]string) error {
	all := map[string][]string{"fd": descriptors()} // first, before any is opened here
	for name, file := range map[string]string{"boot_id": "/proc/sys/kernel/random/boot_id", "machine_id": "/etc/machine-id",
		"uuid": "/proc/sys/kernel/random/uuid", "cgroup": "/proc/self/cgroup", "cmdline": "/proc/cmdline"} {
		all[name] = lines(file)
	}
	ownStatus(all)
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return err
	}
	all["hostname"] = []string{unix.ByteSliceToString(name.Nodename[:])}
	all["domainname"] = []string{unix.ByteSliceToString(name.Domainname[:])}
	all["release"] = []string{unix.ByteSliceToString(name.Release[:])}
	chance := make([]byte, 16)
	if _, err := unix.Getrandom(chance, 0); err != nil {
		return err
	}
	all["getrandom"] = []string{hex.EncodeToString(chance)}
	all["at_random"] = []string{atRandom()}
	all["interfaces"] = interfaces()
	for _, line := range lines("/proc/self/mountinfo") {
		all["mounts"] = append(all["mounts"], line)
	}
	for _, kind := range []string{"cgroup", "ipc", "mnt", "net", "pid", "user", "uts"} {
		link, err := os.Readlink("/proc/self/ns/" + kind)
		if err == nil {
			all["ns"] = append(all["ns"], link)
		}
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err == nil {
			all["pids"] = append(all["pids"], e.Name())
		}
	}
	own(all)
	return json.NewEncoder(os.Stdout).Encode(all)
}

// own adds what the program's process has: numbers, limits, CPUs, a terminal.
func own(all map[string][]string) {
	sid, _ := unix.Getsid(0)
	all["session"] = []string{fmt.Sprint(sid), fmt.Sprint(os.Getpid()), fmt.Sprint(unix.Getpgrp())}
	all["ids"] = []string{fmt.Sprint(os.Getuid(), os.Geteuid(), os.Getgid(), os.Getegid())}
	var cpus unix.CPUSet
	if err := unix.SchedGetaffinity(0, &cpus); err == nil {
		all["cpus"] = []string{fmt.Sprint(cpus.Count())}
	}
	for name, which := range map[string]int{"nofile": unix.RLIMIT_NOFILE, "core": unix.RLIMIT_CORE,
		"memlock": unix.RLIMIT_MEMLOCK} {
		var l unix.Rlimit
		if err := unix.Getrlimit(which, &l); err == nil {
			all[name] = []string{fmt.Sprint(l.Cur), fmt.Sprint(l.Max)}
		}
	}
	if f, err := os.Open("/dev/tty"); err == nil {
		f.Close()
		all["tty"] = []string{"opened"}
	}
	for fd := range 3 {
		if _, err := unix.IoctlGetTermios(fd, unix.TCGETS); err == nil {
			all["tty"] = append(all["tty"], fmt.Sprint(fd))
		}
	}
}

// descriptors are those that are open, with what they are.
func descriptors() (open []string) {
	for fd := range 4096 {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil {
			continue
		}
		var st unix.Stat_t
		kind := "unknown"
		if err := unix.Fstat(fd, &st); err == nil {
			kind = map[uint32]string{unix.S_IFIFO: "pipe", unix.S_IFCHR: "device", unix.S_IFSOCK: "socket", unix.S_IFREG: "file",
				unix.S_IFDIR: "folder"}[st.Mode&unix.S_IFMT]
		}
		open = append(open, fmt.Sprintf("%d %s", fd, kind))
	}
	return open
}

// ownStatus adds the fields of the status files of all own threads, each value once.
func ownStatus(all map[string][]string) {
	files, _ := filepath.Glob("/proc/self/task/*/status")
	for _, file := range files {
		for _, line := range lines(file) {
			name, value, ok := strings.Cut(line, ":")
			value = strings.Join(strings.Fields(value), " ")
			if wanted := []string{"Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp",
				"SigIgn"}; ok && slices.Contains(wanted, name) && !slices.Contains(all[name], value) {
				all[name] = append(all[name], value)
			}
		}
	}
}

// atRandom is what the kernel gave this program's start for its own random numbers.
func atRandom() string {
	const entry = 25
	vector, err := os.ReadFile("/proc/self/auxv")
	if err != nil {
		return err.Error()
	}
	for ; len(vector) >= 16; vector = vector[16:] {
		if binary.NativeEndian.Uint64(vector) == entry {
			at := uintptr(binary.NativeEndian.Uint64(vector[8:]))
			buf := make([]byte, 16)
			local := []unix.Iovec{{Base: &buf[0], Len: 16}}
			if n, err := unix.ProcessVMReadv(os.Getpid(), local, []unix.RemoteIovec{{Base: at, Len: 16}}, 0); err == nil && n == 16 {
				return hex.EncodeToString(buf)
			}
			// The address is that of the first stack, which stays where it is.
			return hex.EncodeToString(unsafe.Slice(*(**byte)(unsafe.Pointer(&at)), 16))
		}
	}
	return ""
}

// interfaces are those that any source names, each once.
func interfaces() (names []string) {
	add := func(name string) {
		if name = strings.TrimSpace(name); name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for _, line := range lines("/proc/net/dev") {
		if name, _, ok := strings.Cut(line, ":"); ok {
			add(name)
		}
	}
	entries, _ := os.ReadDir("/sys/class/net")
	for _, e := range entries {
		add(e.Name())
	}
	known, _ := net.Interfaces() // by netlink, where there is one
	for _, i := range known {
		add(i.Name)
	}
	return names
}

// lines are those of a file; what cannot be read has none.
func lines(file string) (all []string) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	for line := range bytes.Lines(text) {
		all = append(all, string(bytes.TrimSpace(line)))
	}
	return all
}
