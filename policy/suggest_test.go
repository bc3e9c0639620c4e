package policy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"glovebox"
	"glovebox/internal/egress"
)

func flow(host string, port int, layer, reason, method, path string) glovebox.EgressFlow {
	return glovebox.EgressFlow{Host: host, Port: port, Layer: layer, Reason: reason, Allowed: reason == "", Method: method, Path: path}
}

// short is a rule in few words.
func short(r glovebox.EgressRule) string {
	return strings.TrimSpace(fmt.Sprint(r.Host, r.Ports, r.Protocols, r.Methods, r.Paths))
}

func TestSuggest(t *testing.T) {
	var many, deep []glovebox.EgressFlow
	for i := range maxPaths + 1 {
		many = append(many, flow("api.test", 443, "http", "path", "GET", fmt.Sprintf("/items/%d", i)))
		deep = append(deep, flow("api.test", 443, "http", "path", "GET", fmt.Sprintf("/%d/a", i)))
	}
	many = append(many, flow("api.test", 443, "http", "path", "GET", "/items/a%2fb"))
	for name, tt := range map[string]struct {
		flows []glovebox.EgressFlow
		rules []string
		left  string
	}{
		"nothing": {nil, nil, ""},
		"requests": {[]glovebox.EgressFlow{flow("API.test.", 443, "http", "host-not-allowed", "GET", "/v1/a"),
			flow("api.test", 443, "http", "", "GET", "/v1/b"), flow("api.test", 443, "http", "", "HEAD", "/v1/b"),
			flow("api.test", 443, "http", "method", "POST", "/v1/c"), flow("api.test", 443, "tls", "sni", "", "")},
			[]string{"api.test[] [https] [GET] [/v1/a /v1/b]", "api.test[] [https] [POST] [/v1/c]"}, ""},
		"methods alike": {[]glovebox.EgressFlow{flow("a.test", 80, "http", "path", "PUT", "/x"), flow("a.test", 80, "http", "path", "POST", "/x")},
			[]string{"a.test[] [http] [POST PUT] [/x]"}, ""},
		"port": {[]glovebox.EgressFlow{flow("a.test", 8443, "http", "port", "GET", "/x")}, []string{"a.test[8443] [] [GET] [/x]"}, ""},
		"connections": {[]glovebox.EgressFlow{flow("a.test", 443, "tcp", "host-not-allowed", "", ""), flow("db.test", 5432, "tcp", "port", "", ""),
			flow("pin.test", 443, "tls", "client-tls", "", ""), flow("irc.test", 443, "tcp", "not-http-or-tls", "", "")},
			[]string{"a.test[] [https] [] []", "db.test[5432] [tcp] [] []", "irc.test[443] [tcp] [] []", "pin.test[] [tls] [] []"}, ""},
		"many paths":   {many, []string{"api.test[] [https] [GET] [/items/** /items/a%2Fb]"}, ""},
		"many folders": {deep, []string{"api.test[] [https] [GET] []"}, ""},
		"siblings are not one star": {[]glovebox.EgressFlow{flow("a.github.io", 443, "http", "host-not-allowed", "GET", "/"),
			flow("b.github.io", 443, "http", "host-not-allowed", "GET", "/")},
			[]string{"a.github.io[] [https] [GET] [/]", "b.github.io[] [https] [GET] [/]"}, ""},
		"address":     {[]glovebox.EgressFlow{flow("10.0.0.1", 443, "tcp", "ip-literal", "", "")}, nil, "rules are about names"},
		"metadata":    {[]glovebox.EgressFlow{flow("metadata.google.internal", 80, "http", "host-not-allowed", "GET", "/")}, nil, "no rule opens"},
		"a suffix":    {[]glovebox.EgressFlow{flow("co.uk", 80, "http", "host-not-allowed", "GET", "/")}, nil, "no rule opens"},
		"looked up":   {[]glovebox.EgressFlow{flow("a.test", 0, "dns", "host-not-allowed", "", "")}, nil, "nothing was sent"},
		"private":     {[]glovebox.EgressFlow{flow("a.test", 443, "http", "upstream-ip-private", "GET", "/")}, nil, "allow_private"},
		"placeholder": {[]glovebox.EgressFlow{flow("a.test", 443, "http", "secret-wrong-host", "GET", "/")}, nil, "not for"},
		"denied": {[]glovebox.EgressFlow{{Host: "a.test", Port: 443, Layer: "http", Reason: "host-not-allowed", Rule: "never"}}, nil,
			`rule "never" denies it`},
		"the broker": {[]glovebox.EgressFlow{flow("broker.internal", 80, "broker", "", "GET", "/actions")}, nil, ""},
		"odd path":   {[]glovebox.EgressFlow{flow("a.test", 443, "http", "path", "GET", "/a**b")}, nil, "no form"},
	} {
		t.Run(name, func(t *testing.T) {
			s := Suggest(tt.flows)
			var got []string
			var rules []glovebox.EgressRule
			for _, r := range s.Rules {
				got, rules = append(got, short(r.Rule)), append(rules, r.Rule)
				if _, err := egress.ParseAsk(r.Allow); err != nil {
					t.Error(err)
				}
			}
			if diff := cmp.Diff(tt.rules, got); diff != "" {
				t.Error(diff)
			}
			if len(s.Left) > 1 || (len(s.Left) == 1) != (tt.left != "") || tt.left != "" && !strings.Contains(s.Left[0].Why, tt.left) {
				t.Errorf("left %+v", s.Left)
			}
			letThrough(t, rules, tt.flows, s.Left)
		})
	}
	s := Suggest([]glovebox.EgressFlow{flow("a.test", 443, "http", "upstream-failed", "GET", "/"), flow("b.test", 8080, "tcp", "port", "", "")})
	if len(s.Rules) != 2 || s.Rules[0].Refused != 0 || s.Rules[1].Refused != 1 || !s.Rules[1].Guessed {
		t.Errorf("%+v", s)
	}
	if s := Suggest([]glovebox.EgressFlow{{Reason: "host-not-allowed", Count: 7}}); s.Whole || !Suggest(nil).Whole {
		t.Error("what is not known is not told")
	}
}

// letThrough holds rules to what a suggestion promises.
func letThrough(t *testing.T, rules []glovebox.EgressRule, flows []glovebox.EgressFlow, left []LeftOut) {
	t.Helper()
	r, err := egress.Compile(rules)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range flows {
		h, err := egress.ParseHost(f.Host)
		if err != nil || h.Reserved() || len(left) > 0 {
			continue
		}
		if v := r.Connect(h, uint16(f.Port)); !v.Allowed {
			t.Errorf("%+v is not let through", f)
		}
		path, _ := egress.CanonicalPath(f.Path)
		p := map[int]egress.Protocol{80: egress.HTTP}[f.Port]
		if p == "" {
			p = egress.HTTPS
		}
		if v := r.Request(h, uint16(f.Port), p, f.Method, path); f.Method != "" && !v.Allowed {
			t.Errorf("%+v is not let through: %+v", f, v)
		}
		for _, other := range []string{"DELETE"} {
			if v := r.Request(h, uint16(f.Port), p, other, path); f.Method != "" && v.Allowed {
				t.Errorf("%s of %+v would be let through too", other, f)
			}
		}
	}
}
