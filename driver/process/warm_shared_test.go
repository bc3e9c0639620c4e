package process_test

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"

	"glovebox"
	"glovebox/driver"
)

// greedy takes all that the kernel counts for whoever made a user namespace too, says how much it got and keeps it until its
// input ends. It takes from its own bounds alone: whatever another took, there is as much.
const greedy = `
import ctypes, errno, os, resource, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
def most(what):
    n = 0
    while what() >= 0: n += 1
    return n, errno.errorcode[ctypes.get_errno()]
print("inotify", *most(libc.inotify_init))
fd = 3
while "inotify" not in os.readlink("/proc/self/fd/%d" % fd): fd += 1
os.makedirs("/tmp/w")
def watch(i=iter(range(1 << 20))):
    path = b"/tmp/w/%d" % next(i)
    open(path, "w").close()
    return libc.inotify_add_watch(fd, path, 2)
print("watches", *most(watch))
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN + 4])
print("signals", *most(lambda: libc.sigqueue(os.getpid(), signal.SIGRTMIN + 4, 0)))
signal.signal(signal.SIGRTMIN + 4, signal.SIG_IGN)
timers = []
def timer():
    timers.append(ctypes.c_void_p())
    return libc.timer_create(0, 0, ctypes.byref(timers[-1]))
print("timers", *most(timer))
def locked():
    shm = libc.shmget(0, 1 << 20, 0o1600)
    return libc.shmctl(shm, 11, 0)  # SHM_LOCK
print("locked", *most(locked))
sys.stdout.flush()
sys.stdin.read()
`

// TestGreedyForks: what one fork takes, another of the same template does not lack.
func TestGreedyForks(t *testing.T) {
	needRoot(t)
	w := newWarm(t)
	h := hold(t, w.image, "python")
	l := limits()
	l.Files, l.OpenFiles, l.Disk, l.Memory = 20000, 1024, 64*glovebox.MiB, 256*glovebox.MiB
	spec := func() driver.Spec {
		s := w.spec()
		s.Limits = l
		return s
	}
	tm := w.template(spec(), h)
	cold, err := w.driver.Hold(context.Background(), spec(), h)
	if err != nil {
		t.Fatal(err)
	}
	defer cold.Close(context.Background())
	want := finished(t, begin(t, cold, h, l, greedy, nil))
	const told = "inotify 16 EMFILE\nwatches 8192 ENOSPC\nsignals 1024 EAGAIN\ntimers 1024 EAGAIN\nlocked 8 ENOMEM\n"
	if want.Out != told || want.Err != "" {
		t.Fatalf("by itself: %+v\nwant %s", want, told)
	}
	var inputs []*io.PipeWriter
	var all []driver.Process
	for range 2 {
		in, out := io.Pipe()
		inputs = append(inputs, out)
		p := begin(t, w.forked(tm, spec()), h, l, greedy, in)
		var got strings.Builder
		for b := make([]byte, 4096); !strings.Contains(got.String(), "locked"); {
			n, err := p.Stdout().Read(b)
			if got.Write(b[:n]); err != nil {
				break
			}
		}
		if got.String() != told {
			t.Errorf("fork %d got\n%s\nwant\n%s", len(all), got.String(), told)
		}
		all = append(all, p)
	}
	for i, p := range all {
		fmt.Fprintln(inputs[i], "go")
		inputs[i].Close()
		if got := finished(t, p); got.Err != "" || got.Exit != (driver.Exit{}) {
			t.Errorf("%+v", got)
		}
	}
}
