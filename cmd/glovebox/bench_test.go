package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"glovebox"
	"glovebox/bench"
)

// TestBenchSettings: what a measurement runs is set up as this machine's configuration says.
func TestBenchSettings(t *testing.T) {
	for name, want := range map[string]processSettings{
		"nothing": {},
		"everything": {accept: []string{"own user ids", "cgroup swap"}, cgroup: "/sys/fs/cgroup/x", init: "/opt/glovebox-init",
			uids: uidPool{1 << 20, 4096}},
		"a path": {init: "/opt/a: b # {c}"},
	} {
		keys := want.keys()
		if keys == nil {
			keys = map[string]any{}
		}
		text, err := json.Marshal(keys)
		if err != nil {
			t.Fatal(err)
		}
		tl := newTool(t)
		tl.write(t, "g.yaml", string(text))
		tl.app.config = "g.yaml"
		got, err := tl.app.settings()
		if err != nil {
			t.Errorf("%s: %s: %v", name, text, err)
			continue
		}
		if diff := cmp.Diff(want, got.process, cmp.AllowUnexported(processSettings{}, uidPool{})); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// TestShowBench: a report goes where it was asked for.
func TestShowBench(t *testing.T) {
	r := &bench.Report{Machine: bench.Machine{CPU: "cpu"}, Notes: []string{"not this"}}
	tl := newTool(t)
	file, plot := filepath.Join(t.TempDir(), "r.json"), filepath.Join(t.TempDir(), "r.svg")
	if err := tl.app.showBench(&benchFlags{json: file, plot: plot}, r); err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(tl.out.Bytes(), []byte("cpu, 0 CPUs")) {
		t.Errorf("no table: %q", tl.out.String())
	}
	for name, head := range map[string]string{file: `{"machine":{"cpu":"cpu"`, plot: "<svg "} {
		if text, err := os.ReadFile(name); err != nil || !bytes.HasPrefix(text, []byte(head)) {
			t.Errorf("%s: %.60q %v", name, text, err)
		}
	}
	tl.out.Reset()
	if err := tl.app.showBench(&benchFlags{json: "-"}, r); err != nil || !json.Valid(tl.out.Bytes()) {
		t.Errorf("%v: %q", err, tl.out.String())
	}
	var e *glovebox.Error
	if err := tl.app.showBench(&benchFlags{json: filepath.Join(file, "x")}, r); !errors.As(err, &e) || e.Code != glovebox.CodeInvalid {
		t.Errorf("a file that cannot be written: %v", err)
	}
}
