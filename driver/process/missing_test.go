package process_test

import (
	"strings"
	"testing"

	"glovebox/driver/process"
)

// TestWithoutInit: where init is missing, what is tried with it is not said to be missing of the machine, and the path and
// the key that named it are told.
func TestWithoutInit(t *testing.T) {
	d, err := process.New(process.Config{Init: "/nope", ScratchDir: t.TempDir(), RuntimeDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	told := map[string]string{}
	for _, c := range d.Controls(t.Context()) {
		if !c.Available {
			told[c.Name] = c.Detail + "; " + c.Fix
		}
	}
	if got := told["namespaces"]; !strings.Contains(got, "could not be tried") || strings.Contains(got, "container") {
		t.Errorf("namespaces: %q", got)
	}
	for _, name := range []string{"glovebox-init", "a sandbox can be made"} {
		if got := told[name]; !strings.Contains(got, "/nope") || !strings.Contains(got, "drivers.process.init") {
			t.Errorf("%s: %q", name, got)
		}
	}
}
