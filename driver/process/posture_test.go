package process_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"glovebox"
	"glovebox/driver"
	"glovebox/internal/image"
)

var update = flag.Bool("update", false, "rewrite golden files")

func limits() glovebox.Limits {
	return glovebox.Limits{
		Wall: time.Minute, CPU: time.Minute, CPUs: 1, Memory: 256 * glovebox.MiB, Disk: 16 * glovebox.MiB, Files: 2000,
		OpenFiles: 256, Processes: 64, Egress: glovebox.MiB, Output: 16 * glovebox.MiB, View: 16 * glovebox.KiB,
	}
}

// running is a program that runs in a sandbox until the test ends.
type running struct {
	driver.Process
	sandbox driver.Sandbox
}

func start(t *testing.T, d driver.Driver, l glovebox.Limits, script string) *running {
	t.Helper()
	host, err := image.Host(image.Config{})
	if err != nil {
		t.Fatal(err)
	}
	id := fmt.Sprintf("test_%d_%d", os.Getpid(), time.Now().UnixNano())
	s, err := d.Start(t.Context(), driver.Spec{ID: id, Limits: l, Root: host.Root()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	p, err := s.Exec(t.Context(), driver.Command{
		Argv: []string{"/bin/sh", "-c", script}, Env: []string{"PATH=/usr/bin:/bin"}, Dir: "/workspace",
	})
	if err != nil {
		t.Fatal(err)
	}
	return &running{p, s}
}

// output waits for the end and returns what was printed.
func (r *running) output(t *testing.T) string {
	t.Helper()
	var out, errs bytes.Buffer
	done := make(chan error, 1)
	go func() { _, err := io.Copy(&errs, r.Stderr()); done <- err }()
	if _, err := io.Copy(&out, r.Stdout()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	<-r.Exited()
	return out.String() + errs.String()
}

// golden compares text with a file of testdata, and rewrites it with -update.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(onThisMachine(t, string(want)), got); d != "" {
		t.Errorf("%s (-want +got):\n%s", file, d)
	}
}

// onThisMachine is what the golden posture, of a machine of version 1, is on this one. Version 2 counts what lies in sockets as
// memory.
func onThisMachine(t *testing.T, golden string) string {
	t.Helper()
	if _, err := os.Stat("/sys/fs/cgroup/memory"); err != nil {
		golden = strings.Replace(golden, "cgroup_sockets=67108864\n", "", 1)
	}
	return golden
}

var volatile = regexp.MustCompile(`outside \d+|version \d+|cpuset=[0-9,-]+`)

func TestPosture(t *testing.T) {
	needRoot(t)
	goldenPosture(t, "posture.golden", start(t, newDriver(t), limits(), "true").Posture())
}

func goldenPosture(t *testing.T, name string, posture glovebox.Posture) {
	t.Helper()
	var lines []string
	for _, key := range slices.Sorted(maps.Keys(posture)) {
		lines = append(lines, key+"="+posture[key])
	}
	golden(t, name, volatile.ReplaceAllStringFunc(strings.Join(lines, "\n")+"\n", func(s string) string {
		return regexp.MustCompile(`[0-9][0-9,-]*`).ReplaceAllString(s, "N")
	}))
}

// TestKeptToItsCPUs has a program of one CPU try to run on all of them, whatever keeps it from that.
func TestKeptToItsCPUs(t *testing.T) {
	const script = `python3 -I -c '
import os
try: os.sched_setaffinity(0, range(os.cpu_count()))
except PermissionError: pass
print(len(os.sched_getaffinity(0)), os.cpu_count() > 1)'`
	r := start(t, newDriver(t), limits(), script)
	if got := r.output(t); got != "1 True\n" {
		t.Errorf("on %q, with CPUs %q", got, r.Posture()["cgroup_cpuset"])
	}
}

// TestPostureOfEveryThread reads, from inside, the state of every thread that a program can start.
func TestPostureOfEveryThread(t *testing.T) {
	needRoot(t)
	const script = `python3 -I -c '
import threading, subprocess, os
hold = threading.Event()
for _ in range(3): threading.Thread(target=hold.wait).start()
subprocess.run(["sh", "-c", "cat /proc/self/status"])
for task in sorted(os.listdir("/proc/self/task")):
    print(open(f"/proc/self/task/{task}/status").read())
hold.set()'`
	out := start(t, newDriver(t), limits(), script).output(t)
	for field, want := range map[string]string{
		"Seccomp": "2", "NoNewPrivs": "1", "CapInh": "0000000000000000", "CapPrm": "0000000000000000",
		"CapEff": "0000000000000000", "CapBnd": "0000000000000000", "CapAmb": "0000000000000000",
		"Uid": "1000\t1000\t1000\t1000", "Gid": "1000\t1000\t1000\t1000",
	} {
		found := regexp.MustCompile(`(?m)^`+field+`:\t(.*)$`).FindAllStringSubmatch(out, -1)
		if len(found) != 5 {
			t.Fatalf("%s of %d threads and processes, want 5:\n%s", field, len(found), out)
		}
		for _, f := range found {
			if f[1] != want {
				t.Errorf("%s is %q, want %q", field, f[1], want)
			}
		}
	}
}

// TestWorkspaceOnDisk runs with a workspace too large for the memory limit and fills it.
func TestWorkspaceOnDisk(t *testing.T) {
	needRoot(t)
	l := limits()
	l.Disk, l.Memory, l.Files = 96*glovebox.MiB, 128*glovebox.MiB, 1000
	d := newDriver(t)
	r := start(t, d, l, `
		exec 9>unlinked; rm unlinked
		dd if=/dev/zero bs=1M count=40 >&9 2>/dev/null || echo "unlinked failed"
		dd if=/dev/zero of=rest bs=1M 2>&1 | grep -c "No space left"
		rm rest; exec 9>&-
		i=0; while true > n$i; do i=$((i+1)); done 2>/dev/null; echo files $i`)
	if got := r.Posture()["workspace"]; got != "disk (ext4)" {
		t.Errorf("workspace is %q", got)
	}
	out := r.output(t)
	var full, files int
	if n, err := fmt.Sscanf(out, "%d\nfiles %d\n", &full, &files); n != 2 || full != 1 {
		t.Fatalf("%v: %q", err, out)
	}
	if files != 1000 {
		t.Errorf("%d files could be made, want 1000", files)
	}
}
