package netd

import (
	"bytes"
	"encoding/binary"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"glovebox/internal/netwire"
)

// quoted is how much of a packet an ICMP error quotes, so that the whole has 576 bytes.
const quoted = 576 - header.IPv4MinimumSize - header.ICMPv4MinimumSize

// ownAddress is netd's Ethernet address, one that was never given to a card.
func ownAddress() tcpip.LinkAddress { return "\x02\x67\x62\x00\x00\x01" }

func packAddress(a tcpip.LinkAddress) uint64 {
	var b [8]byte
	copy(b[2:], a)
	return binary.BigEndian.Uint64(b[:])
}

// unpackAddress is the inverse of packAddress; before anybody spoke it is for everybody.
func unpackAddress(n uint64) tcpip.LinkAddress {
	if n == 0 {
		return header.EthernetBroadcastAddress
	}
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], n)
	return tcpip.LinkAddress(b[2:])
}

// answerARP answers whoever asks for any address but the sandbox's own, for which a careful system asks before it takes it.
// It is nil where there is nothing to answer.
func answerARP(p []byte) []byte {
	q := header.ARP(p)
	inside := netwire.Inside().Addr().As4()
	if !q.IsValid() || q.Op() != header.ARPRequest || bytes.Equal(q.ProtocolAddressTarget(), inside[:]) {
		return nil
	}
	a := header.ARP(make([]byte, header.ARPSize))
	a.SetIPv4OverEthernet()
	a.SetOp(header.ARPReply)
	copy(a.HardwareAddressSender(), ownAddress())
	copy(a.ProtocolAddressSender(), q.ProtocolAddressTarget())
	copy(a.HardwareAddressTarget(), q.HardwareAddressSender())
	copy(a.ProtocolAddressTarget(), q.ProtocolAddressSender())
	return a
}

// packet4 makes a packet out of what is to be in it.
func packet4(from, to tcpip.Address, kind tcpip.TransportProtocolNumber, content []byte) []byte {
	p := make([]byte, header.IPv4MinimumSize+len(content))
	h := header.IPv4(p)
	h.Encode(&header.IPv4Fields{
		TotalLength: uint16(len(p)), Flags: header.IPv4FlagDontFragment, TTL: 64, Protocol: uint8(kind),
		SrcAddr: from, DstAddr: to,
	})
	h.SetChecksum(^h.CalculateChecksum())
	copy(p[header.IPv4MinimumSize:], content)
	return p
}

// datagram makes a UDP packet.
func datagram(from, to tcpip.Address, fromPort, toPort uint16, content []byte) []byte {
	u := make(header.UDP, header.UDPMinimumSize+len(content))
	u.Encode(&header.UDPFields{SrcPort: fromPort, DstPort: toPort, Length: uint16(len(u))})
	copy(u[header.UDPMinimumSize:], content)
	sum := header.PseudoHeaderChecksum(header.UDPProtocolNumber, from, to, uint16(len(u)))
	sum = checksum.Combine(sum, checksum.Checksum(content, 0))
	// A sum of 0 is sent as its other form, since 0 means none.
	if sum = ^u.CalculateChecksum(sum); sum == 0 {
		sum = 0xffff
	}
	u.SetChecksum(sum)
	return packet4(from, to, header.UDPProtocolNumber, u)
}

// unreachable makes the error that a packet of IPv4 cannot be delivered.
func unreachable(p header.IPv4, code header.ICMPv4Code) []byte {
	e := make(header.ICMPv4, header.ICMPv4MinimumSize, header.ICMPv4MinimumSize+quoted)
	e.SetType(header.ICMPv4DstUnreachable)
	e.SetCode(code)
	e = append(e, p[:min(len(p), quoted)]...)
	e.SetChecksum(header.ICMPv4Checksum(e, 0))
	return packet4(p.DestinationAddress(), p.SourceAddress(), header.ICMPv4ProtocolNumber, e)
}

// unreachable6 makes the error that there is no way to where a packet of IPv6 is to go. It is nil where an error is not to
// be answered with another, nor a packet that was for many.
func unreachable6(p header.IPv6) []byte {
	from, to := p.DestinationAddress(), p.SourceAddress()
	if p.NextHeader() == uint8(header.ICMPv6ProtocolNumber) || header.IsV6MulticastAddress(from) ||
		header.IsV6MulticastAddress(to) || to == header.IPv6Any {
		return nil
	}
	const most = header.IPv6MinimumMTU - header.IPv6MinimumSize - header.ICMPv6DstUnreachableMinimumSize
	e := make(header.ICMPv6, header.ICMPv6DstUnreachableMinimumSize, header.ICMPv6DstUnreachableMinimumSize+most)
	e.SetType(header.ICMPv6DstUnreachable)
	e.SetCode(header.ICMPv6NetworkUnreachable)
	e = append(e, p[:min(len(p), most)]...)
	e.SetChecksum(header.ICMPv6Checksum(header.ICMPv6ChecksumParams{Header: e, Src: from, Dst: to}))
	whole := make([]byte, header.IPv6MinimumSize+len(e))
	header.IPv6(whole).Encode(&header.IPv6Fields{
		PayloadLength: uint16(len(e)), TransportProtocol: header.ICMPv6ProtocolNumber, HopLimit: 64,
		SrcAddr: from, DstAddr: to,
	})
	copy(whole[header.IPv6MinimumSize:], e)
	return whole
}
