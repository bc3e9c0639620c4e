package main

import (
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"glovebox/httpapi"
	"glovebox/policy"
)

// resettable is a service whose policy can be set.
type resettable struct {
	*fakeService
	set []policy.Config
}

func (r *resettable) SetPolicy(c policy.Config) error {
	if _, err := policy.New(c); err != nil {
		return err
	}
	r.set = append(r.set, c)
	return nil
}

// TestReload: a server takes what its configuration says of policy now; what cannot be used and what would need another
// server changes nothing, and is told.
func TestReload(t *testing.T) {
	const first = "policy: {limits: {default: {wall: 2s}}}\n"
	for name, tt := range map[string]struct {
		text, told string
		sets       bool
	}{
		"the same":          {first, "", true},
		"another rule":      {first + "# \n", "", true},
		"a rule":            {"policy:\n  limits: {default: {wall: 2s}}\n  egress: {rules: [{host: a.example.com}]}\n", "", true},
		"a wrong rule":      {"policy: {egress: {rules: [{host: '*.com'}]}}\n", "too wide", false},
		"no YAML":           {"policy: {\n", "YAML", false},
		"more than policy":  {first + "memory_budget: 50%\n", "restart the server", false},
		"another data_dir":  {first + "data_dir: /x\n", "restart the server", false},
		"an unknown key":    {first + "polcy: {}\n", "did you mean policy?", false},
		"nothing is a file": {"", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			tl := newTool(t)
			tl.write(t, "g.yaml", first)
			tl.app.config = filepath.Join(tl.env["HOME"], "g.yaml")
			s, err := tl.app.settings()
			if err != nil {
				t.Fatal(err)
			}
			svc := &resettable{fakeService: tl.fakeService}
			door, err := httpapi.New(httpapi.Config{Service: svc, Owner: tl.app.owner(), Digest: s.digest()})
			if err != nil {
				t.Fatal(err)
			}
			tl.write(t, "g.yaml", tt.text)
			var said strings.Builder
			now := tl.app.reload(s, svc, door, slog.New(slog.NewTextHandler(&said, nil)))
			want, err := tl.app.settings()
			if tt.sets != (len(svc.set) == 1) || tt.sets && (err != nil || now.digest() != want.digest()) ||
				!tt.sets && now.digest() != s.digest() {
				t.Errorf("set %v, %v", svc.set, err)
			}
			if !strings.Contains(said.String(), tt.told) || strings.Contains(said.String(), "level=ERROR") == tt.sets {
				t.Errorf("told %s", said.String())
			}
		})
	}
}
