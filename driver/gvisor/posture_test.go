package gvisor_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"glovebox"
	"glovebox/driver"
	"glovebox/driver/gvisor"
	"glovebox/internal/image"
)

var update = flag.Bool("update", false, "rewrite golden files")

// TestPosture is what the kernels say of a sandbox, its kernel included, against what they said when somebody looked at it.
func TestPosture(t *testing.T) {
	needRoot(t)
	host, err := image.Host(image.Config{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := newDriver(t).Start(t.Context(), driver.Spec{ID: "posture", Root: host.Root(), Limits: usual})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.Background())
	p, err := s.Exec(t.Context(), driver.Command{Argv: []string{"/bin/true"}, Env: []string{"PATH=/bin"}, Dir: "/workspace"})
	if err != nil {
		t.Fatal(err)
	}
	own := regexp.MustCompile(`outside [0-9]+`)
	var text strings.Builder
	posture := p.Posture()
	for _, name := range slices.Sorted(maps.Keys(posture)) {
		value := posture[name]
		switch name {
		case "cgroup_cpuset": // that of the machine
			value = "N"
		case "user":
			value = own.ReplaceAllString(value, "outside N")
		}
		fmt.Fprintf(&text, "%s: %s\n", name, value)
	}
	golden := filepath.Join("testdata", "posture.golden")
	if *update {
		if err := os.WriteFile(golden, []byte(text.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), text.String()); d != "" {
		t.Errorf("posture (-want +got; -update to accept):\n%s", d)
	}
}

// TestMissing: each part that is taken away is refused by name with what mends it, before anything is started.
func TestMissing(t *testing.T) {
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*gvisor.Config)
		names  string
	}{
		"no runsc":                 {func(c *gvisor.Config) { c.Runsc = "/nowhere/runsc" }, "runsc"},
		"runsc is no program":      {func(c *gvisor.Config) { c.Runsc = plain }, "runsc"},
		"no glovebox-init":         {func(c *gvisor.Config) { c.Init = "/nowhere/init" }, "glovebox-init"},
		"runsc is another program": {func(c *gvisor.Config) { c.Runsc = "/bin/true" }, "runsc"},
	} {
		cfg := gvisor.Config{Init: programs.init, Runsc: programs.runsc, ScratchDir: t.TempDir()}
		c.change(&cfg)
		d, err := gvisor.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		var known *glovebox.Error
		err = d.Available(t.Context())
		if !errors.As(err, &known) || known.Code != glovebox.CodeUnavailable || !strings.Contains(known.Public, c.names) ||
			known.Fix == "" {
			t.Errorf("%s: available: %v", name, err)
		}
		if s, err := d.Start(t.Context(), driver.Spec{ID: "missing", Limits: usual}); !errors.As(err, &known) ||
			known.Code != glovebox.CodeUnavailable {
			t.Errorf("%s: start: %v, %v", name, s, err)
		}
	}
}
