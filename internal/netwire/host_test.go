package netwire

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// ends are both ends of a socket, and the far one's raw file, for what no Peer says.
func ends(t *testing.T) (*Host, *Peer) {
	t.Helper()
	near, far, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	h, err := NewHost(near)
	if err != nil {
		t.Fatal(err)
	}
	p, err := NewPeer(far)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close(); p.Close() })
	return h, p
}

// identity tells files apart.
func identity(t *testing.T, f *os.File) uint64 {
	t.Helper()
	var s unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &s); err != nil {
		t.Fatal(err)
	}
	return s.Ino
}

func pipe(t *testing.T) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return r
}

// TestStart: the link and the set-up reach netd, and Start returns when it serves.
func TestStart(t *testing.T) {
	h, p := ends(t)
	link, stream := pipe(t), pipe(t)
	failed := make(chan error, 1)
	go func() {
		s, got, err := p.Setup()
		if err != nil {
			failed <- err
			return
		}
		defer got.Close()
		if s != setup() || identity(t, got) != identity(t, link) {
			failed <- errors.New("another set-up or link")
			return
		}
		failed <- errors.Join(p.Ready(), p.Send(Event{Kind: KindOpen, Flow: 5, Address: FirstName(), Port: 1}))
	}()
	if err := h.Start(t.Context(), setup(), link); err != nil {
		t.Fatal(err)
	}
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
	if e, err := h.Next(); err != nil || e.Flow != 5 {
		t.Fatalf("%+v, %v", e, err)
	}
	if err := errors.Join(h.Accept(5, stream), h.Refuse(5)); err != nil {
		t.Fatal(err)
	}
	m, err := p.Next()
	if err != nil || m.Kind != CommandAccept || m.Flow != 5 || identity(t, m.Stream) != identity(t, stream) {
		t.Fatalf("%+v, %v", m, err)
	}
	m.Stream.Close()
	if m, err = p.Next(); err != nil || m.Kind != CommandRefuse || m.Stream != nil {
		t.Fatalf("%+v, %v", m, err)
	}
	h.Close()
	if _, err := p.Next(); err != io.EOF {
		t.Errorf("after the end netd hears %v", err)
	}
}

func TestStartEnds(t *testing.T) {
	gone := errors.New("the run is over")
	for name, c := range map[string]struct {
		netd func(*Peer) error
		want string
	}{
		"silent":    {func(*Peer) error { return nil }, gone.Error()},
		"ended":     {func(p *Peer) error { return p.Close() }, "EOF"},
		"not first": {func(p *Peer) error { return p.Ready() }, "different versions"},
		"not second": {func(p *Peer) error {
			return errors.Join(p.Send(Event{Kind: kindHello}), p.Send(Event{Kind: kindHello}))
		}, "different versions"},
	} {
		t.Run(name, func(t *testing.T) {
			h, p := ends(t)
			if err := c.netd(p); err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, gone)
			defer stop()
			if err := h.Start(ctx, Setup{}, pipe(t)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Start returned %v, not %s", err, c.want)
			}
		})
	}
}

// TestNetdBreaksRules: a netd that says what no netd says is not listened to.
func TestNetdBreaksRules(t *testing.T) {
	open := func(flow uint64) Event { return Event{Kind: KindOpen, Flow: flow, Address: FirstName(), Port: 1} }
	ask := func(flow uint64) Event { return Event{Kind: KindAsk, Flow: flow, Host: "a"} }
	many := func(n int, make func(uint64) Event) (all []Event) {
		for i := range n {
			all = append(all, make(uint64(i)+1))
		}
		return all
	}
	for name, said := range map[string][]Event{
		"flow 0":               {open(0)},
		"a flow twice":         {open(1), open(1)},
		"a flow's number back": {open(2), open(1)},
		"a question's number":  {open(2), ask(2)},
		"a used number":        {open(1), {Kind: KindClosed, Flow: 1}, open(1)},
		"ended twice":          {open(1), {Kind: KindClosed, Flow: 1}, {Kind: KindClosed, Flow: 1}},
		"ended without begin":  {{Kind: KindClosed, Flow: 1}},
		"began twice":          {{Kind: kindReady}},
		"too many flows":       many(MaxStreams+1, open),
		"too many questions":   many(maxAsks+1, ask),
	} {
		t.Run(name, func(t *testing.T) {
			h, p := ends(t)
			go func() {
				for _, e := range said {
					if p.Send(e) != nil {
						return
					}
				}
			}()
			for range len(said) - 1 {
				if e, err := h.Next(); err != nil {
					t.Fatalf("%+v: %v", e, err)
				}
			}
			if e, err := h.Next(); err == nil {
				t.Errorf("%+v was taken", e)
			}
		})
	}
}

// TestForeignMessages: what is no message, or has a descriptor where none belongs, is an error at either end, and nothing
// of it stays open.
func TestForeignMessages(t *testing.T) {
	event := encodeEvent(t, Event{Kind: KindClosed, Flow: 1})
	accept := encodeCommand(t, Command{Kind: CommandAccept, Flow: 1}, Setup{})
	refuse := encodeCommand(t, Command{Kind: CommandRefuse, Flow: 1}, Setup{})
	for name, c := range map[string]struct {
		message []byte
		files   int
		toNetd  bool
	}{
		"long to the host":           {make([]byte, 1<<16), 0, false},
		"a descriptor to the host":   {event, 1, false},
		"long to netd":               {make([]byte, 1<<16), 0, true},
		"a stream with a refusal":    {refuse, 1, true},
		"no stream with a yes":       {accept, 0, true},
		"two streams":                {accept, 2, true},
		"more than the buffer takes": {accept, 40, true},
	} {
		t.Run(name, func(t *testing.T) {
			h, p := ends(t)
			from, to := p.sock, func() error { _, err := h.Next(); return err }
			if c.toNetd {
				from, to = h.sock, func() error { _, err := p.Next(); return err }
			}
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			var fds []int
			for range c.files {
				fds = append(fds, int(w.Fd()))
			}
			var rights []byte
			if len(fds) > 0 {
				rights = unix.UnixRights(fds...)
			}
			if err := unix.Sendmsg(int(from.file.Fd()), c.message, rights, nil, 0); err != nil {
				t.Fatal(err)
			}
			if err := to(); err == nil {
				t.Error("it was taken")
			}
			// With every copy closed the reader sees the end.
			w.Close()
			if err := r.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
				t.Fatal(err)
			}
			if _, err := r.Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("a descriptor that came with it is still open: %v", err)
			}
		})
	}
}

func TestEndedFlows(t *testing.T) {
	h, p := ends(t)
	for _, e := range []Event{{Kind: KindOpen, Flow: 1, Address: FirstName(), Port: 1}, {Kind: KindClosed, Flow: 1}, {Kind: KindAsk, Flow: 2, Host: "a"}} {
		if err := p.Send(e); err != nil {
			t.Fatal(err)
		}
		if _, err := h.Next(); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.Accept(1, pipe(t)); !errors.Is(err, ErrEnded) {
		t.Errorf("accepting what has ended: %v", err)
	}
	if err := h.Refuse(1); !errors.Is(err, ErrEnded) {
		t.Errorf("refusing what has ended: %v", err)
	}
	if err := h.Answer(2, true); err != nil {
		t.Error(err)
	}
	if err := h.Answer(2, true); err == nil {
		t.Error("a question was answered twice")
	}
	if m, err := p.Next(); err != nil || m.Kind != CommandAnswer || m.Flow != 2 || !m.Known {
		t.Errorf("netd hears %+v, %v", m, err)
	}
}

func TestOnlySeqpacket(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	a, b := os.NewFile(uintptr(fds[0]), "a"), os.NewFile(uintptr(fds[1]), "b")
	defer a.Close()
	defer b.Close()
	if _, err := NewHost(a); err == nil {
		t.Error("a stream was taken, which does not keep messages apart")
	}
	if _, err := NewPeer(pipe(t)); err == nil {
		t.Error("a pipe was taken")
	}
}
