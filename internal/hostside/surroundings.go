package hostside

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"glovebox"
	"glovebox/internal/sandboxinit/wire"
)

// Surroundings are what stands around this process and may keep it from what a sandbox is made of: switches of the system,
// a container's filter of system calls, a profile of a security module. The kernel tells of them in proc.
type Surroundings struct {
	Proc string // /proc, but in tests
	Root bool   // this process is root
}

// Refusal is why something was refused, and what mends it.
type Refusal struct{ Public, Fix string }

// Because is the error, code unavailable, of an operation that failed with err for that reason.
func (r Refusal) Because(op string, err error) error {
	return &glovebox.Error{Code: glovebox.CodeUnavailable, Op: op, Public: r.Public, Fix: r.Fix, Err: err}
}

// SeccompFix mends a filter of system calls that stands over this process.
const SeccompFix = "docker run --security-opt seccomp=unconfined (podman and nerdctl take the same), or a profile that " +
	"lets clone3, clone, unshare, mount and pivot_root through"

const (
	appArmorFix = "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or an AppArmor profile for glovebox-init " +
		"that has the line: userns,"
	notifyFix = "start the container without it (LXD and Incus: set every security.syscalls.intercept.* of it to false)"
	maskedFix = "docker run --security-opt systempaths=unconfined (podman: --security-opt unmask=ALL)"
)

// Says reports whether a file below proc holds just this.
func (s Surroundings) Says(file, value string) bool {
	text, err := os.ReadFile(filepath.Join(s.Proc, file))
	return err == nil && strings.TrimSpace(string(text)) == value
}

// Filtered reports whether a filter of system calls is over this process, as container engines set it.
func (s Surroundings) Filtered() bool {
	text, err := os.ReadFile(filepath.Join(s.Proc, "self/status"))
	return err == nil && strings.Contains(string(text), "\nSeccomp:\t2")
}

// profile is the security module's profile of this process; empty where there is none.
func (s Surroundings) profile() string {
	text, err := os.ReadFile(filepath.Join(s.Proc, "self/attr/current"))
	name := strings.Trim(string(text), "\x00\n ")
	if err != nil || strings.HasPrefix(name, "unconfined") || name == "kernel" {
		return ""
	}
	return name
}

// NamespacesOff says that user namespaces are switched off, or nothing.
func (s Surroundings) NamespacesOff() *Refusal {
	if s.Says("sys/user/max_user_namespaces", "0") ||
		!s.Root && s.Says("sys/kernel/unprivileged_userns_clone", "0") {
		r := s.UserNamespaces(unix.EPERM)
		return &r
	}
	return nil
}

// UserNamespaces says why the kernel does not make one.
func (s Surroundings) UserNamespaces(err error) Refusal {
	const max = "/proc/sys/user/max_user_namespaces"
	switch {
	case s.Says("sys/user/max_user_namespaces", "0"):
		return Refusal{"new user namespaces are switched off (" + max + " is 0)", "sudo sysctl -w user.max_user_namespaces=15000"}
	case errors.Is(err, unix.ENOSPC):
		return Refusal{"the most user namespaces are in use, or they are switched off around this one (" + max + ")",
			"sudo sysctl -w user.max_user_namespaces=15000, in the namespace that is outermost"}
	case errors.Is(err, unix.EUSERS):
		return Refusal{"user namespaces are nested as deep as can be", "run it in fewer containers within each other"}
	case !s.Root && s.Says("sys/kernel/unprivileged_userns_clone", "0"):
		return Refusal{"ordinary users may not make user namespaces (/proc/sys/kernel/unprivileged_userns_clone is 0)",
			"sudo sysctl -w kernel.unprivileged_userns_clone=1"}
	case s.Filtered():
		return Refusal{"a filter of system calls over Glovebox, as containers have it, refuses new namespaces", SeccompFix}
	case errors.Is(err, unix.ENOSYS):
		return Refusal{"the kernel is too old, or built without namespaces", "boot Linux 5.14 or later with CONFIG_USER_NS"}
	}
	return s.rights("the kernel refuses new user namespaces")
}

// rights says why a step in a user namespace of one's own is refused, which its maker has every right to.
func (s Surroundings) rights(what string) Refusal {
	switch {
	case !s.Root && s.Says("sys/kernel/apparmor_restrict_unprivileged_userns", "1"):
		return Refusal{what + ": AppArmor lets the user namespaces of ordinary users have no rights " +
			"(/proc/sys/kernel/apparmor_restrict_unprivileged_userns is 1)", appArmorFix}
	case s.Filtered():
		return Refusal{what + ": a filter of system calls over Glovebox, as containers have it, refuses that", SeccompFix}
	case s.profile() != "":
		return Refusal{fmt.Sprintf("%s: the profile %.60q of a security module is over Glovebox", what, s.profile()),
			"docker run --security-opt apparmor=unconfined, or --security-opt label=disable where SELinux is on"}
	}
	return Refusal{what, "start glovebox outside of the container, filter or profile that it runs in"}
}

// Spawn explains why init, at a path, could not be started.
func (s Surroundings) Spawn(init string, err error) error {
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EACCES):
		return Missing("glovebox-init", InitKey, init).Because("start init", err)
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EUSERS), errors.Is(err, unix.ENOSYS):
		return s.UserNamespaces(err).Because("start init", err)
	}
	return fmt.Errorf("start init: %w", err)
}

// Step explains a failed step of init, where the operator can mend what was refused.
func (s Surroundings) Step(name string, errno unix.Errno, err error) error {
	switch refused := errno == unix.EPERM || errno == unix.EACCES; {
	case name == "mount proc" && errno == unix.EPERM && s.covered():
		return Refusal{"a sandbox may not have a /proc of its own: parts of the /proc that is here are covered, as containers " +
			"have it", maskedFix}.Because("build sandbox", err)
	case name == "take notifications of its filter" && errno == unix.EPERM && s.Says("sys/kernel/yama/ptrace_scope", "3"):
		return Refusal{"no process of this machine may take a descriptor of another (kernel.yama.ptrace_scope is 3)",
			"set kernel.yama.ptrace_scope to 2 at most where it is set (/etc/sysctl.d), and start the machine again"}.
			Because("build sandbox", err)
	case name == "install system call filter" && errno == unix.EBUSY:
		return Refusal{"a filter of system calls over Glovebox answers for some of them itself, and the kernel takes one such " +
			"filter for a process", notifyFix}.Because("build sandbox", err)
	case refused || errno == unix.ENOSYS && s.Filtered():
		return s.rights("the sandbox could not "+name).Because("build sandbox", err)
	}
	return err
}

// covered reports whether something is mounted over parts of /proc: where that is so the kernel gives no user namespace a
// fresh one, which would show what is covered. (What is mounted on an empty folder of the kernel's own covers nothing.)
func (s Surroundings) covered() bool {
	text, err := os.ReadFile(filepath.Join(s.Proc, "self/mountinfo"))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], "/proc/") && f[4] != "/proc/sys/fs/binfmt_misc" {
			return true
		}
	}
	return false
}

// Unmapped says why ids of the pool cannot be had, or nothing: whoever is root in a user namespace has the ids in its map
// alone.
func (s Surroundings) Unmapped(pool IDPool) *Refusal {
	text, err := os.ReadFile(filepath.Join(s.Proc, "self/uid_map"))
	if err != nil {
		return nil // the kernel will tell
	}
	var best IDPool
	for line := range strings.Lines(string(text)) {
		var inside, outside, count uint64
		if n, err := fmt.Sscan(line, &inside, &outside, &count); n != 3 || err != nil {
			continue
		}
		if inside <= uint64(pool.Start) && uint64(pool.Start)+uint64(pool.Count) <= inside+count {
			return nil
		}
		if first := max(inside, lowestID); first+BlockSize <= inside+count && inside+count-first > uint64(best.Count) {
			best = IDPool{uint32(first), uint32(min(inside+count-first, 1<<16))}
		}
	}
	r := &Refusal{"this root is one of a user namespace, as in a rootless container, and has no ids to give",
		"run glovebox as an ordinary user there, or start the container with more than 65536 ids (docker run --userns=host)"}
	if best.Count >= BlockSize {
		r.Public = fmt.Sprintf("this root is one of a user namespace, and the ids %d:%d are not in its map", pool.Start,
			pool.Count)
		r.Fix = fmt.Sprintf("set drivers.process.uid_pool: \"%d:%d\" in glovebox.yaml", best.Start, best.Count)
	}
	return r
}

// Failure says which step of init failed and what mends the reasons that an operator can mend.
func (s Surroundings) Failure(f *wire.Failed) error {
	err := fmt.Errorf("inside: %s: %s", f.Step, f.Detail)
	if f.Errno != 0 {
		err = fmt.Errorf("inside: %s: %w", f.Step, unix.Errno(f.Errno))
	}
	return s.Step(f.Step, unix.Errno(f.Errno), err)
}
