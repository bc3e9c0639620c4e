package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"glovebox"
	"glovebox/driver"
	"glovebox/internal/boot"
	"glovebox/internal/broker"
	"glovebox/internal/egress"
	"glovebox/internal/gateway"
	"glovebox/internal/netjail"
	"glovebox/internal/netwire"
)

// Network is what opens a way out of a sandbox for a run that was granted one. The zero value opens none: what would be
// granted one is refused.
type Network struct {
	// Gateway makes the gateway when the first run needs it. The engine closes it. Nil: there is none.
	Gateway func() (*gateway.Gateway, error)
	// Jail makes the sandboxes that netds run in: the process rung. Required with Gateway.
	Jail driver.Driver
	// Netd is the path of glovebox-netd. Empty: beside the running program.
	Netd string
	// Broker makes the client of the broker when the first run is lent something. The engine closes it. Nil: nothing is lent.
	Broker func() (*broker.Client, error)
	// Ready is how many netds are kept started before anybody asks. Zero: none.
	Ready int
}

// lent is what a run was lent: placeholders, and the broker's end of what is sent with them.
type lent interface {
	gateway.Binding
	Env() []string // the placeholders, as NAME=VALUE
	Replace(context.Context, []glovebox.EgressRule) error
	Close(ctx context.Context) error
}

// wayLimit bounds how long the end of a run waits for what still passes and for the last decisions; nothing of the program
// lives by then.
const wayLimit = 2 * time.Second

// network is what an engine opens ways out with.
type network struct {
	attach    func(context.Context, gateway.Terms) (attachment, error)
	lend      func(context.Context, broker.Run, glovebox.Grant) (lent, error) // nil: nothing is lent
	netd      func(context.Context) (netd, error)
	available func(context.Context) error
	waits     func(context.Context) (done func())
	close     func(context.Context) error
	controls  func(context.Context) []glovebox.Control
}

// attachment is one run's part of the gateway.
type attachment interface {
	Files() []driver.File
	Over() []driver.File
	Env() []string
	Serve(*netwire.Host) error
	Replace(*egress.Rules)
	Usage() gateway.Usage
	Close(context.Context) error
}

// netd is the network of one sandbox.
type netd interface {
	Start(context.Context, netwire.Setup, *os.File) error
	Host() *netwire.Host
	Close(context.Context) error
}

// newNetwork is nil where there is to be none. Nothing is started before a run needs it, but for the netds that are kept
// ready.
func (e *Engine) newNetwork() (*network, error) {
	c := e.cfg.Network
	if c.Gateway == nil {
		return nil, nil
	}
	jails, err := netjail.New(netjail.Config{Jail: c.Jail, Program: c.Netd, Ready: c.Ready, Memory: e.memory, Log: e.cfg.Log})
	if err != nil {
		return nil, err
	}
	doors, lenders := newLazy(c.Gateway), newLazy(c.Broker)
	n := &network{
		attach: func(ctx context.Context, t gateway.Terms) (attachment, error) {
			g, err := doors.get()
			if err != nil {
				return nil, err
			}
			a, err := g.Attach(ctx, t)
			if err != nil {
				return nil, err // not a, which would be an interface around a nil pointer
			}
			return a, nil
		},
		netd: func(ctx context.Context) (netd, error) {
			n, err := jails.Take(ctx)
			if err != nil {
				return nil, err
			}
			return n, nil
		},
		available: jails.Available,
		waits:     jails.Waits,
		controls: func(ctx context.Context) []glovebox.Control {
			_, gatewayErr := doors.get()
			list := []glovebox.Control{optional("egress: netd", jails.Available(ctx)), optional("egress: gateway", gatewayErr)}
			if c.Broker != nil {
				b, err := lenders.get()
				if err == nil {
					err = b.Available()
				}
				list = append(list, optional("egress: broker", err))
			}
			return list
		},
		close: func(ctx context.Context) error {
			jails.Close(ctx)
			return errors.Join(doors.close(func(g *gateway.Gateway) error { return g.Close(ctx) }),
				lenders.close((*broker.Client).Close))
		},
	}
	if c.Broker != nil {
		n.lend = func(ctx context.Context, run broker.Run, g glovebox.Grant) (lent, error) {
			b, err := lenders.get()
			if err != nil {
				return nil, err
			}
			return b.Bind(ctx, run, g.Egress, g.Secrets, g.Actions...)
		}
	}
	return n, nil
}

// lazy is something that is made when it is first needed.
type lazy[T any] struct {
	open func() (T, error)
	used atomic.Bool
}

func newLazy[T any](open func() (T, error)) *lazy[T] { return &lazy[T]{open: sync.OnceValues(open)} }

func (l *lazy[T]) get() (T, error) {
	l.used.Store(true)
	return l.open()
}

// close closes it, if it was made. That it could not be made was told to whoever needed it.
func (l *lazy[T]) close(shut func(T) error) error {
	if !l.used.Load() {
		return nil
	}
	made, err := l.open()
	if err != nil {
		return nil
	}
	return shut(made)
}

// closeNetwork closes the gateway, and what was kept ready for it.
func (e *Engine) closeNetwork() {
	if e.network == nil {
		return
	}
	ctx, stop := context.WithTimeout(context.Background(), undoLimit)
	defer stop()
	if err := e.network.close(ctx); err != nil {
		e.cfg.Log.Error("close the gateway", "err", err)
	}
}

// optional is a control that only runs with a way out need.
func optional(name string, err error) glovebox.Control {
	c := part(name, err)
	c.Required = false
	return c
}

// way is a run's way out of its sandbox: its part of the gateway, and the netd that is its sandbox's network.
type way struct {
	run        *run
	lent       lent // nil: nothing is
	attachment attachment
	taken      chan struct{} // closed when netd and untaken are known
	netd       netd          // nil until there is one
	untaken    error         // why there is none

	violation sync.Once
	violated  chan struct{} // closed when the run is to end

	serving sync.WaitGroup
	ending  sync.Once
	closing sync.Once
	closed  error

	mu     sync.Mutex
	over   bool  // it was closed on purpose
	broken error // why it ended before its run did
	usage  gateway.Usage
}

// openWay opens the way out of a run that was granted one, and sets the variables that it needs. Its errors are refusals.
func (r *run) openWay(ctx context.Context) error {
	g := r.decision.Grant
	if !wantsWay(g) {
		return nil
	}
	rules, err := egress.Compile(g.Egress)
	if err != nil {
		return err
	}
	w := &way{run: r, taken: make(chan struct{}), violated: make(chan struct{})}
	terms := gateway.Terms{Run: r.id, Rules: rules, Limits: g.Limits, Record: r.decided,
		End: func(egress.Reason) { w.violation.Do(func() { close(w.violated) }) }}
	var placeholders []string
	if lends(g) {
		w.lent, err = r.network.lend(ctx, broker.Run{ID: r.id, Tenant: r.who.Tenant, Rule: r.decision.Rule}, g)
		if err != nil {
			w.lent = nil // an interface around a nil pointer would not be nil
			return err
		}
		r.undo.Push("take back what was lent", w.lent.Close)
		terms.Binding, placeholders = w.lent, w.lent.Env()
	}
	if w.attachment, err = r.network.attach(ctx, terms); err != nil {
		return err
	}
	r.way = w
	r.undo.Push("close the way out", w.close)
	w.opened()
	// What a request says itself counts before what serves its programs, but is no secret.
	r.command.Env = environment(r.image, variables(w.attachment.Env()), r.req.Env, variables(placeholders))
	return nil
}

// ends is closed when the run is to end for what it did with a placeholder.
func (w *way) ends() <-chan struct{} {
	if w == nil {
		return nil
	}
	return w.violated
}

// wantsWay tells whether a grant opens a way out.
func wantsWay(g glovebox.Grant) bool { return len(g.Egress) > 0 || lends(g) }

// lends tells whether a grant is for a broker.
func lends(g glovebox.Grant) bool { return len(g.Secrets)+len(g.Actions) > 0 }

// canOpen refuses what could not be given a way out, before anything is made for it.
func (r *run) canOpen(ctx context.Context) error {
	switch {
	case !wantsWay(r.decision.Grant):
		return nil
	case r.network == nil:
		return glovebox.Errorf(glovebox.CodeUnavailable, "run it without --allow and --secret",
			"this engine has no gateway, so that nothing can leave a sandbox")
	case lends(r.decision.Grant) && r.network.lend == nil:
		return glovebox.Errorf(glovebox.CodeUnavailable, "run it without --secret and --action",
			"this engine has no broker, so that it lends nothing")
	}
	return r.network.available(ctx)
}

// atStart tells whether an interpreter of lang that is started already would not see a variable of the way.
func (w *way) atStart(lang string) bool {
	for name := range variables(w.attachment.Env()) {
		if boot.AtStart(lang, name) {
			return true
		}
	}
	return false
}

// takeNetd gets the netd of the way, once; without a way it does nothing.
func (w *way) takeNetd(ctx context.Context) error {
	if w == nil {
		return nil
	}
	defer close(w.taken)
	n, err := w.run.network.netd(ctx)
	if err != nil {
		w.untaken = fmt.Errorf("start the sandbox's network: %w", err)
		return w.untaken
	}
	w.netd = n
	return nil
}

// connect gives a sandbox its network, with nothing in it yet, once the netd is there; without a way it does nothing.
func (w *way) connect(ctx context.Context, box driver.Sandbox) error {
	if w == nil {
		return nil
	}
	link, err := box.Attach(ctx, driver.Network{Files: w.attachment.Files(), Over: w.attachment.Over()})
	if err != nil {
		return fmt.Errorf("give the sandbox its network: %w", err)
	}
	if <-w.taken; w.untaken != nil {
		return errors.Join(w.untaken, link.File.Close())
	}
	err = w.netd.Start(ctx, netwire.Setup{TAP: link.TAP}, link.File)
	// The netd has its own by now, and with that of the netd the network is to end.
	if err = errors.Join(err, link.File.Close()); err != nil {
		return fmt.Errorf("give the sandbox its network: %w", err)
	}
	return nil
}

// serve serves the way until it is closed or its netd ends, after which the sandbox has no network and its run goes on.
// Without a way it does nothing.
func (w *way) serve() {
	if w == nil {
		return
	}
	w.serving.Go(func() {
		err := w.attachment.Serve(w.netd.Host())
		w.mu.Lock()
		defer w.mu.Unlock()
		if !w.over {
			w.broken = errors.Join(errors.New("the netd has ended"), err)
			w.run.cfg.Log.Warn("the network of a run ended before the run", "id", w.run.id, "err", w.broken)
		}
	})
}

// end ends what passes and waits for the last decisions. The sandbox has no network after it. It does so once; without a way
// it does nothing.
func (w *way) end(ctx context.Context) {
	if w == nil {
		return
	}
	w.ending.Do(func() {
		w.ended()
		w.mu.Lock()
		w.over = true
		w.mu.Unlock()
		ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), wayLimit)
		defer stop()
		err := w.attachment.Close(ctx)
		usage := w.attachment.Usage()
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.usage = usage; err != nil {
			w.run.cfg.Log.Error("close the gateway to a run", "id", w.run.id, "err", err)
		}
	})
}

// close ends the way and returns when everything of it is gone.
func (w *way) close(ctx context.Context) error {
	if w == nil {
		return nil
	}
	w.end(ctx)
	w.closing.Do(func() {
		if w.netd != nil {
			w.closed = w.netd.Close(ctx)
		}
		w.serving.Wait()
	})
	return w.closed
}

// reopen replaces a way whose sandbox is discarded: a netd has one link, ever.
func (r *run) reopen(ctx context.Context) error {
	if r.way == nil {
		return nil
	}
	if err := r.way.close(ctx); err != nil {
		return fmt.Errorf("close the way out: %w", err)
	}
	if err := r.openWay(ctx); err != nil {
		return err
	}
	return r.way.takeNetd(ctx)
}

// decided is told of each decision of the gateway, or of several that were the same. It does not wait.
func (r *run) decided(f glovebox.EgressFlow) {
	r.flows.add(f)
	r.tell.egress(r.cfg.Now(), f)
}

// tellEgress says in a result what left the sandbox, or tried to.
func (r *run) tellEgress(res *glovebox.Result) {
	w := r.way
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	res.Egress = r.flows.list()
	res.Usage.EgressBytes = new(w.usage.BytesUp + w.usage.BytesDown)
	if w.usage.LimitHit {
		res.LimitsHit = append(res.LimitsHit, limitEgress)
		remark(res, fmt.Sprintf("nothing passed the gateway any more after %v, the limit of egress; --egress-limit raises it",
			res.Limits.Egress))
	}
	if w.broken != nil {
		remark(res, "its network ended before it did")
	}
}

// netdMemory is what a grant takes beside the sandbox for a way out.
func netdMemory(g glovebox.Grant) glovebox.Size {
	if wantsWay(g) {
		return netjail.Memory
	}
	return 0
}
