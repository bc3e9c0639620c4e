package netd

import (
	"maps"
	"slices"
	"sync"
	"time"

	"glovebox/internal/netwire"
)

const (
	// gather is how long things that were not let through are gathered before they are said.
	gather = 200 * time.Millisecond
	// maxSaid bounds the names that wait to be said.
	maxSaid = 128
)

// report gathers what the gateway need not hear at once, so that no packet makes anybody wait.
type report struct {
	counters func() netwire.Counters
	wake     chan struct{}

	mu      sync.Mutex
	drops   map[netwire.Why]*netwire.Event
	names   []netwire.Event
	dropped uint64 // in all
}

func newReport(counters func() netwire.Counters) *report {
	return &report{counters: counters, wake: make(chan struct{}, 1), drops: map[netwire.Why]*netwire.Event{}}
}

// drop notes one thing that was not let through, and what it was: Host, Address or Port.
func (r *report) drop(why netwire.Why, what netwire.Event) {
	r.mu.Lock()
	r.dropped++
	if e := r.drops[why]; e != nil {
		what.Count = e.Count
	}
	what.Kind, what.Why = netwire.KindDropped, why
	what.Count++
	r.drops[why] = &what
	r.mu.Unlock()
	r.stir()
}

// named notes a name that has an address now. There are no more of them than quotas let through.
func (r *report) named(e netwire.Event) {
	r.mu.Lock()
	if len(r.names) < maxSaid {
		r.names = append(r.names, e)
	}
	r.mu.Unlock()
	r.stir()
}

// stir makes run say what there is.
func (r *report) stir() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// run says what there is until done is closed, what comes first at once.
func (r *report) run(done <-chan struct{}, send func(netwire.Event) error) {
	var before netwire.Counters
	for {
		select {
		case <-done:
			return
		case <-r.wake:
		}
		for _, e := range r.take() {
			if send(e) != nil {
				return // the gateway is gone, which whoever reads notices too
			}
		}
		if now := r.counters(); now != before {
			if send(netwire.Event{Kind: netwire.KindCounters, Counters: now}) != nil {
				return
			}
			before = now
		}
		pause := time.NewTimer(gather)
		select {
		case <-done:
			pause.Stop()
			return
		case <-pause.C:
		}
	}
}

// take returns what there is to say.
func (r *report) take() []netwire.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	said := r.names
	r.names = nil
	for _, why := range slices.Sorted(maps.Keys(r.drops)) {
		said = append(said, *r.drops[why])
	}
	clear(r.drops)
	return said
}

// total is how many things were not let through.
func (r *report) total() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dropped
}
