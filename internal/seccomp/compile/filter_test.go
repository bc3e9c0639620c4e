package compile

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	asm "github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/bpf"

	"glovebox/internal/seccomp"
)

var update = flag.Bool("update", false, "write the golden files")

const (
	auditAMD64 = 0xC000003E
	auditARM64 = 0xC00000B7
	auditI386  = 0x40000003
	auditARM   = 0x40000028
)

// vm runs a filter as the kernel would.
type vm struct {
	*bpf.VM
	info *arch.Info
}

func newVM(t testing.TB, goarch string) vm {
	t.Helper()
	raw, err := Filter(goarch)
	if err != nil {
		t.Fatal(err)
	}
	return newVMOf(t, goarch, raw)
}

func newVMOf(t testing.TB, goarch string, raw []byte) vm {
	t.Helper()
	var program []bpf.Instruction
	for b := raw; len(b) > 0; b = b[8:] {
		program = append(program, bpf.RawInstruction{Op: binary.NativeEndian.Uint16(b), Jt: b[2], Jf: b[3],
			K: binary.NativeEndian.Uint32(b[4:])}.Disassemble())
	}
	m, err := bpf.NewVM(program)
	if err != nil {
		t.Fatal(err)
	}
	info, err := arch.GetInfo(goarch)
	if err != nil {
		t.Fatal(err)
	}
	return vm{m, info}
}

// ask is what the filter answers, in words. The machine reads packets, which are big-endian, where the kernel reads words in
// the order of the host; both filters are for little-endian ones, so the halves of an argument are in that order.
func (m vm) ask(t testing.TB, audit, number uint32, args ...uint64) string {
	t.Helper()
	data := make([]byte, 64)
	binary.BigEndian.PutUint32(data[0:], number)
	binary.BigEndian.PutUint32(data[4:], audit)
	for i, a := range args {
		binary.BigEndian.PutUint32(data[16+8*i:], uint32(a))
		binary.BigEndian.PutUint32(data[20+8*i:], uint32(a>>32))
	}
	n, err := m.Run(data)
	if err != nil {
		t.Fatal(err)
	}
	switch action := asm.Action(n) &^ 0xffff; action {
	case asm.ActionAllow, asm.ActionKillProcess:
		return action.String()
	case asm.ActionUserNotify:
		return "asks init"
	case asm.ActionErrno:
		switch e := syscall.Errno(n & 0xffff); e {
		case syscall.EAFNOSUPPORT:
			return "EAFNOSUPPORT"
		case syscall.EPROTONOSUPPORT:
			return "EPROTONOSUPPORT"
		default:
			return errnoName(e)
		}
	}
	return fmt.Sprintf("%#x", n)
}

func (m vm) call(t testing.TB, name string, args ...uint64) string {
	t.Helper()
	number, ok := m.info.SyscallNames[name]
	if !ok {
		t.Fatalf("no call %s", name)
	}
	return m.ask(t, uint32(m.info.ID), uint32(number), args...)
}

// TestEveryNumber compares the answer to each number with a reviewed list. All arguments are zero; where they decide it says
// "by argument".
func TestEveryNumber(t *testing.T) {
	for _, goarch := range []string{"amd64", "arm64"} {
		m := newVM(t, goarch)
		conditional := map[string]bool{}
		for _, c := range conditions() {
			conditional[c.call] = true
		}
		var got strings.Builder
		for n := range uint32(1101) {
			name, known := m.info.SyscallNumbers[int(n)]
			answer := m.ask(t, uint32(m.info.ID), n)
			switch {
			case !known && answer != "ENOSYS":
				t.Errorf("%s: unknown number %d: %s", goarch, n, answer)
			case known && conditional[name]:
				fmt.Fprintf(&got, "%d %s by argument\n", n, name)
			case known && answer != "allow":
				fmt.Fprintf(&got, "%d %s %s\n", n, name, answer)
			}
		}
		golden := "testdata/refused_" + goarch + ".golden"
		if *update {
			if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got.String(), "\n")); d != "" {
			t.Errorf("%s (-want +got):\n%s", goarch, d)
		}
	}
}

const usable = `
read write close mmap munmap mprotect brk futex futex_waitv statx clone getrandom pipe2 openat openat2 close_range
faccessat2 sched_getaffinity sched_setaffinity rseq membarrier memfd_create epoll_create1 epoll_ctl epoll_pwait
signalfd4 timerfd_create eventfd2 copy_file_range landlock_create_ruleset landlock_add_rule landlock_restrict_self
seccomp prctl execve execveat exit_group rt_sigreturn wait4 waitid kill tgkill pidfd_open mlock mincore madvise
inotify_init1 sendfile splice ftruncate flock fsync nanosleep clock_gettime get_mempolicy name_to_handle_at setuid
setgroups capset sched_setscheduler mknodat sysinfo uname prlimit64 io_submit
`

func TestMustStayUsable(t *testing.T) {
	for _, goarch := range []string{"amd64", "arm64"} {
		m := newVM(t, goarch)
		for _, name := range strings.Fields(usable) {
			if got := m.call(t, name); got != "allow" {
				t.Errorf("%s: %s: %s", goarch, name, got)
			}
		}
	}
}

type argumentCase struct {
	call string
	args []uint64
	want string
}

// argumentCases have high bits set wherever the kernel does not look at them.
func argumentCases() []argumentCase {
	const high = 0xdeadbeef << 32
	threads := uint64(syscall.CLONE_VM | syscall.CLONE_SIGHAND | syscall.CLONE_THREAD | syscall.CLONE_SETTLS)
	return []argumentCase{
		{"clone", []uint64{threads}, "allow"}, {"clone", []uint64{uint64(syscall.SIGCHLD)}, "allow"},
		{"clone", []uint64{syscall.CLONE_VFORK | syscall.CLONE_VM | uint64(syscall.SIGCHLD)}, "allow"},
		{"clone", []uint64{syscall.CLONE_NEWUSER}, "EPERM"}, {"clone", []uint64{high | syscall.CLONE_NEWUSER}, "EPERM"},
		{"clone", []uint64{syscall.CLONE_NEWNS | threads}, "EPERM"}, {"clone", []uint64{syscall.CLONE_NEWNET}, "EPERM"},
		{"clone", []uint64{syscall.CLONE_NEWPID}, "EPERM"}, {"clone", []uint64{syscall.CLONE_NEWIPC}, "EPERM"},
		{"clone", []uint64{syscall.CLONE_NEWUTS}, "EPERM"}, {"clone", []uint64{0x02000000}, "EPERM"},

		{"ioctl", []uint64{0, 0x5412}, "EPERM"}, {"ioctl", []uint64{0, high | 0x5412}, "EPERM"},
		{"ioctl", []uint64{0, 1<<32 | 0x541C}, "EPERM"}, {"ioctl", []uint64{0, 0x541D}, "EPERM"},
		{"ioctl", []uint64{0, 0x5423}, "EPERM"}, {"ioctl", []uint64{0, 0x4B00}, "EPERM"},
		{"ioctl", []uint64{0, 0x4BFF}, "EPERM"}, {"ioctl", []uint64{0, 0x5600}, "EPERM"},
		{"ioctl", []uint64{0, 0x56FF}, "EPERM"}, {"ioctl", []uint64{0, 0x5601}, "EPERM"},
		{"ioctl", []uint64{0, 0x5401}, "allow"}, {"ioctl", []uint64{0, 0x540E}, "allow"},
		{"ioctl", []uint64{0, 0x5413}, "allow"}, {"ioctl", []uint64{0, 0x4AFF}, "allow"},
		{"ioctl", []uint64{0, 0x4C00}, "allow"}, {"ioctl", []uint64{0, 0x55FF}, "allow"},
		{"ioctl", []uint64{0, 0x5700}, "allow"}, {"ioctl", []uint64{0, 0x541B}, "allow"}, {"ioctl", []uint64{0, 0}, "allow"},

		{"socket", []uint64{1, 1, 0}, "allow"}, {"socket", []uint64{1, 2 | 0x80000, 0}, "allow"},
		{"socket", []uint64{1, 5, 0}, "allow"},
		{"socket", []uint64{2, 1, 0}, "allow"}, {"socket", []uint64{10, 1 | 0x80800, 6}, "allow"},
		{"socket", []uint64{high | 2, high | 2, high | 17}, "allow"}, {"socket", []uint64{10, 2, 0}, "allow"},
		{"socket", []uint64{2, 3, 1}, "EPERM"}, {"socket", []uint64{10, 3 | 0x80000, 58}, "EPERM"},
		{"socket", []uint64{2, high | 3, 255}, "EPERM"}, {"socket", []uint64{2, 10, 3}, "EPERM"},
		{"socket", []uint64{2, 5, 132}, "EPERM"}, {"socket", []uint64{2, 6, 33}, "EPERM"},
		{"socket", []uint64{2, 4, 0}, "EPERM"}, {"socket", []uint64{2, 0, 0}, "EPERM"},
		{"socket", []uint64{2, 1, 132}, "EPROTONOSUPPORT"}, {"socket", []uint64{2, 1, 262}, "EPROTONOSUPPORT"},
		{"socket", []uint64{2, 2, 1}, "EPROTONOSUPPORT"}, {"socket", []uint64{2, 2, 6}, "EPROTONOSUPPORT"},
		{"socket", []uint64{2, 1, 17}, "EPROTONOSUPPORT"}, {"socket", []uint64{2, 2, 136}, "EPROTONOSUPPORT"},
		{"socket", []uint64{16, 3, 0}, "EAFNOSUPPORT"}, {"socket", []uint64{16, 3 | 0x80000, high}, "EAFNOSUPPORT"},
		{"socket", []uint64{16, 3, 15}, "EAFNOSUPPORT"}, {"socket", []uint64{16, 2, 4}, "EAFNOSUPPORT"},
		{"prlimit64", []uint64{0, 7, 1, 0}, "allow"}, {"prlimit64", []uint64{high, 7, 1, 0}, "allow"},
		{"prlimit64", []uint64{1, 7, 1, 0}, "EPERM"}, {"prlimit64", []uint64{0, 4, 0, 1}, "allow"},
		{"prlimit64", []uint64{0, 4, 1, 0}, "0"}, {"prlimit64", []uint64{0, 4, high, 0}, "0"},
		{"prlimit64", []uint64{0, high | 4, 1, 0}, "0"}, {"setrlimit", []uint64{4, 1}, "0"},
		{"setrlimit", []uint64{high | 4, 1}, "0"}, {"setrlimit", []uint64{7, 1}, "allow"},
		{"inotify_add_watch", []uint64{0, 0, 0x20}, "EPERM"}, {"inotify_add_watch", []uint64{0, 0, 0xfff}, "EPERM"},
		{"inotify_add_watch", []uint64{0, 0, 0x3c6}, "allow"}, {"inotify_add_watch", []uint64{0, 0, high | 1}, "EPERM"},
		{"fcntl", []uint64{0, 1026}, "EPERM"}, {"fcntl", []uint64{0, high | 1026}, "EPERM"}, {"fcntl", []uint64{0, 4}, "allow"},
		{"socket", []uint64{17, 3, 3}, "EAFNOSUPPORT"}, {"socket", []uint64{high | 17, 2, 3}, "EAFNOSUPPORT"},
		{"socket", []uint64{38, 5, 0}, "EAFNOSUPPORT"}, {"socket", []uint64{40, 1, 0}, "EAFNOSUPPORT"},
		{"socket", []uint64{44, 3, 0}, "EAFNOSUPPORT"}, {"socket", []uint64{0, 1, 0}, "EAFNOSUPPORT"},
		{"socketpair", []uint64{1, 1, 0}, "allow"}, {"socketpair", []uint64{high | 1, 5, 0}, "allow"},
		{"socketpair", []uint64{30, 5, 0}, "EAFNOSUPPORT"}, {"socketpair", []uint64{1<<32 | 2, 1, 0}, "EAFNOSUPPORT"},

		{"listen", []uint64{high | 3, 5}, "asks init"}, {"setsockopt", []uint64{0, 1, 8}, "0"},
		{"setsockopt", []uint64{0, high | 1, high | 8}, "0"}, {"setsockopt", []uint64{0, 6, 8}, "allow"},
		{"personality", []uint64{0}, "allow"}, {"personality", []uint64{0xffffffff}, "allow"},
		{"personality", []uint64{^uint64(0)}, "allow"}, {"personality", []uint64{high}, "allow"},
		{"personality", []uint64{0x0400000}, "EPERM"}, {"personality", []uint64{0x0040000}, "EPERM"},
		{"personality", []uint64{8}, "EPERM"}, {"personality", []uint64{high | 0x0400000}, "EPERM"},

		{"sched_setscheduler", []uint64{0, 0}, "allow"}, {"sched_setscheduler", []uint64{0, 3}, "allow"},
		{"sched_setscheduler", []uint64{0, high | 0x40000005}, "allow"}, {"sched_setscheduler", []uint64{0, 1}, "EPERM"},
		{"sched_setscheduler", []uint64{0, 2}, "EPERM"}, {"sched_setscheduler", []uint64{0, 0x40000001}, "EPERM"},
		{"sched_setscheduler", []uint64{0, high | 6}, "EPERM"}, {"sched_setscheduler", []uint64{0, 7}, "EPERM"},

		{"seccomp", []uint64{1, 0}, "allow"}, {"seccomp", []uint64{1, 1}, "allow"}, {"seccomp", []uint64{2, 0}, "allow"},
		{"seccomp", []uint64{1, 8}, "EPERM"}, {"seccomp", []uint64{1, high | 9}, "EPERM"},
		{"prctl", []uint64{38, 1}, "allow"}, {"prctl", []uint64{22, 2}, "allow"}, {"prctl", []uint64{35, 14}, "EPERM"},
		{"prctl", []uint64{high | 35, 14}, "EPERM"},
		{"mknodat", []uint64{0, 0, 0o100644}, "allow"}, {"mknodat", []uint64{0, 0, 0o010644}, "allow"},
		{"mknodat", []uint64{0, 0, 0o140644}, "allow"}, {"mknodat", []uint64{0, 0, 0o020644}, "EPERM"},
		{"mknodat", []uint64{0, 0, high | 0o060644}, "EPERM"},
	}
}

func TestArguments(t *testing.T) {
	for _, goarch := range []string{"amd64", "arm64"} {
		m := newVM(t, goarch)
		for _, c := range argumentCases() {
			if got := m.call(t, c.call, c.args...); got != c.want {
				t.Errorf("%s: %s%#x: got %s, want %s", goarch, c.call, c.args, got, c.want)
			}
		}
	}
	m := newVM(t, "amd64")
	for mode, want := range map[uint64]string{
		0o100644: "allow", 0o010644: "allow", 0o020644: "EPERM", 0xdeadbeef<<32 | 0o060644: "EPERM",
	} {
		if got := m.call(t, "mknod", 0, mode); got != want {
			t.Errorf("mknod %#o: got %s, want %s", mode, got, want)
		}
	}
}

func TestOtherNumberings(t *testing.T) {
	amd64, arm64 := newVM(t, "amd64"), newVM(t, "arm64")
	for n := range uint32(1101) {
		foreign := map[uint32]vm{auditI386: amd64, auditARM64: amd64, 0: amd64, auditARM: arm64, auditAMD64: arm64}
		for audit, m := range foreign {
			if got := m.ask(t, audit, n); got != "kill_process" {
				t.Fatalf("number %d of architecture %#x: %s", n, audit, got)
			}
		}
		if got := amd64.ask(t, auditAMD64, bitX32|n); got != "kill_process" {
			t.Fatalf("number %d of x32: %s", n, got)
		}
	}
	for _, n := range []uint32{1 << 20, 0x3fffffff, 0x80000000, 0xbfffffff, 0xc0000000, 0xffffffff} {
		for audit, m := range map[uint32]vm{auditAMD64: amd64, auditARM64: arm64} {
			if got := m.ask(t, audit, n); got != "ENOSYS" {
				t.Errorf("number %#x: %s", n, got)
			}
		}
	}
	if got := amd64.ask(t, auditAMD64, 0x7fffffff); got != "kill_process" {
		t.Errorf("highest number of x32: %s", got)
	}
}

func TestFilterRefuses(t *testing.T) {
	for _, goarch := range []string{"", "386", "riscv64", "x32", "AMD64"} {
		if b, err := Filter(goarch); err == nil {
			t.Errorf("%q: %d bytes and no error", goarch, len(b))
		}
	}
}

// TestCost counts the instructions that frequent calls take, for kernels that do not remember what always passes.
func TestCost(t *testing.T) {
	for _, goarch := range []string{"amd64", "arm64"} {
		program, err := assemble(goarch, rules())
		if err != nil {
			t.Fatal(err)
		}
		info, _ := arch.GetInfo(goarch)
		for _, name := range []string{"read", "write", "futex", "mmap", "close", "openat", "epoll_pwait", "clock_gettime"} {
			if n := steps(program, uint32(info.ID), uint32(info.SyscallNames[name])); n >= 20 {
				t.Errorf("%s: %s takes %d instructions", goarch, name, n)
			}
		}
	}
}

// steps walks the part of the filter that looks at architecture and number only.
func steps(program []bpf.Instruction, audit, number uint32) int {
	var a uint32
	n := 0
	for pc := 0; ; pc++ {
		n++
		switch i := program[pc].(type) {
		case bpf.LoadAbsolute:
			a = map[uint32]uint32{offsetArch: audit, offsetNumber: number}[i.Off]
		case bpf.Jump:
			pc += int(i.Skip)
		case bpf.JumpIf:
			met := map[bpf.JumpTest]bool{bpf.JumpEqual: a == i.Val, bpf.JumpGreaterThan: a > i.Val,
				bpf.JumpGreaterOrEqual: a >= i.Val}[i.Cond]
			if met {
				pc += int(i.SkipTrue)
			} else {
				pc += int(i.SkipFalse)
			}
		default:
			return n
		}
	}
}

func TestTable(t *testing.T) {
	rules := Table()
	if len(rules) < 80 {
		t.Errorf("only %d rules", len(rules))
	}
	for i, r := range rules {
		if r.Call == "" || r.Action == "" || r.Why == "" || strings.Contains(r.Action, "errno ") {
			t.Errorf("rule %+v", r)
		}
		if i > 0 && i < len(rules)-3 && rules[i-1].Call >= r.Call {
			t.Errorf("%s after %s", r.Call, rules[i-1].Call)
		}
	}
}

func FuzzFilter(f *testing.F) {
	f.Add(uint32(auditAMD64), uint32(41), uint64(2), uint64(3), uint64(0))
	f.Add(uint32(auditAMD64), uint32(16), uint64(0), uint64(0x5412), uint64(0))
	m := newVM(f, "amd64")
	known := m.info
	refused := map[string]bool{}
	for _, r := range refusals() {
		for _, c := range strings.Fields(r.calls) {
			refused[c] = true
		}
	}
	f.Fuzz(func(t *testing.T, audit, number uint32, a, b, c uint64) {
		got := m.ask(t, audit, number, a, b, c)
		name, isKnown := known.SyscallNumbers[int(number)]
		switch {
		case got == "allow" && (audit != auditAMD64 || !isKnown || refused[name]):
			t.Errorf("passes: architecture %#x, number %#x", audit, number)
		case name == "clone" && uint32(a)&0x7e020000 != 0 && got == "allow":
			t.Errorf("clone with %#x passes", a)
		case name == "socket" && got == "allow":
			family, kind, protocol := uint32(a), uint32(b)&0xf, uint32(c)
			switch {
			case family == syscall.AF_UNIX:
			case (family == syscall.AF_INET || family == syscall.AF_INET6) && kind == 1 && (protocol == 0 || protocol == 6):
			case (family == syscall.AF_INET || family == syscall.AF_INET6) && kind == 2 && (protocol == 0 || protocol == 17):
			default:
				t.Errorf("socket %#x, %#x, %#x passes", a, b, c)
			}
		}
	})
}

func BenchmarkFilter(b *testing.B) {
	for b.Loop() {
		if _, err := Filter(runtime.GOARCH); err != nil {
			b.Fatal(err)
		}
	}
}

// TestCarried holds the filters that package seccomp carries against what the rules say now.
func TestCarried(t *testing.T) {
	for _, kind := range []struct {
		suffix         string
		build, carried func(string) ([]byte, error)
	}{{".bpf", Filter, seccomp.Filter}, {"-template.bpf", Template, seccomp.Template}, {"-guest.bpf", Guest, seccomp.Guest}} {
		for _, goarch := range []string{"amd64", "arm64"} {
			want, err := kind.build(goarch)
			if err != nil {
				t.Fatal(err)
			}
			if *update {
				if err := os.WriteFile("../"+goarch+kind.suffix, want, 0o644); err != nil {
					t.Fatal(err)
				}
				continue
			}
			got, err := kind.carried(goarch)
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s%s is not what the rules say (%v): go test ./internal/seccomp/compile -update", goarch, kind.suffix, err)
			}
		}
		if _, err := kind.carried("riscv64"); err == nil {
			t.Error("a filter for a machine without one")
		}
	}
}

// TestTemplate holds the filter of templates against that of programs: what it lets pass and the other refuses is what makes
// sandboxes, and what the other judges by its arguments.
func TestTemplate(t *testing.T) {
	judged := map[string]bool{}
	for _, c := range conditions() {
		judged[c.call] = true
	}
	for goarch, audit := range map[string]uint32{"amd64": auditAMD64, "arm64": auditARM64} {
		raw, err := seccomp.Template(goarch)
		if err != nil {
			t.Fatal(err)
		}
		strict, wide := newVM(t, goarch), newVMOf(t, goarch, raw)
		for number, name := range strict.info.SyscallNumbers {
			if judged[name] {
				continue
			}
			a, b := strict.ask(t, audit, uint32(number)), wide.ask(t, audit, uint32(number))
			if makes := slices.Contains(strings.Fields(templateCalls), name); makes != (a != b) {
				t.Errorf("%s %s: %s for programs, %s for templates", goarch, name, a, b)
			}
		}
	}
}

// TestGuest holds the filter of programs on a kernel in user space against that of other programs: it refuses as that does
// what makes namespaces and mounts, and nothing else that there is.
func TestGuest(t *testing.T) {
	for goarch, audit := range map[string]uint32{"amd64": auditAMD64, "arm64": auditARM64} {
		raw, err := seccomp.Guest(goarch)
		if err != nil {
			t.Fatal(err)
		}
		strict, wide := newVM(t, goarch), newVMOf(t, goarch, raw)
		for number, name := range strict.info.SyscallNumbers {
			got, want := wide.ask(t, audit, uint32(number)), "allow"
			if slices.Contains(strings.Fields(guestCalls), name) {
				want = fmt.Sprint(strict.ask(t, audit, uint32(number)))
			}
			if fmt.Sprint(got) != want {
				t.Errorf("%s %s: %s, want %s", goarch, name, got, want)
			}
		}
	}
}

// TestPinned holds that filter against the other one: it answers the same but for one call.
func TestPinned(t *testing.T) {
	for goarch, audit := range map[string]uint32{"amd64": auditAMD64, "arm64": auditARM64} {
		raw, err := seccomp.Pinned(goarch)
		if err != nil {
			t.Fatal(err)
		}
		plain, pinned := newVM(t, goarch), newVMOf(t, goarch, raw)
		call := uint32(plain.info.SyscallNames["sched_setaffinity"])
		for number := range uint32(600) {
			for _, asked := range []uint32{auditAMD64, auditARM64, auditI386, auditARM} {
				want, got := plain.ask(t, asked, number), pinned.ask(t, asked, number)
				if asked == audit && number == call {
					want = "EPERM"
				}
				if got != want {
					t.Errorf("%s: call %d of %x: %s, want %s", goarch, number, asked, got, want)
				}
			}
		}
	}
	if _, err := seccomp.Pinned("sparc"); err == nil {
		t.Error("a filter for an architecture that there is none for")
	}
}
