package drivertest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"sync"

	"glovebox/driver"
)

// peer is who reads and answers what a sandbox sends to its network: a name server that knows one address, and an echo of
// any other datagram.
type peer struct {
	link driver.NetLink
	work sync.WaitGroup

	mu     sync.Mutex
	mac    []byte   // of the sandbox, where packets are frames
	names  []string // that were asked for, with the types of records
	texts  []string // of datagrams
	others []string // packets that are none of these
}

const headerSize = 10 // of a virtio_net_hdr

// serve answers until the link is closed.
func (p *peer) serve() {
	b := make([]byte, 70<<10)
	for {
		n, err := p.link.File.Read(b)
		if err != nil {
			return
		}
		if answer := p.answer(bytes.Clone(b[:n])); answer != nil {
			if _, err := p.link.File.Write(answer); err != nil {
				return
			}
		}
	}
}

// answer is what goes back for one packet; nil for nothing.
func (p *peer) answer(packet []byte) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(packet) < headerSize {
		p.others = append(p.others, "short")
		return nil
	}
	ip := packet[headerSize:]
	var frame []byte
	if p.link.TAP {
		if len(ip) < 14 {
			p.others = append(p.others, "short frame")
			return nil
		}
		p.mac = bytes.Clone(ip[6:12])
		if kind := binary.BigEndian.Uint16(ip[12:]); kind == 0x0806 {
			return arp(ip)
		}
		frame = append(append(bytes.Clone(p.mac), ourMAC...), 8, 0)
		ip = ip[14:]
	}
	if len(ip) < 28 || ip[0] != 0x45 || ip[9] != 17 {
		p.others = append(p.others, note(ip[:min(len(ip), 40)]))
		return nil
	}
	data := ip[28:]
	port := binary.BigEndian.Uint16(ip[22:])
	if port == 53 {
		if data = p.name(data); data == nil {
			return nil
		}
	} else {
		p.texts = append(p.texts, string(data))
		data = append([]byte("echo "), data...)
	}
	return append(append(make([]byte, headerSize), frame...), datagram(ip, data)...)
}

var ourMAC = []byte{2, 0, 0, 0, 0, 1}

// arp answers a question for the router's address.
func arp(frame []byte) []byte {
	if len(frame) < 42 || frame[21] != 1 || !bytes.Equal(frame[38:42], []byte{198, 18, 0, 1}) {
		return nil
	}
	out := make([]byte, headerSize, headerSize+42)
	out = append(append(append(out, frame[6:12]...), ourMAC...), 8, 6, 0, 1, 8, 0, 6, 4, 0, 2)
	out = append(append(out, ourMAC...), 198, 18, 0, 1)
	return append(out, frame[22:32]...)
}

// name answers a question; 198.18.1.7 is everybody's address, and nobody has another record (RFC 1035, 4.1).
func (p *peer) name(question []byte) []byte {
	const header = 12
	var labels []string
	at := header
	for at < len(question) && question[at] != 0 {
		end := at + 1 + int(question[at])
		if end >= len(question) {
			break
		}
		labels, at = append(labels, string(question[at+1:end])), end
	}
	if at+5 > len(question) || question[at] != 0 {
		p.others = append(p.others, "a malformed question")
		return nil
	}
	kind := binary.BigEndian.Uint16(question[at+1:])
	p.names = append(p.names, fmt.Sprintf("%s %d", strings.Join(labels, "."), kind))
	out := bytes.Clone(question[:at+5])
	copy(out[2:], []byte{0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0})
	if kind == 1 { // an address of IPv4
		out[7] = 1
		out = append(out, 0xc0, header, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 198, 18, 1, 7)
	}
	return out
}

// datagram is the answer to a packet of UDP, which must have no checksum of its own (RFC 768).
func datagram(to, data []byte) []byte {
	ip := make([]byte, 28, 28+len(data))
	ip[0], ip[8], ip[9] = 0x45, 64, 17
	binary.BigEndian.PutUint16(ip[2:], uint16(28+len(data)))
	copy(ip[12:], to[16:20])
	copy(ip[16:], to[12:16])
	sum := uint32(0)
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum))
	copy(ip[20:], to[22:24])
	copy(ip[22:], to[20:22])
	binary.BigEndian.PutUint16(ip[24:], uint16(8+len(data)))
	return append(ip, data...)
}

// seen is what came so far.
func (p *peer) seen() (names, texts, others []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string{}, p.names...), append([]string{}, p.texts...), append([]string{}, p.others...)
}
