// Package sandboxinit is the init of a sandbox: process 1 of its own namespaces, the only process of Glovebox inside.
//
// It builds the root, starts the program behind the fence, reaps, and hands files out once everything of the user's is dead.
// It runs from a small static binary of its own because it is started for every run. Nothing it does depends on a byte that
// the program wrote, except the paths the driver asks it to open.
//
// It ends when its control socket closes, whoever closed it, and the kernel then ends everything inside.
package sandboxinit

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"glovebox/internal/sandboxinit/wire"
)

// stepError is a failure that knows which step it is.
type stepError struct {
	step string
	err  error
}

func (e *stepError) Error() string { return e.step + ": " + e.err.Error() }
func (e *stepError) Unwrap() error { return e.err }

func step(name string, err error) error {
	if err == nil {
		return nil
	}
	return &stepError{name, err}
}

// sandbox is what init knows about itself once it is built.
type sandbox struct {
	conn     *wire.Conn
	single   bool
	setup    *wire.Setup
	root     int // the new root, O_PATH; its code folder and outputs are reached through the ones below
	code     int // /code, writable here and nowhere else
	outputs  int // /outputs
	data     int // the sandbox's own file system
	proc     int // the sandbox's /proc, writable here and nowhere else
	landlock int // the program's ruleset, -1 for none
	freezer  int // state of the freezer that the program is in, -1 for none
	abi      int
	buffer   string   // wire.ReceiveBuffer as the kernel shows it
	waiting  *waiting // the child at the gate, if any
	hold     *os.File // where the interpreter waits for its code, if one does
	leaders  chan *leader
	sockets  listeners
	attached bool   // Attach came
	guest    *guest // where init is that of a kernel in user space
}

// Main runs init until its lifeline closes and returns the process's exit code.
func Main() int {
	// A collection during the few milliseconds of set-up costs more than the memory it saves.
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(64 << 20)
	// The caller's mask is the caller's business: what is made here has the modes that are asked for.
	unix.Umask(0)
	if err := unix.SetNonblock(wire.ControlFD, true); err != nil {
		fmt.Fprintln(os.Stderr, "glovebox-init is started by glovebox, not by hand")
		return 125
	}
	unix.CloseOnExec(wire.ControlFD)
	unix.CloseOnExec(wire.ForkFD) // if there is one
	// That of a copy comes from a process that does as little as it can; a fresh one has done both.
	_, _ = unix.Setsid()
	_ = unix.Chdir("/")
	s := &sandbox{
		conn:     wire.NewConn(os.NewFile(wire.ControlFD, "control")),
		landlock: -1, freezer: -1,
		leaders: make(chan *leader, 1),
		sockets: listeners{most: wire.WaitingConnections, room: map[uint64]int{}},
	}
	go s.reap()
	for {
		m, files, err := s.conn.Receive()
		if err != nil {
			// The driver is gone or talks nonsense: either way nothing may go on.
			return s.end(0)
		}
		if err := s.serve(m, files); err != nil {
			return s.end(125)
		}
	}
}

// end is the last thing that init does. A driver that died in the middle of a kill may have left everything frozen, and what
// is frozen does not die with init.
func (s *sandbox) end(code int) int {
	if s.freezer >= 0 {
		unix.Write(s.freezer, []byte("THAWED"))
	}
	if s.setup != nil && s.setup.Template {
		awaitCopies()
	}
	return code
}

// awaitCopies lets the inits of a template's copies do the same first: the kernel ends them with this process. They end by
// themselves, as the template does, and so become this process's children.
func awaitCopies() {
	gone := make(chan struct{})
	go func() { // which ends with this process at the latest
		for {
			if _, err := unix.Wait4(-1, nil, 0, nil); err == unix.ECHILD {
				close(gone)
				return
			}
		}
	}()
	select {
	case <-gone:
	case <-time.After(copiesLimit):
	}
}

// copiesLimit bounds how long a template's init outlives its driver.
const copiesLimit = 500 * time.Millisecond

// ignoreSignals keeps every signal from ending init where the program has init's own user id and so might send one. Landlock
// keeps them within the fence since its version 6; before, this does. Elsewhere the kernel refuses such signals by id, and
// asking for 64 of them would cost milliseconds of every start.
func (s *sandbox) ignoreSignals() {
	if !s.single {
		return
	}
	var byDefault [32]byte // struct sigaction; the kernel drops what process 1 does not handle
	for sig := uintptr(1); sig <= 64; sig++ {
		if sig != uintptr(unix.SIGURG) && sig != 33 { // those two the runtime sends to itself
			unix.RawSyscall6(unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&byDefault)), 0, 8, 0, 0)
		}
	}
}

// serve answers one message. An error means that the socket is broken.
func (s *sandbox) serve(m wire.Message, files []*os.File) error {
	defer wire.CloseAll(files)
	switch {
	case m.Setup != nil:
		if err := s.build(m.Setup, files); err != nil {
			return s.fail(err)
		}
		if s.guest != nil {
			return s.conn.Send(wire.Message{Ready: &wire.Ready{}})
		}
		data := os.NewFile(uintptr(s.data), "data")
		return s.conn.Send(wire.Message{Ready: &wire.Ready{LandlockABI: s.abi, Buffer: s.buffer}}, data)
	case m.Exec != nil:
		return s.exec(m.Exec, files)
	case m.Go != nil:
		return s.release()
	case m.Resume != nil:
		return s.resume(m.Resume, files)
	case m.Attach != nil:
		return s.attachNetwork(m.Attach, files)
	case m.Open != nil:
		return s.open(m.Open.Path)
	case m.Look != nil:
		return s.look()
	}
	return s.fail(step("read message", errors.New("unknown message")))
}

func (s *sandbox) fail(err error) error {
	f := wire.Failed{Step: "set-up", Detail: err.Error()}
	var at *stepError
	if errors.As(err, &at) {
		f.Step, f.Detail = at.step, at.err.Error()
	}
	var errno unix.Errno
	if errors.As(err, &errno) {
		f.Errno = int(errno)
	}
	return s.conn.Send(wire.Message{Failed: &f})
}

// open hands out a file or folder beneath /outputs. Everything of the user's is dead, so what is judged here is what is
// handed out; still the type is judged on the very object that is opened.
func (s *sandbox) open(path []byte) error {
	name := string(path)
	if name == "" {
		name = "."
	}
	fd, err := unix.Openat2(s.outputs, name, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS |
			unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return s.fail(step("open output", err))
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return s.fail(step("open output", err))
	}
	if kind := st.Mode & unix.S_IFMT; kind != unix.S_IFREG && kind != unix.S_IFDIR {
		return s.conn.Send(wire.Message{Opened: &wire.Opened{NotRegular: true}})
	}
	opened, err := unix.Openat(s.proc, fmt.Sprintf("self/fd/%d", fd), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return s.fail(step("open output", err))
	}
	f := os.NewFile(uintptr(opened), "output")
	defer f.Close()
	return s.conn.Send(wire.Message{Opened: &wire.Opened{}}, f)
}

// writeCode puts the code where the program finds it: read-only to the program, whoever owns it.
func (s *sandbox) writeCode(name string, from *os.File) error {
	fd, err := unix.Openat(s.code, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o444)
	if err != nil {
		return err
	}
	to := os.NewFile(uintptr(fd), "code")
	if _, err := io.Copy(to, io.NewSectionReader(from, 0, 1<<40)); err != nil {
		to.Close()
		return err
	}
	return to.Close()
}
