package drivertest

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"glovebox"
	"glovebox/driver"
)

// fakeNetwork is what Attach made of a sandbox of a Fake.
type fakeNetwork struct {
	network driver.Network
	end     *os.File // the sandbox's end of the link
}

// Attach implements driver.Sandbox: what is written to one end of the link is read from the other, packet by packet.
func (b *fakeBox) Attach(ctx context.Context, n driver.Network) (driver.NetLink, error) {
	if err := b.fake.step("attach"); err != nil {
		return driver.NetLink{}, err
	}
	if err := errors.Join(ctx.Err(), n.Check()); err != nil {
		return driver.NetLink{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.net != nil:
		return driver.NetLink{}, driver.ErrAttached
	case b.closed || b.proc != nil:
		return driver.NetLink{}, errors.New("attach network: the sandbox is closed or in use")
	case !b.spec.Network:
		return driver.NetLink{}, glovebox.Errorf(glovebox.CodeUnavailable, "make the sandbox with a network",
			"the sandbox was made without a network")
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return driver.NetLink{}, fmt.Errorf("attach network: %w", err)
	}
	b.net = &fakeNetwork{network: n, end: os.NewFile(uintptr(fds[1]), "network")}
	return driver.NetLink{File: os.NewFile(uintptr(fds[0]), "link")}, nil
}

// detach closes the sandbox's end.
func (b *fakeBox) detach() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.net == nil {
		return nil
	}
	return b.net.end.Close()
}

// Network is what the sandbox was attached with and its end of the link, which is closed with the sandbox; nil for one that
// was not attached.
func (p *Proc) Network() (driver.Network, *os.File) {
	p.box.mu.Lock()
	defer p.box.mu.Unlock()
	if p.box.net == nil {
		return driver.Network{}, nil
	}
	return p.box.net.network, p.box.net.end
}
