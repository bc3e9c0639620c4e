package attack

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// listeners are doors of the host that no sandbox may find. Each counts its visitors; the stream ones greet with a
// canary.
type listeners struct {
	TCP      int // port
	UDP      int
	Path     string // of a unix socket
	Abstract string
	Datagram string // abstract too
	Mark     string // a label for the names that programs try to look up

	Visits  atomic.Int64
	Last    atomic.Value // where the last visitor was: a string
	closers []func() error
	wait    sync.WaitGroup
}

// startListeners opens the doors: on the address host, or on all of the machine's for an empty one, which takes the
// usual port of
// name servers too; the unix socket is made in dir. The caller closes them.
func startListeners(dir, host, banner string) (_ *listeners, err error) {
	l := &listeners{Path: filepath.Join(dir, "door.sock"), Mark: strings.ToLower(rand.Text())}
	defer func() {
		if err != nil {
			l.Close()
		}
	}()
	tcp, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return nil, err
	}
	l.serve(tcp, banner)
	l.TCP = tcp.Addr().(*net.TCPAddr).Port
	l.Abstract = "glovebox-attack-" + strconv.Itoa(l.TCP)
	l.Datagram = l.Abstract + "-dgram"
	for _, name := range []string{l.Path, "@" + l.Abstract} {
		u, err := net.Listen("unix", name)
		if err != nil {
			return nil, err
		}
		l.serve(u, banner)
	}
	udp, err := net.ListenPacket("udp", net.JoinHostPort(host, "0"))
	if err != nil {
		return nil, err
	}
	l.UDP = udp.LocalAddr().(*net.UDPAddr).Port
	l.drain(udp, "udp", "")
	dgram, err := net.ListenPacket("unixgram", "@"+l.Datagram)
	if err != nil {
		return nil, err
	}
	l.drain(dgram, "unix datagram", "")
	if host != "" {
		return l, nil
	}
	// The usual port of name servers, where it is free. Others on the machine may ask there too.
	if dns, err := net.ListenPacket("udp", ":53"); err == nil {
		l.drain(dns, "dns", l.Mark)
	}
	return l, nil
}

func (l *listeners) serve(from net.Listener, banner string) {
	l.closers = append(l.closers, from.Close)
	l.wait.Go(func() {
		for {
			c, err := from.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				continue
			}
			l.note(from.Addr().Network())
			fmt.Fprintf(c, "HTTP/1.0 200 OK\r\n\r\n%s\n", banner)
			c.Close()
		}
	})
}

// drain counts the packets that hold the mark.
func (l *listeners) drain(from net.PacketConn, name, mark string) {
	l.closers = append(l.closers, from.Close)
	l.wait.Go(func() {
		buf := make([]byte, 1500)
		for {
			n, _, err := from.ReadFrom(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil && bytes.Contains(buf[:n], []byte(mark)) {
				l.note(name)
			}
		}
	})
}

func (l *listeners) note(name string) {
	l.Last.Store(name)
	l.Visits.Add(1)
}

func (l *listeners) Close() {
	for _, c := range l.closers {
		c()
	}
	l.wait.Wait()
}
