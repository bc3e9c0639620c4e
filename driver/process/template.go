package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"glovebox"
	"glovebox/driver"
	"glovebox/internal/boot"
	"glovebox/internal/hostside"
	"glovebox/internal/sandboxinit/wire"
)

// origin is what a sandbox is made of.
type origin struct {
	template bool          // it is for a template
	from     *template     // it is a copy of one
	held     glovebox.Size // the memory of an interpreter that waits for its code; 0: that of the limits
}

// templateProcesses bounds the processes of a template: itself, and what it makes on the way to a copy.
const templateProcesses = 64

// template is an interpreter that makes copies of itself, each in a sandbox of its own. It is the only program of a sandbox
// whose init holds nothing else.
type template struct {
	driver  *Driver
	hold    driver.Hold
	box     *sandbox
	process *process
	channel *os.File // orders go out, descriptors of inits come back
	init    *os.File // the binary of glovebox-init
	drained sync.WaitGroup
	said    hostside.Tail // on standard error

	living sync.Mutex
	copies map[*sandbox]bool // that are not closed

	life    context.Context // ends when the template is to be closed, and with it what is being forked
	end     context.CancelFunc
	forking sync.RWMutex // held by whoever forks
	closing sync.Once
	closed  error

	asking sync.Mutex
	sizes  []moduleSize // what the modules took of its memory, in the order in which they were loaded
}

// moduleSize is the memory that one module took to load, with what it loaded itself.
type moduleSize struct {
	name  string
	bytes int64
}

// Sizes are what a copy needs of its own beside what it shares, and a template to load its modules.
func (d *Driver) Sizes(hold driver.Hold) driver.Sizes {
	return driver.Sizes{Alone: hold.Memory, Copy: 64 * glovebox.MiB, Template: max(128*glovebox.MiB, hold.Memory)}
}

// Template starts an interpreter that can be copied. There are templates of Python alone: other interpreters have threads.
func (d *Driver) Template(ctx context.Context, spec driver.Spec, hold driver.Hold) (driver.Template, error) {
	if hold.Lang != "python" {
		e := glovebox.Errorf(glovebox.CodeUnavailable, "hold an interpreter in each sandbox",
			"the process rung has no templates of %.20q", hold.Lang)
		e.Err = driver.ErrNoTemplates
		return nil, e
	}
	ctx, cancel := d.bounded(ctx, "the template was not ready")
	defer cancel()
	spec.Limits.Processes = templateProcesses
	spec.Limits.Disk, spec.Limits.Files = 1*glovebox.MiB, 64
	s, err := d.start(ctx, spec, origin{template: true})
	if err != nil {
		return nil, err
	}
	t := &template{driver: d, hold: hold, box: s, copies: map[*sandbox]bool{}}
	t.life, t.end = context.WithCancel(context.Background())
	if err := t.begin(ctx); err != nil {
		err = errors.Join(fmt.Errorf("start template: %w", err), said(t.process))
		ctx, cancel := hostside.UndoContext(ctx)
		defer cancel()
		if left := t.Close(ctx); left != nil {
			err = errors.Join(err, driver.ErrLeftBehind, left)
		}
		return nil, err
	}
	return t, nil
}

// begin starts the interpreter and waits until its modules are loaded.
func (t *template) begin(ctx context.Context) error {
	// By path, since nothing of it is read here: it is executed where this path means nothing.
	fd, err := unix.Open(t.driver.cfg.Init, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open glovebox-init: %w", err)
	}
	t.init = os.NewFile(uintptr(fd), "glovebox-init")
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("make channel: %w", err)
	}
	far := os.NewFile(uintptr(fds[1]), "channel")
	defer far.Close()
	if err := unix.SetNonblock(fds[0], true); err != nil {
		return errors.Join(fmt.Errorf("make channel: %w", err), unix.Close(fds[0]))
	}
	t.channel = os.NewFile(uintptr(fds[0]), "channel")
	cold := t.hold.Command.Argv
	if len(cold) < 2 {
		return hostside.ErrNoCode
	}
	argv := boot.Template(cold[0], cold[len(cold)-1], t.hold.Modules)
	e := &wire.Exec{Argv: hostside.Bytes(argv), Env: hostside.Bytes(t.hold.Command.Env), Dir: t.hold.Command.Dir, Channel: true}
	if t.process, err = t.box.bring(ctx, e, far); err != nil {
		return err
	}
	if err := t.box.link.Send(wire.Message{Go: &wire.Go{}}); err != nil {
		return err
	}
	answer, files, err := t.receive(ctx)
	wire.CloseAll(files)
	if err != nil {
		return err
	}
	if t.sizes, err = readSizes(answer); err != nil {
		return err
	}
	t.drained.Go(func() { _, _ = io.Copy(io.Discard, t.process.stdout) })
	t.drained.Go(func() { _, _ = io.Copy(&t.said, t.process.stderr) })
	return nil
}

// readSizes reads a template's first word: "ready", then a line with a name and a number of bytes for each module.
func readSizes(answer string) ([]moduleSize, error) {
	first, rest, _ := strings.Cut(answer, "\n")
	if first != "ready" {
		return nil, fmt.Errorf("the template answered %.200q", answer)
	}
	var sizes []moduleSize
	for line := range strings.Lines(rest) {
		name, number, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.ParseInt(number, 10, 64)
		if err != nil || n < 0 {
			return nil, fmt.Errorf("the template answered %.200q", answer)
		}
		sizes = append(sizes, moduleSize{name, n})
	}
	return sizes, nil
}

// receive takes one answer of the template.
func (t *template) receive(ctx context.Context) (string, []*os.File, error) {
	stop := context.AfterFunc(ctx, func() { _ = t.channel.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	b := make([]byte, 16<<10)
	n, files, err := wire.ReceiveFiles(t.channel, b)
	switch {
	case ctx.Err() != nil:
		wire.CloseAll(files)
		return "", nil, context.Cause(ctx)
	case err != nil:
		return "", nil, err
	case n == 0:
		wire.CloseAll(files)
		return "", nil, errors.New("the template has ended")
	}
	return string(b[:n]), files, nil
}

var errClosed = errors.New("fork: the template is closed")

// Fork makes a sandbox whose interpreter is a copy of the template's.
func (t *template) Fork(ctx context.Context, spec driver.Spec) (driver.HeldSandbox, error) {
	t.forking.RLock()
	defer t.forking.RUnlock()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer context.AfterFunc(t.life, func() { stop(errClosed) })()
	if t.life.Err() != nil {
		return nil, errClosed
	}
	s, err := t.driver.hold(ctx, spec, t.hold, origin{from: t, held: t.hold.Memory}, func(s *sandbox) (*process, error) {
		return s.bring(ctx, &wire.Exec{Dir: t.hold.Command.Dir, Forked: true})
	})
	if err != nil {
		return nil, errors.Join(err, t.said.Printed("the template"))
	}
	return s, nil
}

// note keeps account of the copies that are not closed.
func (t *template) note(s *sandbox, lives bool) {
	if t == nil {
		return
	}
	t.living.Lock()
	defer t.living.Unlock()
	if lives {
		t.copies[s] = true
	} else {
		delete(t.copies, s)
	}
}

// answerLimit bounds how long a template may take to make a copy of itself; it takes a millisecond or two.
const answerLimit = 10 * time.Second

// fork has the template make a copy of itself, with far as the control socket of the copy's init. One that does not
// answer is ended, since an answer that comes late must not be taken for that of another order; that a caller gives up
// is no reason.
func (t *template) fork(ctx context.Context, s *sandbox, far *os.File) (*hostside.Init, error) {
	t.asking.Lock()
	defer t.asking.Unlock()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	parents, err := s.group.ParentTasks()
	if err != nil {
		return nil, err
	}
	defer wire.CloseAll(parents)
	ids := s.ids.Map(wire.ProgramID)
	order := bytes.Join([][]byte{[]byte("fork"), []byte(one(s.ids.Single)), []byte(one(s.group.Unified() != nil)),
		[]byte(strconv.Itoa(len(parents))), []byte(capabilityList()), []byte(ids)}, []byte{0})
	fds := []int{wire.FD(far), wire.FD(t.init)}
	if s.group.Unified() != nil {
		fds = append(fds, wire.FD(s.group.Cradle()), wire.FD(s.group.Unified()))
	}
	for _, f := range parents {
		fds = append(fds, wire.FD(f))
	}
	if err := wire.SendFiles(t.channel, order, fds); err != nil {
		return nil, fmt.Errorf("order a copy: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), answerLimit,
		errors.New("the template did not answer in 10 s"))
	defer cancel()
	answer, files, err := t.receive(ctx)
	if err != nil {
		_ = t.box.init.Kill()
		return nil, fmt.Errorf("order a copy: %w", err)
	}
	if answer != "copy" || len(files) != 1 {
		wire.CloseAll(files)
		return nil, fmt.Errorf("order a copy: the template answered %.200q", answer)
	}
	return holdCopy(files[0])
}

func one(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

// capabilityList is hostside.InitCapabilities for whoever starts the init of a copy.
func capabilityList() string {
	list := make([]string, len(hostside.InitCapabilities))
	for i, c := range hostside.InitCapabilities {
		list[i] = strconv.Itoa(int(c))
	}
	return strings.Join(list, " ")
}

// holdCopy takes over a descriptor of an init that is not this process's child.
func holdCopy(pidfd *os.File) (*hostside.Init, error) {
	fd, err := unix.FcntlInt(pidfd.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err := errors.Join(err, pidfd.Close()); err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	return hostside.HoldInit(0, fd, false)
}

// inside is the path at which the template shows a folder of the host below that of its inputs.
func (t *template) inside(folder string) (string, error) {
	rel, err := filepath.Rel(t.box.spec.Inputs, folder)
	if err != nil || t.box.spec.Inputs == "" || !filepath.IsLocal(rel) || rel == "." {
		return "", errors.New("show inputs: the folder is not below that of the template")
	}
	return filepath.Join("/inputs", rel), nil
}

// needs are the modules that others load.
var needs = map[string][]string{"pandas": {"numpy"}, "matplotlib": {"numpy"}}

// shares is the memory, in bytes, that a program would have taken itself if it had not been a copy: the interpreter's, and
// that of the modules which its code names. What it names was loaded before, and was counted for the template.
func (o origin) shares(code []byte) int64 {
	if o.from == nil {
		return 0
	}
	var named []string
	for _, m := range o.from.sizes[min(1, len(o.from.sizes)):] {
		if imports(code, m.name) {
			named = append(append(named, m.name), needs[m.name]...)
		}
	}
	var sum int64
	for i, m := range o.from.sizes {
		if i == 0 || slices.Contains(named, m.name) { // the first is the interpreter
			sum += m.bytes
		}
	}
	return sum
}

// imports tells whether a line of Python imports a module, as far as can be told without running it.
func imports(code []byte, module string) bool {
	for line := range bytes.Lines(code) {
		for _, part := range bytes.Split(line, []byte{';'}) {
			part = bytes.TrimSpace(part)
			rest, found := bytes.CutPrefix(part, []byte("import "))
			if !found {
				rest, found = bytes.CutPrefix(part, []byte("from "))
			}
			if found && slices.ContainsFunc(bytes.FieldsFunc(rest, apart), func(w []byte) bool { return string(w) == module }) {
				return true
			}
		}
	}
	return false
}

// apart divides the names of an import. What follows a dot is another name.
func apart(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) }

// Ended is closed when the template can make no more copies.
// Origin: a copy is a fork of the template's process.
func (t *template) Origin() string { return driver.StartFork }

func (t *template) Ended() <-chan struct{} { return t.process.exited }

// Close ends the template, after the copies that nobody closed. Closing again does nothing.
func (t *template) Close(ctx context.Context) error {
	t.closing.Do(func() { t.closed = t.close(ctx) })
	return t.closed
}

func (t *template) close(ctx context.Context) error {
	t.end()
	t.forking.Lock() // a sandbox that is half made is its maker's to undo
	t.forking.Unlock()
	t.living.Lock()
	left := slices.Collect(maps.Keys(t.copies))
	t.living.Unlock()
	var err error
	for _, s := range left {
		err = errors.Join(err, s.Close(ctx))
	}
	err = errors.Join(err, t.box.Close(ctx))
	for _, f := range []*os.File{t.channel, t.init} {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
	}
	t.drained.Wait()
	return err
}

var _ driver.Warmer = (*Driver)(nil)
