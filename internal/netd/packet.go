package netd

import (
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"glovebox/internal/netwire"
)

const portDNS = 53

// packet judges each packet that comes from the sandbox. Only whole ones of TCP go to the stack: questions are answered
// here, and the rest is told that there is no way.
func (n *network) packet(p []byte, checked bool) bool {
	if p[0]>>4 == header.IPv6Version {
		n.report.drop(netwire.WhyIPv6, netwire.Event{})
		if len(p) >= header.IPv6MinimumSize {
			if answer := unreachable6(p); answer != nil {
				n.link.reply(header.IPv6ProtocolNumber, answer)
			}
		}
		return false
	}
	h := header.IPv4(p)
	if !h.IsValid(len(p)) || h.HeaderLength() != header.IPv4MinimumSize || h.More() || h.FragmentOffset() != 0 ||
		!h.IsChecksumValid() {
		n.bad()
		return false
	}
	h = h[:h.TotalLength()]
	to := h.DestinationAddress()
	single := !header.IsV4MulticastAddress(to) && to != header.IPv4Broadcast
	switch kind := h.TransportProtocol(); kind {
	case header.TCPProtocolNumber:
		if !checked && !sumTCP(h) {
			n.bad()
			return false
		}
		return single
	case header.UDPProtocolNumber:
		n.datagram(h, checked, single)
	default:
		n.report.drop(netwire.WhyProtocol, netwire.Event{Address: address(to)})
		if single && kind != header.ICMPv4ProtocolNumber {
			n.link.reply(header.IPv4ProtocolNumber, unreachable(h, header.ICMPv4ProtoUnreachable))
		}
	}
	return false
}

// sumTCP reports whether a segment's checksum is right.
func sumTCP(h header.IPv4) bool {
	s := h.Payload()
	sum := header.PseudoHeaderChecksum(header.TCPProtocolNumber, h.SourceAddress(), h.DestinationAddress(), uint16(len(s)))
	return checksum.Checksum(s, sum) == 0xffff
}

func (n *network) bad() { n.report.drop(netwire.WhyPacket, netwire.Event{}) }

// datagram answers a question, whoever it is for, and refuses all else.
func (n *network) datagram(h header.IPv4, checked, single bool) {
	u := header.UDP(h.Payload())
	from, to := h.SourceAddress(), h.DestinationAddress()
	if len(u) < header.UDPMinimumSize || int(u.Length()) < header.UDPMinimumSize || int(u.Length()) > len(u) {
		n.bad()
		return
	}
	u = u[:u.Length()]
	if !checked && u.Checksum() != 0 && !u.IsChecksumValid(from, to, checksum.Checksum(u.Payload(), 0)) {
		n.bad()
		return
	}
	fromPort, port := u.SourcePort(), u.DestinationPort()
	if port != portDNS || !single {
		n.report.drop(netwire.WhyUDP, netwire.Event{Address: address(to), Port: port})
		if single {
			n.link.reply(header.IPv4ProtocolNumber, unreachable(h, header.ICMPv4PortUnreachable))
		}
		return
	}
	n.resolver.answer(u.Payload(), true, func(answer []byte) {
		n.link.reply(header.IPv4ProtocolNumber, datagram(to, from, portDNS, fromPort, answer))
	})
}

// address is that of IPv4 which the stack says otherwise.
func address(a tcpip.Address) netip.Addr { return netip.AddrFrom4(a.As4()) }
