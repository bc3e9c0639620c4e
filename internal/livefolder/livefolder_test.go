package livefolder

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestSweepFolders(t *testing.T) {
	runs := t.TempDir()
	live, err := Make(filepath.Join(runs, "run_live"))
	if err != nil {
		t.Fatal(err)
	}
	for _, dead := range []string{"run_dead/inputs/x", "run_young"} {
		if err := os.MkdirAll(filepath.Join(runs, dead), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(runs, "run_dead/inputs"), 0o555); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(filepath.Join(runs, "run_live"), old, old); err != nil {
		t.Fatal(err)
	}
	if err := Sweep(runs, nil); err != nil {
		t.Fatal(err)
	}
	entries, _ := os.ReadDir(runs)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if d := cmp.Diff([]string{"run_live"}, names); d != "" {
		t.Errorf("left (-want +got):\n%s", d)
	}
	if err := live.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestSweepWhileMaking: no sweep takes a folder from its run, not even just after its making.
func TestSweepWhileMaking(t *testing.T) {
	runs, done := t.TempDir(), make(chan struct{})
	var sweeping sync.WaitGroup
	sweeping.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			if err := Sweep(runs, nil); err != nil {
				t.Error(err)
			}
		}
	})
	for i := range 300 {
		f, err := Make(filepath.Join(runs, fmt.Sprint("run_", i)))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(filepath.Join(f.Path, "inputs"), 0o700); err != nil {
			t.Errorf("the folder was swept: %v", err)
		}
		if err := f.Remove(t.Context()); err != nil {
			t.Error(err)
		}
	}
	close(done)
	sweeping.Wait()
}
