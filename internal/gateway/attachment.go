package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"sync"
	"sync/atomic"

	"glovebox"
	"glovebox/internal/egress"
	"glovebox/internal/netwire"
)

// Terms are what one sandbox may do.
type Terms struct {
	// Run names whose sandbox it is, in the log.
	Run string
	// Rules say what may leave. Nil lets nothing leave.
	Rules *egress.Rules
	// Limits.Egress bounds the bytes in both directions together. The others are not looked at.
	Limits glovebox.Limits
	// Binding lends secrets; nil lends none.
	Binding Binding
	// Record is told each decision, or several that are the same. Calls come one at a time and must not wait.
	Record func(glovebox.EgressFlow)
	// End is called once where the run shall end because a placeholder was sent to where it is not for. It must not wait.
	End func(egress.Reason)
}

// Usage is what passed so far.
type Usage struct {
	BytesUp, BytesDown int64 // from and to the sandbox, as its connections carried them
	LimitHit           bool  // more was wanted than Limits.Egress
}

// Attachment is one sandbox's plug into the gateway. Methods are safe for concurrent use.
type Attachment struct {
	gateway  *Gateway
	terms    Terms
	rules    atomic.Pointer[egress.Rules]
	binding  Binding
	ca       *authority
	ledger   *ledger
	bytes    allowance // of both directions
	up, down atomic.Int64
	requests rate
	busy     atomic.Int64 // requests at a time
	proxy    *httputil.ReverseProxy
	server   *http.Server
	door     *door
	ending   sync.Once

	life context.Context
	end  context.CancelCauseFunc
	work sync.WaitGroup // what runs for the attachment; added to with mu held and closed false

	mu     sync.Mutex
	closed bool
	trust  trust // until Serve
	netd   *netwire.Host
	flows  map[uint64]*flow
	active map[*exchange]struct{}
	places map[place]*upstreamHost
	hosts  map[egress.Host]*allowance // of hosts that were reached, where there is a bound
}

// Attach makes an attachment. It denies all until Serve is called with the netd of its sandbox. The caller closes it.
func (g *Gateway) Attach(_ context.Context, terms Terms) (*Attachment, error) {
	ca, err := newAuthority()
	if err != nil {
		return nil, glovebox.Internal("make a sandbox's certificate authority", err)
	}
	shown, err := g.trust(ca)
	if err != nil {
		return nil, glovebox.Internal("make a sandbox's certificate authority", err)
	}
	a := &Attachment{gateway: g, terms: terms, binding: terms.Binding, ca: ca, trust: shown,
		ledger: newLedger(terms.Run, terms.Record, g.config.Log),
		bytes:  allowance{most: max(0, int64(terms.Limits.Egress))}, requests: rate{most: g.config.Quotas.RequestsPerMinute},
		flows: map[uint64]*flow{}, active: map[*exchange]struct{}{}, places: map[place]*upstreamHost{},
		hosts: map[egress.Host]*allowance{}}
	a.rules.Store(terms.Rules)
	a.life, a.end = context.WithCancelCause(context.Background())
	a.proxy, a.server, a.door = a.newProxy(), a.newServer(), newDoor(a.life)
	if err := g.add(a); err != nil {
		a.end(err)
		return nil, err
	}
	return a, nil
}

// Serve decides for the sandbox whose netd is at the other end of netd, until Close or netd's death; nothing passes after
// it. It takes netd over and is called once. The error is nil where Close or the end of netd ended it.
func (a *Attachment) Serve(netd *netwire.Host) error {
	if err := a.begin(netd); err != nil {
		_ = netd.Close() // the first failure is told
		return err
	}
	defer a.work.Done()
	a.takeTrust(true)
	var err error
	var events pace
	for err == nil {
		events.wait(a.life)
		var e netwire.Event
		if e, err = netd.Next(); err == nil {
			a.event(e)
		}
	}
	a.cut()
	closed := netd.Close()
	if a.life.Err() != nil || isEOF(err) {
		return nil
	}
	return errors.Join(fmt.Errorf("hear a netd: %w", err), closed)
}

func (a *Attachment) begin(netd *netwire.Host) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed || a.netd != nil {
		return errors.New("serve a netd: the attachment is closed or serves another")
	}
	a.netd = netd
	a.work.Add(2)
	go func() {
		defer a.work.Done()
		_ = a.server.Serve(a.door) // ends with the door
	}()
	return nil
}

// event takes in what netd says.
func (a *Attachment) event(e netwire.Event) {
	switch e.Kind {
	case netwire.KindOpen:
		a.open(e)
	case netwire.KindClosed:
		a.closedByNetd(e.Flow)
	case netwire.KindAsk:
		a.ask(e)
	case netwire.KindDropped:
		a.dropped(e)
	}
}

// ask answers whether the sandbox's resolver shall know a name.
func (a *Attachment) ask(e netwire.Event) {
	host, err := egress.ParseHost(e.Host)
	known := err == nil && (a.isBroker(host) || a.mayReach(host))
	if !known {
		reason := egress.ReasonHostNotAllowed
		if err != nil {
			reason = egress.ReasonNameInvalid
		}
		a.ledger.denied(e.Host, 0, layerDNS, reason, "")
	}
	_ = a.netd.Answer(e.Flow, known) // a netd that is gone needs none
}

// dropReasons are the reasons of what netd drops by itself.
var dropReasons = map[netwire.Why]egress.Reason{
	netwire.WhyLiteral:    egress.ReasonIPLiteral,
	netwire.WhyIPv6:       egress.ReasonIPLiteral,
	netwire.WhyPort:       egress.ReasonPort,
	netwire.WhyUDP:        egress.ReasonNotHTTPOrTLS,
	netwire.WhyProtocol:   egress.ReasonNotHTTPOrTLS,
	netwire.WhyName:       egress.ReasonNameInvalid,
	netwire.WhyQuestion:   egress.ReasonNameInvalid,
	netwire.WhyNames:      egress.ReasonQuota,
	netwire.WhyParent:     egress.ReasonQuota,
	netwire.WhyFlows:      egress.ReasonQuota,
	netwire.WhyHandshakes: egress.ReasonQuota,
}

// dropped records what netd did not let through. Malformed packets are no decision.
func (a *Attachment) dropped(e netwire.Event) {
	reason, ok := dropReasons[e.Why]
	if !ok {
		return
	}
	layer := layerTCP
	switch e.Why {
	case netwire.WhyName, netwire.WhyQuestion, netwire.WhyNames, netwire.WhyParent:
		layer = layerDNS
	case netwire.WhyUDP, netwire.WhyProtocol, netwire.WhyIPv6:
		layer = "ip"
	}
	host := e.Host
	if host == "" && e.Address.IsValid() {
		host = e.Address.String()
	}
	a.ledger.note(glovebox.EgressFlow{Host: host, Port: int(e.Port), Layer: layer, Reason: string(reason),
		Count: int64(min(e.Count, 1<<40))}, detail{})
}

// Usage tells what passed so far.
func (a *Attachment) Usage() Usage {
	return Usage{a.up.Load(), a.down.Load(), a.bytes.spent.Load()}
}

// Close ends all that is open, netd included, and returns when nothing passes any more and all was recorded. Closing again
// does nothing.
func (a *Attachment) Close(ctx context.Context) error {
	a.mu.Lock()
	first := !a.closed
	a.closed = true
	netd := a.netd
	a.mu.Unlock()
	if first {
		a.end(errEnded)
		if netd != nil {
			_ = netd.Close() // Serve returns
		}
		a.cut()
	}
	done := make(chan struct{})
	go func() {
		a.work.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		return glovebox.Internal("wait for a sandbox's connections to end", context.Cause(ctx))
	}
	a.ledger.close()
	a.gateway.remove(a)
	return nil
}

// cut ends every connection of the sandbox and every one made for it.
func (a *Attachment) cut() {
	a.end(errEnded)
	_ = a.server.Close() // of connections that end here all the same
	a.mu.Lock()
	a.closed = true
	flows := make([]*flow, 0, len(a.flows))
	for _, f := range a.flows {
		flows = append(flows, f)
	}
	places := make([]*upstreamHost, 0, len(a.places))
	for _, p := range a.places {
		places = append(places, p)
	}
	clear(a.places)
	a.mu.Unlock()
	for _, f := range flows {
		_ = f.Close()
	}
	for _, p := range places {
		p.close()
	}
}

// start runs what belongs to the attachment, unless it is closed.
func (a *Attachment) start(what func()) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return false
	}
	a.work.Add(1)
	go func() {
		defer a.work.Done()
		what()
	}()
	return true
}

func (a *Attachment) refuse(id uint64) {
	a.mu.Lock()
	netd := a.netd
	a.mu.Unlock()
	if netd != nil {
		_ = netd.Refuse(id) // what has ended needs no end, and a netd that is gone ended it
	}
}

// closedByNetd ends what waits for a connection that the sandbox gave up. One that was accepted ends with its stream, of
// which there may be bytes to be read.
func (a *Attachment) closedByNetd(id uint64) {
	a.mu.Lock()
	f := a.flows[id]
	a.mu.Unlock()
	if f != nil && !f.accepted() {
		f.end(errEnded)
	}
}

func (a *Attachment) remove(f *flow) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.flows, f.id)
}

// hostAllowance is what of its bytes a host has left, over all its connections. Nil is no bound.
func (a *Attachment) hostAllowance(host egress.Host) *allowance {
	most := int64(a.gateway.config.Quotas.HostBytes)
	if most == 0 {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	b := a.hosts[host]
	if b == nil {
		b = &allowance{most: most}
		a.hosts[host] = b
	}
	return b
}

func isEOF(err error) bool { return errors.Is(err, io.EOF) }
