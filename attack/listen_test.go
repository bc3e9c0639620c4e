package attack_test

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

// listeners are doors of the host that no sandbox may find. Each counts its visitors; the stream ones greet with a canary.
type listeners struct {
	tcp      int // port on every address of the host, both versions of IP
	udp      int
	path     string // of a unix socket
	abstract string
	datagram string // abstract too
	mark     string // a label for the names that programs try to look up

	visits  atomic.Int64
	last    atomic.Value
	closers []func() error
	wait    sync.WaitGroup
}

func startListeners(dir, banner string) (_ *listeners, err error) {
	l := &listeners{path: filepath.Join(dir, "door.sock"), mark: strings.ToLower(rand.Text())}
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	tcp, err := net.Listen("tcp", ":0")
	if err != nil {
		return nil, err
	}
	l.serve(tcp, banner)
	l.tcp = tcp.Addr().(*net.TCPAddr).Port
	l.abstract = "glovebox-attack-" + strconv.Itoa(l.tcp)
	l.datagram = l.abstract + "-dgram"
	for _, name := range []string{l.path, "@" + l.abstract} {
		u, err := net.Listen("unix", name)
		if err != nil {
			return nil, err
		}
		l.serve(u, banner)
	}
	udp, err := net.ListenPacket("udp", ":0")
	if err != nil {
		return nil, err
	}
	l.udp = udp.LocalAddr().(*net.UDPAddr).Port
	l.drain(udp, "udp", "")
	dgram, err := net.ListenPacket("unixgram", "@"+l.datagram)
	if err != nil {
		return nil, err
	}
	l.drain(dgram, "unix datagram", "")
	// The usual port of name servers, where it is free. Others on the machine may ask there too.
	if dns, err := net.ListenPacket("udp", ":53"); err == nil {
		l.drain(dns, "dns", l.mark)
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
	l.last.Store(name)
	l.visits.Add(1)
}

func (l *listeners) close() {
	for _, c := range l.closers {
		c()
	}
	l.wait.Wait()
}
