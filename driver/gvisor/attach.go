package gvisor

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"glovebox"
	"glovebox/driver"
	"glovebox/internal/hostside"
	"glovebox/internal/sandboxinit/wire"
)

// prepareDevice makes the interface that the next kernel finds in its network namespace, or, for one that had a kernel
// before, gives it its address again. The guard's own kernel, the host's, has no address on it once runsc has taken that,
// and so answers nothing that comes by it. Nobody reads the other end until Attach.
func (s *sandbox) prepareDevice(ctx context.Context) error {
	if !s.spec.Network {
		return nil
	}
	ask := wire.Message{Attach: &wire.Attach{Device: wire.TAP}}
	if s.boots > 0 {
		r, err := s.link.Ask(ctx, ask)
		if err != nil {
			return fmt.Errorf("make network: %w", err)
		}
		wire.CloseAll(r.Files)
		return nil
	}
	device, reopen, err := hostside.NetworkDevice(s.driver.cfg.NetworkDevice, s.guard)
	if err != nil {
		return err
	}
	defer device.Close()
	ask.Attach.Reopen = reopen
	r, err := s.link.Ask(ctx, ask, device)
	if err != nil {
		return fmt.Errorf("make network: %w", err)
	}
	if r.Message.Attached == nil || len(r.Files) != 1 {
		wire.CloseAll(r.Files)
		return errors.New("make network: unexpected answer")
	}
	if !hostside.CheckRoutes(r.Message.Attached.Routes) {
		wire.CloseAll(r.Files)
		return postureError("the routes of its network are %.200q", r.Message.Attached.Routes)
	}
	s.device = r.Files[0]
	return nil
}

// Attach hands out the other end of the interface, and has the files shown under the kernel.
func (s *sandbox) Attach(ctx context.Context, n driver.Network) (link driver.NetLink, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, errors.New("the network was not attached in 30 s"))
	defer cancel()
	if err := n.Check(); err != nil {
		return link, err
	}
	if err := s.mayAttach(); err != nil {
		return link, err
	}
	if s.attached, s.contents, err = hostside.Shown(n); err != nil {
		return link, err
	}
	s.mu.Lock()
	k := s.kernel
	s.mu.Unlock()
	if err := s.show(ctx, k); err != nil {
		return link, err
	}
	if s.held != nil {
		s.held.process.posture["network"] = "attached"
	}
	link = driver.NetLink{File: s.device, TAP: true}
	s.device = nil
	return link, nil
}

func (s *sandbox) mayAttach() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.attached != nil:
		return driver.ErrAttached
	case !s.spec.Network:
		return glovebox.Errorf(glovebox.CodeUnavailable, "make the sandbox with a network",
			"the sandbox was made without a network")
	case s.current != nil && s.held == nil:
		return errors.New("attach network: the sandbox has a program, or had one")
	}
	return nil
}

// show has the files of the network shown on a kernel, if it is attached.
func (s *sandbox) show(ctx context.Context, k *kernel) error {
	if s.attached == nil {
		return nil
	}
	r, err := k.guest.Ask(ctx, wire.Message{Attach: s.attached}, s.contents)
	if err != nil {
		return fmt.Errorf("attach network: %w", err)
	}
	wire.CloseAll(r.Files)
	if r.Message.Attached == nil {
		return errors.New("attach network: unexpected answer")
	}
	return s.readNetwork(r.Message.Attached.Interfaces, glovebox.Posture{})
}

// readNetwork checks which interfaces the kernel has.
func (s *sandbox) readNetwork(interfaces []string, p glovebox.Posture) error {
	want, is := []string{"lo"}, "loopback only"
	if s.spec.Network {
		want, is = []string{wire.Interface, "lo"}, "nobody at the other end"
	}
	if s.attached != nil {
		is = "attached"
	}
	if got := slices.Sorted(slices.Values(interfaces)); !slices.Equal(got, want) {
		return postureError("its network interfaces are %q", interfaces)
	}
	p["network"] = is
	return nil
}
