package egress

import (
	"strings"
	"testing"
	"time"

	"glovebox"
)

func TestWarnings(t *testing.T) {
	for name, tt := range map[string]struct {
		rule glovebox.EgressRule
		want string
	}{
		"own":            {glovebox.EgressRule{Host: "api.example.com"}, ""},
		"buckets":        {glovebox.EgressRule{ID: "s3", Host: "s3.amazonaws.com"}, "s3: anybody may have a place at s3.amazonaws.com"},
		"one bucket":     {glovebox.EgressRule{Host: "mine.s3.amazonaws.com"}, ""},
		"bucket by path": {glovebox.EgressRule{Host: "storage.googleapis.com", Paths: []string{"/mine/**"}}, ""},
		"paste":          {glovebox.EgressRule{Host: "pastebin.com"}, "rule 1 (pastebin.com): anybody"},
		"below":          {glovebox.EgressRule{Host: "*.discordapp.com"}, "cdn.discordapp.com"},
		"deny":           {glovebox.EgressRule{Host: "pastebin.com", Deny: true}, ""},
		"ended":          {glovebox.EgressRule{Host: "api.example.com", Expires: time.Unix(1, 0)}, "it ended"},
		"no bound":       {glovebox.EgressRule{Host: "api.example.com", Protocols: []string{"tls"}}, "server name alone"},
		"sni":            {glovebox.EgressRule{Host: "api.example.com", Mode: "sni"}, "server name alone"},
		"deny tls":       {glovebox.EgressRule{Host: "api.example.com", Protocols: []string{"tls"}, Deny: true}, ""},
	} {
		got, err := Warnings([]glovebox.EgressRule{tt.rule})
		if err != nil || len(got) > 1 || (len(got) == 1) != (tt.want != "") || !strings.Contains(strings.Join(got, ""), tt.want) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

func TestUselessRulesAreTold(t *testing.T) {
	deny := glovebox.EgressRule{ID: "no", Host: "*.a.test", Paths: []string{"/admin/**"}, Deny: true}
	whole := glovebox.EgressRule{ID: "none", Host: "b.a.test", Deny: true}
	for name, tt := range map[string]struct {
		rules []glovebox.EgressRule
		want  int
	}{
		"some paths":  {[]glovebox.EgressRule{{Host: "b.a.test"}, deny}, 0},
		"blind":       {[]glovebox.EgressRule{{Host: "b.a.test", Protocols: []string{"tcp"}, Ports: []int{5432}}, deny}, 1},
		"all of it":   {[]glovebox.EgressRule{{Host: "b.a.test"}, whole}, 1},
		"http passes": {[]glovebox.EgressRule{{Host: "b.a.test"}, {ID: "s", Host: "b.a.test", Protocols: []string{"https"}, Deny: true}}, 0},
	} {
		if got, err := Warnings(tt.rules); err != nil || len(got) != tt.want || tt.want == 1 && !strings.Contains(got[0], "lets nothing pass: no") {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}
