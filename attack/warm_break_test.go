package attack_test

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"glovebox"
)

// members are the processes in the control groups of a soak's runs, its spares and templates included.
func (s *soak) members() []int {
	seen := map[int]bool{}
	var all []int
	for _, dir := range groupDirs(s.cgroup) {
		filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.Name() != "cgroup.procs" {
				return nil
			}
			for _, word := range strings.Fields(read(path)) {
				if pid, err := strconv.Atoi(word); err == nil && pid > 1 && !seen[pid] {
					seen[pid] = true
					all = append(all, pid)
				}
			}
			return nil
		})
	}
	return all
}

// hit sends a signal to one of them, if it still is one.
func (s *soak) hit(pid int, sig unix.Signal) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if strings.Contains(read(fmt.Sprintf("/proc/%d/cgroup", pid)), s.cgroup) {
		_ = unix.PidfdSendSignal(fd, sig, nil, 0)
	}
}

// victim chooses one of the members, a template now and then; 0: there is none.
func (s *soak) victim() int {
	all := s.members()
	if len(all) == 0 {
		return 0
	}
	if rand.IntN(4) == 0 {
		for _, pid := range all {
			if strings.Contains(read(fmt.Sprintf("/proc/%d/cmdline", pid)), "template(3") {
				return pid
			}
		}
	}
	return all[rand.IntN(len(all))]
}

// TestLT11WarmKilled: whoever kills templates, interpreters that wait, inits and programs at random ends those alone. Each run
// tells its own end, and nothing is left (newSoak looks).
func TestLT11WarmKilled(t *testing.T) {
	w := newWarmSoak(t, true)
	w.ready()
	length := 10 * time.Second
	if long() {
		length = 2 * time.Minute
	}
	deadline := time.Now().Add(length)
	var all sync.WaitGroup
	var mu sync.Mutex
	ends, starts := map[string]int{}, map[string]int{}
	for worker := range 3 {
		all.Go(func() {
			for n := 0; time.Now().Before(deadline); n++ {
				word := fmt.Sprintf("word-%d-%d", worker, n)
				req := glovebox.Request{Code: "import sys, time\ntime.sleep(0.02)\nprint(sys.argv[1])", Args: []string{word}}
				if n%4 == 3 {
					req.Lang, req.Code = "bash", `sleep 0.02; echo "$1"`
				}
				begun := time.Now()
				res, err := w.run(t.Context(), req, nil)
				took := time.Since(begun)
				mu.Lock()
				var known *glovebox.Error
				switch {
				case err == nil && res.OK && string(res.Stdout) == word+"\n":
					ends["ok"]++
				case err == nil && res.Status == glovebox.StatusSignaled && res.Signal != nil && *res.Signal == "SIGKILL":
					ends["killed"]++
				case errors.As(err, &known) && known.Code == glovebox.CodeInternal:
					ends["internal"]++
				default:
					t.Errorf("%+v, %v", res, err)
				}
				if err == nil {
					starts[res.Start]++
				}
				if took > 10*time.Second {
					t.Errorf("it took %v: %+v, %v", took, res, err)
				}
				mu.Unlock()
			}
		})
	}
	hits := 0
	for time.Now().Before(deadline) {
		time.Sleep(time.Duration(rand.IntN(160)) * time.Millisecond)
		pid := w.victim()
		if pid == 0 {
			continue
		}
		w.hit(pid, syscall.SIGKILL)
		hits++
	}
	all.Wait()
	t.Logf("%d hits, ends %v, starts %v, %+v", hits, ends, starts, w.engine.PoolStats())
	if hits < 30 || ends["ok"] < 20 || ends["killed"]+ends["internal"] == 0 {
		t.Errorf("%d hits, ends %v", hits, ends)
	}
	back := !long() || settle(2*time.Minute, func() bool { // what fails is not tried again at once
		res, err := w.run(t.Context(), glovebox.Request{Code: "print(1)"}, nil)
		return err == nil && res.OK && res.Start == "fork"
	})
	if res, err := w.run(t.Context(), glovebox.Request{Code: "print(1)"}, nil); err != nil || !res.OK || !back {
		t.Errorf("%+v, %v, forks again: %v", res, err, back)
	}
}
