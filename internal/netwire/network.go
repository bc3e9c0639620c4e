package netwire

import (
	"net/netip"
	"os"
	"time"
)

// MTU is that of the link, in bytes of an IP packet.
const MTU = 65520

// MaxStreams bounds the flows that one netd may have named and not ended yet, whatever its quotas say.
const MaxStreams = 4096

// Network holds all addresses that netd gives out. None of them is anybody's on the internet.
func Network() netip.Prefix { return netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, 0, 0}), 15) }

// Inside is the address of the sandbox on the link, with the length of the link's prefix.
func Inside() netip.Prefix { return netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, 0, 2}), 30) }

// Outside is netd's own address on the link: the router, and the name server.
func Outside() netip.Addr { return netip.AddrFrom4([4]byte{198, 18, 0, 1}) }

// FirstName is the lowest address that stands for a name; the others follow it within Network.
func FirstName() netip.Addr { return netip.AddrFrom4([4]byte{198, 18, 1, 0}) }

// A Setup says what one sandbox's network is. It goes to netd with the descriptor of the link.
type Setup struct {
	// TAP says that the link carries Ethernet frames. Else it carries IP packets. Each has a virtio_net_hdr of 10 bytes
	// before it.
	TAP bool
	// Strict asks the gateway about each name before it is answered (Ask), so that a name that may not be reached is refused
	// by the resolver. Else each well-formed name has an address, and the gateway refuses the connection and can say why.
	Strict bool
	Quotas Quotas
}

// Quotas bound what one sandbox does to its own netd and gateway. Zero stands for the value of DefaultQuotas.
type Quotas struct {
	OpenFlows      int           // connections that are open at a time
	Handshakes     int           // connections that are asked for and not decided or not complete
	FlowsPerSecond int           // connections asked for, on average; as many at once are let through
	NamesPerMinute int           // names that had no address yet, in any minute
	NamesPerParent int           // of these, below one registrable name
	Idle           time.Duration // after which a connection without a byte ends
	Age            time.Duration // after which any connection ends
}

// DefaultQuotas are those of a Setup that says nothing else.
func DefaultQuotas() Quotas {
	return Quotas{
		OpenFlows: 256, Handshakes: 64, FlowsPerSecond: 100, NamesPerMinute: 60, NamesPerParent: 20,
		Idle: 5 * time.Minute, Age: time.Hour,
	}
}

// Or returns q with the values of other where it has none.
func (q Quotas) Or(other Quotas) Quotas {
	for _, pair := range [][2]*int{
		{&q.OpenFlows, &other.OpenFlows}, {&q.Handshakes, &other.Handshakes}, {&q.FlowsPerSecond, &other.FlowsPerSecond},
		{&q.NamesPerMinute, &other.NamesPerMinute}, {&q.NamesPerParent, &other.NamesPerParent},
	} {
		if *pair[0] == 0 {
			*pair[0] = *pair[1]
		}
	}
	if q.Idle == 0 {
		q.Idle = other.Idle
	}
	if q.Age == 0 {
		q.Age = other.Age
	}
	return q
}

// A Kind says what an Event is about.
type Kind uint8

// The kinds of events. Their numbers are those on the wire.
const (
	// KindOpen: the sandbox wants a connection to Host (where that is empty, to the bare Address) and Port. Flow is its
	// number, which is never used again. It is answered by Accept or Refuse.
	KindOpen Kind = iota + 1
	// KindClosed: Flow has ended, by either side or before it was answered. Up and Down are the bytes of its content.
	KindClosed
	// KindName: Host, which had no address, was asked for and has Address now.
	KindName
	// KindAsk: of a Strict Setup alone: may Host have an address? It is answered by Answer with the same Flow.
	KindAsk
	// KindDropped: Count things were not let through because of Why, the last to Host or Address and Port. Events of one
	// cause are gathered for a second.
	KindDropped
	// KindCounters: what happened so far, at most once in a second and only if something did.
	KindCounters

	kindHello // netd waits for its Setup
	kindReady // it serves
)

// Why says why netd did not let something through.
type Why uint8

// The reasons. Their numbers are those on the wire.
const (
	WhyLiteral    Why = iota + 1 // a connection to an address that stands for no name, at a port where none can be explained
	WhyPort                      // a connection to a port of other resolvers, or port 0
	WhyUDP                       // a datagram that is no question to a resolver
	WhyProtocol                  // neither TCP nor UDP, an echo included
	WhyIPv6                      // any packet of IPv6
	WhyName                      // a question for what is no host name
	WhyQuestion                  // a malformed question
	WhyNames                     // a name beyond NamesPerMinute, or more than 4,096 names in use
	WhyParent                    // a name beyond NamesPerParent
	WhyFlows                     // a connection beyond OpenFlows or FlowsPerSecond
	WhyHandshakes                // a connection beyond Handshakes
	WhyPacket                    // a malformed packet or frame
	whyEnd
)

// String is a word for records.
func (w Why) String() string {
	words := [...]string{"", "literal", "port", "udp", "protocol", "ipv6", "name", "question", "names", "parent", "flows",
		"handshakes", "packet"}
	if int(w) < len(words) {
		return words[w]
	}
	return ""
}

// An Event is what netd says. The fields that its kind does not name are zero. Nothing in it is to be believed but that this
// sandbox's netd said so: Host is spelled in the letters of a canonical name, but it is for package egress to parse.
type Event struct {
	Kind     Kind
	Flow     uint64
	Host     string
	Address  netip.Addr // of IPv4, or zero
	Port     uint16
	Why      Why
	Count    uint64
	Up, Down uint64 // bytes from and to the sandbox
	Counters Counters
}

// Counters are what happened since netd began to serve.
type Counters struct {
	Flows, OpenFlows uint64 // connections that were accepted, and how many of these are open
	Up, Down         uint64 // bytes from and to the sandbox, of connections
	Packets          uint64 // received
	Names, Questions uint64 // names that were given an address, and questions that were answered or refused
	Dropped          uint64 // the sum of all Dropped events
}

// A Command is what netd is told of one flow.
type Command struct {
	Kind   CommandKind
	Flow   uint64
	Stream *os.File // of CommandAccept: the receiver closes it
	Known  bool     // of CommandAnswer
}

// A CommandKind says what a Command does.
type CommandKind uint8

// The kinds of commands. Their numbers are those on the wire.
const (
	CommandAccept CommandKind = iota + 1 // connect Flow with Stream
	CommandRefuse                        // end Flow with a reset, accepted or not
	CommandAnswer                        // answer the question that is Flow: Known or refused

	commandSetup
)
