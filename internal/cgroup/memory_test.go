package cgroup

import (
	"math"
	"os"
	"path/filepath"
	"testing"
)

// TestMemoryLimit: the least limit on the way to the top counts, whichever version, and what is not there does not.
func TestMemoryLimit(t *testing.T) {
	const none = math.MaxInt64
	for name, tt := range map[string]struct {
		v2         bool
		membership string
		limits     map[string]string // by folder
		want       int64
	}{
		"version 2":            {true, "0::/a/b\n", map[string]string{"a": "4096", "a/b": "max"}, 4096},
		"own":                  {true, "0::/a/b\n", map[string]string{"a": "8192", "a/b": "4096"}, 4096},
		"beside":               {true, "0::/a\n", map[string]string{"a": "max", "b": "4096"}, none},
		"top of a container":   {true, "0::/\n", map[string]string{".": "4096"}, 4096},
		"path of the host":     {true, "0::/far/away\n", map[string]string{".": "4096"}, 4096},
		"out of the tree":      {true, "0::/../x\n", map[string]string{".": "4096", "../x": "1024"}, 4096},
		"version 1":            {false, "5:cpu:/c\n4:memory:/a/b\n0::/x\n", map[string]string{"a": "4096", "x": "1", "c": "2"}, 4096},
		"version 1, joined":    {false, "4:hugetlb,memory:/a\n", map[string]string{"a": "4096"}, 4096},
		"version 1, no limit":  {false, "4:memory:/a\n", map[string]string{"a": "9223372036854771712"}, 9223372036854771712},
		"the other hierarchy":  {false, "0::/a\n", map[string]string{"a": "4096"}, none},
		"version 1 beside own": {false, "4:memory:/a/b\n", map[string]string{"a": "max", "a/b": "max", "a/c": "1"}, none},
	} {
		t.Run(name, func(t *testing.T) {
			root := filepath.Join(t.TempDir(), "top")
			if err := os.MkdirAll(root, 0o755); err != nil {
				t.Fatal(err)
			}
			file := "memory.limit_in_bytes"
			if tt.v2 {
				file = "memory.max"
			}
			for dir, text := range tt.limits {
				put(t, filepath.Join(root, dir, file), text+"\n")
			}
			h := &Host{places: map[string]place{"memory": {root, tt.v2}}}
			if got, err := h.memoryLimit(tt.membership); got != tt.want || err != nil {
				t.Errorf("limit = %d (%v), want %d", got, err, tt.want)
			}
		})
	}
	root := t.TempDir()
	put(t, filepath.Join(root, "memory.max"), "many\n")
	h := &Host{places: map[string]place{"memory": {root, true}}}
	if n, err := h.memoryLimit("0::/\n"); err == nil {
		t.Errorf("what is no number is %d", n)
	}
}

func TestMemoryAllowed(t *testing.T) {
	h := &Host{places: map[string]place{}}
	all, err := h.MemoryAllowed()
	if err != nil || all < 1<<20 {
		t.Fatalf("%d bytes (%v)", all, err)
	}
	root := t.TempDir()
	put(t, filepath.Join(root, "memory.max"), "4096\n")
	h.places["memory"] = place{root, true}
	if n, err := h.MemoryAllowed(); n != 4096 || err != nil {
		t.Errorf("%d bytes (%v), want 4096", n, err)
	}
}
