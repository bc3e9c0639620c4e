package netd

import (
	"bytes"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"glovebox/internal/netwire"
)

// What a program does to its own network with packets that no kernel sends. The link is a socket that keeps packets apart,
// as that of a machine is.

// rawLink makes such a link: the test's end, and netd's.
func rawLink(t testing.TB) (near, far *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	near, far = os.NewFile(uintptr(fds[0]), "near link"), os.NewFile(uintptr(fds[1]), "far link")
	t.Cleanup(func() { near.Close(); far.Close() })
	return near, far
}

func addr(a netip.Addr) tcpip.Address { return tcpip.AddrFrom4(a.As4()) }

// plain is the virtio_net_hdr of a packet that is as it looks.
func plain(p []byte) []byte { return append(make([]byte, vnetSize), p...) }

// syn is the first packet of a connection, with a right checksum.
func syn(from uint16, to netip.Addr, port uint16) []byte {
	h := make(header.TCP, header.TCPMinimumSize)
	h.Encode(&header.TCPFields{SrcPort: from, DstPort: port, SeqNum: 1, DataOffset: header.TCPMinimumSize, Flags: header.TCPFlagSyn, WindowSize: 65000})
	inside := addr(netwire.Inside().Addr())
	h.SetChecksum(^checksum.Checksum(h, header.PseudoHeaderChecksum(header.TCPProtocolNumber, inside, addr(to), uint16(len(h)))))
	return packet4(inside, addr(to), header.TCPProtocolNumber, h)
}

func dnsPacket(t testing.TB, name string) []byte {
	return datagram(addr(netwire.Inside().Addr()), addr(netwire.Outside()), 5000, 53, ask(t, name, dnsmessage.TypeA, -1))
}

// answerTo reads packets until there is an answer to a question, and returns its address.
func answerTo(t testing.TB, link *os.File, prefix int) netip.Addr {
	t.Helper()
	if err := link.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 1<<16)
	for {
		n, err := link.Read(b)
		if err != nil {
			t.Fatalf("netd does not answer any more: %v", err)
		}
		h := header.IPv4(b[prefix:n])
		if !h.IsValid(n-prefix) || h.TransportProtocol() != header.UDPProtocolNumber {
			continue
		}
		u := header.UDP(h.Payload())
		if !h.IsChecksumValid() || !u.IsChecksumValid(h.SourceAddress(), h.DestinationAddress(), checksum.Checksum(u.Payload(), 0)) {
			t.Errorf("an answer with a wrong checksum: %x", b[:n])
		}
		var m dnsmessage.Message
		if m.Unpack(u.Payload()) == nil && len(m.Answers) == 1 {
			return netip.AddrFrom4(m.Answers[0].Body.(*dnsmessage.AResource).A)
		}
	}
}

// badPackets are packets that nobody in their right mind sends.
func badPackets(t testing.TB) map[string][]byte {
	name := netwire.FirstName()
	change := func(p []byte, f func(p []byte)) []byte { p = plain(p); f(p[vnetSize:]); return p }
	good := syn(1, name, 80)
	resum := func(p []byte) {
		h := header.IPv4(p)
		h.SetChecksum(0)
		h.SetChecksum(^h.CalculateChecksum())
	}
	question := dnsPacket(t, "other.test.")
	return map[string][]byte{
		"nothing":                {0},
		"half a virtio_net_hdr":  make([]byte, vnetSize-1),
		"only a virtio_net_hdr":  make([]byte, vnetSize),
		"one byte":               plain([]byte{0x45}),
		"version 0":              change(good, func(p []byte) { p[0] = 0x05 }),
		"version 15":             change(good, func(p []byte) { p[0] = 0xf5 }),
		"a short header":         change(good, func(p []byte) { p[0] = 0x44; resum(p) }),
		"options":                change(good, func(p []byte) { p[0] = 0x46; resum(p) }),
		"a long header":          change(good, func(p []byte) { p[0] = 0x4f }),
		"a length beyond":        change(good, func(p []byte) { p[2], p[3] = 0xff, 0xff; resum(p) }),
		"a length of 0":          change(good, func(p []byte) { p[2], p[3] = 0, 0; resum(p) }),
		"a wrong header":         change(good, func(p []byte) { p[10]++ }),
		"a wrong segment":        change(good, func(p []byte) { p[36]++ }),
		"a first fragment":       change(good, func(p []byte) { p[6] = 0x20; resum(p) }),
		"a last fragment":        change(good, func(p []byte) { p[6], p[7] = 0, 9; resum(p) }),
		"a wrong datagram":       change(question, func(p []byte) { p[27]++ }),
		"a datagram beyond":      change(question, func(p []byte) { p[24], p[25] = 0xff, 0xff; p[26], p[27] = 0, 0 }),
		"a datagram of 7":        change(question, func(p []byte) { p[24], p[25] = 0, 7; p[26], p[27] = 0, 0 }),
		"a segment of 3 bytes":   plain(packet4(addr(netwire.Inside().Addr()), addr(name), header.TCPProtocolNumber, []byte{1, 2, 3})),
		"a datagram of 3 bytes":  plain(packet4(addr(netwire.Inside().Addr()), addr(name), header.UDPProtocolNumber, []byte{1, 2, 3})),
		"IPv6 that is cut":       plain([]byte{0x60, 0, 0}),
		"IPv6":                   plain(append([]byte{0x60, 0, 0, 0, 0, 0, 59, 64}, make([]byte, 32)...)),
		"to everybody":           change(good, func(p []byte) { copy(p[16:], []byte{255, 255, 255, 255}); resum(p) }),
		"from everybody":         change(good, func(p []byte) { copy(p[12:], []byte{255, 255, 255, 255}); resum(p) }),
		"from itself":            change(good, func(p []byte) { copy(p[12:], p[16:20]); resum(p) }),
		"as large as it gets":    plain(append(append([]byte{}, good[:20]...), make([]byte, 100<<10)...)),
		"GRE":                    plain(packet4(addr(netwire.Inside().Addr()), addr(name), 47, []byte("tunnel"))),
		"an ICMP error":          plain(packet4(addr(netwire.Inside().Addr()), addr(name), 1, []byte{3, 3, 0, 0})),
		"lies about checksums":   append([]byte{1, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff}, good[:39]...),
		"lies about offloads":    append([]byte{0, 0x83, 0xff, 0xff, 1, 0, 0, 0, 0, 0}, good[:39]...),
		"an unknown kind of GSO": append([]byte{0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0}, good[:39]...),
	}
}

func TestBadPackets(t *testing.T) {
	for name, p := range badPackets(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			near, far := rawLink(t)
			w := newWorld(t, netwire.Setup{}, far, nil)
			if _, err := near.Write(plain(dnsPacket(t, "first.test."))); err != nil {
				t.Fatal(err)
			}
			if a := answerTo(t, near, vnetSize); a != netwire.FirstName() {
				t.Fatalf("the first name is %v", a)
			}
			if _, err := near.Write(p); err != nil {
				t.Fatal(err)
			}
			if _, err := near.Write(plain(dnsPacket(t, "good.test."))); err != nil {
				t.Fatal(err)
			}
			answerTo(t, near, vnetSize)
			w.await("both names", func(e netwire.Event) bool { return e.Host == "good.test" })
			if w.count(netwire.KindOpen) != 0 || w.count(netwire.KindName) != 2 {
				t.Errorf("the gateway heard of it: %+v", w.events)
			}
		})
	}
}

// TestGoodPacket: the packets above are refused for what is bad in them.
func TestGoodPacket(t *testing.T) {
	near, far := rawLink(t)
	w := newWorld(t, netwire.Setup{}, far, nil)
	for _, p := range [][]byte{dnsPacket(t, "first.test."), syn(1, netwire.FirstName(), 80)} {
		if _, err := near.Write(plain(p)); err != nil {
			t.Fatal(err)
		}
		if p[9] == byte(header.UDPProtocolNumber) {
			answerTo(t, near, vnetSize)
		}
	}
	w.await("the connection", func(e netwire.Event) bool { return e.Kind == netwire.KindOpen })
}

// TestARP: all addresses but the sandbox's own are netd's, and netd follows whoever spoke last.
func TestARP(t *testing.T) {
	near, far := rawLink(t)
	newWorld(t, netwire.Setup{TAP: true}, far, nil)
	mac := tcpip.LinkAddress("\x02\x00\x00\x00\x00\x07")
	frame := func(kind tcpip.NetworkProtocolNumber, from tcpip.LinkAddress, p []byte) []byte {
		f := make([]byte, vnetSize+header.EthernetMinimumSize)
		header.Ethernet(f[vnetSize:]).Encode(&header.EthernetFields{SrcAddr: from, DstAddr: header.EthernetBroadcastAddress, Type: kind})
		return append(f, p...)
	}
	request := func(target netip.Addr) []byte {
		a := header.ARP(make([]byte, header.ARPSize))
		a.SetIPv4OverEthernet()
		a.SetOp(header.ARPRequest)
		copy(a.HardwareAddressSender(), mac)
		copy(a.ProtocolAddressSender(), netwire.Inside().Addr().AsSlice())
		copy(a.ProtocolAddressTarget(), target.AsSlice())
		return frame(header.ARPProtocolNumber, mac, a)
	}
	for _, f := range [][]byte{
		request(netwire.Inside().Addr()), request(netwire.Outside())[:30], frame(header.ARPProtocolNumber, header.EthernetBroadcastAddress, nil),
		frame(0x88cc, mac, []byte("neighbours")), frame(header.IPv4ProtocolNumber, "\x01\x00\x00\x00\x00\x00", dnsPacket(t, "evil.test.")),
		request(netwire.Outside()),
	} {
		if _, err := near.Write(f); err != nil {
			t.Fatal(err)
		}
	}
	b := make([]byte, 1<<16)
	_ = near.SetReadDeadline(time.Now().Add(5 * time.Second))
	n, err := near.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	e, a := header.Ethernet(b[vnetSize:]), header.ARP(b[vnetSize+header.EthernetMinimumSize:n])
	if e.DestinationAddress() != mac || e.SourceAddress() != ownAddress() || !a.IsValid() || a.Op() != header.ARPReply ||
		!bytes.Equal(a.ProtocolAddressSender(), netwire.Outside().AsSlice()) || tcpip.LinkAddress(a.HardwareAddressSender()) != ownAddress() {
		t.Errorf("answered with %x", b[:n])
	}
	other := tcpip.LinkAddress("\x02\x00\x00\x00\x00\x08")
	if _, err := near.Write(frame(header.IPv4ProtocolNumber, other, dnsPacket(t, "good.test."))); err != nil {
		t.Fatal(err)
	}
	n, err = near.Read(b)
	if err != nil || header.Ethernet(b[vnetSize:n]).DestinationAddress() != other {
		t.Errorf("answered with %x, %v", b[:n], err)
	}
}

// memoryOf is how many bytes of a process are its own.
func memoryOf(t testing.TB, pid int, field string) int {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "smaps_rollup"))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(field + `:\s+(\d+) kB`).FindSubmatch(b)
	if m == nil {
		t.Fatalf("no %s in %s", field, b)
	}
	n, err := strconv.Atoi(string(m[1]))
	if err != nil {
		t.Fatal(err)
	}
	return n << 10
}

// mostMemory is what a netd may take, whatever is done to it.
const mostMemory = 80 << 20

// TestFlood: ten thousand first packets that nobody completes cost a bounded number of connections and a bounded memory, and
// netd goes on.
func TestFlood(t *testing.T) {
	near, far := rawLink(t)
	w, process := startNetdOn(t, netwire.Setup{}, far, nil)
	if _, err := near.Write(plain(dnsPacket(t, "first.test."))); err != nil {
		t.Fatal(err)
	}
	name := answerTo(t, near, vnetSize)
	go func() {
		for e := range w.opened() {
			if e.Flow%2 == 0 {
				_ = w.host.Refuse(e.Flow)
			} else if c, err := w.accept(e.Flow); err == nil { // and so is half open
				defer c.Close()
			}
		}
	}()
	for i := range 10000 {
		_ = near.SetWriteDeadline(time.Now().Add(5 * time.Second))
		if _, err := near.Write(plain(syn(uint16(1024+i), name, 80))); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := near.Write(plain(dnsPacket(t, "good.test."))); err != nil {
		t.Fatal(err)
	}
	answerTo(t, near, vnetSize)
	w.awaitDrop(netwire.WhyHandshakes)
	if used := memoryOf(t, process.Pid, "Private_Dirty"); used > mostMemory/4 {
		t.Errorf("netd takes %d MiB", used>>20)
	} else {
		t.Logf("netd takes %d KiB after 10,000 first packets", used>>10)
	}
}

// TestStuck: as many connections as there may be, whose ends do not read, take a bounded memory, whichever end it is.
func TestStuck(t *testing.T) {
	for _, who := range []string{"gateway", "sandbox", "both"} {
		t.Run(who, func(t *testing.T) {
			stop := make(chan struct{})
			push := func(c net.Conn) {
				b := make([]byte, 64<<10)
				for {
					_ = c.SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
					if _, err := c.Write(b); err != nil {
						return
					}
				}
			}
			w, process := startNetd(t, false, netwire.Setup{}, all(func(c net.Conn) {
				defer c.Close()
				if who != "gateway" {
					push(c)
				}
				<-stop
			}))
			defer close(stop)
			address := net.JoinHostPort(resolve(t, "good.test"), "80")
			var pushes sync.WaitGroup
			for range 200 {
				c := dial(t, address)
				if who != "sandbox" {
					pushes.Go(func() { push(c) })
				}
			}
			pushes.Wait()
			w.await("all", func(e netwire.Event) bool { return e.Kind == netwire.KindCounters && e.Counters.OpenFlows == 200 })
			used := memoryOf(t, process.Pid, "Private_Dirty")
			t.Logf("netd takes %d KiB with 200 connections that are stuck at: %s", used>>10, who)
			if used > mostMemory {
				t.Errorf("netd takes %d MiB", used>>20)
			}
		})
	}
}

// TestIdle: a netd that waits for its sandbox, and one whose sandbox does nothing, take little.
func TestIdle(t *testing.T) {
	near, far := rawLink(t)
	w, process := startNetdOn(t, netwire.Setup{}, far, nil)
	if _, err := near.Write(plain(dnsPacket(t, "good.test."))); err != nil {
		t.Fatal(err)
	}
	answerTo(t, near, vnetSize)
	w.await("the name", func(e netwire.Event) bool { return e.Kind == netwire.KindName })
	used := memoryOf(t, process.Pid, "Private_Dirty")
	t.Logf("an idle netd takes %d KiB", used>>10)
	if used > 8<<20 {
		t.Errorf("an idle netd takes %d MiB", used>>20)
	}
}
