package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"glovebox"
	"glovebox/driver"
	"glovebox/internal/cgroup"
	"glovebox/internal/cleanup"
	"glovebox/internal/hostside"
	"glovebox/internal/sandboxinit/wire"
)

// sandbox is one live guard with its control group, and the kernel in it.
type sandbox struct {
	driver   *Driver
	spec     driver.Spec
	ids      *hostside.IDs
	group    *cgroup.Group
	link     *hostside.Link // the lifeline
	guard    *hostside.Init
	gone     chan struct{} // closed when the guard has been reaped, and so everything inside is dead
	data     *os.File
	baseline int64         // bytes of data in use before the program
	memory   glovebox.Size // what the program may have now
	boots    int           // how many kernels there were; of whoever executes
	assembly *Assembly     // nil: it is for programs
	held     *held         // the interpreter that waits for its code, if one does
	spent    bool          // it got its code
	device   *os.File      // the other end of its network, until that is attached; nil: there is none any more, or none at all
	contents *os.File      // of the files of its network
	attached *wire.Attach  // the files of its network; nil: it was not attached

	mu        sync.Mutex
	kernel    *kernel
	launching *kernel // whose launcher runs
	current   *process
	own       int64 // bytes of memory in use before the program
	closing   sync.Once
	closed    error
}

// launcherEnded hears that the runsc which starts the others has ended, or the guard.
func (s *sandbox) launcherEnded(how *wire.Ended) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.launching; k != nil {
		k.how = how
		close(k.launched)
		s.launching = nil
	}
}

// done waits until the runsc that starts the others has done so: it has more rights than they.
func (k *kernel) done(ctx context.Context) error {
	select {
	case <-k.launched:
	case <-ctx.Done():
		return fmt.Errorf("start runsc: %w", context.Cause(ctx))
	}
	if k.how == nil || k.how.WaitStatus != 0 {
		return errors.Join(errors.New("start runsc: it failed"), k.said.error())
	}
	return nil
}

// end reports the leader's end, the first time only. Without a word of it the kernel ended first: by the driver, or for want
// of memory, or else it was lost.
func (s *sandbox) end(how *wire.Ended) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.current
	if p == nil || p.ended {
		return
	}
	switch {
	case how != nil:
		p.exit = exitOf(how)
	case p.killed || s.outOfMemory():
		p.exit = driver.Exit{Signal: syscall.SIGKILL}
	default:
		p.exit = driver.Exit{Lost: true}
	}
	p.ended = true
	close(p.exited)
}

// outOfMemory reports whether the host's kernel has killed for want of memory in the sandbox.
func (s *sandbox) outOfMemory() bool {
	c, err := s.group.Sample()
	return err == nil && c.OOMKills > 0
}

func exitOf(e *wire.Ended) driver.Exit {
	status := syscall.WaitStatus(e.WaitStatus)
	x := driver.Exit{NotStarted: e.NotStarted}
	if status.Signaled() {
		x.Signal = status.Signal()
		return x
	}
	x.Code = status.ExitStatus()
	return x
}

// explain is of a failure under the kernel: nothing that the host's operator could mend.
func (s *sandbox) explain(f *wire.Failed) error {
	return fmt.Errorf("under runsc: %s: %s", f.Step, f.Detail)
}

// note remembers what memory the kernel takes by itself.
func (s *sandbox) note() error {
	c, err := s.group.Sample()
	if err != nil {
		return fmt.Errorf("read counters: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.own = max(0, c.Memory)
	return nil
}

// abandon closes a sandbox that could not be made.
func (s *sandbox) abandon(ctx context.Context) error {
	ctx, cancel := hostside.UndoContext(ctx)
	defer cancel()
	return s.Close(ctx)
}

// Open opens a file beneath /outputs by asking the guard, whose namespaces hold the file system. The kernel that the program
// ran on is dead by then, and has no say in it.
func (s *sandbox) Open(path string) (*os.File, error) { return s.link.Open(path) }

// Disk measures the sandbox's own file system.
func (s *sandbox) Disk() (driver.DiskUse, error) {
	return hostside.DiskUse(s.data, s.baseline, s.spec.Limits)
}

// endGuard ends the guard, and with it everything in its process namespace, and waits until the host's kernel says so.
func (s *sandbox) endGuard(ctx context.Context) error {
	if err := s.guard.Kill(); err != nil {
		return err
	}
	select {
	case <-s.gone:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("end guard: %w", context.Cause(ctx))
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
	if s.device != nil {
		undo.Push("close network", func(context.Context) error { return s.device.Close() })
	}
	if s.contents != nil {
		undo.Push("close files of the network", func(context.Context) error { return s.contents.Close() })
	}
	if s.data != nil {
		undo.Push("close workspace", func(context.Context) error { return s.data.Close() })
	}
	if s.guard != nil {
		undo.Push("close lifeline", func(context.Context) error { return s.link.Close() })
		undo.Push("end guard", s.endGuard)
	}
	s.mu.Lock()
	p, k := s.current, s.kernel
	s.kernel = nil
	s.mu.Unlock()
	if k != nil {
		undo.Push("hang up", func(context.Context) error { k.close(); return nil })
		undo.Push("end kernel", s.group.KillMembers)
	}
	if p != nil {
		undo.Push("close streams", func(context.Context) error { return p.closeStreams() })
	}
	return undo.Run(ctx)
}

// releaseIDs lets others have the ids, but not while something may still run under them.
func (s *sandbox) releaseIDs(context.Context) error {
	if s.guard == nil {
		return s.ids.Release()
	}
	select {
	case <-s.gone:
		return s.ids.Release()
	default:
		return errors.New("the guard has not ended: its ids stay taken until this process ends")
	}
}

// Exec releases the code and starts the program.
func (s *sandbox) Exec(ctx context.Context, cmd driver.Command) (driver.Process, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, errors.New("the program did not start in 30 s"))
	defer cancel()
	if err := cmd.Check(); err != nil {
		return nil, err
	}
	if len(cmd.Files) > 0 {
		return nil, errors.New("execute: a program under runsc is given no descriptors of the host")
	}
	var first []*os.File
	if cmd.Code != nil {
		code, err := hostside.SealedFile(cmd.Code)
		if err != nil {
			return nil, err
		}
		defer code.Close()
		first = append(first, code)
	}
	if s.spent {
		return nil, errors.New("execute: the interpreter that waited has served")
	}
	if s.held != nil {
		return s.resume(ctx, cmd, first)
	}
	p, err := s.bring(ctx, &wire.Exec{Argv: hostside.Bytes(cmd.Argv),
		Env: hostside.Bytes(cmd.Env), Dir: cmd.Dir, HasCode: cmd.Code != nil,
		CodeName: cmd.CodeName, Stdin: cmd.Stdin != nil}, first...)
	if err != nil {
		return nil, err
	}
	if cmd.Stdin != nil {
		go hostside.Feed(p.stdin, cmd.Stdin)
	}
	p.released = time.Now()
	if err := p.kernel.guest.Send(wire.Message{Go: &wire.Go{}}); err != nil {
		return nil, errors.Join(fmt.Errorf("execute: %w", err), p.abort(ctx))
	}
	return p, nil
}

// renew boots another kernel where an earlier program's was ended with it.
func (s *sandbox) renew(ctx context.Context) error {
	s.mu.Lock()
	k := s.kernel
	killed := k != nil && k.killed
	s.mu.Unlock()
	if k != nil {
		select {
		case <-k.guest.Lost():
		default:
			if !killed {
				return nil
			}
		}
		if err := s.group.KillMembers(ctx); err != nil {
			return err
		}
		k.close()
	}
	return s.boot(ctx)
}

// bring brings a program to the gate and checks there that what stands around it is complete. first are the descriptors that
// come before those of the streams.
func (s *sandbox) bring(ctx context.Context, e *wire.Exec, first ...*os.File) (*process, error) {
	s.mu.Lock()
	if s.current != nil && !s.current.ended {
		s.mu.Unlock()
		return nil, errors.New("execute: a program is running")
	}
	s.current = nil
	s.mu.Unlock()
	if err := s.renew(ctx); err != nil {
		return nil, fmt.Errorf("execute: %w", err)
	}
	p := &process{sandbox: s, exited: make(chan struct{})}
	far, err := p.makeStreams(e.Stdin)
	defer wire.CloseAll(far)
	if err != nil {
		return nil, errors.Join(err, p.closeStreams())
	}
	s.mu.Lock()
	s.current, p.kernel = p, s.kernel
	s.mu.Unlock()
	e.Streams = len(far)
	r, err := p.kernel.guest.Ask(ctx, wire.Message{Exec: e}, append(first, far...)...)
	if err != nil {
		s.mu.Lock()
		s.current = nil
		s.mu.Unlock()
		return nil, errors.Join(fmt.Errorf("execute: %w", err), p.closeStreams())
	}
	if err := p.begin(ctx, r); err != nil {
		wire.CloseAll(r.Files)
		return nil, errors.Join(err, p.abort(ctx), p.closeStreams())
	}
	return p, nil
}

// makeStreams makes the pipes between the program and whoever reads it. What is returned is the program's.
func (p *process) makeStreams(stdin bool) (far []*os.File, err error) {
	for _, near := range []**os.File{&p.stdout, &p.stderr} {
		read, write, err := os.Pipe()
		if err != nil {
			return far, fmt.Errorf("make pipes: %w", err)
		}
		*near, far = read, append(far, write)
	}
	if stdin {
		read, write, err := os.Pipe()
		if err != nil {
			return far, fmt.Errorf("make pipes: %w", err)
		}
		p.stdin, far = write, append(far, read)
	}
	return far, nil
}
