package attack_test

import (
	"bytes"
	"context"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A runtime that starts threads says what it lacks, or works.
func TestRP035FewProcesses(t *testing.T) {
	for _, n := range []string{"4", "8", "16"} {
		o := attack(t, trial{program: "ct_hello.js", flags: []string{"--processes", n, "--wall", "3s"},
			within: 5 * time.Second})
		works := o.Status == "exited" && o.Stdout == "hello\n"
		if says := slices.Contains(o.LimitsHit, "processes") && strings.Contains(o.Reason, "--processes"); !works &&
			!says {
			t.Errorf("%s processes: status %s, limits_hit %q, reason %q, stderr %.200q", n, o.Status, o.LimitsHit,
				o.Reason, o.Stderr)
		}
	}
}

// An allocation far beyond the limit, caught by the program, still says that memory was the cause.
func TestRP040RefusedAllocation(t *testing.T) {
	o := attack(t, trial{program: "rp040_allocation.py", flags: []string{"--memory", "80MiB", "--disk", "1MiB"}})
	if o.Status != "memory_limit" && !strings.Contains(o.Reason+o.Stderr, "emory") {
		t.Errorf("status %s, reason %q, stdout %q, stderr %q", o.Status, o.Reason, o.Stdout, o.Stderr)
	}
}

func TestRP041StaticArray(t *testing.T) {
	o := attack(t, trial{program: "rp041_array.sh", tell: true, flags: []string{"--memory", "256MiB", "--disk",
		"64MiB"}})
	if strings.HasPrefix(o.Stdout, "not in image") {
		missing(t, o.Stdout)
		return
	}
	ended(t, o, "memory_limit", 137, "memory")
}

// At the smallest limits that are allowed at all a shell still runs.
func TestRP042TinyLimits(t *testing.T) {
	o := attack(t, trial{program: "ct_hello.sh", flags: []string{"--memory", "8MiB", "--disk", "64KiB", "--processes",
		"1", "--files", "16",
		"--open-files", "16"}})
	ended(t, o, "exited", 0, "")
	o = attack(t, trial{program: "ct_hello.sh", flags: []string{"--memory", "1MiB"}})
	if o.Error == nil || o.Error.Fix == "" {
		t.Errorf("status %q, error %+v", o.Status, o.Error)
	}
}

// Asking to stop works at any rate of output.
func TestRP080StopAFlood(t *testing.T) {
	l := need(t)
	cmd := l.glovebox(context.Background(), "run", "--config", l.config, "--trust", "model", "--isolation", "process",
		"--output-limit", "10GiB",
		"--env", "HARNESS_OK=1", "programs/rs23_flood.py", "--", "lines", "100000000000")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd.Stdout = w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	go bytes.NewBuffer(nil).ReadFrom(r)
	time.Sleep(500 * time.Millisecond)
	start := time.Now()
	cmd.Process.Signal(syscall.SIGINT)
	cmd.Wait()
	if took := time.Since(start); took > time.Second || cmd.ProcessState.ExitCode() != 130 {
		t.Errorf("ended %v after it was asked, with code %d", took, cmd.ProcessState.ExitCode())
	}
	if alive := l.survivors(); alive != nil {
		t.Errorf("alive: %q", alive)
	}
}

// The folder in which the command is called is not touched, and neither is an empty folder of outputs.
func TestRP104Litter(t *testing.T) {
	l := need(t)
	dir := l.folder(t)
	for _, sig := range []syscall.Signal{0, syscall.SIGKILL} {
		cmd := l.glovebox(context.Background(), "run", "--config", l.config, "--trust", "model", "--isolation",
			"process", "-c",
			"import time; time.sleep(0.2)")
		cmd.Dir = dir
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if sig != 0 {
			time.Sleep(100 * time.Millisecond)
			cmd.Process.Signal(sig)
		}
		cmd.Wait()
		if left, _ := os.ReadDir(dir); len(left) != 0 {
			t.Errorf("left in the folder: %v", left)
		}
	}
	if !settle(time.Second, func() bool { return l.survivors() == nil }) {
		t.Errorf("alive: %q", l.survivors())
	}
	if o := attack(t, trial{program: "ct_hello.py"}); len(o.Artifacts)+len(o.Skipped) != 0 {
		t.Errorf("artifacts %v, skipped %v", o.Artifacts, o.Skipped)
	}
}

func TestRP158NotebookSyntax(t *testing.T) {
	o := attack(t, trial{program: "rp158_notebook.py", within: 3 * time.Second})
	ended(t, o, "exited", 1, "")
	if !strings.Contains(o.Stderr, "SyntaxError") {
		t.Errorf("stderr %q", o.Stderr)
	}
}

func TestRP159MissingLanguage(t *testing.T) {
	o := attack(t, trial{program: "ct_hello.py", flags: []string{"--lang", "go"}})
	if o.Error == nil || o.Error.Code != "invalid" || !strings.Contains(o.Error.Message+o.Error.Fix, "python") {
		t.Errorf("status %q, error %+v", o.Status, o.Error)
	}
}
