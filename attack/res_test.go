package attack_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestRS01BusyLoop(t *testing.T) {
	o := attack(t, trial{program: "rs01_spin.py", flags: []string{"--wall", "1s"}})
	ended(t, o, "wall_limit", 124, "wall")
	soon(t, o, time.Second)

	o = attack(t, trial{program: "rs01_spin.py", flags: []string{"--cpu", "1s"}})
	ended(t, o, "cpu_limit", 124, "cpu")
	soon(t, o, time.Second)
}

func TestRS02Sleep(t *testing.T) {
	for _, form := range []string{"front", "brackets", "pipe", "wait", "timeout", "trap", "forever"} {
		t.Run(form, func(t *testing.T) {
			o := attack(t, trial{program: "rs02_sleep.sh", args: []string{form}, flags: []string{"--wall", "500ms"}})
			ended(t, o, "wall_limit", 124, "wall")
			soon(t, o, 500*time.Millisecond)
		})
	}
}

func TestRS03ForkBomb(t *testing.T) {
	l := need(t)
	other := ""
	o := attack(t, trial{program: "rs03_forks.sh", tell: true, flags: []string{"--wall", "20s"}, during: func() {
		time.Sleep(500 * time.Millisecond)
		if n := len(l.processes(l.uids)); n > 128+8 {
			t.Errorf("%d processes on the host, with a limit of 128", n)
		}
		if o := l.run(t, trial{program: "ct_hello.py"}); o.Stdout != "hello\n" {
			other = fmt.Sprintf("%q, %q, %+v", o.Status, o.Stdout, o.Error)
		}
	}})
	ended(t, o, "process_limit", 122, "processes")
	if other != "" {
		t.Errorf("another run beside it: %s", other)
	}
	if o.Usage.Processes == nil || *o.Usage.Processes > 128 {
		t.Errorf("%s processes at most, with a limit of 128", show(o.Usage.Processes))
	}
}

func TestRS05DefaultProcessLimit(t *testing.T) {
	o := attack(t, trial{program: "rs05_children.py", tell: true, args: []string{"1"}})
	ended(t, o, "process_limit", 122, "processes")
	if n := counted(t, o); n > 128 || n < 100 {
		t.Errorf("%d children with the default limit", n)
	}
	// A program that took the refusal well ended well, and the result still says what was hit.
	o = attack(t, trial{program: "rs05_children.py", tell: true, args: []string{"0"}, flags: []string{"--processes",
		"20"}})
	ended(t, o, "exited", 0, "processes")
	if n := counted(t, o); n > 20 {
		t.Errorf("%d children with a limit of 20", n)
	}
}

func TestRS06DetachedChildKeepsPipes(t *testing.T) {
	for _, form := range []string{"setsid", "popen", "inner", "tee", "daemon", "deaf", "stopped", "writes"} {
		t.Run(form, func(t *testing.T) {
			o := attack(t, trial{program: "rs06_detached.sh", args: []string{form}, within: 2500 * time.Millisecond})
			ended(t, o, "exited", 0, "")
			if form == "tee" && o.Stdout != "done\n" {
				t.Errorf("stdout %q", o.Stdout)
			}
		})
	}
}

// RS-29 too: what was returned does not change any more.
func TestRS07DetachedChildWithoutPipes(t *testing.T) {
	o := attack(t, trial{program: "rs07_marker.sh", within: 3 * time.Second})
	contained(t, o)
	marker := filepath.Join(o.folder, "marker")
	before := identity(marker)
	show := func() string {
		out, err := lab.glovebox(t.Context(), "trace", "show", "--json", "--config", lab.config, o.ID).Output()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	record := show()
	time.Sleep(300 * time.Millisecond)
	if identity(marker) != before {
		t.Error("the marker grows after the end")
	}
	if show() != record {
		t.Error("the record changed after the end")
	}
	if !strings.Contains(before, "\n") {
		t.Errorf("no marker was written: %s", before)
	}
}

func TestRS09DeafToSignals(t *testing.T) {
	o := attack(t, trial{program: "rs09_deaf.py", flags: []string{"--wall", "1s"}})
	ended(t, o, "wall_limit", 124, "wall")
	soon(t, o, time.Second)
}

func TestRS10StopItself(t *testing.T) {
	o := attack(t, trial{program: "rs10_stop.sh", flags: []string{"--wall", "1s"}})
	ended(t, o, "wall_limit", 124, "wall")
	soon(t, o, time.Second)
}

func TestRS12Memory(t *testing.T) {
	for _, form := range []string{"alone", "child", "many", "spared", "shared", "memfd", "pipes", "once"} {
		t.Run(form, func(t *testing.T) {
			o := attack(t, trial{program: "rs12_memory.py", tell: true, args: []string{form}, within: 15 * time.Second,
				flags: []string{"--memory", "128MiB", "--disk", "32MiB", "--open-files", "20000"}})
			ended(t, o, "memory_limit", 137, "memory")
			if strings.Contains(o.Stdout, "broke:") {
				t.Errorf("stdout %q", o.Stdout)
			}
			if o.Usage.Memory == nil || *o.Usage.Memory > 129<<20 || *o.Usage.Memory < 100<<20 {
				t.Errorf("peak of %s bytes, with a limit of 128 MiB", show(o.Usage.Memory))
			}
			if !strings.Contains(o.Reason, "memory") {
				t.Errorf("reason %q", o.Reason)
			}
		})
	}
	t.Run("absurd", func(t *testing.T) {
		o := attack(t, trial{program: "rs12_memory.py", tell: true, args: []string{"absurd"}})
		if o.Stdout != "MemoryError\n" || o.exit != 1 {
			t.Errorf("status %s, stdout %q", o.Status, o.Stdout)
		}
	})
}

// The workspace lies in memory and does not fit beside the program: the memory limit holds for both together.
func TestRS13MemoryThroughFiles(t *testing.T) {
	before := meminfo("Shmem")
	worst := before
	o := attack(t, trial{program: "fs22_fill.py", tell: true, args: []string{"/dev/shm", "/tmp"},
		flags: []string{"--memory", "256MiB", "--disk", "128MiB"}, during: func() {
			for range 20 {
				worst = max(worst, meminfo("Shmem"))
				time.Sleep(10 * time.Millisecond)
			}
		}})
	ended(t, o, "disk_limit", 122, "disk")
	if n := counted(t, o); n > 128<<20 {
		t.Errorf("%d bytes went in, with a limit of 128 MiB", n)
	}
	if worst-before > 512<<20 {
		t.Errorf("shared memory of the host grew by %d bytes", worst-before)
	}
	if !settle(5*time.Second, func() bool { return meminfo("Shmem")-before < 64<<20 }) {
		t.Errorf("shared memory of the host stays %d bytes larger", meminfo("Shmem")-before)
	}
}

func meminfo(key string) int64 {
	for _, line := range strings.Split(read("/proc/meminfo"), "\n") {
		if rest, ok := strings.CutPrefix(line, key+":"); ok {
			n, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return n << 10
		}
	}
	return 0
}

func TestRS20ManySpinners(t *testing.T) {
	for _, form := range []string{"threads", "together", "in turn"} {
		t.Run(form, func(t *testing.T) {
			o := attack(t, trial{program: "rs20_spinners.py", tell: true, args: []string{form},
				flags: []string{"--cpu", "1s", "--cpus", "0.5"}})
			ended(t, o, "cpu_limit", 124, "cpu")
			if o.Usage.CPU == nil || *o.Usage.CPU < 950 || *o.Usage.CPU > 1500 {
				t.Errorf("%s ms of CPU, with a limit of 1 s", show(o.Usage.CPU))
			}
			// At half a processor a second of CPU takes two.
			if o.Usage.Wall == nil || *o.Usage.Wall < 1700 {
				t.Errorf("took %s ms at half a processor", show(o.Usage.Wall))
			}
		})
	}
}

// TestRS23Flood floods with more than any limit. The command's own memory is read at its end, from the kernel.
func TestRS23Flood(t *testing.T) {
	amount := int64(1 << 30)
	if long() {
		amount = 10 << 30
	}
	for _, form := range []string{"stdout", "stderr", "lines"} {
		t.Run(form, func(t *testing.T) {
			const limit = 32 << 20
			o := attack(t, trial{program: "rs23_flood.py", tell: true, args: []string{form, fmt.Sprint(amount)},
				flags: []string{"--output-limit", "32MiB"}})
			ended(t, o, "output_limit", 122, "output")
			got, cut := o.StdoutBytes, o.StdoutTruncated
			if form == "stderr" {
				got, cut = o.StderrBytes, o.StderrTruncated
			}
			// What is printed until the kill arrives is counted too; on a busy machine that can take a while.
			if got < limit || got > amount/2 || !cut {
				t.Errorf("%d bytes counted, cut is %v, with a limit of %d", got, cut, limit)
			}
			if o.memory == 0 || o.memory > 64<<20 {
				t.Errorf("the command took %d bytes of memory", o.memory)
			}
		})
	}
}

func TestRS24BothStreams(t *testing.T) {
	o := attack(t, trial{program: "rs24_both.py", within: 5 * time.Second})
	ended(t, o, "exited", 0, "")
	if o.StdoutBytes != 2<<20 || o.StderrBytes != 2<<20 {
		t.Errorf("%d and %d bytes, want 2 MiB each", o.StdoutBytes, o.StderrBytes)
	}
	// Into pipes the exact bytes go.
	o = attack(t, trial{program: "rs24_both.py", raw: true, within: 5 * time.Second})
	if !bytes.Equal(o.stdout, bytes.Repeat([]byte("o"), 2<<20)) || !bytes.Equal(o.stderr, bytes.Repeat([]byte("e"),
		2<<20)) {
		t.Errorf("%d and %d bytes passed on, want 2 MiB each", len(o.stdout), len(o.stderr))
	}
}

func TestRS26EdgeOfTheOutputLimit(t *testing.T) {
	const limit = 65536
	for _, c := range []struct {
		bytes  int64
		status string
		exit   int
	}{{limit - 1, "exited", 4}, {limit, "exited", 4}, {limit + 1, "output_limit", 122}} {
		t.Run(fmt.Sprint(c.bytes), func(t *testing.T) {
			limitHit := ""
			if c.status != "exited" {
				limitHit = "output"
			}
			o := attack(t, trial{program: "rs23_flood.py", tell: true, args: []string{"stdout", fmt.Sprint(c.bytes)},
				flags: []string{"--output-limit", fmt.Sprint(limit) + "B"}})
			ended(t, o, c.status, c.exit, limitHit)
			if o.StdoutBytes != c.bytes {
				t.Errorf("%d bytes counted, want %d", o.StdoutBytes, c.bytes)
			}
			if kept := min(c.bytes, limit); !o.StdoutTruncated && int64(len(o.Stdout)) != kept {
				t.Errorf("%d bytes shown, want %d", len(o.Stdout), kept)
			}
			if o.StdoutTruncated != (c.bytes > limit) {
				t.Errorf("truncated is %v", o.StdoutTruncated)
			}
		})
	}
}

func TestRS28ClosedStreams(t *testing.T) {
	o := attack(t, trial{program: "rs28_closed.py"})
	ended(t, o, "exited", 7, "")
	if read(filepath.Join(o.folder, "done")) != "1" {
		t.Errorf("the file is missing: %v", o.Artifacts)
	}
}

func TestRS30UnreadInput(t *testing.T) {
	for _, form := range []string{"ignore", "close", "one"} {
		t.Run(form, func(t *testing.T) {
			input := bytes.NewReader(bytes.Repeat([]byte("0123456789abcde\n"), 50<<20/16))
			o := attack(t, trial{program: "rs30_unread.py", args: []string{form}, stdin: input,
				flags:  []string{"--stdin", "-"},
				within: 3 * time.Second})
			ended(t, o, "exited", 0, "")
		})
	}
	// An input that never ends and never comes.
	never, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	defer never.Close()
	o := attack(t, trial{program: "rs30_unread.py", args: []string{"one"}, stdin: never,
		flags: []string{"--stdin", "-", "--wall", "1s"}})
	ended(t, o, "wall_limit", 124, "wall")
	soon(t, o, time.Second)
}

func TestRS31NoInput(t *testing.T) {
	own := strings.NewReader(need(t).secret("stdin of the command"))
	contained(t, attack(t, trial{program: "rs31_prompts.sh", stdin: own, within: 3 * time.Second}))
}

func TestRS34LeaveTheGroup(t *testing.T) {
	contained(t, attack(t, trial{program: "rs34_cgroup.sh"}))
}

func TestRS36RaiseLimits(t *testing.T) {
	contained(t, attack(t, trial{program: "rs36_raise.py"}))
}

func TestRS40OddLimits(t *testing.T) {
	need(t)
	odd := []string{"-1", "NaN", "Inf", "1e18", "10", "null", "", " ", "0x10", "18446744073709551616",
		"9223372036854775807", "1e400",
		"99999999999999999999h", "99999999TiB", "-5s", "-5MiB", "1.5", "٣s"}
	for _, flag := range []string{"--wall", "--cpu", "--cpus", "--memory", "--disk", "--files", "--open-files",
		"--processes",
		"--output-limit", "--view-limit", "--egress-limit"} {
		for _, value := range odd {
			if good(flag, value) {
				continue
			}
			o := lab.run(t, trial{program: "ct_hello.py", flags: []string{flag + "=" + value}})
			if o.Error == nil || o.Error.Fix == "" || (o.Error.Code != "invalid" && o.Error.Code != "denied") ||
				o.exit < 125 {
				t.Errorf("%s %q: status %q, exit %d, error %+v", flag, value, o.Status, o.exit, o.Error)
			}
		}
		// Nought is refused: it could be meant for no limit.
		o := lab.run(t, trial{program: "ct_hello.py", flags: []string{flag + "=0"}})
		if o.Error == nil || o.Error.Code != "invalid" || o.Error.Fix == "" {
			t.Errorf("%s 0: status %q, limits %v, error %+v", flag, o.Status, o.Limits, o.Error)
		}
	}
}

// good tells the values that are odd but plain for a flag: numbers of things, and of bytes.
func good(flag, value string) bool {
	switch flag {
	case "--files", "--open-files", "--processes":
		return value == "10" || value == "0x10"
	case "--cpus":
		return value == "10" || value == "1.5" || value == "0x10"
	case "--output-limit", "--egress-limit":
		return value == "10"
	}
	return false
}

func TestRS42BuildStep(t *testing.T) {
	l := need(t)
	flags := []string{"--wall", "3s", "--memory", "256MiB", "--disk", "64MiB"}
	for _, form := range []string{"include", "expand"} {
		o := attack(t, trial{program: "rs42_build.sh", tell: true, args: []string{form}, flags: flags})
		switch {
		case strings.HasPrefix(o.Stdout, "not in image"):
			missing(t, o.Stdout)
		case o.Status == "wall_limit" || o.Status == "memory_limit" || o.Status == "output_limit" ||
			o.Status == "disk_limit":
		default:
			ended(t, o, "exited", 6, "")
		}
	}
	ended(t, attack(t, trial{program: "rs42_build.sh", tell: true, args: []string{"secret", l.files[0]},
		flags: flags}), "exited", 6, "")
	ended(t, attack(t, trial{program: "rs42_build.sh", tell: true, args: []string{"hook"}, flags: flags}), "exited",
		6, "")
}

// TestRS44CallerGoesAway ends the caller in every way: asked once, asked twice, killed.
func TestRS44CallerGoesAway(t *testing.T) {
	l := need(t)
	for name, signals := range map[string][]syscall.Signal{
		"interrupt": {syscall.SIGINT}, "interrupt twice": {syscall.SIGINT, syscall.SIGINT},
		"terminate": {syscall.SIGTERM},
		"hang up":   {syscall.SIGHUP}, "kill": {syscall.SIGKILL},
	} {
		t.Run(name, func(t *testing.T) {
			before := l.lookAtHost(t)
			cmd := l.glovebox(context.Background(), "run", "--json", "--config", l.config, "--trust", "model",
				"--isolation", "process",
				"programs/rs09_deaf.py")
			var out bytes.Buffer
			cmd.Stdout = &out
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if !settle(10*time.Second, func() bool { return len(l.processes(l.uids)) >= 5 }) {
				t.Error("the program did not start")
			}
			for _, s := range signals {
				cmd.Process.Signal(s)
			}
			start := time.Now()
			cmd.Wait()
			if signals[0] != syscall.SIGKILL && (cmd.ProcessState.ExitCode() != 130 || !strings.Contains(out.String(),
				`"status":"canceled"`)) {
				t.Errorf("exit %d, output %.500q", cmd.ProcessState.ExitCode(), out.String())
			}
			if !settle(time.Second-time.Since(start), func() bool { return l.survivors() == nil }) {
				t.Errorf("alive a second after: %q", l.survivors())
			}
			if signals[0] != syscall.SIGKILL && l.groups() != nil {
				t.Errorf("control groups left: %q", l.groups())
			}
			// What a killed command could not clear away, the next one does.
			if o := l.run(t, trial{program: "ct_hello.py"}); o.Stdout != "hello\n" {
				t.Errorf("the next run: %q, %+v", o.Stdout, o.Error)
			}
			for _, w := range l.compare(before, l.lookAtHost(t)) {
				t.Error(w)
			}
			if left := l.groups(); left != nil {
				t.Errorf("control groups left after the next run: %q", left)
			}
			l.noneRunning(t)
		})
	}
}

// TestRS45Churn makes many short runs, half of them ended by time, and looks for anything that grows.
func TestRS45Churn(t *testing.T) {
	l := need(t)
	runs, atOnce := 30, 5
	if long() {
		runs, atOnce = 1000, 50
	}
	before := l.lookAtHost(t)
	free := make(chan struct{}, atOnce)
	for n := range runs {
		free <- struct{}{}
		go func() {
			defer func() { <-free }()
			if n%2 == 0 {
				ended(t, l.run(t, trial{program: "ct_hello.py"}), "exited", 0, "")
			} else {
				ended(t, l.run(t, trial{program: "rs09_deaf.py", flags: []string{"--wall", "300ms"}}), "wall_limit",
					124, "wall")
			}
		}()
	}
	for range atOnce {
		free <- struct{}{}
	}
	if alive := l.survivors(); alive != nil {
		t.Errorf("alive: %q", alive)
	}
	if left := l.groups(); left != nil {
		t.Errorf("control groups left: %q", left)
	}
	after := l.lookAtHost(t)
	for _, w := range l.compare(before, after) {
		t.Error(w)
	}
	if gone := before.free - after.free; gone > int64(runs)*(256<<10)+64<<20 {
		t.Errorf("%d runs took %d bytes of the disk", runs, gone)
	}
}

// noneRunning demands that the trace has an end for every run but the neighbour's.
func (l *laboratory) noneRunning(t *testing.T) {
	t.Helper()
	var runs []struct{ ID, State string }
	out, err := l.glovebox(t.Context(), "trace", "ls", "--json", "--limit", "1000", "--config", l.config).Output()
	if err == nil {
		err = json.Unmarshal(out, &runs)
	}
	if err != nil {
		t.Fatalf("list runs: %v: %.300q", err, out)
	}
	live := 0
	for _, r := range runs {
		if r.State == "running" {
			live++
		}
	}
	if live != 1 || len(runs) < 2 {
		t.Errorf("%d of %d runs are still running, want the neighbour's alone", live, len(runs))
	}
}
