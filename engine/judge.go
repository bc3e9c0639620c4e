package engine

import (
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"glovebox"
	"glovebox/driver"
)

// facts are all that a run is judged by: what the kernel counted and what the supervisor did. Nothing in it is the program's
// to say but its exit.
type facts struct {
	killed   glovebox.Status // why the supervisor ended the run, recorded before it did; empty when the leader ended first
	exit     driver.Exit
	sample   driver.Sample  // after the last of the tree died
	disk     driver.DiskUse // at the leader's end
	exceeded bool           // more was printed than the output limit
	wall     time.Duration  // from the release to the leader's end or the decision to kill
}

// verdict is how a run is said to have ended.
type verdict struct {
	status glovebox.Status
	reason string
	hit    []string // limits, by the names of Result.LimitsHit
	code   *int
	signal *string
}

// judge decides the status, once. In this order:
//
//   - what the supervisor recorded before the leader had ended;
//   - a kill by the kernel for memory at the run's own limit, whoever of the tree it hit;
//   - more output than the limit, also when its end was read after the leader's;
//   - the leader's end; if that is not exit code 0 and the kernel refused something at a limit, that limit.
//
// An error means that what happened is Glovebox's or the machine's doing and not the program's.
func judge(f facts, l glovebox.Limits) (verdict, error) {
	v := verdict{hit: []string{}}
	switch {
	case f.exit.Lost:
	case f.exit.Signal != 0:
		v.signal = new(signalName(f.exit.Signal))
	case f.killed != "":
		// It ended by itself between the decision and the kill. The decision came first, and a code beside it would read as
		// if the program had been left to end.
	default:
		v.code = new(f.exit.Code)
	}
	refused := limitsRefused(f)
	switch {
	case f.killed != "":
		v.status = f.killed
	case f.sample.OOMKills > 0:
		v.status = glovebox.StatusMemoryLimit
	case f.exceeded:
		v.status = glovebox.StatusOutputLimit
	case f.exit.Lost:
		return v, glovebox.Errorf(glovebox.CodeInternal, "run it again; the engine's log and `glovebox doctor` tell more",
			"the sandbox ended before it could say how the program did")
	case f.exit.Signal == syscall.SIGKILL && f.sample.OOMOutside > 0:
		return v, glovebox.Errorf(glovebox.CodeInternal, "free memory on the machine or run less at a time",
			"the machine ran out of memory and the run was killed from outside, below its own limit of %v", l.Memory)
	case f.exit.FenceKill:
		v.status = glovebox.StatusPolicy
	case f.exit.Signal == 0 && f.exit.Code == 0 || len(refused) == 0:
		v.status = glovebox.StatusExited
		if f.exit.Signal != 0 {
			v.status = glovebox.StatusSignaled
		}
	case refused[0] == limitProcesses:
		v.status = glovebox.StatusProcessLimit
	default:
		v.status = glovebox.StatusDiskLimit
	}
	if name, ok := limitNames[v.status]; ok {
		v.hit = append(v.hit, name)
	}
	v.hit = append(v.hit, refused...)
	v.reason = reason(v, f, l)
	if v.status == glovebox.StatusWallLimit && f.sample.ForksRefused > 0 {
		// A runtime that cannot start its threads often waits for them for ever.
		v.reason += fmt.Sprintf("; processes or threads were refused at the limit of %d, which --processes raises", l.Processes)
	}
	return v, nil
}

// The limits that the kernel refuses at, in the order in which they are blamed.
const (
	limitProcesses = "processes"
	limitDisk      = "disk"
	limitFiles     = "files"
	limitEgress    = "egress" // at the gateway, where a refusal ends no program
)

var limitNames = map[glovebox.Status]string{
	glovebox.StatusWallLimit: "wall", glovebox.StatusCPULimit: "cpu", glovebox.StatusMemoryLimit: "memory",
	glovebox.StatusOutputLimit: "output",
}

func limitsRefused(f facts) (names []string) {
	if f.sample.ForksRefused > 0 {
		names = append(names, limitProcesses)
	}
	if f.disk.FreeBytes == 0 {
		names = append(names, limitDisk)
	}
	if f.disk.FreeFiles == 0 {
		names = append(names, limitFiles)
	}
	return names
}

// reason says in one sentence what ended the run and what the caller can do; empty after a plain exit.
func reason(v verdict, f facts, l glovebox.Limits) string {
	switch v.status {
	case glovebox.StatusWallLimit:
		return fmt.Sprintf("the run took longer than its wall clock limit of %v; --wall raises it", l.Wall)
	case glovebox.StatusCPULimit:
		return fmt.Sprintf("the program used up its CPU time limit of %v; --cpu raises it", l.CPU)
	case glovebox.StatusMemoryLimit:
		return fmt.Sprintf("the program needed more memory than its limit of %v; --memory raises it", l.Memory)
	case glovebox.StatusOutputLimit:
		return fmt.Sprintf("the program printed more than its output limit of %v; --output-limit raises it, or write to "+
			"/outputs instead", l.Output)
	case glovebox.StatusCanceled:
		return "the run was cancelled by its caller"
	case glovebox.StatusPolicy:
		if f.killed != "" {
			return "the program sent the placeholder of a secret where that may not go, and the secret's on_violation is to end a " +
				"run for it"
		}
		return fmt.Sprintf("the sandbox ended the program (%s) at a system call that no program may make in it",
			signalName(f.exit.Signal))
	case glovebox.StatusProcessLimit:
		return fmt.Sprintf("the program failed after a process or thread was refused at its limit of %d; --processes raises it",
			l.Processes)
	case glovebox.StatusDiskLimit:
		if v.hit[0] == limitFiles {
			return fmt.Sprintf("the program failed with its workspace full at the limit of %d files; --files raises it", l.Files)
		}
		return fmt.Sprintf("the program failed with its workspace full at the limit of %v; --disk raises it", l.Disk)
	case glovebox.StatusSignaled:
		return fmt.Sprintf("the program was ended by signal %s, which did not come from Glovebox", signalName(f.exit.Signal))
	}
	if f.exit.NotStarted != "" {
		return "the program could not be started: " + f.exit.NotStarted
	}
	return ""
}

func signalName(s syscall.Signal) string {
	if name := unix.SignalName(s); name != "" {
		return name
	}
	return fmt.Sprintf("SIG%d", int(s))
}

// usageOf translates counters; what is unknown stays nil.
func usageOf(s driver.Sample) glovebox.Usage {
	known := func(n int64) *int64 {
		if n < 0 {
			return nil
		}
		return &n
	}
	u := glovebox.Usage{MemoryPeakBytes: known(s.MemoryPeak), ProcessesPeak: known(s.ProcessesPeak)}
	if s.CPU >= 0 {
		u.CPUMS = new(s.CPU.Milliseconds())
	}
	return u
}
