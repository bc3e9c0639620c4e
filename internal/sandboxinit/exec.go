package sandboxinit

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"glovebox/internal/kernelfile"
	"glovebox/internal/sandboxinit/wire"
)

// leader is the started program whose end is reported.
type leader struct {
	pid        int
	known      chan struct{} // closed when it is known whether it was started
	notStarted string        // after that
}

// pipes are the ends that go to the program and the ends that go to the driver.
type pipes struct {
	stdio [3]*os.File // the program's
	far   []*os.File  // the driver's: stdout, stderr, stdin if asked
}

func (p *pipes) close() {
	for _, f := range append(p.stdio[:], p.far...) {
		if f != nil {
			f.Close()
		}
	}
}

// exec brings the program to the gate and tells the driver what the kernel says of it. An error means that the socket is
// broken.
func (s *sandbox) exec(e *wire.Exec, files []*os.File) error {
	if e.HasCode {
		if len(files) == 0 {
			return s.fail(step("take code", errors.New("descriptor missing")))
		}
		if err := s.writeCode(e.CodeName, files[0]); err != nil {
			return s.fail(step("write code", err))
		}
		files = files[1:]
	}
	if e.Forked {
		return s.adopt(e, files)
	}
	streams, files, err := takeStreams(e, files)
	if err != nil {
		return s.fail(step("take streams", err))
	}
	given, files, err := takeGiven(e, files)
	if err != nil {
		return s.fail(step("take the program's descriptors", err))
	}
	hold, far, files, err := s.holdSocket(e, files)
	if err != nil {
		return s.fail(step("make the socket to wait at", err))
	}
	defer unix.Close(hold)
	if files, err = s.takeGroups(e, files); err != nil {
		return s.fail(step("take control groups", err))
	}
	p, err := s.makePipes(e.Stdin)
	if err != nil {
		return s.fail(step("make pipes", err))
	}
	keep := false
	defer func() {
		if !keep {
			p.close()
		}
	}()
	c := s.newChild(e, p, files)
	c.give(given)
	if hold >= 0 {
		c.hold, c.closeFrom = hold, wire.HoldFD+1
	}
	w, err := c.start()
	if err != nil {
		return s.fail(err)
	}
	facts := s.facts(w.pid)
	if c.filterFlag != 0 {
		notes, name, err := w.fetch()
		if err != nil {
			w.close() // which ends the child
			reapOne(w.pid)
			return s.fail(step("take notifications of its filter", err))
		}
		facts.Notifications = name
		go s.sockets.answer(notes)
	}
	s.waiting = &waiting{started: w, pipes: p, name: e.Argv[0], held: far}
	keep = true
	if s.guest != nil {
		if err := s.guest.relay(p, streams); err != nil {
			return s.fail(step("copy streams", err))
		}
	}
	return s.conn.Send(wire.Message{Started: facts}, p.far...)
}

// takeGroups keeps the freezer, and returns what the program joins its groups by.
func (s *sandbox) takeGroups(e *wire.Exec, files []*os.File) ([]*os.File, error) {
	files, err := s.takeFreezer(e.Freezer, files)
	want := e.CgroupFiles
	if e.BornIn {
		want++
	}
	if err == nil && len(files) != want {
		err = errors.New("descriptors missing")
	}
	return files, err
}

// takeFreezer keeps the last descriptor as that of the freezer, if it is one. It is the same with every program.
func (s *sandbox) takeFreezer(given bool, files []*os.File) ([]*os.File, error) {
	if !given {
		return files, nil
	}
	if len(files) == 0 {
		return nil, errors.New("descriptors missing")
	}
	rest, last := files[:len(files)-1], files[len(files)-1]
	if s.freezer >= 0 {
		return rest, nil
	}
	var err error
	if s.freezer, err = unix.FcntlInt(last.Fd(), unix.F_DUPFD_CLOEXEC, 0); err != nil {
		return nil, err
	}
	return rest, nil
}

// waiting is a child at the gate.
type waiting struct {
	*started
	pipes *pipes
	name  []byte
	held  *os.File // the end of init's of the socket at which it waits for its code, if it does
}

// release lets the program go.
func (s *sandbox) release() error {
	w := s.waiting
	if w == nil {
		return s.fail(step("open gate", errors.New("nobody waits")))
	}
	s.waiting = nil
	defer w.pipes.close()
	if w.gate < 0 { // a copy of a template's, which executes nothing
		s.lead(w.pid).settle("")
		if err := openGate(w.held); err != nil {
			return s.fail(step("open gate", err))
		}
		return s.awaitHeld(w.pid, w.held)
	}
	l := s.lead(w.pid)
	errno, err := w.started.release()
	why := ""
	if err == nil && errno != 0 {
		why = notStarted(w.name, errno)
		fmt.Fprintf(w.pipes.stdio[2], "glovebox: %s\n", why)
	}
	l.settle(why)
	if err != nil {
		return err
	}
	if w.held != nil {
		return s.awaitHeld(w.pid, w.held)
	}
	return nil
}

func notStarted(name []byte, errno unix.Errno) string {
	why := errno.Error()
	switch errno {
	case unix.ENOENT:
		why = "no such program or interpreter in the image"
	case unix.ENOEXEC:
		why = "neither a program nor a script that starts with #!"
	}
	return fmt.Sprintf("%.200q: %s", name, why)
}

// makePipes makes the standard streams. They belong to the program, which may open them again by name (/dev/stdout).
func (s *sandbox) makePipes(stdin bool) (*pipes, error) {
	p := &pipes{}
	for n := 1; n <= 2; n++ {
		read, write, err := makePipe()
		if err != nil {
			p.close()
			return nil, err
		}
		p.stdio[n], p.far = write, append(p.far, read)
	}
	if stdin {
		read, write, err := makePipe()
		if err != nil {
			p.close()
			return nil, err
		}
		p.stdio[0], p.far = read, append(p.far, write)
	} else {
		null, err := os.Open("/dev/null")
		if err != nil {
			p.close()
			return nil, err
		}
		p.stdio[0] = null
	}
	for _, f := range p.far {
		if err := unix.SetNonblock(wire.FD(f), true); err != nil {
			p.close()
			return nil, err
		}
	}
	return p, nil
}

func makePipe() (read, write *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, err
	}
	read, write = os.NewFile(uintptr(fds[0]), "pipe"), os.NewFile(uintptr(fds[1]), "pipe")
	if err := unix.Fchown(fds[0], wire.ProgramID, wire.ProgramID); err != nil {
		read.Close()
		write.Close()
		return nil, nil, err
	}
	return read, write, nil
}

func (s *sandbox) newChild(e *wire.Exec, p *pipes, cgroups []*os.File) *child {
	c := &child{
		dir: cstring(e.Dir), proc: s.proc, oomPath: cstring("self/oom_score_adj"), single: s.single,
		openFiles: s.setup.OpenFiles, landlock: s.landlock, hold: -1, closeFrom: wire.HoldFD, template: s.setup.Template,
		argv: cstrings(e.Argv), env: cstrings(e.Env),
	}
	for _, name := range candidates(string(e.Argv[0]), e.Env) {
		c.candidates = append(c.candidates, cstring(name))
	}
	// The streams move out of the way of 0, 1 and 2 by themselves: init never has those closed.
	for i, f := range p.stdio {
		c.stdio[i] = wire.FD(f)
	}
	c.bornIn = -1
	if e.BornIn {
		c.bornIn, cgroups = wire.FD(cgroups[0]), cgroups[1:]
	}
	for _, f := range cgroups {
		c.cgroups = append(c.cgroups, wire.FD(f))
	}
	c.setCPUs(e.CPUs)
	c.kernel, c.guest = s.setup.Kernel, s.guest != nil
	if c.guest {
		c.cgroups = append(c.cgroups, s.guest.tasks)
	}
	if c.kernel || c.guest {
		// The fence of the one is of its own making; that of the other is the one, which has no notifications.
	} else if !c.template {
		c.filterFlag = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER
	} else if !s.single {
		for _, n := range []uint{unix.CAP_SETUID, unix.CAP_SETGID} { // to map ids of others than itself
			bit := uint32(1) << n
			c.keep[0] = unix.CapUserData{Effective: c.keep[0].Effective | bit, Permitted: c.keep[0].Permitted | bit,
				Inheritable: c.keep[0].Inheritable | bit}
		}
	}
	filter := s.setup.Filter
	c.filter = unix.SockFprog{
		Len:    uint16(len(filter) / int(unsafe.Sizeof(unix.SockFilter{}))),
		Filter: (*unix.SockFilter)(unsafe.Pointer(unsafe.SliceData(filter))),
	}
	return c
}

// takeGiven divides what the program is to have of its own from what comes after.
func takeGiven(e *wire.Exec, files []*os.File) (given, rest []*os.File, err error) {
	switch {
	case e.Files == 0:
		return nil, files, nil
	case e.Files < 0 || e.Files > maxGiven || e.Held || e.Channel:
		return nil, nil, errors.New("too many, or for what takes none")
	case len(files) < e.Files:
		return nil, nil, errors.New("descriptors missing")
	}
	return files[:e.Files], files[e.Files:], nil
}

// give hands descriptors to the program, which finds them from wire.FirstFile on.
func (c *child) give(files []*os.File) {
	if len(files) == 0 {
		return
	}
	for _, f := range files {
		c.given = append(c.given, wire.FD(f))
	}
	c.closeFrom = wire.FirstFile + uintptr(len(files))
}

// setCPUs takes the CPUs to run on; none is all that the control groups leave.
func (c *child) setCPUs(cpus []int) {
	for i := range c.cpus {
		if len(cpus) == 0 {
			c.cpus[i] = 0xff
		}
	}
	for _, n := range cpus {
		if n >= 0 && n < 8*len(c.cpus) {
			c.cpus[n/8] |= 1 << (n % 8) // the kernel's longs, on a machine that has their low byte first
		}
	}
}

// candidates are the paths at which name may be found, as execvp(3) looks them up.
func candidates(name string, env [][]byte) []string {
	if strings.Contains(name, "/") {
		return []string{name}
	}
	var list []string
	for _, e := range env {
		if dirs, ok := strings.CutPrefix(string(e), "PATH="); ok {
			list = list[:0]
			for _, dir := range strings.Split(dirs, ":") {
				list = append(list, path.Join(dir, name))
			}
		}
	}
	return list
}

func cstring(s string) *byte { return unsafe.SliceData(append([]byte(s), 0)) }

func cstrings(list [][]byte) []*byte {
	out := make([]*byte, 0, len(list)+1)
	for _, s := range list {
		out = append(out, cstring(string(s)))
	}
	return append(out, nil)
}

// facts reads what the kernel says of the child at the gate.
func (s *sandbox) facts(pid int) *wire.Started {
	at := strconv.Itoa(pid) + "/"
	f := &wire.Started{
		Status: s.readProc(at + "status"), Mounts: s.readProc(at + "mountinfo"), UIDMap: s.readProc(at + "uid_map"),
		Interfaces: interfaces(s.readProc("self/net/dev")),
	}
	f.Namespaces = s.namespaces(pid)
	return f
}

// readProc reads a file of the sandbox's /proc. What cannot be read is empty, and the driver's check fails by that.
func (s *sandbox) readProc(name string) string {
	text, err := kernelfile.ReadAt(s.proc, name)
	if err != nil {
		return ""
	}
	return text
}

// lead makes a process the leader, before it is let go: it may end at once, and others that an earlier one left may end
// beside it.
func (s *sandbox) lead(pid int) *leader {
	l := &leader{pid: pid, known: make(chan struct{})}
	s.leaders <- l
	return l
}

func (l *leader) settle(notStarted string) {
	l.notStarted = notStarted
	close(l.known)
}

// reap waits for every process of the sandbox and reports the end of the leader. It sleeps while there is none.
func (s *sandbox) reap() {
	for l := range s.leaders {
		for {
			var status unix.WaitStatus
			pid, err := unix.Wait4(-1, &status, 0, nil)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil {
				break
			}
			select {
			case l = <-s.leaders: // while others lived
			default:
			}
			if pid != l.pid {
				continue
			}
			<-l.known
			if s.guest != nil {
				s.guest.ended()
			}
			ended := wire.Ended{WaitStatus: uint32(status), NotStarted: l.notStarted}
			if s.conn.Send(wire.Message{Ended: &ended}) != nil {
				os.Exit(s.end(0)) // the driver is gone, and may have left something frozen
			}
		}
	}
}

func reapOne(pid int) {
	for {
		_, err := unix.Wait4(pid, nil, 0, nil)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}
