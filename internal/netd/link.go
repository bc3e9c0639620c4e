package netd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"glovebox/internal/netwire"
)

const (
	// vnetSize is that of struct virtio_net_hdr without num_buffers, which is before each packet.
	vnetSize = 10
	// maxPacket is the most bytes that an IP packet has: all that its length field can say.
	maxPacket = 65535
	// keepSize is from where on a packet stays in the buffer in which it was read. A smaller one is copied out of it, so that
	// it does not take the memory of a large one.
	keepSize = 16 << 10
	// writePatience bounds how long the stack waits for room in a link that is full, as one that is a socket can be.
	writePatience = time.Second
)

// The flags and kinds of a virtio_net_hdr (linux/virtio_net.h).
const (
	vnetNeedsChecksum = 1
	vnetDataValid     = 2
	vnetTCPv4         = 1
)

// handler gets each packet of the link: p is an IP packet without what is before it, of use until the call ends.
type handler interface {
	// packet reports whether the stack shall have the packet too.
	packet(p []byte, checked bool) bool
	// bad is told of what is no packet at all.
	bad()
}

// A link is the sandbox's interface as the stack sees it: it reads packets when there are some, in one goroutine, and writes
// them. It implements stack.LinkEndpoint and stack.GSOEndpoint.
type link struct {
	file    *os.File
	raw     syscall.RawConn
	tap     bool
	prefix  int // bytes before an IP packet
	handler handler

	mu         sync.Mutex
	dispatcher stack.NetworkDispatcher
	mtu        atomic.Uint32
	peer       atomic.Uint64 // the Ethernet address that spoke last

	received atomic.Uint64
	writing  sync.Mutex // of those that wait for room
}

// newLink takes over file, which the caller closes through Close.
func newLink(file *os.File, tap bool, h handler) (*link, error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("use the link: %w", err)
	}
	l := &link{file: file, raw: raw, tap: tap, prefix: vnetSize, handler: h}
	if tap {
		l.prefix += header.EthernetMinimumSize
	}
	l.mtu.Store(netwire.MTU)
	return l, nil
}

// run reads until the link is closed, here or by the end of the sandbox.
func (l *link) run() error {
	before := make([]byte, l.prefix)
	large := buffer.NewViewSize(buffer.MaxChunkSize)
	defer func() { large.Release() }()
	for {
		var n int
		var got error
		err := l.raw.Read(func(fd uintptr) bool {
			for got = unix.EINTR; got == unix.EINTR; {
				n, got = unix.Readv(int(fd), [][]byte{before, large.AsSlice()})
			}
			return got != unix.EAGAIN
		})
		switch err = errors.Join(err, got); {
		case errors.Is(err, os.ErrClosed), errors.Is(err, unix.EBADFD), errors.Is(err, unix.ECONNRESET), err == nil && n == 0:
			return nil
		case err != nil:
			return fmt.Errorf("read from the link: %w", err)
		}
		l.received.Add(1)
		if n -= l.prefix; n <= 0 {
			l.handler.bad()
			continue
		}
		if l.deliver(before, large, n) {
			large = buffer.NewViewSize(buffer.MaxChunkSize)
		}
	}
}

// deliver hands on a packet of n bytes and reports whether view went with it.
func (l *link) deliver(before []byte, view *buffer.View, n int) bool {
	p := view.AsSlice()[:n]
	if l.tap && !l.ethernet(before[vnetSize:], p) {
		return false
	}
	// Between two ends of one machine a checksum need not be made. What says so is believed: whoever could lie could as well
	// have sent other bytes.
	checked := before[0]&(vnetNeedsChecksum|vnetDataValid) != 0
	if !l.handler.packet(p, checked) {
		return false
	}
	l.mu.Lock()
	d := l.dispatcher
	l.mu.Unlock()
	if d == nil {
		return false
	}
	kept := n > keepSize
	if kept {
		view.CapLength(n)
	} else {
		view = buffer.NewViewWithData(p)
	}
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithView(view)})
	d.DeliverNetworkPacket(header.IPv4ProtocolNumber, pkt)
	pkt.DecRef()
	return kept
}

// ethernet looks at the header of a frame. It reports whether p is an IP packet.
func (l *link) ethernet(frame, p []byte) bool {
	h := header.Ethernet(frame)
	source := h.SourceAddress()
	if header.IsMulticastEthernetAddress(source) {
		l.handler.bad()
		return false
	}
	l.peer.Store(packAddress(source))
	switch h.Type() {
	case header.IPv4ProtocolNumber, header.IPv6ProtocolNumber:
		return true
	case header.ARPProtocolNumber:
		if answer := answerARP(p); answer != nil {
			l.reply(header.ARPProtocolNumber, answer)
		}
	default:
		l.handler.bad()
	}
	return false
}

// reply writes a packet that the goroutine that reads has made. It never waits, so that reading goes on; there is no harm in
// the loss of such a packet.
func (l *link) reply(kind tcpip.NetworkProtocolNumber, p []byte) {
	parts := [][]byte{l.head(kind, stack.GSO{}, 0, 0), p}
	_ = l.raw.Control(func(fd uintptr) { _, _ = unix.Writev(int(fd), parts) })
}

// head is what is before a packet whose headers and content have these sizes.
func (l *link) head(kind tcpip.NetworkProtocolNumber, gso stack.GSO, headers, content int) []byte {
	head := make([]byte, l.prefix)
	ethernet := l.prefix - vnetSize
	if gso.Type != stack.GSONone {
		put := binary.LittleEndian.PutUint16
		if gso.NeedsCsum {
			head[0] = vnetNeedsChecksum
			put(head[6:], uint16(ethernet)+gso.L3HdrLen)
			put(head[8:], gso.CsumOffset)
		}
		if content > int(gso.MSS) {
			head[1] = vnetTCPv4
			put(head[2:], uint16(ethernet+headers))
			put(head[4:], gso.MSS)
		}
	}
	if l.tap {
		header.Ethernet(head[vnetSize:]).Encode(&header.EthernetFields{
			SrcAddr: ownAddress(), DstAddr: unpackAddress(l.peer.Load()), Type: kind,
		})
	}
	return head
}

// WritePackets writes packets of the stack, in their order. It waits a while for room.
func (l *link) WritePackets(pkts stack.PacketBufferList) (int, tcpip.Error) {
	written := 0
	for _, pkt := range pkts.AsSlice() {
		var array [6][]byte
		parts := append(array[:0], l.head(pkt.NetworkProtocolNumber, pkt.GSOOptions, pkt.HeaderSize(), pkt.Data().Size()))
		if err := l.write(append(parts, pkt.AsSlices()...)); err != nil {
			return written, &tcpip.ErrClosedForSend{}
		}
		written++
	}
	return written, nil
}

// write writes one packet. One for which there is no room for too long is dropped, as networks do.
func (l *link) write(parts [][]byte) error {
	var failed error
	full := func(fd uintptr) bool {
		for failed = unix.EINTR; failed == unix.EINTR; {
			_, failed = unix.Writev(int(fd), parts)
		}
		return failed == unix.EAGAIN
	}
	waits := false
	if err := l.raw.Control(func(fd uintptr) { waits = full(fd) }); err != nil {
		return err
	}
	if waits {
		l.writing.Lock()
		defer l.writing.Unlock()
		if err := l.file.SetWriteDeadline(time.Now().Add(writePatience)); err != nil {
			return err
		}
		err := l.raw.Write(func(fd uintptr) bool { return !full(fd) })
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		}
		failed = errors.Join(err, failed)
	}
	if failed == unix.ENOBUFS || failed == unix.ENOMEM || failed == unix.EINVAL {
		return nil // this packet is lost, not the link
	}
	return failed
}

// Attach gives the link the stack, or takes it away.
func (l *link) Attach(d stack.NetworkDispatcher) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dispatcher = d
}

// IsAttached reports whether packets go to a stack.
func (l *link) IsAttached() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dispatcher != nil
}

// MTU is that of IP packets.
func (l *link) MTU() uint32 { return l.mtu.Load() }

// SetMTU changes it.
func (l *link) SetMTU(mtu uint32) { l.mtu.Store(mtu) }

// Capabilities are that the checksum of what is received was looked at. What is sent has one, but where a packet's GSO
// options say that the other end makes it.
func (l *link) Capabilities() stack.LinkEndpointCapabilities {
	return stack.CapabilityRXChecksumOffload
}

// SupportedGSO says that the other end takes TCP segments larger than a packet.
func (l *link) SupportedGSO() stack.SupportedGSO { return stack.HostGSOSupported }

// GSOMaxSize is the most bytes of one.
func (l *link) GSOMaxSize() uint32 { return maxPacket }

// MaxHeaderLength is 0: what is before a packet is written apart from it.
func (l *link) MaxHeaderLength() uint16 { return 0 }

// LinkAddress is empty: the stack does not know of Ethernet.
func (l *link) LinkAddress() tcpip.LinkAddress { return "" }

// SetLinkAddress does nothing.
func (l *link) SetLinkAddress(tcpip.LinkAddress) {}

// ARPHardwareType says that there is nobody to ask for an address.
func (l *link) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareNone }

// AddHeader does nothing, see MaxHeaderLength.
func (l *link) AddHeader(*stack.PacketBuffer) {}

// ParseHeader does nothing, see MaxHeaderLength.
func (l *link) ParseHeader(*stack.PacketBuffer) bool { return true }

// Wait does nothing: whoever called run waits for it.
func (l *link) Wait() {}

// Close closes the descriptor, which ends run.
func (l *link) Close() { l.file.Close() }

// SetOnCloseAction does nothing: nothing depends on the link.
func (l *link) SetOnCloseAction(func()) {}
