package netd

import (
	"bytes"
	"encoding/binary"
	"os"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"glovebox/internal/netwire"
)

// FuzzFrames: whatever comes over the link, netd neither dies nor says to the gateway what no netd says, and ends when it is
// told to. The input is a byte for the kind of link, then frames, each after its length in two bytes.
func FuzzFrames(f *testing.F) {
	frame := func(p []byte) []byte { return append(binary.BigEndian.AppendUint16(nil, uint16(len(p))), p...) }
	question := frame(plain(datagram(addr(netwire.Inside().Addr()), addr(netwire.Outside()), 5000, 53, ask(f, "good.test.", dnsmessage.TypeA, 0))))
	for name, p := range badPackets(f) {
		if len(p) < 1<<16 {
			f.Add(append(append([]byte{byte(len(name) % 2)}, question...), frame(p)...))
		}
	}
	// A connection as far as one goes without the other side's numbers.
	first := frame(plain(syn(1, netwire.FirstName(), 80)))
	f.Add(append(append(append([]byte{0}, question...), first...), first...))
	f.Fuzz(func(t *testing.T, input []byte) {
		if len(input) == 0 {
			return
		}
		near, far := rawLink(t)
		tap := input[0]&1 == 1
		w := newWorld(t, netwire.Setup{TAP: tap, Strict: input[0]&2 == 2}, far, all(echo))
		send := func(p []byte) {
			_ = near.SetWriteDeadline(time.Now().Add(5 * time.Second))
			if _, err := near.Write(p); err != nil {
				t.Fatalf("netd does not read any more: %v", err)
			}
		}
		prefix := vnetSize
		if tap {
			prefix += header.EthernetMinimumSize
		}
		ended := make(chan bool, 1)
		go drain(near, prefix, ended)
		for rest := input[1:]; len(rest) > 2; {
			n := min(int(binary.BigEndian.Uint16(rest)), len(rest)-2)
			if n > 0 {
				send(mend(rest[2:2+n], prefix))
			}
			rest = rest[2+n:]
		}
		last := plain(nil)
		if tap {
			last = append(last, make([]byte, header.EthernetMinimumSize)...)
			header.Ethernet(last[vnetSize:]).Encode(&header.EthernetFields{SrcAddr: "\x02\x00\x00\x00\x00\x07", Type: header.IPv4ProtocolNumber})
		}
		inside, outside := addr(netwire.Inside().Addr()), addr(netwire.Outside())
		send(append(last, datagram(inside, outside, lastPort, 53, ask(t, "end.test.", dnsmessage.TypeAAAA, -1))...))
		if !<-ended {
			t.Error("netd does not answer any more")
		}
		w.end()
	})
}

// lastPort is where the last question of a run comes from.
const lastPort = 5999

// drain reads until the answer to the last question, and says whether it came.
func drain(link *os.File, prefix int, ended chan<- bool) {
	b := make([]byte, 1<<16)
	_ = link.SetReadDeadline(time.Now().Add(5 * time.Second))
	for {
		n, err := link.Read(b)
		if err != nil {
			ended <- false
			return
		}
		h := header.IPv4(b[min(prefix, n):n])
		if h.IsValid(len(h)) && h.TransportProtocol() == header.UDPProtocolNumber && header.UDP(h.Payload()).DestinationPort() == lastPort {
			ended <- true
			return
		}
	}
}

// mend gives a packet of IPv4 a right checksum, so that what is behind its header is looked at.
func mend(frame []byte, prefix int) []byte {
	frame = bytes.Clone(frame)
	if len(frame) < prefix+header.IPv4MinimumSize || frame[0]&0x40 != 0 { // whose checksum is to be wrong
		return frame
	}
	if h := header.IPv4(frame[prefix:]); h[0]>>4 == 4 && int(h.HeaderLength()) <= len(h) && h.HeaderLength() >= header.IPv4MinimumSize {
		h.SetChecksum(0)
		h.SetChecksum(^h.CalculateChecksum())
	}
	return frame
}
