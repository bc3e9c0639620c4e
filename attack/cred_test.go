package attack_test

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	battery "glovebox/attack"
)

func calls(numbers map[string]int) []string {
	var all []string
	for name, n := range numbers {
		all = append(all, fmt.Sprintf("%s=%d", name, n))
	}
	return all
}

func TestCR01Environment(t *testing.T) {
	contained(t, attack(t, trial{program: "cr01_environment.py"}))
}

func TestCR07Attach(t *testing.T) {
	contained(t, attack(t, trial{program: "cr07_attach.py", args: calls(map[string]int{
		"ptrace": unix.SYS_PTRACE, "process_vm_readv": unix.SYS_PROCESS_VM_READV,
		"process_vm_writev": unix.SYS_PROCESS_VM_WRITEV,
		"kcmp":              unix.SYS_KCMP, "pidfd_open": unix.SYS_PIDFD_OPEN, "pidfd_getfd": unix.SYS_PIDFD_GETFD,
		"setns":           unix.SYS_SETNS,
		"process_madvise": unix.SYS_PROCESS_MADVISE, "process_mrelease": unix.SYS_PROCESS_MRELEASE})}))
}

func TestCR09Keys(t *testing.T) {
	args := append([]string{keyName()}, calls(map[string]int{"keyctl": unix.SYS_KEYCTL, "add_key": unix.SYS_ADD_KEY,
		"request_key": unix.SYS_REQUEST_KEY})...)
	for range 2 { // what the first leaves the second may not find
		contained(t, attack(t, trial{program: "cr09_keys.py", args: args}))
	}
}

func TestCR10Services(t *testing.T) {
	contained(t, attack(t, trial{program: "cr10_services.sh"}))
}

// The command has a terminal of its own here, by script(1), and an input that nobody offered to the program.
func TestCR17Terminal(t *testing.T) {
	l := need(t)
	input := io.Reader(strings.NewReader(l.secret("stdin of the command")))
	contained(t, attack(t, trial{program: "cr17_terminal.py", stdin: input}))

	script, err := exec.LookPath("script")
	if err != nil {
		t.Log("not on this machine: script(1), so that the run with a terminal is left out")
		return
	}
	line := strings.Join([]string{filepath.Join(l.bin, "glovebox"), "run --json --config", l.config,
		"--trust model --isolation process programs/cr17_terminal.py"}, " ")
	cmd := exec.CommandContext(t.Context(), script, "-qec", line, "/dev/null")
	l.asCaller(cmd)
	keys, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	defer keys.Close()
	fmt.Fprintln(w, l.secret("stdin of the command"))
	cmd.Stdin, cmd.WaitDelay = keys, 2*time.Second
	out, err := cmd.CombinedOutput()
	// The terminal itself echoes what is typed; what the program saw is in the Result.
	_, result, found := strings.Cut(string(out), `{"id":`)
	if !found || err != nil {
		t.Fatalf("%v: %q", err, out)
	}
	if strings.Contains(result, "broke:") || !strings.Contains(result, `end\n"`) || battery.Leaks(l.secrets,
		[]byte(result)) != nil {
		t.Errorf("with a terminal: %s", result)
	}
}
