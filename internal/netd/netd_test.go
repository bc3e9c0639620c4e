package netd

import (
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"glovebox/internal/netwire"
)

// kinds are the links that there are.
func kinds(t *testing.T, test func(t *testing.T, tap bool)) {
	t.Run("tun", func(t *testing.T) { test(t, false) })
	t.Run("tap", func(t *testing.T) { test(t, true) })
}

// TestCarries: what goes in at either end comes out at the other, by name, whatever the size of packets.
func TestCarries(t *testing.T) {
	kinds(t, func(t *testing.T, tap bool) {
		for _, mtu := range []int{1500, netwire.MTU} {
			w := newWorld(t, netwire.Setup{TAP: tap}, newLinkFile(t, tap, mtu), all(echo))
			sent := make([]byte, 5<<20)
			rand.Read(sent)
			c := dial(t, net.JoinHostPort(resolve(t, "good.test"), "8443"))
			go func() {
				_, _ = c.Write(sent)
				_ = c.(*net.TCPConn).CloseWrite()
			}()
			got := sha256.New()
			n, err := io.Copy(got, c)
			if want := sha256.Sum256(sent); err != nil || [32]byte(got.Sum(nil)) != want {
				t.Errorf("mtu %d: %d bytes came back, others than were sent: %v", mtu, n, err)
			}
			c.Close()
			open := w.await("open", func(e netwire.Event) bool { return e.Kind == netwire.KindOpen })
			if open.Host != "good.test" || open.Port != 8443 {
				t.Errorf("the gateway heard of %+v", open)
			}
			closed := w.await("closed", func(e netwire.Event) bool { return e.Kind == netwire.KindClosed })
			if closed.Flow != open.Flow || closed.Up != uint64(len(sent)) || closed.Down != uint64(len(sent)) {
				t.Errorf("at the end the gateway heard %+v", closed)
			}
			w.end()
		}
	})
}

// TestRefused: what the gateway refuses is reset, before and after it was accepted.
func TestRefused(t *testing.T) {
	w := newWorld(t, netwire.Setup{}, newLinkFile(t, false, netwire.MTU), func(e netwire.Event) func(net.Conn) {
		if e.Port == 1 {
			return nil
		}
		return echo
	})
	address := resolve(t, "good.test")
	if _, err := net.Dial("tcp", net.JoinHostPort(address, "1")); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a refused connection ended with %v", err)
	}
	c := dial(t, net.JoinHostPort(address, "2"))
	open := w.await("open", func(e netwire.Event) bool { return e.Port == 2 })
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if err := w.host.Refuse(open.Flow); err != nil {
		t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(time.Second))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a connection that may not go on ended with %v", err)
	}
}
