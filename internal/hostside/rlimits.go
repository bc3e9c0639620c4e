package hostside

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"glovebox"
)

// initProcesses is what is kept for the threads of init beside the processes of a run: some for its runtime and its one
// thread at work, and room for those that wait in a system call.
const initProcesses = 32

// CheckOwnLimits refuses a run that a hard limit of this process stands against: the program gets what it was granted, or it
// is not started.
func CheckOwnLimits(l glovebox.Limits) error {
	hard := map[uintptr]uint64{}
	for _, what := range []uintptr{unix.RLIMIT_AS, unix.RLIMIT_CPU, unix.RLIMIT_DATA, unix.RLIMIT_FSIZE, unix.RLIMIT_NPROC,
		unix.RLIMIT_NOFILE, unix.RLIMIT_CORE} {
		var own unix.Rlimit
		if err := unix.Getrlimit(int(what), &own); err != nil {
			return fmt.Errorf("read own limits: %w", err)
		}
		hard[what] = own.Max
	}
	pattern := ""
	if hard[unix.RLIMIT_CORE] == 0 { // the only case in which it matters
		b, err := os.ReadFile("/proc/sys/kernel/core_pattern")
		if err != nil {
			return fmt.Errorf("read where cores go: %w", err)
		}
		pattern = string(b)
	}
	return judgeOwnLimits(l, hard, pattern)
}

// judgeOwnLimits says what is wrong with hard limits, given where the kernel sends cores. The limits of wire.ProgramLimits
// that it does not name may be lower: that only bounds a program more, in what no grant speaks of.
func judgeOwnLimits(l glovebox.Limits, hard map[uintptr]uint64, corePattern string) error {
	if n := hard[unix.RLIMIT_NOFILE]; n < uint64(l.OpenFiles) {
		return glovebox.Errorf(glovebox.CodeUnavailable,
			fmt.Sprintf("raise it where glovebox is started (ulimit -Hn %d), or ask for --open-files %d", l.OpenFiles, n),
			"glovebox itself may open only %d files, and %d were granted", n, l.OpenFiles)
	}
	need := uint64(l.Processes) + initProcesses
	if n := hard[unix.RLIMIT_NPROC]; n < need {
		fix := fmt.Sprintf("start glovebox where `ulimit -Hu` says at least %d (as root: ulimit -Hu %d)", need, need)
		if n > initProcesses {
			fix += fmt.Sprintf(", or ask for --processes %d", n-initProcesses)
		}
		return glovebox.Errorf(glovebox.CodeUnavailable, fix,
			"glovebox itself may have only %d processes and threads (ulimit -u), and %d were granted beside the %d of its own",
			n, l.Processes, initProcesses)
	}
	for _, of := range [...]struct {
		what uintptr
		flag string
	}{{unix.RLIMIT_AS, "-v"}, {unix.RLIMIT_CPU, "-t"}, {unix.RLIMIT_DATA, "-d"}, {unix.RLIMIT_FSIZE, "-f"}} {
		if hard[of.what] != unix.RLIM_INFINITY {
			return glovebox.Errorf(glovebox.CodeUnavailable, "start glovebox where `ulimit -H "+of.flag+"` says unlimited",
				"glovebox itself is limited (ulimit %s), and its programs would be beside their own limits", of.flag)
		}
	}
	if hard[unix.RLIMIT_CORE] == 0 && strings.HasPrefix(corePattern, "|") {
		// With a limit of 0 the kernel would still start the handler, outside of every sandbox; 1 keeps it from that (core(5)).
		return glovebox.Errorf(glovebox.CodeUnavailable,
			"start glovebox where `ulimit -Hc` does not say 0 (as root: ulimit -Hc unlimited), or run: "+
				"sysctl -w kernel.core_pattern=core",
			"glovebox itself has a hard core limit of 0 (ulimit -c), by which this machine would still hand the memory of a "+
				"program that crashes to its core handler, outside the sandbox")
	}
	return nil
}
