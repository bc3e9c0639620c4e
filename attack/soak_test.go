package attack_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"glovebox"
	"glovebox/driver"
	"glovebox/driver/process"
	"glovebox/engine"
)

// owner may ask for whatever the default policy grants.
var owner = glovebox.Principal{Tenant: "local", Name: "attack", Owner: true}

// soak is an engine in this very process, for tests that repeat a run more often than a command could be started. Its place,
// control groups and ids are its own.
type soak struct {
	*laboratory
	engine *engine.Engine
	locks  string // the file whose locks are the ids in use
}

// newSoak makes one, and demands at the end of the test that nothing of it is left.
func newSoak(t *testing.T) *soak {
	t.Helper()
	return newSoakWith(t, engine.Pool{}, func(d *process.Driver) driver.Driver { return d })
}

// newSoakWith makes one that has sandboxes ready; as is what its engine uses of a driver.
func newSoakWith(t *testing.T, pool engine.Pool, as func(*process.Driver) driver.Driver) *soak {
	t.Helper()
	l := need(t)
	dir, err := os.MkdirTemp(l.dir, "soak-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	s := &soak{laboratory: &laboratory{dir: dir, data: filepath.Join(dir, "data"), cgroup: l.cgroup + "-soak",
		uids: idRange{l.uids.start + 0x1000000, 4096}}, locks: filepath.Join(dir, "run", "ids.lock")}
	if err := os.Mkdir(s.data, 0o700); err != nil {
		t.Fatal(err)
	}
	d, err := process.New(process.Config{Init: filepath.Join(l.bin, "glovebox-init"), Cgroup: s.cgroup,
		IDs: process.IDPool{Start: s.uids.start, Count: s.uids.count}, RuntimeDir: filepath.Dir(s.locks),
		ScratchDir: filepath.Join(dir, "scratch")})
	if err != nil {
		t.Fatal(err)
	}
	before := s.look(t) // nothing is there
	s.engine, err = engine.New(engine.Config{DataDir: s.data, Drivers: []driver.Driver{as(d)}, Pool: pool, RuntimeDir: filepath.Join(dir, "locks")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.engine.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		s.nothingLeft(t, before)
		for _, dir := range groupDirs(s.cgroup) {
			if err := removeGroup(dir); err != nil {
				t.Error(err)
			}
		}
		os.RemoveAll(dir)
	})
	return s
}

// run is safe for concurrent use.
func (s *soak) run(ctx context.Context, req glovebox.Request, sink glovebox.Sink) (*glovebox.Result, error) {
	req.Trust, req.Isolation = glovebox.TrustModel, glovebox.IsolationProcess
	return s.engine.Run(ctx, owner, req, sink)
}

// remains are the things that runs could leave.
type remains struct {
	host
	groups, alive map[string]bool
	ids           int // blocks of user ids in use
	scratch       map[string]bool
	descriptors   int // of this process
}

func (s *soak) look(t *testing.T) remains {
	t.Helper()
	set := func(all []string) map[string]bool {
		m := map[string]bool{}
		for _, a := range all {
			m[a] = true
		}
		return m
	}
	scratch, _ := filepath.Glob(filepath.Join(s.dir, "scratch", "*"))
	descriptors, _ := os.ReadDir("/proc/self/fd")
	return remains{host: s.lookAtHost(t), groups: set(s.groups()), alive: set(s.survivors()), ids: s.idsInUse(),
		scratch: set(scratch), descriptors: len(descriptors)}
}

// idsInUse counts the locks on the file of id blocks, as the kernel lists them.
func (s *soak) idsInUse() int {
	var st unix.Stat_t
	if unix.Stat(s.locks, &st) != nil {
		return 0
	}
	suffix := fmt.Sprintf("%02x:%02x:%d ", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	n := 0
	for line := range strings.Lines(read("/proc/locks")) {
		if strings.Contains(line, suffix) {
			n++
		}
	}
	return n
}

// nothingLeft demands that what was there before is all that is there. Removal goes on beside a caller whose run has ended,
// and others on the machine have mounts of their own, so it may take a while.
func (s *soak) nothingLeft(t *testing.T, before remains) {
	t.Helper()
	var wrong []string
	settle(20*time.Second, func() bool {
		now := s.look(t)
		wrong = s.compare(before.host, now.host)
		for what, pair := range map[string][2]map[string]bool{"control group": {before.groups, now.groups},
			"process": {before.alive, now.alive}, "backing file": {before.scratch, now.scratch}} {
			for _, name := range added(pair[0], pair[1]) {
				wrong = append(wrong, what+" left: "+name)
			}
		}
		if now.ids > before.ids {
			wrong = append(wrong, fmt.Sprintf("%d blocks of ids in use, before %d", now.ids, before.ids))
		}
		// The engine keeps some files of its record open, and the runtime some for itself.
		if now.descriptors > before.descriptors+20 {
			wrong = append(wrong, fmt.Sprintf("%d descriptors open, before %d", now.descriptors, before.descriptors))
		}
		return wrong == nil
	})
	for _, w := range wrong {
		t.Error(w)
	}
}

// fullLoad keeps every processor busy until the test, or this process, ends.
func fullLoad(t *testing.T) {
	t.Helper()
	for range runtime.NumCPU() {
		cmd := exec.Command("sh", "-c", "while [ -d /proc/$PPID ]; do n=0; while [ $n -lt 20000 ]; do n=$((n+1)); done; done")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	}
}

// told calls a function at the first output of a run.
type told struct{ first func() }

func (s *told) Event(e glovebox.Event) {
	if e.Kind == "stdout" && s.first != nil {
		s.first()
		s.first = nil
	}
}

// bystander is a process that nobody but its test may end.
type bystander struct{ cmd *exec.Cmd }

func newBystander(t *testing.T) bystander {
	cmd := exec.Command("sleep", "1200")
	if err := cmd.Start(); err != nil {
		t.Error(err)
	}
	return bystander{cmd}
}

// dismiss ends it and demands that nobody had before.
func (b bystander) dismiss(t *testing.T) {
	t.Helper()
	if b.cmd.Process == nil {
		return
	}
	b.cmd.Process.Signal(syscall.SIGTERM)
	b.cmd.Wait()
	if s := b.cmd.ProcessState.Sys().(syscall.WaitStatus); s.Signal() != syscall.SIGTERM {
		t.Errorf("bystander %d was hit: %v", b.cmd.Process.Pid, b.cmd.ProcessState)
	}
}
