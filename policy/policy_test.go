package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"glovebox"
)

var (
	owner    = glovebox.Principal{Tenant: "local", Name: "root", Owner: true}
	stranger = glovebox.Principal{Tenant: "acme", Name: "agent"}
)

func mustNew(t testing.TB, c Config) *Policy {
	t.Helper()
	p, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// basic is a policy for which the process rung will do, whatever is not about rungs.
func basic(t testing.TB) *Policy {
	return mustNew(t, Config{TrustRungs: map[glovebox.Trust]glovebox.Isolation{"influenced": "process"}})
}

// process is a machine that has this rung alone.
var process = having("process")

// having is a machine that has some rungs, and whose remote has the same.
func having(rungs ...glovebox.Isolation) Machine {
	return func(rung, at glovebox.Isolation) error {
		if rung != glovebox.IsolationRemote && at != rung || at == glovebox.IsolationRemote || at.Rank() < 1 {
			return fmt.Errorf("%s is asked for at %s", rung, at) // which is no refusal of a machine's
		}
		if slices.Contains(rungs, rung) {
			return nil
		}
		return glovebox.Errorf(glovebox.CodeUnavailable, "install "+string(rung), "there is no %s here", rung)
	}
}

// wellFormed checks what holds of every decision.
func wellFormed(t testing.TB, p *Policy, req glovebox.Request, d glovebox.Decision) {
	t.Helper()
	if d.Rule == "" || d.Reason == "" {
		t.Fatalf("no rule or no reason: %+v", d)
	}
	if !d.Allow {
		if d.Code == "" || d.Fix == "" || !reflect.DeepEqual(d.Grant, glovebox.Grant{}) {
			t.Fatalf("a refusal has a code, a fix and no grant: %+v", d)
		}
		return
	}
	g := d.Grant
	if d.Code != "" || d.Fix != "" || g.Image == "" || !g.Trust.Valid() {
		t.Fatalf("malformed grant: %+v", d)
	}
	if far := g.Isolation == glovebox.IsolationRemote; far != (g.AtLeast != "") || far && (g.AtLeast.Rank() < 1 ||
		p.rungs[g.Trust] != glovebox.IsolationRemote && g.AtLeast.Rank() < p.rungs[g.Trust].Rank()) {
		t.Fatalf("of a remote %s is demanded for %s code", g.AtLeast, g.Trust)
	}
	if g.Isolation.Rank() < 1 || g.Isolation.Rank() < p.rungs[g.Trust].Rank() || g.Isolation.Rank() < req.Isolation.Rank() {
		t.Fatalf("rung %s is below what trust %s or the request demands", g.Isolation, g.Trust)
	}
	got, low, ceil := cells(&g.Limits), cells(&least), cells(&p.limits.Ceiling)
	for i, c := range got {
		if !c.finite() || c.below(low[i]) || ceil[i].below(c) {
			t.Fatalf("limit %s is %s, outside %s..%s", limitNames[i], c, low[i], ceil[i])
		}
	}
}

func TestDefaults(t *testing.T) {
	got := mustNew(t, Config{}).Decide(owner, glovebox.Request{Code: "print(1)"}, having("process", "gvisor", "microvm"))
	want := glovebox.Decision{
		Allow: true, Asked: "auto", Rule: "trust.influenced", Reason: "influenced code needs at least the gvisor rung",
		Grant: glovebox.Grant{Isolation: glovebox.IsolationGVisor, Trust: glovebox.TrustInfluenced, Image: "host",
			Limits: glovebox.Limits{
				Wall: 60 * time.Second, CPU: 30 * time.Second, CPUs: 1, Memory: 512 << 20, Disk: 256 << 20, Files: 20000,
				OpenFiles: 1024, Processes: 128, Egress: 100 << 20, Output: 64 << 20, View: 16 << 10,
			}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestRungs is the truth table of trust, asked isolation, the tenant's rungs and what is available: a rung that is named, and
// not below what trust needs, is delivered or refused; else it is the lowest that the tenant may have and there is.
func TestRungs(t *testing.T) {
	rungs := []glovebox.Isolation{"process", "gvisor", "microvm", "remote"}
	maps := []map[glovebox.Trust]glovebox.Isolation{
		nil, {"influenced": "gvisor"}, {"trusted": "microvm"}, {"hostile": "remote", "model": "gvisor"},
	}
	of := func(mask int) (some []glovebox.Isolation) {
		for i, r := range rungs {
			if mask&(1<<i) != 0 {
				some = append(some, r)
			}
		}
		return some
	}
	cases := 0
	for _, m := range maps {
		for own := range 16 {
			tenants := map[string][]glovebox.Isolation{}
			if own != 0 { // else the tenant is not bounded
				tenants[stranger.Tenant] = of(own)
			}
			p := mustNew(t, Config{TrustRungs: m, Tenants: tenants})
			for mask := range 16 {
				for _, trust := range []glovebox.Trust{"", "trusted", "model", "influenced", "hostile"} {
					for _, asked := range append([]glovebox.Isolation{"", "auto"}, rungs...) {
						cases++
						req := glovebox.Request{Code: "1", Trust: trust, Isolation: asked}
						d := p.Decide(stranger, req, having(of(mask)...))
						wellFormed(t, p, req, d)
						effective := trust
						if effective == "" {
							effective = glovebox.TrustInfluenced
						}
						allowed, want := 0, glovebox.Isolation("")
						for i, r := range rungs {
							will := i+1 >= p.rungs[effective].Rank() && (own == 0 || own&(1<<i) != 0)
							if asked.Rank() >= p.rungs[effective].Rank() {
								will = will && r == asked
							}
							if will {
								allowed++
							}
							if will && mask&(1<<i) != 0 && want == "" {
								want = r
							}
						}
						code := glovebox.Code("")
						switch {
						case allowed == 0:
							code = glovebox.CodeDenied
						case want == "":
							code = glovebox.CodeUnavailable
						}
						if d.Grant.Isolation != want || d.Code != code || d.Asked != max(asked, "auto") {
							t.Fatalf("%v own %b there %b trust %q asked %q: %+v, want %q %q", m, own, mask, trust, asked, d, want, code)
						}
					}
				}
			}
		}
	}
	if cases != 4*16*16*5*6 {
		t.Fatal(cases)
	}
}

type world struct {
	config Config
	who    glovebox.Principal
	can    Machine
}

// why is a decision and what must be said of it.
type why struct {
	world
	req         glovebox.Request
	got         glovebox.Isolation
	atLeast     glovebox.Isolation
	rule        string
	reason, fix []string
	not         string // is in no fix
}

func whys() map[string]why {
	strict := Config{TrustRungs: map[glovebox.Trust]glovebox.Isolation{"influenced": "gvisor"}}
	bounded := strict
	bounded.Tenants = map[string][]glovebox.Isolation{"acme": {"microvm", "gvisor"}, "vm": {"microvm"}, "low": {"process"},
		"far": {"remote", "microvm"}}
	demanding := strict
	demanding.Remote = "microvm"
	emulated := strict
	emulated.OnlyNamed = []glovebox.Isolation{"microvm"}
	all := having("process", "gvisor", "microvm", "remote")
	tenant := func(name string) glovebox.Principal { return glovebox.Principal{Tenant: name, Name: "agent"} }
	return map[string]why{
		"by trust": {world{strict, owner, all}, glovebox.Request{}, "gvisor", "", "trust.influenced", []string{"influenced code needs"}, nil, ""},
		"raised": {world{strict, owner, all}, glovebox.Request{Isolation: "microvm", Trust: "model"}, "microvm", "", "isolation.raised",
			[]string{"asked for the microvm rung", "process rung that model code needs"}, nil, ""},
		"a floor": {world{strict, owner, all}, glovebox.Request{Isolation: "process", Trust: "influenced"}, "gvisor", "", "trust.influenced",
			[]string{"floor and lowers nothing"}, nil, ""},
		"a floor, and the next": {world{strict, owner, having("process", "microvm")}, glovebox.Request{Isolation: "process"}, "microvm", "",
			"isolation.available", []string{"gvisor is not available here, and microvm is the lowest"}, nil, ""},
		"the next": {world{strict, owner, having("process", "microvm")}, glovebox.Request{}, "microvm", "", "isolation.available",
			[]string{"gvisor is not available here"}, nil, ""},
		"named is not replaced": {world{strict, owner, having("process", "microvm")}, glovebox.Request{Isolation: "gvisor"}, "", "",
			"isolation.unavailable", []string{"there is no gvisor here"}, []string{"install gvisor", "--isolation microvm"}, "process"},
		"nothing will do": {world{strict, owner, process}, glovebox.Request{}, "", "", "isolation.unavailable",
			[]string{"influenced code needs at least the gvisor rung", "there is no gvisor here"},
			[]string{"install gvisor", "--trust model --isolation process"}, ""},
		"and was stated": {world{strict, owner, process}, glovebox.Request{Trust: "influenced"}, "", "", "isolation.unavailable", nil,
			[]string{"install gvisor", "say so with --trust"}, "model"},
		"no trust goes lower": {world{strict, owner, having()}, glovebox.Request{Trust: "model"}, "", "", "isolation.unavailable", nil,
			[]string{"install process"}, "--trust"},
		"hostile is never said to be more": {world{strict, owner, process}, glovebox.Request{Trust: "hostile"}, "", "",
			"isolation.unavailable", nil, []string{"--trust"}, "model"},
		"nothing at all": {world{strict, owner, having()}, glovebox.Request{}, "", "", "isolation.unavailable", nil,
			[]string{"install gvisor"}, "model"},
		"no machine": {world{strict, owner, nil}, glovebox.Request{}, "", "", "isolation.unavailable", nil, []string{"doctor"}, ""},
		"of a tenant": {world{bounded, tenant("vm"), all}, glovebox.Request{}, "microvm", "", "tenant.rungs",
			[]string{`lowest of those that the tenant "vm" may have is microvm`}, nil, ""},
		"a tenant's lowest is there": {world{bounded, tenant("acme"), all}, glovebox.Request{Trust: "trusted"}, "gvisor", "", "tenant.rungs",
			nil, nil, ""},
		"not a tenant's": {world{bounded, tenant("acme"), all}, glovebox.Request{Trust: "model", Isolation: "process"}, "", "", "tenant.rungs",
			[]string{`the tenant "acme" may not have`}, []string{"--isolation gvisor or microvm", "add process"}, ""},
		"none is high enough": {world{bounded, tenant("low"), all}, glovebox.Request{}, "", "", "tenant.rungs",
			[]string{`the tenant "low" may have none`}, []string{"add gvisor"}, "model"},
		"no bound": {world{bounded, tenant("other"), all}, glovebox.Request{Trust: "model"}, "process", "", "trust.model", nil, nil, ""},
		"far":      {world{strict, owner, having("process", "remote")}, glovebox.Request{}, "remote", "gvisor", "isolation.available", nil, nil, ""},
		"far, by name": {world{strict, owner, all}, glovebox.Request{Isolation: "remote", Trust: "trusted"}, "remote", "process",
			"isolation.raised", []string{"must deliver at least the process rung"}, nil, ""},
		"far, as demanded": {world{demanding, owner, all}, glovebox.Request{Isolation: "remote", Trust: "trusted"}, "remote", "microvm",
			"isolation.raised", nil, nil, ""},
		"far, as the tenant": {world{bounded, tenant("far"), all}, glovebox.Request{Isolation: "remote", Trust: "trusted"}, "remote", "microvm",
			"isolation.raised", nil, nil, ""},
		"emulated, unasked": {world{emulated, owner, having("process", "microvm")}, glovebox.Request{}, "", "", "isolation.unavailable",
			[]string{"there is no gvisor here"}, []string{"install gvisor"}, "microvm"},
		"emulated, for nobody's code": {world{emulated, owner, all}, glovebox.Request{Trust: "hostile"}, "remote", "microvm",
			"isolation.available", []string{"microvm is not available here"}, nil, ""},
		"emulated, alone": {world{emulated, owner, having("microvm")}, glovebox.Request{Trust: "hostile"}, "", "", "isolation.unavailable",
			[]string{"only emulated here"}, []string{"name it: --isolation microvm"}, ""},
		"emulated, by name": {world{emulated, owner, having("microvm")}, glovebox.Request{Trust: "hostile", Isolation: "microvm"}, "microvm",
			"", "trust.hostile", nil, nil, ""},
		"a demand lowers nothing": {world{Config{Remote: "process"}, owner, having("remote")}, glovebox.Request{Trust: "hostile"}, "remote",
			"microvm", "isolation.available", nil, nil, ""},
	}
}

// TestWhy: each decision says which rule made it, and a refusal what mends it.
func TestWhy(t *testing.T) {
	for name, c := range whys() {
		t.Run(name, func(t *testing.T) {
			c.req.Code = "1"
			p := mustNew(t, c.config)
			d := p.Decide(c.who, c.req, c.can)
			wellFormed(t, p, c.req, d)
			if d.Grant.Isolation != c.got || d.Grant.AtLeast != c.atLeast || d.Rule != c.rule {
				t.Errorf("%+v", d)
			}
			for _, part := range c.reason {
				if !strings.Contains(d.Reason, part) {
					t.Errorf("the reason %q lacks %q", d.Reason, part)
				}
			}
			for _, part := range c.fix {
				if !strings.Contains(d.Fix, part) {
					t.Errorf("the fix %q lacks %q", d.Fix, part)
				}
			}
			if c.not != "" && strings.Contains(d.Fix, c.not) {
				t.Errorf("the fix %q advises %q", d.Fix, c.not)
			}
		})
	}
}

// TestOddLimits gives each limit values that must not pass for an amount; RS-40 of the battery.
func TestOddLimits(t *testing.T) {
	p := basic(t)
	for i, name := range limitNames {
		isFraction := cells(&glovebox.Limits{})[i].part != nil
		wholes := []int64{-1, -1 << 62, math.MinInt64, math.MaxInt64, 1e18}
		parts := []float64{-1, math.NaN(), math.Inf(1), math.Inf(-1), 1e18, 1e-300, math.Copysign(1e-9, -1)}
		try := func(set func(cell)) {
			req := glovebox.Request{Code: "1"}
			c := cells(&req.Limits)[i]
			set(c)
			d := p.Decide(owner, req, process)
			wellFormed(t, p, req, d)
			if d.Allow || d.Code != glovebox.CodeInvalid && d.Code != glovebox.CodeDenied {
				t.Errorf("%s %s: %+v", name, c, d)
			}
			if !strings.Contains(d.Reason, limitFlags[i]) || !strings.Contains(d.Fix, limitFlags[i]) {
				t.Errorf("%s: reason or fix does not name %s: %+v", name, limitFlags[i], d)
			}
			if d.Code == glovebox.CodeDenied && !strings.Contains(d.Fix, "policy.limits.ceiling."+name) {
				t.Errorf("%s: the fix does not name the key: %s", name, d.Fix)
			}
		}
		if isFraction {
			for _, v := range parts {
				try(func(c cell) { *c.part = v })
			}
			continue
		}
		for _, v := range wholes {
			try(func(c cell) { *c.whole = v })
		}
	}
}

// TestLimitEdges: exactly the least and exactly the ceiling are granted, one step outside is not.
func TestLimitEdges(t *testing.T) {
	p := basic(t)
	for i, name := range limitNames {
		for _, edge := range []struct {
			at    *glovebox.Limits
			step  int64
			allow bool
		}{{&least, 0, true}, {&least, -1, false}, {&p.limits.Ceiling, 0, true}, {&p.limits.Ceiling, 1, false}} {
			req := glovebox.Request{Code: "1"}
			c := cells(&req.Limits)[i]
			c.set(cells(edge.at)[i])
			if c.part != nil {
				*c.part += float64(edge.step) / 1000
			} else if *c.whole += edge.step; *c.whole == 0 {
				continue // zero is the default
			}
			if d := p.Decide(owner, req, process); d.Allow != edge.allow {
				t.Errorf("%s %s: %+v", name, c, d)
			}
		}
	}
}

// TestPairsOfOptions sets two options at a time and demands that every other limit stays as it was; CF-04 of the battery.
func TestPairsOfOptions(t *testing.T) {
	p, both := mustNew(t, Config{}), having("process", "gvisor", "microvm")
	plainGrant := p.Decide(owner, glovebox.Request{Code: "1"}, both).Grant
	type option struct {
		name  string
		limit int // index, or -1
		set   func(*glovebox.Request)
	}
	var options []option
	for i, name := range limitNames {
		for kind, from := range map[string]*glovebox.Limits{"least": &least, "ceiling": &p.limits.Ceiling} {
			options = append(options, option{name + " " + kind, i, func(r *glovebox.Request) {
				cells(&r.Limits)[i].set(cells(from)[i])
			}})
		}
	}
	for name, set := range map[string]func(*glovebox.Request){
		"trust":     func(r *glovebox.Request) { r.Trust = "trusted" },
		"hostile":   func(r *glovebox.Request) { r.Trust = "hostile" },
		"isolation": func(r *glovebox.Request) { r.Isolation = "process" },
		"raised":    func(r *glovebox.Request) { r.Isolation = "gvisor" },
		"image":     func(r *glovebox.Request) { r.Image = "host" },
		"lang":      func(r *glovebox.Request) { r.Lang = "bash" },
		"env":       func(r *glovebox.Request) { r.Env = map[string]string{"PATH": "/x"} },
		"stdin":     func(r *glovebox.Request) { r.Stdin = "x" },
		"inputs":    func(r *glovebox.Request) { r.Inputs = []glovebox.Input{{Name: "a", Content: "x"}} },
		"args":      func(r *glovebox.Request) { r.Args = []string{"--wall", "0"} },
		"collect":   func(r *glovebox.Request) { r.Collect = true },
	} {
		options = append(options, option{name, -1, set})
	}
	for _, a := range options {
		for _, b := range options {
			req := glovebox.Request{Code: "1"}
			a.set(&req)
			b.set(&req)
			d := p.Decide(owner, req, both)
			wellFormed(t, p, req, d)
			if !d.Allow {
				t.Fatalf("%s with %s: %+v", a.name, b.name, d)
			}
			got, plain, want := cells(&d.Grant.Limits), cells(&plainGrant.Limits), cells(&req.Limits)
			for i := range got {
				expect := plain[i]
				if i == a.limit || i == b.limit {
					expect = want[i]
				}
				if got[i].String() != expect.String() {
					t.Errorf("%s with %s: %s is %s, want %s", a.name, b.name, limitNames[i], got[i], expect)
				}
			}
		}
	}
}

func TestNewRefuses(t *testing.T) {
	for _, c := range []struct {
		name, key string
		config    Config
	}{
		{"trust typo", "policy.trust.influence", Config{TrustRungs: map[glovebox.Trust]glovebox.Isolation{"influence": "gvisor"}}},
		{"rung typo", "policy.trust.hostile", Config{TrustRungs: map[glovebox.Trust]glovebox.Isolation{"hostile": "gviser"}}},
		{"auto is no rung", "policy.trust.model", Config{TrustRungs: map[glovebox.Trust]glovebox.Isolation{"model": "auto"}}},
		{"less trust, lower rung", "policy.trust.hostile",
			Config{TrustRungs: map[glovebox.Trust]glovebox.Isolation{"model": "gvisor", "hostile": "process"}}},
		{"remote of a remote", "drivers.remote.isolation", Config{Remote: "remote"}},
		{"demand typo", "drivers.remote.isolation", Config{Remote: "gviser"}},
		{"tenant without a name", "tenants", Config{Tenants: map[string][]glovebox.Isolation{"": {"process"}}}},
		{"tenant without rungs", "tenants", Config{Tenants: map[string][]glovebox.Isolation{"acme": nil}}},
		{"tenant with auto", "tenants", Config{Tenants: map[string][]glovebox.Isolation{"acme": {"auto"}}}},
		{"negative", "policy.limits.default.wall", Config{Limits: Limits{Default: glovebox.Limits{Wall: -1}}}},
		{"not a number", "policy.limits.ceiling.cpus", Config{Limits: Limits{Ceiling: glovebox.Limits{CPUs: math.NaN()}}}},
		{"endless", "policy.limits.ceiling.memory", Config{Limits: Limits{Ceiling: glovebox.Limits{Memory: math.MaxInt64}}}},
		{"default above ceiling", "policy.limits.default.disk",
			Config{Limits: Limits{Default: glovebox.Limits{Disk: 2 << 20}, Ceiling: glovebox.Limits{Disk: 1 << 20}}}},
		{"default above built-in ceiling", "policy.limits.default.view",
			Config{Limits: Limits{Default: glovebox.Limits{View: 2 << 20}}}},
		{"relative root", "policy.input_roots", Config{InputRoots: []string{"srv/in"}}},
		{"tilde", "policy.input_roots", Config{InputRoots: []string{"~/in"}}},
		{"variable", "policy.input_roots", Config{InputRoots: []string{"/home/$USER"}}},
		{"pattern", "policy.input_roots", Config{InputRoots: []string{"/srv/*"}}},
		{"dots", "policy.input_roots", Config{InputRoots: []string{"/srv/../etc"}}},
		{"trailing slash", "policy.input_roots", Config{InputRoots: []string{"/srv/in/"}}},
		{"root", "policy.input_roots", Config{InputRoots: []string{"/"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := New(c.config)
			var e *glovebox.Error
			if p != nil || !errors.As(err, &e) || e.Op != c.key || e.Fix == "" || e.Code != glovebox.CodeInvalid {
				t.Errorf("got %v, %#v", p, err)
			}
		})
	}
}

func TestConfigured(t *testing.T) {
	p := mustNew(t, Config{
		TrustRungs: map[glovebox.Trust]glovebox.Isolation{"trusted": "microvm"},
		Limits:     Limits{Ceiling: glovebox.Limits{Wall: 10 * time.Second}},
	})
	for _, trust := range trustWords {
		if got := p.rungs[glovebox.Trust(trust)]; got != "microvm" {
			t.Errorf("%s maps to %s, below what more trusted code gets", trust, got)
		}
	}
	if got := p.limits.Default.Wall; got != 10*time.Second {
		t.Errorf("the built-in default is %s, above the ceiling", got)
	}
	if p.rungs["nobody"] != "" {
		t.Error("an unknown trust has a rung")
	}
	if d := (&Policy{}).Decide(owner, glovebox.Request{Code: "1"}, process); d.Allow {
		t.Error("the zero policy permits something")
	}
}

func FuzzDecide(f *testing.F) {
	f.Add([]byte(`{"code":"print(1)"}`), true)
	f.Add([]byte(`{"argv":["ls","-l"],"trust":"hostile","isolation":"process","limits":{"wall_ms":-1}}`), false)
	f.Add([]byte(`{"lang":"node","code":"1","inputs":[{"name":"a/b","path":"../x"},{"name":"a","content":"y"}]}`), false)
	f.Add([]byte(`{"code":"1","limits":{"cpus":1e308,"memory_bytes":9223372036854775807}}`), true)
	f.Add([]byte(`{"code":"1","env":{"A=B":"c"},"args":["\u0000"]}`), true)
	p := mustNew(f, Config{InputRoots: []string{"/srv/in", "/srv/b"}})
	f.Fuzz(func(t *testing.T, body []byte, isOwner bool) {
		var req glovebox.Request
		if json.Unmarshal(body, &req) != nil {
			return
		}
		who := stranger
		who.Owner = isOwner
		can := having("process", "microvm")
		d := p.Decide(who, req, can)
		wellFormed(t, p, req, d)
		if again := p.Decide(who, req, can); fmt.Sprint(d) != fmt.Sprint(again) {
			t.Fatalf("decided differently: %+v and %+v", d, again)
		}
		if !d.Allow {
			return
		}
		for _, in := range req.Inputs {
			if in.Path == "" {
				continue
			}
			place, err := p.Place(who, in)
			if err != nil {
				t.Fatalf("allowed, then not placed: %v", err)
			}
			if !isOwner && (place.Root == "" || strings.HasPrefix(place.Path, "/") || strings.Contains("/"+place.Path+"/", "/../")) {
				t.Fatalf("%q leaves its root: %+v", in.Path, place)
			}
		}
	})
}
