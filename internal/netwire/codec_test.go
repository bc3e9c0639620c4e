package netwire

import (
	"bytes"
	"math"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func events() map[string]Event {
	address := FirstName()
	return map[string]Event{
		"open name":    {Kind: KindOpen, Flow: math.MaxUint64, Host: "a-b_c.xn--4ca.test", Address: address, Port: math.MaxUint16},
		"open literal": {Kind: KindOpen, Flow: 1, Address: netip.MustParseAddr("192.0.2.1"), Port: 80},
		"longest":      {Kind: KindOpen, Flow: 7, Host: strings.Repeat("a", maxHost), Address: address, Port: 1},
		"closed":       {Kind: KindClosed, Flow: 7, Up: 1 << 40, Down: 3},
		"name":         {Kind: KindName, Host: "good.test", Address: address},
		"ask":          {Kind: KindAsk, Flow: 8, Host: "good.test"},
		"dropped":      {Kind: KindDropped, Why: WhyLiteral, Count: 9, Host: "good.test", Address: address, Port: 53},
		"dropped bare": {Kind: KindDropped, Why: WhyPacket, Count: 1},
		"counters": {Kind: KindCounters, Counters: Counters{Flows: 1, OpenFlows: 2, Up: 3, Down: 4, Packets: 5, Names: 6,
			Questions: 7, Dropped: math.MaxUint64}},
		"hello": {Kind: kindHello},
		"ready": {Kind: kindReady},
	}
}

func commands() map[string]Command {
	return map[string]Command{
		"accept":  {Kind: CommandAccept, Flow: math.MaxUint64},
		"refuse":  {Kind: CommandRefuse, Flow: 1},
		"known":   {Kind: CommandAnswer, Flow: 2, Known: true},
		"unknown": {Kind: CommandAnswer, Flow: 3},
	}
}

func setup() Setup {
	return Setup{TAP: true, Strict: true, Quotas: Quotas{OpenFlows: 1, Handshakes: 2, FlowsPerSecond: 3, NamesPerMinute: 4,
		NamesPerParent: MaxStreams, Idle: time.Second, Age: math.MaxInt64}}
}

func encodeEvent(t testing.TB, e Event) []byte {
	t.Helper()
	c := codec{}
	c.event(&e)
	b, err := c.finish()
	if err != nil {
		t.Fatalf("put %+v together: %v", e, err)
	}
	return b
}

func encodeCommand(t testing.TB, m Command, s Setup) []byte {
	t.Helper()
	c := codec{}
	c.command(&m, &s)
	b, err := c.finish()
	if err != nil {
		t.Fatalf("put %+v together: %v", m, err)
	}
	return b
}

func decodeEvent(b []byte) (Event, error) {
	var e Event
	c := codec{buf: b, taking: true}
	c.event(&e)
	_, err := c.finish()
	return e, err
}

func decodeCommand(b []byte) (Command, Setup, error) {
	var m Command
	var s Setup
	c := codec{buf: b, taking: true}
	c.command(&m, &s)
	_, err := c.finish()
	return m, s, err
}

// sameAddress compares addresses as values.
var sameAddress = cmpopts.EquateComparable(netip.Addr{})

func TestRoundTrip(t *testing.T) {
	for name, e := range events() {
		got, err := decodeEvent(encodeEvent(t, e))
		if diff := cmp.Diff(e, got, sameAddress); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", name, err, diff)
		}
	}
	for name, m := range commands() {
		got, _, err := decodeCommand(encodeCommand(t, m, Setup{}))
		if diff := cmp.Diff(m, got); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", name, err, diff)
		}
	}
	_, got, err := decodeCommand(encodeCommand(t, Command{Kind: commandSetup}, setup()))
	if diff := cmp.Diff(setup(), got); err != nil || diff != "" {
		t.Errorf("setup: %v\n%s", err, diff)
	}
}

// TestEveryFieldIsTried: a field that no message above sets could be lost on the way.
func TestEveryFieldIsTried(t *testing.T) {
	set := map[string]bool{}
	var note func(v reflect.Value)
	note = func(v reflect.Value) {
		for i := range v.NumField() {
			name := v.Type().Name() + "." + v.Type().Field(i).Name
			set[name] = set[name] || !v.Field(i).IsZero()
			if f := v.Field(i); f.Kind() == reflect.Struct && strings.HasPrefix(f.Type().PkgPath(), "glovebox") {
				note(f)
			}
		}
	}
	for _, e := range events() {
		note(reflect.ValueOf(e))
	}
	for _, m := range commands() {
		note(reflect.ValueOf(m))
	}
	note(reflect.ValueOf(setup()))
	for name, tried := range set {
		if !tried && name != "Command.Stream" { // which is a descriptor's place
			t.Errorf("no message sets %s", name)
		}
	}
}

// TestStrict: what is not exactly a message is none.
func TestStrict(t *testing.T) {
	for name, e := range events() {
		b := encodeEvent(t, e)
		for n := range len(b) {
			if got, err := decodeEvent(b[:n:n]); err == nil {
				t.Errorf("%s cut off after %d bytes was taken as %+v", name, n, got)
			}
		}
		if got, err := decodeEvent(append(bytes.Clone(b), 0)); err == nil {
			t.Errorf("%s with another byte was taken as %+v", name, got)
		}
	}
	open := func(change func(*Event)) []byte {
		e := events()["open name"]
		change(&e)
		return encodeEvent(t, e)
	}
	for name, b := range map[string][]byte{
		"nothing":              {},
		"no kind":              {0},
		"unknown kind":         {byte(kindReady) + 1},
		"upper case":           open(func(e *Event) { e.Host = "Good.test" }),
		"a NUL":                open(func(e *Event) { e.Host = "good.test\x00.evil.test" }),
		"not ASCII":            open(func(e *Event) { e.Host = "gööd.test" }),
		"too long":             open(func(e *Event) { e.Host = strings.Repeat("a", maxHost+1) }),
		"port 0":               open(func(e *Event) { e.Port = 0 }),
		"no address":           open(func(e *Event) { e.Address = netip.Addr{} }),
		"a large port":         {byte(KindOpen), 1, 0, 1, 1, 2, 3, 4, 0x80, 0x80, 0x04},
		"a longer number":      {byte(KindClosed), 0x81, 0x00, 0, 0},
		"a number of 65 bits":  append([]byte{byte(KindClosed)}, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02, 0, 0),
		"no reason":            encodeEvent(t, Event{Kind: KindDropped, Count: 1}),
		"an unknown reason":    encodeEvent(t, Event{Kind: KindDropped, Count: 1, Why: whyEnd}),
		"nothing was dropped":  encodeEvent(t, Event{Kind: KindDropped, Why: WhyUDP}),
		"a name of no letters": encodeEvent(t, Event{Kind: KindName, Address: FirstName()}),
		"a name of no address": encodeEvent(t, Event{Kind: KindName, Host: "a"}),
		"a question for none":  encodeEvent(t, Event{Kind: KindAsk, Flow: 1}),
	} {
		if got, err := decodeEvent(b); err == nil {
			t.Errorf("%s was taken as %+v", name, got)
		}
	}
	for name, b := range map[string][]byte{
		"nothing":             {},
		"unknown kind":        {byte(commandSetup) + 1},
		"a flag of 2":         {byte(CommandAnswer), 1, 2},
		"a negative quota":    encodeCommand(t, Command{Kind: commandSetup}, Setup{Quotas: Quotas{OpenFlows: -1}}),
		"a large quota":       encodeCommand(t, Command{Kind: commandSetup}, Setup{Quotas: Quotas{OpenFlows: MaxStreams + 1}}),
		"a negative duration": encodeCommand(t, Command{Kind: commandSetup}, Setup{Quotas: Quotas{Idle: -1}}),
	} {
		if got, _, err := decodeCommand(b); err == nil {
			t.Errorf("%s was taken as %+v", name, got)
		}
	}
}

func TestWhyHasWords(t *testing.T) {
	seen := map[string]Why{}
	for w := Why(1); w < whyEnd; w++ {
		if other, ok := seen[w.String()]; ok || w.String() == "" {
			t.Errorf("reason %d is %q, as %d", w, w.String(), other)
		}
		seen[w.String()] = w
	}
	if whyEnd.String() != "" {
		t.Errorf("there is a word for no reason: %q", whyEnd)
	}
}

func TestQuotasOr(t *testing.T) {
	if got := (Quotas{}).Or(DefaultQuotas()); got != DefaultQuotas() {
		t.Errorf("quotas that say nothing are %+v", got)
	}
	if q := setup().Quotas; q.Or(DefaultQuotas()) != q {
		t.Errorf("quotas that say all changed: %+v", q.Or(DefaultQuotas()))
	}
}

// FuzzDecode: whatever the bytes are, what is taken is what would be sent.
func FuzzDecode(f *testing.F) {
	for _, e := range events() {
		f.Add(encodeEvent(f, e), false)
	}
	for _, m := range commands() {
		f.Add(encodeCommand(f, m, Setup{}), true)
	}
	f.Add(encodeCommand(f, Command{Kind: commandSetup}, setup()), true)
	f.Fuzz(func(t *testing.T, b []byte, command bool) {
		if len(b) > maxMessage {
			return
		}
		if command {
			if m, s, err := decodeCommand(bytes.Clone(b)); err == nil && !bytes.Equal(encodeCommand(t, m, s), b) {
				t.Errorf("%x is %+v %+v, which is sent as %x", b, m, s, encodeCommand(t, m, s))
			}
			return
		}
		e, err := decodeEvent(bytes.Clone(b))
		if err == nil && !bytes.Equal(encodeEvent(t, e), b) {
			t.Errorf("%x is %+v, which is sent as %x", b, e, encodeEvent(t, e))
		}
	})
}
