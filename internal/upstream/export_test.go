package upstream

import (
	"net"
	"net/netip"
)

// Admit lets d reach the servers of tests, which are on the loopback. Nothing outside tests can.
func (d *Dialer) Admit() {
	d.admit = func(addr netip.Addr, private []netip.Prefix) error {
		if addr.Unmap().IsLoopback() {
			return nil
		}
		return judge(addr, private)
	}
	d.own = func() ([]net.Addr, error) { return nil, nil }
}

// Own lets d take addrs for those of this machine.
func (d *Dialer) Own(addrs ...string) {
	d.own = func() ([]net.Addr, error) {
		var list []net.Addr
		for _, a := range addrs {
			p := netip.MustParsePrefix(a)
			list = append(list, &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())})
		}
		return list, nil
	}
}

// Recheck is what is asked as the kernel is given an address.
func (d *Dialer) Recheck(address string, private []netip.Prefix) error {
	return d.recheck(address, private)
}

// Judge is what an address is judged by.
func Judge(addr netip.Addr, private []netip.Prefix) error { return judge(addr, private) }
