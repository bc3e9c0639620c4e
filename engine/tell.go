package engine

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"glovebox"
)

// teller hands the events of one run to its sink, one at a time, from a goroutine of its own: so a sink that blocks holds up
// the stream that it is told of and nothing else. A nil *teller tells nobody.
type teller struct {
	run  string
	sink glovebox.Sink

	work  chan telling
	flows chan glovebox.Event // decisions of the gateway, which are not waited for
	stop  chan struct{}       // closed by close
	gone  chan struct{}       // closed by abandon
	ended chan struct{}

	once   sync.Once
	saying atomic.Int64
	done   atomic.Int64
}

type telling struct {
	event glovebox.Event
	heard chan<- struct{} // nil when nobody waits
}

func newTeller(run string, sink glovebox.Sink) *teller {
	if sink == nil {
		return nil
	}
	t := &teller{run: run, sink: sink, work: make(chan telling), flows: make(chan glovebox.Event, 64),
		stop: make(chan struct{}), gone: make(chan struct{}),
		ended: make(chan struct{})}
	go t.loop()
	return t
}

func (t *teller) loop() {
	defer close(t.ended)
	for {
		select {
		case w := <-t.work:
			t.sink.Event(w.event)
			t.done.Add(1) // before whoever waits goes on, so that progress is never missed
			if w.heard != nil {
				close(w.heard)
			}
		case e := <-t.flows:
			t.sink.Event(e)
			t.done.Add(1)
		case <-t.stop:
			t.rest()
			return
		}
	}
}

// start tells that a run is about to be released, and waits until it was heard or ctx ends.
func (t *teller) start(ctx context.Context, now time.Time, l glovebox.Limits) {
	if t == nil {
		return
	}
	stop := context.AfterFunc(ctx, func() { t.abandon() })
	defer stop()
	t.say(glovebox.Event{Kind: "start", Run: t.run, Limits: l, Time: now})
}

// live tells a piece of a stream and returns when it was heard or nobody listens any more. The sink gets a copy: after
// abandon it may still be reading when the caller fills p again.
func (t *teller) live(stream string, p []byte) {
	if t == nil || ended(t.gone) {
		return
	}
	t.say(glovebox.Event{Kind: stream, Run: t.run, Data: append([]byte(nil), p...), Time: time.Now()})
}

// usage tells a sample if the sink is free to hear it; it never waits.
func (t *teller) usage(now time.Time, u glovebox.Usage) {
	if t == nil || ended(t.gone) {
		return
	}
	select {
	case t.work <- telling{event: glovebox.Event{Kind: "usage", Run: t.run, Usage: u, Time: now}}:
	default:
	}
}

// egress tells a decision of the gateway if the sink keeps up; it never waits. The result has them all.
func (t *teller) egress(now time.Time, f glovebox.EgressFlow) {
	if t == nil || ended(t.gone) {
		return
	}
	select {
	case t.flows <- glovebox.Event{Kind: "egress", Run: t.run, Egress: f, Time: now}:
	default:
	}
}

// rest tells the decisions that are left, unless nobody listens any more.
func (t *teller) rest() {
	for !ended(t.gone) {
		select {
		case e := <-t.flows:
			t.sink.Event(e)
		default:
			return
		}
	}
}

func (t *teller) say(e glovebox.Event) {
	t.saying.Add(1)
	defer t.saying.Add(-1)
	heard := make(chan struct{})
	select {
	case t.work <- telling{e, heard}:
	case <-t.gone:
		return
	}
	select {
	case <-heard:
	case <-t.gone:
	}
}

// busy tells whether somebody waits for the sink to hear something.
func (t *teller) busy() bool { return t != nil && t.saying.Load() > 0 }

// count is how many events were heard.
func (t *teller) count() int64 {
	if t == nil {
		return 0
	}
	return t.done.Load()
}

// abandon stops waiting for the sink; it is false when that was so already.
func (t *teller) abandon() (first bool) {
	if t != nil {
		t.once.Do(func() { close(t.gone); first = true })
	}
	return first
}

// close ends the telling. It waits for the sink to return from its last event, unless it was abandoned or, soon after, ctx
// ends: then the goroutine ends when the sink returns, which is its caller's to see to.
func (t *teller) close(ctx context.Context) {
	if t == nil {
		return
	}
	close(t.stop)
	select {
	case <-t.ended:
		return
	case <-t.gone:
		return
	case <-ctx.Done():
	}
	moment := time.NewTimer(drainLimit)
	defer moment.Stop()
	select {
	case <-t.ended:
	case <-moment.C:
		t.abandon()
	}
}
