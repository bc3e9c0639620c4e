package netd

import (
	"container/list"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/net/publicsuffix"

	"glovebox/internal/egress"
	"glovebox/internal/netwire"
)

const (
	// ttl is how long a resolver in the sandbox may keep an answer.
	ttl = time.Minute
	// maxNames bounds the names that have an address at a time.
	maxNames = 4096
	// window is that of the quotas of names.
	window = time.Minute
)

// A name is a host with the address that stands for it.
type name struct {
	host    egress.Host
	address netip.Addr
	asked   time.Time     // last
	flows   int           // that are to it
	place   *list.Element // the oldest is at the end
}

// names gives each host an address of its own. An address stands for one host as long as somebody can know it: while there
// is a connection, or an answer that is not twice as old as it may be. It is safe for concurrent use.
type names struct {
	quotas netwire.Quotas

	mu      sync.Mutex
	hosts   map[egress.Host]*name
	at      map[netip.Addr]*name
	order   *list.List
	next    netip.Addr
	news    []time.Time            // when names got their address, in the last window
	parents map[string][]time.Time // the same below each registrable name
	total   uint64                 // of names that were given an address
}

func newNames(q netwire.Quotas) *names {
	return &names{
		quotas: q, hosts: map[egress.Host]*name{}, at: map[netip.Addr]*name{}, order: list.New(), next: netwire.FirstName(),
		parents: map[string][]time.Time{},
	}
}

// resolve returns the address of a host, which it is given if it has none, and whether that is new. A reason says that there
// is none to be had.
func (n *names) resolve(h egress.Host) (a netip.Addr, fresh bool, why netwire.Why) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	if known := n.hosts[h]; known != nil {
		known.asked = now
		n.order.MoveToFront(known.place)
		return known.address, false, 0
	}
	parent := registrable(h.String())
	if why := n.overQuota(parent, now); why != 0 {
		return a, false, why
	}
	if len(n.hosts) >= maxNames && !n.forget(now) {
		return a, false, netwire.WhyNames
	}
	n.news = append(n.news, now)
	if parent != "" {
		n.parents[parent] = append(n.parents[parent], now)
	}
	n.total++
	added := &name{host: h, address: n.free(), asked: now}
	added.place = n.order.PushFront(added)
	n.hosts[h], n.at[added.address] = added, added
	return added.address, true, 0
}

// given is how often a name was given an address.
func (n *names) given() uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.total
}

// overQuota forgets what is older than the window and says which quota has no room for another name.
func (n *names) overQuota(parent string, now time.Time) netwire.Why {
	n.news = since(n.news, now.Add(-window))
	for p, times := range n.parents {
		if times = since(times, now.Add(-window)); len(times) == 0 {
			delete(n.parents, p)
		} else {
			n.parents[p] = times
		}
	}
	switch {
	case len(n.news) >= n.quotas.NamesPerMinute:
		return netwire.WhyNames
	case parent != "" && len(n.parents[parent]) >= n.quotas.NamesPerParent:
		return netwire.WhyParent
	}
	return 0
}

// since returns the times after a moment; the oldest are first.
func since(times []time.Time, then time.Time) []time.Time {
	for len(times) > 0 && !times[0].After(then) {
		times = times[1:]
	}
	return times
}

// registrable is the name below a public suffix under which h lies; empty where it is h itself, or there is none.
func registrable(h string) string {
	parent, err := publicsuffix.EffectiveTLDPlusOne(h)
	if err != nil || parent == h {
		return ""
	}
	return parent
}

// forget takes its address from the name that was not asked for the longest, of those that nobody can know any more.
func (n *names) forget(now time.Time) bool {
	for e := n.order.Back(); e != nil; e = e.Prev() {
		old := e.Value.(*name)
		if now.Sub(old.asked) <= 2*ttl {
			return false // all others were asked for later
		}
		if old.flows == 0 {
			n.order.Remove(e)
			delete(n.hosts, old.host)
			delete(n.at, old.address)
			return true
		}
	}
	return false
}

// free returns an address that stands for nothing. There are more of them than names.
func (n *names) free() netip.Addr {
	for {
		a := n.next
		if n.next = a.Next(); !netwire.Network().Contains(n.next) {
			n.next = netwire.FirstName()
		}
		if n.at[a] == nil {
			return a
		}
	}
}

// hold returns the name for which an address stands and keeps it so until release; nil if it stands for none.
func (n *names) hold(a netip.Addr) *name {
	n.mu.Lock()
	defer n.mu.Unlock()
	known := n.at[a]
	if known != nil {
		known.flows++
	}
	return known
}

// release undoes one hold.
func (n *names) release(held *name) {
	if held == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	held.flows--
}

// host returns the host for which an address stands.
func (n *names) host(a netip.Addr) (egress.Host, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if known := n.at[a]; known != nil {
		return known.host, true
	}
	return egress.Host{}, false
}

// reverse reads the address of a name below in-addr.arpa.
func reverse(labels []string) (netip.Addr, bool) {
	var b [4]byte
	if len(labels) != 6 || labels[4] != "in-addr" || labels[5] != "arpa" {
		return netip.Addr{}, false
	}
	for i, label := range labels[:4] {
		a, err := netip.ParseAddr("0.0.0." + label) // an octet, spelled as one is
		if err != nil {
			return netip.Addr{}, false
		}
		four := a.As4()
		b[3-i] = four[3]
	}
	return netip.AddrFrom4(b), true
}
