package gateway

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"glovebox/internal/egress"
)

// errEnded is what a connection's end fails with that was ended here.
var errEnded = errors.New("the connection was ended by the gateway")

// flow is one connection of the sandbox, as the stream that netd copies to and from. It is a net.Conn that counts, whose
// first bytes may have been read before.
type flow struct {
	a    *Attachment
	id   uint64
	host egress.Host // zero where the sandbox named none
	name string      // for records and refusals
	port uint16

	ctx context.Context // ends with the flow
	end context.CancelCauseFunc

	conn  *net.UnixConn // nil until it is accepted
	early []byte        // what was read of it before whoever reads it now

	// denial, where it is set, is what everything said here is answered with.
	denial *refusal
	// broker tells that it goes to the broker's own host.
	broker bool
	secure bool // TLS was ended here

	requests atomic.Int64
	up, down atomic.Int64 // bytes
	host2    *allowance   // of this host, shared by its flows

	mu      sync.Mutex
	judged  bool            // host and port may be connected to; of these and what follows nothing changes any more
	carries egress.Protocol // what it was judged as, once it was
	expiry  *time.Timer
	done    bool
}

// Read counts what the sandbox sends.
func (f *flow) Read(p []byte) (int, error) {
	if len(f.early) > 0 {
		n := copy(p, f.early)
		f.early = f.early[n:]
		return n, nil
	}
	room, err := f.room(len(p))
	if err != nil {
		return 0, err
	}
	n, err := f.conn.Read(p[:room])
	f.count(&f.up, n)
	return n, err
}

// peek reads more of what the sandbox says first, beyond early, and keeps it to be read again.
func (f *flow) peek(p []byte) (int, error) {
	room, err := f.room(len(p))
	if err != nil {
		return 0, err
	}
	n, err := f.conn.Read(p[:room])
	f.count(&f.up, n)
	f.early = append(f.early, p[:n]...)
	return n, err
}

// Write counts what the sandbox is sent.
func (f *flow) Write(p []byte) (int, error) {
	sent := 0
	for len(p) > 0 {
		room, err := f.room(len(p))
		if err != nil {
			return sent, err
		}
		n, err := f.conn.Write(p[:room])
		f.count(&f.down, n)
		if sent, p = sent+n, p[n:]; err != nil {
			return sent, err
		}
	}
	return sent, nil
}

// room is how many of want bytes may pass. None ends the flow.
func (f *flow) room(want int) (int, error) {
	if f.denial != nil || want == 0 {
		return want, nil // what explains a refusal is not refused itself
	}
	n := f.a.bytes.left(want)
	reason := egress.ReasonBudget
	if n > 0 && f.host2 != nil {
		n, reason = f.host2.left(n), egress.ReasonQuota
	}
	if n == 0 {
		f.stop(reason)
		return 0, errEnded
	}
	return n, nil
}

func (f *flow) count(of *atomic.Int64, n int) {
	if n <= 0 {
		return
	}
	of.Add(int64(n))
	f.a.bytes.used.Add(int64(n))
	if f.host2 != nil {
		f.host2.used.Add(int64(n))
	}
	if of == &f.up {
		f.a.up.Add(int64(n))
	} else {
		f.a.down.Add(int64(n))
	}
}

// stop ends the flow with a reset and tells why.
func (f *flow) stop(reason egress.Reason) {
	f.mu.Lock()
	done := f.done
	f.mu.Unlock()
	if done || context.Cause(f.ctx) != nil {
		return
	}
	f.end(errEnded)
	f.a.ledger.denied(f.name, f.port, layerTCP, reason, "")
	f.reset()
}

// reset cuts the connection off: the program's reads and writes fail.
func (f *flow) reset() {
	f.a.refuse(f.id)
	_ = f.Close()
}

// Close is the orderly end. Closing again does nothing.
func (f *flow) Close() error {
	f.mu.Lock()
	if f.done {
		f.mu.Unlock()
		return nil
	}
	f.done = true
	if f.expiry != nil {
		f.expiry.Stop()
	}
	f.mu.Unlock()
	f.end(net.ErrClosed)
	var err error
	if f.conn != nil {
		err = f.conn.Close()
	}
	f.a.remove(f)
	return err
}

// finish ends what was refused with an answer: the answer gets through before the connection ends.
func (f *flow) finish(answer []byte) {
	defer f.Close()
	if _, err := f.conn.Write(answer); err != nil {
		return
	}
	_ = f.conn.CloseWrite() // who is gone is not told
	_ = f.conn.SetReadDeadline(now().Add(time.Second))
	_, _ = io.CopyN(io.Discard, f.conn, maxHello)
}

// rejudgeAt lets the flow be judged again when the rule ends that allowed it.
func (f *flow) rejudgeAt(expires time.Time) {
	if expires.IsZero() {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.done {
		return
	}
	if f.expiry != nil {
		f.expiry.Stop()
	}
	f.expiry = time.AfterFunc(time.Until(expires)+time.Millisecond, func() { f.a.rejudge(egress.ReasonExpired) })
}

func (f *flow) LocalAddr() net.Addr                { return sandboxAddr{} }
func (f *flow) RemoteAddr() net.Addr               { return sandboxAddr{} }
func (f *flow) SetDeadline(t time.Time) error      { return f.conn.SetDeadline(t) }
func (f *flow) SetReadDeadline(t time.Time) error  { return f.conn.SetReadDeadline(t) }
func (f *flow) SetWriteDeadline(t time.Time) error { return f.conn.SetWriteDeadline(t) }

// CloseWrite tells the sandbox that nothing more comes.
func (f *flow) CloseWrite() error { return f.conn.CloseWrite() }
