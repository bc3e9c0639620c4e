package engine_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"glovebox"
	"glovebox/driver"
	"glovebox/driver/process"
	"glovebox/engine"
)

// crowdEnv makes the test binary one of several processes that run programs: "init cgroup folder".
const crowdEnv = "GLOVEBOX_TEST_CROWD"

const (
	crowdBudget = 256 * glovebox.MiB
	crowdLimit  = 80 * glovebox.MiB // so that three fit
	crowdRounds = 4
)

// crowd runs programs from five callers at a time and prints how long each run waited.
func crowd(init, cgroup, dir string) error {
	d, err := process.New(process.Config{Init: init, Cgroup: cgroup, ScratchDir: filepath.Join(dir, "scratch")})
	if err != nil {
		return err
	}
	e, err := engine.New(engine.Config{DataDir: filepath.Join(dir, "data"), Drivers: []driver.Driver{d}, Policy: lowRungs, MemoryBudget: crowdBudget,
		RuntimeDir: filepath.Join(dir, "locks")})
	if err != nil {
		return err
	}
	var all sync.WaitGroup
	failed := make([]error, 5)
	for i := range failed {
		all.Go(func() {
			for range crowdRounds {
				res, err := e.Run(context.Background(), tester, glovebox.Request{Lang: "bash", Code: "sleep 0.05",
					Limits: glovebox.Limits{Memory: crowdLimit, Disk: glovebox.MiB}}, nil)
				if err != nil || !res.OK {
					failed[i] = fmt.Errorf("result %+v, error %w", res, err)
					return
				}
				fmt.Println("queued", *res.Usage.QueueMS)
			}
		})
	}
	all.Wait()
	return errors.Join(append(failed, e.Close())...)
}

// inUse is the sum of the memory limits of the groups below a parent that had a process at one moment: those that had one when
// they were looked at first and still have it when all have been looked at.
func inUse(cgroup string) (sum int64, groups int) {
	type group struct {
		dir   string
		limit int64
	}
	var live []group
	populated := func(dir string) bool {
		b, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		return len(b) > 0
	}
	for pattern, file := range map[string]string{
		"/sys/fs/cgroup/memory" + cgroup + "/*": "memory.limit_in_bytes", "/sys/fs/cgroup" + cgroup + "/*/run": "memory.max",
	} {
		dirs, _ := filepath.Glob(pattern)
		for _, dir := range dirs {
			b, err := os.ReadFile(filepath.Join(dir, file))
			limit, parsed := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
			if err == nil && parsed == nil && populated(dir) {
				live = append(live, group{dir, limit})
			}
		}
	}
	for _, g := range live {
		if populated(g.dir) {
			sum, groups = sum+g.limit, groups+1
		}
	}
	return sum, groups
}

func removeGroups(t *testing.T, cgroup string) {
	tops, _ := filepath.Glob("/sys/fs/cgroup/*" + cgroup)
	for _, top := range append(tops, "/sys/fs/cgroup"+cgroup) {
		if err := os.Remove(top); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Errorf("left over: %v", err)
		}
	}
}

// TestCrowd: twenty callers of four processes share a budget for three runs. The kernel's own groups never have more at once,
// and everybody is served.
func TestCrowd(t *testing.T) {
	realEngine(t)
	init, err := buildInit()
	if err != nil {
		t.Fatal(err)
	}
	dir, cgroup := t.TempDir(), fmt.Sprintf("/glovebox-crowd-%d", os.Getpid())
	t.Cleanup(func() { removeGroups(t, cgroup) })
	var all sync.WaitGroup
	var mu sync.Mutex
	served, waited := 0, 0
	for range 4 {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), crowdEnv+"="+init+" "+cgroup+" "+dir)
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			for lines := bufio.NewScanner(out); lines.Scan(); {
				ms, err := strconv.Atoi(strings.TrimPrefix(lines.Text(), "queued "))
				mu.Lock()
				if served++; ms > 20 {
					waited++
				}
				mu.Unlock()
				if err != nil {
					t.Errorf("it says %q", lines.Text())
				}
			}
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
	ended := make(chan struct{})
	go func() { all.Wait(); close(ended) }()
	most, samples, beyond := 0, 0, int64(0)
	for over := false; !over; {
		select {
		case <-ended:
			over = true
		case <-time.After(time.Millisecond):
		}
		sum, groups := inUse(cgroup)
		samples, most = samples+1, max(most, groups)
		beyond = max(beyond, sum-int64(crowdBudget))
	}
	if beyond > 0 {
		t.Errorf("%d runs had %v more than the budget of %v at once", most, glovebox.Size(beyond), crowdBudget)
	}
	if served != 4*5*crowdRounds || waited < served/2 {
		t.Errorf("%d runs were served, %d of them after a wait", served, waited)
	}
	if most < 2 || most > 3 {
		t.Errorf("at most %d runs were seen at once in %d samples, want 3, or 2 on a slow machine", most, samples)
	}
	t.Logf("%d samples, at most %d at once, %d of %d waited", samples, most, waited, served)
}
