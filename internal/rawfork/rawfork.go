// Package rawfork is what it takes to fork a Go process and do more in the child than package syscall can be told to.
//
// A forked child of a Go process has one thread and none of the runtime: it may not allocate, lock, grow a stack or return.
// All it needs is laid out before, and it makes raw system calls only, in functions marked go:nosplit and go:norace (the
// runtime ends a child that checks its stack). Around the fork stand the same three calls as in package syscall:
//
//	runtime.LockOSThread(); syscall.ForkLock.Lock()
//	rawfork.Before()
//	pid := … the fork …
//	if in the parent { rawfork.After(); … unlock … }
//	else { rawfork.AfterInChild(); … raw calls …; execve or exit }
package rawfork

import (
	_ "unsafe" // for go:linkname
)

// Before blocks signals and readies the runtime for a fork.
//
//go:linkname Before syscall.runtime_BeforeFork
func Before()

// After undoes Before in the parent.
//
//go:linkname After syscall.runtime_AfterFork
func After()

// AfterInChild resets signal handlers and undoes Before in the child.
//
//go:linkname AfterInChild syscall.runtime_AfterForkInChild
func AfterInChild()

// CloneArgs is struct clone_args of clone3(2).
type CloneArgs struct {
	Flags, PidFD, ChildTID, ParentTID, ExitSignal, Stack, StackSize, TLS, SetTID, SetTIDSize, Cgroup uint64
}
