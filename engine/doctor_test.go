package engine

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"glovebox"
	"glovebox/driver/drivertest"
)

func TestDoctor(t *testing.T) {
	missing := []glovebox.Control{{Isolation: glovebox.IsolationProcess, Name: "seccomp", Required: true, Fix: "do it"}}
	for name, fake := range map[string]*drivertest.Fake{"ready": {}, "not ready": {Missing: missing}} {
		e := newEngine(t, fake, t.TempDir())
		r, err := e.Doctor(t.Context())
		if err != nil || r.Ready != (name == "ready") || len(r.Images) != 1 {
			t.Errorf("%s: report %+v, error %v", name, r, err)
		}
	}
}

// TestDoctorTellsWhatIsFree: too little for a run that says nothing of it is told, and refuses nothing.
func TestDoctorTellsWhatIsFree(t *testing.T) {
	for name, c := range map[string]struct {
		memory, disk glovebox.Size
		err          error
		missing      string
		fix          string
	}{
		"enough":    {memory: 8 * glovebox.GiB, disk: 80 * glovebox.GiB},
		"memory":    {memory: 300*glovebox.MiB + 5, disk: 80 * glovebox.GiB, missing: "free memory", fix: "memory in glovebox.yaml to 300MiB or less"},
		"disk":      {memory: 8 * glovebox.GiB, disk: 300 * glovebox.MiB, missing: "free disk", fix: "data_dir"},
		"not known": {err: errors.New("no"), missing: "free memory and disk", fix: "log"},
	} {
		e := newEngine(t, &drivertest.Fake{}, t.TempDir())
		e.free = func() (glovebox.Size, glovebox.Size, error) { return c.memory, c.disk, c.err }
		r, err := e.Doctor(t.Context())
		if err != nil || !r.Ready {
			t.Fatalf("%s: %+v, %v", name, r, err)
		}
		missing, fix := "", ""
		for _, control := range r.Controls {
			if own := slices.Contains([]string{"image", "data_dir", "memory_budget", "free memory", "free disk"}, control.Name); own && control.Isolation != "" {
				t.Errorf("%s: %s stands under the %s rung", name, control.Name, control.Isolation)
			}
			if strings.HasPrefix(control.Name, "free") && !control.Available {
				missing, fix = missing+control.Name, control.Fix
			}
		}
		if missing != c.missing || !strings.Contains(fix, c.fix) {
			t.Errorf("%s: missing %q, fix %q", name, missing, fix)
		}
	}
	// What is free here is told as it is.
	memory, disk, err := newEngine(t, &drivertest.Fake{}, t.TempDir()+"/not/there").free()
	if err != nil || memory < 16*glovebox.MiB || memory > 1<<50 || disk < 16*glovebox.MiB || disk > 1<<60 {
		t.Errorf("free: %v of memory, %v of disk, %v", memory, disk, err)
	}
}

// TestDoctorReadsTheTrace: a record that opens and cannot be read is told by the report itself.
func TestDoctorReadsTheTrace(t *testing.T) {
	e := newEngine(t, &drivertest.Fake{}, t.TempDir())
	if _, err := e.record(); err != nil {
		t.Fatal(err)
	}
	if err := e.store.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := e.Doctor(t.Context())
	if err != nil || r.Ready {
		t.Fatalf("report %+v, error %v, want not ready", r, err)
	}
	for _, c := range r.Controls {
		if c.Name == "data_dir" && (c.Available || c.Fix == "") {
			t.Errorf("data_dir = %+v", c)
		}
	}
}
