package process

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
	status  map[string]string // the kernel's of it, while it waits
}

// heldSandbox is a sandbox with one.
type heldSandbox struct{ *sandbox }

// Hold makes a sandbox and starts an interpreter in it, which loads its modules and waits behind the whole fence.
func (d *Driver) Hold(ctx context.Context, spec driver.Spec, hold driver.Hold) (driver.HeldSandbox, error) {
	return d.hold(ctx, spec, hold, origin{held: hold.Memory}, func(s *sandbox) (*process, error) {
		cold := hold.Command.Argv
		if len(cold) < 2 {
			return nil, hostside.ErrNoCode
		}
		argv := boot.Held(hold.Lang, cold[0], cold[len(cold)-1], hold.Modules)
		return s.bring(ctx, &wire.Exec{Argv: hostside.Bytes(argv),
			Env: hostside.Bytes(hold.Command.Env), Dir: hold.Command.Dir, Stdin: true,
			Held: true})
	})
}

// hold makes a sandbox and brings its interpreter to where it waits for its code.
func (d *Driver) hold(ctx context.Context, spec driver.Spec, hold driver.Hold, of origin,
	bring func(*sandbox) (*process, error)) (driver.HeldSandbox, error) {
	ctx, cancel := d.bounded(ctx, "the interpreter was not ready")
	defer cancel()
	spec.Root.Files = hostside.WithBoot(spec.Root.Files, hold.Lang)
	s, err := d.start(ctx, spec, of)
	if err != nil {
		return nil, err
	}
	p, err := bring(s)
	if err == nil {
		err = s.awaitHeld(ctx, p, hold)
	}
	if err != nil {
		err = errors.Join(fmt.Errorf("hold interpreter: %w", err), said(p))
		if left := s.abandon(ctx); left != nil {
			err = errors.Join(err, driver.ErrLeftBehind, left)
		}
		return nil, err
	}
	return heldSandbox{s}, nil
}

// said is what an interpreter that failed printed, as far as that is there to be read.
func said(p *process) error {
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
	r, err := s.link.Ask(ctx, wire.Message{Go: &wire.Go{}})
	if err != nil {
		return err
	}
	if r.Message.Held == nil {
		wire.CloseAll(r.Files)
		return errors.New("unexpected answer")
	}
	status := statusFields(r.Message.Held.Status)
	if err := checkHeld(r.Message.Held, status, hold.Lang); err != nil {
		return err
	}
	s.held = &held{hold: hold, process: p, status: status}
	return nil
}

// checkHeld makes sure that what waits has nothing that a fresh program does not have. Of a copy that is all there is to
// tell; the others were looked at before they were executed, and have descriptors and threads of their own by now.
func checkHeld(h *wire.Held, status map[string]string, lang string) error {
	if err := checkStatus("what waits", status, [][2]string{
		{"NoNewPrivs", "1"}, {"Seccomp", "2"}, {"CapPrm", noCaps}, {"CapEff", noCaps}, {"CapBnd", noCaps}, {"CapAmb", noCaps},
	}); err != nil {
		return err
	}
	if lang != "python" {
		return nil
	}
	slices.Sort(h.Descriptors)
	if !slices.Equal(h.Descriptors, []string{"0", "1", "2", "3"}) {
		return postureError("its descriptors are %q", h.Descriptors)
	}
	if status["Threads"] != "1" {
		return postureError("it has %q threads", status["Threads"])
	}
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
	if err := hostside.CheckOwnLimits(l); err != nil {
		return err
	}
	s.spec.Limits = l
	return s.relimit(s.origin.shares(nil))
}

// leastOfACopy is what a copy must have for itself: less, and what it shares is so large a part of its memory that it is
// better to load what it needs itself.
const leastOfACopy = 32 * glovebox.MiB

// relimit gives the control group the limits of the Spec, less what the program shares with its template, and reads them
// back. What was used before does not count.
func (s *sandbox) relimit(shared int64) error {
	l := s.spec.Limits
	if int64(l.Memory)-shared < int64(leastOfACopy) {
		return fmt.Errorf("resize sandbox: %v less the %v that a copy shares leaves too little", l.Memory, glovebox.Size(shared))
	}
	if err := s.group.Relimit(int64(l.Memory)-shared, l.Processes); err != nil {
		return explainLimit(err, l)
	}
	s.resized, s.shared = true, shared
	p := s.held.process
	if err := s.readLimits(p.posture, s.held.status); err != nil {
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
func (s *sandbox) resume(ctx context.Context, cmd driver.Command, code *os.File) (driver.Process, error) {
	h := s.held
	extra, err := hostside.ExtraWords(h.hold, cmd)
	if err != nil {
		return nil, err
	}
	if shared := s.origin.shares(cmd.Code); shared != s.shared || !s.resized {
		if err := s.relimit(shared); err != nil {
			return nil, err
		}
	}
	s.held = nil
	p, stdin := h.process, h.process.stdin
	if cmd.Stdin == nil {
		p.stdin = nil
		if err := stdin.Close(); err != nil {
			return nil, fmt.Errorf("execute: %w", err)
		}
	}
	p.released = time.Now()
	r, err := s.link.Ask(ctx, wire.Message{Resume: &wire.Resume{Args: hostside.Bytes(extra), Env: hostside.Bytes(cmd.Env),
		CodeName: cmd.CodeName,
		Stdin:    cmd.Stdin != nil}}, code)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("execute: %w", err), driver.ErrReleased, p.abort(ctx))
	}
	if r.Message.Resumed == nil {
		wire.CloseAll(r.Files)
		return nil, errors.Join(errors.New("execute: unexpected answer"), driver.ErrReleased, p.abort(ctx))
	}
	if cmd.Stdin != nil {
		go hostside.Feed(stdin, cmd.Stdin)
	}
	return p, nil
}
