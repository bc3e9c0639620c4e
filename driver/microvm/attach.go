package microvm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"glovebox"
	"glovebox/driver"
	"glovebox/internal/guestlink"
)

// network copies packets between the agent's streams and a pair of sockets, whose other end is the link. What the guest
// sends beyond what is read waits in its own memory.
type network struct {
	near *os.File
	in   *guestlink.Writer // to the guest
	out  *guestlink.Reader
	work sync.WaitGroup
}

// Attach makes a network in the guest. Nothing of QEMU's or of the host's has any part in it but the port of the agent.
func (s *sandbox) Attach(ctx context.Context, n driver.Network) (link driver.NetLink, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, execLimit, fmt.Errorf("the network was not attached in %v", execLimit))
	defer cancel()
	if err := n.Check(); err != nil {
		return link, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.network != nil:
		return link, driver.ErrAttached
	case !s.spec.Network:
		return link, glovebox.Errorf(glovebox.CodeUnavailable, "make the sandbox with a network",
			"the sandbox was made without a network")
	case s.current != nil:
		return link, errors.New("attach network: the sandbox has a program, or had one")
	}
	if err := s.wake(ctx); err != nil {
		return link, err
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return link, fmt.Errorf("attach network: %w", err)
	}
	for _, fd := range fds {
		// Room for some packets of the largest size.
		err = errors.Join(err, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, linkBuffer))
	}
	far := os.NewFile(uintptr(fds[0]), "link")
	w := &network{near: os.NewFile(uintptr(fds[1]), "network"), in: s.machine.link.Writer(), out: s.machine.link.Reader()}
	s.network = w
	if err == nil {
		err = s.machine.link.Call(ctx, guestlink.MethodAttach, message(n, w), nil)
	}
	if err != nil {
		w.close()
		return link, errors.Join(fmt.Errorf("attach network: %w", err), far.Close())
	}
	w.start()
	return driver.NetLink{File: far}, nil
}

// linkBuffer is what waits in a socket of the link, in bytes. The kernel may give less.
const linkBuffer = 512 << 10

// message describes a network to the agent.
func message(n driver.Network, w *network) guestlink.Attach {
	m := guestlink.Attach{In: w.in.ID(), Out: w.out.ID()}
	m.Contents, _ = n.Contents()
	list := func(files []driver.File) (all []guestlink.File) {
		for _, f := range files {
			all = append(all, guestlink.File{Path: f.Path, Content: slices.IndexFunc(m.Contents, func(b []byte) bool {
				return driver.Same(b, f.Data)
			})})
		}
		return all
	}
	m.Files, m.Over = list(n.Files), list(n.Over)
	return m
}

// start copies until the link, the guest's network or the machine ends; then all of it has.
func (w *network) start() {
	w.work.Go(func() {
		_ = guestlink.SendPackets(w.in, w.near)
		w.close()
	})
	w.work.Go(func() {
		_ = guestlink.TakePackets(w.near, w.out, func(error) bool { return false })
		w.close()
	})
}

func (w *network) close() {
	_ = w.near.Close() // it may be closed
	_ = w.in.Close()
	_ = w.out.Close()
}
