package bench

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseStat(t *testing.T) {
	rest := " S 7 1 1 0 -1 4194560 100 0 0 0 10 20 30 40 20 0 1 0 100 1000 100"
	for name, c := range map[string]struct {
		text   string
		parent int
		cpu    time.Duration
		ok     bool
	}{
		"plain":              {"12 (sleep)" + rest, 7, time.Second, true},
		"a name that lies":   {"12 (x) S 1 1 1 (y)" + rest, 7, time.Second, true},
		"empty":              {"", 0, 0, false},
		"cut":                {"12 (sleep) S 7 1 1", 0, 0, false},
		"no number":          {"12 (sleep) S x 1 1 0 -1 4194560 100 0 0 0 10 20 30 40 20 0", 0, 0, false},
		"no number of ticks": {"12 (sleep) S 7 1 1 0 -1 4194560 100 0 0 0 10 y 30 40 20 0", 0, 0, false},
	} {
		got, ok := parseStat(12, c.text)
		if ok != c.ok || ok && (got.parent != c.parent || got.cpu != c.cpu || got.own != c.cpu*3/10 || got.pid != 12) {
			t.Errorf("%s: %+v %v, want parent %d, %v, %v", name, got, ok, c.parent, c.cpu, c.ok)
		}
	}
}

func TestParseBusy(t *testing.T) {
	got, err := parseBusy("cpu  1 2 3 1000 2000 4 5 600 7 8")
	if want := 150 * time.Millisecond; err != nil || got != want {
		t.Errorf("%v %v, want %v", got, err, want)
	}
	for _, text := range []string{"", "cpu 1 2 3", "intr 1 2 3 4 5 6 7 8 9", "cpu a 2 3 4 5 6 7 8"} {
		if got, err := parseBusy(text); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
}

func TestParsePss(t *testing.T) {
	if n, ok := parsePss("00400000-7fff ---p 0 00:00 0 [rollup]\nRss:  900 kB\nPss:  123 kB\nPss_Dirty: 5 kB\n"); !ok || n != 123<<10 {
		t.Errorf("%d %v", n, ok)
	}
	for _, text := range []string{"", "Rss: 1 kB\n", "Pss: x kB\n", "Pss: 1 MB\n"} {
		if n, ok := parsePss(text); ok {
			t.Errorf("%q has %d", text, n)
		}
	}
}

// TestDescendants: a child and what it started are found, counted and measured.
func TestDescendants(t *testing.T) {
	cmd := exec.Command("/bin/sh", "-c", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; sleep 5 & echo up; wait")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var up [3]byte
	if _, err := out.Read(up[:]); err != nil {
		t.Fatal(err)
	}
	tree, err := descendants(cmd.Process.Pid)
	if err != nil || len(tree) != 2 || tree[0].pid != cmd.Process.Pid || tree[1].parent != cmd.Process.Pid {
		t.Errorf("%+v %v", tree, err)
	}
	if len(tree) == 2 && tree[0].cpu == 0 {
		t.Error("it has used no CPU time")
	}
	if n, err := proportional(tree); err != nil || n < 64<<10 || n > 64<<20 {
		t.Errorf("a shell and sleep take %d bytes: %v", n, err)
	}
	for _, p := range tree[1:] {
		if found, err := os.FindProcess(p.pid); err == nil {
			found.Kill()
		}
	}
	cmd.Wait()
	if tree, err := descendants(cmd.Process.Pid); err == nil {
		t.Errorf("what has ended has %+v", tree)
	}
}

func TestMachine(t *testing.T) {
	m := machine()
	if m.CPUs < 1 || m.MemoryBytes < 64<<20 || m.Kernel == "" || m.CPU == "" || m.Distro == "" || m.Load == "" {
		t.Errorf("%+v", m)
	}
}

// TestOwnGroup: the rest of the settings stays as it is, and so does a group that was configured.
func TestOwnGroup(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("an ordinary user gets none")
	}
	own := fmt.Sprintf("/glovebox-bench-%d", os.Getpid())
	of := func(keys map[string]any) map[string]any {
		return map[string]any{"drivers": map[string]any{"process": keys}}
	}
	for name, c := range map[string]struct{ settings, want map[string]any }{
		"nothing":    {nil, of(map[string]any{"cgroup": own})},
		"another":    {of(map[string]any{"init": "/x"}), of(map[string]any{"init": "/x", "cgroup": own})},
		"configured": {of(map[string]any{"cgroup": "/mine"}), of(map[string]any{"cgroup": "/mine"})},
	} {
		before, err := json.Marshal(c.settings)
		if err != nil {
			t.Fatal(err)
		}
		got, err := ownGroup(c.settings)
		if diff := cmp.Diff(c.want, got); diff != "" || err != nil {
			t.Errorf("%s: %s %v", name, diff, err)
		}
		if after, _ := json.Marshal(c.settings); string(after) != string(before) {
			t.Errorf("%s: what was given became %s", name, after)
		}
	}
}

func TestRemoveTree(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a")
	if err := os.MkdirAll(filepath.Join(dir, "b", "c"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "b", "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := removeTree(dir); err == nil {
		t.Error("a folder with a file in it was removed, or passed over")
	}
	if err := os.Remove(filepath.Join(dir, "b", "file")); err != nil {
		t.Fatal(err)
	}
	if err := removeTree(dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("it is still there: %v", err)
	}
}
