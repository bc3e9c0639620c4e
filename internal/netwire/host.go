package netwire

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// ErrEnded says that a flow has ended already, so that there is nothing to accept or refuse any more.
var ErrEnded = errors.New("the connection has ended")

const (
	// sendPatience is how long a netd may leave its socket full. It reads at any time if it is well.
	sendPatience = 10 * time.Second
	// maxAsks bounds the questions that one netd may have asked and not been answered.
	maxAsks = 64
)

// A Host is the gateway's end: it hears what one netd says, and believes nothing of it but that. A netd that breaks a rule
// of its own, as by naming a flow twice, is an error, after which there is nothing to do but to close the Host.
//
// One goroutine calls Start and then Next; Accept, Refuse, Answer and Close are for any goroutine at any time.
type Host struct {
	sock  *socket
	buf   [maxMessage + 1]byte
	hello bool // was received

	sending sync.Mutex

	mu   sync.Mutex
	last uint64              // the highest number of a flow or a question so far
	live map[uint64]struct{} // flows that are open
	asks map[uint64]struct{} // questions that are open
}

// NewHost takes over f, a SOCK_SEQPACKET socket whose other end is descriptor 3 of a netd.
func NewHost(f *os.File) (*Host, error) {
	s, err := newSocket(f)
	if err != nil {
		return nil, err
	}
	return &Host{sock: s, live: map[uint64]struct{}{}, asks: map[uint64]struct{}{}}, nil
}

// Close closes the socket, which ends netd and with it the sandbox's network. A Next that waits returns an error.
func (h *Host) Close() error { return h.sock.file.Close() }

// Hello waits until netd is there and waits for its Setup. It may be left out: Start waits too.
func (h *Host) Hello(ctx context.Context) error {
	if h.hello {
		return nil
	}
	if err := h.expect(ctx, kindHello); err != nil {
		return fmt.Errorf("wait for a netd: %w", err)
	}
	h.hello = true
	return nil
}

// Start gives netd its link, which stays the caller's to close, and returns when netd serves. It is called once.
func (h *Host) Start(ctx context.Context, s Setup, link *os.File) error {
	if err := h.Hello(ctx); err != nil {
		return err
	}
	if err := h.send(Command{Kind: commandSetup}, &s, link); err != nil {
		return fmt.Errorf("start a netd: %w", err)
	}
	if err := h.expect(ctx, kindReady); err != nil {
		return fmt.Errorf("start a netd: %w", err)
	}
	return nil
}

// expect receives one message, of a kind.
func (h *Host) expect(ctx context.Context, kind Kind) error {
	stop := context.AfterFunc(ctx, func() { _ = h.sock.file.SetReadDeadline(time.Unix(1, 0)) })
	e, err := h.receive()
	if !stop() {
		return errors.Join(context.Cause(ctx), err)
	}
	if err == nil && e.Kind != kind {
		err = fmt.Errorf("it said %d, not %d: the two are of different versions", e.Kind, kind)
	}
	return err
}

func (h *Host) receive() (Event, error) {
	var e Event
	n, _, err := h.sock.receive(h.buf[:], false)
	if err != nil {
		return e, err
	}
	if n > maxMessage {
		return e, errMessage
	}
	c := codec{buf: h.buf[:n], taking: true}
	c.event(&e)
	if _, err := c.finish(); err != nil {
		return Event{}, err
	}
	return e, nil
}

// Next waits for what netd says next. io.EOF means that netd has ended.
func (h *Host) Next() (Event, error) {
	e, err := h.receive()
	if err != nil {
		return Event{}, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch e.Kind {
	case KindOpen:
		err = h.begin(h.live, e.Flow, MaxStreams)
	case KindAsk:
		err = h.begin(h.asks, e.Flow, maxAsks)
	case KindClosed:
		if _, ok := h.live[e.Flow]; !ok {
			err = fmt.Errorf("netd ended connection %d, which is not open", e.Flow)
		}
		delete(h.live, e.Flow)
	case kindHello, kindReady:
		err = errors.New("netd began twice")
	}
	if err != nil {
		return Event{}, err
	}
	return e, nil
}

// begin notes a number that netd gave out.
func (h *Host) begin(in map[uint64]struct{}, flow uint64, most int) error {
	if flow <= h.last {
		return fmt.Errorf("netd used number %d after %d", flow, h.last)
	}
	if len(in) >= most {
		return fmt.Errorf("netd began more than %d connections or questions at a time", most)
	}
	h.last = flow
	in[flow] = struct{}{}
	return nil
}

// Accept lets netd connect flow with stream, a stream socket that stays the caller's to close, and to keep no copy of. Only
// now does the sandbox's connect succeed. The end of reading is passed on as such in both directions. The error is ErrEnded
// where the sandbox gave up before.
func (h *Host) Accept(flow uint64, stream *os.File) error {
	if !h.isLive(flow) {
		return ErrEnded
	}
	return h.send(Command{Kind: CommandAccept, Flow: flow}, nil, stream)
}

// Refuse ends flow with a reset, whether it was accepted or not. The error is ErrEnded where it has ended already.
func (h *Host) Refuse(flow uint64) error {
	if !h.isLive(flow) {
		return ErrEnded
	}
	return h.send(Command{Kind: CommandRefuse, Flow: flow}, nil, nil)
}

// Answer answers the question (KindAsk) that is number flow: a name that is not known is refused by the resolver.
func (h *Host) Answer(flow uint64, known bool) error {
	h.mu.Lock()
	_, ok := h.asks[flow]
	delete(h.asks, flow)
	h.mu.Unlock()
	if !ok {
		return fmt.Errorf("answer question %d, which is not open", flow)
	}
	return h.send(Command{Kind: CommandAnswer, Flow: flow, Known: known}, nil, nil)
}

func (h *Host) isLive(flow uint64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, ok := h.live[flow]
	return ok
}

func (h *Host) send(m Command, s *Setup, with *os.File) error {
	c := codec{}
	c.command(&m, s)
	b, err := c.finish()
	if err != nil {
		return err
	}
	h.sending.Lock()
	defer h.sending.Unlock()
	if err := h.sock.file.SetWriteDeadline(time.Now().Add(sendPatience)); err != nil {
		return fmt.Errorf("bound a message: %w", err)
	}
	return h.sock.send(b, with)
}
