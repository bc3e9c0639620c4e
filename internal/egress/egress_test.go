package egress

import (
	"net/netip"
	"net/url"
	pathpkg "path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"glovebox"
)

func TestParseHost(t *testing.T) {
	long := strings.Repeat("a", 63)
	for in, want := range map[string]string{
		"good.test": "good.test", "GOOD.test": "good.test", "good.test.": "good.test", "a_b.good.test": "a_b.good.test",
		"xn--bcher-kva.test": "xn--bcher-kva.test", long + ".test": long + ".test", "1password.com": "1password.com", "localhost": "localhost",
		"0xyz.test": "0xyz.test", "3com": "3com",
	} {
		if h, err := ParseHost(in); err != nil || h.String() != want {
			t.Errorf("ParseHost(%q) = %v, %v; want %s", in, h, err, want)
		}
	}
	for _, in := range []string{
		"", ".", "..", "good.test..", ".good.test", "good..test", " good.test", "good.test ", "good.test\x00.x", "good.test%00.x",
		"good.test\x00.evil.test", "good.test@evil.test", "good.test:443", "good.test/", "b\u00fccher.test", "g\u043eod.test", "good\uff0etest",
		"good\u3002test", long + "a.test", strings.Repeat("abcdefg.", 32) + "test", "-good.test", "good-.test", "127.0.0.1", "2130706433", "0x7f.1",
		"0177.0.0.1", "127.1", "0", "0.0.0.0", "0x7f000001", "good.0x", "good.test.123", "::1", "[::1]", "*.good.test", "good.test\r\n", "good.test\\",
	} {
		if h, err := ParseHost(in); err == nil {
			t.Errorf("ParseHost(%q) = %v, want an error", in, h)
		}
	}
}

func FuzzParseHost(f *testing.F) {
	for _, s := range []string{"good.test", "GOOD.test.", "a_b-c.x1", "127.1", "xn--a", "\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		h, err := ParseHost(s)
		if err != nil {
			return
		}
		if again, err := ParseHost(h.String()); err != nil || again != h {
			t.Fatalf("%q became %q, which became %q, %v", s, h, again, err)
		}
		if strings.ToLower(strings.TrimSuffix(s, ".")) != h.String() {
			t.Fatalf("%q became %q, which is another name", s, h)
		}
		if _, err := netip.ParseAddr(h.String()); err == nil {
			t.Fatalf("%q is an address", h)
		}
	})
}

func TestParsePattern(t *testing.T) {
	for in, want := range map[string]string{
		"Api.Example.com": "api.example.com", "*.example.com": "*.example.com", "b\u00fccher.example": "xn--bcher-kva.example",
		"*.wild.test": "*.wild.test", "*.octocat.github.io": "*.octocat.github.io", "s3.amazonaws.com": "s3.amazonaws.com",
	} {
		if p, err := ParsePattern(in); err != nil || p.String() != want {
			t.Errorf("ParsePattern(%q) = %v, %v; want %s", in, p, err, want)
		}
	}
	for _, in := range []string{
		"", "*", "*.", "*.com", "*.github.io", "*.s3.amazonaws.com", "*.workers.dev", "*.co.uk", "co.uk", "com", "*evil.com", "good.*", "a.*.com",
		"**.example.com", "*.*.example.com", "localhost", "*.internal", "metadata.google.internal", "printer.local", "intranet", "10.0.0.1",
		"\uff45xample.com", "http://example.com", "example.com:443", "1.2.3.4.in-addr.arpa",
	} {
		if p, err := ParsePattern(in); err == nil {
			t.Errorf("ParsePattern(%q) = %v, want an error", in, p)
		}
	}
}

func host(t *testing.T, s string) Host {
	t.Helper()
	h, err := ParseHost(s)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func compiled(t *testing.T, rules ...glovebox.EgressRule) *Rules {
	t.Helper()
	r, err := Compile(rules)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestConnect(t *testing.T) {
	rules := compiled(t,
		glovebox.EgressRule{Host: "good.test"},
		glovebox.EgressRule{Host: "*.wild.test", Ports: []int{8443}},
		glovebox.EgressRule{Host: "no.wild.test", Deny: true},
		glovebox.EgressRule{Host: "db.test", Protocols: []string{"tcp"}, Ports: []int{5432}},
		glovebox.EgressRule{Host: "pin.test", Protocols: []string{"https"}, Mode: "sni"},
		glovebox.EgressRule{Host: "plain.test"},
		glovebox.EgressRule{Host: "plain.test", Protocols: []string{"https"}, Deny: true},
	)
	for _, tt := range []struct {
		host string
		port uint16
		want []Protocol
		why  Reason
	}{
		{"good.test", 443, []Protocol{HTTPS}, ""},
		{"good.test", 80, []Protocol{HTTP}, ""},
		{"good.test", 22, nil, ReasonPort},
		{"good.test", 0, nil, ReasonPort},
		{"evil.test", 443, nil, ReasonHostNotAllowed},
		{"good.test.evil.test", 443, nil, ReasonHostNotAllowed},
		{"xgood.test", 443, nil, ReasonHostNotAllowed},
		{"a.wild.test", 8443, []Protocol{HTTP, HTTPS}, ""},
		{"a.b.wild.test", 8443, []Protocol{HTTP, HTTPS}, ""},
		{"wild.test", 8443, nil, ReasonHostNotAllowed},
		{"awild.test", 8443, nil, ReasonHostNotAllowed},
		{"no.wild.test", 8443, nil, ReasonHostNotAllowed},
		{"db.test", 5432, []Protocol{TCP}, ""},
		{"db.test", 443, nil, ReasonPort},
		{"pin.test", 443, []Protocol{HTTPS}, ""},
		{"plain.test", 80, []Protocol{HTTP}, ""},
		{"plain.test", 443, nil, ReasonHostNotAllowed},
		{"localhost", 443, nil, ReasonHostNotAllowed},
	} {
		v := rules.Connect(host(t, tt.host), tt.port)
		if v.Allowed != (tt.why == "") || v.Reason != tt.why || !cmp.Equal(v.Protocols, tt.want) {
			t.Errorf("Connect(%s, %d) = %+v; want %v %q", tt.host, tt.port, v, tt.want, tt.why)
		}
	}
	if v := rules.Stream(host(t, "pin.test"), 443, TLS); !v.Allowed || v.Mode != SNI {
		t.Errorf("a pinned client: %+v", v)
	}
	if v := rules.Stream(host(t, "good.test"), 443, HTTP); v.Allowed || v.Reason != ReasonNotHTTPOrTLS {
		t.Errorf("http at 443: %+v", v)
	}
	for _, none := range []*Rules{nil, compiled(t)} {
		if v := none.Connect(host(t, "good.test"), 443); v.Allowed {
			t.Errorf("no rules: %+v", v)
		}
	}
}

func TestRequest(t *testing.T) {
	rules := compiled(t,
		glovebox.EgressRule{ID: "read", Host: "api.test", Methods: []string{"GET"}, Paths: []string{"/v1/**", "/repos/*/issues"}, BodyLimit: 10},
		glovebox.EgressRule{ID: "write", Host: "api.test", Methods: []string{"POST"}, Paths: []string{"/v1/items"}, WebSocket: true},
		glovebox.EgressRule{ID: "never", Host: "api.test", Paths: []string{"/v1/admin/**"}, Deny: true},
	)
	for _, tt := range []struct{ method, path, rule, why string }{
		{"GET", "/v1/items/3", "read", ""},
		{"HEAD", "/v1/items", "read", ""},
		{"GET", "/v1", "read", ""},
		{"GET", "/v2", "read", "path"},
		{"GET", "/repos/a/issues", "read", ""},
		{"GET", "/repos/a/b/issues", "read", "path"},
		{"GET", "/repos//issues", "read", "path"},
		{"POST", "/v1/items", "write", ""},
		{"POST", "/v1/items/3", "write", "path"},
		{"DELETE", "/v1/items", "read", "method"},
		{"GET", "/v1/admin/x", "never", "host-not-allowed"},
		{"GET", "/v1//admin/x", "never", "host-not-allowed"},
		{"GET", "//v1/admin", "never", "host-not-allowed"},
	} {
		v := rules.Request(host(t, "api.test"), 443, HTTPS, tt.method, tt.path)
		if v.Allowed != (tt.why == "") || string(v.Reason) != tt.why || v.Rule != tt.rule {
			t.Errorf("%s %s: %+v, want %s %q", tt.method, tt.path, v, tt.rule, tt.why)
		}
	}
}

// TestEscapedSlashes: what hosts read in different ways passes where no rule asks, is never guessed by a star, and escapes no
// rule that denies.
func TestEscapedSlashes(t *testing.T) {
	rules := compiled(t,
		glovebox.EgressRule{ID: "any", Host: "npm.test"},
		glovebox.EgressRule{ID: "some", Host: "git.test", Paths: []string{"/projects/*/issues", "/p/**", "/projects/group%2Fone/**", "/s*s"}},
		glovebox.EgressRule{ID: "all", Host: "api.test"},
		glovebox.EgressRule{ID: "never", Host: "api.test", Paths: []string{"/v1/Admin/**"}, Deny: true},
	)
	for _, tt := range []struct{ host, path, rule, why string }{
		{"npm.test", "/@scope%2fname", "any", ""},
		{"git.test", "/projects/1/issues", "some", ""},
		{"git.test", "/projects/group%2Fone/issues", "some", ""},
		{"git.test", "/projects/group%2Fone/x/y", "some", ""},
		{"git.test", "/projects/group%2Ftwo/issues", "some", "path"},
		{"git.test", "/projects/..%2F..%2Fadmin/issues", "some", "path"},
		{"git.test", "/p/a/..%2F..%2Fadmin/b", "some", "path"},
		{"git.test", "/p/a/b%5Cc", "some", "path"},
		{"git.test", "/s%2Fs", "some", "path"},
		{"api.test", "/v1/items", "all", ""},
		{"api.test", "/v1/admin", "never", "host-not-allowed"},
		{"api.test", "/v1/ADMIN/x", "never", "host-not-allowed"},
		{"api.test", "/v1%2Fadmin", "never", "host-not-allowed"},
		{"api.test", "/v1%5cadmin/x", "never", "host-not-allowed"},
		{"api.test", "/v1/x%2f..%2fadmin", "never", "host-not-allowed"},
		{"api.test", "/v1/admin;a=b/x", "never", "host-not-allowed"},
		{"api.test", "/v1/admin%3ba/x", "never", "host-not-allowed"},
		{"api.test", "/v1;x/%2fadmin;y", "never", "host-not-allowed"},
		{"api.test", "/v1/x%2f..;a%2fadmin", "never", "host-not-allowed"},
		{"api.test", "/v1/admins", "all", ""},
	} {
		path, err := CanonicalPath(tt.path)
		if err != nil {
			t.Fatal(err)
		}
		v := rules.Request(host(t, tt.host), 443, HTTPS, "GET", path)
		if v.Allowed != (tt.why == "") || string(v.Reason) != tt.why || v.Rule != tt.rule {
			t.Errorf("%s%s: %+v, want %s %q", tt.host, tt.path, v, tt.rule, tt.why)
		}
	}
}

// TestDeniedPathsAreNotBypassed: where requests are not seen, what denies some of them denies them all.
func TestDeniedPathsAreNotBypassed(t *testing.T) {
	deny := glovebox.EgressRule{ID: "never", Host: "a.test", Paths: []string{"/admin/**"}, Deny: true}
	http := deny
	http.Protocols = []string{"http"}
	for name, tt := range map[string]struct {
		allow glovebox.EgressRule
		deny  glovebox.EgressRule
		want  []Protocol
	}{
		"inspected": {glovebox.EgressRule{Host: "a.test"}, deny, []Protocol{HTTPS}},
		"sni":       {glovebox.EgressRule{Host: "a.test", Mode: "sni"}, deny, nil},
		"tls":       {glovebox.EgressRule{Host: "a.test", Protocols: []string{"tls"}}, deny, nil},
		"tcp":       {glovebox.EgressRule{Host: "a.test", Protocols: []string{"tcp"}, Ports: []int{443}}, deny, nil},
		"tcp http":  {glovebox.EgressRule{Host: "a.test", Protocols: []string{"tcp"}, Ports: []int{443}}, http, nil},
		"http sni":  {glovebox.EgressRule{Host: "a.test", Mode: "sni"}, http, []Protocol{HTTPS}},
	} {
		rules := compiled(t, tt.allow, tt.deny)
		v := rules.Connect(host(t, "a.test"), 443)
		if v.Allowed != (tt.want != nil) || !cmp.Equal(v.Protocols, tt.want) {
			t.Errorf("%s: connect %+v", name, v)
		}
		for _, p := range []Protocol{HTTPS, TLS, TCP} {
			want := slices.Contains(tt.want, p) || name == "http sni" && p == TLS
			if v := rules.Stream(host(t, "a.test"), 443, p); v.Allowed != want {
				t.Errorf("%s: %s %+v", name, p, v)
			}
		}
	}
}

// TestStarsEndAtStrangers: a star does not reach names that others have below one's own, unless it denies.
func TestStarsEndAtStrangers(t *testing.T) {
	allow := compiled(t, glovebox.EgressRule{Host: "*.amazonaws.com"}, glovebox.EgressRule{Host: "*.b1.s3.amazonaws.com"})
	deny := compiled(t, glovebox.EgressRule{Host: "mine.s3.amazonaws.com"}, glovebox.EgressRule{Host: "iam.amazonaws.com"},
		glovebox.EgressRule{Host: "*.amazonaws.com", Deny: true}, glovebox.EgressRule{Host: "my.github.io"},
		glovebox.EgressRule{Host: "*.github.io", Deny: true})
	for name, want := range map[string]bool{
		"iam.amazonaws.com": true, "a.iam.amazonaws.com": true, "s3.amazonaws.com": false, "bucket.s3.amazonaws.com": false,
		"x.bucket.s3.amazonaws.com": false, "x.b1.s3.amazonaws.com": true, "amazonaws.com": false,
	} {
		if v := allow.Connect(host(t, name), 443); v.Allowed != want {
			t.Errorf("%s: %+v", name, v)
		}
	}
	for _, name := range []string{"mine.s3.amazonaws.com", "iam.amazonaws.com", "my.github.io"} {
		if v := deny.Connect(host(t, name), 443); v.Allowed {
			t.Errorf("%s: %+v", name, v)
		}
	}
	p, err := ParsePattern("*.amazonaws.com")
	if err != nil {
		t.Fatal(err)
	}
	for asked, want := range map[string]bool{"*.iam.amazonaws.com": true, "*.b1.s3.amazonaws.com": false, "b1.s3.amazonaws.com": false} {
		if q, err := ParsePattern(asked); err != nil || p.Covers(q) != want {
			t.Errorf("covers %s: %v, %v", asked, p.Covers(q), err)
		}
	}
}

func TestExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rules := compiled(t, glovebox.EgressRule{Host: "good.test", Expires: time.Now().Add(time.Hour)})
		if v := rules.Connect(host(t, "good.test"), 443); !v.Allowed || v.Expires.IsZero() {
			t.Errorf("before: %+v", v)
		}
		time.Sleep(time.Hour)
		if v := rules.Connect(host(t, "good.test"), 443); v.Allowed || v.Reason != ReasonExpired {
			t.Errorf("after: %+v", v)
		}
	})
}

func TestCompileRefuses(t *testing.T) {
	for name, r := range map[string]glovebox.EgressRule{
		"wide":       {Host: "*.com"},
		"no host":    {},
		"port":       {Host: "a.test", Ports: []int{70000}},
		"protocol":   {Host: "a.test", Protocols: []string{"ftp"}},
		"method":     {Host: "a.test", Methods: []string{"get"}},
		"connect":    {Host: "a.test", Methods: []string{"CONNECT"}},
		"path":       {Host: "a.test", Paths: []string{"v1"}},
		"dots":       {Host: "a.test", Paths: []string{"/a/../b"}},
		"part stars": {Host: "a.test", Paths: []string{"/a**"}},
		"mode":       {Host: "a.test", Mode: "splice"},
		"blind":      {Host: "a.test", Mode: "sni", Methods: []string{"GET"}},
		"tcp":        {Host: "a.test", Protocols: []string{"tcp"}},
		"loopback":   {Host: "a.test", AllowPrivate: []string{"127.0.0.0/8"}},
		"metadata":   {Host: "a.test", AllowPrivate: []string{"169.254.0.0/16"}},
		"everything": {Host: "a.test", AllowPrivate: []string{"0.0.0.0/0"}},
		"deny mode":  {Host: "a.test", Deny: true, Mode: "sni"},
	} {
		if _, err := Compile([]glovebox.EgressRule{r}); err == nil {
			t.Errorf("%s: compiled", name)
		}
	}
	if _, err := Compile([]glovebox.EgressRule{{ID: "a", Host: "a.test"}, {ID: "a", Host: "b.test"}}); err == nil {
		t.Error("two rules of one id compiled")
	}
}

func TestCanonicalPath(t *testing.T) {
	for in, want := range map[string]string{
		"": "/", "/": "/", "/a/b": "/a/b", "/a/./b": "/a/b", "/a/../b": "/b", "/../..": "/", "/a/b/..": "/a/", "/a/%2e%2e/b": "/b",
		"/@a%2fb": "/@a%2Fb", "/a%5cb": "/a%5Cb", "/x/..%2fb": "/x/..%2Fb",
		"/%61%7e": "/a~", "/a%20b": "/a%20b", "/a%c3%bc": "/a%C3%BC", "/a//b": "/a//b", "/a;v=1/b": "/a;v=1/b", "/a%3fb": "/a%3Fb", "/a%25b": "/a%25b",
	} {
		if got, err := CanonicalPath(in); err != nil || got != want {
			t.Errorf("CanonicalPath(%q) = %q, %v; want %q", in, got, err, want)
		}
	}
	for _, in := range []string{"a", "/a\\b", "/a%00", "/%0d%0a", "/a b", "/\u00fc", "/a%", "/a%2", "/a%zz", "/..;/b", "/.;x/b", "/..%3bx",
		"/%252e%252e/b", "/%25252e", "/a%252fb", "/a?b", "/a#b", "*"} {
		if got, err := CanonicalPath(in); err == nil {
			t.Errorf("CanonicalPath(%q) = %q, want an error", in, got)
		}
	}
}

// FuzzRequest: whatever a server that unescapes, cuts parameters, resolves dots and merges slashes makes of a path, it stays
// where a rule let it go and out of where one did not.
func FuzzRequest(f *testing.F) {
	for _, s := range []string{"/p/a", "/p/..%2fx", "/p//a;b/..", "/p/x/%2e%2e/never", "/p/NEVER;x/y", "/p%5cnever", "/p/..%3b/x"} {
		f.Add(s)
	}
	rules, err := Compile([]glovebox.EgressRule{{Host: "a.test", Paths: []string{"/p/**", "/q/*/r*"}},
		{Host: "a.test", Paths: []string{"/p/never/**"}, Deny: true}})
	if err != nil {
		f.Fatal(err)
	}
	h, _ := ParseHost("a.test")
	parameters := regexp.MustCompile(`;[^/]*`)
	f.Fuzz(func(t *testing.T, s string) {
		canonical, err := CanonicalPath(s)
		if err != nil || !rules.Request(h, 443, HTTPS, "GET", canonical).Allowed {
			return
		}
		plain, err := url.PathUnescape(canonical)
		if err != nil {
			t.Fatal(canonical, err)
		}
		plain = strings.ReplaceAll(plain, `\`, "/")
		for _, seen := range []string{plain, parameters.ReplaceAllString(plain, "")} {
			seen = strings.ToLower(pathpkg.Clean(seen)) + "/"
			if !strings.HasPrefix(seen, "/p/") && !strings.HasPrefix(seen, "/q/") || strings.HasPrefix(seen, "/p/never/") {
				t.Fatalf("%q, which is %q, may be read as %q", s, canonical, seen)
			}
		}
	})
}

func FuzzCanonicalPath(f *testing.F) {
	for _, s := range []string{"/a/../b", "/%2e%2e/", "/a;b/..;", "//", "/%25"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := CanonicalPath(s)
		if err != nil {
			return
		}
		if again, err := CanonicalPath(p); err != nil || again != p {
			t.Fatalf("%q became %q, which became %q, %v", s, p, again, err)
		}
		for segment := range strings.SplitSeq(p, "/") {
			if segment == "." || segment == ".." {
				t.Fatalf("%q became %q", s, p)
			}
		}
	})
}

func TestMatchSegment(t *testing.T) {
	for _, tt := range []struct {
		pattern, s string
		want       bool
	}{
		{"*", "a", true}, {"*", "", false}, {"v*", "v1", true}, {"v*", "v", true}, {"*.json", "a.json", true}, {"*.json", "a.jsonx", false},
		{"a*b*c", "a1b2c", true}, {"a*b*c", "abc", true}, {"a*b*c", "acb", false}, {"a*a", "a", false}, {"x", "x", true}, {"x", "y", false},
	} {
		if got := matchSegment(tt.pattern, tt.s); got != tt.want {
			t.Errorf("matchSegment(%q, %q) = %v", tt.pattern, tt.s, got)
		}
	}
}

func TestSelect(t *testing.T) {
	rules := []glovebox.EgressRule{
		{ID: "api", Host: "api.test", Methods: []string{"GET"}},
		{ID: "wild", Host: "*.wild.test", Ports: []int{443, 8443}},
		{ID: "db", Host: "db.test", Protocols: []string{"tcp"}, Ports: []int{5432}},
		{ID: "pin", Host: "pin.test", Protocols: []string{"https"}, Mode: "sni"},
		{ID: "no", Host: "bad.wild.test", Deny: true},
	}
	deny := rules[4]
	for _, tt := range []struct {
		ask     string
		want    []glovebox.EgressRule
		missing bool
	}{
		{"api.test", []glovebox.EgressRule{{ID: "api", Host: "api.test", Methods: []string{"GET"}, Protocols: []string{"https", "http"}}}, false},
		{"https://api.test", []glovebox.EgressRule{{ID: "api", Host: "api.test", Methods: []string{"GET"}, Protocols: []string{"https"}}}, false},
		{"api.test:8080", nil, true},
		{"tcp://api.test:443", nil, true},
		{"other.test", nil, true},
		{"a.wild.test", []glovebox.EgressRule{{ID: "wild", Host: "a.wild.test", Protocols: []string{"https"}}}, false},
		{"a.wild.test:8443", []glovebox.EgressRule{{ID: "wild", Host: "a.wild.test", Protocols: []string{"https", "http"}, Ports: []int{8443}}}, false},
		{"wild.test", nil, true},
		{"*.api.test", nil, true},
		{"tcp://db.test:5432", []glovebox.EgressRule{{ID: "db", Host: "db.test", Protocols: []string{"tcp"}, Ports: []int{5432}}}, false},
		{"db.test:5432", []glovebox.EgressRule{{ID: "db", Host: "db.test", Protocols: []string{"tcp"}, Ports: []int{5432}}}, false},
		{"tls://pin.test", []glovebox.EgressRule{{ID: "pin", Host: "pin.test", Protocols: []string{"https"}, Mode: "sni"}}, false},
	} {
		ask, err := ParseAsk(tt.ask)
		if err != nil {
			t.Fatal(err)
		}
		got, missing, err := Select(rules, []Ask{ask})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(append([]glovebox.EgressRule{deny}, tt.want...), got); diff != "" || len(missing) == 1 != tt.missing {
			t.Errorf("%s: missing %v, %s", tt.ask, missing, diff)
		}
		if _, err := Compile(got); err != nil {
			t.Errorf("%s: what was selected does not compile: %v", tt.ask, err)
		}
	}
}

func TestParseAskRefuses(t *testing.T) {
	for _, in := range []string{"", "ftp://a.test", "a.test/x", "a.test:0", "a.test:99999", "a.test:+80", "a.test:", "tcp://a.test", "u@a.test",
		"10.0.0.1", "[::1]:80", "*", "*.com", "https://", "a.test:080"} {
		if a, err := ParseAsk(in); err == nil {
			t.Errorf("ParseAsk(%q) = %v", in, a)
		}
	}
}
