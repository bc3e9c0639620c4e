package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// try tries to reach something, once for each way: KIND:WHERE.
func try(ways []string) error {
	for _, way := range ways {
		kind, where, _ := strings.Cut(way, ":")
		answer(way, reach(kind, where))
	}
	return nil
}

const patience = 300 * time.Millisecond

// reach is nil when it got through, as far as it can tell.
func reach(kind, where string) error {
	switch kind {
	case "tcp", "unix":
		c, err := net.DialTimeout(kind, where, patience)
		if err != nil {
			return err
		}
		fmt.Fprintln(c, "visit")
		return c.Close()
	case "udp": // a packet that leaves is no proof that it arrives: who listens has the last word
		c, err := net.DialTimeout(kind, where, patience)
		if err != nil {
			return err
		}
		defer c.Close()
		if _, err := fmt.Fprintln(c, "visit"); err != nil {
			return err
		}
		c.SetReadDeadline(time.Now().Add(patience))
		_, err = c.Read(make([]byte, 1))
		return err
	case "dns":
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_, err := net.DefaultResolver.LookupHost(ctx, where)
		return err
	case "vsock":
		return socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0, &unix.SockaddrVM{CID: unix.VMADDR_CID_HOST, Port: 22})
	case "packet":
		return socket(unix.AF_PACKET, unix.SOCK_RAW, 0, nil)
	case "raw":
		return socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP, nil)
	case "shm":
		return shared(where)
	case "key":
		_, err := unix.KeyctlSearch(unix.KEY_SPEC_USER_KEYRING, "user", where, 0)
		return err
	case "signal":
		return unix.Kill(-1, unix.SIGCONT) // whoever it may send to; none but itself is an error
	}
	return errors.New("the probe knows no such way")
}

func socket(family, kind, protocol int, to unix.Sockaddr) error {
	fd, err := unix.Socket(family, kind, protocol)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if to == nil {
		return nil
	}
	timeout := unix.NsecToTimeval(patience.Nanoseconds())
	unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &timeout)
	return unix.Connect(fd, to)
}

// shared attaches memory by its id.
func shared(where string) error {
	id, err := strconv.Atoi(where)
	if err != nil {
		return err
	}
	at, err := unix.SysvShmAttach(id, 0, unix.SHM_RDONLY)
	if err != nil {
		return err
	}
	return unix.SysvShmDetach(at)
}

// calls makes calls that nobody in a sandbox may make, with arguments that do nothing that lasts.
func calls([]string) error {
	name := []byte("changed")
	path := []byte("/workspace\x00")
	at := uintptr(unsafe.Pointer(&path[0]))
	for _, c := range []struct {
		what       string
		number     uintptr
		a, b, c, d uintptr
	}{
		{"setuid 0", unix.SYS_SETUID, 0, 0, 0, 0},
		{"setgid 0", unix.SYS_SETGID, 0, 0, 0, 0},
		{"sethostname", unix.SYS_SETHOSTNAME, uintptr(unsafe.Pointer(&name[0])), uintptr(len(name)), 0, 0},
		{"mount", unix.SYS_MOUNT, at, at, 0, unix.MS_BIND},
		{"chroot", unix.SYS_CHROOT, at, 0, 0, 0},
		{"swapoff", unix.SYS_SWAPOFF, at, 0, 0, 0},
		{"bpf", unix.SYS_BPF, 0, 0, 0, 0},
		{"init_module", unix.SYS_INIT_MODULE, 0, 0, at, 0},
		{"reboot", unix.SYS_REBOOT, 0, 0, 0, 0},
		{"settimeofday", unix.SYS_SETTIMEOFDAY, 0, 0, 0, 0},
	} {
		// Those of ids are asked of this thread alone, which is what a fence must refuse as well.
		_, _, e := unix.RawSyscall6(c.number, c.a, c.b, c.c, c.d, 0, 0)
		if e == 0 {
			answer(c.what, nil)
		} else {
			answer(c.what, e)
		}
	}
	return nil
}

// change tries to change files and folders, each in all ways.
func change(paths []string) error {
	beside := func(path string) string { return filepath.Join(filepath.Dir(path), "new") }
	for _, path := range paths {
		for _, c := range []struct {
			what string
			do   func() error
		}{
			{"chmod", func() error { return os.Chmod(path, 0o777) }},
			{"chown", func() error { return os.Lchown(path, os.Getuid(), os.Getgid()) }},
			{"times", func() error { return os.Chtimes(path, time.Unix(1, 0), time.Unix(1, 0)) }},
			{"attribute", func() error { return unix.Setxattr(path, "user.probe", []byte("x"), 0) }},
			{"append", func() error { return opened(path, os.O_WRONLY|os.O_APPEND) }},
			{"again", func() error { return again(path) }},
			{"truncate", func() error { return os.Truncate(path, 0) }},
			{"link", func() error { return os.Link(path, beside(path)) }},
			{"symlink", func() error { return os.Symlink("x", beside(path)+"er") }},
			{"mkdir", func() error { return os.Mkdir(beside(path)+"est", 0o777) }},
			{"create", func() error { return opened(beside(path)+"ly", os.O_WRONLY|os.O_CREATE) }},
			{"rename", func() error { return os.Rename(path, path+".moved") }},
			{"replace", func() error { return os.Rename("/workspace/own", path) }},
			{"remove", func() error { return os.Remove(path) }},
		} {
			if err := os.WriteFile("/workspace/own", []byte("own"), 0o666); err != nil {
				return err
			}
			answer(c.what+" "+path, c.do())
		}
	}
	return nil
}

func opened(path string, how int) error {
	f, err := os.OpenFile(path, how, 0o666)
	if err != nil {
		return err
	}
	return f.Close()
}

// again opens a file for writing through a descriptor that was opened for reading.
func again(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return opened(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), os.O_WRONLY)
}

// find names every file whose name holds a word, where it may look. What the image has in great numbers it passes over.
func find(args []string) error {
	word := args[0]
	for _, dir := range args[1:] {
		filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			switch {
			case err != nil || path == "/usr" || path == "/proc":
				return fs.SkipDir
			case strings.Contains(e.Name(), word):
				answer("find "+path, nil)
			}
			return nil
		})
	}
	return nil
}

// read reads files and shows where they begin.
func read(paths []string) error {
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			answer("read "+path, err)
			continue
		}
		text, err := io.ReadAll(io.LimitReader(f, 1<<16))
		f.Close()
		answer(fmt.Sprintf("read %s %q", path, text), err)
	}
	return nil
}

// echo answers each line at once.
func echo([]string) error {
	in := bufio.NewReader(os.Stdin)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			fmt.Fprint(os.Stdout, "end ", line)
			return nil
		}
		fmt.Fprint(os.Stdout, "got ", line)
	}
}
