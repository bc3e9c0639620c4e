package process_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"glovebox"
	"glovebox/driver"
	"glovebox/driver/process"
	"glovebox/internal/boot"
	"glovebox/internal/hostside"
	"glovebox/internal/image"
)

// supervisorEnv makes the test binary a supervisor that is there to be killed.
const supervisorEnv = "GLOVEBOX_TEST_SUPERVISOR"

// supervise starts a sandbox whose program and its detached children sleep, says so and waits.
func supervise(cgroup string) {
	host, err := image.Host(image.Config{})
	if err != nil {
		panic(err)
	}
	cfg := process.Config{Init: os.Getenv("GLOVEBOX_TEST_INIT"), Cgroup: cgroup, ScratchDir: os.Getenv("GLOVEBOX_TEST_SCRATCH")}
	if os.Getenv(userCgroupEnv) != "" {
		cfg.RuntimeDir = cfg.ScratchDir // so that nothing of the user is left
	}
	d, err := process.New(cfg)
	if err != nil {
		panic(err)
	}
	spec := driver.Spec{ID: fmt.Sprintf("victim_%d", os.Getpid()), Limits: limits(), Root: host.Root()}
	if os.Getenv(warmEnv) != "" {
		superviseCopies(d, host, spec)
	}
	s, err := d.Start(context.Background(), spec)
	if err != nil {
		panic(err)
	}
	if _, err := s.Exec(context.Background(), driver.Command{
		Argv: []string{"/bin/sh", "-c", "setsid sleep 600 & trap '' TERM HUP INT; sleep 600"},
		Env:  []string{"PATH=/usr/bin:/bin"}, Dir: "/workspace",
	}); err != nil {
		panic(err)
	}
	fmt.Println("running")
	select {}
}

// warmEnv makes the supervisor's sandbox a copy of a template's, with another that waits beside it.
const warmEnv = "GLOVEBOX_TEST_WARM"

func superviseCopies(d *process.Driver, im *image.Image, spec driver.Spec) {
	program, err := im.Interpreter("python")
	if err != nil {
		panic(err)
	}
	hold := driver.Hold{Lang: "python", Memory: 128 * glovebox.MiB, Command: driver.Command{
		Argv: boot.Cold("python", program, "/code/main.py"), Dir: "/workspace", CodeName: "main.py", Env: []string{"PATH=/usr/bin:/bin"}}}
	tm, err := d.Template(context.Background(), spec, hold)
	if err != nil {
		panic(err)
	}
	for n := range 2 {
		spec.ID = fmt.Sprintf("copy_%d_%d", os.Getpid(), n)
		s, err := tm.Fork(context.Background(), spec)
		if err != nil {
			panic(err)
		}
		if n == 1 {
			break
		}
		cmd := hold.Command
		cmd.Code = []byte("import os, time, signal\nsignal.signal(15, signal.SIG_IGN)\nif os.fork() == 0: os.setsid()\ntime.sleep(600)")
		if _, err := s.Exec(context.Background(), cmd); err != nil {
			panic(err)
		}
	}
	fmt.Println("running")
	select {}
}

// supervisor starts one. It dies with the test at the latest.
func supervisor(t *testing.T, cgroup string) (*exec.Cmd, *bufio.Reader) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), supervisorEnv+"="+cgroup,
		"GLOVEBOX_TEST_INIT="+initBinary, "GLOVEBOX_TEST_SCRATCH="+t.TempDir())
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return cmd, bufio.NewReader(out)
}

// members are the processes anywhere below a control group, in every hierarchy.
func members(t *testing.T, cgroup string) (pids []string, groups int) {
	t.Helper()
	tops, err := filepath.Glob("/sys/fs/cgroup/*" + cgroup)
	if err != nil {
		t.Fatal(err)
	}
	for _, top := range append(tops, "/sys/fs/cgroup"+cgroup) {
		filepath.WalkDir(top, func(path string, e fs.DirEntry, err error) error {
			if err == nil && e.IsDir() && path != top {
				groups++
			}
			if err == nil && e.Name() == "cgroup.procs" {
				b, _ := os.ReadFile(path)
				pids = append(pids, strings.Fields(string(b))...)
			}
			return nil
		})
	}
	return pids, groups
}

// nothing waits until no process is left below the group.
func nothing(t *testing.T, cgroup string, within time.Duration) {
	t.Helper()
	deadline := time.Now().Add(within)
	for {
		pids, _ := members(t, cgroup)
		if len(pids) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%v after the supervisor's death %d processes are alive", within, len(pids))
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func removeGroup(t *testing.T, cgroup string) {
	t.Cleanup(func() {
		tops, _ := filepath.Glob("/sys/fs/cgroup/*" + cgroup)
		for _, top := range append(tops, "/sys/fs/cgroup"+cgroup) {
			if err := os.Remove(top); err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("left over: %v", err)
			}
		}
	})
}

// TestSupervisorDies kills supervisors with SIGKILL, once their program runs and at moments of the start: everything dies
// within a second, and the next start removes what is left.
func TestSupervisorDies(t *testing.T) {
	// Init, the shell, and what it starts in the background and waits for.
	t.Run("cold", func(t *testing.T) { supervisorDies(t, 4, 60*time.Millisecond) })
	// A template and its init; a program, its child and their init; a copy that waits and its init.
	t.Run("warm", func(t *testing.T) {
		t.Setenv(warmEnv, "1")
		supervisorDies(t, 7, 160*time.Millisecond)
	})
}

// supervisorDies lets a supervisor have so many processes and kills it, and others at 40 moments until then.
func supervisorDies(t *testing.T, processes int, until time.Duration) {
	needRoot(t)
	cgroup := fmt.Sprintf("/glovebox-lifeline-%d", os.Getpid())
	removeGroup(t, cgroup)
	cmd, out := supervisor(t, cgroup)
	if line, err := out.ReadString('\n'); line != "running\n" {
		t.Fatalf("%q, %v", line, err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		pids, _ := members(t, cgroup)
		if slices.Sort(pids); len(slices.Compact(pids)) == processes {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%q before the kill, want %d processes", pids, processes)
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	nothing(t, cgroup, time.Second)
	for delay := time.Duration(0); delay < until; delay += until / 40 {
		cmd, _ := supervisor(t, cgroup)
		time.Sleep(delay)
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		cmd.Wait()
		nothing(t, cgroup, time.Second)
	}
	host, err := image.Host(image.Config{})
	if err != nil {
		t.Fatal(err)
	}
	d, err := process.New(process.Config{Init: initBinary, Cgroup: cgroup, ScratchDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	s, err := d.Start(t.Context(), driver.Spec{ID: "next", Limits: limits(), Root: host.Root()})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, groups := members(t, cgroup); groups != 0 {
		t.Errorf("%d control groups are left after the next start", groups)
	}
}

// TestSupervisorDiesWhileAllIsFrozen: where the freezer of version 1 is what kills, which is for an ordinary user, a
// supervisor can die between freezing and thawing, and in a frozen group nothing dies.
func TestSupervisorDiesWhileAllIsFrozen(t *testing.T) {
	t.Run("cold", func(t *testing.T) { diesFrozen(t, "victim_") })
	t.Run("warm", func(t *testing.T) {
		t.Setenv(warmEnv, "1")
		diesFrozen(t, "copy_")
	})
}

func diesFrozen(t *testing.T, name string) {
	cgroup := os.Getenv(userCgroupEnv)
	if cgroup == "" {
		t.Skip("TestOrdinaryUser runs it")
	}
	cmd, out := supervisor(t, cgroup)
	if line, err := out.ReadString('\n'); line != "running\n" {
		t.Fatalf("%q, %v", line, err)
	}
	states, err := filepath.Glob("/sys/fs/cgroup/freezer" + cgroup + "/" + name + "*/freezer.state")
	if err != nil || len(states) == 0 {
		t.Fatalf("%q, %v", states, err)
	}
	for _, file := range states {
		if err := os.WriteFile(file, []byte("FROZEN"), 0); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
			state, err := os.ReadFile(file)
			if err != nil || time.Now().After(deadline) {
				t.Fatalf("not frozen: %q, %v", state, err)
			}
			if string(state) == "FROZEN\n" {
				break
			}
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	nothing(t, cgroup, time.Second)
	// The next start would remove the groups; here none follows.
	tops, _ := filepath.Glob("/sys/fs/cgroup/*" + cgroup + "/*_*-t*")
	for _, top := range tops {
		if err := os.Remove(top); err != nil {
			t.Error(err)
		}
	}
}

// TestAnotherAfterKill: what was ended leaves a sandbox in which another program can be started.
func TestAnotherAfterKill(t *testing.T) {
	needRoot(t)
	r := start(t, newDriver(t), limits(), "sleep 100 & sleep 100")
	if err := r.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-r.Exited()
	p, err := r.sandbox.Exec(t.Context(), driver.Command{Argv: []string{"/bin/sh", "-c", "exit 5"}, Env: []string{"PATH=/bin"},
		Dir: "/"})
	if err != nil {
		t.Fatal(err)
	}
	<-p.Exited()
	if e := p.Exit(); e.Code != 5 {
		t.Errorf("it ended with %+v", e)
	}
}

// TestSweepOfATakenToken: a dead sandbox's groups are removed also when the next sandbox has got the very same block of ids.
func TestSweepOfATakenToken(t *testing.T) {
	needRoot(t)
	cgroup := fmt.Sprintf("/glovebox-token-%d", os.Getpid())
	removeGroup(t, cgroup)
	host, err := image.Host(image.Config{})
	if err != nil {
		t.Fatal(err)
	}
	const onlyBlock = 0x70800000
	start := func(id string) driver.Sandbox {
		d, err := process.New(process.Config{Init: initBinary, Cgroup: cgroup, ScratchDir: t.TempDir(), RuntimeDir: t.TempDir(),
			IDs: hostside.IDPool{Start: onlyBlock, Count: 16}})
		if err != nil {
			t.Fatal(err)
		}
		s, err := d.Start(t.Context(), driver.Spec{ID: id, Limits: limits(), Root: host.Root()})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	if err := start("first").Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	dead := fmt.Sprintf("/dead-t%08x", onlyBlock/16)
	tops, _ := filepath.Glob("/sys/fs/cgroup/*" + cgroup)
	for _, top := range tops {
		if err := os.Mkdir(top+dead, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.Remove(top + dead) })
	}
	s := start("next")
	if _, groups := members(t, cgroup); groups == 0 {
		t.Error("the living sandbox's own groups are gone")
	}
	if left, _ := filepath.Glob("/sys/fs/cgroup/*" + cgroup + dead); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}
