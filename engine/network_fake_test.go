package engine

import (
	"context"
	"errors"
	"os"
	"sync"

	"glovebox"
	"glovebox/driver"
	"glovebox/internal/broker"
	"glovebox/internal/egress"
	"glovebox/internal/gateway"
	"glovebox/internal/netwire"
)

// fakeNetwork is a gateway and netds in memory. fail is called before each step (way, netd, link, netd close, way close) and
// may fail it; a failing close still releases. allows is what the gateway decides, once for each way that is served.
type fakeNetwork struct {
	fail   func(step string) error
	allows []glovebox.EgressFlow
	usage  gateway.Usage
	dies   bool // each netd ends as soon as it serves
	absent error
	env    []string // nil: the usual

	mu     sync.Mutex
	ways   map[*fakeWay]bool
	netds  map[*fakeNetd]bool
	stuck  int // closes of netds that failed
	begun  int // of ways
	closed bool
	lent   int
	ends   bool // a placeholder that is sent astray ends its run
}

func newFakeNetwork(fail func(string) error) *fakeNetwork {
	return &fakeNetwork{fail: fail, ways: map[*fakeWay]bool{}, netds: map[*fakeNetd]bool{}}
}

// network is what an engine has of it.
func (f *fakeNetwork) network() *network {
	return &network{
		lend: f.lend,
		attach: func(_ context.Context, t gateway.Terms) (attachment, error) {
			if err := f.fail("way"); err != nil {
				return nil, err
			}
			w := &fakeWay{of: f, terms: t, done: make(chan struct{})}
			f.mu.Lock()
			defer f.mu.Unlock()
			f.ways[w] = true
			f.begun++
			return w, nil
		},
		netd: func(ctx context.Context) (netd, error) {
			if err := errors.Join(f.fail("netd"), ctx.Err()); err != nil {
				return nil, err
			}
			n := &fakeNetd{of: f, ended: make(chan struct{})}
			f.mu.Lock()
			defer f.mu.Unlock()
			f.netds[n] = true
			return n, nil
		},
		available: func(context.Context) error { return f.absent },
		waits:     func(context.Context) func() { return func() {} },
		controls:  func(context.Context) []glovebox.Control { return nil },
		close: func(context.Context) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.closed = true
			return nil
		},
	}
}

// fakeLent is what was lent.
type fakeLent struct {
	gateway.Binding
	of *fakeNetwork
}

func (l *fakeLent) Env() []string                                        { return []string{"TOKEN=placeholder"} }
func (l *fakeLent) Replace(context.Context, []glovebox.EgressRule) error { return nil }
func (l *fakeLent) Close(context.Context) error {
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	l.of.lent--
	return nil
}

// lend is what an engine lends with.
func (f *fakeNetwork) lend(context.Context, broker.Run, glovebox.Grant) (lent, error) {
	if err := f.fail("lend"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lent++
	return &fakeLent{of: f}, nil
}

// left is how many ways and netds are not closed.
func (f *fakeNetwork) left() (ways, netds int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.ways), len(f.netds)
}

type fakeWay struct {
	of    *fakeNetwork
	rules *egress.Rules // by the last Replace
	terms gateway.Terms
	once  sync.Once
	done  chan struct{}
}

func (w *fakeWay) Files() []driver.File {
	return []driver.File{{Path: "/etc/glovebox/ca.pem", Data: []byte("ca")}}
}
func (w *fakeWay) Over() []driver.File { return nil }
func (w *fakeWay) Env() []string {
	if w.of.env != nil {
		return w.of.env
	}
	return []string{"SSL_CERT_FILE=/etc/glovebox/ca.pem", "HOME=/gateway", "TOKEN=gateway"}
}
func (w *fakeWay) Usage() gateway.Usage { return w.of.usage }
func (w *fakeWay) Replace(rules *egress.Rules) {
	w.of.mu.Lock()
	defer w.of.mu.Unlock()
	w.rules = rules
}

func (w *fakeWay) Serve(*netwire.Host) error {
	for _, flow := range w.of.allows {
		w.terms.Record(flow)
	}
	if w.of.ends {
		w.terms.End(egress.ReasonSecretWrongHost)
	}
	if w.of.dies {
		return errors.New("EOF")
	}
	<-w.done
	return nil
}

func (w *fakeWay) Close(context.Context) error {
	w.once.Do(func() {
		close(w.done)
		w.of.mu.Lock()
		delete(w.of.ways, w)
		w.of.mu.Unlock()
	})
	return w.of.fail("way close")
}

type fakeNetd struct {
	of    *fakeNetwork
	once  sync.Once
	err   error
	link  bool
	ended chan struct{}
}

func (n *fakeNetd) Start(_ context.Context, _ netwire.Setup, link *os.File) error {
	if n.link {
		return errors.New("it has a link")
	}
	n.link = true
	if _, err := link.Stat(); err != nil {
		return err
	}
	return n.of.fail("link")
}

func (n *fakeNetd) Host() *netwire.Host { return nil }

func (n *fakeNetd) Close(context.Context) error {
	n.once.Do(func() {
		n.err = n.of.fail("netd close")
		n.of.mu.Lock()
		defer n.of.mu.Unlock()
		delete(n.of.netds, n)
		if n.err != nil {
			n.of.stuck++
		}
	})
	return n.err
}
