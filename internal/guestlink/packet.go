package guestlink

import (
	"encoding/binary"
	"fmt"
	"io"
)

// Packets of a network go through a stream, each with its length (4 bytes, little-endian) before it. A stream's window
// bounds what is on its way.

// Bounds of a packet in bytes, its virtio_net_hdr included.
const (
	minPacket = 10
	maxPacket = 10 + 65535
)

// SendPackets sends what each read of from gives as one packet, until from ends or nobody reads to.
func SendPackets(to io.Writer, from io.Reader) error {
	b := make([]byte, 4+maxPacket+1)
	for {
		n, err := from.Read(b[4:])
		if err != nil {
			return err
		}
		if n == 0 {
			return io.EOF // of a socket that keeps packets apart
		}
		if n < minPacket || n > maxPacket {
			continue // what is no packet is lost, as on any network
		}
		binary.LittleEndian.PutUint32(b, uint32(n))
		if _, err := to.Write(b[:4+n]); err != nil {
			return err
		}
	}
}

// TakePackets gives each packet that comes to one write of to, until from ends, breaks the rules, or to has ended. drop says
// of an error of a write that the packet is lost and no more.
func TakePackets(to io.Writer, from io.Reader, drop func(error) bool) error {
	b := make([]byte, maxPacket)
	var head [4]byte
	for {
		if _, err := io.ReadFull(from, head[:]); err != nil {
			return err
		}
		n := binary.LittleEndian.Uint32(head[:])
		if n < minPacket || n > maxPacket {
			return fmt.Errorf("%w: a packet of %d bytes", errProtocol, n)
		}
		if _, err := io.ReadFull(from, b[:n]); err != nil {
			return err
		}
		if _, err := to.Write(b[:n]); err != nil && !drop(err) {
			return err
		}
	}
}
