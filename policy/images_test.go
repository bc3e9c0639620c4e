package policy

import (
	"strings"
	"testing"

	"glovebox"
)

// TestImages: an image must be there, and be one that the configuration allows. The host always is.
func TestImages(t *testing.T) {
	here := func(glovebox.Isolation, glovebox.Isolation) error { return nil }
	who := glovebox.Principal{Tenant: "local", Name: "tester", Owner: true}
	for _, tt := range []struct {
		name, image  string
		allow, there []string
		granted      string
		code         glovebox.Code
		fix          string
	}{
		{"none named", "", []string{"a"}, nil, "host", "", ""},
		{"host", "host", []string{"a"}, nil, "host", "", ""},
		{"there", "tools", nil, []string{"tools"}, "tools", "", ""},
		{"not there", "tools", nil, nil, "", glovebox.CodeNotFound, "--image host; `glovebox image ls` lists them, `glovebox image build`"},
		{"nearly", "tool", nil, []string{"tools"}, "", glovebox.CodeNotFound, "did you mean --image tools?"},
		{"allowed and not there", "tools", []string{"tools"}, nil, "", glovebox.CodeNotFound, ""},
		{"allowed", "tools", []string{"tools"}, []string{"other", "tools"}, "tools", "", ""},
		{"not allowed", "other", []string{"tools"}, []string{"other", "tools"}, "", glovebox.CodeDenied, "add other to images.allow"},
	} {
		p, err := New(Config{Images: tt.allow})
		if err != nil {
			t.Fatal(err)
		}
		d := p.WithImages(tt.there).Decide(who, glovebox.Request{Code: "x", Image: tt.image}, here)
		if d.Grant.Image != tt.granted || d.Code != tt.code || !strings.Contains(d.Fix, tt.fix) {
			t.Errorf("%s: %+v", tt.name, d)
		}
		if p.WithImages(tt.there); len(p.there) != 0 {
			t.Errorf("%s: the policy was changed", tt.name)
		}
	}
}
