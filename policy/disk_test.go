package policy

import (
	"testing"

	"glovebox"
)

// TestDefaultDiskGivesWay asks for a memory limit alone: the default disk fits beside it in memory wherever that is
// possible.
func TestDefaultDiskGivesWay(t *testing.T) {
	p, err := New(Config{TrustRungs: map[glovebox.Trust]glovebox.Isolation{"influenced": "process"}})
	if err != nil {
		t.Fatal(err)
	}
	owner := glovebox.Principal{Tenant: "local", Name: "me", Owner: true}
	for _, c := range []struct{ memory, disk, want glovebox.Size }{
		{0, 0, 256 * glovebox.MiB},
		{320 * glovebox.MiB, 0, 256 * glovebox.MiB},
		{128 * glovebox.MiB, 0, 64 * glovebox.MiB},
		{65 * glovebox.MiB, 0, glovebox.MiB},
		{64 * glovebox.MiB, 0, 256 * glovebox.MiB}, // there is no room beside: on disk, or refused
		{128 * glovebox.MiB, 256 * glovebox.MiB, 256 * glovebox.MiB},
	} {
		d := p.Decide(owner, glovebox.Request{Code: "pass", Limits: glovebox.Limits{Memory: c.memory, Disk: c.disk}}, process)
		if !d.Allow || d.Grant.Limits.Disk != c.want {
			t.Errorf("memory %v, disk %v: %v, want %v (%s)", c.memory, c.disk, d.Grant.Limits.Disk, c.want, d.Reason)
		}
	}
}
