package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"glovebox/internal/egress"
	"glovebox/policy"
)

func manual(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestEgressManual: what docs/egress.md shows can be typed and written, and its lists are whole.
func TestEgressManual(t *testing.T) {
	text, source := manual(t, "../../docs/egress.md"), manual(t, "../../internal/egress/words.go")
	tl := newTool(t)
	tl.write(t, "fetch.py", "stdout ran")
	shown := regexp.MustCompile("(?s)```sh\n(.*?)```").FindStringSubmatch(text)
	commands := 0
	for l := range strings.Lines(shown[1]) {
		l, _, _ = strings.Cut(l, " #")
		args := strings.Fields(strings.ReplaceAll(l, "'", ""))
		if args[1] != "run" {
			continue
		}
		commands++
		if exit, out, errs := tl.run(append(args[1:], "--trust", "model")...); exit != 0 || out != "ran" {
			t.Errorf("%s: %d %q", l, exit, errs)
		}
	}
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(text, -1)
	for _, b := range blocks {
		tl.write(t, "manual.yaml", b[1])
		if exit, _, errs := tl.run("policy", "show", "--config", "manual.yaml"); exit != 0 {
			t.Errorf("%s%s", b[1], errs)
		}
	}
	if commands != 4 || len(blocks) != 1 {
		t.Errorf("%d commands and %d configurations", commands, len(blocks))
	}
	for _, m := range regexp.MustCompile(`Reason\s+= "([a-z-]+)"`).FindAllStringSubmatch(source, -1) {
		if !regexp.MustCompile("(?m)^\\| [^|]*`" + m[1] + "`").MatchString(text) {
			t.Errorf("the manual does not tell of the reason %s", m[1])
		}
	}
	_, table, _ := strings.Cut(text, "| reason | means |")
	table, _, _ = strings.Cut(table, "\n\n")
	for l := range strings.Lines(table) {
		cells := strings.Split(l, "|")
		for _, m := range regexp.MustCompile("`([a-z-]+)`").FindAllStringSubmatch(cells[min(1, len(cells)-1)], -1) {
			if !strings.Contains(source, `"`+m[1]+`"`) {
				t.Errorf("there is no reason %s", m[1])
			}
		}
	}
	s := settings{lines: map[string]int{}}
	for name := range s.egressRule(nil).keys {
		if !strings.Contains(text, "\n| `"+name+"` |") {
			t.Errorf("the manual does not tell of the key %s", name)
		}
	}
}

// TestEgressManualRules: the rules that the manual shows do what it says of them.
func TestEgressManualRules(t *testing.T) {
	block := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindStringSubmatch(manual(t, "../../docs/egress.md"))
	s := settings{lines: map[string]int{}}
	if err := s.parse([]byte(block[1])); err != nil {
		t.Fatal(err)
	}
	p, err := policy.New(s.policy)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		tenant, host, method, path string
		want                       bool
	}{
		{"local", "api.example.com", "DELETE", "/x", true},
		{"local", "a.corp.example.com", "GET", "/x%2Fadmin/../../admin/x", false},
		{"local", "git.example.com", "GET", "/team/a/b", true},
		{"local", "git.example.com", "GET", "/other", false},
		{"local", "git.example.com", "PUT", "/team/a", false},
		{"local", "corp.example.com", "GET", "/", false},
		{"local", "a.b.corp.example.com", "GET", "/", true},
		{"local", "api.acme.example", "GET", "/", false},
		{"acme", "api.acme.example", "GET", "/", true},
		{"acme", "api.example.com", "GET", "/", false},
	} {
		rules, err := egress.Compile(p.EgressRules(tt.tenant))
		if err != nil {
			t.Fatal(err)
		}
		h, _ := egress.ParseHost(tt.host)
		if v := rules.Request(h, 443, egress.HTTPS, tt.method, tt.path); v.Allowed != tt.want {
			t.Errorf("%+v: %+v", tt, v)
		}
		for host, port := range map[string]uint16{"pinned.example.com": 443, "db.example.com": 5432} {
			h, _ := egress.ParseHost(host)
			if v := rules.Connect(h, port); v.Allowed != (tt.tenant == "local") {
				t.Errorf("%s of %s: %+v", host, tt.tenant, v)
			}
		}
		if tt.host == "a.b.corp.example.com" && !slices.Contains(s.policy.Egress.Rules[2].AllowPrivate, "10.1.0.0/16") {
			t.Error("the intranet has no network")
		}
	}
}
