package process_test

import (
	"context"
	"slices"
	"testing"
)

// TestHoldDataModules: an interpreter that loaded what programs on data load has nothing open from that.
func TestHoldDataModules(t *testing.T) {
	w := newWarm(t)
	packages := w.image.Report().Packages
	for _, module := range []string{"numpy", "pandas", "openpyxl", "matplotlib"} {
		if !slices.Contains(packages, module) {
			t.Skipf("the image lacks %s", module)
		}
		h := hold(t, w.image, "python", module)
		spec := w.spec()
		h.Memory = spec.Limits.Memory
		s, err := w.driver.Hold(context.Background(), spec, h)
		if err != nil {
			t.Errorf("%s: %v", module, err)
			continue
		}
		got := w.run(s, h, "import "+module+" as m; print(m.__name__)")
		if err := s.Close(context.Background()); got.Out != module+"\n" || got.Err != "" || err != nil {
			t.Errorf("%s: %+v, %v", module, got, err)
		}
	}
}
