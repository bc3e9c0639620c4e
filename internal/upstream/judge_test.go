package upstream_test

import (
	"net/netip"
	"testing"

	"glovebox/internal/upstream"
)

// addresses may be dialled without, with some, and with all networks opened.
var addresses = []struct {
	addr                  string
	plain, private, every bool
}{
	{"93.184.215.14", true, true, true},
	{"::ffff:93.184.215.14", true, true, true},
	{"2606:2800:21f:cb07:6820:80da:af6b:8b2c", true, true, true},
	{"64:ff9b::5db8:d70e", true, true, true},
	{"10.77.0.2", false, true, true},
	{"::ffff:10.77.0.2", false, true, true},
	{"10.78.0.2", false, false, true},
	{"192.168.1.1", false, false, true},
	{"172.16.0.1", false, false, true},
	{"172.31.255.255", false, false, true},
	{"172.32.0.1", true, true, true},
	{"100.64.0.1", false, true, true},
	{"100.128.0.1", true, true, true},
	{"fd01::1", false, true, true},
	{"fc00::1", false, false, true},
	// Never, whatever a rule says.
	{"127.0.0.1", false, false, false},
	{"127.255.255.254", false, false, false},
	{"::1", false, false, false},
	{"::ffff:127.0.0.1", false, false, false},
	{"0.0.0.0", false, false, false},
	{"0.1.2.3", false, false, false},
	{"::", false, false, false},
	{"::ffff:0.0.0.0", false, false, false},
	{"169.254.169.254", false, false, false},
	{"::ffff:169.254.169.254", false, false, false},
	{"168.63.129.16", false, false, false},
	{"100.100.100.200", false, false, false},
	{"fd00:ec2::254", false, false, false},
	{"fd20:ce::254", false, false, false},
	{"fe80::1", false, false, false},
	{"fec0::1", false, false, false},
	{"ff02::1", false, false, false},
	{"224.0.0.1", false, false, false},
	{"239.255.255.255", false, false, false},
	{"240.0.0.1", false, false, false},
	{"255.255.255.255", false, false, false},
	{"192.0.0.8", false, false, false},
	{"192.0.2.1", false, false, false},
	{"198.18.0.1", false, false, false},
	{"198.19.255.255", false, false, false},
	{"198.51.100.1", false, false, false},
	{"203.0.113.1", false, false, false},
	{"192.88.99.1", false, false, false},
	{"2001:db8::1", false, false, false},
	{"3fff::1", false, false, false},
	{"100::1", false, false, false},
	{"5f00::1", false, false, false},
	// Addresses of IPv4 in disguise.
	{"::7f00:1", false, false, false},
	{"::10.77.0.2", false, false, false},
	{"64:ff9b::7f00:1", false, false, false},
	{"64:ff9b::a9fe:a9fe", false, false, false},
	{"64:ff9b::a4d:2", false, false, false},
	{"64:ff9b:1::5db8:d70e", false, false, false},
	{"2002:7f00:1::1", false, false, false},
	{"2002:5db8:d70e::1", false, false, false},
	{"2001:0:4136:e378:8000:63bf:3fff:fdd2", false, false, false},
	{"2606:2800::5efe:7f00:1", false, false, false},
	{"2606:2800::200:5efe:7f00:1", false, false, false},
	{"fe80::1%eth0", false, false, false},
}

func TestJudge(t *testing.T) {
	private := []netip.Prefix{netip.MustParsePrefix("10.77.0.0/16"), netip.MustParsePrefix("fd01::/16"),
		netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("fd00:ec2::/32")}
	all := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
	for _, test := range addresses {
		addr := netip.MustParseAddr(test.addr)
		for _, c := range []struct {
			name string
			with []netip.Prefix
			want bool
		}{{"nothing", nil, test.plain}, {"some", private, test.private}, {"everything", all, test.every}} {
			if err := upstream.Judge(addr, c.with); (err == nil) != c.want {
				t.Errorf("%s with %s opened: %v", test.addr, c.name, err)
			}
		}
	}
	if upstream.Judge(netip.Addr{}, all) == nil {
		t.Error("no address at all was allowed")
	}
}
