// Package compile builds the system call filter that package compile carries: which calls of the kernel a program in a
// sandbox may not make, and how each refusal looks from inside.
//
// The filter is one fixed program for each architecture. It names what is refused and lets the other calls of its table of
// known calls pass; whatever is newer than that table, or from another architecture, never reaches the kernel's code. It
// stands behind namespaces, dropped capabilities and Landlock and repeats some of what they refuse, so that one slip there
// does not open the kernel.
//
// How a refusal looks: EPERM where a program should learn that it may not; ENOSYS where libraries have another way once a
// call "does not exist"; the network errors that mean "no such family or protocol" for sockets; death by SIGSYS for calls
// that no program built for this machine makes by mistake.
//
// What a filter cannot see is what a pointer points at. Calls that take their flags in memory (clone3, sched_setattr,
// clock_adjtime) are therefore refused whole. mincore stays allowed: since Linux 5.2 the kernel itself answers "resident"
// for every page of a file that the caller neither owns nor may write, and unwinders use the call. The mlock family stays
// allowed: locked pages count against the run's memory limit.
//
// Everything here is safe for concurrent use.
package compile
