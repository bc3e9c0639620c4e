package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"glovebox"
	"glovebox/driver"
	"glovebox/internal/hostside"
	"glovebox/internal/sandboxinit/wire"
)

// Attach has init make an interface whose packets go to the link, and show the files. The program has no right to change
// either.
func (s *sandbox) Attach(ctx context.Context, n driver.Network) (link driver.NetLink, err error) {
	ctx, cancel := s.driver.bounded(ctx, "the network was not attached")
	defer cancel()
	if err := n.Check(); err != nil {
		return link, err
	}
	if err := s.mayAttach(); err != nil {
		return link, err
	}
	device, reopen, err := hostside.NetworkDevice(s.driver.cfg.NetworkDevice, s.init)
	if err != nil {
		return link, err
	}
	defer device.Close()
	a, contents, err := hostside.Shown(n)
	if err != nil {
		return link, err
	}
	defer contents.Close()
	a.Device, a.Reopen = wire.TUN, reopen
	r, err := s.link.Ask(ctx, wire.Message{Attach: a}, device, contents)
	if err != nil {
		return link, fmt.Errorf("attach network: %w", err)
	}
	if r.Message.Attached == nil || len(r.Files) != 1 {
		wire.CloseAll(r.Files)
		return link, errors.New("attach network: unexpected answer")
	}
	if err := s.checkAttached(r.Message.Attached); err != nil {
		wire.CloseAll(r.Files) // which takes the network away
		return link, err
	}
	return driver.NetLink{File: r.Files[0]}, nil
}

// mayAttach takes note that it is attached, or says why it cannot be.
func (s *sandbox) mayAttach() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.attached:
		return driver.ErrAttached
	case !s.spec.Network:
		return glovebox.Errorf(glovebox.CodeUnavailable, "make the sandbox with a network",
			"the sandbox was made without a network")
	case s.current != nil && s.held == nil:
		return errors.New("attach network: the sandbox has a program")
	}
	s.attached = true
	return nil
}

// checkAttached makes sure that what the kernel says of the network is what it must be. What an interpreter that waits was
// found to have is brought up to date.
func (s *sandbox) checkAttached(a *wire.Attached) error {
	if !hostside.CheckRoutes(a.Routes) {
		return postureError("its routes are %.200q", a.Routes)
	}
	s.buffer = a.Buffer
	p := glovebox.Posture{}
	if s.held != nil {
		p = s.held.process.posture
	}
	err := s.readNetwork(a.Interfaces, p)
	if err == nil {
		p["waiting_connections"], err = s.readBuffer()
	}
	if err == nil {
		err = s.readMounts(a.Mounts, p)
	}
	return err
}

// readNetwork checks which interfaces there are.
func (s *sandbox) readNetwork(interfaces []string, p glovebox.Posture) error {
	want, is := []string{"lo"}, "loopback only"
	if s.attached {
		want, is = []string{wire.Interface, "lo"}, "attached"
	}
	if got := slices.Sorted(slices.Values(interfaces)); !slices.Equal(got, want) {
		return postureError("its network interfaces are %q", interfaces)
	}
	p["network"] = is
	return nil
}

// readBuffer checks the bound on what lies in connections that nobody has accepted.
func (s *sandbox) readBuffer() (string, error) {
	most, buffer, each := wire.WaitingConnections, wire.ReceiveBuffer, 32
	if s.attached {
		most, buffer, each = wire.AttachedConnections, wire.AttachedBuffer, 256
	}
	if s.buffer != buffer {
		return "", postureError("its receive buffers are %.40q", s.buffer)
	}
	return fmt.Sprintf("at most %d of %d KiB", most, each), nil
}

// networkControl tells whether sandboxes can have a network.
func (d *Driver) networkControl() glovebox.Control {
	if r := hostside.NetworkRefusal(d.cfg.NetworkDevice); r != nil {
		return control("network device", false, r.Public+"; runs that allow hosts are refused", r.Fix)
	}
	who := "for all"
	if info, err := os.Stat(d.cfg.NetworkDevice); err == nil && info.Mode().Perm()&0o006 == 0 {
		who = "for root"
	}
	return control("network device", true, d.cfg.NetworkDevice+", "+who, "")
}
