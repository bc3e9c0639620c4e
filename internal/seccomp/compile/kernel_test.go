package compile

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// confinedEnv makes the test binary the confined process instead of a test.
const confinedEnv = "GLOVEBOX_SECCOMP_CONFINED"

func TestMain(m *testing.M) {
	switch os.Getenv(confinedEnv) {
	case "":
		os.Exit(m.Run())
	case "calls":
		confine()
		tryCalls()
	case "x32":
		confine()
		syscall.RawSyscall(bitX32|39, 0, 0, 0)
		fmt.Println("alive")
	}
	os.Exit(0)
}

// confine installs the filter on every thread of this process. It ends the process if it cannot.
func confine() {
	runtime.LockOSThread()
	filter, err := Filter(runtime.GOARCH)
	if err != nil {
		fmt.Println(err)
		os.Exit(9)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		fmt.Println(err)
		os.Exit(9)
	}
	program := unix.SockFprog{Len: uint16(len(filter) / 8), Filter: (*unix.SockFilter)(unsafe.Pointer(&filter[0]))}
	const everyThread = 1
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, 1, everyThread, uintptr(unsafe.Pointer(&program))); errno != 0 {
		fmt.Println(errno)
		os.Exit(9)
	}
}

// tryCalls makes calls that could do no harm if they passed, and prints how the kernel answered.
func tryCalls() {
	say := func(name string, errno syscall.Errno) { fmt.Printf("%s: %s\n", name, errnoWord(errno)) }
	raw := func(name string, number, a, b, c uintptr) {
		_, _, errno := syscall.RawSyscall(number, a, b, c)
		say(name, errno)
	}
	const bad = ^uintptr(0) // as a descriptor or number of a process: nothing there
	raw("getpid", unix.SYS_GETPID, 0, 0, 0)
	raw("mount", unix.SYS_MOUNT, 0, 0, 0)
	raw("unshare", unix.SYS_UNSHARE, 0, 0, 0)
	raw("setns", unix.SYS_SETNS, bad, 0, 0)
	raw("clone3", unix.SYS_CLONE3, 0, 0, 0)
	raw("io_uring_setup", unix.SYS_IO_URING_SETUP, 0, 0, 0)
	raw("bpf", unix.SYS_BPF, bad, 0, 0)
	raw("ptrace", unix.SYS_PTRACE, bad, 0, 0)
	raw("keyctl", unix.SYS_KEYCTL, bad, 0, 0)
	raw("open_by_handle_at", unix.SYS_OPEN_BY_HANDLE_AT, bad, 0, 0)
	raw("clone user namespace", unix.SYS_CLONE, unix.CLONE_NEWUSER|0xff, 0, 0)
	raw("ioctl TIOCSTI", unix.SYS_IOCTL, bad, unix.TIOCSTI, 0)
	raw("ioctl TIOCSTI high", unix.SYS_IOCTL, bad, 1<<32|unix.TIOCSTI, 0)
	raw("ioctl TCGETS", unix.SYS_IOCTL, bad, unix.TCGETS, 0)
	raw("personality query", unix.SYS_PERSONALITY, 0xffffffff, 0, 0)
	raw("personality", unix.SYS_PERSONALITY, 0x0400000, 0, 0)
	raw("listener", unix.SYS_SECCOMP, 1, 8, 0)
	raw("newest", 470, 0, 0, 0)
	raw("limits of init", unix.SYS_PRLIMIT64, 1, unix.RLIMIT_NOFILE, 0)
	raw("own limits", unix.SYS_PRLIMIT64, 0, unix.RLIMIT_NOFILE, 0)
	raw("cores", unix.SYS_PRLIMIT64, 0, unix.RLIMIT_CORE, bad)
	raw("open watch", unix.SYS_INOTIFY_ADD_WATCH, bad, bad, unix.IN_OPEN|unix.IN_MODIFY)
	raw("write watch", unix.SYS_INOTIFY_ADD_WATCH, bad, bad, unix.IN_MODIFY)
	raw("directory notes", unix.SYS_FCNTL, bad, unix.F_NOTIFY, 0)
	raw("sync", unix.SYS_SYNC, 0, 0, 0)
	raw("syncfs", unix.SYS_SYNCFS, bad, 0, 0)
	raw("minus one", bad, 0, 0, 0)
	for name, s := range map[string][3]int{
		"unix": {unix.AF_UNIX, unix.SOCK_STREAM, 0}, "packet": {unix.AF_PACKET, unix.SOCK_DGRAM, 0},
		"raw": {unix.AF_INET, unix.SOCK_RAW, 1}, "route": {unix.AF_NETLINK, unix.SOCK_RAW, 0},
		"audit": {unix.AF_NETLINK, unix.SOCK_RAW, 9}, "tcp": {unix.AF_INET, unix.SOCK_STREAM | unix.SOCK_CLOEXEC, 0},
	} {
		_, err := unix.Socket(s[0], s[1], s[2])
		errno, _ := err.(syscall.Errno)
		say("socket "+name, errno)
	}
	if out, err := exec.Command("/proc/self/exe", "-test.run=^$").CombinedOutput(); err != nil {
		fmt.Printf("exec: %v %s\n", err, out)
	}
	status, _ := os.ReadFile("/proc/thread-self/status")
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "Seccomp:") || strings.HasPrefix(line, "NoNewPrivs:") {
			fmt.Print(line)
		}
	}
}

func errnoWord(e syscall.Errno) string {
	if e == 0 {
		return "allowed"
	}
	return unix.ErrnoName(e)
}

func confined(t *testing.T, role string) (string, error) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{confinedEnv + "=" + role}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestKernelRefuses(t *testing.T) {
	out, err := confined(t, "calls")
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for line := range strings.Lines(`getpid: allowed
mount: EPERM
unshare: EPERM
setns: EPERM
clone3: ENOSYS
io_uring_setup: ENOSYS
bpf: EPERM
ptrace: EPERM
keyctl: EPERM
open_by_handle_at: EPERM
clone user namespace: EPERM
ioctl TIOCSTI: EPERM
ioctl TIOCSTI high: EPERM
ioctl TCGETS: EBADF
personality query: allowed
personality: EPERM
listener: EPERM
newest: ENOSYS
limits of init: EPERM
own limits: allowed
cores: allowed
open watch: EPERM
write watch: EBADF
directory notes: EPERM
sync: allowed
syncfs: allowed
minus one: ENOSYS
socket unix: allowed
socket packet: EAFNOSUPPORT
socket raw: EPERM
socket route: EAFNOSUPPORT
socket audit: EAFNOSUPPORT
socket tcp: allowed
NoNewPrivs:	1
Seccomp:	2
`) {
		if !strings.Contains(out, line) {
			t.Errorf("missing %q in\n%s", line, out)
		}
	}
	if strings.Contains(out, "exec:") {
		t.Errorf("a program does not start under the filter:\n%s", out)
	}
}

func TestKernelKills(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("x32 is of amd64")
	}
	out, err := confined(t, "x32")
	exit, ok := err.(*exec.ExitError)
	if !ok || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGSYS {
		t.Errorf("a call of x32 ended with %v, want death by SIGSYS; %s", err, out)
	}
}
