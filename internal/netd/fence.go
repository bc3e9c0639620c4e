package netd

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Parts of a BPF instruction for system calls (linux/bpf_common.h), and where struct seccomp_data has what is looked at.
const (
	bpfLoad      = 0x20 // BPF_LD|BPF_W|BPF_ABS
	bpfEqual     = 0x15 // BPF_JMP|BPF_JEQ|BPF_K
	bpfBits      = 0x45 // BPF_JMP|BPF_JSET|BPF_K
	bpfReturn    = 0x06 // BPF_RET|BPF_K
	atCall       = 0
	atArch       = 4
	atArgument   = 16 // the first; each has 8 bytes, of which the lower are first
	argumentSize = 8
)

// restricted are the calls of which only some are let through: those with none or any of some bits set in an argument.
type restricted struct {
	call     uint32
	argument int
	bits     uint32
	set      bool // let through where one of them is set, else where none is
}

// Fence restricts this process, all its threads included, to the calls that a netd does once it is there: it can neither
// open nor execute anything, nor make a socket or a process, nor memory that can be executed. Any other call ends it. It
// is on top of what holds the process anyway: whoever came in by a packet finds less of the kernel than a program has.
func Fence() error {
	filter := fence()
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("give up new privileges: %w", err)
	}
	other, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return fmt.Errorf("restrict system calls: %w", errno)
	}
	if other != 0 {
		return fmt.Errorf("restrict system calls: thread %d has another filter", other)
	}
	return nil
}

// fence is the filter: first what is called the most.
func fence() []unix.SockFilter {
	const allow, kill = unix.SECCOMP_RET_ALLOW, unix.SECCOMP_RET_KILL_PROCESS
	give := func(what uint32) unix.SockFilter { return unix.SockFilter{Code: bpfReturn, K: what} }
	f := []unix.SockFilter{
		{Code: bpfLoad, K: atArch}, {Code: bpfEqual, Jt: 1, K: auditArch}, give(kill), {Code: bpfLoad, K: atCall},
	}
	for _, call := range fencedCalls() {
		f = append(f, unix.SockFilter{Code: bpfEqual, Jf: 1, K: call}, give(allow))
	}
	for _, r := range []restricted{
		{unix.SYS_MMAP, 2, unix.PROT_EXEC, false},
		{unix.SYS_MPROTECT, 2, unix.PROT_EXEC, false},
		{unix.SYS_CLONE, 0, unix.CLONE_THREAD, true},
	} {
		test := unix.SockFilter{Code: bpfBits, Jf: 1, K: r.bits} // to the second answer where none is set
		first, second := give(kill), give(allow)
		if r.set {
			first, second = second, first
		}
		f = append(f, unix.SockFilter{Code: bpfEqual, Jf: 4, K: r.call},
			unix.SockFilter{Code: bpfLoad, K: uint32(atArgument + r.argument*argumentSize)}, test, first, second)
	}
	// What clone3 is to make is said in memory, where a filter does not see it: who knows the call knows clone too.
	const missing = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
	f = append(f, unix.SockFilter{Code: bpfEqual, Jf: 1, K: unix.SYS_CLONE3}, give(missing))
	// The runtime names its memory where the kernel can show that.
	f = append(f, unix.SockFilter{Code: bpfEqual, Jf: 3, K: unix.SYS_PRCTL}, unix.SockFilter{Code: bpfLoad, K: atArgument},
		unix.SockFilter{Code: bpfEqual, Jf: 1, K: unix.PR_SET_VMA}, give(allow))
	return append(f, give(kill))
}

// fencedCalls are those that are let through whatever their arguments are.
func fencedCalls() []uint32 {
	return append([]uint32{
		unix.SYS_READV, unix.SYS_WRITEV, unix.SYS_READ, unix.SYS_WRITE, unix.SYS_EPOLL_PWAIT, unix.SYS_FUTEX, unix.SYS_RECVMSG,
		unix.SYS_SENDMSG, unix.SYS_CLOSE, unix.SYS_SHUTDOWN, unix.SYS_FCNTL, unix.SYS_EPOLL_CTL, unix.SYS_NANOSLEEP,
		unix.SYS_MADVISE, unix.SYS_MUNMAP, unix.SYS_FSTAT, unix.SYS_GETSOCKOPT, unix.SYS_EPOLL_CREATE1, unix.SYS_EVENTFD2,
		unix.SYS_CLOCK_GETTIME, unix.SYS_CLOCK_NANOSLEEP, unix.SYS_SCHED_YIELD, unix.SYS_BRK, unix.SYS_RSEQ,
		unix.SYS_SET_ROBUST_LIST, unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGPROCMASK, unix.SYS_RT_SIGRETURN, unix.SYS_SIGALTSTACK,
		unix.SYS_GETTID, unix.SYS_GETPID, unix.SYS_TGKILL, unix.SYS_GETRANDOM, unix.SYS_RESTART_SYSCALL, unix.SYS_EXIT,
		unix.SYS_EXIT_GROUP,
	}, archCalls()...)
}
