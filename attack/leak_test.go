package attack_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestIL02NamesOfTheHost(t *testing.T) {
	l := need(t)
	o := attack(t, trial{program: "il02_host_names.sh"})
	contained(t, o)
	host, _ := os.Hostname()
	for what, name := range map[string]string{
		"folder of the runs": filepath.Base(l.dir), "data_dir": l.data, "id of the run": o.ID,
		"neighbour":   l.neighbour.id,
		"host's name": host, "machine-id": strings.TrimSpace(read("/etc/machine-id")),
		"boot id":      strings.TrimSpace(read("/proc/sys/kernel/random/boot_id")),
		"command line": strings.TrimSpace(read("/proc/cmdline")), "control group": l.cgroup,
		"serial": strings.TrimSpace(read("/sys/class/dmi/id/product_serial")),
	} {
		if name != "" && len(name) > 3 && strings.Contains(o.Stdout, name) {
			t.Errorf("%s %q is shown", what, name)
		}
	}
	for _, line := range strings.Split(read("/etc/passwd"), "\n") {
		user, _, _ := strings.Cut(line, ":")
		if user != "" && user != "root" && user != "nobody" && user != "sandbox" &&
			regexp.MustCompile(`(?m)^`+regexp.QuoteMeta(user)+`:`).MatchString(o.Stdout) {
			t.Errorf("user %q of the host is shown", user)
		}
	}
	if regexp.MustCompile(`(?m)^\s*\d+\s+0\s+\d+\s*$`).MatchString(o.Stdout) {
		t.Error("an id inside is the host's root")
	}
}

func TestIL13Processors(t *testing.T) {
	o := attack(t, trial{program: "il13_processors.sh"})
	contained(t, o)
	lines := strings.Split(o.Stdout, "\n")
	if lines[0] != "1" || !strings.HasSuffix(lines[2], " 1") || len(lines) > 5 && lines[3] != "1" {
		t.Errorf("counted %q at one processor", lines)
	}
}

func TestLT01LeftForTheNext(t *testing.T) {
	const mark = "left-by-the-run-before"
	contained(t, attack(t, trial{program: "lt01_leave.sh", args: []string{mark}}))
	o := attack(t, trial{program: "lt01_look.py", args: []string{mark}})
	contained(t, o)
	if strings.Contains(o.Stdout+o.Stderr, mark) {
		t.Errorf("stdout %q, stderr %q", o.Stdout, o.Stderr)
	}
	// The shell and node have start-up files too.
	for _, p := range []string{"ct_hello.sh", "ct_hello.js"} {
		if o := attack(t, trial{program: p}); o.Stdout != "hello\n" || o.Stderr != "" {
			t.Errorf("%s: stdout %q, stderr %q", p, o.Stdout, o.Stderr)
		}
	}
}

func TestLT09LateFinalisers(t *testing.T) {
	o := attack(t, trial{program: "lt09_late.py"})
	ended(t, o, "exited", 0, "")
	for _, want := range []string{"end\n", "exit function\n", "finaliser\n"} {
		if !strings.Contains(o.Stdout, want) {
			t.Errorf("%q is missing in %q", want, o.Stdout)
		}
	}
	late := identity(filepath.Join(o.folder, "late"))
	time.Sleep(200 * time.Millisecond)
	if identity(filepath.Join(o.folder, "late")) != late {
		t.Error("a file grows after the end")
	}
}
