package guestlink

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"sync"
)

// Reader is the receiving end of a stream. One goroutine may read while others close.
type Reader struct {
	link   *Link
	id     uint32
	ready  *sync.Cond // of link.mu
	buf    []byte
	read   int // bytes that were read since the last credit
	ended  bool
	closed bool
}

// Reader opens the receiving end of a stream of a new number, which the caller tells the other end.
func (l *Link) Reader() *Reader {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next++
	r := &Reader{link: l, id: l.next, ready: sync.NewCond(&l.mu)}
	l.readers[r.id] = r
	return r
}

// ReaderOf opens the receiving end of a stream whose number the other end gave, which sends nothing before.
func (l *Link) ReaderOf(id uint32) (*Reader, error) {
	l.mu.Lock()
	if l.readers[id] != nil {
		l.mu.Unlock()
		return nil, fmt.Errorf("stream %d is open", id)
	}
	r := &Reader{link: l, id: id, ready: sync.NewCond(&l.mu)}
	l.readers[id] = r
	l.mu.Unlock()
	return r, r.grant(window)
}

// grant lets the other end send so many bytes more.
func (r *Reader) grant(n int) error {
	return r.link.send(context.Background(), kindCredit, r.id, binary.LittleEndian.AppendUint32(nil, uint32(n)))
}

// ID is the stream's number.
func (r *Reader) ID() uint32 { return r.id }

// take is called with the link's lock held.
func (r *Reader) take(end bool, b []byte) error {
	if end {
		r.ended = true
		delete(r.link.readers, r.id)
		r.ready.Broadcast()
		return nil
	}
	if r.closed {
		return nil // what was on its way when nobody wanted it any more
	}
	if len(r.buf)+len(b) > window {
		return fmt.Errorf("%w: more bytes than there is room for", errProtocol)
	}
	r.buf = append(r.buf, b...)
	r.ready.Broadcast()
	return nil
}

// Read implements io.Reader. It ends with io.EOF when the other end has closed the stream and when the link has ended: what
// a stream that is cut off means is told by whatever else ended.
func (r *Reader) Read(b []byte) (int, error) {
	l := r.link
	l.mu.Lock()
	for len(r.buf) == 0 && !r.ended && !r.closed && l.life.Err() == nil {
		r.ready.Wait()
	}
	if r.closed {
		l.mu.Unlock()
		return 0, os.ErrClosed
	}
	n := copy(b, r.buf)
	r.buf = r.buf[n:]
	if len(r.buf) == 0 {
		r.buf = nil // lets go of what it grew to
	}
	if n == 0 && len(b) > 0 {
		l.mu.Unlock()
		return 0, io.EOF
	}
	credit := 0
	if r.read += n; r.read >= window/2 && !r.ended {
		credit, r.read = r.read, 0
	}
	l.mu.Unlock()
	if credit > 0 {
		// A link that fails here has ended, which the next Read sees.
		_ = r.grant(credit)
	}
	return n, nil
}

// Close tells the other end that nobody reads any more. Closing again does nothing.
func (r *Reader) Close() error {
	l := r.link
	l.mu.Lock()
	tell := !r.closed && !r.ended && l.life.Err() == nil
	r.closed, r.buf = true, nil
	r.ready.Broadcast()
	l.mu.Unlock()
	if tell {
		return l.send(context.Background(), kindStop, r.id, nil)
	}
	return nil
}

// Writer is the sending end of a stream. One goroutine may write while others close.
type Writer struct {
	link    *Link
	id      uint32
	ready   *sync.Cond // of link.mu
	room    int
	stopped bool // nobody reads
	closed  bool
}

// Writer opens the sending end of a stream of a new number, which the caller tells the other end.
func (l *Link) Writer() *Writer {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next++
	return l.writer(l.next, 0) // until the other end has opened its own
}

// WriterOf opens the sending end of a stream whose number the other end gave.
func (l *Link) WriterOf(id uint32) (*Writer, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.writers[id] != nil {
		return nil, fmt.Errorf("stream %d is open", id)
	}
	return l.writer(id, window), nil // whoever gave the number reads
}

func (l *Link) writer(id uint32, room int) *Writer {
	w := &Writer{link: l, id: id, ready: sync.NewCond(&l.mu), room: room}
	l.writers[id] = w
	return w
}

// ID is the stream's number.
func (w *Writer) ID() uint32 { return w.id }

// credit is called with the link's lock held.
func (w *Writer) credit(n uint32) error {
	if n > window || w.room+int(n) > window {
		return fmt.Errorf("%w: a credit beyond the window", errProtocol)
	}
	w.room += int(n)
	w.ready.Broadcast()
	return nil
}

// Write implements io.Writer. It waits for room, and fails with io.ErrClosedPipe once nobody reads.
func (w *Writer) Write(b []byte) (int, error) {
	written := 0
	for written < len(b) {
		n, err := w.take(len(b) - written)
		if err != nil {
			return written, err
		}
		if err := w.link.send(context.Background(), kindData, w.id, b[written:written+n]); err != nil {
			return written, err
		}
		written += n
	}
	return written, nil
}

// take waits for room for some of n bytes and takes it.
func (w *Writer) take(n int) (int, error) {
	l := w.link
	l.mu.Lock()
	defer l.mu.Unlock()
	for w.room == 0 && !w.stopped && !w.closed && l.life.Err() == nil {
		w.ready.Wait()
	}
	if w.stopped || w.closed || l.life.Err() != nil {
		return 0, io.ErrClosedPipe
	}
	n = min(n, w.room, maxData)
	w.room -= n
	return n, nil
}

// Close says that there are no more bytes. Closing again does nothing.
func (w *Writer) Close() error {
	l := w.link
	l.mu.Lock()
	tell := !w.closed && l.life.Err() == nil
	w.closed = true
	delete(l.writers, w.id)
	w.ready.Broadcast()
	l.mu.Unlock()
	if tell {
		return l.send(context.Background(), kindEnd, w.id, nil)
	}
	return nil
}
