package gateway

import (
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
