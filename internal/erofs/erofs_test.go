package erofs

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func text(s string) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(s)), nil }
}

// tree is one with every shape that the form treats in its own way.
func tree(t *testing.T) *Tree {
	t.Helper()
	when, tr := time.Unix(1700000000, 5), New()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(tr.Folder("usr/bin", 0o755, when))
	must(tr.File("usr/bin/sh", 0o755, 3, when, text("sh\n")))
	must(tr.File("empty", 0o444, 0, when, text("")))
	must(tr.File("block", 0o644, blockSize, when, text(strings.Repeat("b", blockSize))))
	must(tr.File("more", 0o600, blockSize+1, when, text(strings.Repeat("m", blockSize+1))))
	must(tr.Link("bin", "usr/bin", when))
	must(tr.Link("long", strings.Repeat("x", longTarget), when))
	for i := range 1000 {
		must(tr.File(fmt.Sprintf("many/%0*d", 1+i%200, i), 0o644, 1, when, text("x")))
		must(tr.Link(fmt.Sprintf("links/!%d", i), strings.Repeat("y", 1+i%300), when))
	}
	return tr
}

// TestFsck has the tools of the file system read what was written.
func TestFsck(t *testing.T) {
	fsck := "/usr/bin/fsck.erofs"
	if _, err := os.Stat(fsck); err != nil {
		t.Skip("no fsck.erofs here: the guest of driver/microvm mounts an image too")
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := tree(t).Write(f); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "out")
	if said, err := exec.Command(fsck, "--extract="+out, f.Name()).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	for name, want := range map[string]string{"usr/bin/sh": "sh\n", "bin/sh": "sh\n", "empty": "",
		"block": strings.Repeat("b", blockSize), "more": strings.Repeat("m", blockSize+1)} {
		if got, err := os.ReadFile(filepath.Join(out, name)); err != nil || string(got) != want {
			t.Errorf("%s = %d bytes, %v", name, len(got), err)
		}
	}
	if target, err := os.Readlink(filepath.Join(out, "long")); err != nil || len(target) != longTarget {
		t.Errorf("long link: %d bytes, %v", len(target), err)
	}
	for _, dir := range []string{"many", "links"} {
		if names, err := os.ReadDir(filepath.Join(out, dir)); err != nil || len(names) != 1000 {
			t.Errorf("%s has %d entries, %v", dir, len(names), err)
		}
	}
}

func TestWriteRefuses(t *testing.T) {
	for name, length := range map[string]int64{"shorter": 5, "longer": 3} {
		tr := New()
		if err := tr.File("f", 0o644, length, time.Now(), text("four")); err != nil {
			t.Fatal(err)
		}
		f, err := os.Create(filepath.Join(t.TempDir(), "image"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := tr.Write(f); err == nil {
			t.Errorf("%s: a file that changed was written", name)
		}
	}
}

func TestAddRefuses(t *testing.T) {
	tr := New()
	if err := tr.File("a/b", 0o644, 0, time.Now(), text("")); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"again":         tr.File("a/b", 0o644, 0, time.Now(), text("")),
		"below a file":  tr.Folder("a/b/c", 0o755, time.Now()),
		"the root":      tr.Link("/", "x", time.Now()),
		"long name":     tr.Link(strings.Repeat("n", 256), "x", time.Now()),
		"zero":          tr.Link("a\x00b", "x", time.Now()),
		"empty target":  tr.Link("l", "", time.Now()),
		"endless":       tr.Link("m", strings.Repeat("x", blockSize), time.Now()),
		"folder's name": tr.Folder("a\x00/b", 0o755, time.Now()),
	} {
		if err == nil {
			t.Errorf("%s: was taken", name)
		}
	}
}
