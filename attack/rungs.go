package attack

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"glovebox"
)

// A program's outcome may differ by rung: above the process rung a call may succeed where its effect stays with a kernel
// that is the run's own. Then what is seen outside decides, and each difference is stated here with its reason.

// variant is what differs for a program on a rung, and why. What is not set is as on the process rung.
type variant struct {
	why    string
	look   look
	then   func(l *laboratory, o *observed) []string
	inside []string // beginnings of what the program says that it got: things of the run's own kernel, which end with it
	wall   time.Duration
}

const (
	ownObjects = "the descriptors seen outside are its own kernel's: none may be of the kinds that the program tries for"
	planted    = "the descriptors seen outside are its own kernel's: none may be anything that was planted"
	ownKernel  = "its own kernel answers: nothing of the host's is read or changed, which is judged outside"
)

// on is the program as it is judged on a rung.
func (p Program) on(rung glovebox.Isolation) Program {
	v, ok := variants(rung)[p.ID]
	if !ok {
		return p
	}
	p.Differs, p.inside = v.why, v.inside
	if v.look != nil {
		p.look = v.look
	}
	if v.then != nil {
		p.then = v.then
	}
	if v.wall > 0 {
		ask := p.ask
		p.ask = func(l *laboratory, r *glovebox.Request) {
			if ask != nil {
				ask(l, r)
			}
			r.Limits.Wall = v.wall
		}
	}
	return p
}

func variants(rung glovebox.Isolation) map[string]variant {
	switch rung {
	case glovebox.IsolationGVisor:
		return inUserSpace()
	case glovebox.IsolationMicroVM:
		return inMachine()
	}
	return nil
}

// inUserSpace are the differences of the gVisor rung. The processes seen outside are runsc's.
func inUserSpace() map[string]variant {
	all := map[string]variant{
		"FS-16": {why: "the capabilities seen outside are those of the kernel in user space, in a user namespace of its own",
			look: looks(foreign(), contained(), apart)},
		"FS-16/image": {why: "a walk over the image takes longer", wall: 3 * time.Minute},
		"FS-23": {why: "sockets and pipes with names are kept in its own kernel's memory: the limits of memory and time end them",
			then: all(endsByLimit, costs(1<<30))},
		"CR-05": {why: planted, look: nothingPlanted()},
		"NT-11": {why: "the sockets seen outside are those by which runsc is told what to do",
			look: looks(withoutNetwork(), noSockets("packet"))},
		"CR-09": {why: "keys are kept by its own kernel; the caller's keyring is looked at outside",
			inside: []string{"ring ", "describe ", "join "}},
		"CR-10": {why: "it has a /sys and a log of its own kernel's, which hold nothing of the host's",
			inside: []string{"/sys is there", "dmesg said [    0.000000] Starting gVisor"}},
		"RS-36": {why: "the limits seen outside are runsc's; those of the program are its own kernel's",
			look: ordinary(1 << 20)},
		"KS-01": {why: "clone3, keys, the log and placement of memory are of its own kernel",
			inside: []string{"clone3 gave ", "keyctl gave ", "syslog gave ", "mbind gave ", "set_mempolicy gave "}},
		"KS-17/x32":   {why: ownKernel, then: ends(glovebox.StatusExited, 0, ""), inside: []string{"still there"}},
		"KS-17/int80": {why: ownKernel, then: ends(glovebox.StatusExited, 0, ""), inside: []string{"still there"}},
		"KS-23/privileges": {why: "the capabilities seen outside are those of the kernel in user space, in a user namespace " +
			"of its own", look: looks(foreign(), contained(), apart)},
		"IL-02": {why: "the log and the command line are its own kernel's; the host's are searched for in what it prints",
			inside: []string{"the kernel's log", "the kernel's command line"}},
		"LT-01": {why: "process 1 is that of its own sandbox, and can be seen", inside: []string{"processes ['1', "}},
	}
	for _, id := range []string{"FS-14", "FS-41", "KS-01/fsopen", "KS-01/fspick", "KS-06", "KS-07", "KS-07/user", "KS-10",
		"KS-12", "KS-14", "KS-22", "KS-25"} {
		all[id] = variant{why: ownObjects, look: handedToKernel()}
	}
	all["RS-34"] = variant{why: ownObjects, look: looks(inItsGroup, handedToKernel())}
	return all
}

// inMachine are the differences of the microVM rung. The processes seen outside are the machine monitor's; within the
// machine a program is held as on the process rung, so that its own word is worth what it is there.
func inMachine() map[string]variant {
	all := map[string]variant{
		"CR-05": {why: planted, look: nothingPlanted()},
		"NT-11": {why: "the sockets seen outside are those by which the machine is told what to do",
			look: looks(withoutNetwork(), noSockets("packet"))},
		"RS-36": {why: "the limits seen outside are the machine monitor's; those of the program are its own kernel's",
			look: ordinary(1 << 20)},
		"LT-01": {why: "processes are those of its own machine", inside: []string{"processes ['1', "}},
	}
	for _, id := range []string{"FS-14", "FS-41", "KS-01/fsopen", "KS-01/fspick", "KS-06", "KS-07", "KS-07/user", "KS-10",
		"KS-12", "KS-14", "KS-22", "KS-25"} {
		all[id] = variant{why: ownObjects, look: handedToKernel()}
	}
	all["RS-34"] = variant{why: ownObjects, look: looks(inItsGroup, handedToKernel())}
	return all
}

// endsByLimit demands that a limit ended the program, whichever came first.
func endsByLimit(_ *laboratory, o *observed) []string {
	ends := []glovebox.Status{glovebox.StatusDiskLimit, glovebox.StatusMemoryLimit, glovebox.StatusWallLimit,
		glovebox.StatusCPULimit}
	if !slices.Contains(ends, o.result.Status) {
		return []string{fmt.Sprintf("it ended with %s%s and not by a limit", o.result.Status, code(o.result))}
	}
	return nil
}

// handedToKernel is emptyHanded for a kernel that is a process: it may watch the calls of what runs on it, and use the
// machine's own means for that.
func handedToKernel() look {
	kvm := unix.Mkdev(10, 232)
	return handed(func(d descriptor) string {
		if strings.Contains(d.link, "seccomp notify") || d.mode&unix.S_IFMT == unix.S_IFCHR && d.device == kvm {
			return ""
		}
		return d.wrong()
	})
}

// nothingPlanted: no descriptor is a file that was planted, nor one by a name that was.
func nothingPlanted() look {
	return each(func(l *laboratory, p process) ([]string, error) {
		entries, err := os.ReadDir(filepath.Join(p.dir, "fd"))
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errUnseen, err)
		}
		var found []string
		for _, e := range entries {
			path := filepath.Join(p.dir, "fd", e.Name())
			open, err := os.Stat(path)
			if err != nil {
				continue // closed since
			}
			for _, planted := range append([]string{l.input}, l.files...) {
				if is, err := os.Stat(planted); err == nil && os.SameFile(is, open) {
					found = append(found, fmt.Sprintf("descriptor %s is %s", e.Name(), planted))
				}
			}
			if link, err := os.Readlink(path); err == nil && strings.Contains(link, l.name) {
				found = append(found, fmt.Sprintf("descriptor %s is %s", e.Name(), link))
			}
		}
		return found, nil
	})
}

// contained: no capability but those that a kernel in user space uses on files of the sandbox's own and on its own
// children, and no way to more. That they are of a user namespace of its own is another look's to see.
func contained() look {
	var most uint64
	for _, c := range []int{unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_DAC_READ_SEARCH, unix.CAP_FOWNER, unix.CAP_FSETID,
		unix.CAP_SYS_CHROOT, unix.CAP_SYS_PTRACE} {
		most |= 1 << c
	}
	return statusOf(func(key, value string) bool {
		if key == "NoNewPrivs" {
			return value == "1"
		}
		set, err := strconv.ParseUint(value, 16, 64)
		return err == nil && set&^most == 0
	}, "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs")
}

// ofItsOwn reports whether a claim is about something of the run's own kernel.
func (p *Program) ofItsOwn(claim string) bool {
	rest, ok := strings.CutPrefix(claim, "broke: ")
	return ok && slices.ContainsFunc(p.inside, func(begin string) bool { return strings.HasPrefix(rest, begin) })
}
