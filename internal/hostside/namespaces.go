package hostside

import "golang.org/x/sys/unix"

// Namespaces are made fresh for each sandbox, at the creation of its first process. The control group namespace is made by
// the program's own process once it has joined its groups, so that it sees itself at the top.
const Namespaces = unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUTS

// InitCapabilities are held inside the sandbox's own user namespace only, over nothing that belongs to the host. They are
// constants in all but form.
var InitCapabilities = []uintptr{
	unix.CAP_SYS_ADMIN,               // mounts, host name, control group namespace
	unix.CAP_SETUID, unix.CAP_SETGID, // become init, then the program
	unix.CAP_SETPCAP,                // drop the program's bounds
	unix.CAP_NET_ADMIN,              // loopback up; the interface of a network
	unix.CAP_CHOWN, unix.CAP_FOWNER, // the program's folders and pipes
	unix.CAP_DAC_OVERRIDE,              // open outputs whatever their modes
	unix.CAP_DAC_READ_SEARCH,           //
	unix.CAP_KILL, unix.CAP_SYS_PTRACE, // end the program; read its namespaces, listen for it
	unix.CAP_SYS_RESOURCE,                  // lower what the kernel lends to its own user namespace
	unix.CAP_SYS_CHROOT, unix.CAP_SYS_NICE, // pivot_root; oom score
}
