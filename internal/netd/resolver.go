package netd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"golang.org/x/net/dns/dnsmessage"

	"glovebox/internal/egress"
	"glovebox/internal/netwire"
)

const (
	// maxQuestion bounds a question: one name, and what extensions bring.
	maxQuestion = 4096
	// plainAnswer is the most that an answer by UDP has to who does not say that more is welcome; ownAnswer is the most that
	// is sent to anybody.
	plainAnswer, ownAnswer = 512, 1232
	// optionError is the number of the option that says why a question was not answered (RFC 8914), errorBlocked that of the
	// reason that whoever runs the resolver does not want it answered.
	optionError, errorBlocked = 15, 15
	// badVersion is the code for a version of EDNS that there is not.
	badVersion dnsmessage.RCode = 16
)

// A resolver answers questions out of what it knows itself, and sends none to anybody: each host has an address that stands
// for it here, and nothing else is known of it.
type resolver struct {
	names  *names
	report *report
	// ask, if it is not nil, asks whether a host may have an address; then is called with the answer, by whatever goroutine,
	// at once or later. It reports whether there is room for the question.
	ask   func(h egress.Host, then func(known bool)) bool
	count atomic.Uint64
}

// A question is what was asked, and how it is to be answered.
type question struct {
	header dnsmessage.Header
	asked  dnsmessage.Question
	edns   bool // the client knows of extensions
	limit  int  // of the answer's bytes
	reply  func([]byte)
}

// answer answers a message, which is the caller's again when it returns. reply is called once, or never if there is no
// answer to such a message, and perhaps later by another goroutine.
func (r *resolver) answer(message []byte, udp bool, reply func([]byte)) {
	q := question{limit: maxQuestion, reply: reply}
	if udp {
		q.limit = plainAnswer
	}
	code, err := q.parse(message, udp)
	if err != nil {
		r.report.drop(netwire.WhyQuestion, netwire.Event{})
		return
	}
	r.count.Add(1)
	if code != dnsmessage.RCodeSuccess {
		r.report.drop(netwire.WhyQuestion, netwire.Event{})
		q.send(code, "", nil)
		return
	}
	r.look(&q)
}

// parse reads a message. An error says that there is nothing to answer; a code that it is refused as it is.
func (q *question) parse(message []byte, udp bool) (dnsmessage.RCode, error) {
	if len(message) > maxQuestion {
		return 0, errors.New("too long")
	}
	var p dnsmessage.Parser
	h, err := p.Start(message)
	switch {
	case err != nil:
		return 0, err
	case h.Response:
		return 0, errors.New("an answer")
	}
	q.header = h
	if h.OpCode != 0 {
		return dnsmessage.RCodeNotImplemented, nil
	}
	asked, err := p.AllQuestions()
	if err != nil || len(asked) != 1 {
		return dnsmessage.RCodeFormatError, nil
	}
	q.asked = asked[0]
	if p.SkipAllAnswers() != nil || p.SkipAllAuthorities() != nil {
		return dnsmessage.RCodeFormatError, nil
	}
	return q.extensions(&p, udp), nil
}

// extensions reads the additional part.
func (q *question) extensions(p *dnsmessage.Parser, udp bool) dnsmessage.RCode {
	for {
		h, err := p.AdditionalHeader()
		if errors.Is(err, dnsmessage.ErrSectionDone) {
			return dnsmessage.RCodeSuccess
		}
		if err != nil || p.SkipAdditional() != nil || h.Type == dnsmessage.TypeOPT && q.edns {
			return dnsmessage.RCodeFormatError
		}
		if h.Type != dnsmessage.TypeOPT {
			continue
		}
		q.edns = true
		if udp {
			q.limit = min(max(int(h.Class), plainAnswer), ownAnswer)
		}
		if h.TTL>>16&0xff != 0 {
			return badVersion
		}
	}
}

// look finds the answer to a question of a known form.
func (r *resolver) look(q *question) {
	wire := q.asked.Name.String()
	if q.asked.Class != dnsmessage.ClassINET {
		r.report.drop(netwire.WhyQuestion, netwire.Event{})
		q.send(dnsmessage.RCodeRefused, "only class IN is answered", nil)
		return
	}
	h, err := egress.ParseHost(wire)
	if err != nil {
		r.report.drop(netwire.WhyName, netwire.Event{})
		q.send(dnsmessage.RCodeRefused, "not a host name", nil)
		return
	}
	switch q.asked.Type {
	case dnsmessage.TypePTR:
		r.reverse(q, h)
	case dnsmessage.TypeA:
		r.forward(q, h)
	default:
		// There is such a name, and nothing of this type: no keys, no other names, nobody's text.
		q.send(dnsmessage.RCodeSuccess, "", nil)
	}
}

func (r *resolver) reverse(q *question, h egress.Host) {
	a, ok := reverse(strings.Split(h.String(), "."))
	if ok {
		var host egress.Host
		if host, ok = r.names.host(a); ok {
			name, err := dnsmessage.NewName(host.String() + ".")
			if err == nil {
				q.send(dnsmessage.RCodeSuccess, "", &dnsmessage.PTRResource{PTR: name})
				return
			}
		}
	}
	q.send(dnsmessage.RCodeNameError, "", nil)
}

func (r *resolver) forward(q *question, h egress.Host) {
	if r.ask == nil {
		r.resolve(q, h)
		return
	}
	asked := r.ask(h, func(known bool) {
		if known {
			r.resolve(q, h)
		} else {
			q.send(dnsmessage.RCodeRefused, "the egress rules of this sandbox do not have this name", nil)
		}
	})
	if !asked {
		r.report.drop(netwire.WhyNames, netwire.Event{Host: h.String()})
		q.send(dnsmessage.RCodeServerFailure, "too many questions at a time", nil)
	}
}

func (r *resolver) resolve(q *question, h egress.Host) {
	a, fresh, why := r.names.resolve(h)
	if why != 0 {
		r.report.drop(why, netwire.Event{Host: h.String()})
		text := fmt.Sprintf("more than %d new names in a minute", r.names.quotas.NamesPerMinute)
		if why == netwire.WhyParent {
			text = fmt.Sprintf("more than %d new names below one in a minute", r.names.quotas.NamesPerParent)
		}
		q.send(dnsmessage.RCodeRefused, text, nil)
		return
	}
	if fresh {
		r.report.named(netwire.Event{Kind: netwire.KindName, Host: h.String(), Address: a})
	}
	q.send(dnsmessage.RCodeSuccess, "", &dnsmessage.AResource{A: a.As4()})
}

// send answers q: with a code, with a text for who knows of extensions, and with a resource if there is one.
func (q *question) send(code dnsmessage.RCode, why string, found dnsmessage.ResourceBody) {
	b, err := q.pack(code, why, found, false)
	if err == nil && len(b) > q.limit {
		b, err = q.pack(code, "", nil, true)
	}
	if err == nil {
		q.reply(b)
	}
}

func (q *question) pack(code dnsmessage.RCode, why string, found dnsmessage.ResourceBody, cut bool) ([]byte, error) {
	m := dnsmessage.Message{Header: dnsmessage.Header{
		ID: q.header.ID, Response: true, OpCode: q.header.OpCode, Truncated: cut, RecursionDesired: q.header.RecursionDesired,
		RecursionAvailable: true, CheckingDisabled: q.header.CheckingDisabled, RCode: code & 0xf,
	}}
	if q.asked.Name.Length > 0 {
		m.Questions = []dnsmessage.Question{q.asked}
	}
	if found != nil {
		m.Answers = []dnsmessage.Resource{{
			Header: dnsmessage.ResourceHeader{Name: q.asked.Name, Class: dnsmessage.ClassINET, TTL: uint32(ttl.Seconds())},
			Body:   found,
		}}
	}
	if q.edns {
		var opt dnsmessage.Resource
		if err := opt.Header.SetEDNS0(ownAnswer, code, false); err != nil {
			return nil, err
		}
		body := &dnsmessage.OPTResource{}
		if why != "" {
			data := append(binary.BigEndian.AppendUint16(nil, errorBlocked), why...)
			body.Options = []dnsmessage.Option{{Code: optionError, Data: data}}
		}
		opt.Body = body
		m.Additionals = []dnsmessage.Resource{opt}
	}
	return m.Pack()
}
