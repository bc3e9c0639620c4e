package engine

import (
	"context"
	"io"
	"testing"

	"glovebox"
	"glovebox/driver"
	"glovebox/driver/drivertest"
	"glovebox/internal/egress"
)

// TestSetPolicy: what leaves a live sandbox is judged by a new policy at once, which takes from it and never adds; a policy that
// cannot be changes nothing.
func TestSetPolicy(t *testing.T) {
	more, changed, denied, broken := egressPolicy(), egressPolicy(), egressPolicy(), egressPolicy()
	more.Egress.Rules = append(more.Egress.Rules, glovebox.EgressRule{Host: "good.test", Ports: []int{8443}})
	changed.Egress.Rules = []glovebox.EgressRule{{ID: "r1", Host: "good.test", Methods: []string{"GET"}}}
	denied.Egress.Rules = append(denied.Egress.Rules, glovebox.EgressRule{ID: "no", Host: "good.test", Protocols: []string{"http"}, Deny: true})
	broken.Egress.Rules = []glovebox.EgressRule{{Host: "*.com"}}
	fake := &drivertest.Fake{}
	e, net := newAllowing(t, fake, nil)
	host, err := egress.ParseHost("good.test")
	if err != nil {
		t.Fatal(err)
	}
	in, feed := io.Pipe()
	fake.Program = func(ctx context.Context, p *drivertest.Proc) driver.Exit {
		for _, step := range []struct {
			name                  string
			set                   func() error
			fails                 bool
			https, http, elsewhat bool
		}{
			{"as granted", func() error { return nil }, false, true, true, false},
			{"more is allowed", func() error { return e.SetPolicy(more) }, false, true, true, false},
			{"one that cannot be", func() error { return e.SetPolicy(broken) }, true, true, true, false},
			{"a part is denied", func() error { return e.SetPolicy(denied) }, false, true, false, false},
			{"the rule has changed", func() error { return e.SetPolicy(changed) }, false, false, false, false},
			{"nothing is allowed", func() error { return e.SetPolicy(lowRungs) }, false, false, false, false},
		} {
			if err := step.set(); (err != nil) != step.fails {
				t.Errorf("%s: %v", step.name, err)
			}
			net.mu.Lock()
			for w := range net.ways {
				got := [3]bool{w.rules.Stream(host, 443, egress.HTTPS).Allowed, w.rules.Stream(host, 80, egress.HTTP).Allowed,
					w.rules.Connect(host, 8443).Allowed}
				if want := [3]bool{step.https, step.http, step.elsewhat}; got != want {
					t.Errorf("%s: https, http and another port are %v, want %v", step.name, got, want)
				}
			}
			net.mu.Unlock()
		}
		feed.Close()
		return waits(ctx, p)
	}
	req := allowGood
	req.StdinFrom = in
	if _, err := e.Run(t.Context(), owner, req, nil); err != nil {
		t.Fatal(err)
	}
	if len(e.rules.ways) != 0 {
		t.Errorf("%d ways are still judged", len(e.rules.ways))
	}
	if _, err := e.Run(t.Context(), glovebox.Principal{Tenant: "acme", Name: "x"}, allowGood, nil); err == nil {
		t.Error("a run was decided by the policy that was")
	}
}
