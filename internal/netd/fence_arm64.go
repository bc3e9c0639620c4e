package netd

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_AARCH64

// archCalls are those that only this architecture has.
func archCalls() []uint32 { return nil }
