package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"glovebox/internal/kernelfile"
)

// read returns the text of a small control file.
func read(dir, file string) (string, error) {
	text, err := kernelfile.Read(filepath.Join(dir, file))
	return strings.TrimSpace(text), err
}

// write gives a control file a value. The file must exist.
func write(dir, file, value string) error {
	if err := kernelfile.Write(filepath.Join(dir, file), value); err != nil {
		return fmt.Errorf("value %q: %w", value, err)
	}
	return nil
}

// openQuietly is os.Open for what is only handed to others: package os would have the runtime's poller watch it, which the
// kernel allows for files of control groups, and take it off again.
func openQuietly(path string, flags int) (*os.File, error) {
	for {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
		switch {
		case err == nil:
			return os.NewFile(uintptr(fd), path), nil
		case err != unix.EINTR:
			return nil, &fs.PathError{Op: "open", Path: path, Err: err}
		}
	}
}

// rmdir removes a group; none there is fine. The kernel's rmdir takes a group's files along with it, and os.Remove would try
// to unlink first.
func rmdir(dir string) error {
	for {
		err := syscall.Rmdir(dir)
		switch {
		case err == nil || errors.Is(err, fs.ErrNotExist):
			return nil
		case err != syscall.EINTR:
			return &fs.PathError{Op: "rmdir", Path: dir, Err: err}
		}
	}
}

// rmdirSoon is rmdir for a group whose last process may be gone from its list and not yet from its count.
func rmdirSoon(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	for wait := 500 * time.Microsecond; ; wait *= 2 {
		err := rmdir(dir)
		if !errors.Is(err, syscall.EBUSY) {
			return err
		}
		if procs, _ := read(dir, "cgroup.procs"); procs != "" {
			return err
		}
		if sleep(ctx, wait) != nil {
			return err
		}
	}
}

// number parses a counter or a limit; "max" is math.MaxInt64.
func number(s string) (int64, error) {
	s = strings.TrimSpace(s)
	if s == "max" {
		return math.MaxInt64, nil
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("not a number: %q", clip(s))
	}
	return int64(min(n, math.MaxInt64)), nil
}

// field finds a number in lines of "key value".
func field(text, key string) (int64, bool) {
	for line := range strings.Lines(text) {
		if k, v, ok := strings.Cut(line, " "); ok && k == key {
			n, err := number(v)
			return n, err == nil
		}
	}
	return 0, false
}

// cpuBound is above any number of a CPU that Linux supports.
const cpuBound = 1 << 16

// ParseCPUs reads the kernel's list format, such as "0-3,8", of cpuset(7).
func ParseCPUs(s string) ([]int, error) {
	var cpus []int
	for part := range strings.SplitSeq(strings.TrimSpace(s), ",") {
		if part == "" {
			continue
		}
		first, last, isRange := strings.Cut(part, "-")
		a, err := strconv.ParseUint(first, 10, 32)
		b := a
		if err == nil && isRange {
			b, err = strconv.ParseUint(last, 10, 32)
		}
		if err != nil || b < a || b >= cpuBound || len(cpus)+int(b-a) >= cpuBound {
			return nil, fmt.Errorf("not a list of CPUs: %q", clip(s))
		}
		for n := a; n <= b; n++ {
			cpus = append(cpus, int(n))
		}
	}
	return cpus, nil
}

func formatCPUs(cpus []int) string {
	var b strings.Builder
	for i, n := range cpus {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(n))
	}
	return b.String()
}

func clip(s string) string { return s[:min(len(s), 64)] }

// writable reports whether the effective user may make entries in a folder; it knows of read-only mounts.
func writable(dir string) error {
	return unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS)
}
