package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// around runs a command where one thing that sandboxes are made of is missing: around KIND COMMAND ARG...
func around() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "say around KIND COMMAND ARG...")
		os.Exit(2)
	}
	if err := takeAway(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "around:", err)
		os.Exit(2)
	}
}

func takeAway(kind string, argv []string) error {
	switch kind {
	case "no-landlock":
		return filtered(argv, unix.SYS_LANDLOCK_CREATE_RULESET)
	case "no-seccomp":
		return filtered(argv, unix.SYS_SECCOMP)
	case "no-mounts":
		return filtered(argv, unix.SYS_MOUNT, unix.SYS_FSOPEN, unix.SYS_OPEN_TREE)
	case "no-groups":
		return within(append([]string{"around", "now-no-groups"}, argv...), &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS})
	case "now-no-groups":
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return err
		}
		if err := unix.Mount("tmpfs", "/sys/fs/cgroup", "tmpfs", 0, ""); err != nil {
			return err
		}
		return become(argv)
	case "no-namespaces":
		every := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1<<32 - 1}}
		return within(append([]string{"around", "now-no-namespaces"}, argv...), &syscall.SysProcAttr{
			Cloneflags: syscall.CLONE_NEWUSER, UidMappings: every, GidMappings: every})
	case "now-no-namespaces":
		if err := os.WriteFile("/proc/sys/user/max_user_namespaces", []byte("0"), 0); err != nil {
			return err
		}
		return become(argv)
	}
	return errors.New("there is no " + kind)
}

// within runs a command in namespaces of its own and ends as it does.
func within(argv []string, sys *syscall.SysProcAttr) error {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = os.Stdin, os.Stdout, os.Stderr, sys
	sys.Pdeathsig = syscall.SIGKILL
	err := cmd.Run()
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		os.Exit(ended.ExitCode())
	}
	return err
}

// become executes a command in this process's place.
func become(argv []string) error {
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return err
	}
	return syscall.Exec(path, argv, os.Environ())
}

// filtered executes a command for which some system calls are refused, as by a container's filter.
func filtered(argv []string, calls ...uint32) error {
	code := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}}
	for _, call := range calls {
		code = append(code, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: call},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)})
	}
	code = append(code, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW})
	program := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	if _, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&program))); e != 0 {
		return e
	}
	return become(argv)
}
