package netwire

import (
	"encoding/binary"
	"errors"
	"math"
	"net/netip"
	"time"
)

// maxMessage bounds one message: a name of 253 bytes and numbers.
const maxMessage = 512

// maxHost is the most bytes that a name has.
const maxHost = 253

var errMessage = errors.New("a message is cut off, too long or has a bad field")

// codec puts fields into a message or takes them out, one after the other. What puts a message together and what takes it
// apart is the same code, so the two ends cannot differ.
type codec struct {
	buf    []byte // what was put, or what is left to be taken
	taking bool
	bad    bool // of taking; nothing is taken after it
}

func (c *codec) fail() { c.buf, c.bad = nil, true }

// number codes a number of at most most, in the one shortest way there is.
func (c *codec) number(n *uint64, most uint64) {
	if !c.taking {
		c.buf = binary.AppendUvarint(c.buf, *n)
		return
	}
	v, size := binary.Uvarint(c.buf)
	if c.bad || size <= 0 || v > most || size > 1 && c.buf[size-1] == 0 {
		c.fail()
		return
	}
	*n, c.buf = v, c.buf[size:]
}

func (c *codec) flag(b *bool) {
	var v uint64
	if *b {
		v = 1
	}
	c.number(&v, 1)
	*b = v == 1
}

// small codes a number of any small type.
func small[T ~uint8 | ~uint16 | ~int](c *codec, n *T, most uint64) {
	v := uint64(*n)
	c.number(&v, most)
	*n = T(v)
}

func (c *codec) duration(d *time.Duration) {
	v := uint64(*d)
	c.number(&v, math.MaxInt64)
	*d = time.Duration(v)
}

// host codes a name, or none: nothing but the letters that a canonical name has.
func (c *codec) host(s *string) {
	n := uint64(len(*s))
	c.number(&n, maxHost)
	switch {
	case !c.taking:
		c.buf = append(c.buf, *s...)
	case n > uint64(len(c.buf)):
		c.fail()
	default:
		*s, c.buf = string(c.buf[:n]), c.buf[n:]
		if !lettersOfHost(*s) {
			c.fail()
		}
	}
}

func lettersOfHost(s string) bool {
	for i := range len(s) {
		switch b := s[i]; {
		case 'a' <= b && b <= 'z' || '0' <= b && b <= '9' || b == '-' || b == '_' || b == '.':
		default:
			return false
		}
	}
	return len(s) <= maxHost
}

// address codes an address of IPv4, or none.
func (c *codec) address(a *netip.Addr) {
	has := a.IsValid()
	c.flag(&has)
	switch {
	case !has:
		*a = netip.Addr{}
	case !c.taking:
		four := a.As4()
		c.buf = append(c.buf, four[:]...)
	case len(c.buf) < 4:
		c.fail()
	default:
		*a, c.buf = netip.AddrFrom4([4]byte(c.buf)), c.buf[4:]
	}
}

// finish returns the message that was put together, or says whether one was taken apart to its end.
func (c *codec) finish() ([]byte, error) {
	if c.bad || c.taking && len(c.buf) > 0 || len(c.buf) > maxMessage {
		return nil, errMessage
	}
	return c.buf, nil
}

func (c *codec) event(e *Event) {
	small(c, &e.Kind, uint64(kindReady))
	switch e.Kind {
	case KindOpen:
		c.number(&e.Flow, math.MaxUint64)
		c.host(&e.Host)
		c.address(&e.Address)
		small(c, &e.Port, math.MaxUint16)
		// A connection is to a name or to an address.
		c.must(e.Port > 0 && e.Address.IsValid())
	case KindClosed:
		c.number(&e.Flow, math.MaxUint64)
		c.number(&e.Up, math.MaxUint64)
		c.number(&e.Down, math.MaxUint64)
	case KindName:
		c.host(&e.Host)
		c.address(&e.Address)
		c.must(e.Host != "" && e.Address.IsValid())
	case KindAsk:
		c.number(&e.Flow, math.MaxUint64)
		c.host(&e.Host)
		c.must(e.Host != "")
	case KindDropped:
		small(c, &e.Why, uint64(whyEnd)-1)
		c.number(&e.Count, math.MaxUint64)
		c.host(&e.Host)
		c.address(&e.Address)
		small(c, &e.Port, math.MaxUint16)
		c.must(e.Why > 0 && e.Count > 0)
	case KindCounters:
		n := &e.Counters
		for _, v := range []*uint64{&n.Flows, &n.OpenFlows, &n.Up, &n.Down, &n.Packets, &n.Names, &n.Questions, &n.Dropped} {
			c.number(v, math.MaxUint64)
		}
	case kindHello, kindReady:
	default:
		c.must(false)
	}
}

// must makes a message bad that is taken and not so.
func (c *codec) must(so bool) {
	if c.taking && !so {
		c.fail()
	}
}

func (c *codec) command(m *Command, s *Setup) {
	small(c, &m.Kind, uint64(commandSetup))
	switch m.Kind {
	case CommandAccept, CommandRefuse:
		c.number(&m.Flow, math.MaxUint64)
	case CommandAnswer:
		c.number(&m.Flow, math.MaxUint64)
		c.flag(&m.Known)
	case commandSetup:
		c.flag(&s.TAP)
		c.flag(&s.Strict)
		q := &s.Quotas
		for _, v := range []*int{&q.OpenFlows, &q.Handshakes, &q.FlowsPerSecond, &q.NamesPerMinute, &q.NamesPerParent} {
			small(c, v, MaxStreams)
		}
		c.duration(&q.Idle)
		c.duration(&q.Age)
	default:
		c.must(false)
	}
}
