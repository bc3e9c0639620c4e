package upstream

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// Networks of IPv4 that are not the internet, or not one place in it: IANA's registry of special purposes, what reaches this
// machine or its neighbours, and the one address outside those ranges at which a cloud serves metadata.
var notPublic4 = prefixes(
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "168.63.129.16/32", "169.254.0.0/16", "172.16.0.0/12",
	"192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
	"224.0.0.0/4", "240.0.0.0/4")

// global6 is what of IPv6 is given out to be reached; notPublic6 are parts of it that are not the internet, or that lead to
// an IPv4 address by a tunnel (Teredo, 6to4).
var (
	global6    = netip.MustParsePrefix("2000::/3")
	notPublic6 = prefixes("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")
)

// nat64 carries an IPv4 address in its last four bytes.
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// allowable are the networks that a rule may open by name. All others stay closed whatever a rule says: loopback,
// link-local, multicast, metadata, what the sandbox's own side uses.
var allowable = prefixes("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")

// never are addresses within allowable at which clouds serve metadata.
var never = prefixes("100.100.100.200/32", "fd00:ec2::/32", "fd20:ce::254/128")

func prefixes(texts ...string) []netip.Prefix {
	list := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		list[i] = netip.MustParsePrefix(text)
	}
	return list
}

func within(addr netip.Addr, list []netip.Prefix) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// errPrivate is within every refusal of judge.
var errPrivate = errors.New("not a public address")

// judge tells whether a name may lead to addr: where it is public, or in one of the private networks that a rule opens.
func judge(addr netip.Addr, private []netip.Prefix) error {
	if !addr.IsValid() || addr.Zone() != "" {
		return fmt.Errorf("%v: %w", addr, errPrivate)
	}
	addr = addr.Unmap()
	if within(addr, allowable) && !within(addr, never) && within(addr, private) {
		return nil
	}
	if !public(addr) {
		return fmt.Errorf("%v: %w", addr, errPrivate)
	}
	return nil
}

// public tells whether addr, which is no mapped one, is an address of the internet.
func public(addr netip.Addr) bool {
	if addr.Is4() {
		return !within(addr, notPublic4)
	}
	if nat64.Contains(addr) {
		b := addr.As16()
		return public(netip.AddrFrom4([4]byte(b[12:])))
	}
	return global6.Contains(addr) && !within(addr, notPublic6) && !isatap(addr)
}

// isatap tells whether addr has an IPv4 address in the form of a tunnel within a site.
func isatap(addr netip.Addr) bool {
	b := addr.As16()
	return b[8]&^2 == 0 && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe
}
