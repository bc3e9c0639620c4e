package netd

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"glovebox/internal/netwire"
)

// nic is the number of the only interface of the stack.
const nic = 1

// network is what a sandbox sees: the link with the stack behind it, the resolver, and the connections.
type network struct {
	peer      *netwire.Peer
	setup     netwire.Setup
	link      *link
	stack     *stack.Stack
	forwarder *tcp.Forwarder
	report    *report
	names     *names
	resolver  *resolver
	flows     *flows
	asks      asks
	numbers   numbers
	pools     *pools

	up, down atomic.Uint64
	work     sync.WaitGroup // of connections
	done     chan struct{}  // closed when all is to end
}

// numbers are those of flows and of questions, which the gateway hears in their order.
type numbers struct {
	mu   sync.Mutex
	last uint64
}

// next calls send with the next number, alone.
func (n *numbers) next(send func(uint64) error) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last++
	return send(n.last)
}

// Run waits for a set-up and is the network of a sandbox until the gateway closes its end, which is no error, or the link
// ends. It takes over neither f nor anything else that lives longer than the call: all that it started has ended when it
// returns. A program calls it once.
func Run(peer *netwire.Peer) error {
	setup, file, err := peer.Setup()
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("wait for a set-up: %w", err)
	}
	setup.Quotas = setup.Quotas.Or(netwire.DefaultQuotas())
	n, err := newNetwork(peer, setup, file)
	if err != nil {
		file.Close()
		return err
	}
	return n.serve()
}

// newNetwork takes over file when there is no error.
func newNetwork(peer *netwire.Peer, setup netwire.Setup, file *os.File) (*network, error) {
	n := &network{
		peer: peer, setup: setup, names: newNames(setup.Quotas), flows: newFlows(setup.Quotas), done: make(chan struct{}),
		pools: newPools(),
	}
	n.report = newReport(n.counters)
	n.resolver = &resolver{names: n.names, report: n.report}
	if setup.Strict {
		n.resolver.ask = n.ask
	}
	var err error
	if n.link, err = newLink(file, setup.TAP, n); err != nil {
		return nil, err
	}
	n.stack = stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol},
	})
	if err := n.configure(); err != nil {
		n.stack.Destroy()
		return nil, err
	}
	return n, nil
}

// configure makes the stack take what is for anybody, and bounds what it keeps.
func (n *network) configure() error {
	sack, moderate := tcpip.TCPSACKEnabled(true), tcpip.TCPModerateReceiveBufferOption(false)
	reuse := tcpip.TCPTimeWaitReuseGlobal
	linger, wait := tcpip.TCPLingerTimeoutOption(5*time.Second), tcpip.TCPTimeWaitTimeoutOption(250*time.Millisecond)
	retries := tcpip.TCPMaxRetriesOption(8)
	for _, option := range []tcpip.SettableTransportProtocolOption{
		&sack, &moderate, &reuse, &linger, &wait, &retries,
		&tcpip.TCPReceiveBufferSizeRangeOption{Min: 4 << 10, Default: smallestBuffer, Max: largestBuffer},
		&tcpip.TCPSendBufferSizeRangeOption{Min: 4 << 10, Default: smallestBuffer, Max: largestBuffer},
	} {
		if err := n.stack.SetTransportProtocolOption(tcp.ProtocolNumber, option); err != nil {
			return fmt.Errorf("configure the stack: %T: %s", option, err)
		}
	}
	outside := netwire.Outside().As4()
	for _, failed := range []struct {
		step string
		err  tcpip.Error
	}{
		{"interface", n.stack.CreateNIC(nic, n.link)},
		{"address", n.stack.AddProtocolAddress(nic, tcpip.ProtocolAddress{
			Protocol:          header.IPv4ProtocolNumber,
			AddressWithPrefix: tcpip.AddrFrom4(outside).WithPrefix(),
		}, stack.AddressProperties{})},
		{"promiscuous", n.stack.SetPromiscuousMode(nic, true)},
		{"spoofing", n.stack.SetSpoofing(nic, true)},
	} {
		if failed.err != nil {
			return fmt.Errorf("configure the stack: %s: %s", failed.step, failed.err)
		}
	}
	n.stack.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: nic}})
	n.forwarder = tcp.NewForwarder(n.stack, smallestBuffer, n.setup.Quotas.Handshakes, func(r *tcp.ForwarderRequest) {
		n.connection(r)
	})
	n.stack.SetTransportProtocolHandler(tcp.ProtocolNumber, n.segment)
	return nil
}

// serve reads packets and commands until either ends, and ends all.
func (n *network) serve() error {
	var others sync.WaitGroup
	linkEnded, told := make(chan error, 1), make(chan error, 1)
	others.Go(func() { n.report.run(n.done, n.peer.Send) })
	others.Go(func() { linkEnded <- n.link.run() })
	err := n.peer.Ready()
	if err == nil {
		others.Go(func() { told <- n.listen() })
		select {
		case err = <-linkEnded:
		case err = <-told:
		}
	}
	close(n.done)
	n.link.Close() // no new connection after this
	n.flows.close()
	n.peer.Close() // whoever waits to send does not wait any more
	n.stack.Close()
	n.work.Wait()
	others.Wait()
	n.stack.Destroy()
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// listen does what the gateway says.
func (n *network) listen() error {
	for {
		m, err := n.peer.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("listen to the gateway: %w", err)
		}
		if m.Kind == netwire.CommandAnswer {
			n.asks.answer(m.Flow, m.Known)
		} else {
			n.flows.decide(m)
		}
	}
}

func (n *network) counters() netwire.Counters {
	c := netwire.Counters{
		Up: n.up.Load(), Down: n.down.Load(), Packets: n.link.received.Load(), Questions: n.resolver.count.Load(),
		Dropped: n.report.total(), Names: n.names.given(),
	}
	n.flows.mu.Lock()
	defer n.flows.mu.Unlock()
	c.Flows, c.OpenFlows = n.flows.accepted, uint64(len(n.flows.open))
	return c
}
