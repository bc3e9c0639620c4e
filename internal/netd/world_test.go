package netd

import (
	"context"
	"io"
	"iter"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"glovebox/internal/netwire"
)

// A world is a netd with its link, and a gateway that a test plays: it accepts what handle says, and notes the rest.
type world struct {
	t    testing.TB
	host *netwire.Host
	end  func() // ends netd and waits until its interface is gone

	mu     sync.Mutex
	events []netwire.Event
	cond   *sync.Cond
	ended  bool
}

// gateway decides about a flow: nil refuses it, else the function gets the near end of its stream and closes it.
type gateway func(e netwire.Event) func(net.Conn)

// newWorld starts a netd in this process with a link. With a nil gateway the test answers itself.
func newWorld(t testing.TB, s netwire.Setup, link *os.File, g gateway) *world {
	t.Helper()
	near, far, err := netwire.Pair()
	if err != nil {
		t.Fatal(err)
	}
	peer, err := netwire.NewPeer(far)
	if err != nil {
		t.Fatal(err)
	}
	netd := make(chan error, 1)
	go func() { netd <- Run(peer) }()
	w := joinWorld(t, s, near, link, g)
	w.end = sync.OnceFunc(func() {
		w.host.Close()
		select {
		case err := <-netd:
			if err != nil {
				t.Errorf("netd ended: %v", err)
			}
		case <-time.After(10 * time.Second):
			t.Error("netd did not end with its socket")
		}
	})
	t.Cleanup(w.end)
	return w
}

// joinWorld is the gateway's side alone.
func joinWorld(t testing.TB, s netwire.Setup, near, link *os.File, g gateway) *world {
	t.Helper()
	h, err := netwire.NewHost(near)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
	defer stop()
	if err := h.Start(ctx, s, link); err != nil {
		t.Fatal(err)
	}
	link.Close()
	w := &world{t: t, host: h}
	w.cond = sync.NewCond(&w.mu)
	var work sync.WaitGroup
	work.Go(func() {
		for {
			e, err := h.Next()
			if err != nil {
				w.note(netwire.Event{}, true)
				return
			}
			w.note(e, false)
			if e.Kind == netwire.KindOpen && g != nil {
				w.decide(&work, e, g)
			}
		}
	})
	t.Cleanup(func() { h.Close(); work.Wait() })
	return w
}

func (w *world) note(e netwire.Event, ended bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if ended {
		w.ended = true
	} else {
		w.events = append(w.events, e)
	}
	w.cond.Broadcast()
}

func (w *world) decide(work *sync.WaitGroup, e netwire.Event, g gateway) {
	serve := g(e)
	if serve == nil {
		_ = w.host.Refuse(e.Flow)
		return
	}
	near, err := w.accept(e.Flow)
	if err == nil {
		work.Go(func() { serve(near) })
	}
}

// accept accepts a flow and returns the near end of its stream.
func (w *world) accept(flow uint64) (net.Conn, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	near, far := os.NewFile(uintptr(fds[0]), "near"), os.NewFile(uintptr(fds[1]), "far")
	defer far.Close()
	defer near.Close()
	if err := w.host.Accept(flow, far); err != nil {
		return nil, err
	}
	return net.FileConn(near)
}

// await waits for an event that fits.
func (w *world) await(what string, fits func(netwire.Event) bool) netwire.Event {
	w.t.Helper()
	stop := time.AfterFunc(10*time.Second, func() { w.note(netwire.Event{}, true) })
	defer stop.Stop()
	w.mu.Lock()
	defer w.mu.Unlock()
	for from := 0; ; {
		for ; from < len(w.events); from++ {
			if fits(w.events[from]) {
				return w.events[from]
			}
		}
		if w.ended {
			w.t.Fatalf("no event: %s\nof %d the last were %+v", what, len(w.events), w.events[max(0, len(w.events)-5):])
		}
		w.cond.Wait()
	}
}

func (w *world) awaitDrop(why netwire.Why) netwire.Event {
	w.t.Helper()
	return w.await(why.String(), func(e netwire.Event) bool { return e.Kind == netwire.KindDropped && e.Why == why })
}

// opened are the connections that are asked for, until netd ends.
func (w *world) opened() iter.Seq[netwire.Event] {
	return func(yield func(netwire.Event) bool) {
		for seen := 0; ; seen++ {
			w.mu.Lock()
			for seen == len(w.events) && !w.ended {
				w.cond.Wait()
			}
			if seen == len(w.events) {
				w.mu.Unlock()
				return
			}
			e := w.events[seen]
			w.mu.Unlock()
			if e.Kind == netwire.KindOpen && !yield(e) {
				return
			}
		}
	}
}

// count counts events of a kind so far.
func (w *world) count(kind netwire.Kind) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

// echo sends back whatever comes until its end.
func echo(c net.Conn) {
	defer c.Close()
	_, _ = io.Copy(c, c)
}

// all lets a gateway do one thing with every flow.
func all(serve func(net.Conn)) gateway { return func(netwire.Event) func(net.Conn) { return serve } }

// resolve asks netd as a program does.
func resolve(t testing.TB, host string) string {
	t.Helper()
	addresses, err := testResolver("udp", netwire.Outside().String()).LookupHost(t.Context(), host)
	if err != nil || len(addresses) != 1 {
		t.Fatalf("resolve %s: %v, %v", host, addresses, err)
	}
	return addresses[0]
}

// testResolver is the standard library's own, with netd as its server.
func testResolver(network, server string) *net.Resolver {
	return &net.Resolver{PreferGo: true, StrictErrors: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, net.JoinHostPort(server, "53"))
	}}
}

func dial(t testing.TB, address string) net.Conn {
	t.Helper()
	d := net.Dialer{Timeout: 10 * time.Second}
	c, err := d.DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}
