package drivertest

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"glovebox"
)

// selfCases are about what a program is, and what is said of it.
var selfCases = map[string]func(*bench){
	"a program is nobody and has no rights":            caseNobody,
	"calls that change the machine are refused":        caseCalls,
	"nothing names the host or the boot":               caseNeutral,
	"two sandboxes share no chance and no name":        caseChance,
	"the posture says what a program sees":             casePosture,
	"what the machine can give is said before a start": caseAvailable,
}

func caseNobody(b *bench) {
	b.nobody(b.facts())
}

// nobody demands that a program is of no user and has no privilege and no way to one.
func (b *bench) nobody(f facts) {
	b.Helper()
	const none = "0000000000000000"
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		if got := f.one(set); got != none {
			b.Errorf("%s is %q, want none in any thread", set, got)
		}
	}
	if got := f.one("NoNewPrivs"); got != "1" {
		b.Errorf("NoNewPrivs is %q", got)
	}
	for _, kind := range []string{"Uid", "Gid"} {
		ids := strings.Fields(f.one(kind))
		if len(ids) != 4 || slices.Contains(ids, "0") || len(slices.Compact(slices.Clone(ids))) != 1 {
			b.Errorf("%s is %q, want one that is not root's", kind, f[kind])
		}
	}
	if slices.Contains(strings.Fields(f.one("Groups")), "0") {
		b.Errorf("groups are %q", f["Groups"])
	}
	if got := f["tty"]; got != nil {
		b.Errorf("terminals: %q", got)
	}
	if got := f["session"]; len(got) != 3 || got[0] == "0" {
		b.Errorf("session, process and group are %q, want a session of its own", got)
	}
	if got := strings.Trim(f.one("SigIgn"), "0"); got != "" {
		b.Errorf("signals that are ignored from the start: %s", got)
	}
	// 1 is less than a dump needs, and keeps the kernel from handing one to a program of the host as well.
	if got := f["core"]; len(got) != 2 || got[0] != "0" && got[0] != "1" || got[1] != got[0] {
		b.Errorf("size of memory dumps is %q", got)
	}
	for _, pid := range f["pids"] {
		if n, _ := strconv.Atoi(pid); n > 100 {
			b.Errorf("processes are %q, want few", f["pids"])
		}
	}
}

func caseCalls(b *bench) {
	b.mustNot(b.said("calls"), 10)
}

func caseNeutral(b *bench) {
	b.neutral(b.facts())
}

func (b *bench) neutral(f facts) {
	b.Helper()
	host, err := os.Hostname()
	if err != nil {
		b.Fatal(err)
	}
	for name, own := range map[string]string{"hostname": host, "boot_id": word("/proc/sys/kernel/random/boot_id"),
		"machine_id": word("/etc/machine-id"), "cmdline": word("/proc/cmdline")} {
		if got := f.one(name); own != "" && got == own {
			b.Errorf("%s is the host's: %s", name, got)
		}
	}
	if f.one("hostname") == "" {
		b.Error("there is no host name")
	}
	for _, line := range f["cgroup"] {
		if strings.Contains(line, b.mark) {
			b.Errorf("control groups name the sandbox: %s", line)
		}
	}
}

func word(path string) string {
	text, _ := os.ReadFile(path) // what the host has not got it cannot show
	return strings.TrimSpace(string(text))
}

func caseChance(b *bench) {
	b.differ(b.facts(), b.facts())
}

// differ demands that nothing random or named is the same in two sandboxes.
func (b *bench) differ(one, other facts) {
	b.Helper()
	for _, name := range []string{"getrandom", "at_random", "uuid", "boot_id"} {
		a := one.one(name)
		if a == "" && (name == "getrandom" || name == "at_random") {
			b.Errorf("%s is not known", name)
		}
		if a != "" && a == other.one(name) {
			b.Errorf("%s is %s in both", name, a)
		}
	}
	if one.one("hostname") != other.one("hostname") {
		b.Errorf("host names are %q and %q, which tells one from the other", one.one("hostname"), other.one("hostname"))
	}
}

// claim checks one line of a posture against what the program saw; the error says what does not fit.
type claim func(b *bench, said string, f facts) error

// claims are all that a posture may say. What a program inside cannot see is checked in the driver's own tests, and listed
// here so that no claim goes unchecked.
func claims() map[string]claim {
	outside := func(*bench, string, facts) error { return nil }
	is := func(want string) claim {
		return func(_ *bench, said string, _ facts) error {
			if said != want {
				return fmt.Errorf("it is not %q", want)
			}
			return nil
		}
	}
	both := func(one, other claim) claim {
		return func(b *bench, said string, f facts) error { return errors.Join(one(b, said, f), other(b, said, f)) }
	}
	fact := func(name, want string) claim {
		return func(_ *bench, _ string, f facts) error {
			if got := f.one(name); got != want {
				return fmt.Errorf("the program sees %s as %q", name, got)
			}
			return nil
		}
	}
	return map[string]claim{
		"rung":                func(b *bench, said string, f facts) error { return is(string(b.driver.Isolation()))(b, said, f) },
		"no_new_privs":        both(is("set"), fact("NoNewPrivs", "1")),
		"capabilities":        both(is("none"), fact("CapEff", "0000000000000000")),
		"network":             claimInterfaces,
		"root":                both(is("read-only"), rootReadOnly),
		"system_calls":        claimFilter,
		"workspace":           claimWorkspace,
		"namespaces":          claimNamespaces,
		"cgroup_memory":       claimMemory,
		"cgroup_pids":         claimProcesses,
		"cgroup_cpu":          func(b *bench, said string, _ facts) error { return number(said, b.limits.CPUs) },
		"cgroup_cpuset":       outside, // its size is a case of its own
		"cgroup_sockets":      outside,
		"cgroup_swap":         is("0"),
		"lifeline":            outside, // likewise
		"landlock":            outside,
		"user":                outside,
		"waiting_connections": outside,

		// What holds a kernel of the run's own, from outside.
		"machine":             outside,
		"acceleration":        outside,
		"kernel":              outside,
		"kernel_capabilities": outside,
		"kernel_system_calls": is("filtered"),
		"kernel_no_new_privs": is("set"),
		"platform":            outside,
		"overhead":            func(b *bench, said string, _ facts) error { return number(said, float64(b.driver.Overhead())) },
	}
}

// A machine's posture has what its own kernel says of the program, and what the host's says of the machine.
const inGuest, aroundGuest = "guest_", "jail_"

func casePosture(b *bench) {
	r, e, _ := b.run(probe("facts"))
	b.wantExit(r, e, 0)
	b.truthful(r.Posture(), b.parse([]string{r.out.String()}))
}

func (b *bench) truthful(p glovebox.Posture, f facts) {
	b.Helper()
	known := claims()
	for _, must := range []string{"rung", "no_new_privs", "capabilities", "network", "root", "cgroup_memory"} {
		if p[must] == "" && p[inGuest+must] == "" {
			b.Errorf("the posture does not say %s", must)
		}
	}
	for name, said := range p {
		if strings.HasPrefix(name, aroundGuest) {
			continue // the process rung's word on its own program, which its driver's suite checks
		}
		short, guest := strings.CutPrefix(name, inGuest)
		check := known[short]
		if guest && (short == "rung" || short == "namespaces") {
			continue // of another kernel, which numbers its own as the host's does
		}
		if check == nil {
			b.Errorf("nothing checks what the posture says of %s: %q", name, said)
			continue
		}
		if err := check(b, said, f); err != nil {
			b.Errorf("posture %s=%q: %v", name, said, err)
		}
	}
}

func number(said string, want float64) error {
	said, _, _ = strings.Cut(said, " ")
	if got, err := strconv.ParseFloat(said, 64); err != nil || math.Abs(got-want) > 0.001 {
		return fmt.Errorf("it was granted %g", want)
	}
	return nil
}

func claimInterfaces(b *bench, said string, f facts) error {
	want, interfaces := "loopback only", "lo"
	if b.network {
		want, interfaces = "attached", "eth0 lo"
	}
	got := slices.Sorted(slices.Values(f["interfaces"]))
	if said != want || strings.Join(got, " ") != interfaces {
		return fmt.Errorf("the program sees %q", got)
	}
	return nil
}

// claimMemory lets a rung hold less for what is shared, and more for what its mechanism takes.
func claimMemory(b *bench, said string, _ facts) error {
	said, _, _ = strings.Cut(said, " ")
	got, err := strconv.ParseInt(said, 10, 64)
	most := int64(b.limits.Memory + b.driver.Overhead())
	if err != nil || got > most || got < int64(b.limits.Memory)/2 {
		return fmt.Errorf("it was granted %d", most)
	}
	return nil
}

func claimFilter(_ *bench, said string, f facts) error {
	if said == "filtered" && f.one("Seccomp") != "2" {
		return fmt.Errorf("the program is in mode %q", f.one("Seccomp"))
	}
	return nil
}

// mountAt is the options and the kind of the uppermost mount at a path.
func mountAt(f facts, path string) (options []string, kind string) {
	for _, line := range f["mounts"] {
		before, after, _ := strings.Cut(line, " - ")
		if fields := strings.Fields(before); len(fields) > 5 && fields[4] == path {
			options, kind = strings.Split(fields[5], ","), strings.Fields(after + " ?")[0]
		}
	}
	return options, kind
}

func rootReadOnly(_ *bench, _ string, f facts) error {
	if options, _ := mountAt(f, "/"); !slices.Contains(options, "ro") {
		return fmt.Errorf("the program sees / as %q", options)
	}
	return nil
}

// claimProcesses lets the group of a mechanism with a kernel of its own have more, since that counts the run's processes.
func claimProcesses(b *bench, said string, _ facts) error {
	if got, err := strconv.ParseInt(said, 10, 64); err == nil && b.driver.Overhead() > 0 && got > b.limits.Processes {
		return nil
	}
	return number(said, float64(b.limits.Processes))
}

func claimWorkspace(b *bench, said string, f facts) error {
	options, kind := mountAt(f, "/workspace")
	if b.driver.Overhead() > 0 {
		kind = "" // what its own kernel shows is that kernel's word for it
	}
	if !strings.Contains(said, kind) || slices.Contains(options, "ro") {
		return fmt.Errorf("the program sees /workspace as %s %q", kind, options)
	}
	return nil
}

func claimNamespaces(_ *bench, said string, f facts) error {
	for _, inside := range f["ns"] {
		kind, _, _ := strings.Cut(inside, ":")
		ours, err := os.Readlink(filepath.Join("/proc/self/ns", kind))
		if err != nil {
			return err
		}
		if kind = strings.Replace(kind, "mnt", "mnt", 1); slices.Contains(strings.Fields(said), kind) && ours == inside {
			return fmt.Errorf("the program is in our own: %s", inside)
		}
	}
	return nil
}

// caseAvailable runs on a machine that has the rung: what is said before a start must fit.
func caseAvailable(b *bench) {
	if err := b.driver.Available(b.context()); err != nil {
		b.Errorf("available: %v, though it runs", err)
	}
	if b.driver.Overhead() < 0 {
		b.Errorf("overhead is %v", b.driver.Overhead())
	}
	controls := b.driver.Controls(b.context())
	names := map[string]bool{}
	for _, c := range controls {
		if c.Isolation != b.driver.Isolation() || c.Name == "" || names[c.Name] {
			b.Errorf("control %q of %s, want each once, of %s", c.Name, c.Isolation, b.driver.Isolation())
		}
		names[c.Name] = true
		if c.Required && !c.Available {
			b.Errorf("control %s is required and missing, and sandboxes start", c.Name)
		}
	}
	if len(controls) == 0 {
		b.Error("there are no controls")
	}
}
