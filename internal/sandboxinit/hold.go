package sandboxinit

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"glovebox/internal/sandboxinit/wire"
)

// handLimit bounds how long an interpreter may take to read what it is given. It waits for nothing else.
const handLimit = 10 * time.Second

// holdSocket makes the socket at which the program waits for its code, if it does: near becomes the program's, far stays
// init's. A template's comes from the driver instead.
func (s *sandbox) holdSocket(e *wire.Exec, files []*os.File) (near int, far *os.File, rest []*os.File, err error) {
	switch {
	case e.Channel && len(files) == 0:
		return -1, nil, nil, errors.New("descriptor missing")
	case e.Channel:
		near, err = unix.FcntlInt(files[0].Fd(), unix.F_DUPFD_CLOEXEC, wire.ForkFD+1)
		return near, nil, files[1:], err
	case !e.Held:
		return -1, nil, files, nil
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, nil, nil, err
	}
	return fds[0], os.NewFile(uintptr(fds[1]), "hold"), files, nil
}

// awaitHeld waits until the interpreter says that it waits for its code, then tells what the kernel says of it. One that
// ends instead closes its end.
func (s *sandbox) awaitHeld(pid int, far *os.File) error {
	said, err := readSoon(wire.FD(far), 1)
	if err != nil || string(said) != "R" {
		far.Close()
		if errors.Is(err, errHungUp) {
			return err
		}
		return s.fail(step("wait for the interpreter", errors.Join(errors.New("it ended before it was ready"), err)))
	}
	if s.hold != nil {
		far.Close()
		return s.fail(step("wait for the interpreter", errors.New("one waits already")))
	}
	s.hold = far
	at := strconv.Itoa(pid) + "/"
	h := wire.Held{Status: s.readProc(at + "status")}
	if h.Descriptors, err = s.readFolder(at + "fd"); err != nil {
		return s.fail(step("look at the interpreter", err))
	}
	return s.conn.Send(wire.Message{Held: &h})
}

// readFolder lists a folder of the sandbox's /proc.
func (s *sandbox) readFolder(name string) ([]string, error) {
	fd, err := unix.Openat(s.proc, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	return f.Readdirnames(-1)
}

// readSoon reads up to limit bytes from a descriptor, and fails with errHungUp when the lifeline closes first.
func readSoon(fd, limit int) ([]byte, error) {
	b := make([]byte, limit)
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}, {Fd: wire.ControlFD, Events: unix.POLLRDHUP}}
	for {
		n, err := unix.Poll(poll, -1)
		if err == nil && poll[0].Revents == 0 {
			return nil, errHungUp
		}
		if err == nil {
			n, err = unix.Read(fd, b)
		}
		if err == unix.EINTR {
			continue
		}
		return b[:max(n, 0)], err
	}
}

// resume gives the interpreter that waits its code and what else is the request's. An error means that the socket to the
// driver is broken.
func (s *sandbox) resume(r *wire.Resume, files []*os.File) error {
	to := s.hold
	if to == nil {
		return s.fail(step("hand over the code", errors.New("nobody waits")))
	}
	s.hold = nil
	// The interpreter goes on when this is closed, and the driver is told meanwhile.
	if err := errors.Join(s.hand(to, r, files), step("hand over the code", to.Close())); err != nil {
		return s.fail(err)
	}
	return s.conn.Send(wire.Message{Resumed: &wire.Resumed{}})
}

// hand writes the code and tells the interpreter the rest.
func (s *sandbox) hand(to *os.File, r *wire.Resume, files []*os.File) error {
	if len(files) != 1 {
		return step("take code", errors.New("descriptor missing"))
	}
	if err := s.writeCode(r.CodeName, files[0]); err != nil {
		return step("write code", err)
	}
	if s.guest != nil {
		if err := s.guest.bound(r.Processes); err != nil {
			return step("bound processes", err)
		}
	}
	limit := unix.NsecToTimeval(int64(handLimit))
	if err := unix.SetsockoptTimeval(wire.FD(to), unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit); err != nil {
		return step("hand over the code", err)
	}
	b := handOver(r)
	for len(b) > 0 {
		n, err := unix.SendmsgN(wire.FD(to), b, nil, nil, unix.MSG_NOSIGNAL)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return step("hand over the code", err)
		}
		b = b[n:]
	}
	return nil
}

// handOver is what a held interpreter reads (see package boot): strings that each end with a zero.
func handOver(r *wire.Resume) []byte {
	var b bytes.Buffer
	b.WriteString(one(r.Stdin) + "\x00")
	for _, list := range [][][]byte{r.Args, r.Env} {
		fmt.Fprintf(&b, "%d\x00", len(list))
		for _, item := range list {
			b.Write(item)
			b.WriteByte(0)
		}
	}
	return b.Bytes()
}

// adopt fences the program's process of a forked sandbox, which is a copy of a template's and waits for that, and tells the
// driver what the kernel says of it. An error means that the socket to the driver is broken.
//
//	init                                the copy
//	FENCE … , descriptors ────────────▶ puts the fence on itself, in the order of child.fence
//	                      ◀──────────── F NUMBER (of its filter's notifications) | E STEP ERRNO
//	G                     ────────────▶ closes what only the fence needed
//	                      ◀──────────── R, and waits for its code
func (s *sandbox) adopt(e *wire.Exec, files []*os.File) error {
	files, err := s.takeFreezer(e.Freezer, files)
	if err != nil || len(files) != e.CgroupFiles {
		return s.fail(step("take control groups", errors.Join(errors.New("descriptors missing"), err)))
	}
	p, err := s.makePipes(true)
	if err != nil {
		return s.fail(step("make pipes", err))
	}
	keep := false
	defer func() {
		if !keep {
			p.close()
		}
	}()
	fork := os.NewFile(wire.ForkFD, "fork")
	notes, err := s.fenceCopy(e, fork, p, files)
	if err != nil {
		return s.fail(err)
	}
	w := &started{pid: wire.ForkedPID, report: -1, gate: -1, notes: notes}
	facts := s.facts(w.pid)
	taken, name, err := w.fetch()
	if err != nil {
		return s.fail(step("take notifications of its filter", err))
	}
	facts.Notifications = name
	go s.sockets.answer(taken)
	s.waiting = &waiting{started: w, pipes: p, held: fork}
	keep = true
	return s.conn.Send(wire.Message{Started: facts}, p.far...)
}

// fenceCopy has the copy put the fence on itself, and sets from outside what can be set from there.
func (s *sandbox) fenceCopy(e *wire.Exec, fork *os.File, p *pipes, cgroups []*os.File) (notes int, err error) {
	for _, l := range wire.ProgramLimits {
		if err := limitOther(l); err != nil {
			return -1, step(childSteps[stepLimits], err)
		}
	}
	if err := unix.SchedSetaffinity(wire.ForkedPID, affinity(e.CPUs)); err != nil {
		return -1, step(childSteps[stepCPUs], err)
	}
	fds := []int{wire.FD(p.stdio[0]), wire.FD(p.stdio[1]), wire.FD(p.stdio[2])}
	if s.landlock >= 0 {
		fds = append(fds, s.landlock)
	}
	for _, f := range cgroups {
		fds = append(fds, wire.FD(f))
	}
	head := fmt.Sprintf("%s %d %d %d %d %d\n", one(s.single), len(cgroups), max(0, min(1, s.landlock+1)), unix.CAP_LAST_CAP,
		len(e.Dir), len(s.setup.Filter))
	body := append([]byte(head+e.Dir), s.setup.Filter...)
	body = append([]byte(fmt.Sprintf("%08d", len(body))), body...)
	if err := unix.Sendmsg(wire.ForkFD, body, unix.UnixRights(fds...), nil, unix.MSG_NOSIGNAL); err != nil {
		return -1, step("fence the copy", err)
	}
	said, err := readSoon(wire.FD(fork), 256)
	if err != nil {
		return -1, step("fence the copy", err)
	}
	word := strings.Fields(string(said))
	switch {
	case len(word) == 2 && word[0] == "F":
		if notes, err = strconv.Atoi(word[1]); err != nil {
			return -1, step("fence the copy", err)
		}
	case len(word) >= 3 && word[0] == "E":
		errno, _ := strconv.Atoi(word[1])
		return -1, step(strings.Join(word[2:], " "), syscall.Errno(errno))
	default:
		return -1, step("fence the copy", fmt.Errorf("it answered %.80q", said))
	}
	// Last, since what is open by now may have numbers beyond this limit.
	n := s.setup.OpenFiles
	return notes, step(childSteps[stepLimits], limitOther(wire.Rlimit{What: unix.RLIMIT_NOFILE, Soft: n, Hard: n}))
}

func one(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

// limitOther is setLimit for the copy.
func limitOther(l wire.Rlimit) error {
	var now, then unix.Rlimit
	if err := unix.Prlimit(wire.ForkedPID, int(l.What), nil, &now); err != nil {
		return err
	}
	then.Cur, then.Max = l.Under(now.Max)
	return unix.Prlimit(wire.ForkedPID, int(l.What), &then, nil)
}

// affinity is the CPUs as the kernel wants them; none are all that the control groups leave.
func affinity(cpus []int) *unix.CPUSet {
	set := new(unix.CPUSet)
	if len(cpus) == 0 {
		set.Fill()
	}
	for _, n := range cpus {
		set.Set(n)
	}
	return set
}

// openGate lets the copy go on to where it waits for its code.
func openGate(fork *os.File) error {
	return unix.Sendmsg(wire.FD(fork), []byte("G"), nil, nil, unix.MSG_NOSIGNAL)
}
