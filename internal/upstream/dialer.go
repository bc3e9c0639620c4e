package upstream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"syscall"
	"time"

	"glovebox"
	"glovebox/internal/egress"
)

// How long a dial waits. A server that does not answer in that time does not answer.
const (
	resolveTimeout = 3 * time.Second  // of one name server
	connectTimeout = 5 * time.Second  // of one address
	dialTimeout    = 15 * time.Second // in all
	maxAddresses   = 8                // of one name that are tried
)

// Config is what a Dialer is made of.
type Config struct {
	// Resolvers are the name servers, asked in this order until one answers. No other is asked, ever. Names in the
	// machine's own hosts file need none.
	Resolvers []netip.AddrPort
	// Proxy is the HTTP proxy through which the machine reaches the internet: http://[USER:PASSWORD@]HOST[:PORT]; nil means
	// that it is reached directly. Names are resolved and judged here all the same, and the proxy is asked for the address.
	Proxy *url.URL
	// ProxyResolves leaves resolving to the proxy, where no name server can be reached or the proxy judges names. Addresses are
	// then not judged here: that the proxy leads to no private address is the operator's to see to.
	ProxyResolves bool
}

// Target is where to dial.
type Target struct {
	Host egress.Host
	Port uint16
	// AllowPrivate are the private networks to which the name may lead, beside the internet. Loopback, link-local and the
	// addresses of this machine stay closed whatever it says.
	AllowPrivate []netip.Prefix
}

// Error is a dial that failed. Its text is for the operator's log; only Reason is for a sandbox.
type Error struct {
	Reason egress.Reason // upstream-ip-private or upstream-failed
	Err    error
}

// Error says what failed.
func (e *Error) Error() string { return "dial: " + e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Dialer dials what names stand for. Methods are safe for concurrent use.
type Dialer struct {
	config Config
	proxy  string // HOST:PORT, empty where there is none
	// own returns the addresses of this machine.
	own func() ([]net.Addr, error)
	// admit, where it is not nil, is asked instead of judge: tests have servers on the loopback.
	admit func(netip.Addr, []netip.Prefix) error
}

// New makes a Dialer. It fails with code invalid where config contradicts itself.
func New(config Config) (*Dialer, error) {
	d := &Dialer{config: config, own: net.InterfaceAddrs}
	for _, r := range config.Resolvers {
		if !r.IsValid() || r.Port() == 0 {
			return nil, glovebox.Errorf(glovebox.CodeInvalid, "give ADDRESS:PORT, such as 10.0.0.53:53",
				"%v is no address and port of a name server", r)
		}
	}
	if config.ProxyResolves && config.Proxy == nil {
		return nil, glovebox.Errorf(glovebox.CodeInvalid, "name the proxy, or let Glovebox resolve names itself",
			"names shall be resolved by a proxy, and there is none")
	}
	if config.Proxy != nil {
		if config.Proxy.Scheme != "http" || config.Proxy.Hostname() == "" {
			return nil, glovebox.Errorf(glovebox.CodeInvalid, "give http://HOST:PORT",
				"%s is no HTTP proxy", config.Proxy.Redacted())
		}
		port := config.Proxy.Port()
		if port == "" {
			port = "80"
		}
		d.proxy = net.JoinHostPort(config.Proxy.Hostname(), port)
	}
	return d, nil
}

// DialContext connects to t over TCP: it resolves the name, judges every address, and judges the one that is connected to
// once more as the kernel is given it. An error is an *Error. The caller closes the connection.
func (d *Dialer) DialContext(ctx context.Context, t Target) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	if t.Host == (egress.Host{}) || t.Port == 0 {
		return nil, failed(errors.New("no name or no port"))
	}
	if d.config.ProxyResolves {
		return d.throughProxy(ctx, t.Host.String(), t.Port)
	}
	addrs, err := d.resolve(ctx, t.Host)
	if err != nil {
		return nil, failed(err)
	}
	addrs, err = d.judged(addrs, t.AllowPrivate)
	if err != nil {
		return nil, err
	}
	var causes []error
	for i, addr := range addrs {
		conn, err := d.connect(ctx, netip.AddrPortFrom(addr, t.Port), t.AllowPrivate, len(addrs)-i)
		if err == nil {
			return conn, nil
		}
		causes = append(causes, err)
	}
	return nil, asError(errors.Join(causes...))
}

// judged keeps of a name's addresses those that it may lead to, at most maxAddresses. None left is an error.
func (d *Dialer) judged(addrs []netip.Addr, private []netip.Prefix) ([]netip.Addr, error) {
	own, err := d.ownAddresses()
	if err != nil {
		return nil, failed(err)
	}
	var first error
	var kept []netip.Addr
	for _, addr := range addrs {
		if err := d.judge(addr, private, own); err != nil {
			first = cmpOr(first, err)
		} else if addr = addr.Unmap(); !slices.Contains(kept, addr) && len(kept) < maxAddresses {
			kept = append(kept, addr)
		}
	}
	if len(kept) == 0 {
		return nil, &Error{Reason: egress.ReasonUpstreamIPPrivate, Err: first}
	}
	return kept, nil
}

func cmpOr(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

func (d *Dialer) judge(addr netip.Addr, private []netip.Prefix, own []netip.Addr) error {
	check := judge
	if d.admit != nil {
		check = d.admit
	}
	if err := check(addr, private); err != nil {
		return err
	}
	if slices.Contains(own, addr.Unmap()) {
		return fmt.Errorf("%v is this machine's own: %w", addr, errPrivate)
	}
	return nil
}

// ownAddresses are read for each dial: they change while a server runs.
func (d *Dialer) ownAddresses() ([]netip.Addr, error) {
	list, err := d.own()
	if err != nil {
		return nil, fmt.Errorf("read this machine's addresses: %w", err)
	}
	own := make([]netip.Addr, 0, len(list))
	for _, a := range list {
		prefix, err := netip.ParsePrefix(a.String())
		if err != nil {
			return nil, fmt.Errorf("read this machine's addresses: %w", err)
		}
		own = append(own, prefix.Addr().Unmap().WithZone(""))
	}
	return own, nil
}

// connect dials one address, which was judged, directly or through the proxy. left is how many are still to be tried, this
// one included, and share what time there is.
func (d *Dialer) connect(ctx context.Context, to netip.AddrPort, private []netip.Prefix, left int) (net.Conn, error) {
	wait := connectTimeout
	if deadline, ok := ctx.Deadline(); ok {
		wait = min(wait, max(time.Until(deadline)/time.Duration(left), time.Second))
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	if d.proxy != "" {
		return d.throughProxy(ctx, to.Addr().String(), to.Port())
	}
	dialer := net.Dialer{ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
		return d.recheck(address, private)
	}}
	return dialer.DialContext(ctx, "tcp", to.String())
}

// recheck judges the very address that the kernel is about to be given, whatever lies between here and there.
func (d *Dialer) recheck(address string, private []netip.Prefix) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	own, err := d.ownAddresses()
	if err != nil {
		return err
	}
	return d.judge(to.Addr(), private, own)
}

// resolve asks one name server after the other. A server that says that there is no such name is believed.
func (d *Dialer) resolve(ctx context.Context, host egress.Host) ([]netip.Addr, error) {
	if len(d.config.Resolvers) == 0 {
		return nil, errors.New("no name server is configured")
	}
	var causes []error
	for _, server := range d.config.Resolvers {
		addrs, err := ask(ctx, server, host)
		if err == nil && len(addrs) > 0 {
			return addrs, nil
		}
		causes = append(causes, err)
		var dns *net.DNSError
		if errors.As(err, &dns) && dns.IsNotFound {
			break
		}
	}
	return nil, errors.Join(causes...)
}

// ask sends a query for host to server. The name ends in a dot, so that no search list applies.
func ask(ctx context.Context, server netip.AddrPort, host egress.Host) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	r := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, network, server.String())
	}}
	return r.LookupNetIP(ctx, "ip", host.String()+".")
}

func failed(err error) error { return &Error{Reason: egress.ReasonUpstreamFailed, Err: err} }

// asError gives an error of dialling its reason.
func asError(err error) error {
	if errors.Is(err, errPrivate) {
		return &Error{Reason: egress.ReasonUpstreamIPPrivate, Err: err}
	}
	return failed(err)
}
