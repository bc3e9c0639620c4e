package drivertest

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"glovebox"
)

var update = flag.Bool("update", false, "rewrite the part of docs/drivers.md that is made from the suite")

// local are the rungs that have drivers.
var local = []glovebox.Isolation{glovebox.IsolationProcess, glovebox.IsolationGVisor, glovebox.IsolationMicroVM}

// TestPromises: each case is for one promise, and there is no promise without.
func TestPromises(t *testing.T) {
	of := map[string]int{}
	for _, p := range promises() {
		if len(p.cases) == 0 {
			t.Errorf("nothing holds %q", p.text)
		}
		for _, name := range p.cases {
			of[name]++
			if allCases()[name] == nil {
				t.Errorf("there is no case %q", name)
			}
		}
	}
	for name := range allCases() {
		if of[name] != 1 {
			t.Errorf("%q is for %d promises", name, of[name])
		}
	}
	for rung, cases := range absent {
		for name, why := range cases {
			if allCases()[name] == nil || why == "" {
				t.Errorf("%s: there is no case %q, or no reason: %q", rung, name, why)
			}
		}
	}
}

// rendered is the part of the manual that says what is held, by which cases, and what is not.
func rendered() string {
	var s strings.Builder
	axis := ""
	for _, p := range promises() {
		if p.axis != axis {
			axis = p.axis
			fmt.Fprintf(&s, "\n### %s\n", strings.ToUpper(axis[:1])+axis[1:])
		}
		fmt.Fprintf(&s, "\n**%s**\n\n", p.text)
		for _, name := range p.cases {
			fmt.Fprintf(&s, "- %s\n", name)
		}
	}
	s.WriteString("\n## What a rung cannot have\n\n")
	for _, rung := range local {
		cases := Absent(rung)
		if len(cases) == 0 {
			fmt.Fprintf(&s, "- `%s`: nothing; it is held to every case.\n", rung)
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(cases)) {
			fmt.Fprintf(&s, "- `%s`, \"%s\": %s\n", rung, name, cases[name])
		}
	}
	return s.String()
}

// TestManual: docs/drivers.md lists what the suite holds, and nothing that it does not. -update writes it anew.
func TestManual(t *testing.T) {
	const begin, end = "<!-- made by: go test ./driver/drivertest -run TestManual -update -->\n", "<!-- end -->\n"
	path := filepath.Join("..", "..", "docs", "drivers.md")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), begin)
	made, after, ended := strings.Cut(rest, end)
	if !ok || !ended {
		t.Fatalf("%s lacks the marks between which the promises are", path)
	}
	if *update {
		if err := os.WriteFile(path, []byte(before+begin+rendered()+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if d := cmp.Diff(rendered(), made); d != "" {
		t.Errorf("run with -update (-suite +manual):\n%s", d)
	}
}
