package sandboxinit

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"glovebox/internal/kernelfile"
	"glovebox/internal/sandboxinit/wire"
)

// guest is what init keeps for itself under a kernel in user space.
type guest struct {
	tasks   int    // the file by which the program joins the group that bounds its processes
	most    int    // the file that says how many there may be
	counts  [3]int // those that tell how many are in it, and were at most, and how many were refused
	meter   *os.File
	stop    chan struct{}
	counted chan struct{}
	relays  []*relay
}

// countEvery is how often processes are counted while a program runs.
const countEvery = 50 * time.Millisecond

// buildGuest takes what the kernel made.
func (s *sandbox) buildGuest(files []*os.File) error {
	s.landlock = -1
	if len(files) != 1 {
		return step("take meter", errors.New("descriptor missing"))
	}
	meter, err := unix.FcntlInt(files[0].Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return step("take meter", err)
	}
	// The program runs under another id, and may not look into this process.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return step("make init undumpable", err)
	}
	for at, to := range map[string]*int{"/proc": &s.proc, "/code": &s.code} {
		if *to, err = unix.Open(at, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
			return step("open "+at, err)
		}
	}
	// That kernel has a device of networks for whoever may use it.
	if err := unix.Mount("none", "/dev/net", "tmpfs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC,
		"size=4k,mode=0555"); err != nil && err != unix.ENOENT {
		return step("hide /dev/net", err)
	}
	g := &guest{meter: os.NewFile(uintptr(meter), "meter")}
	if err := g.boundProcesses(s.setup.Processes); err != nil {
		return step("bound processes", err)
	}
	s.guest = g
	return nil
}

// boundProcesses makes the group of processes that the program is born in. It is out of sight once its files are open.
func (g *guest) boundProcesses(most int64) error {
	const at, group = "/code", "/code/run"
	if err := unix.Mount("none", at, "cgroup2", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return err
	}
	if err := kernelfile.Write(at+"/cgroup.subtree_control", "+pids"); err != nil {
		return err
	}
	if err := unix.Mkdir(group, 0o755); err != nil {
		return err
	}
	var err error
	for name, to := range map[string]*int{"cgroup.procs": &g.tasks, "pids.max": &g.most} {
		if *to, err = unix.Open(path.Join(group, name), unix.O_WRONLY|unix.O_CLOEXEC, 0); err != nil {
			return err
		}
	}
	if err := g.bound(most); err != nil {
		return err
	}
	for i, name := range []string{"pids.current", "pids.peak", "pids.events"} {
		if g.counts[i], err = unix.Open(path.Join(group, name), unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			return err
		}
	}
	return unix.Unmount(at, unix.MNT_DETACH)
}

// bound says how many processes there may be.
func (g *guest) bound(most int64) error {
	_, err := unix.Pwrite(g.most, []byte(strconv.FormatInt(most, 10)), 0)
	return err
}

// relay begins to copy between the program's pipes and those of the driver, and to count.
func (g *guest) relay(p *pipes, streams []*os.File) error {
	if len(streams) != len(p.far) {
		return errors.New("descriptors missing")
	}
	g.relays = nil
	for i, near := range p.far {
		from, to := near, streams[i]
		if i == 2 {
			from, to = to, from
		}
		r, err := newRelay(from, to)
		if err != nil {
			return err
		}
		go r.run() // until the stream ends, or this process
		if i < 2 {
			g.relays = append(g.relays, r)
		}
	}
	for _, f := range p.far {
		f.Close()
	}
	p.far = nil
	g.stop, g.counted = make(chan struct{}), make(chan struct{})
	go g.count(g.stop, g.counted)
	return nil
}

// ended brings out what the leader printed, and the counts, before its end is told: whoever hears of it may end everything.
func (g *guest) ended() {
	if g.stop != nil {
		close(g.stop)
		<-g.counted
		g.stop = nil
	}
	for _, r := range g.relays {
		r.flush()
	}
}

// count writes the counts to the meter until it is to stop, and once more then.
func (g *guest) count(stop <-chan struct{}, done chan<- struct{}) {
	defer close(done)
	tick := time.NewTicker(countEvery)
	defer tick.Stop()
	for last := false; !last; {
		select {
		case <-tick.C:
		case <-stop:
			last = true
		}
		out := make([]byte, 0, wire.MeterSize)
		for _, fd := range g.counts {
			out = binary.LittleEndian.AppendUint64(out, uint64(readCount(fd)))
		}
		// Counts that do not arrive are unknown.
		_, _ = g.meter.WriteAt(out, 0)
	}
}

// readCount reads the number in a file that holds one, perhaps behind a name; -1 where there is none.
func readCount(fd int) int64 {
	b := make([]byte, 64)
	n, err := unix.Pread(fd, b, 0)
	if err != nil {
		return -1
	}
	words := strings.Fields(string(b[:n]))
	if len(words) == 0 {
		return -1
	}
	count, err := strconv.ParseInt(words[len(words)-1], 10, 64)
	if err != nil {
		return -1
	}
	return count
}

// relay copies from one pipe to another.
type relay struct {
	from, to *os.File
	raw      interface {
		Read(func(uintptr) bool) error
		Control(func(uintptr)) error
	}

	mu          sync.Mutex
	moved       sync.Cond
	taken, left int64 // bytes taken from the one, and of these given to the other
	ended       bool
}

func newRelay(from, to *os.File) (*relay, error) {
	r := &relay{}
	r.moved.L = &r.mu
	for f, mine := range map[*os.File]**os.File{from: &r.from, to: &r.to} {
		fd, err := unix.FcntlInt(uintptr(wire.FD(f)), unix.F_DUPFD_CLOEXEC, 3)
		if err == nil {
			err = unix.SetNonblock(fd, true) // so that waiting takes no thread
		}
		if err != nil {
			return nil, err
		}
		*mine = os.NewFile(uintptr(fd), "stream")
	}
	var err error
	r.raw, err = r.from.SyscallConn()
	return r, err
}

// run copies until the one ends or nobody reads the other.
func (r *relay) run() {
	b := make([]byte, 64<<10)
	for {
		n, err := r.take(b)
		if err == nil {
			_, err = r.to.Write(b[:n])
		}
		r.mu.Lock()
		r.left += int64(n)
		r.ended = err != nil
		r.moved.Broadcast()
		r.mu.Unlock()
		if err != nil {
			r.from.Close()
			r.to.Close()
			return
		}
	}
}

// take reads once. What it takes counts as taken at no other moment than it leaves the pipe.
func (r *relay) take(b []byte) (n int, err error) {
	waited := r.raw.Read(func(fd uintptr) bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		for {
			if n, err = unix.Read(int(fd), b); err != unix.EINTR {
				break
			}
		}
		if err == nil {
			r.taken += int64(n)
		}
		return err != unix.EAGAIN
	})
	if err = errors.Join(waited, err); err != nil {
		return 0, err
	}
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

// flush returns when all that is in the pipe now has been given on.
func (r *relay) flush() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return
	}
	n := 0
	if err := r.raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }); err != nil {
		return
	}
	for all := r.taken + int64(n); !r.ended && r.left < all; {
		r.moved.Wait()
	}
}

// namespaces are the link texts of a process's namespaces, for those that can be read.
func (s *sandbox) namespaces(pid int) []string {
	var list []string
	for _, kind := range wire.NamespaceKinds {
		buf := make([]byte, 64)
		n, err := unix.Readlinkat(s.proc, fmt.Sprintf("%d/ns/%s", pid, kind), buf)
		if err != nil {
			n = 0
		}
		list = append(list, string(buf[:n]))
	}
	return list
}
