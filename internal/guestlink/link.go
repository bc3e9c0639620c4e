// Package guestlink is what the microVM driver and the agent in its guest say to each other: over one stream of bytes,
// calls with their answers, and any number of streams with windows.
//
// The driver calls and the agent answers. A frame is a kind, a number and a length, then that many bytes; each kind has a
// bound. Nothing that arrives is trusted: what breaks a rule (an unknown kind, a length beyond the bound, an answer that
// nobody waits for, bytes beyond a stream's window) ends the link with an error, and the driver then ends the machine. What
// a link keeps is bounded by the calls and streams that this end opened.
package guestlink

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// The kinds of frames.
const (
	kindCall   = iota + 1 // a method and its arguments; the number is the call's
	kindAnswer            // what came of it
	kindData              // bytes of a stream; the number is the stream's
	kindEnd               // the stream has no more bytes
	kindCredit            // so many bytes more may be sent
	kindStop              // nobody reads the stream any more
)

// Bounds of what follows a frame's head, in bytes.
const (
	headSize  = 9
	maxCall   = 96 << 20 // arguments, variables, small files and code
	maxAnswer = 1 << 20
	maxData   = 32 << 10
	window    = 256 << 10 // of a stream: sent and not yet read
	maxServed = 32        // calls that are served at the same time
)

var errProtocol = errors.New("the other end broke the rules of the link")

// Handler serves one call: it reads args and returns what the answer is made of. Its context ends with the link.
type Handler func(ctx context.Context, method string, args []byte) (any, error)

// Link is one end. Methods are safe for concurrent use. Run must be running for anything to arrive.
type Link struct {
	conn    io.ReadWriteCloser
	handler Handler
	life    context.Context
	end     context.CancelCauseFunc
	serving sync.WaitGroup
	served  chan struct{} // a place for each call that is being served

	sending chan struct{} // held by whoever writes a frame

	distrust atomic.Bool

	mu      sync.Mutex
	next    uint32
	calls   map[uint32]chan []byte
	readers map[uint32]*Reader
	writers map[uint32]*Writer
}

// New makes one end over conn, which it takes over. handler is nil for the end that only calls.
func New(conn io.ReadWriteCloser, handler Handler) *Link {
	l := &Link{conn: conn, handler: handler, served: make(chan struct{}, maxServed), sending: make(chan struct{}, 1),
		calls: map[uint32]chan []byte{}, readers: map[uint32]*Reader{}, writers: map[uint32]*Writer{}}
	l.life, l.end = context.WithCancelCause(context.Background())
	return l
}

// Run takes in frames until the link ends, waits for what it serves, and returns why it ended. It is called once.
func (l *Link) Run() error {
	err := l.receive()
	l.fail(err)
	l.serving.Wait()
	return context.Cause(l.life)
}

// Close ends the link. Run returns soon after, as far as closing conn ends a Read of it.
func (l *Link) Close() error {
	l.end(errClosed)
	err := l.conn.Close()
	l.wake()
	return err
}

var errClosed = errors.New("the link is closed")

// Done is closed when the link has ended.
func (l *Link) Done() <-chan struct{} { return l.life.Done() }

// Alive tells whether the link has not ended.
func (l *Link) Alive() bool { return l.life.Err() == nil }

// Distrust is called once the other end may be somebody else's: what its errors say is then no longer shown to anybody who
// asks.
func (l *Link) Distrust() { l.distrust.Store(true) }

func (l *Link) fail(err error) {
	l.end(err)
	_ = l.conn.Close() // the first reason is told
	l.wake()
}

// wake lets everybody see that the link has ended.
func (l *Link) wake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.readers {
		r.ready.Broadcast()
	}
	for _, w := range l.writers {
		w.ready.Broadcast()
	}
}

// How long the driver's end waits for so many bytes to be taken. An agent reads always, whatever runs in its machine: one
// that does not is not what it was, and must not keep the driver from ending the machine.
const (
	stallLimit = 10 * time.Second
	stallPiece = 64 << 10
)

var errStalled = errors.New("the other end does not read")

// send writes one frame. When ctx ends before it is written whole the link ends, if it was begun.
func (l *Link) send(ctx context.Context, kind byte, id uint32, body []byte) error {
	b := make([]byte, headSize, headSize+len(body))
	b[0] = kind
	binary.LittleEndian.PutUint32(b[1:], id)
	binary.LittleEndian.PutUint32(b[5:], uint32(len(body)))
	b = append(b, body...)
	select {
	case l.sending <- struct{}{}:
		defer func() { <-l.sending }()
	case <-l.life.Done():
	case <-ctx.Done():
	}
	if l.life.Err() != nil {
		return context.Cause(l.life)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	stop := context.AfterFunc(ctx, func() { l.fail(fmt.Errorf("send: %w", context.Cause(ctx))) })
	defer stop()
	if err := l.write(b); err != nil {
		l.fail(fmt.Errorf("send: %w", err)) // a frame that is cut off makes nonsense of all that follow
		return context.Cause(l.life)
	}
	return nil
}

// write writes all of b. The driver's end gives up when the other does not take it; the agent's does not, for whom time may
// stand still and then jump.
func (l *Link) write(b []byte) error {
	if l.handler != nil {
		_, err := l.conn.Write(b)
		return err
	}
	stalled := time.AfterFunc(stallLimit, func() { l.fail(errStalled) })
	defer stalled.Stop()
	for len(b) > 0 {
		n, err := l.conn.Write(b[:min(len(b), stallPiece)])
		if err != nil {
			return err
		}
		b = b[n:]
		stalled.Reset(stallLimit)
	}
	return nil
}

// bound is how long the body of a frame may be.
func bound(kind byte) (uint32, error) {
	switch kind {
	case kindCall:
		return maxCall, nil
	case kindAnswer:
		return maxAnswer, nil
	case kindData:
		return maxData, nil
	case kindCredit:
		return 4, nil
	case kindEnd, kindStop:
		return 0, nil
	}
	return 0, fmt.Errorf("%w: a frame of kind %d", errProtocol, kind)
}

func (l *Link) receive() error {
	head := make([]byte, headSize)
	for {
		if _, err := io.ReadFull(l.conn, head); err != nil {
			return fmt.Errorf("receive: %w", err)
		}
		kind, id, n := head[0], binary.LittleEndian.Uint32(head[1:]), binary.LittleEndian.Uint32(head[5:])
		most, err := bound(kind)
		if err != nil {
			return err
		}
		if n > most || kind == kindCall && l.handler == nil {
			return fmt.Errorf("%w: %d bytes of kind %d", errProtocol, n, kind)
		}
		body, err := readBody(l.conn, int64(n))
		if err != nil {
			return fmt.Errorf("receive: %w", err)
		}
		if err := l.take(kind, id, body); err != nil {
			return err
		}
	}
}

// readBody takes memory as bytes arrive, so that a length alone takes none.
func readBody(from io.Reader, n int64) ([]byte, error) {
	if n <= maxData {
		b := make([]byte, n)
		_, err := io.ReadFull(from, b)
		return b, err
	}
	b, err := io.ReadAll(io.LimitReader(from, n))
	if err == nil && int64(len(b)) < n {
		err = io.ErrUnexpectedEOF
	}
	return b, err
}

// take acts on one frame. It never waits.
func (l *Link) take(kind byte, id uint32, body []byte) error {
	if kind == kindCall {
		return l.serve(id, body)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch kind {
	case kindAnswer:
		call, ok := l.calls[id]
		if !ok {
			return fmt.Errorf("%w: an answer that nobody waits for", errProtocol)
		}
		delete(l.calls, id)
		call <- body // which has room for it
	case kindData, kindEnd:
		r, ok := l.readers[id]
		if !ok {
			return fmt.Errorf("%w: bytes of a stream that is not open", errProtocol)
		}
		return r.take(kind == kindEnd, body)
	case kindCredit:
		if len(body) != 4 {
			return fmt.Errorf("%w: a credit of %d bytes", errProtocol, len(body))
		}
		if w, ok := l.writers[id]; ok { // or it was closed meanwhile
			return w.credit(binary.LittleEndian.Uint32(body))
		}
	case kindStop:
		if w, ok := l.writers[id]; ok {
			w.stopped = true
			w.ready.Broadcast()
		}
	}
	return nil
}

// serve starts to serve a call.
func (l *Link) serve(id uint32, body []byte) error {
	select {
	case l.served <- struct{}{}:
	default:
		return fmt.Errorf("%w: more than %d calls at a time", errProtocol, maxServed)
	}
	method, args, err := splitCall(body)
	if err != nil {
		return err
	}
	l.serving.Go(func() {
		defer func() { <-l.served }()
		result, err := l.handler(l.life, method, args)
		// A link that has ended needs no answer.
		_ = l.send(context.Background(), kindAnswer, id, encodeAnswer(result, err))
	})
	return nil
}

// splitCall takes a call apart: a byte with the length of the method, the method, its arguments.
func splitCall(body []byte) (method string, args []byte, err error) {
	if len(body) == 0 || int(body[0]) > len(body)-1 {
		return "", nil, fmt.Errorf("%w: a call that is cut off", errProtocol)
	}
	n := 1 + int(body[0])
	return string(body[1:n]), body[n:], nil
}

// Call asks the other end and reads its answer into out, which may be nil. When ctx ends first the answer is thrown away
// when it comes; what the other end does about the call is not undone.
func (l *Link) Call(ctx context.Context, method string, in, out any) error {
	body, err := encodeCall(method, in)
	if err != nil {
		return err
	}
	call := make(chan []byte, 1)
	l.mu.Lock()
	l.next++
	id := l.next
	l.calls[id] = call
	l.mu.Unlock()
	if err := l.send(ctx, kindCall, id, body); err != nil {
		l.mu.Lock()
		delete(l.calls, id)
		l.mu.Unlock()
		if l.life.Err() == nil {
			return fmt.Errorf("%s: %w", method, err) // given up before anything was sent
		}
		return fmt.Errorf("%s: %w", method, &EndedError{err})
	}
	select {
	case answer := <-call:
		return l.decodeAnswer(answer, out)
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", method, context.Cause(ctx))
	case <-l.life.Done():
		select {
		case answer := <-call:
			return l.decodeAnswer(answer, out)
		default:
			return fmt.Errorf("%s: %w", method, &EndedError{context.Cause(l.life)})
		}
	}
}

// EndedError says that the link ended before an answer came, and why.
type EndedError struct{ Err error }

// Error implements error.
func (e *EndedError) Error() string { return "the link has ended: " + e.Err.Error() }

// Unwrap is the reason.
func (e *EndedError) Unwrap() error { return e.Err }
