package sandboxinit

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// keepCapabilities leaves a template the right to map the ids of its copies, and nothing else.
//
//go:norace
//go:nosplit
func (c *child) keepCapabilities() syscall.Errno {
	c.failed.step = stepBounding
	for n := uintptr(0); n <= c.lastCap; n++ {
		if c.keep[n/32].Permitted>>(n%32)&1 != 0 {
			continue
		}
		// EINVAL: a capability that this kernel does not have.
		if _, _, e := syscall.RawSyscall6(syscall.SYS_PRCTL, unix.PR_CAPBSET_DROP, n, 0, 0, 0, 0); e != 0 && e != syscall.EINVAL {
			return e
		}
	}
	if _, _, e := syscall.RawSyscall6(syscall.SYS_PRCTL, unix.PR_SET_SECUREBITS, templateBits, 0, 0, 0, 0); e != 0 {
		return e
	}
	c.failed.step = stepCaps
	_, _, e := syscall.RawSyscall6(syscall.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0, 0)
	if e != 0 {
		return e
	}
	_, _, e = syscall.RawSyscall(syscall.SYS_CAPSET,
		uintptr(unsafe.Pointer(&c.capHeader)), uintptr(unsafe.Pointer(&c.keep)), 0)
	if e != 0 {
		return e
	}
	for n := uintptr(0); n <= c.lastCap; n++ {
		if c.keep[n/32].Permitted>>(n%32)&1 == 0 {
			continue
		}
		if _, _, e := syscall.RawSyscall6(syscall.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, n, 0, 0, 0); e != 0 {
			return e
		}
	}
	return 0
}

// templateBits are secureBits but that what is ambient stays so.
const templateBits = 1<<0 | 1<<1 | 1<<2 | 1<<3 | 1<<5
