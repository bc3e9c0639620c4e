package upstream

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"
)

// namedTimeout bounds one connect, name resolution included.
const namedTimeout = 20 * time.Second

// Named connects to what an operator named, and to nothing else, wherever an answer leads: a registry of images, which may
// well be one of this machine or of a private network. No program has a say in it. It is not changed after its first use.
type Named struct {
	// Hosts are names or addresses, each with its port or for any port.
	Hosts []string
}

// DialContext connects to address, HOST:PORT, over TCP. It is for the DialContext of an http.Transport. The caller closes
// the connection.
func (n *Named) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(n.Hosts, address) && !slices.Contains(n.Hosts, host) {
		return nil, fmt.Errorf("%.200q was not named", address)
	}
	dialer := net.Dialer{Timeout: namedTimeout,
		ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error { return judgeNamed(address) }}
	return dialer.DialContext(ctx, network, address)
}

// judgeNamed refuses where no registry is, but what a machine itself is told by, such as a cloud's metadata.
func judgeNamed(address string) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	if a := to.Addr().Unmap(); a.IsLinkLocalUnicast() || a.IsUnspecified() || a.IsMulticast() {
		return fmt.Errorf("%v is no address of a server", a)
	}
	return nil
}
