package sandboxinit

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"glovebox/internal/sandboxinit/wire"
)

// setLimits sets the resource limits but that of descriptors (see limitFiles).
//
//go:norace
//go:nosplit
func (c *child) setLimits() syscall.Errno {
	syscall.RawSyscall(syscall.SYS_UMASK, 0o022, 0, 0)
	for i := 0; i < len(wire.ProgramLimits); i++ {
		l := &wire.ProgramLimits[i]
		if c.template && (l.What == unix.RLIMIT_SIGPENDING || l.What == unix.RLIMIT_MEMLOCK) {
			continue // the kernel would bound all its copies together by them; each has its own
		}
		if c.kernel && l.What != unix.RLIMIT_CORE {
			continue // its programs have their own
		}
		// A kernel in user space has no more of some of them than a number, which cannot be set.
		if e := setLimit(l); e != 0 && !(c.guest && e == syscall.EPERM) {
			return e
		}
	}
	return 0
}

// setLimit sets what can be set: nobody inside may raise a hard limit.
//
//go:norace
//go:nosplit
func setLimit(l *wire.Rlimit) syscall.Errno {
	var now, then syscall.Rlimit
	_, _, e := syscall.RawSyscall6(syscall.SYS_PRLIMIT64, 0, l.What, 0, uintptr(unsafe.Pointer(&now)), 0, 0)
	if e != 0 {
		return e
	}
	then.Cur, then.Max = l.Under(now.Max)
	_, _, e = syscall.RawSyscall6(syscall.SYS_PRLIMIT64, 0, l.What, uintptr(unsafe.Pointer(&then)), 0, 0, 0)
	return e
}

// limitFiles comes last, since what is open by now may have numbers beyond this limit.
//
//go:norace
//go:nosplit
func (c *child) limitFiles() syscall.Errno {
	c.failed.step = stepLimits
	files := wire.Rlimit{What: unix.RLIMIT_NOFILE, Soft: c.openFiles, Hard: c.openFiles}
	return setLimit(&files)
}
