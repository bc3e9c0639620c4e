package compile

import (
	"fmt"
	"slices"
	"strings"
	"syscall"

	asm "github.com/elastic/go-seccomp-bpf"
	"golang.org/x/net/bpf"
)

// Rule is one line of the filter for people to read.
type Rule struct {
	Call   string // the call, or a description of numbers
	When   string // which uses of it are meant; empty means every use
	Action string // an errno's name, or "kill" for death of the whole process by SIGSYS
	Why    string
}

// Table lists what the filter refuses, the calls in order of their names. What it does not list passes.
func Table() []Rule {
	var t []Rule
	for _, r := range refusals() {
		for _, call := range strings.Fields(r.calls) {
			t = append(t, Rule{call, "", errnoName(r.errno), r.why})
		}
	}
	for _, c := range conditions() {
		t = append(t, Rule{c.call, c.when, c.action, c.why})
	}
	slices.SortFunc(t, func(a, b Rule) int { return strings.Compare(a.Call, b.Call) })
	return append(t,
		Rule{"unknown numbers", "", "ENOSYS", "a call newer than this filter was never judged"},
		Rule{"x32 numbers", "", "kill", "the same calls under other numbers (amd64)"},
		Rule{"other architectures", "", "kill", "32-bit entries number their calls differently"})
}

// refusal refuses every use of some calls.
type refusal struct {
	calls string // separated by spaces
	errno syscall.Errno
	why   string
}

func refusals() []refusal {
	return []refusal{
		{"mount umount2 pivot_root chroot open_tree open_tree_attr move_mount fsopen fsconfig fsmount fspick mount_setattr",
			syscall.EPERM, "changes what the file system shows"},
		{"statmount listmount", syscall.EPERM, "shows the mounts of the host"},
		{"unshare setns", syscall.EPERM, "enters namespaces, where the kernel grants capabilities"},
		{"clone3", syscall.ENOSYS, "its flags are in memory, out of a filter's sight; C libraries fall back to clone"},

		{"init_module finit_module delete_module kexec_load kexec_file_load reboot", syscall.EPERM,
			"changes the running kernel"},
		{"bpf perf_event_open userfaultfd", syscall.EPERM, "a large part of the kernel that programs can do without"},
		{"ptrace process_vm_readv process_vm_writev kcmp pidfd_getfd process_mrelease", syscall.EPERM,
			"reaches into other processes"},
		{"process_madvise", syscall.ENOSYS, "reaches into other processes; allocators fall back to madvise"},
		{"syslog lookup_dcookie", syscall.EPERM, "reads what the kernel says of the host"},
		{"fanotify_init fanotify_mark", syscall.EPERM, "watches files of others"},
		{"add_key request_key keyctl", syscall.EPERM, "keyrings are shared across namespaces"},
		{"io_uring_setup io_uring_enter io_uring_register", syscall.ENOSYS,
			"a second way to make calls, past this filter; libraries fall back to epoll and threads"},
		{"io_setup", syscall.ENOSYS, "takes from a number of requests that the whole host shares; libraries fall back"},
		{"open_by_handle_at", syscall.EPERM, "opens files past every folder and mount"},
		{"settimeofday clock_settime adjtimex clock_adjtime", syscall.EPERM, "sets the clock of the host"},

		{"swapon swapoff acct quotactl quotactl_fd iopl ioperm vhangup sethostname setdomainname", syscall.EPERM,
			"administers the machine"},
		{"mbind set_mempolicy set_mempolicy_home_node migrate_pages move_pages", syscall.EPERM,
			"places memory, of others too"},
		{"sched_setattr", syscall.EPERM, "may ask for real-time scheduling, in memory, out of a filter's sight"},
		{"modify_ldt", syscall.EPERM, "16-bit segments: code of the kernel that has often been wrong"},
		{"lsm_set_self_attr", syscall.ENOSYS, "changes the security label"},
		{"cachestat", syscall.ENOSYS, "tells which pages of shared files others use"},
		{"memfd_secret", syscall.ENOSYS, "memory that nobody can inspect or reclaim"},

		{"sync syncfs", 0, "writes out all that the host has to write; said to be done, since nothing of a run is to last"},

		{"uselib ustat sysfs _sysctl nfsservctl create_module get_kernel_syms query_module vserver", syscall.ENOSYS,
			"left over from old kernels"},
	}
}

// ruleset is what a filter does to calls; those that it does not name pass.
type ruleset struct {
	refused []refusal
	judged  []condition
	mild    bool // numbers of x32 are refused as unknown ones are
}

func rules() ruleset { return ruleset{refused: refusals(), judged: conditions()} }

// templateCalls are the calls by which a template makes sandboxes, and by which the init of one takes hold of its program.
const templateCalls = "mount umount2 pivot_root open_tree move_mount fsopen fsconfig fsmount mount_setattr unshare clone3 " +
	"sethostname pidfd_getfd"

func templateRules() ruleset {
	var r ruleset
	for _, one := range refusals() {
		calls := slices.DeleteFunc(strings.Fields(one.calls), func(call string) bool {
			return slices.Contains(strings.Fields(templateCalls), call)
		})
		one.calls = strings.Join(calls, " ")
		r.refused = append(r.refused, one)
	}
	return r
}

// guestCalls are those that a program on a kernel in user space may not make: that kernel lets anybody be root of a user
// namespace and mount file systems there, which no limit of the run but that of memory would bound.
const guestCalls = "mount umount2 pivot_root chroot open_tree open_tree_attr move_mount fsopen fsconfig fsmount fspick " +
	"mount_setattr unshare setns clone3"

func guestRules() ruleset {
	r := ruleset{mild: true} // such a kernel has none of x32
	for _, one := range refusals() {
		calls := slices.DeleteFunc(strings.Fields(one.calls), func(call string) bool {
			return !slices.Contains(strings.Fields(guestCalls), call)
		})
		one.calls = strings.Join(calls, " ")
		r.refused = append(r.refused, one)
	}
	for _, c := range conditions() {
		if c.call == "clone" {
			r.judged = append(r.judged, c)
		}
	}
	return r
}

// absent lists, for an architecture, the calls of the rules that its table lacks on purpose.
func absent(goarch string) string {
	if goarch == "arm64" {
		return "create_module get_kernel_syms ioperm iopl mknod modify_ldt query_module sysfs _sysctl uselib ustat vserver"
	}
	return ""
}

// condition refuses some uses of a call, by its arguments. Arguments are compared by their low 32 bits wherever the kernel
// looks at no more, so that bits above cannot make one value look like another.
type condition struct {
	call, when, action, why string
	emit                    func(p *asm.Program)
}

func conditions() []condition {
	return []condition{
		{"clone", "with a flag for a new namespace", "EPERM", "enters namespaces, where the kernel grants capabilities",
			emitClone},
		{"ioctl", "TIOCSTI, TIOCLINUX, TIOCCONS, TIOCSETD and the console's KD and VT requests", "EPERM",
			"types into, takes over or reprograms a terminal", emitIoctl},
		{"socket", "anything but unix, TCP and UDP over IPv4 and IPv6",
			"EAFNOSUPPORT, EPROTONOSUPPORT; EPERM for raw and packet types",
			"other families load modules of the kernel and go past the network's rules; netlink answers that nobody reads " +
				"are memory that no run pays for", emitSocket},
		{"socketpair", "other than unix", "EAFNOSUPPORT", "no other family is in use", emitSocketpair},
		{"listen", "", "asks init", "what waits to be accepted counts for no run, so init bounds it and does the call",
			func(p *asm.Program) { p.Ret(asm.ActionUserNotify) }},
		{"setsockopt", "SO_RCVBUF: taken note of and not set", "0",
			"connections that wait to be accepted would have it too", emitSetsockopt},
		{"personality", "other than the query and plain Linux", "EPERM", "switches off protections of memory",
			emitPersonality},
		{"sched_setscheduler", "other than the normal, batch and idle classes", "EPERM", "starves the machine",
			emitScheduler},
		{"seccomp", "with a listener for notifications", "EPERM",
			"a program may tighten its filter but not answer calls in the kernel's place", emitSeccomp},
		{"prlimit64", "of another process; a new limit of cores is taken note of and not set", "EPERM; 0",
			"changes the limits of init where the program has its id; see setrlimit", emitPrlimit},
		{"setrlimit", "of cores: taken note of and not set", "0",
			"the limit 0, other than the 1 that is set, lets a core reach a program of the host", emitSetrlimit},
		{"inotify_add_watch", "for openings and readings", "EPERM", "tells what the host and other sandboxes run",
			emitWatch},
		{"fcntl", "F_NOTIFY", "EPERM", "tells what the host and other sandboxes run",
			func(p *asm.Program) {
				const notify = 1026
				stop := p.NewLabel()
				p.LdLo(1)
				p.JmpIfTrue(bpf.JumpEqual, notify, stop)
				refuseElse(p, syscall.EPERM, stop)
			}},
		{"prctl", "PR_SET_MM", "EPERM", "moves the memory map that the host reads", emitPrctl},
		{"mknod", "character and block devices", "EPERM", "makes a door to a device",
			func(p *asm.Program) { emitMknod(p, 1) }},
		{"mknodat", "character and block devices", "EPERM", "makes a door to a device",
			func(p *asm.Program) { emitMknod(p, 2) }},
	}
}

// allowElse ends a check: values that jumped to the label pass, the rest is refused.
func allowElse(p *asm.Program, e syscall.Errno, pass asm.Label) {
	p.Ret(answer(e))
	p.SetLabel(pass)
	p.Ret(asm.ActionAllow)
}

// refuseElse ends a check: values that jumped to the label are refused, the rest passes.
func refuseElse(p *asm.Program, e syscall.Errno, stop asm.Label) {
	p.Ret(asm.ActionAllow)
	p.SetLabel(stop)
	p.Ret(answer(e))
}

// coreLimit is RLIMIT_CORE.
const coreLimit = 4

func emitPrlimit(p *asm.Program) {
	own, pass, note := p.NewLabel(), p.NewLabel(), p.NewLabel()
	p.LdLo(0)
	p.JmpIfTrue(bpf.JumpEqual, 0, own)
	p.Ret(answer(syscall.EPERM))
	p.SetLabel(own)
	p.LdLo(1)
	p.JmpIfTrue(bpf.JumpNotEqual, coreLimit, pass)
	// Reading is fine: then there is no new limit, whose address is the third argument.
	p.LdLo(2)
	p.JmpIfTrue(bpf.JumpNotEqual, 0, note)
	p.LdHi(2)
	p.JmpIfTrue(bpf.JumpNotEqual, 0, note)
	p.SetLabel(pass)
	refuseElse(p, 0, note)
}

func emitSetrlimit(p *asm.Program) {
	note := p.NewLabel()
	p.LdLo(0)
	p.JmpIfTrue(bpf.JumpEqual, coreLimit, note)
	refuseElse(p, 0, note)
}

func emitWatch(p *asm.Program) {
	const access, closeNoWrite, open = 0x1, 0x10, 0x20
	stop := p.NewLabel()
	p.LdLo(2)
	p.JmpIfTrue(bpf.JumpBitsSet, access|closeNoWrite|open, stop)
	refuseElse(p, syscall.EPERM, stop)
}

func emitClone(p *asm.Program) {
	// The time namespace's flag lies among the bits of the exit signal, where clone does not look for flags.
	const newNamespace = syscall.CLONE_NEWNS | 0x02000000 /* cgroup */ | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC |
		syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET
	stop := p.NewLabel()
	p.LdLo(0)
	p.JmpIfTrue(bpf.JumpBitsSet, newNamespace, stop)
	refuseElse(p, syscall.EPERM, stop)
}

func emitIoctl(p *asm.Program) {
	const (
		tiocsti, tioclinux, tioccons, tiocsetd = 0x5412, 0x541C, 0x541D, 0x5423
		keyboards, terminals                   = 0x4B00, 0x5600 // each with 256 requests that carry no size
	)
	pass, stop := p.NewLabel(), p.NewLabel()
	p.LdLo(1)
	p.JmpIfTrue(bpf.JumpLessThan, keyboards, pass)
	p.JmpIfTrue(bpf.JumpLessThan, keyboards+0x100, stop)
	for _, request := range []uint32{tiocsti, tioclinux, tioccons, tiocsetd} {
		p.JmpIfTrue(bpf.JumpEqual, request, stop)
	}
	p.JmpIfTrue(bpf.JumpLessThan, terminals, pass)
	p.JmpIfTrue(bpf.JumpLessThan, terminals+0x100, stop)
	p.SetLabel(pass)
	refuseElse(p, syscall.EPERM, stop)
}

func emitSocket(p *asm.Program) {
	// The low four bits of the type are 1 for stream, 2 for datagram and 3 for raw; whatever has one of the upper two of
	// them is another kind, packet sockets among them. Flags lie above.
	const streamBit, datagramBit, otherBits = 1, 2, 0xC
	pass, internet := p.NewLabel(), p.NewLabel()
	datagram, stop := p.NewLabel(), p.NewLabel()
	p.LdLo(0)
	p.JmpIfTrue(bpf.JumpEqual, syscall.AF_UNIX, pass)
	p.JmpIfTrue(bpf.JumpEqual, syscall.AF_INET, internet)
	p.JmpIfTrue(bpf.JumpEqual, syscall.AF_INET6, internet)
	p.Ret(answer(syscall.EAFNOSUPPORT))

	p.SetLabel(internet)
	p.LdLo(1)
	p.JmpIfTrue(bpf.JumpBitsSet, otherBits, stop)
	p.JmpIfTrue(bpf.JumpBitsSet, datagramBit, datagram)
	p.JmpIfTrue(bpf.JumpBitsNotSet, streamBit, stop)
	p.LdLo(2)
	p.JmpIfTrue(bpf.JumpEqual, 0, pass)
	p.JmpIfTrue(bpf.JumpEqual, syscall.IPPROTO_TCP, pass)
	p.Ret(answer(syscall.EPROTONOSUPPORT))
	p.SetLabel(datagram)
	p.JmpIfTrue(bpf.JumpBitsSet, streamBit, stop)
	p.LdLo(2)
	p.JmpIfTrue(bpf.JumpEqual, 0, pass)
	p.JmpIfTrue(bpf.JumpEqual, syscall.IPPROTO_UDP, pass)
	p.Ret(answer(syscall.EPROTONOSUPPORT))
	p.SetLabel(stop)
	p.Ret(answer(syscall.EPERM))

	p.SetLabel(pass)
	p.Ret(asm.ActionAllow)
}

func emitSocketpair(p *asm.Program) {
	pass := p.NewLabel()
	p.LdLo(0)
	p.JmpIfTrue(bpf.JumpEqual, syscall.AF_UNIX, pass)
	allowElse(p, syscall.EAFNOSUPPORT, pass)
}

func emitSetsockopt(p *asm.Program) {
	const sockets, receiveBuffer = 1, 8 // SOL_SOCKET and SO_RCVBUF (asm-generic/socket.h)
	pass, note := p.NewLabel(), p.NewLabel()
	p.LdLo(1)
	p.JmpIfTrue(bpf.JumpNotEqual, sockets, pass)
	p.LdLo(2)
	p.JmpIfTrue(bpf.JumpEqual, receiveBuffer, note)
	p.SetLabel(pass)
	refuseElse(p, 0, note)
}

func emitPersonality(p *asm.Program) {
	const plain, query = 0, 0xffffffff
	pass := p.NewLabel()
	p.LdLo(0)
	p.JmpIfTrue(bpf.JumpEqual, plain, pass)
	p.JmpIfTrue(bpf.JumpEqual, query, pass)
	allowElse(p, syscall.EPERM, pass)
}

func emitScheduler(p *asm.Program) {
	const other, batch, idle, resetOnFork = 0, 3, 5, 0x40000000
	pass := p.NewLabel()
	p.LdLo(1)
	for _, class := range []uint32{other, batch, idle} {
		p.JmpIfTrue(bpf.JumpEqual, class, pass)
		p.JmpIfTrue(bpf.JumpEqual, class|resetOnFork, pass)
	}
	allowElse(p, syscall.EPERM, pass)
}

func emitSeccomp(p *asm.Program) {
	const newListener = 8
	stop := p.NewLabel()
	p.LdLo(1)
	p.JmpIfTrue(bpf.JumpBitsSet, newListener, stop)
	refuseElse(p, syscall.EPERM, stop)
}

func emitPrctl(p *asm.Program) {
	const setMM = 35
	stop := p.NewLabel()
	p.LdLo(0)
	p.JmpIfTrue(bpf.JumpEqual, setMM, stop)
	refuseElse(p, syscall.EPERM, stop)
}

// emitMknod looks at the one bit that the two kinds of device have and fifos, sockets and regular files have not.
func emitMknod(p *asm.Program, argument uint32) {
	stop := p.NewLabel()
	p.LdLo(argument)
	p.JmpIfTrue(bpf.JumpBitsSet, syscall.S_IFCHR, stop)
	refuseElse(p, syscall.EPERM, stop)
}

func errnoName(e syscall.Errno) string {
	switch e {
	case syscall.EPERM:
		return "EPERM"
	case syscall.ENOSYS:
		return "ENOSYS"
	case 0:
		return "0"
	}
	return fmt.Sprintf("errno %d", int(e))
}
