package netlab

import (
	"fmt"
	"net/http"
	"net/netip"
	"sync"
)

// most is how many of each kind are kept. What is beyond is counted as lost, which fails whoever looks.
const most = 200_000

// Packet is one that left the machine and begins something: a TCP connection, or anything that is not TCP.
type Packet struct {
	Proto string // tcp, udp, icmp, icmp6 or the number
	From  netip.Addr
	To    netip.AddrPort // port 0 where there are none
	Bytes int
}

func (p Packet) String() string { return fmt.Sprintf("%s %s (%d bytes)", p.Proto, p.To, p.Bytes) }

// Query is one that reached a name server of the laboratory.
type Query struct {
	Name, Type string // in the spelling of the question, with the final dot; A, AAAA, TXT, …
	At         string // the address of the server that was asked
	TCP        bool
}

func (q Query) String() string { return q.Type + " " + q.Name }

// Request is one that a web server of the laboratory understood.
type Request struct {
	Server string // the address that was dialled
	TLS    bool
	SNI    string
	Proto  string // HTTP/1.1, HTTP/2.0
	Method string
	Host   string
	URI    string
	Header http.Header
	Body   []byte // its first 64 KiB, once it has ended
	Bytes  int64  // of the body
}

func (r *Request) String() string { return r.Method + " " + r.Host + r.URI }

// Talk is what somebody said to a server that keeps every byte.
type Talk struct {
	Server string
	Bytes  []byte
}

// Seen is what the internet saw.
type Seen struct {
	Packets  []Packet
	Queries  []Query
	Requests []*Request
	Talks    []Talk
	Dialled  []string // address:port of each accepted connection
	Lost     int      // what was not kept, because there was too much
}

// seen is all there was. Everything is only ever added.
type seen struct {
	mu  sync.Mutex
	all Seen
}

func keep[T any](s *seen, to *[]T, v T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(*to) >= most {
		s.all.Lost++
		return
	}
	*to = append(*to, v)
}

// finish completes a request, whose body ends after it was kept.
func (s *seen) finish(r *Request, body []byte, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.Body, r.Bytes = body, n
}

// Watch remembers a moment.
type Watch struct {
	lab  *Lab
	from Seen
}

// Watch begins to look.
func (l *Lab) Watch() *Watch {
	l.seen.mu.Lock()
	defer l.seen.mu.Unlock()
	return &Watch{l, l.seen.all}
}

// Seen is what came since then. All that had left the machine when it is called is in it.
func (w *Watch) Seen() (Seen, error) {
	if err := w.lab.settle(); err != nil {
		return Seen{}, err
	}
	s := w.lab.seen
	s.mu.Lock()
	defer s.mu.Unlock()
	got := Seen{
		Packets: append([]Packet(nil), s.all.Packets[len(w.from.Packets):]...),
		Queries: append([]Query(nil), s.all.Queries[len(w.from.Queries):]...),
		Talks:   append([]Talk(nil), s.all.Talks[len(w.from.Talks):]...),
		Dialled: append([]string(nil), s.all.Dialled[len(w.from.Dialled):]...),
		Lost:    s.all.Lost - w.from.Lost,
	}
	for _, r := range s.all.Requests[len(w.from.Requests):] {
		again := *r
		got.Requests = append(got.Requests, &again)
	}
	if got.Lost > 0 {
		return got, fmt.Errorf("%d of what was seen was not kept", got.Lost)
	}
	return got, nil
}
