package netwire

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Pair makes a connected pair of sockets: the first for NewHost, the second to become descriptor 3 of a netd. The caller
// closes both, the first by closing the Host.
func Pair() (host, netd *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make the socket of a netd: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "netd"), os.NewFile(uintptr(fds[1]), "gateway"), nil
}

// socket sends and receives whole messages, each with one descriptor at most. One goroutine may send while another
// receives.
type socket struct {
	file *os.File
	raw  syscall.RawConn
}

// newSocket takes over f, which must be a SOCK_SEQPACKET socket.
func newSocket(f *os.File) (*socket, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("use the socket of a netd: %w", err)
	}
	var kind int
	var failed error
	err = raw.Control(func(fd uintptr) {
		if kind, failed = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TYPE); failed == nil {
			failed = unix.SetNonblock(int(fd), true)
		}
	})
	if err = errors.Join(err, failed); err != nil {
		return nil, fmt.Errorf("use the socket of a netd: %w", err)
	}
	if kind != unix.SOCK_SEQPACKET {
		return nil, fmt.Errorf("use the socket of a netd: it is of type %d, not SOCK_SEQPACKET", kind)
	}
	return &socket{f, raw}, nil
}

// send waits for room. The descriptor, if there is one, stays the caller's.
func (s *socket) send(b []byte, with *os.File) error {
	var rights []byte
	var conn syscall.RawConn
	if with != nil {
		var err error
		if conn, err = with.SyscallConn(); err != nil {
			return fmt.Errorf("send a descriptor: %w", err)
		}
	}
	var sent error
	write := func() error {
		return s.raw.Write(func(fd uintptr) bool {
			var n int
			n, sent = unix.SendmsgN(int(fd), b, rights, nil, unix.MSG_NOSIGNAL)
			if sent == nil && n != len(b) {
				sent = io.ErrShortWrite
			}
			return sent != unix.EAGAIN
		})
	}
	var err error
	if conn == nil {
		err = write()
	} else {
		// Within Control the descriptor cannot be closed and its number given to another file.
		controlled := conn.Control(func(fd uintptr) {
			rights = unix.UnixRights(int(fd))
			err = write()
		})
		err = errors.Join(controlled, err)
	}
	if err = errors.Join(err, sent); err != nil {
		return fmt.Errorf("send a message: %w", err)
	}
	return nil
}

// receive reads one message into b, and the descriptor that came with it, which becomes the caller's. io.EOF means that the
// other end is closed. A message that is longer than b, or has a descriptor where none is wanted, or several, is an error.
func (s *socket) receive(b []byte, wanted bool) (int, *os.File, error) {
	var control [64]byte // room for several, so that they are seen and closed
	oob := control[:]
	if !wanted {
		oob = nil // the kernel closes what it cannot hand over
	}
	var n, oobn, flags int
	var got error
	err := s.raw.Read(func(fd uintptr) bool {
		n, oobn, flags, _, got = unix.Recvmsg(int(fd), b, oob, unix.MSG_CMSG_CLOEXEC)
		return got != unix.EAGAIN
	})
	if errors.Is(got, unix.ECONNRESET) {
		return 0, nil, io.EOF // it was closed with messages in it
	}
	if err = errors.Join(err, got); err != nil {
		return 0, nil, fmt.Errorf("receive a message: %w", err)
	}
	files, err := takeFiles(oob[:oobn])
	if err == nil && (flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 || len(files) > 1) {
		err = errMessage
	}
	if err != nil || n == 0 {
		for _, f := range files {
			f.Close()
		}
		if err == nil {
			return 0, nil, io.EOF
		}
		return 0, nil, fmt.Errorf("receive a message: %w", err)
	}
	if len(files) == 0 {
		return n, nil, nil
	}
	return n, files[0], nil
}

func takeFiles(oob []byte) ([]*os.File, error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	var files []*os.File
	for i := range messages {
		fds, failed := unix.ParseUnixRights(&messages[i])
		err = errors.Join(err, failed)
		for _, fd := range fds {
			// What is known not to block does not take a thread.
			err = errors.Join(err, unix.SetNonblock(fd, true))
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	return files, err
}
