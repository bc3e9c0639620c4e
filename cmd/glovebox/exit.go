package main

import (
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"glovebox"
)

// Exit codes of run and exec, besides the program's own and those of an error.
const (
	exitTime     = 124 // wall clock or CPU time, as timeout(1) has it
	exitMemory   = 137 // as the kernel's own kill shows
	exitBound    = 122 // another limit, the fence or the budget
	exitCanceled = 130 // as an interrupted command shows
	exitFailed   = 125
)

// exitCode is what run and exec exit with after res: a code of the program's own only where all that was asked for was
// delivered, but for what the program itself kept from that.
func exitCode(res *glovebox.Result) int {
	if res.Status == glovebox.StatusCanceled {
		return exitCanceled
	}
	switch {
	case undelivered(res, glovebox.FaultGlovebox):
		return exitFailed
	case undelivered(res, glovebox.FaultCaller):
		return exitCanceled
	}
	return endCode(res)
}

// undelivered tells whether something of /outputs was not kept through somebody's fault.
func undelivered(res *glovebox.Result, fault string) bool {
	return slices.ContainsFunc(res.Skipped, func(s glovebox.Skipped) bool { return s.Fault == fault })
}

// endCode is the exit code for how the program ended.
func endCode(res *glovebox.Result) int {
	switch res.Status {
	case glovebox.StatusExited:
		if res.ExitCode != nil {
			return *res.ExitCode
		}
	case glovebox.StatusSignaled:
		if res.Signal != nil {
			return 128 + signalNumber(*res.Signal)
		}
	case glovebox.StatusWallLimit, glovebox.StatusCPULimit:
		return exitTime
	case glovebox.StatusMemoryLimit:
		return exitMemory
	case glovebox.StatusProcessLimit, glovebox.StatusOutputLimit, glovebox.StatusDiskLimit, glovebox.StatusPolicy,
		glovebox.StatusBudget:
		return exitBound
	}
	return exitFailed
}

// signalNumber is the number of a signal's name; a name that is only a number, as real-time signals have, is that number.
func signalNumber(name string) int {
	if n := unix.SignalNum(name); n != 0 {
		return int(n)
	}
	n, err := strconv.Atoi(strings.TrimLeft(name, "SIGsignal "))
	if err != nil || n < 1 || n > 64 {
		return 0
	}
	return n
}
