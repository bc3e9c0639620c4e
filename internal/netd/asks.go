package netd

import (
	"sync"

	"glovebox/internal/egress"
	"glovebox/internal/netwire"
)

// maxAsking bounds the questions that wait for the gateway. It is below what the gateway takes.
const maxAsking = 32

// asks are the questions that wait for the gateway.
type asks struct {
	mu      sync.Mutex
	waiting int
	open    map[uint64]func(known bool)
}

// ask asks the gateway whether a host may have an address. It never waits, neither for the answer nor to be heard.
func (n *network) ask(h egress.Host, then func(known bool)) bool {
	n.asks.mu.Lock()
	defer n.asks.mu.Unlock()
	if n.asks.waiting >= maxAsking {
		return false
	}
	n.asks.waiting++
	n.work.Go(func() {
		_ = n.numbers.next(func(number uint64) error {
			n.asks.begin(number, then)
			return n.peer.Send(netwire.Event{Kind: netwire.KindAsk, Flow: number, Host: h.String()})
		}) // one that was not sent is not answered, as any question of a network that ends
	})
	return true
}

func (a *asks) begin(number uint64, then func(bool)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.open == nil {
		a.open = map[uint64]func(bool){}
	}
	a.open[number] = then
}

// answer answers the question of a number, if there is one.
func (a *asks) answer(number uint64, known bool) {
	a.mu.Lock()
	then := a.open[number]
	if then != nil {
		delete(a.open, number)
		a.waiting--
	}
	a.mu.Unlock()
	if then != nil {
		then(known)
	}
}
