package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"glovebox/driver"
	"glovebox/internal/cgroup"
	"glovebox/internal/cleanup"
	"glovebox/internal/hostside"
	"glovebox/internal/sandboxinit/wire"
)

// sandbox is one live init with its control group.
type sandbox struct {
	driver   *Driver
	spec     driver.Spec
	origin   origin
	ids      *hostside.IDs
	group    *cgroup.Group
	link     *hostside.Link // the lifeline
	init     *hostside.Init
	gone     chan struct{} // closed when init has been reaped, and so everything inside is dead
	data     *os.File
	baseline int64 // bytes of data in use before the program
	landlock int
	buffer   string // as in wire.Ready

	namespaces []string // of a template, as the kernel names them
	shared     int64    // bytes of memory that the program shares with its template and would else have taken itself
	attached   bool     // it has, or had, a network
	resized    bool     // the control group has the limits of the Spec
	held       *held    // the interpreter that waits for its code, if one does
	mu         sync.Mutex
	current    *process
	closing    sync.Once
	closed     error
}

// end reports the leader's end, the first time only. Without a word of it, it was lost.
func (s *sandbox) end(how *wire.Ended) {
	e := driver.Exit{Lost: true}
	if how != nil {
		e = exitOf(how)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.current; p != nil && !p.ended {
		p.exit, p.ended = e, true
		close(p.exited)
	}
}

// Open opens a file beneath /outputs by asking init, whose namespaces hold the file system.
func (s *sandbox) Open(path string) (*os.File, error) { return s.link.Open(path) }

// Disk measures the sandbox's own file system.
func (s *sandbox) Disk() (driver.DiskUse, error) {
	return hostside.DiskUse(s.data, s.baseline, s.spec.Limits)
}

// endInit ends init, and with it everything in its process namespace, and waits until the kernel says so.
func (s *sandbox) endInit(ctx context.Context) error {
	if err := s.init.Kill(); err != nil {
		return err
	}
	select {
	case <-s.gone:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("end init: %w", context.Cause(ctx))
	}
}

// Close ends and releases everything.
func (s *sandbox) Close(ctx context.Context) error {
	s.closing.Do(func() { s.closed = s.close(ctx) })
	return s.closed
}

// close ends what there is of a sandbox, whose making may have failed half way.
func (s *sandbox) close(ctx context.Context) error {
	var undo cleanup.Stack
	undo.Push("release ids", s.releaseIDs)
	if s.group != nil {
		undo.Push("remove control groups", s.group.Remove)
	}
	if s.data != nil {
		undo.Push("close workspace", func(context.Context) error { return s.data.Close() })
	}
	if s.init != nil {
		undo.Push("close lifeline", func(context.Context) error { return s.link.Close() })
		undo.Push("end init", s.endInit)
	}
	s.mu.Lock()
	p := s.current
	s.mu.Unlock()
	if p != nil {
		undo.Push("end program", p.killOnce)
		undo.Push("close streams", func(context.Context) error { return p.closeStreams() })
	}
	err := undo.Run(ctx)
	s.origin.from.note(s, false)
	return err
}

// releaseIDs lets others have the ids, but not while something may still run under them.
func (s *sandbox) releaseIDs(context.Context) error {
	if s.init == nil {
		return s.ids.Release()
	}
	select {
	case <-s.gone:
		return s.ids.Release()
	default:
		return errors.New("init has not ended: its ids stay taken until this process ends")
	}
}

// Exec releases the code and starts the program.
func (s *sandbox) Exec(ctx context.Context, cmd driver.Command) (driver.Process, error) {
	ctx, cancel := s.driver.bounded(ctx, "the program did not start")
	defer cancel()
	if err := cmd.Check(); err != nil {
		return nil, err
	}
	var code *os.File
	if cmd.Code != nil {
		var err error
		if code, err = hostside.SealedFile(cmd.Code); err != nil {
			return nil, err
		}
		defer code.Close()
	}
	if n := len(cmd.Files); n > driver.MaxFiles || n > 0 && s.held != nil {
		return nil, fmt.Errorf("execute: %d descriptors, and a program gets %d at most, an interpreter that waits none", n,
			driver.MaxFiles)
	}
	if s.held != nil {
		return s.resume(ctx, cmd, code)
	}
	first := cmd.Files
	if code != nil {
		first = append([]*os.File{code}, first...)
	}
	p, err := s.bring(ctx, &wire.Exec{Argv: hostside.Bytes(cmd.Argv), Env: hostside.Bytes(cmd.Env),
		Dir: cmd.Dir, HasCode: code != nil,
		CodeName: cmd.CodeName, Files: len(cmd.Files), Stdin: cmd.Stdin != nil}, first...)
	if err != nil {
		return nil, err
	}
	if p.stdin != nil {
		go hostside.Feed(p.stdin, cmd.Stdin)
	}
	p.released = time.Now()
	if err := s.link.Send(wire.Message{Go: &wire.Go{}}); err != nil {
		return nil, errors.Join(fmt.Errorf("execute: %w", err), p.abort(ctx))
	}
	return p, nil
}

// bring brings a program to the gate, in its control groups, and checks there that its fence is complete. first are the
// descriptors that come before those of the control groups.
func (s *sandbox) bring(ctx context.Context, e *wire.Exec, first ...*os.File) (*process, error) {
	files := slices.Clone(first)
	files = hostside.Join(e, s.group, files)
	p := &process{sandbox: s, exited: make(chan struct{})}
	s.mu.Lock()
	if s.current != nil && !s.current.ended {
		s.mu.Unlock()
		return nil, errors.New("execute: a program is running")
	}
	s.current = p
	s.mu.Unlock()
	r, err := s.link.Ask(ctx, wire.Message{Exec: e}, files...)
	if err != nil {
		s.mu.Lock()
		s.current = nil
		s.mu.Unlock()
		return nil, fmt.Errorf("execute: %w", err)
	}
	if err := p.begin(r, e.Stdin || e.Forked); err != nil {
		wire.CloseAll(r.Files)
		return nil, errors.Join(err, p.abort(ctx))
	}
	return p, nil
}
