package attack

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"glovebox"
)

// harmlessCalls must be refused, and do nothing that lasts where they are not.
func harmlessCalls() []string {
	return []string{
		call("unshare", unix.SYS_UNSHARE), call("setns", unix.SYS_SETNS), call("clone3", unix.SYS_CLONE3),
		call("open_tree", unix.SYS_OPEN_TREE), call("fsopen", unix.SYS_FSOPEN), call("fspick", unix.SYS_FSPICK),
		call("fsconfig", unix.SYS_FSCONFIG), call("fsmount", unix.SYS_FSMOUNT), call("bpf", unix.SYS_BPF),
		call("perf_event_open", unix.SYS_PERF_EVENT_OPEN), call("userfaultfd", unix.SYS_USERFAULTFD),
		call("io_uring_setup", unix.SYS_IO_URING_SETUP), call("io_uring_enter", unix.SYS_IO_URING_ENTER),
		call("io_uring_register", unix.SYS_IO_URING_REGISTER), call("keyctl", unix.SYS_KEYCTL), call("syslog", unix.SYS_SYSLOG),
		call("adjtimex", unix.SYS_ADJTIMEX), call("clock_adjtime", unix.SYS_CLOCK_ADJTIME), call("mbind", unix.SYS_MBIND),
		call("set_mempolicy", unix.SYS_SET_MEMPOLICY), call("migrate_pages", unix.SYS_MIGRATE_PAGES),
		call("move_pages", unix.SYS_MOVE_PAGES), call("fanotify_init", unix.SYS_FANOTIFY_INIT), call("quotactl",
			unix.SYS_QUOTACTL),
		call("personality", unix.SYS_PERSONALITY), call("memfd_secret", unix.SYS_MEMFD_SECRET),
		call("process_madvise", unix.SYS_PROCESS_MADVISE), call("finit_module", unix.SYS_FINIT_MODULE),
		call("kexec_file_load", unix.SYS_KEXEC_FILE_LOAD), call("pidfd_getfd", unix.SYS_PIDFD_GETFD), call("kcmp",
			unix.SYS_KCMP),
	}
}

func kernel() []Program {
	const refused = "its descriptors, from outside"
	held := func(id, tries, name string, number int) Program {
		return Program{ID: id, Axis: "KS", Tries: tries, Judged: refused, file: "hold.py", args: words(call(name, number)),
			look: emptyHanded()}
	}
	return []Program{
		{ID: "KS-01", Axis: "KS", Tries: "makes thirty calls that must be refused", Judged: byWord, said: true,
			file: "ks01_refused.py",
			args: words(harmlessCalls()...)},
		held("KS-01/fsopen", "opens a file system to mount", "fsopen", unix.SYS_FSOPEN),
		held("KS-01/fspick", "picks a mount to change", "fspick", unix.SYS_FSPICK),
		{ID: "KS-03", Axis: "KS", Tries: "makes each kind of namespace", Judged: byLook, file: "hold.py",
			args: words(call("namespaces", unix.SYS_UNSHARE)), look: apart},
		held("KS-06", "loads a map into the kernel by bpf", "bpf", unix.SYS_BPF),
		held("KS-07", "watches page faults by userfaultfd", "userfaultfd", unix.SYS_USERFAULTFD),
		held("KS-07/user", "watches its own page faults by userfaultfd", "userfaultfd_user", unix.SYS_USERFAULTFD),
		held("KS-10", "counts events of the processor", "perf_event_open", unix.SYS_PERF_EVENT_OPEN),
		held("KS-12", "sets up a second way to make calls, io_uring", "io_uring_setup", unix.SYS_IO_URING_SETUP),
		held("KS-14", "watches files of others by fanotify", "fanotify_init", unix.SYS_FANOTIFY_INIT),
		held("KS-22", "takes secret memory that nobody can see", "memfd_secret", unix.SYS_MEMFD_SECRET),
		{ID: "KS-17/x32", Axis: "KS", Tries: "makes a call by the x32 numbering", Judged: byStatus, file: "ks17_killed.py",
			args: words("x32"), free: true, then: ends(glovebox.StatusPolicy, -1, "")},
		{ID: "KS-17/int80", Axis: "KS", Tries: "makes a call by the 32-bit entry", Judged: byStatus, file: "ks17_killed.py",
			args: words("int80"), free: true, then: ends(glovebox.StatusPolicy, -1, "")},
		{ID: "KS-20", Axis: "KS", Tries: "makes calls that this kernel may have and nobody knows", Judged: byWord, said: true,
			file: "ks17_numbers.py", args: words("480-600"), then: unknownRefused},
		{ID: "KS-21", Axis: "KS", Tries: "takes another personality", Judged: byLook, file: "hold.py",
			args: words(call("personality", unix.SYS_PERSONALITY)), look: plainPersonality()},
		{ID: "KS-23", Axis: "KS", Tries: "runs a thread or child without the filter of calls", Judged: byLook, file: "hold.py",
			args: words(call("own_filter", unix.SYS_SECCOMP)), look: filtered()},
		{ID: "KS-23/privileges", Axis: "KS", Tries: "takes capabilities and ids, in every thread and child", Judged: byLook,
			file: "hold.py", args: words("identity"), look: looks(unprivileged(), foreign())},
		{ID: "KS-25", Axis: "KS", Tries: "opens what is closed by a filter of its own", Judged: refused, file: "hold.py",
			args: words(call("own_filter", unix.SYS_SECCOMP), call("io_uring_setup", unix.SYS_IO_URING_SETUP),
				call("notify", unix.SYS_SECCOMP)), look: emptyHanded()},
	}
}

// unknownRefused demands the answer "not implemented" for every number beyond the tables.
func unknownRefused(_ *laboratory, o *observed) []string {
	answers := 0
	for line := range strings.Lines(string(o.stdout)) {
		var number, answer int
		if n, err := fmt.Sscanf(line, "call %d %d", &number, &answer); n != 2 || err != nil {
			continue
		}
		answers++
		if answer != int(unix.ENOSYS) {
			return []string{fmt.Sprintf("call %d is answered with %d and not with %d", number, answer, int(unix.ENOSYS))}
		}
	}
	if answers < 121 {
		return []string{fmt.Sprintf("only %d of 121 calls are answered", answers)}
	}
	return nil
}
