package netd

import (
	"os"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"glovebox/internal/netwire"
)

const (
	// decidePatience is how long the gateway may take to decide about a connection. It dials before it accepts, where nobody
	// could be told afterwards.
	decidePatience = time.Minute
	// shakePatience is how long the sandbox may take to complete a connection that it asked for. Its kernel takes no time.
	shakePatience = 10 * time.Second
	// maxResolving bounds the connections on which questions are asked.
	maxResolving = 8
)

// refusedPorts are those of other resolvers: what would be asked there is not answered either. (53 is answered before.)
func refusedPort(port uint16) bool {
	switch port {
	case 0, 137, 853, 5353, 5355:
		return true
	}
	return false
}

// A flow is a connection of the sandbox, from its first packet on.
type flow struct {
	number  uint64
	decided chan netwire.Command
	cut     func() // ends it with a reset at once, once it is accepted; guarded by flows.mu
	refused bool   // guarded by flows.mu
}

// flows are the connections that there are. It is safe for concurrent use.
type flows struct {
	quotas netwire.Quotas

	mu        sync.Mutex
	shaking   map[stack.TransportEndpointID]struct{} // asked for and not complete
	open      map[uint64]*flow                       // that the gateway knows of
	slots     int                                    // of open flows: also of those that are ending
	resolving int
	tokens    float64 // of FlowsPerSecond
	filled    time.Time
	accepted  uint64
	closed    bool
}

func newFlows(q netwire.Quotas) *flows {
	return &flows{
		quotas: q, shaking: map[stack.TransportEndpointID]struct{}{}, open: map[uint64]*flow{}, tokens: float64(q.FlowsPerSecond),
		filled: time.Now(),
	}
}

// rate takes one of the connections that are let through now.
func (f *flows) rate(now time.Time) bool {
	most := float64(f.quotas.FlowsPerSecond)
	f.tokens = min(most, f.tokens+now.Sub(f.filled).Seconds()*most)
	f.filled = now
	if f.tokens < 1 {
		return false
	}
	f.tokens--
	return true
}

// admission is what becomes of a first packet.
type admission int

const (
	admitted admission = iota
	again              // it is known and being decided
	dropped            // for the time being: it comes again
	refused
)

// admit takes a place for a connection that is asked for.
func (f *flows) admit(id stack.TransportEndpointID) (admission, netwire.Why) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.shaking[id]; ok {
		return again, 0
	}
	switch dns := id.LocalPort == portDNS; {
	case f.closed:
		return dropped, 0
	case len(f.shaking) >= f.quotas.Handshakes:
		return dropped, netwire.WhyHandshakes
	case dns && f.resolving >= maxResolving, !dns && f.slots >= f.quotas.OpenFlows:
		return refused, netwire.WhyFlows
	case !f.rate(time.Now()):
		return dropped, netwire.WhyFlows
	case dns:
		f.resolving++
	default:
		f.slots++
	}
	f.shaking[id] = struct{}{}
	return admitted, 0
}

// complete says that a connection is not being asked for any more.
func (f *flows) complete(id stack.TransportEndpointID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.shaking, id)
}

// leave gives the place back.
func (f *flows) leave(dns bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if dns {
		f.resolving--
	} else {
		f.slots--
	}
}

// begin makes a flow, about which the gateway decides from now on.
func (f *flows) begin(number uint64) *flow {
	f.mu.Lock()
	defer f.mu.Unlock()
	fl := &flow{number: number, decided: make(chan netwire.Command, 1)}
	f.open[fl.number] = fl
	return fl
}

// end forgets a flow. Nothing is decided about it any more.
func (f *flows) end(fl *flow) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.open, fl.number)
	select {
	case m := <-fl.decided:
		closeStream(m)
	default:
	}
}

// decide hands on what the gateway says of a flow: once whether it is accepted, and at any time that it shall end.
func (f *flows) decide(m netwire.Command) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fl := f.open[m.Flow]
	switch {
	case fl == nil:
		closeStream(m) // it ended meanwhile
	case m.Kind == netwire.CommandRefuse && fl.cut != nil:
		fl.cut()
	default:
		if m.Kind == netwire.CommandRefuse {
			fl.refused = true
		}
		select {
		case fl.decided <- m:
		default:
			closeStream(m) // it was decided before
		}
	}
}

// connected says how fl is cut from now on. It is cut already if that was said meanwhile.
func (f *flows) connected(fl *flow, cut func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.accepted++
	fl.cut = cut
	if fl.refused || f.closed {
		cut()
	}
}

// close cuts all flows, and every later one.
func (f *flows) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	for _, fl := range f.open {
		if fl.cut != nil {
			fl.cut()
		}
	}
}

func closeStream(m netwire.Command) {
	if m.Stream != nil {
		m.Stream.Close()
	}
}

// segment gets each packet of TCP that belongs to no connection. It reports whether that is dealt with; if not the stack
// answers with a reset.
func (n *network) segment(id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
	h := header.TCP(pkt.TransportHeader().Slice())
	if len(h) < header.TCPMinimumSize || h.Flags()&(header.TCPFlagSyn|header.TCPFlagAck) != header.TCPFlagSyn {
		return false
	}
	to := address(id.LocalAddress)
	what := netwire.Event{Address: to, Port: id.LocalPort}
	if refusedPort(id.LocalPort) {
		n.report.drop(netwire.WhyPort, what)
		return false
	}
	// Whoever dials a bare address can be told why that does not work where it will listen, as on the ports of HTTP.
	if _, known := n.names.host(to); !known && id.LocalPort != portDNS {
		web := id.LocalPort == 80 || id.LocalPort == 443
		if !web || to == netwire.Outside() {
			n.report.drop(netwire.WhyLiteral, what)
			return false
		}
	}
	switch how, why := n.flows.admit(id); how {
	case again:
		return true
	case dropped, refused:
		if why != 0 {
			n.report.drop(why, what)
		}
		return how == dropped
	}
	n.work.Add(1)
	if !n.forwarder.HandlePacket(id, pkt) {
		n.flows.complete(id)
		n.flows.leave(id.LocalPort == portDNS)
		n.work.Done()
		return false
	}
	return true
}

// connection is the life of one connection.
func (n *network) connection(r *tcp.ForwarderRequest) {
	defer n.work.Done()
	id := r.ID()
	dns := id.LocalPort == portDNS
	defer n.flows.leave(dns)
	if dns {
		n.serveDNS(r)
		return
	}
	to := address(id.LocalAddress)
	name := n.names.hold(to)
	defer n.names.release(name)
	var fl *flow
	err := n.numbers.next(func(number uint64) error {
		fl = n.flows.begin(number)
		e := netwire.Event{Kind: netwire.KindOpen, Flow: number, Address: to, Port: id.LocalPort}
		if name != nil {
			e.Host = name.host.String()
		}
		return n.peer.Send(e)
	})
	var up, down uint64
	stream := n.wait(fl, err)
	if stream == nil {
		n.finish(r, true)
	} else {
		up, down = n.connect(r, fl, stream)
	}
	n.flows.end(fl)
	if err == nil {
		_ = n.peer.Send(netwire.Event{Kind: netwire.KindClosed, Flow: fl.number, Up: up, Down: down})
	}
}

// wait returns the stream of a flow when the gateway accepts it, and nil when it does not.
func (n *network) wait(fl *flow, err error) *os.File {
	if err != nil {
		return nil
	}
	patience := time.NewTimer(decidePatience)
	defer patience.Stop()
	select {
	case m := <-fl.decided:
		return m.Stream
	case <-patience.C:
	case <-n.done:
	}
	return nil
}

// finish ends the asking for a connection.
func (n *network) finish(r *tcp.ForwarderRequest, reset bool) {
	id := r.ID()
	r.Complete(reset)
	n.flows.complete(id)
}

// shake completes a connection with the sandbox; nil is that the sandbox did not, in time.
func (n *network) shake(r *tcp.ForwarderRequest, queue *waiter.Queue) tcpip.Endpoint {
	id := r.ID()
	shaken := make(chan struct{})
	n.work.Go(func() {
		patience := time.NewTimer(shakePatience)
		defer patience.Stop()
		select {
		case <-shaken:
			return
		case <-patience.C:
		case <-n.done:
		}
		// The stack has no other way to give up early, and does not have the connection before its first answer.
		again := time.NewTicker(10 * time.Millisecond)
		defer again.Stop()
		for {
			if half := n.stack.FindTransportEndpoint(header.IPv4ProtocolNumber, tcp.ProtocolNumber, id, nic); half != nil {
				half.Abort()
			}
			select {
			case <-shaken:
				return
			case <-again.C:
			}
		}
	})
	ep, err := r.CreateEndpoint(queue)
	close(shaken)
	n.finish(r, err != nil)
	if err != nil {
		return nil
	}
	return ep
}

// connect completes a connection and copies both ways until it has ended. It returns how many bytes it carried.
func (n *network) connect(r *tcp.ForwarderRequest, fl *flow, stream *os.File) (up, down uint64) {
	defer stream.Close()
	var queue waiter.Queue
	ep := n.shake(r, &queue)
	if ep == nil {
		return 0, 0
	}
	c, failed := newRelay(ep, &queue, stream, n.flows.share(), n.pools)
	if failed != nil {
		ep.Abort()
		return 0, 0
	}
	n.flows.connected(fl, c.cut)
	n.report.stir()
	defer n.report.stir()
	c.run(n.flows.quotas, &n.up, &n.down)
	c.settle(n.done)
	return c.up.Load(), c.down.Load()
}
