package attack_test

import (
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// refusedCalls must be refused to every program, whatever the arguments, or at least with those that the program gives.
func refusedCalls() map[string]int {
	all := map[string]int{
		"mount": unix.SYS_MOUNT, "umount2": unix.SYS_UMOUNT2, "pivot_root": unix.SYS_PIVOT_ROOT,
		"chroot":    unix.SYS_CHROOT,
		"open_tree": unix.SYS_OPEN_TREE, "move_mount": unix.SYS_MOVE_MOUNT, "fsopen": unix.SYS_FSOPEN,
		"fsconfig": unix.SYS_FSCONFIG, "fsmount": unix.SYS_FSMOUNT, "fspick": unix.SYS_FSPICK,
		"mount_setattr": unix.SYS_MOUNT_SETATTR, "statmount": unix.SYS_STATMOUNT, "listmount": unix.SYS_LISTMOUNT,
		"open_tree_attr": 467,
		"unshare":        unix.SYS_UNSHARE, "setns": unix.SYS_SETNS, "clone3": unix.SYS_CLONE3,
		"init_module": unix.SYS_INIT_MODULE, "finit_module": unix.SYS_FINIT_MODULE,
		"delete_module": unix.SYS_DELETE_MODULE,
		"kexec_load":    unix.SYS_KEXEC_LOAD, "kexec_file_load": unix.SYS_KEXEC_FILE_LOAD, "reboot": unix.SYS_REBOOT,
		"ptrace": unix.SYS_PTRACE, "process_vm_readv": unix.SYS_PROCESS_VM_READV,
		"process_vm_writev": unix.SYS_PROCESS_VM_WRITEV, "kcmp": unix.SYS_KCMP, "pidfd_getfd": unix.SYS_PIDFD_GETFD,
		"process_madvise": unix.SYS_PROCESS_MADVISE, "process_mrelease": unix.SYS_PROCESS_MRELEASE,
		"perf_event_open": unix.SYS_PERF_EVENT_OPEN, "bpf": unix.SYS_BPF, "userfaultfd": unix.SYS_USERFAULTFD,
		"syslog": unix.SYS_SYSLOG, "fanotify_init": unix.SYS_FANOTIFY_INIT, "fanotify_mark": unix.SYS_FANOTIFY_MARK,
		"add_key": unix.SYS_ADD_KEY, "request_key": unix.SYS_REQUEST_KEY, "keyctl": unix.SYS_KEYCTL,
		"io_uring_setup": unix.SYS_IO_URING_SETUP, "io_uring_enter": unix.SYS_IO_URING_ENTER,
		"io_uring_register": unix.SYS_IO_URING_REGISTER, "open_by_handle_at": unix.SYS_OPEN_BY_HANDLE_AT,
		"settimeofday": unix.SYS_SETTIMEOFDAY, "clock_settime": unix.SYS_CLOCK_SETTIME, "adjtimex": unix.SYS_ADJTIMEX,
		"clock_adjtime": unix.SYS_CLOCK_ADJTIME, "swapon": unix.SYS_SWAPON, "swapoff": unix.SYS_SWAPOFF,
		"acct":     unix.SYS_ACCT,
		"quotactl": unix.SYS_QUOTACTL, "quotactl_fd": unix.SYS_QUOTACTL_FD, "vhangup": unix.SYS_VHANGUP,
		"sethostname": unix.SYS_SETHOSTNAME, "setdomainname": unix.SYS_SETDOMAINNAME, "mbind": unix.SYS_MBIND,
		"set_mempolicy": unix.SYS_SET_MEMPOLICY, "set_mempolicy_home_node": unix.SYS_SET_MEMPOLICY_HOME_NODE,
		"migrate_pages": unix.SYS_MIGRATE_PAGES, "move_pages": unix.SYS_MOVE_PAGES, "personality": unix.SYS_PERSONALITY,
		"cachestat": unix.SYS_CACHESTAT, "memfd_secret": unix.SYS_MEMFD_SECRET,
	}
	maps.Copy(all, numbersOfMachine)
	return all
}

func TestKS01RefusedCalls(t *testing.T) {
	hostname := read("/proc/sys/kernel/hostname")
	contained(t, attack(t, trial{program: "ks01_refused.py", args: calls(refusedCalls())}))
	if read("/proc/sys/kernel/hostname") != hostname {
		t.Error("the host's name changed")
	}
}

func TestKS03Namespaces(t *testing.T) {
	contained(t, attack(t, trial{program: "ks03_namespaces.py",
		args: calls(map[string]int{"unshare": unix.SYS_UNSHARE, "clone": unix.SYS_CLONE})}))
}

func TestKS17OtherNumbering(t *testing.T) {
	need(t)
	if runtime.GOARCH != "amd64" {
		missing(t, "not on this machine: a second numbering of calls")
		return
	}
	for _, form := range []string{"x32", "int80"} {
		o := attack(t, trial{program: "ks17_killed.py", args: []string{form}})
		ended(t, o, "policy", 122, "")
		if o.Stdout != "" || o.Reason == "" {
			t.Errorf("%s: stdout %q, reason %q", form, o.Stdout, o.Reason)
		}
	}
	// In a child, each refused call by the other numbering; the leader is told of a death by SIGSYS.
	const bit = 0x40000000
	var args []string
	for _, n := range refusedCalls() {
		args = append(args, strconv.Itoa(bit|n))
	}
	o := attack(t, trial{program: "ks17_numbers.py", args: args})
	contained(t, o)
	for n, got := range answers(t, o) {
		if got != -int(syscall.SIGSYS) {
			t.Errorf("call %d by the other numbering: %d", n&^bit, got)
		}
	}
}

var callLine = regexp.MustCompile(`(?m)^call (\d+) (-?\d+)$`)

// answers maps a call's number to its errno, 255 for success, or the negative signal that ended the caller.
func answers(t *testing.T, o outcome) map[int]int {
	t.Helper()
	all := map[int]int{}
	for _, m := range callLine.FindAllStringSubmatch(o.Stdout, -1) {
		n, _ := strconv.Atoi(m[1])
		all[n], _ = strconv.Atoi(m[2])
	}
	if len(all) == 0 {
		t.Fatalf("no answers: %q %q", o.Stdout, o.Stderr)
	}
	return all
}

// TestKS20EveryNumber makes every call there may be, with nought for its arguments, and compares with the filter's table.
func TestKS20EveryNumber(t *testing.T) {
	need(t)
	table := read(filepath.Join("..", "internal", "seccomp", "compile", "testdata",
		"refused_"+runtime.GOARCH+".golden"))
	if table == "" {
		t.Fatal("the table of refused calls is missing")
	}
	// What would reach outside or wait for ever is left out: sync writes all disks of the machine.
	numbers := fmt.Sprintf("0-%d %d-600", unix.SYS_SYNC-1, unix.SYS_SYNC+1)
	o := attack(t, trial{program: "ks17_numbers.py", args: strings.Fields(numbers)})
	contained(t, o)
	got := answers(t, o)
	if len(got) != 600 {
		t.Errorf("%d answers, want 600", len(got))
	}
	refused := map[int]bool{}
	for _, line := range strings.Split(strings.TrimSpace(table), "\n") {
		f := strings.Fields(line)
		n, _ := strconv.Atoi(f[0])
		refused[n] = true
		want := map[string]int{"EPERM": int(syscall.EPERM), "ENOSYS": int(syscall.ENOSYS)}[f[2]]
		if want != 0 && got[n] != want {
			t.Errorf("call %s (%d): %d, want %s", f[1], n, got[n], f[2])
		}
	}
	for name, n := range refusedCalls() {
		if !refused[n] {
			t.Errorf("call %s (%d) is not in the table", name, n)
		}
	}
	for n, errno := range got {
		if n > 480 && errno != int(syscall.ENOSYS) {
			t.Errorf("unknown call %d: %d, want ENOSYS", n, errno)
		}
		if errno == -int(syscall.SIGSYS) {
			t.Errorf("call %d ends the program", n)
		}
	}
	// A filter that refuses everything would pass all of the above.
	for _, n := range []int{unix.SYS_GETPID, unix.SYS_MEMFD_CREATE, unix.SYS_GETRANDOM, unix.SYS_STATX,
		unix.SYS_OPENAT2, unix.SYS_CLOSE_RANGE,
		unix.SYS_RSEQ, unix.SYS_MEMBARRIER, unix.SYS_COPY_FILE_RANGE, unix.SYS_EPOLL_CREATE1,
		unix.SYS_LANDLOCK_CREATE_RULESET} {
		if got[n] == int(syscall.ENOSYS) || got[n] == int(syscall.EPERM) {
			t.Errorf("call %d is refused and everyday programs need it", n)
		}
	}
}

func TestKS23StateOfEveryProcess(t *testing.T) {
	o := attack(t, trial{program: "ks23_state.sh"})
	contained(t, o)
	filters := regexp.MustCompile(`Seccomp:\s+(\d)`).FindAllStringSubmatch(o.Stdout, -1)
	if len(filters) < 7 {
		t.Errorf("%d processes and threads seen:\n%s", len(filters), o.Stdout)
	}
	for _, f := range filters {
		if f[1] != "2" {
			t.Errorf("a process without a filter: %s", f[0])
		}
	}
	for _, m := range regexp.MustCompile(`(NoNewPrivs|Cap\w+):\s+(\w+)`).FindAllStringSubmatch(o.Stdout, -1) {
		if m[1] == "NoNewPrivs" && m[2] != "1" || m[1] != "NoNewPrivs" && strings.Trim(m[2], "0") != "" {
			t.Errorf("a process with %s %s", m[1], m[2])
		}
	}
	if counts := regexp.MustCompile(`Seccomp_filters:\s+(\d+)`).FindAllStringSubmatch(o.Stdout, -1); len(counts) > 0 {
		slices.SortFunc(counts, func(a, b []string) int { return strings.Compare(a[1], b[1]) })
		if counts[0][1] != counts[len(counts)-1][1] || counts[0][1] == "0" {
			t.Errorf("from %s to %s filters", counts[0][1], counts[len(counts)-1][1])
		}
	}
}

func TestKS25OwnFilter(t *testing.T) {
	contained(t, attack(t, trial{program: "ks25_own_filter.py", args: calls(map[string]int{"seccomp": unix.SYS_SECCOMP,
		"unshare": unix.SYS_UNSHARE, "mount": unix.SYS_MOUNT})}))
}
