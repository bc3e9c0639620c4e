package netd

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_X86_64

// archCalls are those that only this architecture has.
func archCalls() []uint32 { return []uint32{unix.SYS_EPOLL_WAIT, unix.SYS_ARCH_PRCTL} }
