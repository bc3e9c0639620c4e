package process_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"glovebox"
	"glovebox/driver/process"
	"glovebox/internal/hostside"
)

// aroundEnv makes the test binary surround itself as its value says, and print what a driver finds there.
const aroundEnv = "GLOVEBOX_TEST_AROUND"

// surround puts around this process what containers and systems put around theirs.
func surround(kind string) error {
	switch kind {
	case "container filter":
		return filter(unix.ENOSYS, unix.SYS_CLONE3, unix.EPERM, unix.SYS_UNSHARE, unix.SYS_MOUNT, unix.SYS_PIVOT_ROOT)
	case "filter of mount":
		return filter(unix.EPERM, unix.SYS_MOUNT, unix.EPERM, unix.SYS_FSOPEN, unix.SYS_OPEN_TREE)
	case "filter of landlock":
		return filter(unix.EPERM, unix.SYS_LANDLOCK_CREATE_RULESET, unix.EPERM)
	case "filter of filters":
		return filter(unix.EPERM, unix.SYS_SECCOMP, unix.EPERM)
	case "no user namespaces":
		return os.WriteFile("/proc/sys/user/max_user_namespaces", []byte("0"), 0)
	case "covered proc":
		return syscall.Mount("/proc/sys", "/proc/sys", "", syscall.MS_BIND, "")
	case "read-only groups":
		mounts, err := os.ReadFile("/proc/self/mounts")
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(mounts)) {
			if f := strings.Fields(line); strings.HasPrefix(f[2], "cgroup") {
				if err := syscall.Mount("", f[1], "", syscall.MS_REMOUNT|syscall.MS_BIND|syscall.MS_RDONLY, ""); err != nil {
					return err
				}
			}
		}
	case "nothing", "few ids":
	default:
		return errors.New("unknown surroundings")
	}
	return nil
}

// filter refuses one call with one error and others with another, in every thread. Landlock and clone flags need no more.
func filter(first unix.Errno, one uintptr, rest unix.Errno, others ...uintptr) error {
	code := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}}
	refuse := func(call uintptr, errno unix.Errno) {
		code = append(code, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: uint32(call)},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(errno)})
	}
	refuse(one, first)
	for _, call := range others {
		refuse(call, rest)
	}
	if slices.Contains(others, unix.SYS_UNSHARE) { // and clone with a flag of a namespace
		const flags = unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET
		code = append(code, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 3, K: unix.SYS_CLONE},
			unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 16},
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, Jf: 1, K: flags},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(rest)})
	}
	code = append(code, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW})
	program := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	if _, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&program))); e != 0 {
		return e
	}
	return nil
}

// examine is the test binary in its surroundings.
func examine(kind string) {
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	fail(surround(kind))
	d, err := process.New(process.Config{Init: os.Getenv("GLOVEBOX_TEST_INIT"), ScratchDir: os.Getenv("TMPDIR"),
		Cgroup: os.Getenv(userCgroupEnv), RuntimeDir: filepath.Join(os.Getenv("TMPDIR"), "locks")})
	fail(err)
	said := func(name string, err error) glovebox.Control {
		var e *glovebox.Error
		if err != nil && (!errors.As(err, &e) || e.Code != glovebox.CodeUnavailable) {
			fail(fmt.Errorf("%s: %w", name, err))
		}
		if e == nil {
			return glovebox.Control{Name: name, Available: true}
		}
		return glovebox.Control{Name: name, Detail: e.Public, Fix: e.Fix}
	}
	before := said(beforeName, d.Available(context.Background()))
	all := append(d.Controls(context.Background()), before)
	fail(json.NewEncoder(os.Stdout).Encode(append(all, said(afterName, d.Available(context.Background())))))
	os.Exit(0)
}

// controlsIn are the controls as they are in some surroundings.
func controlsIn(t *testing.T, kind, cgroup string, sys *syscall.SysProcAttr) map[string]glovebox.Control {
	t.Helper()
	dir, err := os.MkdirTemp("", "glovebox-around-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "TMPDIR=" + dir, aroundEnv + "=" + kind, userCgroupEnv + "=" + cgroup,
		"GLOVEBOX_TEST_INIT=" + initBinary}
	sys.Pdeathsig = syscall.SIGKILL
	cmd.SysProcAttr = sys
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	var all []glovebox.Control
	if err != nil || json.Unmarshal(out, &all) != nil {
		t.Fatalf("%v: %s %s", err, out, errs.String())
	}
	byName := map[string]glovebox.Control{}
	for _, c := range all {
		byName[c.Name] = c
		if !c.Available && (c.Detail == "" || c.Fix == "") || c.Available && c.Fix != "" {
			t.Errorf("%s: %+v", kind, c)
		}
	}
	return byName
}

const trialName = "a sandbox can be made"

// What a driver says to whoever asks whether its rung is available, before the trial and after it.
const (
	beforeName = "available at a look"
	afterName  = "available after the trial"
)

// TestInContainers: what a container keeps from a sandbox is named, with the flag that gives it.
func TestInContainers(t *testing.T) {
	needRoot(t)
	cgroup := fmt.Sprintf("/glovebox-around-%d", os.Getpid())
	t.Cleanup(func() { removeGroups(t, cgroup) })
	everyID := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1<<32 - 1}}
	oneID := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1000}}
	for kind, c := range map[string]struct {
		sys         syscall.SysProcAttr
		control     string // which is missing besides the trial
		detail, fix string // parts of what the trial says
		seen        bool   // at a look, before the trial
	}{
		"container filter":   {control: "namespaces", detail: "filter of system calls", fix: "--security-opt seccomp=unconfined"},
		"filter of mount":    {detail: "could not make mounts private: a filter", fix: "--security-opt seccomp=unconfined"},
		"filter of landlock": {control: "landlock", detail: "hides Landlock", fix: "--security-opt seccomp=unconfined", seen: true},
		"no user namespaces": {sys: syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: everyID, GidMappings: everyID},
			control: "namespaces", detail: "switched off (/proc/sys/user/max_user_namespaces is 0)", fix: "sysctl -w user.max_user_namespaces=",
			seen: true},
		"few ids": {sys: syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: oneID, GidMappings: oneID},
			control: "own user ids", detail: "no ids to give", fix: "--userns=host", seen: true},
		"covered proc": {sys: syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}, detail: "are covered",
			fix: "--security-opt systempaths=unconfined"},
		"read-only groups": {sys: syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}, control: "cgroup memory",
			detail: "read-only here", fix: "docker run --privileged, or --cgroupns=host", seen: true},
	} {
		t.Run(kind, func(t *testing.T) {
			all := controlsIn(t, kind, cgroup, &c.sys)
			trial := all[trialName]
			if trial.Available || !strings.Contains(trial.Detail, c.detail) || !strings.Contains(trial.Fix, c.fix) {
				t.Errorf("the trial says %+v", trial)
			}
			if after := all[afterName]; after.Available || !strings.Contains(after.Fix, c.fix) {
				t.Errorf("after the trial it is available: %+v", after)
			}
			if before := all[beforeName]; before.Available == c.seen {
				t.Errorf("before the trial: %+v", before)
			}
			if named, ok := all[c.control]; c.control != "" && (!ok || named.Available || !named.Required || !strings.Contains(named.Fix, c.fix)) {
				t.Errorf("%+v", named)
			}
		})
	}
	all := controlsIn(t, "filter of filters", cgroup, &syscall.SysProcAttr{})
	for _, name := range []string{"system call filter", beforeName} {
		if one := all[name]; one.Available || !strings.Contains(one.Fix, "seccomp=unconfined") {
			t.Errorf("a filter that refuses filters: %+v", one)
		}
	}
	for _, c := range controlsIn(t, "nothing", cgroup, &syscall.SysProcAttr{}) {
		if !c.Available && (c.Required || c.Name == beforeName || c.Name == afterName) {
			t.Errorf("with nothing around: %+v", c)
		}
	}
}

// removeGroups removes a parent group everywhere.
func removeGroups(t *testing.T, cgroup string) {
	t.Helper()
	dirs, _ := filepath.Glob("/sys/fs/cgroup/*" + cgroup)
	for _, dir := range append(dirs, "/sys/fs/cgroup"+cgroup) {
		if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Errorf("left over: %v", err)
		}
	}
}

// TestTheFixForAUser does as an ordinary user is told, as root, and then everything is there.
func TestTheFixForAUser(t *testing.T) {
	needRoot(t)
	if _, err := os.Stat("/sys/fs/cgroup/memory"); err != nil {
		t.Skip("not a machine of version 1: there the user's own manager hands groups over")
	}
	cgroup := fmt.Sprintf("/glovebox-fix-%d", os.Getpid())
	before := controlsIn(t, "nothing", cgroup, user())
	fix := before["cgroup memory"].Fix
	if before["cgroup memory"].Available || before[trialName].Available || before[trialName].Fix != fix || !strings.HasPrefix(fix, "sudo ") {
		t.Fatalf("before: %+v, %+v", before["cgroup memory"], before[trialName])
	}
	t.Cleanup(func() { removeGroups(t, cgroup) })
	script := exec.Command("sh", "-ec", `sudo() { "$@"; }; `+fix) // the test is root already
	if out, err := script.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, c := range controlsIn(t, "nothing", cgroup, user()) {
		if !c.Available && c.Required {
			t.Errorf("after it: %+v", c)
		}
	}
}

// TestRefusalsAreExplained: what this machine does not have is made up, as /proc tells of it.
func TestRefusalsAreExplained(t *testing.T) {
	const whole, small = "0 0 4294967295\n", "0 1000 1\n1 100000 65536\n"
	for name, c := range map[string]struct {
		files       map[string]string
		root        bool
		err         unix.Errno
		step        string // empty: the start of init
		detail, fix string
	}{
		"apparmor at start": {files: map[string]string{"sys/kernel/apparmor_restrict_unprivileged_userns": "1\n"}, err: unix.EPERM,
			detail: "AppArmor", fix: "kernel.apparmor_restrict_unprivileged_userns=0"},
		"apparmor at a mount": {files: map[string]string{"sys/kernel/apparmor_restrict_unprivileged_userns": "1\n"}, err: unix.EACCES,
			step: "make mounts private", detail: "could not make mounts private: AppArmor", fix: "kernel.apparmor_restrict_unprivileged_userns=0"},
		"apparmor does not bind root": {files: map[string]string{"sys/kernel/apparmor_restrict_unprivileged_userns": "1\n"}, root: true,
			err: unix.EPERM, step: "pivot root", detail: "could not pivot root", fix: "outside of the container"},
		"docker's profile": {files: map[string]string{"self/attr/current": "docker-default (enforce)\n"}, root: true, err: unix.EACCES,
			step: "make mounts private", detail: `"docker-default (enforce)"`, fix: "--security-opt apparmor=unconfined"},
		"debian's switch": {files: map[string]string{"sys/kernel/unprivileged_userns_clone": "0\n"}, err: unix.EPERM,
			detail: "unprivileged_userns_clone is 0", fix: "kernel.unprivileged_userns_clone=1"},
		"used up": {err: unix.ENOSPC, detail: "in use", fix: "user.max_user_namespaces="},
		"old":     {err: unix.ENOSYS, detail: "too old", fix: "Linux 5.14"},
		"filter":  {files: map[string]string{"self/status": "Name:\tx\nSeccomp:\t2\n"}, err: unix.ENOSYS, detail: "filter of system calls", fix: "seccomp=unconfined"},
		"covered and filtered": {files: map[string]string{"self/status": "Name:\tx\nSeccomp:\t2\n", "self/mountinfo": "1 2 0:1 / /proc/kcore rw - tmpfs x rw\n"},
			err: unix.EPERM, step: "mount proc", detail: "covered", fix: "systempaths=unconfined"},
		"no descriptors of others": {files: map[string]string{"sys/kernel/yama/ptrace_scope": "3\n"},
			err: unix.EPERM, step: "take notifications of its filter", detail: "ptrace_scope is 3", fix: "ptrace_scope to 2"},
		"not covered": {files: map[string]string{"self/mountinfo": "1 2 0:1 / /proc/sys/fs/binfmt_misc rw - binfmt_misc x rw\n"},
			err: unix.EPERM, step: "mount proc", detail: "could not mount proc", fix: "outside of the container"},
		"a filter that answers": {err: unix.EBUSY, step: "install system call filter", detail: "takes one such filter",
			fix: "security.syscalls.intercept"},
		"no init": {err: unix.ENOENT, detail: "glovebox-init is missing at /", fix: "drivers.process.init"},
	} {
		t.Run(name, func(t *testing.T) {
			d := around(t, c.files, c.root)
			err := d.Spawn(c.err)
			if c.step != "" {
				err = d.Step(c.step, c.err)
			}
			var e *glovebox.Error
			if !errors.As(err, &e) || e.Code != glovebox.CodeUnavailable || !strings.Contains(e.Public, c.detail) || !strings.Contains(e.Fix, c.fix) {
				t.Errorf("%+v", err)
			}
		})
	}
	for name, c := range map[string]struct{ table, detail, fix string }{
		"whole": {whole, "", ""}, "rootless": {small, "no ids to give", "--userns=host"},
		"some": {"0 100000 65536\n65536 300000 131072\n", "not in its map", `uid_pool: "65536:65536"`},
	} {
		detail, fix := around(t, map[string]string{"self/uid_map": c.table}, true).Unmapped(hostside.IDPool{Start: 0x70000000, Count: 1 << 16})
		if !strings.Contains(detail, c.detail) || !strings.Contains(fix, c.fix) || (c.fix == "") != (fix == "") {
			t.Errorf("%s: %q %q", name, detail, fix)
		}
	}
	if err := around(t, nil, true).Step("place /usr", unix.ENOENT); err == nil || errors.As(err, new(*glovebox.Error)) {
		t.Errorf("what nobody can mend is explained: %v", err)
	}
}

// around makes a driver that sees these files in place of /proc.
func around(t *testing.T, files map[string]string, root bool) *process.Driver {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	d, err := process.New(process.Config{Init: "/x", ScratchDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	process.Around(d, dir, root)
	return d
}
