package gateway

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"slices"
	"time"

	"glovebox/internal/egress"
)

// maxHello bounds what a client says before it has named a server, in however many pieces.
const maxHello = 16 << 10

// extensionECH is the type of an encrypted hello, in which another server may be named than outside it.
const extensionECH = 0xfe0d

var (
	errHelloRead = errors.New("the hello was read")
	errHelloLong = errors.New("the hello is too long")
)

// hello is what is judged of a client's first message in TLS.
type hello struct {
	name string // as it was sent
	ech  bool
}

// readHello reads a hello from r, in whatever pieces it comes, and returns all that was read beside it, for whoever is to
// read the hello next. It answers nothing.
func readHello(ctx context.Context, r io.Reader) (hello, []byte, error) {
	var h hello
	rec := &recorder{from: r}
	config := &tls.Config{GetConfigForClient: func(info *tls.ClientHelloInfo) (*tls.Config, error) {
		h = hello{info.ServerName, slices.Contains(info.Extensions, extensionECH)}
		return nil, errHelloRead
	}}
	err := tls.Server(rec, config).HandshakeContext(ctx)
	if errors.Is(err, errHelloRead) {
		err = nil
	} else if err == nil {
		err = errors.New("a handshake came to an end without a certificate") // which cannot be
	}
	return h, rec.read.Bytes(), err
}

// judge compares the name that a hello has with the one that the connection is for.
func (h hello) judge(host egress.Host) egress.Reason {
	if h.name == "" {
		return egress.ReasonSNIMissing
	}
	named, err := egress.ParseHost(h.name)
	switch {
	case err != nil:
		return egress.ReasonNameInvalid
	case named != host:
		return egress.ReasonSNIMismatch
	}
	return ""
}

// recorder is a connection of which at most maxHello bytes can be read, and to which nothing can be written.
type recorder struct {
	from io.Reader
	read bytes.Buffer
}

func (r *recorder) Read(p []byte) (int, error) {
	room := maxHello - r.read.Len()
	if room <= 0 {
		return 0, errHelloLong
	}
	n, err := r.from.Read(p[:min(len(p), room)])
	r.read.Write(p[:n])
	return n, err
}

func (r *recorder) Write(p []byte) (int, error)      { return len(p), nil }
func (r *recorder) Close() error                     { return nil }
func (r *recorder) LocalAddr() net.Addr              { return sandboxAddr{} }
func (r *recorder) RemoteAddr() net.Addr             { return sandboxAddr{} }
func (r *recorder) SetDeadline(time.Time) error      { return nil }
func (r *recorder) SetReadDeadline(time.Time) error  { return nil }
func (r *recorder) SetWriteDeadline(time.Time) error { return nil }

// sandboxAddr is the address of whoever is inside: there is one for all.
type sandboxAddr struct{}

func (sandboxAddr) Network() string { return "sandbox" }
func (sandboxAddr) String() string  { return "sandbox" }

// accessDenied is the TLS alert that says so, in clear: what a client is told that is refused before a handshake.
var accessDenied = []byte{21, 3, 3, 0, 2, 2, 49}
