package output

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"glovebox"
)

func place(t *testing.T, dir, path string, overwrite bool, r io.Reader) error {
	t.Helper()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	return Place(t.Context(), root, path, overwrite, r)
}

// tree lists what is below dir: files with their text, links with their target, folders with a slash.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	got := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		name, _ := filepath.Rel(dir, path)
		switch {
		case err != nil || name == ".":
		case d.IsDir():
			got[name] = "/"
		case d.Type() == fs.ModeSymlink:
			target, _ := os.Readlink(path)
			got[name] = "-> " + target
		default:
			var b []byte
			b, err = os.ReadFile(path)
			got[name] = string(b)
			if info, _ := d.Info(); info.Mode()&^0o644 != 0 {
				t.Errorf("%q has mode %v", name, info.Mode())
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// plant makes below dir what tree would list.
func plant(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, what := range files {
		target, link := strings.CutPrefix(what, "-> ")
		switch {
		case link:
			_ = os.Symlink(target, filepath.Join(dir, name))
		case what == "/":
			_ = os.MkdirAll(filepath.Join(dir, name), 0o755)
		default:
			put(t, dir, name, what)
		}
	}
}

func TestPlace(t *testing.T) {
	type files = map[string]string
	long := strings.Repeat("x", 255)
	tests := []struct {
		name, path string
		overwrite  bool
		before     files // as tree has it
		after      files // nil: as before
		code       glovebox.Code
	}{
		{name: "file", path: "a.txt", after: files{"a.txt": "new"}},
		{name: "in folders", path: "a/b/c", after: files{"a": "/", "a/b": "/", "a/b/c": "new"}},
		{name: "in a folder that is there", path: "a/c", before: files{"a": "/", "a/b": "old"},
			after: files{"a": "/", "a/b": "old", "a/c": "new"}},
		{name: "odd bytes", path: "%FF%0A%25", after: files{"\xff\n%": "new"}},
		{name: "bytes that are no name", path: "%2E%2E/%2E/a%2Fb/c%00/%zz",
			after: files{"%2E%2E": "/", "%2E%2E/%2E": "/", "%2E%2E/%2E/a%2Fb": "/", "%2E%2E/%2E/a%2Fb/c%00": "/",
				"%2E%2E/%2E/a%2Fb/c%00/%zz": "new"}},
		{name: "longest name", path: long, after: files{long: "new"}},
		{name: "climbing", path: "../a", code: glovebox.CodeInvalid},
		{name: "absolute", path: "/etc/a", code: glovebox.CodeInvalid},
		{name: "empty", path: "", code: glovebox.CodeInvalid},
		{name: "dot", path: "a/./b", code: glovebox.CodeInvalid},
		{name: "NUL", path: "a\x00b", code: glovebox.CodeInvalid},
		{name: "too deep", path: strings.Repeat("d/", 40) + "f", code: glovebox.CodeInvalid},

		{name: "file in the way", path: "a", before: files{"a": "old"}, code: glovebox.CodeConflict},
		{name: "link in the way", path: "a", before: files{"a": "-> b", "b": "old"}, code: glovebox.CodeConflict},
		{name: "dangling link in the way", path: "a", before: files{"a": "-> b"}, code: glovebox.CodeConflict},
		{name: "folder in the way", path: "a", before: files{"a": "/"}, code: glovebox.CodeConflict},
		{name: "file where a folder goes", path: "a/b", before: files{"a": "old"}, code: glovebox.CodeConflict},
		{name: "link where a folder goes", path: "a/b", before: files{"a": "-> c", "c": "/"}, code: glovebox.CodeConflict},

		{name: "over a file", path: "a", overwrite: true, before: files{"a": "old"}, after: files{"a": "new"}},
		{name: "over a link", path: "a", overwrite: true, before: files{"a": "-> b", "b": "old"},
			after: files{"a": "new", "b": "old"}},
		{name: "over a link that leaves", path: "a", overwrite: true, before: files{"a": "-> /etc/hostname"},
			after: files{"a": "new"}},
		{name: "over a folder", path: "a", overwrite: true, before: files{"a": "/"}, code: glovebox.CodeConflict},
		{name: "over a file where a folder goes", path: "a/b", overwrite: true, before: files{"a": "old"},
			after: files{"a": "/", "a/b": "new"}},
		{name: "over a link where a folder goes", path: "a/b", overwrite: true, before: files{"a": "-> c", "c": "/"},
			after: files{"a": "/", "a/b": "new", "c": "/"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			plant(t, dir, tt.before)
			if tt.after == nil {
				tt.after = tt.before
			}
			if tt.after == nil {
				tt.after = files{}
			}
			err := place(t, dir, tt.path, tt.overwrite, strings.NewReader("new"))
			var known *glovebox.Error
			switch {
			case tt.code == "" && err != nil:
				t.Errorf("Place: %v", err)
			case tt.code != "" && (!errors.As(err, &known) || known.Code != tt.code || known.Fix == ""):
				t.Errorf("Place: %v, want code %s with a fix", err, tt.code)
			}
			check(t, "folder", tt.after, tree(t, dir))
		})
	}
}

func TestPlaceLeavesNothingHalf(t *testing.T) {
	dir, broken := t.TempDir(), errors.New("broken")
	err := place(t, dir, "a", false, io.MultiReader(strings.NewReader("half"), iotest.ErrReader(broken)))
	if !errors.Is(err, broken) {
		t.Errorf("Place: %v", err)
	}
	check(t, "folder", map[string]string{}, tree(t, dir))
}

// whenRead calls do before it yields its text.
type whenRead struct {
	do func()
	io.Reader
}

func (w *whenRead) Read(p []byte) (int, error) { w.do(); return w.Reader.Read(p) }

// TestPlaceNamesWholeFilesOnly looks at the folder while a file is written, as it would be if this process were killed then:
// what has the name is whole, the old one or none.
func TestPlaceNamesWholeFilesOnly(t *testing.T) {
	for name, before := range map[string]map[string]string{"new": {}, "replaced": {"a": "old"}} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			plant(t, dir, before)
			looked := false
			err := place(t, dir, "a", true, io.MultiReader(strings.NewReader("half"), &whenRead{func() {
				looked = true
				now := tree(t, dir)
				for n := range now {
					if strings.HasPrefix(n, ".glovebox-") {
						delete(now, n)
					}
				}
				check(t, "while it is written", before, now)
			}, strings.NewReader("whole")}))
			if err != nil || !looked {
				t.Fatalf("Place: %v, looked: %v", err, looked)
			}
			check(t, "folder", map[string]string{"a": "halfwhole"}, tree(t, dir))
		})
	}
}

// TestPlaceTakesNoNameTwice: a file that came while another was written stays as it is.
func TestPlaceTakesNoNameTwice(t *testing.T) {
	dir := t.TempDir()
	err := place(t, dir, "a", false, &whenRead{sync.OnceFunc(func() { plant(t, dir, map[string]string{"a": "of another"}) }),
		strings.NewReader("mine")})
	var known *glovebox.Error
	if !errors.As(err, &known) || known.Code != glovebox.CodeConflict {
		t.Errorf("Place: %v, want a conflict", err)
	}
	check(t, "folder", map[string]string{"a": "of another"}, tree(t, dir))
}

// TestPlaceCancelled ends within a file that has no end.
func TestPlaceCancelled(t *testing.T) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	ctx, cancel := context.WithCancel(t.Context())
	endless := &whenRead{cancel, zeros{}}
	if err := Place(ctx, root, "a", false, endless); !errors.Is(err, context.Canceled) {
		t.Errorf("Place: %v", err)
	}
	check(t, "folder", map[string]string{}, tree(t, dir))
}

// zeros has no end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestPlaceNameTooLong(t *testing.T) {
	dir := t.TempDir()
	if err := place(t, dir, strings.Repeat("x", 256), false, strings.NewReader("x")); err == nil {
		t.Error("Place succeeded")
	}
	check(t, "folder", map[string]string{}, tree(t, dir))
}
