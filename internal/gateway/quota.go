package gateway

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// allowance is a number of bytes that is used up.
type allowance struct {
	most  int64 // below 0 there is no bound
	used  atomic.Int64
	spent atomic.Bool // more was wanted than there is
}

// left is how many of want bytes may pass now. Several connections may be told the same at the same time: what passes beyond
// the bound is no more than a buffer of each.
func (b *allowance) left(want int) int {
	if b.most < 0 {
		return want
	}
	n := int(max(0, min(int64(want), b.most-b.used.Load())))
	if n == 0 && want > 0 {
		b.spent.Store(true)
	}
	return n
}

// rate bounds what happens in a minute.
type rate struct {
	most int

	mu    sync.Mutex
	since time.Time
	n     int
}

// more counts one more and tells whether it is within the bound.
func (r *rate) more(at time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if at.Sub(r.since) >= time.Minute {
		r.since, r.n = at, 0
	}
	r.n++
	return r.n <= r.most
}

// maxEvents is how much a netd may say in a second. One that is well says less: it has quotas of its own.
const maxEvents = 1000

// pace lets a netd that says more wait, and with it nobody but its own sandbox.
type pace struct {
	since time.Time
	n     int
}

// wait returns when one more event may be heard, or life has ended.
func (p *pace) wait(life context.Context) {
	at := now()
	if at.Sub(p.since) >= time.Second {
		p.since, p.n = at, 0
	}
	if p.n++; p.n <= maxEvents {
		return
	}
	t := time.NewTimer(time.Second - at.Sub(p.since))
	defer t.Stop()
	select {
	case <-t.C:
	case <-life.Done():
	}
}
