package egress

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/net/idna"
	"golang.org/x/net/publicsuffix"
)

// Host is a host's name in its one form: lower case, labels of letters, digits, hyphens and underscores, no dot at the end,
// no address. Hosts are equal when they are the same host. The zero Host is none.
type Host struct{ name string }

// String is the name.
func (h Host) String() string { return h.name }

// What a name may have (RFC 1035, 2.3.4).
const (
	maxName  = 253
	maxLabel = 63
)

// ParseHost reads a name as it comes over a wire: in a query, a server name, an authority. Capitals and one dot at the end
// are all that may differ from the one form. Names of other scripts come as their A-labels.
func ParseHost(wire string) (Host, error) {
	name := strings.TrimSuffix(wire, ".")
	if name == "" {
		return Host{}, errors.New("the name of the host is empty")
	}
	if len(name) > maxName {
		return Host{}, fmt.Errorf("the name of the host has %d bytes, the most is %d", len(name), maxName)
	}
	lower := make([]byte, len(name))
	for i := range len(name) {
		c := name[i]
		switch {
		case 'A' <= c && c <= 'Z':
			c += 'a' - 'A'
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '-', c == '_', c == '.':
		default:
			return Host{}, fmt.Errorf("the name of the host has the byte %q, which no name has", c)
		}
		lower[i] = c
	}
	name = string(lower)
	var last string
	for label := range strings.SplitSeq(name, ".") {
		switch {
		case label == "":
			return Host{}, errors.New("the name of the host has an empty part")
		case len(label) > maxLabel:
			return Host{}, fmt.Errorf("the name of the host has a part of %d bytes, the most is %d", len(label), maxLabel)
		case label[0] == '-' || label[len(label)-1] == '-':
			return Host{}, errors.New("the name of the host has a part that begins or ends with a hyphen")
		}
		last = label
	}
	if isNumber(last) {
		return Host{}, errors.New("the host is an address, or may be read as one; only names are allowed")
	}
	return Host{name}, nil
}

// isNumber is true of what readers of addresses take for the last part of one: 127.1, 0x7f, 017700000001.
func isNumber(label string) bool {
	if hex, ok := strings.CutPrefix(label, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return strings.Trim(label, "0123456789") == ""
}

// reserved are names that mean something of the machine or its network, wherever they are asked. They match no rule.
var reserved = []string{"localhost", "local", "internal", "localdomain", "home.arpa", "arpa", "onion", "invalid"}

// Reserved is true of names that no rule can open: the machine's own, and those of metadata services.
func (h Host) Reserved() bool {
	for _, r := range reserved {
		if h.name == r || strings.HasSuffix(h.name, "."+r) {
			return true
		}
	}
	return !strings.Contains(h.name, ".") // metadata, instance-data, wpad and the like
}

// Pattern is a host of a rule: a name, or all names below one.
type Pattern struct {
	host  Host
	below bool
	// suffix is the public suffix of the names below host that are meant; empty where all are.
	suffix string
}

// String is the pattern as it is configured.
func (p Pattern) String() string {
	if p.below {
		return "*." + p.host.name
	}
	return p.host.name
}

// Exact is the host of a pattern that is one name.
func (p Pattern) Exact() (Host, bool) { return p.host, !p.below }

// Match is true where the pattern means h. *.example.com means a.example.com and a.b.example.com, and not example.com. It
// does not mean names that strangers have below it: *.amazonaws.com is iam.amazonaws.com, and nobody's bucket.
func (p Pattern) Match(h Host) bool {
	if !p.below {
		return h == p.host
	}
	if !strings.HasSuffix(h.name, "."+p.host.name) {
		return false
	}
	if p.suffix == "" {
		return true
	}
	suffix, _ := publicsuffix.PublicSuffix(h.name)
	return suffix == p.suffix
}

// Covers is true where every host that q means p means too.
func (p Pattern) Covers(q Pattern) bool {
	if !p.below {
		return p == q
	}
	return q.below && q.host == p.host || p.Match(q.host)
}

// ParsePattern reads a host of the configuration or of a request: a name, or *. and a name. Names of any script are turned
// into A-labels, if that can be turned back. What would open more than somebody's own names is refused: one label, and what
// the Public Suffix List (publicsuffix.org) says that strangers have names below.
func ParsePattern(configured string) (Pattern, error) { return parsePattern(configured, false) }

// parsePattern reads a pattern; one that denies may be wide, and means every name below it.
func parsePattern(configured string, deny bool) (Pattern, error) {
	name, below := strings.CutPrefix(configured, "*.")
	if strings.Contains(name, "*") {
		return Pattern{}, fmt.Errorf("%.300q: a star stands for the names below one, as in *.example.com", configured)
	}
	name, err := aLabels(name)
	if err != nil {
		return Pattern{}, fmt.Errorf("%.300q: %w", configured, err)
	}
	h, err := ParseHost(name)
	if err != nil {
		return Pattern{}, fmt.Errorf("%.300q: %w", configured, err)
	}
	suffix, icann := publicsuffix.PublicSuffix(h.name)
	switch {
	case deny:
		suffix = ""
	case below && suffix == h.name:
		return Pattern{}, fmt.Errorf("%.300q is too wide: anybody may have a name below %s", configured, h)
	case h.Reserved():
		return Pattern{}, fmt.Errorf("%.300q is a name of a machine's own or of one network's, which no rule opens", configured)
	case suffix == h.name && icann:
		return Pattern{}, fmt.Errorf("%.300q is nobody's host: names of many owners are below it", configured)
	}
	if !below {
		suffix = ""
	}
	return Pattern{host: h, below: below, suffix: suffix}, nil
}

// aLabels turns a name of any script into what goes over the wire.
func aLabels(name string) (string, error) {
	ascii := true
	for i := range len(name) {
		ascii = ascii && name[i] < 0x80
	}
	if ascii {
		return name, nil
	}
	wire, err := idna.Lookup.ToASCII(name)
	if err != nil {
		return "", fmt.Errorf("it is no name of a host: %w", err)
	}
	back, err := idna.Lookup.ToUnicode(wire)
	if err != nil || back != strings.ToLower(name) {
		return "", fmt.Errorf("it is written in more than one way; write %s", wire)
	}
	return wire, nil
}
