package hostside

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Init is a running init, held by descriptor so that a number that changed hands is never taken for it. (Package os
// would do the same, but it first forks a process of its own to see whether it can.)
type Init struct {
	PID   int      // 0 for a copy, whose number out here nobody needs
	pidfd *os.File // non-blocking
	child bool     // of this process, which has to take note of its end
}

// HoldInit takes over a descriptor of a process, which may be a child of the caller's: pid is 0 where nobody needs it.
func HoldInit(pid, pidfd int, child bool) (*Init, error) {
	if err := unix.SetNonblock(pidfd, true); err != nil { // for the runtime's poller, so that waiting takes no thread
		return nil, errors.Join(os.NewSyscallError("fcntl", err), unix.Close(pidfd))
	}
	return &Init{PID: pid, pidfd: os.NewFile(uintptr(pidfd), "init"), child: child}, nil
}

// Kill ends init, and with it everything in its process namespace. Killing what has ended does nothing.
func (p *Init) Kill() error {
	raw, err := p.pidfd.SyscallConn()
	if err != nil {
		return fmt.Errorf("end init: %w", err)
	}
	var sent error
	err = raw.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) })
	if err != nil || sent == unix.ESRCH {
		return nil // it has been waited for: Control fails for closed files alone, with an error that nothing exports
	}
	if sent != nil {
		return fmt.Errorf("end init: %w", sent)
	}
	return nil
}

// Wait returns when init has ended, and been reaped where this process has to, once.
func (p *Init) Wait() error {
	defer p.pidfd.Close()
	raw, err := p.pidfd.SyscallConn()
	if err != nil {
		return fmt.Errorf("wait for init: %w", err)
	}
	var waited error
	err = raw.Read(func(fd uintptr) bool {
		if !p.child {
			// A process that has ended makes it readable (pidfd_open(2)); of init that is when all inside have.
			ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			n, err := unix.Poll(ready, 0)
			if err != nil && err != unix.EINTR {
				waited = err
			}
			return waited != nil || n == 1
		}
		for {
			var info unix.Siginfo
			waited = unix.Waitid(unix.P_PIDFD, int(fd), &info, unix.WEXITED|unix.WNOHANG, nil)
			if waited != unix.EINTR {
				return waited != nil || info.Signo != 0 // 0: it has not ended (waitid(2))
			}
		}
	})
	if err := errors.Join(err, waited); err != nil {
		return fmt.Errorf("wait for init: %w", err)
	}
	return nil
}
