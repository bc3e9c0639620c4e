package hostside

import (
	"errors"
	"os"
	"runtime"
	"slices"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"glovebox/internal/rawfork"
	"glovebox/internal/sandboxinit/wire"
)

// newborn is everything that init's first moments need, as the kernel wants it. It is shared with the child until the child
// executes init, which is how the child reports an error.
type newborn struct {
	path, dir *byte
	argv, env [2]*byte
	null, far uintptr // above the standard descriptors
	clone     rawfork.CloneArgs
	pidfd     int32
	processes syscall.Rlimit
	ordinary  int32 // struct sched_param: the priority of SCHED_OTHER, 0
	header    unix.CapUserHeader
	caps      [2]unix.CapUserData
	errno     syscall.Errno
}

// Spawn starts init in fresh namespaces, born in the control group that cradle is open on (-1 for none), with far as its
// control socket and nothing else of ours. It has InitCapabilities and more. The large process that this is part of is not
// copied for it: package os would copy the page tables as soon as a user namespace is asked for, which costs milliseconds
// and every page of ours a fault later.
func Spawn(path string, null, far *os.File, cradle int, more ...uintptr) (*Init, error) {
	name, err := unix.BytePtrFromString(path)
	if err != nil {
		return nil, err
	}
	n := &newborn{
		path: name, dir: unsafe.StringData("/\x00"), argv: [2]*byte{unsafe.StringData("glovebox-init\x00")},
		// Init does one thing at a time, and a change of ids has to stop each thread that it has.
		env: [2]*byte{unsafe.StringData("GOMAXPROCS=1\x00")},
		clone: rawfork.CloneArgs{
			Flags: Namespaces | unix.CLONE_VFORK | unix.CLONE_VM | unix.CLONE_PIDFD, ExitSignal: uint64(syscall.SIGCHLD),
		},
		header: unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3},
	}
	if cradle >= 0 {
		n.clone.Flags, n.clone.Cgroup = n.clone.Flags|unix.CLONE_INTO_CGROUP, uint64(cradle)
	}
	for _, c := range slices.Concat(InitCapabilities, more) {
		bit := uint32(1) << (c % 32)
		n.caps[c/32].Effective |= bit
		n.caps[c/32].Permitted |= bit
		n.caps[c/32].Inheritable |= bit
	}
	// Out of the way of the numbers that they get.
	for _, d := range []struct {
		to   *uintptr
		from *os.File
	}{{&n.null, null}, {&n.far, far}} {
		fd, err := unix.FcntlInt(d.from.Fd(), unix.F_DUPFD_CLOEXEC, 16)
		if err != nil {
			return nil, os.NewSyscallError("fcntl", err)
		}
		defer unix.Close(fd)
		*d.to = uintptr(fd)
	}
	runtime.LockOSThread()
	syscall.ForkLock.Lock()
	pid, errno := n.fork()
	syscall.ForkLock.Unlock()
	runtime.UnlockOSThread()
	if errno != 0 {
		return nil, os.NewSyscallError("clone3", errno)
	}
	p, err := HoldInit(pid, int(n.pidfd), true)
	if n.errno == 0 {
		return p, err
	} else if err != nil {
		return nil, err
	}
	// A child that could not become init has ended.
	return nil, errors.Join(os.NewSyscallError("execve", n.errno), p.Wait())
}

//go:norace
//go:nosplit
//go:noinline
func (n *newborn) fork() (int, syscall.Errno) {
	n.clone.PidFD = uint64(uintptr(unsafe.Pointer(&n.pidfd))) // here, where the stack does not move
	rawfork.Before()
	pid, errno := rawfork.Vfork(&n.clone, unsafe.Sizeof(n.clone))
	if errno != 0 || pid != 0 {
		rawfork.After()
		return int(pid), errno
	}
	rawfork.AfterInChild()
	n.errno = n.become()
	for {
		syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 127, 0, 0)
	}
}

// forgetCaller drops what a process hands down of how it was started itself and the program must not have: real-time
// scheduling, which knows no limit of CPU bandwidth (and which a control group may refuse), a better priority than others,
// a soft limit of processes, a personality, which may switch the random layout of memory off, and how exact its sleeps are.
//
//go:norace
//go:nosplit
func (n *newborn) forgetCaller() syscall.Errno {
	policy, _, e := syscall.RawSyscall(syscall.SYS_SCHED_GETSCHEDULER, 0, 0, 0)
	if e == 0 && policy&^schedResetOnFork != unix.SCHED_NORMAL && policy&^schedResetOnFork != unix.SCHED_BATCH &&
		policy&^schedResetOnFork != unix.SCHED_IDLE {
		_, _, e = syscall.RawSyscall(syscall.SYS_SCHED_SETSCHEDULER, 0, unix.SCHED_NORMAL, uintptr(unsafe.Pointer(&n.ordinary)))
	}
	if e != 0 {
		return e
	}
	// The call returns 20 less the nice value, so that no result looks like an error (getpriority(2)).
	if nice, _, e := syscall.RawSyscall(syscall.SYS_GETPRIORITY, unix.PRIO_PROCESS, 0, 0); e != 0 {
		return e
	} else if nice > 20 {
		if _, _, e := syscall.RawSyscall(syscall.SYS_SETPRIORITY, unix.PRIO_PROCESS, 0, 0); e != 0 {
			return e
		}
	}
	// A soft limit of processes would keep init from its threads; the hard one was judged before.
	_, _, e = syscall.RawSyscall6(syscall.SYS_PRLIMIT64, 0, unix.RLIMIT_NPROC, 0, uintptr(unsafe.Pointer(&n.processes)), 0, 0)
	if e != 0 {
		return e
	}
	n.processes.Cur = n.processes.Max
	_, _, e = syscall.RawSyscall6(syscall.SYS_PRLIMIT64, 0, unix.RLIMIT_NPROC, uintptr(unsafe.Pointer(&n.processes)), 0, 0, 0)
	if e != 0 {
		return e
	}
	if _, _, e := syscall.RawSyscall(unix.SYS_IOPRIO_SET, ioprioWhoProcess, 0, 0); e != 0 {
		return e
	}
	if _, _, e := syscall.RawSyscall(syscall.SYS_PERSONALITY, 0, 0, 0); e != 0 {
		return e
	}
	_, _, e = syscall.RawSyscall(syscall.SYS_PRCTL, unix.PR_SET_TIMERSLACK, ordinarySlack, 0)
	return e
}

const (
	ordinarySlack    = 50_000     // the kernel's default, in nanoseconds
	schedResetOnFork = 0x40000000 // a flag among the policies (sched(7))
	ioprioWhoProcess = 1          // ioprio_set(2)
)

// become turns the child into init. It returns only if it could not.
//
//go:norace
//go:nosplit
func (n *newborn) become() syscall.Errno {
	if _, _, e := syscall.RawSyscall(syscall.SYS_SETSID, 0, 0, 0); e != 0 {
		return e
	}
	if e := n.forgetCaller(); e != 0 {
		return e
	}
	// Init keeps these over the execve although no id is mapped yet; the new user namespace gave it all.
	_, _, e := syscall.RawSyscall(syscall.SYS_CAPSET, uintptr(unsafe.Pointer(&n.header)), uintptr(unsafe.Pointer(&n.caps)), 0)
	if e != 0 {
		return e
	}
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		if n.caps[c/32].Inheritable>>(c%32)&1 == 0 {
			continue
		}
		if _, _, e := syscall.RawSyscall6(syscall.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, c, 0, 0, 0); e != 0 {
			return e
		}
	}
	// The ambient capabilities stay (capabilities(7)); nothing else can be had by executing something.
	if _, _, e := syscall.RawSyscall6(syscall.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); e != 0 {
		return e
	}
	for fd := uintptr(0); fd < 3; fd++ {
		if _, _, e := syscall.RawSyscall(syscall.SYS_DUP3, n.null, fd, 0); e != 0 {
			return e
		}
	}
	if _, _, e := syscall.RawSyscall(syscall.SYS_DUP3, n.far, wire.ControlFD, 0); e != 0 {
		return e
	}
	_, _, e = syscall.RawSyscall(unix.SYS_CLOSE_RANGE, wire.ControlFD+1, ^uintptr(0)>>32, unix.CLOSE_RANGE_CLOEXEC)
	if e != 0 {
		return e
	}
	if _, _, e := syscall.RawSyscall(syscall.SYS_CHDIR, uintptr(unsafe.Pointer(n.dir)), 0, 0); e != 0 {
		return e
	}
	_, _, e = syscall.RawSyscall(syscall.SYS_EXECVE,
		uintptr(unsafe.Pointer(n.path)), uintptr(unsafe.Pointer(&n.argv)), uintptr(unsafe.Pointer(&n.env)))
	return e
}
