package lockfile

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"glovebox"
)

func open(t *testing.T, dir string) *File {
	t.Helper()
	l, err := Open(dir, "x.lock")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func each(t *testing.T, l *File, within Range) []Range {
	t.Helper()
	var all []Range
	if err := l.Each(within, func(r Range) bool { all = append(all, r); return true }); err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(all, func(a, b Range) int { return int(a.Start - b.Start) })
	return all
}

func TestLocks(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "when missing")
	a, b, c := open(t, dir), open(t, dir), open(t, dir)
	take := func(l *File, r Range, want bool) {
		t.Helper()
		if got, err := l.Take(r); got != want || err != nil {
			t.Errorf("take %v = %v (%v), want %v", r, got, err, want)
		}
	}
	take(a, Range{0, 10}, true)
	take(b, Range{10, 10}, true) // beside it
	take(b, Range{9, 1}, false)
	take(b, Range{1 << 62, 1}, true)
	take(a, Range{0, 11}, false)
	take(a, Range{5, 1}, true) // its own already
	whole := Range{0, 1<<63 - 1}
	if got, want := each(t, c, whole), []Range{{0, 10}, {10, 10}, {1 << 62, 1}}; !slices.Equal(got, want) {
		t.Errorf("locks %v, want %v", got, want)
	}
	if got, want := each(t, c, Range{8, 4}), []Range{{8, 2}, {10, 2}}; !slices.Equal(got, want) {
		t.Errorf("parts %v, want %v", got, want)
	}
	if got := each(t, a, Range{0, 10}); len(got) > 0 {
		t.Errorf("its own are told: %v", got)
	}
	if got := each(t, c, Range{0, 0}); len(got) > 0 {
		t.Errorf("an empty range has %v", got)
	}
	n := 0
	if err := c.Each(whole, func(Range) bool { n++; return false }); err != nil || n != 1 {
		t.Errorf("told %d times after it said no more (%v)", n, err)
	}
	if err := a.Leave(Range{2, 2}); err != nil {
		t.Fatal(err)
	}
	take(c, Range{2, 2}, true)
	take(c, Range{1, 1}, false)
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	take(c, Range{0, 10}, true)
}

// TestFolders: a folder that others made or may change is refused; a link to one of our own is no folder.
func TestFolders(t *testing.T) {
	dir := t.TempDir()
	wide, link, file := filepath.Join(dir, "wide"), filepath.Join(dir, "link"), filepath.Join(dir, "file")
	if err := errors.Join(os.Mkdir(wide, 0o700), os.Chmod(wide, 0o770), os.Symlink(t.TempDir(), link),
		os.WriteFile(file, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	bad := []string{wide, link, file}
	if os.Getuid() == 0 {
		others := filepath.Join(dir, "others")
		if err := errors.Join(os.Mkdir(others, 0o700), os.Chown(others, 1234, 1234)); err != nil {
			t.Fatal(err)
		}
		bad = append(bad, others)
	}
	for _, folder := range bad {
		_, err := Open(folder, "x.lock")
		if e, ok := err.(*glovebox.Error); !ok || e.Code != glovebox.CodeUnavailable || e.Fix == "" {
			t.Errorf("%s: %v", filepath.Base(folder), err)
		}
	}
	own := filepath.Join(dir, "own")
	if err := errors.Join(os.Mkdir(own, 0o700), os.Symlink(file, filepath.Join(own, "x.lock"))); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(own, "x.lock"); err == nil {
		t.Error("a link is opened in place of the file")
	}
}
