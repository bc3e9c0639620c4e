package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"glovebox"
	"glovebox/internal/store"
)

// place is a data_dir with a configuration, an init and control groups of its own, where command lines are killed.
type place struct {
	dir, init, cgroup string
}

func newPlace(t *testing.T) *place {
	t.Helper()
	init := sandboxInit(t)
	p := &place{dir: t.TempDir(), init: init, cgroup: fmt.Sprintf("/glovebox-killed-%d-%s", os.Getpid(), t.Name())}
	text := fmt.Sprintf("data_dir: %s/data\npolicy: {trust: {influenced: process}}\ndrivers: {process: {init: %s, cgroup: %s}}\n", p.dir, init, p.cgroup)
	if err := os.WriteFile(p.dir+"/glovebox.yaml", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.remove)
	return p
}

// remove removes the control groups, also those that a test that failed has left.
func (p *place) remove() {
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		all := slices.Concat(p.groups("/*/*"), p.groups("/*"), p.groups(""))
		if len(all) == 0 {
			return
		}
		for _, dir := range all {
			os.Remove(dir) // again when what is in it is gone
		}
	}
}

// groups are the folders that a pattern below the parent of control groups matches, in every hierarchy.
func (p *place) groups(pattern string) []string {
	v1, _ := filepath.Glob("/sys/fs/cgroup/*" + p.cgroup + pattern)
	v2, _ := filepath.Glob("/sys/fs/cgroup" + p.cgroup + pattern)
	return slices.DeleteFunc(append(v1, v2...), func(path string) bool {
		info, err := os.Stat(path)
		return err == nil && !info.IsDir()
	})
}

// command is a command line that dies with the test at the latest.
func (p *place) command(args ...string) *exec.Cmd {
	cmd := exec.Command("glovebox", append([]string{"--config", p.dir + "/glovebox.yaml"}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// must runs a command line that is to end well, and returns what it prints.
func (p *place) must(t *testing.T, args ...string) []byte {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := p.command(args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %v\n%s", args, err, errs.String())
	}
	return out.Bytes()
}

// processes are those of sandboxes: the init of this place or what is in its control groups.
func (p *place) processes() (pids []string) {
	all, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, exe := range all {
		if target, _ := os.Readlink(exe); target == p.init {
			pids = append(pids, filepath.Dir(exe))
		}
	}
	for _, dir := range append(p.groups("/*"), p.groups("/*/*")...) {
		b, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		pids = append(pids, strings.Fields(string(b))...)
	}
	return pids
}

// nothingLeft checks that nothing is left of any run: processes, control groups, mounts, loop devices, files.
func (p *place) nothingLeft(t *testing.T) {
	t.Helper()
	if pids := p.processes(); len(pids) > 0 {
		t.Errorf("processes are left: %v", pids)
	}
	if groups := p.groups("/*"); len(groups) > 0 {
		t.Errorf("control groups are left: %v", groups)
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil || bytes.Contains(mounts, []byte(p.dir)) {
		t.Errorf("mounts of it are left (%v):\n%s", err, mounts)
	}
	backing, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, file := range backing {
		if b, _ := os.ReadFile(file); strings.HasPrefix(string(b), p.dir) {
			t.Errorf("a loop device is left: %s", b)
		}
	}
	for _, dir := range []string{"runs", "blobs/new", "scratch"} {
		err := filepath.WalkDir(filepath.Join(p.dir, "data", dir), func(path string, e fs.DirEntry, err error) error {
			if err == nil && filepath.Base(path) != filepath.Base(dir) {
				t.Errorf("left over: %s", path)
			}
			return err
		})
		if err != nil && !os.IsNotExist(err) {
			t.Error(err)
		}
	}
}

// oneEndEach checks that each start that was recorded has one end, and returns how many starts and interruptions there are.
func (p *place) oneEndEach(t *testing.T) (starts, interrupted int) {
	t.Helper()
	s, err := store.Open(store.Config{Dir: p.dir + "/data"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var ends, open int
	err = s.View(t.Context(), func(tx *store.Tx) error {
		return tx.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM records WHERE kind = 'run.start'),
			(SELECT count(*) FROM records WHERE kind = 'run.end'), (SELECT count(*) FROM runs WHERE state = 'interrupted'),
			(SELECT count(*) FROM runs WHERE state NOT IN ('ended', 'interrupted'))`).Scan(&starts, &ends, &interrupted, &open)
	})
	if err != nil || starts != ends || open > 0 {
		t.Errorf("%d starts, %d ends, %d runs without an end (%v)", starts, ends, open, err)
	}
	return starts, interrupted
}

// eventually waits for something that happens by itself within a few seconds, also on a slow machine.
func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !so(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not so after 10 s: %s", what)
		}
	}
}

// up is a run that prints "up" and then waits for a line.
type up struct {
	*exec.Cmd
	in  *os.File
	out *bufio.Reader
	id  string
}

func (p *place) start(t *testing.T, name string) up {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	u := up{Cmd: p.command("run", "--stdin", "-", "--input", p.dir+"/glovebox.yaml:x", "--lang", "bash", "-c",
		"echo up; read word; echo $word", "--", name), in: w}
	u.Stdin, u.Stderr = r, os.Stderr
	out, err := u.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := u.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close(); u.Process.Kill(); u.Wait() })
	u.out = bufio.NewReader(out)
	if line, err := u.out.ReadString('\n'); line != "up\n" {
		t.Fatalf("%q, %v", line, err)
	}
	u.id = p.find(t, name).ID
	return u
}

// find finds the record of the run with an argument.
func (p *place) find(t *testing.T, arg string) glovebox.Record {
	t.Helper()
	var all []glovebox.Record
	if err := json.Unmarshal(p.must(t, "trace", "ls", "--json", "--limit", "1000"), &all); err != nil {
		t.Fatal(err)
	}
	for _, r := range all {
		if len(r.Args) == 1 && r.Args[0] == arg {
			return r
		}
	}
	t.Fatalf("no run has the argument %s", arg)
	return glovebox.Record{}
}

// TestOneOfTwoIsKilled: of two live command lines that share a data_dir one is killed. The next start closes its run and
// removes what it left; the other is untouched, to its end.
func TestOneOfTwoIsKilled(t *testing.T) {
	p := newPlace(t)
	one, other := p.start(t, "one"), p.start(t, "other")
	if len(p.groups("/"+one.id+"*")) == 0 {
		t.Fatal("the run has no control groups")
	}
	p.must(t, "run", "-c", "print(1)") // nothing is recovered while both live
	for _, name := range []string{"one", "other"} {
		if rec := p.find(t, name); rec.State != "running" {
			t.Fatalf("%s is %s while it lives", name, rec.State)
		}
	}
	if err := one.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	one.Wait()
	eventually(t, "its processes are dead", func() bool {
		for _, dir := range append(p.groups("/"+one.id+"*"), p.groups("/"+one.id+"*/*")...) {
			if b, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs")); len(b) > 0 {
				return false
			}
		}
		return true
	})
	if out := p.must(t, "run", "-c", "print(2)"); string(out) != "2\n" {
		t.Errorf("the next start prints %q", out)
	}
	if rec := p.find(t, "one"); rec.State != "interrupted" || rec.Error == nil || rec.Error.Code != glovebox.CodeInternal ||
		!strings.HasPrefix(rec.Error.Message, "interrupted") {
		t.Errorf("the killed one is %s with the error %+v", rec.State, rec.Error)
	}
	if groups := p.groups("/" + one.id + "*"); len(groups) > 0 {
		t.Errorf("of the killed one are left %v", groups)
	}
	if rec := p.find(t, "other"); rec.State != "running" {
		t.Errorf("the living one is %s", rec.State)
	}
	folders, err := os.ReadDir(p.dir + "/data/runs")
	if err != nil || len(folders) != 1 || folders[0].Name() != other.id {
		t.Errorf("folders of runs: %v (%v), want that of the living one", folders, err)
	}
	if _, err := other.in.WriteString("well\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := other.out.ReadString('\n'); line != "well\n" {
		t.Errorf("the living one prints %q (%v)", line, err)
	}
	if err := other.Wait(); err != nil {
		t.Errorf("the living one: %v", err)
	}
	if rec := p.find(t, "other"); rec.State != "ended" || rec.Result == nil || !rec.Result.OK {
		t.Errorf("the living one is %s in the end", rec.State)
	}
	if starts, interrupted := p.oneEndEach(t); starts != 4 || interrupted != 1 {
		t.Errorf("%d starts, %d interrupted", starts, interrupted)
	}
	p.nothingLeft(t)
}

// TestKilledAtAnyMoment kills command lines at random moments of fast runs of several kinds. The next start brings each to one
// end and leaves nothing of any.
func TestKilledAtAnyMoment(t *testing.T) {
	p := newPlace(t)
	if err := os.WriteFile(p.dir+"/input", bytes.Repeat([]byte("x"), 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	kinds := [][]string{
		{"exec", "--", "true"},
		{"run", "--lang", "bash", "--input", p.dir + "/input", "-c", "setsid sleep 60 & cat /inputs/input | tr x '\\n' | head -c 300000; sleep 0.01"},
		{"run", "--lang", "bash", "--output", "", "-c", "head -c 3000000 /dev/zero > /outputs/big; head -c 3000000 /dev/urandom > /outputs/other"},
		{"run", "--lang", "bash", "--memory", "64MiB", "--disk", "64MiB", "-c", "head -c 1000000 /dev/zero > file"}, // on disk
	}
	times := 40
	if os.Getenv("GLOVEBOX_TEST_LONG") == "1" {
		times = 200
	}
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	command := func(kind, n int) *exec.Cmd {
		args := append([]string(nil), kinds[kind]...)
		for i := range args {
			if i > 0 && args[i-1] == "--output" {
				args[i] = fmt.Sprintf("%s/out-%d", p.dir, n)
			}
		}
		return p.command(args...)
	}
	took := make([]time.Duration, len(kinds))
	for kind := range kinds {
		begun := time.Now()
		if out, err := command(kind, -1-kind).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%.1000s", kinds[kind], err, out)
		}
		took[kind] = time.Since(begun)
	}
	killed := 0
	for n := range times {
		kind := n % len(kinds)
		cmd := command(kind, n)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(random.Int64N(int64(took[kind]))))
		if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if cmd.Wait() != nil {
			killed++
		}
	}
	eventually(t, "all processes are dead", func() bool { return len(p.processes()) == 0 })
	p.must(t, "run", "-c", "print(1)")
	starts, interrupted := p.oneEndEach(t)
	p.nothingLeft(t)
	t.Logf("%d of %d were killed before they ended, %d of %d starts were interrupted", killed, times, interrupted, starts)
	if killed < times/2 || interrupted < times/10 {
		t.Errorf("only %d of %d were killed before they ended, and %d runs interrupted: the moments are not those of a run", killed,
			times, interrupted)
	}
}
