package netd

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// roleFenced and a name make a process that fences itself and does what has that name.
const roleFenced = "fenced "

// attempts are what a fenced process may not do, and what it may.
func attempts() map[string]func() {
	return map[string]func(){
		"socket":   func() { _, _ = unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0) },
		"open":     func() { _, _ = os.Open("/dev/null") },
		"exec":     func() { _ = unix.Exec("/proc/self/exe", nil, nil) },
		"fork":     func() { _, _, _ = unix.RawSyscall(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0) },
		"run":      func() { _, _ = unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_ANON|unix.MAP_PRIVATE) },
		"make run": makeRun,
		"dumpable": func() { _ = unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0) },
		"a thread": func() {
			fork := make(chan bool)
			go func() { runtime.LockOSThread(); _, _ = os.Open("/"); fork <- true }()
			<-fork
		},
		"nothing": func() {},
		"clone3":  noClone3,
	}
}

func noClone3() {
	if _, _, errno := unix.RawSyscall(unix.SYS_CLONE3, 0, 0, 0); errno != unix.ENOSYS {
		panic(errno)
	}
}

func makeRun() {
	b, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		panic(err)
	}
	_ = unix.Mprotect(b, unix.PROT_READ|unix.PROT_EXEC)
}

// beFenced is the process; it returns its exit code.
func beFenced(what string) int {
	if err := Fence(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	attempts()[what]()
	_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0) // without what a C library or a race detector does at the end
	return 2
}

func TestFence(t *testing.T) {
	for what := range attempts() {
		t.Run(what, func(t *testing.T) {
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), roleVar+"="+roleFenced+what)
			var out strings.Builder
			cmd.Stderr = &out
			err := cmd.Run()
			status := cmd.ProcessState.Sys().(syscall.WaitStatus)
			allowed := slices.Contains([]string{"nothing", "clone3"}, what)
			if held := status.Signaled() && status.Signal() == syscall.SIGSYS; held == allowed || allowed && err != nil {
				t.Errorf("it ended with %v\n%s", err, out.String())
			}
		})
	}
}
