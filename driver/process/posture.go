package process

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"glovebox"
	"glovebox/internal/cgroup"
	"glovebox/internal/kernelfile"
	"glovebox/internal/sandboxinit/wire"
)

// postureError says that the kernel's own words about the program are not what they must be. Nothing may run then.
func postureError(format string, args ...any) error {
	return &glovebox.Error{Code: glovebox.CodeInternal, Op: "check posture",
		Public: "the fence read back from the kernel is not complete: " + fmt.Sprintf(format, args...),
		Fix:    "run `glovebox doctor`; this machine's kernel answered in a way that was not expected"}
}

// readPosture turns the kernel's words about the program into the posture of the run, and fails where a control is not in
// force.
func (s *sandbox) readPosture(f *wire.Started) (glovebox.Posture, error) {
	status := statusFields(f.Status)
	p := glovebox.Posture{"rung": string(glovebox.IsolationProcess), "lifeline": "held"}
	for _, must := range []struct{ field, value, key, shown string }{
		{"NoNewPrivs", "1", "no_new_privs", "set"},
		{"Seccomp", "2", "system_calls", "filtered"},
		{"CapInh", noCaps, "", ""}, {"CapPrm", noCaps, "", ""}, {"CapEff", noCaps, "", ""}, {"CapBnd", noCaps, "", ""},
		{"CapAmb", noCaps, "capabilities", "none"},
	} {
		if status[must.field] != must.value {
			return nil, postureError("%s is %q", must.field, status[must.field])
		}
		if must.key != "" {
			p[must.key] = must.shown
		}
	}
	more := 1
	if s.origin.from != nil {
		more = 2 // its template's, and its own
	}
	if err := checkFilter(status, more); err != nil {
		return nil, err
	}
	if err := s.checkIDs(status, f.UIDMap); err != nil {
		return nil, err
	}
	p["user"] = s.ids.Describe()
	own, err := ownNamespaces(f.Namespaces, "")
	if err != nil {
		return nil, err
	}
	if t := s.origin.from; t != nil {
		for i, kind := range wire.NamespaceKinds {
			if f.Namespaces[i] == t.box.namespaces[i] {
				return nil, postureError("its %s namespace is its template's", kind)
			}
		}
	}
	p["namespaces"] = own
	if err := s.readNetwork(f.Interfaces, p); err != nil {
		return nil, err
	}
	if p["waiting_connections"], err = s.readWaiting(f); err != nil {
		return nil, err
	}
	if err := s.readMounts(f.Mounts, p); err != nil {
		return nil, err
	}
	p["landlock"] = "absent (accepted)"
	if s.landlock > 0 {
		p["landlock"] = fmt.Sprintf("version %d", s.landlock)
	}
	return p, s.readLimits(p, status)
}

// readWaiting checks both parts of the bound on what lies in connections that nobody has accepted: what one holds, and that
// init answers for the calls that make room for them.
func (s *sandbox) readWaiting(f *wire.Started) (string, error) {
	if f.Notifications != "anon_inode:seccomp notify" {
		return "", postureError("its filter notifies %.40q", f.Notifications)
	}
	return s.readBuffer()
}

// readLimits checks that the program is in its control groups and that they have the limits that were granted.
func (s *sandbox) readLimits(p glovebox.Posture, status map[string]string) error {
	joined, err := s.group.Everywhere()
	if err != nil {
		return fmt.Errorf("read membership back: %w", err)
	}
	if !joined {
		return postureError("it is not in all of its control groups")
	}
	limits, err := s.group.Limits()
	if err != nil {
		return fmt.Errorf("read limits back: %w", err)
	}
	granted := s.spec.Limits
	page := int64(os.Getpagesize())
	most := int64(s.startMemory()) - s.shared
	memory, err := strconv.ParseInt(limits["memory"], 10, 64)
	if err != nil || memory > most || memory <= most-page {
		return postureError("its memory limit is %q", limits["memory"])
	}
	if limits["pids"] != strconv.FormatInt(granted.Processes, 10) {
		return postureError("its limit of processes is %q", limits["pids"])
	}
	if n, err := strconv.ParseFloat(limits["cpu"], 64); err != nil || n > granted.CPUs+0.001 || n < granted.CPUs-0.001 {
		return postureError("its limit of CPU bandwidth is %q", limits["cpu"])
	}
	if !s.group.ControlsCPUs() {
		// The filter refuses to widen it (see seccomp.Pinned).
		list := status["Cpus_allowed_list"]
		if cpus, err := cgroup.ParseCPUs(list); err != nil || !slices.Equal(cpus, s.group.CPUs()) {
			return postureError("its CPUs are %.40q", list)
		}
		limits["cpuset"] = list + " (affinity)"
	}
	if limits["cpuset"] == "" {
		return postureError("nothing keeps it to its CPUs")
	}
	for name, value := range limits {
		p["cgroup_"+name] = value
	}
	return nil
}

// ownFilters is how many system call filters this process is under itself, as inside a container; empty where the kernel
// does not say (before Linux 5.9).
func ownFilters() (string, error) {
	status, err := kernelfile.Read("/proc/thread-self/status")
	if err != nil {
		return "", fmt.Errorf("read own filters: %w", err)
	}
	return statusFields(status)["Seccomp_filters"], nil
}

// checkFilter makes sure that the program has so many filters more than we do: being filtered at all could be inherited.
func checkFilter(status map[string]string, more int) error {
	own, err := ownFilters()
	if err != nil || own == "" {
		return err
	}
	ours, err := strconv.Atoi(own)
	if err != nil {
		return fmt.Errorf("read own filters: %w", err)
	}
	if status["Seccomp_filters"] != strconv.Itoa(ours+more) {
		return postureError("it has %q system call filters, and we have %d", status["Seccomp_filters"], ours)
	}
	return nil
}

// noCaps is an empty set as /proc/PID/status writes it.
const noCaps = "0000000000000000"

// checkStatus makes sure that fields of a status, of whom it is, are what they must be: pairs of a name and a value.
func checkStatus(whose string, status map[string]string, must [][2]string) error {
	for _, m := range must {
		if got := status[m[0]]; got != m[1] {
			return postureError("%s of %s is %q", m[0], whose, got)
		}
	}
	return nil
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

// checkIDs makes sure that the program has the one id meant for it in all four places, and no groups. The status is read
// through the sandbox's own /proc by init, so the ids are those inside; the map says what they are outside.
func (s *sandbox) checkIDs(status map[string]string, uidMap string) error {
	want := strings.Join(slices.Repeat([]string{fmt.Sprint(wire.ProgramID)}, 4), "\t")
	if status["Uid"] != want || status["Gid"] != want {
		return postureError("user ids are %q and group ids %q", status["Uid"], status["Gid"])
	}
	if groups := status["Groups"]; groups != "" && !s.ids.Single {
		return postureError("it has groups %q", groups)
	}
	outside := fmt.Sprint(s.ids.Program)
	if s.origin.from != nil && s.ids.Single {
		outside = fmt.Sprint(wire.ProgramID) // as its template has it
	}
	for line := range strings.Lines(uidMap) {
		f := strings.Fields(line)
		if len(f) == 3 && f[0] == fmt.Sprint(wire.ProgramID) && f[1] == outside && f[2] == "1" {
			return nil
		}
	}
	return postureError("its user id is not mapped as meant")
}

// ownNamespaces lists the kinds of namespace in which the program is not where we are. All seven must be, but for one that
// is shared.
func ownNamespaces(inside []string, shared string) (string, error) {
	if len(inside) != len(wire.NamespaceKinds) {
		return "", postureError("%d of %d namespaces are known", len(inside), len(wire.NamespaceKinds))
	}
	for i, kind := range wire.NamespaceKinds {
		ours, err := os.Readlink("/proc/self/ns/" + kind)
		if err != nil {
			return "", fmt.Errorf("read own namespaces: %w", err)
		}
		if inside[i] == "" || inside[i] == ours && kind != shared {
			return "", postureError("its %s namespace is not its own", kind)
		}
	}
	return strings.Join(wire.NamespaceKinds[:], " "), nil
}

// readMounts checks what is mounted: the only places that can be written are those of the sandbox's own file system and its
// terminals, nothing honours set-user-id, and no device works outside /dev.
func (s *sandbox) readMounts(mountinfo string, p glovebox.Posture) error {
	writable := []string{"/workspace", "/outputs", "/tmp", "/dev/shm"}
	seen := 0
	for line := range strings.Lines(mountinfo) {
		before, after, ok := strings.Cut(line, " - ")
		f := strings.Fields(before)
		kind := strings.Fields(after)
		if !ok || len(f) < 6 || len(kind) < 2 {
			return postureError("a mount cannot be read")
		}
		at, options := f[4], strings.Split(f[5], ",")
		if !slices.Contains(options, "nosuid") {
			return postureError("%s honours set-user-id", at)
		}
		if !strings.HasPrefix(at, "/dev/") && !strings.HasPrefix(at, "/proc/") && !slices.Contains(options, "nodev") {
			return postureError("%s has devices", at)
		}
		switch {
		case slices.Contains(writable, at):
			seen++
			p["workspace"] = kind[0]
		case slices.Contains(options, "rw") && !strings.HasPrefix(at, "/dev/"):
			return postureError("%s can be written", at)
		}
	}
	if seen != len(writable) {
		return postureError("%d of %d places to write are there", seen, len(writable))
	}
	p["root"] = "read-only"
	if p["workspace"] != "tmpfs" {
		p["workspace"] = "disk (" + p["workspace"] + ")"
	}
	return nil
}

// readTemplatePosture is readPosture for a template, which keeps the right to map ids of its own user namespace and sees
// all of its own /proc, for that is how it makes sandboxes. It never runs anybody's code.
func (s *sandbox) readTemplatePosture(f *wire.Started) (glovebox.Posture, error) {
	status := statusFields(f.Status)
	caps := noCaps
	if !s.ids.Single {
		caps = "00000000000000c0" // CAP_SETGID and CAP_SETUID
	}
	if err := checkStatus("the template", status, [][2]string{
		{"NoNewPrivs", "1"}, {"Seccomp", "2"}, {"CapInh", caps}, {"CapPrm", caps}, {"CapEff", caps}, {"CapBnd", caps},
		{"CapAmb", caps},
	}); err != nil {
		return nil, err
	}
	if err := checkFilter(status, 1); err != nil {
		return nil, err
	}
	// What it makes is born in groups that a namespace of its own would hide from it.
	if _, err := ownNamespaces(f.Namespaces, "cgroup"); err != nil {
		return nil, err
	}
	s.namespaces = f.Namespaces
	if !slices.Equal(f.Interfaces, []string{"lo"}) {
		return nil, postureError("the network interfaces of the template are %q", f.Interfaces)
	}
	p := glovebox.Posture{}
	return p, s.readLimits(p, status)
}
