package attack_test

import (
	"crypto/rand"
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// kernelLog reads what the kernel says from now on.
type kernelLog struct {
	fd      int
	tainted string
}

func openKernelLog(t *testing.T) *kernelLog {
	t.Helper()
	fd, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("open the kernel's log: %v", err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if _, err := unix.Seek(fd, 0, unix.SEEK_END); err != nil {
		t.Fatalf("go to the end of the kernel's log: %v", err)
	}
	return &kernelLog{fd, read("/proc/sys/kernel/tainted")}
}

// broken are the kernel's words for a fault of its own. That a program crashed ("segfault at", "traps:") and the report of a
// kill for lack of memory, call trace included, are none.
var broken = regexp.MustCompile(`\bBUG\b|\bWARNING\b|\bOops\b|Kernel panic|general protection fault, |unable to handle|` +
	`soft lockup|hard LOCKUP|blocked for more than|rcu: INFO|refcount_t|\b(KASAN|KCSAN|KMSAN|UBSAN|KFENCE)\b|` +
	`list_(add|del) corruption|possible (circular|recursive) locking|scheduling while atomic|EXT4-fs error|I/O error`)

// since returns the records since the log was opened or read.
func (k *kernelLog) since(t *testing.T) []string {
	t.Helper()
	var all []string
	record := make([]byte, 16<<10)
	for {
		n, err := unix.Read(k.fd, record)
		switch {
		case errors.Is(err, unix.EPIPE): // records were overwritten; the next ones are there
		case errors.Is(err, unix.EAGAIN):
			return all
		case err != nil:
			t.Fatalf("read the kernel's log: %v", err)
		default:
			all = append(all, string(record[:n]))
		}
	}
}

// faults are the kernel's words about faults of its own since the log was opened, and whether it calls itself tainted since.
func (k *kernelLog) faults(t *testing.T) []string {
	t.Helper()
	found := slices.DeleteFunc(k.since(t), func(text string) bool { return !broken.MatchString(text) })
	if now := read("/proc/sys/kernel/tainted"); now != k.tainted {
		found = append(found, "the kernel is tainted: "+strings.TrimSpace(k.tainted)+" -> "+strings.TrimSpace(now))
	}
	return found
}

// TestKernelFaultsAreFound judges lines as kernels write them, and demands that the log is really read.
func TestKernelFaultsAreFound(t *testing.T) {
	need(t)
	for text, fault := range map[string]bool{
		"python3[77]: segfault at 10 ip 000055d6 sp 00007ffd error 4":         false,
		"python3 invoked oom-killer: gfp_mask=0xcc0, order=0\nCall Trace:":    false,
		"traps: python3[78] general protection fault ip:55d6 sp:7ffd error:0": false,
		"WARNING: CPU: 1 PID: 77 at kernel/fork.c:1 x+0x1/0x2":                true,
		"BUG: unable to handle page fault for address: 10":                    true,
		"Oops: 0000 [#1] SMP": true,
		"general protection fault, probably for non-canonical address 0xdead": true,
		"rcu: INFO: rcu_sched self-detected stall on CPU":                     true,
		"INFO: task python3:77 blocked for more than 120 seconds.":            true,
		"EXT4-fs error (device loop0): ext4_lookup:1: inode #2":               true,
	} {
		if broken.MatchString(text) != fault {
			t.Errorf("%q: a fault is %v", text, !fault)
		}
	}
	k := openKernelLog(t)
	mark := "glovebox-attack reads this line " + rand.Text()
	if err := os.WriteFile("/dev/kmsg", []byte(mark+"\n"), 0); err != nil {
		t.Fatal(err)
	}
	if !settle(5*time.Second, func() bool { return strings.Contains(strings.Join(k.since(t), ""), mark) }) {
		t.Error("a line that was written to the kernel's log is not read")
	}
}
