package gateway

import (
	"fmt"
	"net"
	"os"
	"syscall"
)

// newPipe makes the two ends of a stream: one for here, one for a netd, which the caller closes once it was sent.
func newPipe() (*net.UnixConn, *os.File, error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a stream: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "stream"), os.NewFile(uintptr(fds[1]), "stream")
	defer ours.Close() // FileConn has a copy
	conn, err := net.FileConn(ours)
	if err != nil {
		theirs.Close()
		return nil, nil, fmt.Errorf("make a stream: %w", err)
	}
	return conn.(*net.UnixConn), theirs, nil
}
