package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// maxFrame bounds one message: arguments, environment and synthetic files, with room. Code travels as a descriptor.
const maxFrame = 16 << 20

// maxFiles bounds the descriptors of one message (SCM_MAX_FD is 253).
const maxFiles = 32

// Conn frames messages over a stream socket. One goroutine may send while another receives.
type Conn struct {
	sock *os.File
	send sync.Mutex
}

// NewConn takes over sock, a non-blocking connected Unix stream socket.
func NewConn(sock *os.File) *Conn { return &Conn{sock: sock} }

// Pair makes a connected pair: the first end non-blocking for NewConn, the second to be inherited by the other process.
func Pair() (*Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make control socket: %w", err)
	}
	return NewConn(os.NewFile(uintptr(fds[0]), "control")), os.NewFile(uintptr(fds[1]), "control-init"), nil
}

// Close closes this end, which ends the sandbox when it is the driver's.
func (c *Conn) Close() error { return c.sock.Close() }

// Send writes one message with its descriptors, which stay the caller's.
func (c *Conn) Send(m Message, files ...*os.File) error {
	body, err := encode(m)
	if err != nil {
		return fmt.Errorf("send message: %w", err)
	}
	if len(body) > maxFrame || len(files) > maxFiles {
		return fmt.Errorf("message of %d bytes with %d descriptors is too large", len(body), len(files))
	}
	frame := binary.LittleEndian.AppendUint32(make([]byte, 0, 5+len(body)), uint32(len(body)))
	frame = append(append(frame, byte(len(files))), body...)
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = FD(f)
	}
	c.send.Lock()
	defer c.send.Unlock()
	// All at once as a rule, so that whoever waits for it wakes once.
	if err := SendFiles(c.sock, frame, fds); err != nil {
		return fmt.Errorf("send message: %w", err)
	}
	return nil
}

// SendFiles writes all of b with descriptors, which stay the caller's, to a non-blocking Unix socket: at once as a rule, and
// always at once where the socket keeps messages apart.
func SendFiles(sock *os.File, b []byte, fds []int) error {
	n, err := sendFiles(sock, b, fds)
	if err == nil && n < len(b) {
		_, err = sock.Write(b[n:])
	}
	return err
}

// sendFiles writes as much of b as there is room for, with descriptors, and returns how much that was.
func sendFiles(sock *os.File, b []byte, fds []int) (n int, err error) {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	raw, err := sock.SyscallConn()
	if err != nil {
		return 0, err
	}
	var sent error
	err = raw.Write(func(fd uintptr) bool {
		n, sent = unix.SendmsgN(int(fd), b, oob, nil, unix.MSG_NOSIGNAL)
		return sent != unix.EAGAIN
	})
	return n, errors.Join(err, sent)
}

// Receive reads one message and the descriptors that came with it, which become the caller's. io.EOF means that the other
// end is closed.
func (c *Conn) Receive() (Message, []*os.File, error) {
	head := make([]byte, 5)
	files, err := c.receiveHead(head)
	if err != nil {
		return Message{}, nil, err
	}
	n := binary.LittleEndian.Uint32(head)
	if n > maxFrame || int(head[4]) != len(files) {
		CloseAll(files)
		return Message{}, nil, fmt.Errorf("receive message: %d bytes and %d of %d descriptors", n, len(files), head[4])
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(c.sock, body); err != nil {
		CloseAll(files)
		return Message{}, nil, fmt.Errorf("receive message: %w", err)
	}
	m, err := decode(body)
	if err != nil {
		CloseAll(files)
		return m, nil, fmt.Errorf("receive message: %w", err)
	}
	return m, files, nil
}

func (c *Conn) receiveHead(head []byte) ([]*os.File, error) {
	n, files, err := ReceiveFiles(c.sock, head)
	if err != nil {
		return nil, err
	}
	if n == 0 {
		CloseAll(files)
		return nil, io.EOF
	}
	if _, err := io.ReadFull(c.sock, head[n:]); err != nil {
		CloseAll(files)
		return nil, fmt.Errorf("receive message: %w", err)
	}
	return files, nil
}

// ReceiveFiles reads once from a non-blocking Unix socket, with the descriptors that came, which become the caller's. It
// returns 0 bytes when the other end is closed.
func ReceiveFiles(sock *os.File, b []byte) (int, []*os.File, error) {
	raw, err := sock.SyscallConn()
	if err != nil {
		return 0, nil, err
	}
	oob := make([]byte, unix.CmsgSpace(4*maxFiles))
	var n, oobn int
	var got error
	err = raw.Read(func(fd uintptr) bool {
		n, oobn, _, _, got = unix.Recvmsg(int(fd), b, oob, unix.MSG_CMSG_CLOEXEC)
		return got != unix.EAGAIN
	})
	if err = errors.Join(err, got); err != nil {
		return 0, nil, fmt.Errorf("receive message: %w", err)
	}
	files, err := takeFiles(oob[:oobn])
	return n, files, err
}

func takeFiles(oob []byte) ([]*os.File, error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("receive descriptors: %w", err)
	}
	var files []*os.File
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			CloseAll(files)
			return nil, fmt.Errorf("receive descriptors: %w", err)
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	return files, nil
}

// FD is the number of an open file's descriptor, -1 for a closed one. Unlike the file's own method it leaves a non-blocking
// file as it is.
func FD(f *os.File) int {
	fd := -1
	if raw, err := f.SyscallConn(); err == nil {
		_ = raw.Control(func(n uintptr) { fd = int(n) })
	}
	return fd
}

// CloseAll closes files that came with a message.
func CloseAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
