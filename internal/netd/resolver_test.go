package netd

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"glovebox/internal/egress"
	"glovebox/internal/netwire"
)

func newResolver(q netwire.Quotas) *resolver {
	return &resolver{names: newNames(q.Or(netwire.DefaultQuotas())), report: newReport(func() netwire.Counters { return netwire.Counters{} })}
}

// wireName spells a name as it is on the wire, without a look at what it is.
func wireName(labels ...string) (b []byte) {
	for _, l := range labels {
		b = append(append(b, byte(len(l))), l...)
	}
	return append(b, 0)
}

// ask makes a question, with extensions of a version if that is not negative.
func ask(t testing.TB, name string, kind dnsmessage.Type, edns int) []byte {
	t.Helper()
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 77, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: kind, Class: dnsmessage.ClassINET}},
	}
	if edns >= 0 {
		m.Additionals = []dnsmessage.Resource{{
			Header: dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName("."), Type: dnsmessage.TypeOPT, Class: 4096, TTL: uint32(edns) << 16},
			Body:   &dnsmessage.OPTResource{},
		}}
	}
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// answered is the only answer to a message, or nil.
func answered(t testing.TB, r *resolver, message []byte, udp bool) *dnsmessage.Message {
	t.Helper()
	var all [][]byte
	r.answer(message, udp, func(b []byte) { all = append(all, b) })
	if len(all) == 0 {
		return nil
	}
	var m dnsmessage.Message
	if err := m.Unpack(all[0]); err != nil || len(all) > 1 {
		t.Fatalf("%d answers, the first %x: %v", len(all), all[0], err)
	}
	return &m
}

// noAnswer is the code of a message that is not answered.
const noAnswer = dnsmessage.RCode(99)

type answerCase struct {
	message []byte
	code    dnsmessage.RCode
	address bool
}

// answerCases are messages and what becomes of them.
func answerCases() map[string]answerCase {
	header := func(bits uint16, counts ...uint16) []byte {
		b := binary.BigEndian.AppendUint16([]byte{0, 77}, bits)
		for _, c := range counts {
			b = binary.BigEndian.AppendUint16(b, c)
		}
		return b
	}
	question := func(name []byte, kind, class uint16) []byte {
		b := append(header(0x0100, 1, 0, 0, 0), name...)
		return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(b, kind), class)
	}
	a := func(labels ...string) []byte { return question(wireName(labels...), 1, 1) }
	opt := []byte{0, 0, 41, 16, 0, 0, 0, 0, 0, 0, 0}
	with := func(b []byte, additional ...byte) []byte {
		b = append(append([]byte{}, b...), additional...)
		b[11] = byte(len(additional) / len(opt))
		return b
	}
	const none = noAnswer
	return map[string]answerCase{
		"a name":               {a("good", "test"), 0, true},
		"in capitals":          {a("GOOD", "Test"), 0, true},
		"underscores":          {a("_srv", "good", "test"), 0, true},
		"longest label":        {a(strings.Repeat("a", 63), "test"), 0, true},
		"no name":              {a(), dnsmessage.RCodeRefused, false},
		"a NUL":                {a("good", "test\x00", "evil", "test"), dnsmessage.RCodeRefused, false},
		"a space":              {a(" good", "test"), dnsmessage.RCodeRefused, false},
		"an at sign":           {a("good@evil", "test"), dnsmessage.RCodeRefused, false},
		"percent":              {a("good", "test%00", "x"), dnsmessage.RCodeRefused, false},
		"UTF-8":                {a("gööd", "test"), dnsmessage.RCodeRefused, false},
		"a dot in a label":     {a("good.test", "evil"), dnsmessage.RCodeFormatError, false},
		"a number":             {a("2130706433"), dnsmessage.RCodeRefused, false},
		"an address":           {a("127", "1"), dnsmessage.RCodeRefused, false},
		"hexadecimal":          {a("good", "0x7f"), dnsmessage.RCodeRefused, false},
		"AAAA":                 {question(wireName("good", "test"), 28, 1), 0, false},
		"TXT":                  {question(wireName("good", "test"), 16, 1), 0, false},
		"MX":                   {question(wireName("good", "test"), 15, 1), 0, false},
		"HTTPS":                {question(wireName("good", "test"), 65, 1), 0, false},
		"NULL":                 {question(wireName("good", "test"), 10, 1), 0, false},
		"ANY":                  {question(wireName("good", "test"), 255, 1), 0, false},
		"AXFR":                 {question(wireName("good", "test"), 252, 1), 0, false},
		"another class":        {question(wireName("version", "bind"), 16, 3), dnsmessage.RCodeRefused, false},
		"PTR of nothing":       {question(wireName("9", "9", "18", "198", "in-addr", "arpa"), 12, 1), dnsmessage.RCodeNameError, false},
		"PTR of others":        {question(wireName("8", "8", "8", "8", "in-addr", "arpa"), 12, 1), dnsmessage.RCodeNameError, false},
		"PTR of no number":     {question(wireName("0x1", "01", "18", "198", "in-addr", "arpa"), 12, 1), dnsmessage.RCodeNameError, false},
		"PTR of a name":        {question(wireName("good", "test"), 12, 1), dnsmessage.RCodeNameError, false},
		"empty":                {nil, none, false},
		"half a header":        {header(0, 1), none, false},
		"an answer":            {header(0x8000, 0, 0, 0, 0), none, false},
		"no question":          {header(0, 0, 0, 0, 0), dnsmessage.RCodeFormatError, false},
		"two questions":        {append(header(0, 2, 0, 0, 0), a("good", "test")[12:]...), dnsmessage.RCodeFormatError, false},
		"a cut question":       {a("good", "test")[:20], dnsmessage.RCodeFormatError, false},
		"a pointer to itself":  {append(header(0, 1, 0, 0, 0), 0xc0, 12, 0, 1, 0, 1), dnsmessage.RCodeFormatError, false},
		"a status query":       {header(0x1000, 0, 0, 0, 0), dnsmessage.RCodeNotImplemented, false},
		"an update":            {header(0x2800, 1, 0, 0, 0), dnsmessage.RCodeNotImplemented, false},
		"extensions":           {with(a("good", "test"), opt...), 0, true},
		"extensions twice":     {with(a("good", "test"), append(append([]byte{}, opt...), opt...)...), dnsmessage.RCodeFormatError, false},
		"a later version":      {with(a("good", "test"), 0, 0, 41, 16, 0, 0, 9, 0, 0, 0, 0), 0, false}, // BADVERS is 16: its low bits are 0
		"answers that are not": {append(header(0, 1, 9, 0, 0), a("good", "test")[12:]...), dnsmessage.RCodeFormatError, false},
		"too long":             {append(a("good", "test"), make([]byte, maxQuestion)...), none, false},
	}
}

func TestAnswers(t *testing.T) {
	r := newResolver(netwire.Quotas{NamesPerMinute: 1000, NamesPerParent: 1000})
	for name, c := range answerCases() {
		m := answered(t, r, c.message, true)
		switch {
		case m == nil && c.code == noAnswer:
		case m == nil || c.code == noAnswer:
			t.Errorf("%s was answered with %+v", name, m)
		case m.ID != 77 || !m.Response || m.RCode != c.code || (len(m.Answers) == 1) != c.address:
			t.Errorf("%s was answered with %+v", name, m)
		case c.address && m.Questions[0].Name.String() != m.Answers[0].Header.Name.String():
			t.Errorf("%s was asked as %s and answered as %s", name, m.Questions[0].Name, m.Answers[0].Header.Name)
		}
	}
}

// TestOneAddressPerHost: spellings of one host have one address, two hosts have two, and the way back is the same.
func TestOneAddressPerHost(t *testing.T) {
	r := newResolver(netwire.Quotas{})
	get := func(name string) string {
		m := answered(t, r, ask(t, name, dnsmessage.TypeA, -1), true)
		a := m.Answers[0].Body.(*dnsmessage.AResource).A
		back := fmt.Sprintf("%d.%d.%d.%d.in-addr.arpa.", a[3], a[2], a[1], a[0])
		p := answered(t, r, ask(t, back, dnsmessage.TypePTR, -1), true)
		return fmt.Sprint(a, p.Answers[0].Body.(*dnsmessage.PTRResource).PTR)
	}
	if a, b := get("good.test."), get("GOOD.test."); a != b || !strings.HasSuffix(a, " good.test.") {
		t.Errorf("one host is %s and %s", a, b)
	}
	if a, b := get("good.test."), get("evil.test."); a == b {
		t.Errorf("two hosts are %s", a)
	}
}

// TestExplains: who knows of extensions is told why, and others are not sent what they do not know.
func TestExplains(t *testing.T) {
	r := newResolver(netwire.Quotas{NamesPerMinute: 1})
	answered(t, r, ask(t, "first.test.", dnsmessage.TypeA, 0), true)
	m := answered(t, r, ask(t, "second.test.", dnsmessage.TypeA, 0), true)
	if m.RCode != dnsmessage.RCodeRefused || len(m.Additionals) != 1 {
		t.Fatalf("answered with %+v", m)
	}
	o := m.Additionals[0].Body.(*dnsmessage.OPTResource).Options
	if len(o) != 1 || o[0].Code != optionError || binary.BigEndian.Uint16(o[0].Data) != errorBlocked ||
		string(o[0].Data[2:]) != "more than 1 new names in a minute" {
		t.Errorf("the reason is %+v", o)
	}
	if m := answered(t, r, ask(t, "second.test.", dnsmessage.TypeA, -1), true); len(m.Additionals) != 0 {
		t.Errorf("extensions for who has none: %+v", m)
	}
	if m := answered(t, r, ask(t, "first.test.", dnsmessage.TypeA, 1), true); m.Additionals[0].Header.ExtendedRCode(m.RCode) != badVersion {
		t.Errorf("a later version was answered with %+v", m)
	}
}

// TestLongAnswer: what does not fit a datagram is asked for again on a connection.
func TestLongAnswer(t *testing.T) {
	q := question{asked: dnsmessage.Question{Name: dnsmessage.MustNewName("a."), Type: dnsmessage.TypeTXT, Class: dnsmessage.ClassINET}, limit: plainAnswer}
	var sent dnsmessage.Message
	q.reply = func(b []byte) {
		if err := sent.Unpack(b); err != nil {
			t.Fatal(err)
		}
	}
	long := &dnsmessage.TXTResource{TXT: []string{strings.Repeat("a", 200), strings.Repeat("b", 200), strings.Repeat("c", 200)}}
	if q.send(0, "", long); !sent.Truncated || len(sent.Answers) != 0 {
		t.Errorf("a long answer is %+v", sent)
	}
	q.limit = 1000
	if q.send(0, "", long); sent.Truncated || len(sent.Answers) != 1 {
		t.Errorf("an answer that fits is %+v", sent)
	}
}

// TestStrict: in strict mode the gateway says which names there are.
func TestStrict(t *testing.T) {
	r := newResolver(netwire.Quotas{})
	room := true
	r.ask = func(h egress.Host, then func(bool)) bool {
		if room {
			then(h.String() == "good.test")
		}
		return room
	}
	if m := answered(t, r, ask(t, "good.test.", dnsmessage.TypeA, 0), true); len(m.Answers) != 1 {
		t.Errorf("a name that there is was answered with %+v", m)
	}
	if m := answered(t, r, ask(t, "evil.test.", dnsmessage.TypeA, 0), true); m.RCode != dnsmessage.RCodeRefused {
		t.Errorf("a name that there is not was answered with %+v", m)
	}
	room = false
	if m := answered(t, r, ask(t, "good.test.", dnsmessage.TypeA, 0), true); m.RCode != dnsmessage.RCodeServerFailure {
		t.Errorf("a question too many was answered with %+v", m)
	}
}

func host(t testing.TB, name string) egress.Host {
	t.Helper()
	h, err := egress.ParseHost(name)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestNameQuotas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNames(netwire.DefaultQuotas())
		made := func(pattern string, count int) (why netwire.Why) {
			for i := range count {
				if _, _, w := n.resolve(host(t, fmt.Sprintf(pattern, i))); w != 0 {
					why = w
				}
			}
			return why
		}
		if why := made("a%d.wild.test", 20); why != 0 {
			t.Fatalf("20 names below one are refused: %v", why)
		}
		// However deep they lie, and from now on whatever they are.
		if why := made("a%d.b.c.wild.test", 1); why != netwire.WhyParent {
			t.Errorf("the 21st name below one: %v", why)
		}
		if why := made("a%d.wild.test", 20); why != 0 {
			t.Errorf("names that are known already are refused: %v", why)
		}
		if why := made("a%d.test", 40); why != 0 {
			t.Errorf("60 names are refused: %v", why)
		}
		if why := made("b%d.test", 1); why != netwire.WhyNames {
			t.Errorf("the 61st name: %v", why)
		}
		time.Sleep(window)
		if why := made("c%d.wild.test", 20); why != 0 {
			t.Errorf("a minute later: %v", why)
		}
		if len(n.parents) != 1 || len(n.news) != 20 {
			t.Errorf("what is over is kept: %v %v", n.parents, n.news)
		}
	})
}

// TestAddressesAreNotReused: an address stands for its host while there is a connection, or an answer somewhere.
func TestAddressesAreNotReused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNames(netwire.Quotas{NamesPerMinute: 1 << 20, NamesPerParent: 1 << 20})
		first, _, _ := n.resolve(host(t, "first.test"))
		second, _, _ := n.resolve(host(t, "second.test"))
		held := n.hold(first)
		for i := range maxNames - 2 {
			n.resolve(host(t, fmt.Sprintf("n%d.test", i)))
		}
		if _, _, why := n.resolve(host(t, "more.test")); why != netwire.WhyNames {
			t.Fatalf("one name too many: %v", why)
		}
		time.Sleep(2*ttl + time.Second)
		more, fresh, why := n.resolve(host(t, "more.test"))
		if why != 0 || !fresh || more == first || more == second {
			t.Errorf("later: %v %v %v", more, fresh, why)
		}
		if h, ok := n.host(first); !ok || h != host(t, "first.test") {
			t.Error("a host with a connection lost its address")
		}
		if _, ok := n.host(second); ok {
			t.Error("a host that nobody knows has an address")
		}
		n.release(held)
		if len(n.hosts) != maxNames || len(n.at) != maxNames || n.order.Len() != maxNames {
			t.Errorf("%d hosts, %d addresses, %d places", len(n.hosts), len(n.at), n.order.Len())
		}
		// All the way round, no two have one address.
		n.next = netip.MustParseAddr("198.19.255.255")
		for range 3 {
			if a := n.free(); n.at[a] != nil || !netwire.Network().Contains(a) {
				t.Errorf("%v is given out again", a)
			}
		}
	})
}

// FuzzQuestion: whatever is asked, an answer is a message about the same, no longer than it may be.
func FuzzQuestion(f *testing.F) {
	for _, kind := range []dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypePTR, dnsmessage.TypeAAAA} {
		f.Add(ask(f, "1.1.18.198.in-addr.arpa.", kind, -1), true)
		f.Add(ask(f, "good.test.", kind, 0), false)
	}
	f.Fuzz(func(t *testing.T, b []byte, udp bool) {
		r := newResolver(netwire.Quotas{})
		r.answer(b, udp, func(a []byte) {
			var m dnsmessage.Message
			if err := m.Unpack(a); err != nil || !m.Response || a[0] != b[0] || a[1] != b[1] || udp && len(a) > ownAnswer {
				t.Errorf("%x was answered with %x: %v", b, a, err)
			}
		})
	})
}
