package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"glovebox"
	"glovebox/internal/hostside"
	"glovebox/internal/kernelfile"
	"glovebox/internal/sandboxinit/wire"
)

// postureError says that what is read back about the sandbox is not what it must be. Nothing may run then.
func postureError(format string, args ...any) error {
	return &glovebox.Error{Code: glovebox.CodeInternal, Op: "check posture",
		Public: "the fence read back from the kernel is not complete: " + fmt.Sprintf(format, args...),
		Fix:    "run `glovebox doctor`; this machine's kernel answered in a way that was not expected"}
}

// noCaps is an empty set as /proc/PID/status writes it.
const noCaps = "0000000000000000"

// readPosture turns the host kernel's words about runsc, and those of runsc's kernel about the program, into the posture of
// the run, and fails where a control is not in force.
func (s *sandbox) readPosture(ctx context.Context, k *kernel, inside *wire.Started) (glovebox.Posture, error) {
	p := glovebox.Posture{"rung": string(glovebox.IsolationGVisor), "lifeline": "held",
		"kernel": k.version, "platform": "systrap",
		"user": s.ids.Describe(), "overhead": strconv.FormatInt(int64(overhead), 10)}
	if err := s.readInside(inside, p); err != nil {
		return nil, err
	}
	if err := k.done(ctx); err != nil {
		return nil, err
	}
	r, err := s.link.Ask(ctx, wire.Message{Look: &wire.Look{}})
	if err != nil {
		return nil, fmt.Errorf("look at runsc: %w", err)
	}
	if r.Message.Looked == nil {
		wire.CloseAll(r.Files)
		return nil, errors.New("look at runsc: unexpected answer")
	}
	if err := readOutside(r.Message.Looked, p); err != nil {
		return nil, err
	}
	if err := s.readLimits(p); err != nil {
		return nil, err
	}
	p["root"], p["workspace"] = "read-only", "tmpfs"
	if !hostside.InMemory(s.spec.Limits) {
		p["workspace"] = "disk (ext4)"
	}
	return p, nil
}

// readInside checks what the kernel in user space says of the program.
func (s *sandbox) readInside(f *wire.Started, p glovebox.Posture) error {
	status := statusFields(f.Status)
	id := strings.Join(slices.Repeat([]string{strconv.Itoa(wire.ProgramID)}, 4), "\t")
	for _, must := range []struct{ field, value string }{
		{"NoNewPrivs", "1"}, {"Seccomp", "2"}, {"Uid", id}, {"Gid", id}, {"Groups", ""},
		{"CapInh", noCaps}, {"CapPrm", noCaps}, {"CapEff", noCaps}, {"CapBnd", noCaps}, {"CapAmb", noCaps},
	} {
		if status[must.field] != must.value {
			return postureError("%s of the program is %q", must.field, status[must.field])
		}
	}
	if err := s.readNetwork(f.Interfaces, p); err != nil {
		return err
	}
	p["no_new_privs"], p["capabilities"] = "set", "none"
	p["system_calls"] = "no namespaces, no mounts"
	return nil
}

// kernelRights are the capabilities that runsc's processes keep, in a user namespace of their own below the sandbox's: to
// serve the program files under its own ids, and to run its processes.
const kernelRights = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH | 1<<unix.CAP_FOWNER |
	1<<unix.CAP_FSETID | 1<<unix.CAP_SYS_CHROOT | 1<<unix.CAP_SYS_PTRACE

// readOutside checks what the host's kernel says of runsc's processes: the kernel in user space, what runs its programs for
// it, and what serves it files. Each is behind a filter of its own making, and has no rights but those above.
func readOutside(l *wire.Looked, p glovebox.Posture) error {
	if len(l.Processes) < 2 {
		return postureError("%d processes of runsc are there", len(l.Processes))
	}
	ours, err := ownFilters()
	if err != nil {
		return err
	}
	for _, one := range l.Processes {
		status := statusFields(one.Status)
		for _, must := range []struct{ field, value string }{
			{"NoNewPrivs", "1"}, {"Seccomp", "2"}, {"Uid", "0\t0\t0\t0"}, {"Gid", "0\t0\t0\t0"},
		} {
			if status[must.field] != must.value {
				return postureError("%s of a process of runsc (%q) is %q", must.field, status["Name"], status[must.field])
			}
		}
		for _, field := range []string{"CapPrm", "CapEff", "CapInh", "CapBnd", "CapAmb"} {
			if has, err := strconv.ParseUint(status[field], 16, 64); err != nil || has&^kernelRights != 0 {
				return postureError("%s of a process of runsc is %q", field, status[field])
			}
		}
		// Being filtered at all could be inherited.
		if n, err := strconv.Atoi(status["Seccomp_filters"]); ours >= 0 && (err != nil || n <= ours) {
			return postureError("a process of runsc has %d system call filters, and we have %d", n, ours)
		}
		if err := ownNamespaces(one.Namespaces); err != nil {
			return err
		}
	}
	p["kernel_system_calls"], p["kernel_no_new_privs"] = "filtered", "set"
	p["kernel_capabilities"] = "chown dac_override dac_read_search fowner fsetid sys_chroot sys_ptrace, in its own namespace"
	p["namespaces"] = strings.Join(wire.NamespaceKinds[:], " ")
	return nil
}

// ownFilters is how many system call filters this process is under itself, as inside a container; -1 where the kernel does
// not say (before Linux 5.9).
func ownFilters() (int, error) {
	status, err := kernelfile.Read("/proc/thread-self/status")
	if err != nil {
		return 0, fmt.Errorf("read own filters: %w", err)
	}
	own := statusFields(status)["Seccomp_filters"]
	if own == "" {
		return -1, nil
	}
	n, err := strconv.Atoi(own)
	if err != nil {
		return 0, fmt.Errorf("read own filters: %w", err)
	}
	return n, nil
}

// ownNamespaces makes sure that a process is in none of the namespaces that we are in.
func ownNamespaces(inside []string) error {
	if len(inside) != len(wire.NamespaceKinds) {
		return postureError("%d of %d namespaces are known", len(inside), len(wire.NamespaceKinds))
	}
	for i, kind := range wire.NamespaceKinds {
		ours, err := os.Readlink("/proc/self/ns/" + kind)
		if err != nil {
			return fmt.Errorf("read own namespaces: %w", err)
		}
		if inside[i] == "" || inside[i] == ours {
			return postureError("the %s namespace of runsc is not its own", kind)
		}
	}
	return nil
}

// readLimits checks that the control groups have the limits that were granted.
func (s *sandbox) readLimits(p glovebox.Posture) error {
	limits, err := s.group.Limits()
	if err != nil {
		return fmt.Errorf("read limits back: %w", err)
	}
	page := int64(os.Getpagesize())
	most := int64(s.memory + overhead)
	memory, err := strconv.ParseInt(limits["memory"], 10, 64)
	if err != nil || memory > most || memory <= most-page {
		return postureError("its memory limit is %q", limits["memory"])
	}
	granted := s.spec.Limits
	if limits["pids"] != strconv.FormatInt(hostProcesses(granted), 10) {
		return postureError("its limit of processes is %q", limits["pids"])
	}
	if n, err := strconv.ParseFloat(limits["cpu"], 64); err != nil || n > granted.CPUs+0.001 || n < granted.CPUs-0.001 {
		return postureError("its limit of CPU bandwidth is %q", limits["cpu"])
	}
	if !s.group.ControlsCPUs() {
		limits["cpuset"] = cpuList(s.group.CPUs()) + " (affinity)"
	}
	for name, value := range limits {
		p["cgroup_"+name] = value
	}
	return nil
}

func cpuList(cpus []int) string {
	words := make([]string, len(cpus))
	for i, n := range cpus {
		words[i] = strconv.Itoa(n)
	}
	return strings.Join(words, ",")
}

func statusFields(status string) map[string]string {
	fields := map[string]string{}
	for line := range strings.Lines(status) {
		if name, value, ok := strings.Cut(line, ":"); ok {
			fields[name] = strings.TrimSpace(value)
		}
	}
	return fields
}
