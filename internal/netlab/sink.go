package netlab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

const (
	snap      = 256     // bytes of a packet that are looked at
	sinkRoom  = 8 << 20 // of the socket
	discard   = 9       // the port to which settle sends
	fromHere  = 4       // PACKET_OUTGOING: the internet's own
	ethHeader = 14
)

// sink reads every packet that comes out of the machine.
type sink struct {
	file  *os.File
	marks chan uint64 // of settle's own packets
	next  uint64
}

// watch opens the sink.
func (l *Lab) watch() error {
	s := &sink{marks: make(chan uint64, 64)}
	err := l.internet.do(func() error {
		dev, err := net.InterfaceByName("world")
		if err != nil {
			return err
		}
		all := int(binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ALL)))
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open a packet socket: %w", err)
		}
		s.file = os.NewFile(uintptr(fd), "sink")
		if err := onlyIncoming(fd); err != nil {
			return err
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, sinkRoom); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: uint16(all), Ifindex: dev.Index})
	})
	if err != nil {
		return err
	}
	l.sink = s
	l.serving.Go(func() { l.drain(s) })
	l.away = append(l.away, func() { s.file.Close() })
	return nil
}

// onlyIncoming lets the kernel drop what goes to the machine, and cut the rest.
func onlyIncoming(fd int) error {
	raw, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtType},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: fromHere, SkipFalse: 1},
		bpf.RetConstant{Val: 0},
		bpf.RetConstant{Val: snap},
	})
	if err != nil {
		return err
	}
	filter := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		filter[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
}

func (l *Lab) drain(s *sink) {
	b := make([]byte, snap)
	for {
		n, err := s.file.Read(b)
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil {
			continue // the link is down for a moment
		}
		l.packet(s, b[:n])
	}
}

// packet keeps what begins something. Neighbour discovery and the like are the link's own and are not kept.
func (l *Lab) packet(s *sink, b []byte) {
	if len(b) < ethHeader {
		return
	}
	kind, b := binary.BigEndian.Uint16(b[12:]), b[ethHeader:]
	p := Packet{}
	proto := 0
	switch {
	case kind == unix.ETH_P_IP && len(b) >= 20:
		head := int(b[0]&15) * 4
		p.From, p.To = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[16:20])), 0)
		proto, p.Bytes = int(b[9]), int(binary.BigEndian.Uint16(b[2:]))
		b = b[min(head, len(b)):]
	case kind == unix.ETH_P_IPV6 && len(b) >= 40:
		p.From, p.To = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[24:40])), 0)
		proto, p.Bytes = int(b[6]), 40+int(binary.BigEndian.Uint16(b[4:]))
		b = b[40:]
	case kind == unix.ETH_P_ARP:
		return
	default:
		p.Proto = fmt.Sprintf("ether %#04x", kind)
		keep(l.seen, &l.seen.all.Packets, p)
		return
	}
	switch proto {
	case unix.IPPROTO_TCP:
		if len(b) >= 14 && b[13]&0x12 != 0x02 {
			return // not the first of a connection
		}
		p.Proto = "tcp"
	case unix.IPPROTO_UDP:
		p.Proto = "udp"
	case unix.IPPROTO_ICMP:
		p.Proto = "icmp"
	case unix.IPPROTO_ICMPV6:
		if len(b) > 0 && b[0] >= 130 && b[0] <= 143 { // multicast listeners, routers, neighbours
			return
		}
		p.Proto = "icmp6"
	case 0: // hop by hop options, of multicast listeners
		if p.To.Addr().IsMulticast() {
			return
		}
		fallthrough
	default:
		p.Proto = strconv.Itoa(proto)
	}
	if (p.Proto == "tcp" || p.Proto == "udp") && len(b) >= 4 {
		p.To = netip.AddrPortFrom(p.To.Addr(), binary.BigEndian.Uint16(b[2:]))
	}
	if p.Proto == "udp" && p.To == netip.MustParseAddrPort(Twin+":9") && len(b) >= 16 {
		select {
		case s.marks <- binary.BigEndian.Uint64(b[8:]):
		default:
		}
		return
	}
	keep(l.seen, &l.seen.all.Packets, p)
}

// settle waits until the sink has read all that had left the machine: it sends a packet of its own and waits for that.
func (l *Lab) settle() error {
	var mark uint64
	err := l.machine.do(func() error {
		l.sink.next++
		mark = l.sink.next
		c, err := net.Dial("udp", net.JoinHostPort(Twin, strconv.Itoa(discard)))
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write(binary.BigEndian.AppendUint64(nil, mark))
		return err
	})
	if err != nil {
		return fmt.Errorf("ask the sink: %w", err)
	}
	deadline := time.After(5 * time.Second)
	for {
		select {
		case got := <-l.sink.marks:
			if got >= mark {
				return l.dropped()
			}
		case <-deadline:
			return errors.New("the sink does not see its own packet")
		}
	}
}

// dropped is an error when the kernel had no room for packets, so that something was not seen.
func (l *Lab) dropped() error {
	raw, err := l.sink.file.SyscallConn()
	if err != nil {
		return err
	}
	var drops uint32
	err = errors.Join(raw.Control(func(fd uintptr) {
		var st *unix.TpacketStats
		if st, err = unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
			drops = st.Drops
		}
	}), err)
	if err == nil && drops > 0 {
		err = fmt.Errorf("%d packets were not seen: the sink was too slow", drops)
	}
	return err
}
