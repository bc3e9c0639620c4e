package httpapi

import (
	"net"
	"sync"
	"syscall"
)

// listener accepts a bounded number of connections at a time. More wait with the kernel, whose queue is bounded too.
type listener struct {
	*net.UnixListener
	slots  chan struct{}
	closed chan struct{}
	once   sync.Once
}

func newListener(l *net.UnixListener, most int) *listener {
	return &listener{UnixListener: l, slots: make(chan struct{}, most), closed: make(chan struct{})}
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	c, err := l.AcceptUnix()
	if err != nil {
		<-l.slots
		return nil, err
	}
	return &conn{UnixConn: c, release: func() { <-l.slots }}, nil
}

// Close implements net.Listener.
func (l *listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.UnixListener.Close()
}

// conn is a connection that gives its place back once.
type conn struct {
	*net.UnixConn
	once    sync.Once
	release func()
}

// Close implements net.Conn.
func (c *conn) Close() error {
	defer c.once.Do(c.release)
	return c.UnixConn.Close()
}

// peer is the user id of whoever connected, as the kernel noted it then.
func (c *conn) peer() (uid int, ok bool) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, false
	}
	var cred *syscall.Ucred
	var getErr error
	err = raw.Control(func(fd uintptr) {
		cred, getErr = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	})
	if err != nil || getErr != nil {
		return 0, false
	}
	return int(cred.Uid), true
}
