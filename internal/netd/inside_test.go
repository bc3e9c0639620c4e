package netd

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"glovebox/internal/netwire"
)

// These tests see a netd as a program in a sandbox does, through the kernel's own network.

// TestResolvesAnywhere: whichever server is asked, by UDP or TCP, it is netd who answers.
func TestResolvesAnywhere(t *testing.T) {
	w := newWorld(t, netwire.Setup{}, newLinkFile(t, false, netwire.MTU), nil)
	var first string
	for _, server := range []string{netwire.Outside().String(), "8.8.8.8", "169.254.169.253"} {
		for _, network := range []string{"udp", "tcp"} {
			r := testResolver(network, server)
			a, err := r.LookupHost(t.Context(), "good.test")
			if err != nil || len(a) != 1 || first != "" && a[0] != first {
				t.Errorf("%s %s: %v, %v", server, network, a, err)
				continue
			}
			first = a[0]
			if names, err := r.LookupAddr(t.Context(), first); err != nil || len(names) != 1 || names[0] != "good.test." {
				t.Errorf("%s %s: the name of %s is %v, %v", server, network, first, names, err)
			}
			if text, err := r.LookupTXT(t.Context(), "good.test"); len(text) > 0 || !notFound(err) {
				t.Errorf("%s %s: a text %q, %v", server, network, text, err)
			}
		}
	}
	e := w.await("the name", func(e netwire.Event) bool { return e.Kind == netwire.KindName })
	if e.Host != "good.test" || e.Address.String() != first {
		t.Errorf("the gateway heard of %+v", e)
	}
	// Only the name that was asked for: what is not a connection is not the gateway's affair.
	if n := w.count(netwire.KindOpen); n != 0 || w.count(netwire.KindName) != 1 {
		t.Errorf("the gateway heard of %d connections and %d names", n, w.count(netwire.KindName))
	}
}

func notFound(err error) bool {
	e, ok := errors.AsType[*net.DNSError](err)
	return ok && e.IsNotFound
}

// TestStrictInside: the gateway's word decides whether there is a name, also on a connection.
func TestStrictInside(t *testing.T) {
	w := newWorld(t, netwire.Setup{Strict: true}, newLinkFile(t, false, netwire.MTU), nil)
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		seen := 0
		for {
			w.mu.Lock()
			for seen == len(w.events) && !w.ended {
				w.cond.Wait()
			}
			if w.ended {
				w.mu.Unlock()
				return
			}
			e := w.events[seen]
			seen++
			w.mu.Unlock()
			if e.Kind == netwire.KindAsk {
				_ = w.host.Answer(e.Flow, e.Host == "good.test")
			}
		}
	}()
	for _, network := range []string{"udp", "tcp"} {
		r := testResolver(network, netwire.Outside().String())
		if a, err := r.LookupHost(t.Context(), "good.test"); err != nil {
			t.Errorf("%s: %v, %v", network, a, err)
		}
		ctx, stop := context.WithTimeout(t.Context(), 5*time.Second)
		if a, err := r.LookupHost(ctx, "evil.test"); err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v, %v", network, a, err)
		}
		stop()
	}
}

// TestNoWay: what is neither a question nor a connection to a name fails at once, and is told of.
func TestNoWay(t *testing.T) {
	w := newWorld(t, netwire.Setup{}, newLinkFile(t, false, netwire.MTU), all(echo))
	name := resolve(t, "good.test")
	for _, c := range []struct {
		network, address string
		why              netwire.Why
	}{
		{"tcp", "93.184.216.34:22", netwire.WhyLiteral},
		{"tcp", "169.254.169.254:8080", netwire.WhyLiteral},
		{"tcp", "198.18.0.1:80", netwire.WhyLiteral},
		{"tcp", "198.18.77.77:25", netwire.WhyLiteral},
		{"tcp", name + ":853", netwire.WhyPort},
		{"tcp", name + ":5353", netwire.WhyPort},
		{"tcp", name + ":5355", netwire.WhyPort},
		{"tcp", "93.184.216.34:137", netwire.WhyPort},
		{"udp", name + ":443", netwire.WhyUDP},
		{"udp", "8.8.8.8:5353", netwire.WhyUDP},
		{"udp", "198.18.0.1:123", netwire.WhyUDP},
	} {
		begin := time.Now()
		d := net.Dialer{Timeout: 5 * time.Second}
		conn, err := d.DialContext(t.Context(), c.network, c.address)
		if err == nil && c.network == "udp" {
			_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
			_, _ = conn.Write([]byte("x"))
			_, err = conn.Read(make([]byte, 1))
		}
		if !errors.Is(err, syscall.ECONNREFUSED) || time.Since(begin) > time.Second {
			t.Errorf("%s %s: %v after %v", c.network, c.address, err, time.Since(begin))
		}
		e := w.await(c.why.String(), func(e netwire.Event) bool {
			return e.Kind == netwire.KindDropped && e.Why == c.why && net.JoinHostPort(e.Address.String(), port(e)) == c.address
		})
		if e.Count == 0 {
			t.Errorf("%s %s: %+v", c.network, c.address, e)
		}
	}
	if w.count(netwire.KindOpen) != 0 {
		t.Error("the gateway heard of a connection")
	}
}

func port(e netwire.Event) string {
	_, p, _ := strings.Cut(net.JoinHostPort("x", strconv.Itoa(int(e.Port))), ":")
	return p
}

// TestLiteral: on the ports of HTTP the gateway can say why a bare address does not work.
func TestLiteral(t *testing.T) {
	w := newWorld(t, netwire.Setup{}, newLinkFile(t, false, netwire.MTU), all(func(c net.Conn) {
		_, _ = io.WriteString(c, "not that way")
		c.Close()
	}))
	for _, address := range []string{"93.184.216.34:80", "169.254.169.254:443"} {
		b, err := io.ReadAll(dial(t, address))
		if string(b) != "not that way" || err != nil {
			t.Errorf("%s says %q, %v", address, b, err)
		}
		w.await(address, func(e netwire.Event) bool {
			return e.Kind == netwire.KindOpen && e.Host == "" && net.JoinHostPort(e.Address.String(), port(e)) == address
		})
	}
}

// TestSilent: echoes are not answered, IPv6 leads nowhere, and no packet of either makes noise for the gateway but a count.
func TestSilent(t *testing.T) {
	w := newWorld(t, netwire.Setup{}, newLinkFile(t, false, netwire.MTU), nil)
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMP)
	if err != nil {
		t.Fatal(err)
	}
	ping := os.NewFile(uintptr(s), "ping")
	defer ping.Close()
	ask := []byte{8, 0, 0xf7, 0xff, 0, 0, 0, 0}
	if err := unix.Sendto(s, ask, 0, &unix.SockaddrInet4{Addr: netwire.Outside().As4()}); err != nil {
		t.Fatal(err)
	}
	w.awaitDrop(netwire.WhyProtocol)
	tv := unix.NsecToTimeval(int64(100 * time.Millisecond))
	if err := unix.SetsockoptTimeval(s, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		t.Fatal(err)
	}
	if n, _, err := unix.Recvfrom(s, make([]byte, 100), 0); err != unix.EAGAIN {
		t.Errorf("an echo of %d bytes came back: %v", n, err)
	}
	if _, err := net.DialTimeout("tcp", "[2606:4700::1111]:443", 2*time.Second); !errors.Is(err, syscall.ENETUNREACH) && !errors.Is(err, syscall.EHOSTUNREACH) {
		t.Errorf("IPv6: %v", err)
	}
}

// TestHalfClosed: the end of one direction is passed on, and the other goes on; both ways round.
func TestHalfClosed(t *testing.T) {
	done := make(chan struct{})
	newWorld(t, netwire.Setup{}, newLinkFile(t, false, netwire.MTU), func(e netwire.Event) func(net.Conn) {
		return func(c net.Conn) {
			defer c.Close()
			if e.Port == 1 { // the sandbox ends first
				all, _ := io.ReadAll(c)
				_, _ = c.Write(append(all, " and back"...))
				return
			}
			defer close(done)
			_, _ = io.WriteString(c, "first") // the gateway ends first
			_ = c.(*net.UnixConn).CloseWrite()
			all, err := io.ReadAll(c)
			if string(all) != "last" || err != nil {
				t.Errorf("after its own end the gateway reads %q, %v", all, err)
			}
		}
	})
	address := resolve(t, "good.test")
	c := dial(t, net.JoinHostPort(address, "1")).(*net.TCPConn)
	_, _ = io.WriteString(c, "there")
	_ = c.CloseWrite()
	if got, err := io.ReadAll(c); string(got) != "there and back" || err != nil {
		t.Errorf("after its own end the sandbox reads %q, %v", got, err)
	}
	c = dial(t, net.JoinHostPort(address, "2")).(*net.TCPConn)
	if got, err := io.ReadAll(c); string(got) != "first" || err != nil {
		t.Errorf("before its own end the sandbox reads %q, %v", got, err)
	}
	if _, err := io.WriteString(c, "last"); err != nil {
		t.Error(err)
	}
	_ = c.Close()
	<-done
}

// TestGatewayGone: a gateway that closes all of a connection, or dies, ends it in the sandbox; a sandbox that resets one
// ends it at the gateway.
func TestGatewayGone(t *testing.T) {
	accepted := make(chan net.Conn, 3)
	w := newWorld(t, netwire.Setup{}, newLinkFile(t, false, netwire.MTU), all(func(c net.Conn) { accepted <- c }))
	address := net.JoinHostPort(resolve(t, "good.test"), "1")
	c := dial(t, address)
	(<-accepted).Close()
	if !resets(c) {
		t.Error("a connection goes on though the gateway has closed it")
	}
	c = dial(t, address)
	far := <-accepted
	_ = c.(*net.TCPConn).SetLinger(0)
	c.Close()
	_ = far.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := far.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("a connection that was reset reads %v", err)
	}
	far.Close()
	w.await("the end of both", func(e netwire.Event) bool { return e.Kind == netwire.KindClosed && e.Flow == 2 })

	c = dial(t, address)
	defer (<-accepted).Close()
	begin := time.Now()
	w.end()
	if _, err := net.InterfaceByName("glove0"); err == nil || time.Since(begin) > time.Second {
		t.Errorf("the network is there %v after the gateway's death: %v", time.Since(begin), err)
	}
	if _, err := net.Dial("tcp", address); !errors.Is(err, syscall.ENETUNREACH) {
		t.Errorf("a new connection after the gateway's death: %v", err)
	}
	c.Close()
}

// resets writes until the connection is reset, for a while.
func resets(c net.Conn) bool {
	for range 500 {
		if _, err := c.Write([]byte("x")); err != nil {
			return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return false
}

// TestLimits: a connection ends when it was idle, or open, for too long; and there are no more than may be.
func TestLimits(t *testing.T) {
	for name, q := range map[string]netwire.Quotas{"idle": {Idle: 300 * time.Millisecond}, "age": {Age: 300 * time.Millisecond}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, netwire.Setup{Quotas: q}, newLinkFile(t, false, netwire.MTU), all(echo))
			c := dial(t, net.JoinHostPort(resolve(t, "good.test"), "1"))
			begin := time.Now()
			_ = c.SetDeadline(begin.Add(5 * time.Second))
			var err error
			for name == "age" && err == nil {
				_, err = c.Write([]byte("x"))
				time.Sleep(50 * time.Millisecond)
			}
			if err == nil {
				_, err = c.Read(make([]byte, 1))
			}
			if took := time.Since(begin); !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) || took < 250*time.Millisecond || took > 3*time.Second {
				t.Errorf("it ended after %v with %v", took, err)
			}
			w.await("the end", func(e netwire.Event) bool { return e.Kind == netwire.KindClosed })
		})
	}
	t.Run("open", func(t *testing.T) {
		w := newWorld(t, netwire.Setup{Quotas: netwire.Quotas{OpenFlows: 2}}, newLinkFile(t, false, netwire.MTU), all(echo))
		address := net.JoinHostPort(resolve(t, "good.test"), "1")
		first := dial(t, address)
		dial(t, address)
		if _, err := net.Dial("tcp", address); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("a connection too many: %v", err)
		}
		w.awaitDrop(netwire.WhyFlows)
		first.Close()
		w.await("the end", func(e netwire.Event) bool { return e.Kind == netwire.KindClosed })
		for range 200 { // its place is free when its last byte was handed over
			c, err := net.Dial("tcp", address)
			if err == nil {
				c.Close()
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
		t.Error("a place that was left is not free")
	})
}

// TestUndecided: what the gateway has not decided is not connected.
func TestUndecided(t *testing.T) {
	w := newWorld(t, netwire.Setup{}, newLinkFile(t, false, netwire.MTU), nil)
	address := net.JoinHostPort(resolve(t, "good.test"), "1")
	if c, err := net.DialTimeout("tcp", address, 200*time.Millisecond); err == nil {
		c.Close()
		t.Error("it is connected")
	}
	w.end() // and ends in time though it waits
}

// TestOrdinaryUser: none of it needs root.
func TestOrdinaryUser(t *testing.T) {
	needNamespace(t)
	if os.Getuid() != 0 || os.Getenv(roleVar) != "" {
		t.Skip("this is an ordinary user")
	}
	// The device itself may be root's alone.
	device := filepath.Join(t.TempDir(), "tun")
	err := unix.Mknod(device, unix.S_IFCHR|0o666, int(unix.Mkdev(10, 200)))
	for dir := device; err == nil && dir != os.TempDir(); dir = filepath.Dir(dir) {
		err = os.Chmod(dir, 0o777)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(roleVar, "user")
	t.Setenv(tunVar, device)
	for _, test := range []string{"TestResolvesAnywhere", "TestNoWay", "TestHalfClosed"} {
		if code, err := inNamespace(65534, "-test.run", "^"+test+"$", "-test.count=1"); code != 0 {
			t.Errorf("as an ordinary user %s ends with %d, %v", test, code, err)
		}
	}
}
