package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"glovebox"
	"glovebox/driver"
	"glovebox/internal/boot"
	"glovebox/internal/hostside"
	"glovebox/internal/sandboxinit/wire"
)

// held is an interpreter that waits for its code in a sandbox.
type held struct {
	hold    driver.Hold
	process *process
	resized bool // the control group has the limits of the Spec
}

// heldSandbox is a sandbox with one.
type heldSandbox struct{ *sandbox }

// Sizes are what an interpreter needs for itself: there are no templates.
func (d *Driver) Sizes(hold driver.Hold) driver.Sizes { return driver.Sizes{Alone: hold.Memory} }

// Template fails: under a kernel of its own a process has no copies in other sandboxes.
func (d *Driver) Template(context.Context, driver.Spec, driver.Hold) (driver.Template, error) {
	return nil, &glovebox.Error{Code: glovebox.CodeUnavailable, Op: "make template", Err: driver.ErrNoTemplates,
		Public: "the gvisor rung has no templates", Fix: "hold interpreters instead"}
}

// Hold makes a sandbox and starts an interpreter in it, which loads its modules and waits as any program would run.
func (d *Driver) Hold(ctx context.Context, spec driver.Spec, hold driver.Hold) (driver.HeldSandbox, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, holdTimeout, errors.New("the interpreter was not ready in a minute"))
	defer cancel()
	cold := hold.Command.Argv
	if len(cold) < 2 {
		return nil, hostside.ErrNoCode
	}
	spec.Root.Files = hostside.WithBoot(spec.Root.Files, hold.Lang)
	s, err := d.start(ctx, spec, hold.Memory)
	if err != nil {
		return nil, err
	}
	argv := boot.Held(hold.Lang, cold[0], cold[len(cold)-1], hold.Modules)
	p, err := s.bring(ctx, &wire.Exec{Argv: hostside.Bytes(argv), Env: hostside.Bytes(hold.Command.Env), Dir: hold.Command.Dir,
		Stdin: true, Held: true})
	if err == nil {
		err = s.awaitHeld(ctx, p, hold)
	}
	if err != nil {
		err = errors.Join(fmt.Errorf("hold interpreter: %w", err), printed(p))
		if left := s.abandon(ctx); left != nil {
			err = errors.Join(err, driver.ErrLeftBehind, left)
		}
		return nil, err
	}
	return heldSandbox{s}, nil
}

// holdTimeout bounds what Hold takes, which loads modules on a kernel that is slower at that than the host's.
const holdTimeout = time.Minute

// printed is what an interpreter that failed printed, as far as that is there to be read.
func printed(p *process) error {
	if p == nil {
		return nil
	}
	b := make([]byte, 2048)
	if p.stderr.SetReadDeadline(time.Now().Add(50*time.Millisecond)) != nil {
		return nil
	}
	n, err := p.stderr.Read(b)
	if err != nil || n == 0 {
		return nil
	}
	return fmt.Errorf("it printed %.2000q", b[:n])
}

// awaitHeld lets the interpreter go and waits until it waits. Nothing of a request has been near it.
func (s *sandbox) awaitHeld(ctx context.Context, p *process, hold driver.Hold) error {
	r, err := p.kernel.guest.Ask(ctx, wire.Message{Go: &wire.Go{}})
	if err != nil {
		return err
	}
	h := r.Message.Held
	if h == nil {
		wire.CloseAll(r.Files)
		return errors.New("unexpected answer")
	}
	status := statusFields(h.Status)
	for _, must := range [][2]string{{"NoNewPrivs", "1"}, {"CapPrm", noCaps}, {"CapEff", noCaps}, {"CapBnd", noCaps}} {
		if got := status[must[0]]; got != must[1] {
			return postureError("%s of what waits is %q", must[0], got)
		}
	}
	if hold.Lang == "python" {
		slices.Sort(h.Descriptors)
		if !slices.Equal(h.Descriptors, []string{"0", "1", "2", "3"}) || status["Threads"] != "1" {
			return postureError("what waits has the descriptors %q and %q threads", h.Descriptors, status["Threads"])
		}
	}
	s.held = &held{hold: hold, process: p}
	return nil
}

// Lost is closed when the interpreter has ended.
func (s heldSandbox) Lost() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current.exited
}

// Resize gives the sandbox the limits of the run that it is for, and reads them back.
func (s heldSandbox) Resize(l glovebox.Limits) error {
	now := s.spec.Limits
	same := now.Disk == l.Disk && now.Files == l.Files && now.OpenFiles == l.OpenFiles && now.CPUs == l.CPUs
	if s.held == nil || !same || hostside.InMemory(now) != hostside.InMemory(l) {
		return errors.New("resize sandbox: it is in use, or made for another disk, number of files or of CPUs")
	}
	if err := s.driver.checkMachine(l); err != nil {
		return err
	}
	s.spec.Limits = l
	return s.relimit()
}

// relimit gives the control group the limits of the Spec, and reads them back. What was used before does not count.
func (s *sandbox) relimit() error {
	l := s.spec.Limits
	if err := s.group.Relimit(int64(l.Memory+overhead), hostProcesses(l)); err != nil {
		return explainLimit(err, l)
	}
	s.memory, s.held.resized = l.Memory, true
	p := s.held.process
	if err := s.readLimits(p.posture); err != nil {
		return err
	}
	before, err := s.group.Sample()
	if err != nil {
		return fmt.Errorf("read counters: %w", err)
	}
	p.before = before.CPU
	return nil
}

// resume gives the interpreter that waits the code and the rest of the request, once.
func (s *sandbox) resume(ctx context.Context, cmd driver.Command, code []*os.File) (driver.Process, error) {
	h := s.held
	extra, err := hostside.ExtraWords(h.hold, cmd)
	if err != nil {
		return nil, err
	}
	if !h.resized {
		if err := s.relimit(); err != nil {
			return nil, err
		}
	}
	s.held, s.spent = nil, true
	p, stdin := h.process, h.process.stdin
	if cmd.Stdin == nil {
		p.stdin = nil
		if err := stdin.Close(); err != nil {
			return nil, fmt.Errorf("execute: %w", err)
		}
	}
	p.released = time.Now()
	r, err := p.kernel.guest.Ask(ctx, wire.Message{Resume: &wire.Resume{Args: hostside.Bytes(extra),
		Env:      hostside.Bytes(cmd.Env),
		CodeName: cmd.CodeName, Stdin: cmd.Stdin != nil, Processes: s.spec.Limits.Processes}}, code...)
	if err == nil && r.Message.Resumed == nil {
		wire.CloseAll(r.Files)
		err = errors.New("unexpected answer")
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("execute: %w", err), driver.ErrReleased, p.abort(ctx))
	}
	if cmd.Stdin != nil {
		go hostside.Feed(stdin, cmd.Stdin)
	}
	return p, nil
}
