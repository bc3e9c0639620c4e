package attack_test

import (
	"encoding/json"
	"testing"
)

// TestAU07ARecordForEveryEnd ends runs in several ways and demands of each record who, what, by which rule, with which
// limits and how it ended.
func TestAU07ARecordForEveryEnd(t *testing.T) {
	l := need(t)
	for name, c := range map[string]struct {
		trial
		status string
	}{
		"exited":     {trial{program: "ct_hello.py"}, "exited"},
		"signaled":   {trial{program: "ct10_ends.sh", args: []string{"signal", "11"}}, "signaled"},
		"wall limit": {trial{program: "rs01_spin.py", flags: []string{"--wall", "200ms"}}, "wall_limit"},
		"memory limit": {trial{program: "rs12_memory.py", tell: true, args: []string{"alone"},
			flags: []string{"--memory", "80MiB", "--disk", "1MiB"}}, "memory_limit"},
		"refused": {trial{program: "ct_hello.py", flags: []string{"--isolation", "gvisor"}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			o := attack(t, c.trial)
			if o.Status != c.status {
				t.Fatalf("status %q, want %q", o.Status, c.status)
			}
			out, err := l.glovebox(t.Context(), "trace", "ls", "--json", "--config", l.config).Output()
			if err != nil {
				t.Fatal(err)
			}
			var all []record
			if err := json.Unmarshal(out, &all); err != nil || len(all) == 0 {
				t.Fatalf("%v: %.300q", err, out)
			}
			r := all[0] // the newest
			if c.status != "" && r.ID != o.ID {
				t.Fatalf("the newest record is of %s, want %s", r.ID, o.ID)
			}
			if r.Principal.Name == "" || r.Started == "" || r.CodeSHA256 == "" || r.Decision.Rule == "" ||
				r.Decision.Allow != (c.status != "") {
				t.Errorf("record %+v", r)
			}
			if c.status == "" {
				if r.State != "refused" {
					t.Errorf("state %q", r.State)
				}
				return
			}
			if r.State != "ended" || r.Image == "" || r.Result == nil || r.Result.Status != o.Status ||
				r.Decision.Grant.Limits["wall_ms"] == 0 ||
				r.Result.Usage.CPU == nil || r.Result.Usage.Wall == nil {
				t.Errorf("record %+v", r)
			}
		})
	}
}

type record struct {
	ID, State, Started, Image string
	Principal                 struct{ Tenant, Name string }
	CodeSHA256                string `json:"code_sha256"`
	Decision                  struct {
		Allow bool
		Rule  string
		Grant struct{ Limits map[string]float64 }
	}
	Result *wire
}
