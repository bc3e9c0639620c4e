package netd

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"glovebox/internal/netwire"
)

const (
	// The buffers of one connection in either direction: as large as a connection needs to be fast, and smaller where there
	// are many, so that all together take a bounded part of netd's memory.
	largestBuffer, smallestBuffer = 512 << 10, 64 << 10
	allBuffers                    = 4 << 20
	// largeChunk is how much is read from a stream at a time: what two of the largest packets take. smallChunk is the same
	// where connections are many.
	largeChunk, smallChunk = 126 << 10, 32 << 10
	fewBuffers             = 256 << 10 // the size of buffers from which on chunks are large
	// settlePatience is how long a connection that both ends have closed may take to hand over its last bytes.
	settlePatience = 10 * time.Second
)

// share is the size of the buffers of the next connection.
func (f *flows) share() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return min(max(allBuffers/max(f.slots, 1), smallestBuffer), largestBuffer)
}

// A relay copies between a connection of the sandbox and a stream, in both directions. Where one end says that no more will
// come the other hears so, and the other direction goes on.
type relay struct {
	ep     tcpip.Endpoint
	queue  *waiter.Queue
	stream *os.File
	raw    syscall.RawConn
	pool   *sync.Pool // of *[]byte, into which is read

	up, down atomic.Uint64
	moved    atomic.Int64 // when a byte last was, in nanoseconds since began
	began    time.Time
	gone     chan struct{} // closed when it is cut
	once     sync.Once
}

// pools are what streams are read into.
type pools struct{ small, large sync.Pool }

func newPools() *pools {
	p := &pools{}
	p.small.New = func() any { b := make([]byte, smallChunk); return &b }
	p.large.New = func() any { b := make([]byte, largeChunk); return &b }
	return p
}

func newRelay(ep tcpip.Endpoint, queue *waiter.Queue, stream *os.File, buffers int, pools *pools) (*relay, error) {
	raw, err := stream.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("use a stream: %w", err)
	}
	ep.SocketOptions().SetReceiveBufferSize(int64(buffers), true)
	ep.SocketOptions().SetSendBufferSize(int64(buffers), true)
	c := &relay{
		ep: ep, queue: queue, stream: stream, raw: raw, began: time.Now(), gone: make(chan struct{}), pool: &pools.small,
	}
	if buffers >= fewBuffers {
		c.pool = &pools.large
	}
	return c, nil
}

// cut ends both directions at once, with a reset to the sandbox. It does not wait.
func (c *relay) cut() {
	c.once.Do(func() {
		close(c.gone)
		c.ep.Abort()
		_ = c.stream.SetDeadline(time.Unix(1, 0))
	})
}

// run copies until both directions have ended, or the connection was idle or open for too long.
func (c *relay) run(q netwire.Quotas, up, down *atomic.Uint64) {
	var idle *time.Timer
	var mu sync.Mutex // idle is set before it is used
	mu.Lock()
	idle = time.AfterFunc(min(q.Idle, q.Age), func() {
		mu.Lock()
		defer mu.Unlock()
		open := time.Since(c.began)
		left := min(q.Age-open, q.Idle-(open-time.Duration(c.moved.Load())))
		if left <= 0 {
			c.cut()
			return
		}
		idle.Reset(left)
	})
	mu.Unlock()
	defer func() {
		mu.Lock()
		defer mu.Unlock()
		idle.Stop()
	}()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if c.copyDown(down) != nil {
			c.cut()
		}
	}()
	if c.copyUp(up) != nil {
		c.cut()
	}
	<-done
}

func (c *relay) move(n int, here, all *atomic.Uint64) {
	here.Add(uint64(n))
	all.Add(uint64(n))
	c.moved.Store(int64(time.Since(c.began)))
}

// direct writes to a descriptor without waiting, and remembers whether that was full.
type direct struct {
	fd   int
	n    int
	full bool
	err  error
}

func (d *direct) Write(p []byte) (int, error) {
	for done := 0; ; {
		n, err := unix.Write(d.fd, p[done:])
		if n > 0 {
			done, d.n = done+n, d.n+n
		}
		switch {
		case err == unix.EINTR || err == nil && done < len(p):
		case err == nil:
			return done, nil
		default:
			d.full = err == unix.EAGAIN
			if !d.full {
				d.err = err
			}
			return done, err
		}
	}
}

// copyUp copies from the sandbox, out of the packets themselves.
func (c *relay) copyUp(all *atomic.Uint64) error {
	entry, ready := waiter.NewChannelEntry(waiter.ReadableEvents | waiter.EventHUp | waiter.EventErr)
	c.queue.EventRegister(&entry)
	defer c.queue.EventUnregister(&entry)
	for {
		var d direct
		var got tcpip.Error
		err := c.raw.Write(func(fd uintptr) bool {
			d.fd, d.full = int(fd), false
			before := d.n
			_, got = c.ep.Read(&d, tcpip.ReadOptions{})
			if d.n > before {
				c.move(d.n-before, &c.up, all)
			}
			return !d.full
		})
		if err = errors.Join(err, d.err); err != nil {
			return err
		}
		switch got.(type) {
		case nil:
		case *tcpip.ErrWouldBlock:
			select {
			case <-ready:
			case <-c.gone:
				return os.ErrClosed
			}
		case *tcpip.ErrClosedForReceive:
			return c.shutdown()
		default:
			return errors.New(got.String())
		}
	}
}

// shutdown tells the stream's other end that no more will come.
func (c *relay) shutdown() error {
	var failed error
	err := c.raw.Control(func(fd uintptr) { failed = unix.Shutdown(int(fd), unix.SHUT_WR) })
	if errors.Is(failed, unix.ENOTCONN) {
		failed = nil // it is gone
	}
	return errors.Join(err, failed)
}

// copyDown copies to the sandbox. While there is nothing to copy, or no room for it, it holds no memory.
func (c *relay) copyDown(all *atomic.Uint64) error {
	entry, room := waiter.NewChannelEntry(waiter.WritableEvents | waiter.EventHUp | waiter.EventErr)
	c.queue.EventRegister(&entry)
	defer c.queue.EventUnregister(&entry)
	for {
		if c.ep.Readiness(waiter.WritableEvents) == 0 {
			select {
			case <-room:
			case <-c.gone:
				return os.ErrClosed
			}
			continue
		}
		p, n, err := c.receive()
		if errors.Is(err, io.EOF) {
			if err := c.ep.Shutdown(tcpip.ShutdownWrite); err != nil {
				return errors.New(err.String())
			}
			return nil
		}
		if err != nil {
			return err
		}
		err = c.send((*p)[:n], room, all)
		c.pool.Put(p)
		if err != nil {
			return err
		}
	}
}

// receive waits for what the stream has next. The buffer is for the pool when it is not needed any more.
func (c *relay) receive() (p *[]byte, n int, err error) {
	var failed error
	err = c.raw.Read(func(fd uintptr) bool {
		p = c.pool.Get().(*[]byte)
		for failed = unix.EINTR; failed == unix.EINTR; {
			n, failed = unix.Read(int(fd), *p)
		}
		if n > 0 {
			return true
		}
		c.pool.Put(p)
		return failed != unix.EAGAIN
	})
	if err = errors.Join(err, failed); err == nil && n == 0 {
		err = io.EOF
	}
	return p, n, err
}

// send hands all of p to the stack, waiting for room.
func (c *relay) send(p []byte, room <-chan struct{}, all *atomic.Uint64) error {
	for r := bytes.NewReader(p); r.Len() > 0; {
		n, err := c.ep.Write(r, tcpip.WriteOptions{})
		if n > 0 {
			c.move(int(n), &c.down, all)
		}
		switch err.(type) {
		case nil:
		case *tcpip.ErrWouldBlock:
			select {
			case <-room:
			case <-c.gone:
				return os.ErrClosed
			}
		default:
			return errors.New(err.String())
		}
	}
	return nil
}

// settle waits, not for long, until the sandbox has everything that was sent to it, so that what still takes memory still
// counts as a connection.
func (c *relay) settle(done <-chan struct{}) {
	entry, over := waiter.NewChannelEntry(waiter.EventHUp)
	c.queue.EventRegister(&entry)
	defer c.queue.EventUnregister(&entry)
	c.ep.Close()
	patience := time.NewTimer(settlePatience)
	defer patience.Stop()
	for !isOver(c.ep) {
		select {
		case <-over:
			continue
		case <-patience.C:
		case <-c.gone:
		case <-done:
		}
		c.ep.Abort()
		return
	}
}

// isOver reports whether nothing of a connection is left to be sent.
func isOver(ep tcpip.Endpoint) bool {
	switch tcp.EndpointState(ep.State()) {
	case tcp.StateTimeWait, tcp.StateClose, tcp.StateError:
		return true
	}
	return false
}
