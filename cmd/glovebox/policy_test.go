package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"glovebox"
	"glovebox/policy"
)

const permits = `policy:
  egress:
    rules:
      - {id: api, host: api.example.com, methods: [GET], paths: [/v1/**]}
      - {host: pastebin.com}
      - {id: never, host: bad.example.com, deny: true}
    allow_private: [10.0.0.0/8]
tenants:
  - {name: acme, rungs: [gvisor], egress: {rules: [{host: own.example.com}]}, secrets: []}
`

func TestPolicyShow(t *testing.T) {
	tl := newTool(t)
	tl.write(t, "c.yaml", permits)
	exit, out, errs := tl.run("policy", "show", "--config", "c.yaml")
	if exit != 0 || errs != "" {
		t.Fatal(exit, errs)
	}
	for _, want := range []string{
		"configuration: ", "c.yaml\n", "gvisor or stronger", "\n  - {id: \"api\", host: \"api.example.com\", methods: [GET], " +
			"paths: [\"/v1/**\"], allow_private: [\"10.0.0.0/8\"]}\n", `{id: "never", host: "bad.example.com", deny: true}`,
		"of tenant acme\n  - {id: \"never\"", `{id: "tenants.acme.egress.rules.1", host: "own.example.com"`,
		"\nwarning: policy.egress.rules.2: anybody may have a place at pastebin.com", "secrets none",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("without %q:\n%s", want, out)
		}
	}
	if strings.Count(out, "api.example.com") != 1 {
		t.Errorf("a tenant with rules of its own has others:\n%s", out)
	}
	var r policyReport
	_, out, _ = tl.run("policy", "show", "--config", "c.yaml", "--json")
	if err := json.Unmarshal([]byte(out), &r); err != nil || len(r.Rules) != 3 || len(r.Warnings) != 1 || len(r.RulesOf["acme"]) != 2 ||
		r.Trust["influenced"] != "gvisor" || r.SecretsOf["acme"] == nil {
		t.Errorf("%v %s", err, out)
	}
	if exit, out, _ = tl.run("policy", "show"); exit != 0 || !strings.Contains(out, "built-in defaults") || !strings.Contains(out, "  nothing\n") {
		t.Errorf("%d %s", exit, out)
	}
}

// tried is what a run tried, a part of which would act on a terminal or on a configuration.
func tried() []glovebox.EgressFlow {
	evil := "\x1b[2Ja\nrules: []\u202e"
	return []glovebox.EgressFlow{
		{Host: "api.example.com", Port: 443, Layer: "http", Reason: "host-not-allowed", Method: "GET", Path: "/v1/a,b:[c]'&*", Count: 3},
		{Host: "api.example.com", Port: 443, Layer: "http", Allowed: true, Rule: evil, Method: "POST", Path: "/v1/x", BytesUp: 5, BytesDown: 7},
		{Host: "db.example.com", Port: 5432, Layer: "tcp", Reason: "port"},
		{Host: "1.e5.example", Port: 8443, Layer: "http", Reason: "port", Method: "GET", Path: "/"},
		{Host: evil, Port: 443, Layer: "dns", Reason: "name-invalid"},
		{Host: "api.example.com", Port: 443, Layer: "http", Reason: "path", Method: "GET", Path: evil},
		{Reason: "quota", Layer: "tcp", Count: 9},
	}
}

// TestPolicySuggest: what is printed is a configuration, and lets through what was tried.
func TestPolicySuggest(t *testing.T) {
	tl := newTool(t)
	tl.records = []glovebox.Record{{ID: "run_1", State: "ended", Result: &glovebox.Result{Egress: tried()}}}
	exit, out, errs := tl.run("policy", "suggest", "run_1")
	if exit != 0 || errs != "" {
		t.Fatal(exit, errs)
	}
	inert(t, out)
	s := settings{lines: map[string]int{}}
	if err := s.parse([]byte(out)); err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	want := []glovebox.EgressRule{
		{Host: "1.e5.example", Ports: []int{8443}, Methods: []string{"GET"}, Paths: []string{"/"}},
		{Host: "api.example.com", Protocols: []string{"https"}, Methods: []string{"GET"}, Paths: []string{"/v1/a,b:[c]'&*"}},
		{Host: "api.example.com", Protocols: []string{"https"}, Methods: []string{"POST"}, Paths: []string{"/v1/x"}},
		{Host: "db.example.com", Ports: []int{5432}, Protocols: []string{"tcp"}},
	}
	if diff := cmp.Diff(want, s.policy.Egress.Rules); diff != "" {
		t.Errorf("%s\n%s", diff, out)
	}
	for _, want := range []string{"tried 4 times, refused 3", "this is a guess", "there may be more", "rules are about names",
		"--allow 1.e5.example:8443 --allow https://api.example.com --allow tcp://db.example.com:5432"} {
		if !strings.Contains(out, want) {
			t.Errorf("without %q:\n%s", want, out)
		}
	}
	_, out, _ = tl.run("policy", "suggest", "run_1", "--json")
	var got policy.Suggestion
	if err := json.Unmarshal([]byte(out), &got); err != nil || len(got.Rules) != 4 || len(got.Left) != 2 || got.Whole {
		t.Errorf("%v %s", err, out)
	}
	inert(t, out)
	tl.records = []glovebox.Record{{ID: "run_1", Result: &glovebox.Result{}}, {ID: "run_2", State: "running"},
		{ID: "run_3", Result: &glovebox.Result{}, Erased: hostile().Started}}
	if exit, out, _ := tl.run("policy", "suggest", "run_1"); exit != 0 || !strings.HasPrefix(out, "# run_1 tried nothing") {
		t.Errorf("%d %s", exit, out)
	}
	for args, says := range map[string]string{
		"policy": "policy show", "policy sugest": "did you mean `glovebox policy suggest`?", "policy suggest": "takes one id",
		"policy suggest run_2": "it is running", "policy suggest run_3": "erased", "policy suggest run_9": "there is no run",
		"policy show x": "takes no arguments", "policy show --server unix:/x": "--server",
	} {
		if exit, out, errs := tl.run(strings.Fields(args)...); exit == 0 || out != "" || !strings.Contains(errs, says) {
			t.Errorf("%s: %d %q %q", args, exit, out, errs)
		}
	}
	if _, out, _ := tl.run("__complete", "policy", "suggest", ""); !strings.Contains(out, "\nrun_2\t") {
		t.Errorf("%q", out)
	}
}

// TestTraceShowsEgress: each decision of the gateway is told, and nothing of it acts.
func TestTraceShowsEgress(t *testing.T) {
	tl := newTool(t)
	r := glovebox.Record{ID: "run_1", Decision: glovebox.Decision{Allow: true, Grant: glovebox.Grant{
		Egress:  []glovebox.EgressRule{{ID: "api", Host: "api.example.com", Methods: []string{"GET"}}},
		Secrets: []glovebox.SecretRef{{Name: "TOKEN", Host: "api.example.com"}}}},
		Result: &glovebox.Result{Egress: tried(), Usage: glovebox.Usage{EgressBytes: new(int64(12))}}}
	tl.records = []glovebox.Record{r}
	exit, out, errs := tl.run("trace", "show", "run_1")
	if exit != 0 || errs != "" {
		t.Fatal(exit, errs)
	}
	inert(t, out)
	out = strings.Join(strings.Fields(out), " ")
	for _, want := range []string{
		`may reach: {id: "api", host: "api.example.com", methods: [GET]}`, "lent: TOKEN for api.example.com",
		"egress: api.example.com:443 GET /v1/a,b:[c]'&* refused: host-not-allowed, http, 3 times", "passed: 12 bytes",
		"POST /v1/x allowed by rule", "http, 5 bytes up, 7 down", "egress: db.example.com:5432 refused: port, tcp",
		"egress: (others) refused: quota, tcp, 9 times",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("without %q:\n%s", want, out)
		}
	}
}

// TestRefusalsAreTold: what the gateway refused is told once for each place, and what would mend it.
func TestRefusalsAreTold(t *testing.T) {
	tl := newTool(t)
	exit, _, errs := tl.run("run", "--trust", "model", "-c", "refuse a.test host-not-allowed\nrefuse a.test host-not-allowed\nrefuse \x1b[2Jb.test port")
	if inert(t, errs); exit != 0 || strings.Count(errs, "a.test") != 1 || !strings.Contains(errs, "refused: a.test:443: host-not-allowed\n") ||
		!strings.Contains(errs, "b.test:443: port") || !strings.Contains(errs, "`glovebox policy suggest run_1`") {
		t.Errorf("%d %q", exit, errs)
	}
	exit, _, errs = tl.run("run", "--trust", "model", "-c", strings.Repeat("refuse a.test port\n", 9)+"refuse 1.test port\nrefuse 2.test port\n"+
		"refuse 3.test port\nrefuse 4.test port\nrefuse 5.test port\nrefuse 6.test port")
	if exit != 0 || strings.Count(errs, "glovebox: refused: ") != 5 || !strings.Contains(errs, "2 more were refused") {
		t.Errorf("%d %q", exit, errs)
	}
	exit, _, errs = tl.run("run", "--trust", "model", "-c", "refuse a.test upstream-failed\nrefuse 1.1 ip-literal")
	if exit != 0 || !strings.Contains(errs, "not reached: a.test:443: upstream-failed\n") || strings.Contains(errs, "suggest") {
		t.Errorf("%d %q", exit, errs)
	}
	if _, _, errs = tl.run("run", "--trust", "model", "--json", "-c", "refuse a.test port"); errs != "" {
		t.Errorf("%q", errs)
	}
}

// TestCompleteEgress offers what a request may ask for, and nothing that is denied.
func TestCompleteEgress(t *testing.T) {
	tl := newTool(t)
	tl.write(t, "c.yaml", permits+"secrets: {TOKEN: {env: X, hosts: [api.example.com], attach: bearer}}\n")
	for flag, want := range map[string]string{"--allow": "api.example.com\npastebin.com\n:", "--secret": "TOKEN@api.example.com\n:"} {
		if exit, out, errs := tl.run("__complete", "run", "--config", "c.yaml", flag, ""); exit != 0 || !strings.HasPrefix(out, want) {
			t.Errorf("%s: %d %q %q", flag, exit, out, errs)
		}
	}
}
