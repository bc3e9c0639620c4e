package attack_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	battery "glovebox/attack"
)

// wire is the part of a Result that is judged, as it is on the wire.
type wire struct {
	ID        string   `json:"id"`
	OK        bool     `json:"ok"`
	Status    string   `json:"status"`
	ExitCode  *int     `json:"exit_code"`
	Signal    *string  `json:"signal"`
	Reason    string   `json:"reason"`
	LimitsHit []string `json:"limits_hit"`

	Stdout          string   `json:"stdout"`
	Stderr          string   `json:"stderr"`
	StdoutBytes     int64    `json:"stdout_bytes"`
	StderrBytes     int64    `json:"stderr_bytes"`
	StdoutTruncated bool     `json:"stdout_truncated"`
	StderrTruncated bool     `json:"stderr_truncated"`
	Untrusted       bool     `json:"untrusted"`
	Flags           []string `json:"flags"`

	Limits map[string]float64 `json:"limits"`

	Usage struct {
		Wall      *int64 `json:"wall_ms"`
		CPU       *int64 `json:"cpu_ms"`
		Memory    *int64 `json:"memory_peak_bytes"`
		Disk      *int64 `json:"disk_bytes"`
		Processes *int64 `json:"processes_peak"`
	} `json:"usage"`
	Artifacts []struct {
		Path  string `json:"path"`
		Bytes int64  `json:"bytes"`
	} `json:"artifacts"`
	Skipped []struct {
		Path   string `json:"path"`
		Reason string `json:"reason"`
	} `json:"skipped"`

	Error *struct {
		Code, Message, Fix string
	} `json:"error"`
}

// trial is one program and how it is run.
type trial struct {
	program string   // file in programs
	flags   []string // of glovebox run
	args    []string // of the program
	stdin   io.Reader
	tell    bool          // set HARNESS_OK, for programs that exhaust something
	raw     bool          // without --json: stdout is the program's own
	open    []*os.File    // descriptors the caller has open and does not close
	within  time.Duration // from the command's start to its end; zero means 30 s
	during  func()        // is called beside the run
}

// outcome is what came out, and what the outside saw.
type outcome struct {
	wire
	exit    int
	took    time.Duration
	stdout  []byte // of the command
	stderr  []byte
	memory  int64  // most that the command itself used, in bytes
	folder  string // of --output
	command []string
}

// attack runs a trial and judges what holds for every program: no canary anywhere, no visitor at a listener, no process when
// the command returns, and a host as it was.
func attack(t *testing.T, x trial) outcome {
	t.Helper()
	l := need(t)
	before, visits := l.lookAtHost(t), l.listen.Visits.Load()
	o := l.run(t, x)

	if alive := l.survivors(); alive != nil {
		t.Errorf("alive when the command returned: %q", alive)
	}
	if left := l.groups(); left != nil {
		t.Errorf("control groups left: %q", left)
	}
	if n := l.listen.Visits.Load() - visits; n != 0 {
		t.Errorf("listeners of the host had %d visitors, last at %v", n, l.listen.Last.Load())
	}
	// Others change the mount table of the machine too, for moments.
	var wrong []string
	settle(3*time.Second, func() bool {
		wrong = l.compare(before, l.lookAtHost(t))
		return wrong == nil
	})
	for _, w := range wrong {
		t.Error(w)
	}
	within := x.within
	if within == 0 {
		within = 30 * time.Second
	}
	if o.took > within {
		t.Errorf("took %v, more than %v", o.took, within)
	}
	l.search(t, o)
	if t.Failed() {
		t.Logf("%s\nstatus %s, exit %d, reason %q\nstdout %.3000q\nstderr %.3000q", strings.Join(o.command, " "),
			o.Status,
			o.exit, o.Reason, o.Stdout, o.Stderr)
		if o.Error != nil {
			t.Logf("error: %+v", *o.Error)
		}
	}
	return o
}

// watchMemory follows the most memory that a process has used until what it returns is called. (The kernel's own figure for a
// process that has ended counts what its parent had when it was started.)
func watchMemory(pid int) func() int64 {
	stop, most := make(chan struct{}), make(chan int64)
	go func() {
		var high int64
		for {
			status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			if _, after, ok := strings.Cut(string(status), "VmHWM:"); ok {
				var kib int64
				if n, _ := fmt.Sscan(after, &kib); n == 1 {
					high = max(high, kib<<10)
				}
			}
			select {
			case <-stop:
				most <- high
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}()
	return func() int64 { close(stop); return <-most }
}

// run only runs.
func (l *laboratory) run(t *testing.T, x trial) outcome {
	t.Helper()
	o := outcome{folder: filepath.Join(l.folder(t), "out")}
	args := []string{"run", "--config", l.config, "--trust", "model", "--isolation", "process"}
	if !x.raw {
		args = append(args, "--json", "--view-limit", "1MiB", "--output", o.folder)
	}
	if x.tell {
		args = append(args, "--env", "HARNESS_OK=1")
	}
	args = append(args, x.flags...)
	args = append(args, filepath.Join("programs", x.program), "--")
	o.command = append(args, x.args...)

	ctx, cancel := context.WithTimeout(t.Context(), 150*time.Second)
	defer cancel()
	cmd := l.glovebox(ctx, o.command...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = x.stdin, &stdout, &stderr
	cmd.ExtraFiles = x.open
	cmd.WaitDelay = 5 * time.Second
	start := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	beside := make(chan struct{})
	go func() {
		defer close(beside)
		if x.during != nil {
			x.during()
		}
	}()
	memory := watchMemory(cmd.Process.Pid)
	err := cmd.Wait()
	o.took = time.Since(start)
	<-beside
	o.memory = memory()
	if failed := (*exec.ExitError)(nil); err != nil && !errors.As(err, &failed) {
		t.Fatalf("%v: %v", o.command, err)
	}
	o.exit, o.stdout, o.stderr = cmd.ProcessState.ExitCode(), stdout.Bytes(), stderr.Bytes()
	if !x.raw {
		if err := json.Unmarshal(o.stdout, &o.wire); err != nil {
			t.Fatalf("%v: output is not one JSON value: %v\n%.2000q\n%.2000q", o.command, err, o.stdout, o.stderr)
		}
	}
	return o
}

// search looks for the canaries in everything that a run can leave for a reader.
func (l *laboratory) search(t *testing.T, o outcome) {
	t.Helper()
	look := func(where string, data []byte) {
		for _, leak := range battery.Leaks(l.secrets, data) {
			t.Errorf("%s: %s", where, leak)
		}
	}
	look("stdout of the command", o.stdout)
	look("stdout of the program", []byte(o.Stdout))
	look("stderr of the program", []byte(o.Stderr))
	look("stderr of the command", o.stderr)
	filepath.WalkDir(o.folder, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		look("name of an artifact", []byte(d.Name()))
		if !d.IsDir() && !d.Type().IsRegular() {
			t.Errorf("artifact %q is a %v", path, d.Type())
		} else if info, err := d.Info(); err == nil && !d.IsDir() && info.Size() < 64<<20 {
			look("artifact "+d.Name(), []byte(read(path)))
		}
		return nil
	})
	if o.ID != "" {
		trace, err := l.glovebox(t.Context(), "trace", "show", "--json", "--config", l.config, o.ID).Output()
		if err != nil {
			t.Errorf("read trace of %s: %v", o.ID, err)
		}
		look("trace", trace)
	}
}

// contained demands that the program came to its end and got nothing.
func contained(t *testing.T, o outcome) {
	t.Helper()
	text := strings.Split(strings.TrimRight(o.Stdout, "\n"), "\n")
	for _, line := range text {
		if strings.HasPrefix(line, "broke:") {
			t.Errorf("%s", line)
		}
	}
	if text[len(text)-1] != "end" || o.Status != "exited" || o.exit != 0 {
		t.Errorf("the program did not do its work: status %s, exit %d\nstdout %.2000q\nstderr %.2000q", o.Status,
			o.exit,
			o.Stdout, o.Stderr)
	}
}

// ended demands a status, the exit code of the command that goes with it, and the limit that it names ("" for none).
func ended(t *testing.T, o outcome, status string, exit int, limit string) {
	t.Helper()
	if o.Status != status || o.exit != exit {
		t.Errorf("status %q and exit %d, want %q and %d (reason %q, error %+v)\nstdout %.500q\nstderr %.1000q",
			o.Status, o.exit, status,
			exit, o.Reason, o.Error, o.Stdout, o.Stderr)
	}
	if limit != "" && !slices.Contains(o.LimitsHit, limit) {
		t.Errorf("limits_hit %q, want %q among them", o.LimitsHit, limit)
	}
	if limit == "" && len(o.LimitsHit) > 0 {
		t.Errorf("limits_hit %q, want none", o.LimitsHit)
	}
}

// refused demands an error before start.
func refused(t *testing.T, o outcome, code string, exit int) {
	t.Helper()
	if o.Error == nil || o.Error.Code != code || o.exit != exit || o.Error.Fix == "" {
		t.Errorf("error %+v and exit %d (status %q), want code %s, a fix and exit %d", o.Error, o.exit, o.Status,
			code, exit)
	}
}

// soon demands that the command returned within a second of the limit, with half a second for its own start.
func soon(t *testing.T, o outcome, limit time.Duration) {
	t.Helper()
	if o.took < limit || o.took > limit+1500*time.Millisecond {
		t.Errorf("returned after %v, with a limit of %v", o.took, limit)
	}
	if o.Usage.Wall == nil || time.Duration(*o.Usage.Wall)*time.Millisecond > limit+time.Second {
		t.Errorf("usage says a wall clock of %s, with a limit of %v", show(o.Usage.Wall), limit)
	}
}

func show(n *int64) string {
	if n == nil {
		return "unknown"
	}
	return fmt.Sprint(*n)
}

// missing says that the image lacks what a program needs. It is printed, so that nobody takes it for a test that passed.
func missing(t *testing.T, what string) {
	t.Helper()
	fmt.Printf("    %s: %s\n", t.Name(), strings.TrimSpace(what))
}
