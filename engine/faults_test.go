package engine

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"glovebox/driver"
	"glovebox/internal/livefolder"
	"glovebox/internal/store"
)

// The seeded faults: the real engine, trace, store and admission over a driver in memory, a clock that jumps, and a disk that
// fails, in time that runs by itself. What fails when, and what runs, is decided by a number, the seed. Whatever fails:
//
//   - every start that was recorded has one end, at the latest when the next engine has opened the data_dir;
//   - what a caller was told is what is recorded, and a success is a program's own;
//   - every sandbox is closed, all memory is given back, and no goroutine, descriptor or file is left;
//   - what was given to the program is in no log, error or record.

const (
	// seedEnv runs one seed.
	seedEnv = "GLOVEBOX_TEST_SEED"
	// shardEnv makes the test binary run its share of the seeds: "first step last seconds folder".
	shardEnv = "GLOVEBOX_TEST_SEEDS"

	fewSeeds, manySeeds     = 1500, 10_000
	fewSeconds, manySeconds = 15, 600
)

// TestSeededFaults runs the seeds in processes of their own, one for each processor, since some of the faults are those of a
// process.
func TestSeededFaults(t *testing.T) {
	if shard := os.Getenv(shardEnv); shard != "" {
		runShard(t, shard)
		return
	}
	begun := time.Now()
	first, last, seconds, shards := 1, fewSeeds, fewSeconds, runtime.GOMAXPROCS(0)
	if os.Getenv("GLOVEBOX_TEST_LONG") == "1" {
		last, seconds = manySeeds, manySeconds
	}
	if one, err := strconv.Atoi(os.Getenv(seedEnv)); err == nil {
		first, last, shards = one, one, 1
	}
	var all sync.WaitGroup
	var done atomic.Int64
	for i := range shards {
		dir := newDisk(t)
		all.Go(func() { done.Add(superviseShard(t, dir, first+i, shards, last, seconds)) })
	}
	all.Wait()
	t.Logf("%d seeds of %d in %v", done.Load(), last-first+1, time.Since(begun))
	if done.Load() < int64(min(shards, last-first+1)) {
		t.Error("a share ran nothing")
	}
}

// superviseShard runs a share of the seeds and says which seed it failed at.
func superviseShard(t *testing.T, dir string, first, step, last, seconds int) (done int64) {
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestSeededFaults$", "-test.v=false")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %d %d %d %s", shardEnv, first, step, last, seconds, dir))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var said, errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Error(err)
		return 0
	}
	seed := first
	for lines, failed := bufio.NewReader(out), error(nil); failed == nil; {
		var line string
		line, failed = lines.ReadString('\n')
		if n, ok := strings.CutPrefix(line, "seed "); ok {
			seed, _ = strconv.Atoi(strings.TrimSpace(n))
			done++
		} else {
			said.WriteString(line)
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("seed %d: %v; to run it alone: %s=%d go test ./engine -run SeededFaults\n%s%s", seed, err, seedEnv, seed, said.String(),
			errs.String())
	}
	return done
}

// runShard runs one share of the seeds, up to the first that fails.
func runShard(t *testing.T, shard string) {
	var first, step, last, seconds int
	var disk smallDisk
	if _, err := fmt.Sscan(shard, &first, &step, &last, &seconds, &disk.dir); err != nil {
		t.Fatal(err)
	}
	disk.own, disk.fill = os.Geteuid() == 0, filepath.Join(disk.dir, "fill")
	signal.Ignore(syscall.SIGXFSZ) // so that what is written beyond a limit fails, as on a full disk
	template := filepath.Join(disk.dir, "template")
	if s, err := store.Open(store.Config{Dir: template}); err != nil || s.Close() != nil {
		t.Fatal(err)
	}
	warm(t, &disk)
	for deadline := time.Now().Add(time.Duration(seconds) * time.Second); first <= last && time.Now().Before(deadline); first += step {
		fmt.Println("seed", first)
		before := descriptors(t)
		dir := filepath.Join(disk.dir, fmt.Sprint("seed-", first))
		if err := errors.Join(os.CopyFS(dir, os.DirFS(template)), os.Chmod(dir, 0o700)); err != nil {
			t.Fatal(err)
		}
		hangs := time.AfterFunc(time.Minute, func() { panic("the seed hangs") })
		synctest.Test(t, func(t *testing.T) { newWorld(t, uint64(first), dir, &disk).run() })
		hangs.Stop()
		if after := descriptors(t); after != before {
			t.Errorf("%d descriptors were open before and %d after", before, after)
		}
		if t.Failed() {
			t.Fatalf("seed %d failed", first)
		}
		if err := livefolder.RemoveTree(dir); err != nil {
			t.Fatal(err)
		}
	}
}

// warm runs what opens descriptors once for all.
func warm(t *testing.T, disk *smallDisk) {
	synctest.Test(t, func(t *testing.T) {
		e, err := New(Config{DataDir: filepath.Join(disk.dir, "warm"), Drivers: []driver.Driver{}, Policy: lowRungs, Image: fakeImage{},
			RuntimeDir: filepath.Join(disk.dir, "locks")})
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

func descriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// smallDisk is where the data_dirs of a share are: in memory, so that they are fast, and as root a file system of its own that
// can be full.
type smallDisk struct {
	dir  string
	own  bool
	fill string
}

func newDisk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if os.Geteuid() != 0 {
		t.Log("needs root for a disk that is full: files may only have a size instead")
		return dir
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=6m,mode=700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}
