package attack

import (
	"slices"
	"testing"

	"glovebox"
)

// TestAWeakerRungIsSeen: a run that did not get the rung that was asked for is one that broke.
func TestAWeakerRungIsSeen(t *testing.T) {
	for asked, broke := range map[glovebox.Isolation]bool{"process": false, "gvisor": true} {
		f := newFence(t)
		cfg := f.config()
		cfg.Isolation = asked
		some := slices.DeleteFunc(Programs(), func(p Program) bool { return p.ID != "FS-01" })
		r, err := run(t.Context(), cfg, some)
		if err != nil {
			t.Fatal(err)
		}
		if o := r.Programs[0]; (o.Verdict == Broke) != broke || r.OK == broke {
			t.Errorf("asked for %s, on %s: %s %q", asked, r.Isolation, o.Verdict, o.Found)
		}
	}
}
