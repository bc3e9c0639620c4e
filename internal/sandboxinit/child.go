package sandboxinit

import (
	"errors"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"glovebox/internal/rawfork"
	"glovebox/internal/sandboxinit/wire"
)

// childStep is where a child died, reported through a pipe that closes by itself when the program is executed.
type childStep int32

const (
	stepSession childStep = iota + 1
	stepSignals
	stepCgroup
	stepCgroupNS
	stepCPUs
	stepOOM
	stepStdio
	stepLimits
	stepDir
	stepGroups
	stepBounding
	stepIDs
	stepCaps
	stepNoNewPrivs
	stepLandlock
	stepDescriptors
	stepFilter
	stepFenced // no failure: everything is in force and the child waits at the gate
	stepExec
)

var childSteps = [...]string{
	stepSession: "start session", stepSignals: "reset signals", stepCgroup: "join control groups",
	stepCgroupNS: "make control group namespace", stepCPUs: "take its CPUs",
	stepOOM:   "offer itself to the out-of-memory killer",
	stepStdio: "connect standard streams", stepLimits: "set resource limits", stepDir: "enter working directory",
	stepGroups: "drop groups", stepBounding: "drop capability bounds", stepIDs: "take program id",
	stepCaps: "drop capabilities", stepNoNewPrivs: "forbid new privileges", stepLandlock: "enforce Landlock",
	stepDescriptors: "close descriptors", stepFilter: "install system call filter", stepFenced: "wait at the gate",
	stepExec: "execute",
}

// childError is what the child writes when it is fenced and before it gives up.
type childError struct {
	step  childStep
	errno int32 // of the child that is fenced: its descriptor of the filter's notifications
}

// child is everything a child needs, as the kernel wants it.
type child struct {
	candidates []*byte // full paths to try, in order
	argv, env  []*byte // nil-terminated
	dir        *byte
	stdio      [3]int
	bornIn     int   // folder of a version 2 group, -1 for none
	cgroups    []int // files of version 1 groups
	proc       int
	oomPath    *byte
	single     bool
	openFiles  uint64
	landlock   int
	hold       int     // what becomes wire.HoldFD, -1 for nothing
	given      []int   // what becomes wire.FirstFile and the next ones
	closeFrom  uintptr // the first descriptor that the program does not get
	template   bool    // the program makes copies of itself
	kernel     bool    // the program is a kernel in user space
	guest      bool    // the program is one of such a kernel's
	keep       [2]unix.CapUserData
	filter     unix.SockFprog
	filterFlag uintptr
	report     int // write end, close on exec
	gate       int // read end, close on exec: a byte lets the child execute the program
	lastCap    uintptr

	clone     rawfork.CloneArgs
	zero      [2]byte // "0", what a control group file takes for "whoever writes"
	oom       [4]byte
	cpus      [1024]byte // a bit for each CPU to run on, of every CPU there can be
	sigaction [32]byte   // SIG_DFL with no flags: struct sigaction is 32 bytes on 64-bit Linux
	caps      [2]unix.CapUserData
	capHeader unix.CapUserHeader
	failed    childError
}

// started is a child that waits at the gate with everything in force, so that the kernel can be asked about it before the
// program's first instruction.
type started struct {
	pid          int
	report, gate int
	notes        int // the child's own descriptor of its filter's notifications
}

// start forks c and waits until it stands at the gate. A failed child is dead and reaped.
func (c *child) start() (*started, error) {
	var report, gate [2]int
	if err := unix.Pipe2(report[:], unix.O_CLOEXEC); err != nil {
		return nil, step("fork", err)
	}
	defer unix.Close(report[1])
	if err := unix.Pipe2(gate[:], unix.O_CLOEXEC); err != nil {
		unix.Close(report[0])
		return nil, step("fork", err)
	}
	defer unix.Close(gate[0])
	c.report, c.gate = report[1], gate[0]
	moved, err := c.makeRoom()
	defer func() { closeAll(moved) }()
	if err != nil {
		unix.Close(report[0])
		unix.Close(report[1])
		unix.Close(gate[1])
		return nil, step("make room for the program's descriptors", err)
	}
	copy(c.zero[:], "0")
	copy(c.oom[:], "1000")
	c.capHeader = unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	c.lastCap = unix.CAP_LAST_CAP

	c.clone = rawfork.CloneArgs{ExitSignal: uint64(syscall.SIGCHLD)}
	if c.bornIn >= 0 {
		c.clone.Flags, c.clone.Cgroup = unix.CLONE_INTO_CGROUP, uint64(c.bornIn)
	}

	runtime.LockOSThread()
	syscall.ForkLock.Lock()
	pid, errno := c.fork()
	syscall.ForkLock.Unlock()
	runtime.UnlockOSThread()
	runtime.KeepAlive(c)
	w := &started{pid: pid, report: report[0], gate: gate[1]}
	if errno != 0 {
		w.close()
		return nil, step("fork", errno)
	}
	// The child's own end must be closed here, or its death would not end the pipe.
	closeAll(moved)
	moved = nil
	unix.Close(report[1])
	said, err := w.read()
	if err == nil && said.step != stepFenced {
		err = step(childSteps[said.step], unix.Errno(said.errno))
	}
	w.notes = int(said.errno)
	if err != nil {
		w.close()
		if err != errHungUp { // or it may be frozen, and not end before init does
			reapOne(pid)
		}
		return nil, err
	}
	return w, nil
}

func (w *started) close() {
	unix.Close(w.report)
	unix.Close(w.gate)
}

var errHungUp = errors.New("the driver is gone")

// read takes what the child says next. A child that says nothing more has executed the program: that closed the pipe. It
// fails with errHungUp when the lifeline closes first: a driver that died in the middle of a kill may have left the child
// frozen.
func (w *started) read() (said childError, err error) {
	buf := (*[unsafe.Sizeof(said)]byte)(unsafe.Pointer(&said))[:]
	poll := []unix.PollFd{{Fd: int32(w.report), Events: unix.POLLIN}, {Fd: wire.ControlFD, Events: unix.POLLRDHUP}}
	for {
		n, err := unix.Poll(poll, -1)
		if err == nil && poll[0].Revents == 0 {
			return childError{}, errHungUp
		}
		if err == nil {
			n, err = unix.Read(w.report, buf)
		}
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return childError{}, step("listen to child", err)
		case n == 0:
			return childError{}, nil
		case n != len(buf):
			return childError{}, step("listen to child", unix.EPIPE)
		}
		return said, nil
	}
}

// release opens the gate. The errno is 0 when the program was executed, and when the child was killed before it could be:
// then its end says so.
func (w *started) release() (unix.Errno, error) {
	defer w.close()
	if _, err := unix.Write(w.gate, []byte{1}); err != nil && err != unix.EPIPE {
		return 0, step("open gate", err)
	}
	said, err := w.read()
	return unix.Errno(said.errno), err
}

//go:norace
//go:nosplit
func (c *child) fork() (int, syscall.Errno) {
	rawfork.Before()
	pid, _, errno := syscall.RawSyscall(unix.SYS_CLONE3, uintptr(unsafe.Pointer(&c.clone)), unsafe.Sizeof(c.clone), 0)
	if errno != 0 || pid != 0 {
		rawfork.After()
		return int(pid), errno
	}
	rawfork.AfterInChild()
	c.run()
	return 0, 0
}

// run is the child (see package rawfork for what it may do). It never returns.
//
//go:norace
//go:nosplit
func (c *child) run() {
	if errno := c.prepare(); errno != 0 {
		c.failed.errno = int32(errno)
	} else if errno := c.fence(); errno != 0 {
		c.failed.errno = int32(errno)
	} else {
		c.waitAtGate()
		c.failed.step = stepExec
		c.failed.errno = int32(c.exec())
	}
	c.say()
	// As a shell has it: 127 for what is not there, 126 for what cannot be executed.
	code := uintptr(126)
	if c.failed.errno == int32(syscall.ENOENT) {
		code = 127
	}
	for {
		syscall.RawSyscall(syscall.SYS_EXIT_GROUP, code, 0, 0)
	}
}

//go:norace
//go:nosplit
func (c *child) say() {
	syscall.RawSyscall(syscall.SYS_WRITE, uintptr(c.report), uintptr(unsafe.Pointer(&c.failed)), unsafe.Sizeof(c.failed))
}

// waitAtGate says that the child is fenced and returns when the gate opens. When init goes away instead, so does the child.
//
//go:norace
//go:nosplit
func (c *child) waitAtGate() {
	c.failed.step = stepFenced
	c.say()
	for {
		n, _, e := syscall.RawSyscall(syscall.SYS_READ, uintptr(c.gate), uintptr(unsafe.Pointer(&c.zero)), 1)
		if e == syscall.EINTR {
			continue
		}
		if e != 0 || n != 1 {
			syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 127, 0, 0)
		}
		return
	}
}

// prepare does what needs the rights that fence gives away.
//
//go:norace
//go:nosplit
func (c *child) prepare() syscall.Errno {
	c.failed.step = stepSession
	if _, _, e := syscall.RawSyscall(syscall.SYS_SETSID, 0, 0, 0); e != 0 {
		return e
	}
	c.failed.step = stepSignals
	for sig := uintptr(1); sig <= 64 && !c.guest; sig++ { // whose init was started with none ignored
		if sig == uintptr(syscall.SIGKILL) || sig == uintptr(syscall.SIGSTOP) {
			continue
		}
		// An ignored signal would stay ignored in the program (a caller under nohup, say).
		_, _, e := syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&c.sigaction)), 0, 8, 0, 0)
		if e != 0 {
			return e
		}
	}
	c.failed.step = stepCgroup
	for i := 0; i < len(c.cgroups); i++ {
		if _, _, e := syscall.RawSyscall(syscall.SYS_WRITE, uintptr(c.cgroups[i]), uintptr(unsafe.Pointer(&c.zero)), 1); e != 0 {
			return e
		}
	}
	c.failed.step = stepCgroupNS
	// What a template makes is born in groups outside of its own, which a namespace would hide from it.
	if !c.template && !c.guest {
		if _, _, e := syscall.RawSyscall(syscall.SYS_UNSHARE, syscall.CLONE_NEWCGROUP, 0, 0); e != 0 {
			return e
		}
	}
	c.failed.step = stepCPUs
	// A caller that is kept to some CPUs would keep its programs to them whatever was granted.
	cpus := uintptr(unsafe.Pointer(&c.cpus))
	if _, _, e := syscall.RawSyscall(syscall.SYS_SCHED_SETAFFINITY, 0, uintptr(len(c.cpus)), cpus); e != 0 {
		return e
	}
	c.failed.step = stepOOM
	if !c.guest {
		if e := c.raiseOOMScore(); e != 0 {
			return e
		}
	}
	c.failed.step = stepStdio
	for i := 0; i < 3; i++ {
		if _, _, e := syscall.RawSyscall(syscall.SYS_DUP3, uintptr(c.stdio[i]), uintptr(i), 0); e != 0 {
			return e
		}
	}
	if c.hold >= 0 {
		if _, _, e := syscall.RawSyscall(syscall.SYS_DUP3, uintptr(c.hold), wire.HoldFD, 0); e != 0 {
			return e
		}
	}
	for i := 0; i < len(c.given); i++ {
		if _, _, e := syscall.RawSyscall(syscall.SYS_DUP3, uintptr(c.given[i]), uintptr(wire.FirstFile+i), 0); e != 0 {
			return e
		}
	}
	c.failed.step = stepLimits
	return c.setLimits()
}

// raiseOOMScore needs a dumpable process for a moment: the file belongs to a root that is not mapped otherwise. Executing
// the program decides anew.
//
//go:norace
//go:nosplit
func (c *child) raiseOOMScore() syscall.Errno {
	if _, _, e := syscall.RawSyscall(syscall.SYS_PRCTL, unix.PR_SET_DUMPABLE, 1, 0); e != 0 {
		return e
	}
	fd, _, e := syscall.RawSyscall6(syscall.SYS_OPENAT, uintptr(c.proc), uintptr(unsafe.Pointer(c.oomPath)),
		syscall.O_WRONLY|syscall.O_CLOEXEC, 0, 0, 0)
	if e != 0 {
		return e
	}
	if _, _, e := syscall.RawSyscall(syscall.SYS_WRITE, fd, uintptr(unsafe.Pointer(&c.oom)), 4); e != 0 {
		return e
	}
	syscall.RawSyscall(syscall.SYS_CLOSE, fd, 0, 0)
	return 0
}

// fence takes every right away, in the order in which the kernel lets them go. The filter comes last but for one limit,
// since it would refuse some of this.
//
//go:norace
//go:nosplit
func (c *child) fence() syscall.Errno {
	if c.kernel {
		// It gives up itself what it does not need once it has built its own fence.
	} else if c.template {
		if e := c.keepCapabilities(); e != 0 {
			return e
		}
	} else if e := c.dropCapabilities(); e != 0 {
		return e
	}
	c.failed.step = stepDir
	if _, _, e := syscall.RawSyscall(syscall.SYS_CHDIR, uintptr(unsafe.Pointer(c.dir)), 0, 0); e != 0 {
		return e
	}
	c.failed.step = stepNoNewPrivs
	if _, _, e := syscall.RawSyscall6(syscall.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); e != 0 {
		return e
	}
	c.failed.step = stepLandlock
	if c.landlock >= 0 {
		if _, _, e := syscall.RawSyscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(c.landlock), 0, 0); e != 0 {
			return e
		}
	}
	c.failed.step = stepDescriptors
	if _, _, e := syscall.RawSyscall(unix.SYS_CLOSE_RANGE, c.closeFrom, ^uintptr(0)>>32, unix.CLOSE_RANGE_CLOEXEC); e != 0 {
		return e
	}
	c.failed.step = stepFilter
	if c.kernel {
		return c.limitFiles()
	}
	notes, _, e := syscall.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, c.filterFlag,
		uintptr(unsafe.Pointer(&c.filter)))
	if e != 0 {
		return e
	}
	if e := c.limitFiles(); e != 0 {
		return e
	}
	c.failed.errno = int32(notes) // closes when the program is executed
	return 0
}

// dropCapabilities leaves the program without any capability and without a way to one.
//
//go:norace
//go:nosplit
func (c *child) dropCapabilities() syscall.Errno {
	c.failed.step = stepBounding
	for n := uintptr(0); n <= c.lastCap; n++ {
		// EINVAL: a capability that this kernel does not have.
		if _, _, e := syscall.RawSyscall6(syscall.SYS_PRCTL, unix.PR_CAPBSET_DROP, n, 0, 0, 0, 0); e != 0 && e != syscall.EINVAL {
			return e
		}
	}
	// A kernel in user space does not have these bits; no bounds and no new privileges are what keeps rights away there.
	if !c.guest {
		if _, _, e := syscall.RawSyscall6(syscall.SYS_PRCTL, unix.PR_SET_SECUREBITS, secureBits, 0, 0, 0, 0); e != 0 {
			return e
		}
	}
	_, _, e := syscall.RawSyscall6(syscall.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0, 0)
	if e != 0 {
		return e
	}
	if !c.single {
		c.failed.step = stepIDs
		if _, _, e := syscall.RawSyscall(syscall.SYS_SETRESGID, wire.ProgramID, wire.ProgramID, wire.ProgramID); e != 0 {
			return e
		}
		if _, _, e := syscall.RawSyscall(syscall.SYS_SETRESUID, wire.ProgramID, wire.ProgramID, wire.ProgramID); e != 0 {
			return e
		}
	}
	c.failed.step = stepCaps
	_, _, e = syscall.RawSyscall(syscall.SYS_CAPSET,
		uintptr(unsafe.Pointer(&c.capHeader)), uintptr(unsafe.Pointer(&c.caps)), 0)
	return e
}

// secureBits locks the rules by which an id 0 or a capability kept over a change of id would give rights back
// (capabilities(7), "The securebits flags"): NOROOT, NO_SETUID_FIXUP and NO_CAP_AMBIENT_RAISE, each with its lock, and the
// lock of KEEP_CAPS.
const secureBits = 1<<0 | 1<<1 | 1<<2 | 1<<3 | 1<<5 | 1<<6 | 1<<7

// exec tries the candidates as a shell does: what is not there or may not be executed gives way to the next.
//
//go:norace
//go:nosplit
func (c *child) exec() syscall.Errno {
	last := syscall.ENOENT
	for i := 0; i < len(c.candidates); i++ {
		_, _, e := syscall.RawSyscall(syscall.SYS_EXECVE, uintptr(unsafe.Pointer(c.candidates[i])),
			uintptr(unsafe.Pointer(unsafe.SliceData(c.argv))), uintptr(unsafe.Pointer(unsafe.SliceData(c.env))))
		if e != syscall.ENOENT && e != syscall.ENOTDIR {
			last = e
			if e != syscall.EACCES {
				return e
			}
		}
	}
	return last
}
