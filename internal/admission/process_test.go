package admission

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"glovebox"
	"glovebox/internal/lockfile"
)

// roleEnv makes the test binary a process beside a test: "role folder".
const roleEnv = "GLOVEBOX_ADMISSION_ROLE"

const shared = 100 * mib // the budget of all processes of a test

func TestMain(m *testing.M) {
	role, dir, ok := strings.Cut(os.Getenv(roleEnv), " ")
	if !ok {
		os.Exit(m.Run())
	}
	if err := play(role, dir); err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// play is a process beside a test. "hold" takes 60 MiB, says so and keeps it; "wait" wants 60 MiB, says so when it has it and
// keeps it; "many" has five runs of 40 MiB wait for each other and prints when each got its memory, in ns of the machine's clock.
func play(role, dir string) error {
	a, err := New(Config{Dir: dir, Size: shared})
	if err != nil {
		return err
	}
	if role == "many" {
		return many(a)
	}
	if _, err := a.Acquire(context.Background(), 60*mib); err != nil {
		return err
	}
	fmt.Println("has")
	_, err = bufio.NewReader(os.Stdin).ReadString('\n')
	return err
}

func many(a *Admission) error {
	var all sync.WaitGroup
	failed := make([]error, 5)
	for i := range failed {
		all.Go(func() {
			for range 10 {
				s, err := a.Acquire(context.Background(), 40*mib)
				if err != nil {
					failed[i] = err
					return
				}
				now, _ := clock()
				fmt.Printf("got %d %d\n", os.Getpid()*10+i, now)
				time.Sleep(3 * time.Millisecond)
				if failed[i] = s.Release(); failed[i] != nil {
					return
				}
			}
		})
	}
	all.Wait()
	for _, err := range failed {
		if err != nil {
			return err
		}
	}
	return nil
}

// beside starts a process that ends with the test at the latest.
func beside(t *testing.T, role, dir string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleEnv+"="+role+" "+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); cmd.Process.Kill(); cmd.Wait() })
	return cmd, bufio.NewScanner(out)
}

// waiting waits until so many tickets are held.
func waiting(t *testing.T, dir string, want int64) {
	t.Helper()
	f, err := lockfile.Open(dir, lockName)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		n := int64(0)
		if err := f.Each(lockfile.Range{Start: queue, Length: tickets}, func(r lockfile.Range) bool { n += r.Length; return true }); err != nil {
			t.Fatal(err)
		}
		if n == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d wait, want %d", n, want)
		}
	}
}

// TestKilled: what a process held and its place in the queue are free when it is killed.
func TestKilled(t *testing.T) {
	dir := t.TempDir()
	a := newAdmission(t, dir, shared)
	holder, says := beside(t, "hold", dir)
	if !says.Scan() || says.Text() != "has" {
		t.Fatalf("it says %q", says.Text())
	}
	taken(t, a, 60*mib)
	first, _ := beside(t, "wait", dir)
	waiting(t, dir, 1)
	_, hears := beside(t, "wait", dir)
	waiting(t, dir, 2)
	if s := fits(t, a, mib); s != nil {
		t.Error("one that came later was served first")
	}
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	waiting(t, dir, 1)
	taken(t, a, 60*mib)
	if err := holder.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if !hears.Scan() || hears.Text() != "has" {
		t.Fatalf("the last one says %q", hears.Text())
	}
	taken(t, a, 60*mib)
	nobodyWaits(t, dir)
}

// TestStopped: a process that was stopped while it waits holds up nobody for long, and goes on when it is let.
func TestStopped(t *testing.T) {
	dir := t.TempDir()
	a := newAdmission(t, dir, shared)
	holder := acquire(t, a, 60*mib)
	stopped, says := beside(t, "wait", dir)
	waiting(t, dir, 1)
	if err := stopped.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	later := acquire(t, a, 40*mib)
	if took := time.Since(begun); took < old/2 || took > old+20*time.Second {
		t.Errorf("it was passed over after %v", took)
	}
	if err := holder.Release(); err != nil {
		t.Fatal(err)
	}
	if err := stopped.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if !says.Scan() || says.Text() != "has" {
		t.Errorf("it says %q", says.Text())
	}
	taken(t, a, 100*mib)
	if err := later.Release(); err != nil {
		t.Error(err)
	}
}

// TestFairness: twenty callers of four processes, of whom two fit at a time, come again and again. Nobody is left behind, and
// there are never three.
func TestFairness(t *testing.T) {
	dir := t.TempDir()
	a := newAdmission(t, dir, shared)
	gate := acquire(t, a, shared) // until all wait
	lines := make(chan string)
	var all sync.WaitGroup
	for range 4 {
		_, says := beside(t, "many", dir)
		all.Go(func() {
			for says.Scan() {
				lines <- says.Text()
			}
		})
	}
	go func() { all.Wait(); close(lines) }()
	waiting(t, dir, 20)
	stop, most := make(chan struct{}), make(chan glovebox.Size, 1)
	go func() {
		var peak glovebox.Size
		for {
			select {
			case <-stop:
				most <- peak
				return
			default:
			}
			n, err := a.Taken()
			if err != nil {
				t.Error(err)
			}
			peak = max(peak, n)
		}
	}()
	if err := gate.Release(); err != nil {
		t.Fatal(err)
	}
	var served [][2]int64 // when and who
	for line := range lines {
		var who, when int64
		if _, err := fmt.Sscanf(line, "got %d %d", &who, &when); err != nil {
			t.Fatalf("it says %q", line)
		}
		served = append(served, [2]int64{when, who})
	}
	slices.SortFunc(served, func(a, b [2]int64) int { return cmp.Compare(a[0], b[0]) })
	got := map[int64]int{} // how often each was served
	for _, s := range served {
		got[s[1]]++
		ahead, behind := 0, 10
		for _, n := range got {
			ahead, behind = max(ahead, n), min(behind, n)
		}
		// One that is served stands in line again at once, so none is ever two rounds ahead, save for what the machine
		// lets pass between the service and the note of it.
		if len(got) < 20 && ahead > 3 || len(got) == 20 && ahead-behind > 3 {
			t.Errorf("one was served %d times and another %d times of %d callers", ahead, behind, len(got))
		}
	}
	close(stop)
	if peak := <-most; peak > shared {
		t.Errorf("%v were taken at once", peak)
	}
	if len(got) != 20 || len(served) != 200 {
		t.Errorf("%d callers were served %d times", len(got), len(served))
	}
	taken(t, a, 0)
	nobodyWaits(t, dir)
}
