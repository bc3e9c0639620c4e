package netwire

import (
	"fmt"
	"os"
	"sync"
)

// A Peer is netd's end. One goroutine calls Setup and then Next; Send is for any goroutine.
type Peer struct {
	sock    *socket
	buf     [maxMessage + 1]byte
	sending sync.Mutex
}

// NewPeer takes over f, which is descriptor 3 of a netd.
func NewPeer(f *os.File) (*Peer, error) {
	s, err := newSocket(f)
	if err != nil {
		return nil, err
	}
	return &Peer{sock: s}, nil
}

// Close closes the socket, which tells the gateway that this netd has ended.
func (p *Peer) Close() error { return p.sock.file.Close() }

// Setup says that this netd waits, and returns what it shall be and the link, which is the caller's to close. io.EOF means
// that it is not needed.
func (p *Peer) Setup() (Setup, *os.File, error) {
	var s Setup
	if err := p.Send(Event{Kind: kindHello}); err != nil {
		return s, nil, err
	}
	m, err := p.receive(&s)
	switch {
	case err != nil:
		return s, nil, err
	case m.Kind != commandSetup:
		if m.Stream != nil {
			m.Stream.Close()
		}
		return s, nil, fmt.Errorf("the first message was of kind %d, no setup", m.Kind)
	}
	return s, m.Stream, nil
}

// Ready says that this netd serves.
func (p *Peer) Ready() error { return p.Send(Event{Kind: kindReady}) }

// Next waits for what the gateway says next. io.EOF means that it has closed its end: this netd is not needed any more.
func (p *Peer) Next() (Command, error) {
	m, err := p.receive(nil)
	if err == nil && m.Kind == commandSetup {
		m.Stream.Close()
		return Command{}, errMessage
	}
	return m, err
}

// receive reads one command. One that brings a descriptor where none belongs, or none where one does, is an error.
func (p *Peer) receive(s *Setup) (Command, error) {
	n, file, err := p.sock.receive(p.buf[:], true)
	if err != nil {
		return Command{}, err
	}
	var m Command
	var unwanted Setup
	if s == nil {
		s = &unwanted
	}
	c := codec{buf: p.buf[:n], taking: true}
	c.command(&m, s)
	_, err = c.finish()
	takes := m.Kind == CommandAccept || m.Kind == commandSetup
	if err != nil || n > maxMessage || takes != (file != nil) {
		if file != nil {
			file.Close()
		}
		return Command{}, errMessage
	}
	m.Stream = file
	return m, nil
}

// Send says e. It waits while the gateway does not read.
func (p *Peer) Send(e Event) error {
	c := codec{}
	c.event(&e)
	b, err := c.finish()
	if err != nil {
		return err
	}
	p.sending.Lock()
	defer p.sending.Unlock()
	return p.sock.send(b, nil)
}
