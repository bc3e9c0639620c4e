package attack_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var fuzzSeed = flag.Uint64("fuzzseed", 0, "seed of TestKS20Fuzz, to have the same calls again; 0 takes a new one")

// deadlyCalls end or stop whoever makes them, or others; they are left to few of the processes, or nothing else would come
// to its turn.
func deadlyCalls() string {
	numbers := []int{unix.SYS_EXIT, unix.SYS_EXIT_GROUP, unix.SYS_RT_SIGSUSPEND, unix.SYS_RT_SIGRETURN, unix.SYS_KILL, unix.SYS_TKILL,
		unix.SYS_TGKILL, unix.SYS_RT_SIGQUEUEINFO, unix.SYS_RT_TGSIGQUEUEINFO, unix.SYS_PIDFD_SEND_SIGNAL}
	var text []string
	for _, n := range append(numbers, waitsOfMachine...) {
		text = append(text, strconv.Itoa(n))
	}
	return strings.Join(text, ",")
}

var callCount = regexp.MustCompile(`(?m)^calls (\d+) ends (\d+)$`)

// TestKS20Fuzz makes calls at random, run after run, and then looks at the machine. A run may end in any way that a program
// can end: its processes signal each other and use up what they may. The seed decides the calls and their arguments, but for
// addresses and process ids.
func TestKS20Fuzz(t *testing.T) {
	l := need(t)
	runs := 3
	if long() {
		runs = 20
	}
	seed := *fuzzSeed
	if seed == 0 {
		seed = uint64(rand.Uint32())
	}
	t.Logf("-fuzzseed %d", seed)
	log := openKernelLog(t)
	calls, ends := 0, map[string]int{}
	for n := range runs {
		disk := "32MiB" // in memory
		if n%3 == 1 && l.caller == nil {
			disk = "96MiB" // on a file system of its own, on a loop device
		}
		o := fuzz(t, l, seed+uint64(n), disk)
		ends[o.Status]++
		if m := callCount.FindStringSubmatch(o.Stdout); m != nil {
			made, _ := strconv.Atoi(m[1])
			calls += made
		}
		if faults := log.faults(t); len(faults) > 0 {
			t.Errorf("-fuzzseed %d: the kernel says: %s", seed+uint64(n), strings.Join(faults, "\n"))
		}
		if t.Failed() {
			t.Fatalf("with -fuzzseed %d", seed+uint64(n))
		}
	}
	fmt.Printf("    %s: %d calls in %d runs, which ended %v, -fuzzseed %d\n", t.Name(), calls, runs, ends, seed)
	// What few processes do can end the leader, which then cannot say how many calls there were.
	if calls < 2000 {
		t.Errorf("%d calls counted: too few to say anything", calls)
	}
	if o := attack(t, trial{program: "ct_hello.py"}); o.Stdout != "hello\n" {
		t.Errorf("the next run: %q, %+v", o.Stdout, o.Error)
	}
}

// fuzz is one run of it.
func fuzz(t *testing.T, l *laboratory, seed uint64, disk string) outcome {
	const processes, memory = 64, 128 << 20
	most := 0
	// Started together with the run and stopped with it, it counts from outside.
	stop, counted := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(counted)
		for {
			most = max(most, len(l.processes(l.uids)))
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
	o := attack(t, trial{program: "ks20_fuzz.py", args: []string{fmt.Sprint(seed), "2.5", "24", deadlyCalls()},
		flags: []string{"--processes", fmt.Sprint(processes), "--memory", "128MiB", "--disk", disk, "--cpus", "2", "--wall", "20s",
			"--output-limit", "16MiB"}})
	close(stop)
	<-counted
	if o.Error != nil || !slices.Contains([]string{"exited", "signaled", "wall_limit", "cpu_limit", "memory_limit", "process_limit",
		"output_limit", "disk_limit", "policy"}, o.Status) {
		t.Errorf("status %q, error %+v", o.Status, o.Error)
	}
	// Init is one more, and the command itself too where the program has its caller's id.
	if most > processes+2 {
		t.Errorf("%d processes seen from outside, with a limit of %d", most, processes)
	}
	if n := o.Usage.Processes; n == nil || *n > processes {
		t.Errorf("%s processes counted, with a limit of %d", show(n), processes)
	}
	// The kernel may go one charge beyond the limit that it does not refuse.
	if n := o.Usage.Memory; n == nil || *n > memory+1<<20 {
		t.Errorf("%s bytes of memory, with a limit of %d", show(n), memory)
	}
	select {
	case err := <-l.neighbour.ended:
		l.neighbour.ended <- err
		t.Errorf("the neighbour ended: %v", err)
	default:
	}
	return o
}
