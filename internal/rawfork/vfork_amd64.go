package rawfork

import "syscall"

// Vfork is clone3 for a child that shares the caller's memory and stack while the calling thread waits (CLONE_VFORK |
// CLONE_VM, which must be among the flags). No page tables are copied, so it costs the same however large the process is.
// The child finds itself in the same frame with pid 0 and must never return from the function that called Vfork; the parent
// must not use that function's variables afterwards, since the child may have changed them, but for what Vfork returned.
//
//go:noescape
func Vfork(args *CloneArgs, size uintptr) (pid uintptr, errno syscall.Errno)
