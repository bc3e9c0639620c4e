package attack_test

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestCT01Python(t *testing.T) {
	o := attack(t, trial{program: "ct_python.py"})
	for _, line := range strings.Split(o.Stdout, "\n") {
		if strings.HasPrefix(line, "not in image") {
			missing(t, line)
		}
	}
	contained(t, o)
}

func TestCT04Shell(t *testing.T) {
	o := attack(t, trial{program: "ct04_shell.sh", within: 5 * time.Second})
	const want = "a\nline\npipe 0\npipefail 1\njob 3\none\ntwo\ntrapped\nthree\nco\n1\nlisted\ncopy\nout\n"
	if o.Stdout != want || o.Stderr != "" || o.exit != 0 {
		t.Errorf("exit %d, stdout %q, want %q, stderr %q", o.exit, o.Stdout, want, o.Stderr)
	}
}

func TestCT05ToolChains(t *testing.T) {
	for _, chain := range []string{"c", "cpp", "go", "rust", "java", "node", "ruby", "perl", "git", "make", "pip"} {
		t.Run(chain, func(t *testing.T) {
			o := attack(t, trial{program: "ct05_chains.sh", args: []string{chain}})
			if strings.HasPrefix(o.Stdout, "not in image") {
				missing(t, o.Stdout)
				return
			}
			if o.Stdout != "hello\n" || o.exit != 0 {
				t.Errorf("exit %d (%s), stdout %q, stderr %q", o.exit, o.Reason, o.Stdout, o.Stderr)
			}
		})
	}
}

func TestCT09Servers(t *testing.T) {
	if o := attack(t, trial{program: "ct09_servers.py"}); o.Stdout != "20 4005 60 3 page\n" || o.exit != 0 {
		t.Errorf("exit %d (%s), stdout %q, stderr %q", o.exit, o.Reason, o.Stdout, o.Stderr)
	}
}

func TestCT10Ends(t *testing.T) {
	for _, code := range []int{0, 1, 2, 126, 127, 128, 255} {
		ended(t, attack(t, trial{program: "ct10_ends.sh", args: []string{"code", fmt.Sprint(code)}}), "exited", code,
			"")
	}
	for number, name := range map[int]string{6: "SIGABRT", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"} {
		o := attack(t, trial{program: "ct10_ends.sh", args: []string{"signal", fmt.Sprint(number)}})
		ended(t, o, "signaled", 128+number, "")
		if o.Signal == nil || *o.Signal != name {
			t.Errorf("signal %v, want %s", o.Signal, name)
		}
	}
	for form, code := range map[string]int{"missing": 127, "format": 127, "text": 126} {
		o := attack(t, trial{program: "ct10_ends.sh", args: []string{form}})
		if o.Status != "exited" || o.exit != code && !(form == "format" && o.exit == 126) || o.Stderr == "" {
			t.Errorf("%s: status %s, exit %d, stderr %q", form, o.Status, o.exit, o.Stderr)
		}
	}
	if o := attack(t, trial{program: "ct10_crlf.sh"}); o.Status != "exited" || o.Error != nil {
		t.Errorf("line ends of another system: status %q, %+v", o.Status, o.Error)
	}
	// A program that is not in the image is an end like another, by exec too.
	need(t)
	out, _ := lab.glovebox(t.Context(), "exec", "--json", "--config", lab.config, "--trust", "model", "--isolation",
		"process", "--",
		"nosuchcommand").Output()
	if !strings.Contains(string(out), `"exit_code":127`) {
		t.Errorf("exec of a missing program: %s", out)
	}
}

// TestCT11JustUnderTheLimits stays at 95 of 100 parts of each limit (its start included, where time is limited), ten times.
func TestCT11JustUnderTheLimits(t *testing.T) {
	rounds := 3
	if long() {
		rounds = 10
	}
	const mib = 1 << 20
	for name, c := range map[string]struct {
		arg   string
		flags []string
	}{
		"memory":    {fmt.Sprintf("memory=%d", (128-14)*mib), []string{"--memory", "128MiB", "--disk", "16MiB"}},
		"disk":      {fmt.Sprintf("disk=%d", 64*mib*95/100), []string{"--disk", "64MiB"}},
		"real disk": {fmt.Sprintf("disk=%d", 64*mib*95/100), []string{"--disk", "64MiB", "--memory", "64MiB"}},
		"files":     {"files=940", []string{"--files", "1000"}},
		"processes": {"processes=29", []string{"--processes", "32"}},
		"output":    {fmt.Sprintf("output=%d", mib*95/100), []string{"--output-limit", "1MiB"}},
		"wall":      {"wall=1600", []string{"--wall", "2s"}},
		"cpu":       {"cpu=900", []string{"--cpu", "1s"}},
	} {
		t.Run(name, func(t *testing.T) {
			for range rounds {
				ended(t, attack(t, trial{program: "ct11_under.py", args: []string{c.arg}, flags: c.flags}), "exited",
					0, "")
			}
		})
	}
}
