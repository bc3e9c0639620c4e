package egress

import (
	"testing"

	"glovebox"
)

// FuzzSelect: what is selected of rules allows nothing that they do not, and nothing that was not asked for.
func FuzzSelect(f *testing.F) {
	for _, s := range []string{"\x00\x01\x02\x03", "\x10\x21\x32\x43\x54\x65", "\x0f\x0e\x0d\x0c\x0b\x0a\x09\x08\x07\x06\x05"} {
		f.Add([]byte(s))
	}
	patterns := []string{"a.test", "b.a.test", "*.a.test", "*.b.a.test", "*.amazonaws.com", "x.s3.amazonaws.com"}
	ports := [][]int{nil, {443}, {80}, {8443}, {80, 443, 5432}}
	protocols := [][]string{nil, {"https"}, {"http"}, {"tls"}, {"tcp"}, {"https", "tls"}}
	modes := []string{"", "sni"}
	f.Fuzz(func(t *testing.T, b []byte) {
		next := func(n int) int {
			if len(b) == 0 {
				return 0
			}
			v := int(b[0]) % n
			b = b[1:]
			return v
		}
		var rules []glovebox.EgressRule
		for range 1 + next(4) {
			r := glovebox.EgressRule{Host: patterns[next(len(patterns))], Ports: ports[next(len(ports))],
				Protocols: protocols[next(len(protocols))], Deny: next(4) == 1}
			if !r.Deny {
				r.Mode = modes[next(2)]
			}
			if _, err := Compile([]glovebox.EgressRule{r}); err == nil {
				rules = append(rules, r)
			}
		}
		said := []string{"", "https://", "http://", "tls://", "tcp://"}[next(5)] + patterns[next(len(patterns))] + []string{"", ":443", ":80",
			":8443", ":5432"}[next(5)]
		ask, err := ParseAsk(said)
		if err != nil {
			return
		}
		whole, err := Compile(rules)
		if err != nil {
			t.Fatal(err)
		}
		selected, _, err := Select(rules, []Ask{ask})
		if err != nil {
			t.Fatal(err)
		}
		got, err := Compile(selected)
		if err != nil {
			t.Fatalf("%s of %+v: %+v: %v", said, rules, selected, err)
		}
		rule := ask.Rule()
		if len(ask.protocols) == 0 && ask.port != 0 { // whatever the rule speaks there
			rule.Protocols = []string{"https", "http", "tls", "tcp"}
		}
		asked := compiled(t, rule)
		for _, name := range []string{"a.test", "b.a.test", "c.b.a.test", "iam.amazonaws.com", "x.s3.amazonaws.com", "y.x.s3.amazonaws.com"} {
			for _, port := range []uint16{80, 443, 8443, 5432} {
				holds(t, host(t, name), port, got, whole, asked)
			}
		}
	})
}

// holds compares what got allows at a place with the rules that it is of and with what was asked for.
func holds(t *testing.T, h Host, port uint16, got, whole, asked *Rules) {
	t.Helper()
	for _, p := range []Protocol{HTTP, HTTPS, TLS, TCP} {
		v := got.Stream(h, port, p)
		if !v.Allowed {
			continue
		}
		if w := whole.Stream(h, port, p); !w.Allowed {
			t.Fatalf("%s %s:%d is not in the rules: %+v, %+v", p, h, port, v, w)
		}
		// What is judged by its server name alone is the same as TLS.
		blind := v.Mode == SNI && (p == TLS && asked.Stream(h, port, HTTPS).Allowed || p == HTTPS && asked.Stream(h, port, TLS).Allowed)
		if !asked.Stream(h, port, p).Allowed && !blind {
			t.Fatalf("%s %s:%d was not asked for: %+v", p, h, port, v)
		}
	}
}
