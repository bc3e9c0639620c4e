package microvm

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"glovebox"
	"glovebox/driver"
	"glovebox/internal/cleanup"
	"glovebox/internal/guestlink"
	"glovebox/internal/hostside"
)

// sandbox is one machine with a sandbox in it.
type sandbox struct {
	driver  *Driver
	spec    driver.Spec
	hold    *driver.Hold // of the interpreter that waits, if one does
	kernel  string       // version
	machine *machine
	files   []*os.File    // disks of its own
	folders []string      // to be removed
	late    bool          // inputs come just before the code
	paused  bool          // the machine stands still
	of      *template     // nil: of none
	room    glovebox.Size // the most memory of a program in the machine

	mu      sync.Mutex
	names   int64 // of outputs that were listed
	current *process
	network *network      // nil: it was not attached
	lost    chan struct{} // of a held interpreter
	closing sync.Once
	closed  error
}

// onDisk tells whether the workspace does not fit into the memory of the run.
func onDisk(l glovebox.Limits) bool { return l.Disk+glovebox.MemoryBesideDisk > l.Memory }

// start boots a machine of its own.
func (s *sandbox) start(ctx context.Context) error {
	d := s.driver
	f, err := d.find()
	if err != nil {
		return err
	}
	boot, err := d.bootFiles(f)
	if err != nil {
		return err
	}
	s.kernel, s.room = f.version, s.spec.Limits.Memory
	disks, err := s.disks(ctx)
	if err != nil {
		return err
	}
	s.machine, err = d.launch(ctx, s.spec.ID, s.spec.Limits, f, from{boot: boot}, d.shapeOf(s.spec.Limits, disks))
	if err != nil {
		return err
	}
	if err := s.machine.meet(ctx); err != nil {
		return err
	}
	method := guestlink.MethodStart
	if s.hold != nil {
		method = guestlink.MethodHold
	}
	return s.build(ctx, method)
}

// disks makes the disks of a machine that is booted for one run: the image, inputs that are there already, and a workspace
// that does not fit into memory.
func (s *sandbox) disks(ctx context.Context) ([]diskFile, error) {
	image, err := s.driver.rootImage(ctx, s.spec.Root)
	if err != nil {
		return nil, err
	}
	s.files = append(s.files, image)
	disks := []diskFile{{guestlink.SerialRoot, image, true}}
	s.late = s.hold != nil // whose inputs are the run's, which comes later
	if s.spec.Inputs != "" && !s.late {
		inputs, err := s.driver.inputsImage(ctx, s.spec.Inputs)
		if err != nil {
			return nil, err
		}
		s.files = append(s.files, inputs)
		disks = append(disks, diskFile{guestlink.SerialIn, inputs, true})
	}
	if onDisk(s.spec.Limits) {
		work, err := s.driver.workDisk(ctx, s.spec.Limits)
		if err != nil {
			return nil, err
		}
		s.files = append(s.files, work)
		disks = append(disks, diskFile{guestlink.SerialWork, work, false})
	}
	return disks, nil
}

// message describes the sandbox to the agent.
func (s *sandbox) message() guestlink.Start {
	m := guestlink.Start{Spec: s.spec, Hold: s.hold, OnDisk: onDisk(s.spec.Limits), Inputs: s.spec.Inputs != "" && !s.late}
	m.Spec.Root.Mounts = nil
	for _, mount := range s.spec.Root.Mounts { // where it is from is the host's affair
		m.Spec.Root.Mounts = append(m.Spec.Root.Mounts, driver.Mount{Target: mount.Target})
	}
	if m.Spec.Inputs != "" {
		m.Spec.Inputs = "/"
	}
	return m
}

// build makes the sandbox in the machine.
func (s *sandbox) build(ctx context.Context, method string) error {
	if err := s.machine.link.Call(ctx, method, s.message(), nil); err != nil {
		return fmt.Errorf("build sandbox: %w", err)
	}
	if s.hold != nil {
		s.watch()
	}
	return nil
}

// abandon closes a sandbox that could not be made.
func (s *sandbox) abandon(ctx context.Context, err error) error {
	if s.machine != nil {
		err = errors.Join(err, s.machine.printed.Printed("the machine"))
	}
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), undoLimit, errors.New("it took longer than 15 s"))
	defer cancel()
	if left := s.Close(ctx); left != nil {
		err = errors.Join(err, driver.ErrLeftBehind, left)
	}
	return err
}

// execLimit bounds the start of a program in a machine that runs.
const execLimit = 60 * time.Second

// Exec releases the code and starts the program.
func (s *sandbox) Exec(ctx context.Context, cmd driver.Command) (driver.Process, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, execLimit, fmt.Errorf("the program did not start in %v", execLimit))
	defer cancel()
	if err := cmd.Check(); err != nil {
		return nil, err
	}
	if len(cmd.Files) > 0 {
		return nil, errors.New("execute: a program in a microVM cannot be given descriptors of the host")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() != nil {
		return nil, fmt.Errorf("execute: %w", context.Cause(ctx))
	}
	if s.current != nil && !s.current.over() {
		return nil, errors.New("execute: a program is running")
	}
	if err := s.wake(ctx); err != nil {
		return nil, err
	}
	p := &process{sandbox: s, exited: make(chan struct{})}
	link := s.machine.link
	out, errs := link.Reader(), link.Reader()
	p.stdout, p.stderr = out, errs
	e := guestlink.Exec{Argv: hostside.Bytes(cmd.Argv),
		Env: hostside.Bytes(cmd.Env), Dir: cmd.Dir, HasCode: cmd.Code != nil, Code: cmd.Code,
		CodeName: cmd.CodeName, Stdout: out.ID(), Stderr: errs.ID(), HasStdin: cmd.Stdin != nil}
	if cmd.Stdin != nil {
		p.stdin = link.Writer()
		e.Stdin = p.stdin.ID()
	}
	outer, err := s.machine.process.Sample()
	if err != nil {
		return nil, fmt.Errorf("execute: read counters: %w", err)
	}
	p.before = outer.CPU
	var started guestlink.Executed
	err = link.Call(ctx, guestlink.MethodExec, e, &started)
	link.Distrust()
	if err != nil {
		return nil, s.failed(ctx, err)
	}
	p.released = time.Now()
	p.posture = s.posture(started.Posture)
	s.current = p
	p.watch(s.machine)
	if p.stdin != nil {
		go feed(p.stdin, cmd.Stdin)
	}
	return p, nil
}

// failed ends the machine where a program may have been started and nobody knows.
func (s *sandbox) failed(ctx context.Context, err error) error {
	err = fmt.Errorf("execute: %w", err)
	if ctx.Err() == nil && s.machine.link.Alive() {
		return err // the agent's own answer
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
	defer cancel()
	return errors.Join(err, driver.ErrReleased, s.machine.kill(undo))
}

// feed copies standard input to the program. A source that blocks for ever holds this goroutine until it is read from or
// closed, and nothing else.
func feed(to *guestlink.Writer, from io.Reader) {
	// The program may end at any moment; what it did not read is nobody's error.
	_, _ = io.Copy(struct{ io.Writer }{to}, from)
	_ = to.Close()
}

// openLimit bounds the copy of one output.
const openLimit = 5 * time.Minute

// Open copies a file or folder of /outputs out of the machine, into a file that has no name or a folder of its own, and
// opens that. The agent opens it beneath /outputs and tells what it is.
func (s *sandbox) Open(path string) (*os.File, error) {
	ctx, cancel := context.WithTimeout(context.Background(), openLimit)
	defer cancel()
	from := s.machine.link.Reader()
	defer from.Close()
	var opened guestlink.Opened
	err := s.machine.link.Call(ctx, guestlink.MethodOpen, guestlink.Open{Path: []byte(path), Stream: from.ID()}, &opened)
	if err != nil {
		return nil, fmt.Errorf("open output: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = from.Close() })
	defer stop()
	if opened.Folder {
		return s.takeNames(from)
	}
	return s.takeFile(from, opened.Size)
}

// takeFile makes a file of the parts that come.
func (s *sandbox) takeFile(from io.Reader, size int64) (_ *os.File, err error) {
	f, err := s.driver.nameless()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if size < 0 {
		return nil, errors.New("open output: a size below zero")
	}
	if err := f.Truncate(size); err != nil {
		return nil, fmt.Errorf("open output: %w", err)
	}
	room, at := int64(s.spec.Limits.Disk)+diskSlack, int64(0)
	head := make([]byte, 16)
	for {
		if _, err := io.ReadFull(from, head); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("open output: %w", err)
		}
		start, n := int64(binary.LittleEndian.Uint64(head)), int64(binary.LittleEndian.Uint64(head[8:]))
		if start < at || n <= 0 || n > size || start > size-n || n > room {
			return nil, errors.New("open output: the guest sent what is no part of the file")
		}
		if _, err := io.CopyN(io.NewOffsetWriter(f, start), from, n); err != nil {
			return nil, fmt.Errorf("open output: %w", err)
		}
		at, room = start+n, room-n
	}
	if !s.machine.link.Alive() {
		return nil, errors.New("open output: the machine has ended")
	}
	return readOnly(f)
}

// diskSlack is what a file may have beyond the limit of the disk: a file system counts in blocks.
const diskSlack = 1 << 20

// takeNames makes a folder with an empty file for each name that comes, so that it can be listed.
func (s *sandbox) takeNames(from io.Reader) (*os.File, error) {
	most := (s.spec.Limits.Files + 16) * 256
	text, err := io.ReadAll(io.LimitReader(from, most+1))
	if err != nil {
		return nil, fmt.Errorf("open output: %w", err)
	}
	if int64(len(text)) > most || !s.machine.link.Alive() {
		return nil, errors.New("open output: the guest listed more names than there can be, or has ended")
	}
	if err := s.countNames(1 + bytes.Count(text, []byte{0})); err != nil {
		return nil, err
	}
	dir, err := s.folder()
	if err != nil {
		return nil, fmt.Errorf("open output: %w", err)
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(text), "\x00"), "\x00") {
		if len(text) == 0 {
			break
		}
		if name == "" || name == "." || name == ".." || strings.ContainsRune(name, '/') || len(name) > 255 {
			return nil, errors.New("open output: the guest sent what is no name")
		}
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, fmt.Errorf("open output: %w", err)
		}
		f.Close()
	}
	return os.Open(dir)
}

// listings is how often a folder is opened while outputs are collected, and some more.
const listings = 4

// countNames refuses more names than the files that there can be: each is a file of the host's until the sandbox is closed.
func (s *sandbox) countNames(n int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names += int64(n)
	if most := s.spec.Limits.Files + 16; int64(n) > most || s.names > listings*most {
		return errors.New("open output: the guest listed more files than there can be")
	}
	return nil
}

// foldersOf is how the folders begin that lists of names are put into.
const foldersOf = "names-"

// folder makes an empty one that is removed when the sandbox is closed.
func (s *sandbox) folder() (string, error) {
	if err := os.MkdirAll(s.driver.cfg.ScratchDir, 0o700); err != nil {
		return "", err
	}
	s.driver.swept.Do(s.driver.sweep)
	dir, err := os.MkdirTemp(s.driver.cfg.ScratchDir, foldersOf)
	if err != nil {
		return "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.folders = append(s.folders, dir)
	return dir, nil
}

// Disk measures the sandbox's own file system, as the guest tells.
func (s *sandbox) Disk() (driver.DiskUse, error) {
	ctx, cancel := context.WithTimeout(context.Background(), s.driver.answerLimit())
	defer cancel()
	var use driver.DiskUse
	err := s.machine.link.Call(ctx, guestlink.MethodDisk, nil, &use)
	if err != nil {
		return use, fmt.Errorf("measure workspace: %w", err)
	}
	return driver.DiskUse{Used: max(use.Used, 0), FreeBytes: max(use.FreeBytes, 0), FreeFiles: max(use.FreeFiles, 0)}, nil
}

// Close ends the machine and releases everything.
func (s *sandbox) Close(ctx context.Context) error {
	s.closing.Do(func() { s.closed = s.close(ctx) })
	return s.closed
}

func (s *sandbox) close(ctx context.Context) error {
	var undo cleanup.Stack
	if n := s.network; n != nil {
		undo.Push("end network", func(context.Context) error { n.work.Wait(); return nil }) // which the machine's end ends
		undo.Push("close network", func(context.Context) error { n.close(); return nil })
	}
	undo.Push("remove folders", s.removeFolders) // once the machine has ended, and so whoever waits for it
	for _, f := range s.files {
		undo.Push("close disks", func(context.Context) error { return f.Close() })
	}
	if s.machine != nil {
		undo.Push("end machine", s.machine.close)
	}
	err := undo.Run(ctx)
	s.of.forget(s)
	return err
}

// removeFolders removes the folders that names were listed in.
func (s *sandbox) removeFolders(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	for _, dir := range s.folders {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	return err
}

// sweep removes such folders of processes that died, which nobody can be reading any more.
func (d *Driver) sweep() {
	left, err := filepath.Glob(filepath.Join(d.cfg.ScratchDir, foldersOf+"*"))
	if err != nil {
		return // of which a fixed pattern has none
	}
	for _, dir := range left {
		if info, err := os.Lstat(dir); err == nil && time.Since(info.ModTime()) > 24*time.Hour {
			_ = os.RemoveAll(dir) // it is tried again by the next process
		}
	}
}
