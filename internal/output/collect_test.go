package output

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"glovebox"
)

var errNotRegular = errors.New("not a regular file")

// openBelow opens as a sandbox does: without following links or blocking, refusing what is neither file nor folder.
func openBelow(dir string) func(string) (*os.File, error) {
	return func(path string) (*os.File, error) {
		f, err := os.OpenFile(filepath.Join(dir, path), os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
		if errors.Is(err, syscall.ELOOP) || errors.Is(err, syscall.ENXIO) {
			return nil, errNotRegular
		}
		if err != nil {
			return nil, err
		}
		if info, err := f.Stat(); err != nil || !info.IsDir() && !info.Mode().IsRegular() {
			_ = f.Close()
			return nil, errNotRegular
		}
		return f, nil
	}
}

// shelf stores in memory. It refuses to hold more than a few files unsettled, and to settle when it is told to.
type shelf struct {
	files     []string
	unsettled int
	settles   int
	refuse    func(settle int) error
}

func (s *shelf) settle() error {
	s.unsettled = 0
	s.settles++
	if s.refuse == nil {
		return nil
	}
	return s.refuse(s.settles)
}

func (s *shelf) store(r io.Reader) (int64, string, error) {
	b, err := io.ReadAll(r)
	if err != nil {
		return 0, "", err
	}
	if s.unsettled++; s.unsettled > settleAtOnce {
		return 0, "", errors.New("too many files are unsettled")
	}
	s.files = append(s.files, string(b))
	sum := sha256.Sum256(b)
	return int64(len(b)), hex.EncodeToString(sum[:]), nil
}

func newCollector(dir string, s *shelf) Collector {
	return Collector{
		Open: openBelow(dir), NotRegular: func(err error) bool { return errors.Is(err, errNotRegular) }, Store: s.store, Settle: s.settle,
		MaxBytes: 64 * glovebox.KiB, MaxFile: 16 * glovebox.KiB, MaxEntries: 1000,
	}
}

func collect(t *testing.T, c Collector) ([]glovebox.Artifact, []glovebox.Skipped) {
	t.Helper()
	artifacts, skipped, err := c.Collect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if artifacts == nil || skipped == nil {
		t.Error("a list is nil")
	}
	return artifacts, skipped
}

func put(t *testing.T, dir, name, data string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(data), 0o644); err != nil {
		t.Fatal(err)
	}
}

func paths(artifacts []glovebox.Artifact) []string {
	list := []string{}
	for _, a := range artifacts {
		list = append(list, a.Path)
	}
	return list
}

func check(t *testing.T, what string, want, got any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func TestCollect(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "z.csv", "a,b\n1,2\n")
	put(t, dir, "a/b/c.json", "{}")
	put(t, dir, "a/empty", "")
	put(t, dir, "b.png", "\x89PNG\x0D\x0A\x1A\x0A")
	var s shelf
	artifacts, skipped := collect(t, newCollector(dir, &s))
	check(t, "artifacts", []glovebox.Artifact{
		{Path: "a/b/c.json", Bytes: 2, SHA256: sum([]byte("{}")), MediaType: "application/json"},
		{Path: "a/empty", SHA256: sum(nil), MediaType: "text/plain; charset=utf-8"},
		{Path: "b.png", Bytes: 8, SHA256: sum([]byte("\x89PNG\x0D\x0A\x1A\x0A")), MediaType: "image/png"},
		{Path: "z.csv", Bytes: 8, SHA256: sum([]byte("a,b\n1,2\n")), MediaType: "text/csv; charset=utf-8"},
	}, artifacts)
	check(t, "skipped", []glovebox.Skipped{}, skipped)
}

func TestCollectNothing(t *testing.T) {
	artifacts, skipped := collect(t, newCollector(t.TempDir(), &shelf{}))
	check(t, "artifacts", []glovebox.Artifact{}, artifacts)
	check(t, "skipped", []glovebox.Skipped{}, skipped)
}

func TestCollectOnlyFiles(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	put(t, outside, "canary", "canary")
	put(t, dir, "good", "good")
	for name, target := range map[string]string{
		"report.txt": filepath.Join(outside, "canary"), "env": "/proc/self/environ", "folder": outside, "a": "b", "b": "a",
		"self": "self", "dangling": "nothing", "sub/up": "../..", "null": "/dev/null",
	} {
		path := filepath.Join(dir, name)
		_ = os.MkdirAll(filepath.Dir(path), 0o755)
		if err := os.Symlink(target, path); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "result.json"), 0o666); err != nil {
		t.Fatal(err)
	}
	var s shelf
	artifacts, skipped := collect(t, newCollector(dir, &s))
	check(t, "artifacts", []string{"good"}, paths(artifacts))
	check(t, "stored", []string{"good"}, s.files)
	var want []glovebox.Skipped
	for _, name := range []string{
		"a", "b", "dangling", "env", "folder", "null", "report.txt", "result.json", "self", "sub/up",
	} {
		want = append(want, glovebox.Skipped{Path: name, Reason: "not a regular file", Fault: "program"})
	}
	check(t, "skipped", want, skipped)
}

// An opener that hands out what it should not is not believed either.
func TestCollectBelievesTheDescriptor(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "null", "")
	c := newCollector(dir, &shelf{})
	open := c.Open
	c.Open = func(path string) (*os.File, error) {
		if path == "null" {
			return os.Open("/dev/zero")
		}
		return open(path)
	}
	artifacts, skipped := collect(t, c)
	check(t, "artifacts", []string{}, paths(artifacts))
	check(t, "skipped", []glovebox.Skipped{{Path: "null", Reason: "not a regular file", Fault: "program"}}, skipped)
}

func TestCollectSizes(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "exact", strings.Repeat("x", 16<<10))
	put(t, dir, "one-more", strings.Repeat("x", 16<<10+1))
	put(t, dir, "sparse", "")
	if err := os.Truncate(filepath.Join(dir, "sparse"), 1<<40); err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		put(t, dir, fmt.Sprint("later", i), strings.Repeat("x", 15<<10))
	}
	put(t, dir, "small", strings.Repeat("x", 3<<10))
	var s shelf
	artifacts, skipped := collect(t, newCollector(dir, &s))
	check(t, "artifacts", []string{"exact", "later0", "later1", "later2", "small"}, paths(artifacts))
	check(t, "skipped", []glovebox.Skipped{
		{Path: "later3", Reason: "too large: 15360 bytes; all files together may have 65536", Fault: "program"},
		{Path: "one-more", Reason: "too large: 16385 bytes; one file may have 16384", Fault: "program"},
		{Path: "sparse", Reason: "too large: 1099511627776 bytes; one file may have 16384", Fault: "program"},
	}, skipped)
}

func TestCollectFileThatGrows(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "grows", "")
	var s shelf
	c := newCollector(dir, &s)
	c.Store = func(r io.Reader) (int64, string, error) {
		b, _ := io.ReadAll(r) // a store that ignores the failure of its reader
		return int64(len(b)), "", nil
	}
	w := &walk{Collector: c, bytes: 64 << 10, paths: maxPathsBytes}
	f, err := c.Open("grows")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	put(t, dir, "grows", strings.Repeat("x", 1<<20))
	w.file(t.Context(), "grows", f, info)
	check(t, "skipped", []glovebox.Skipped{{Path: "grows", Reason: "too large: it grew while it was read", Fault: "program"}}, w.skipped)
	if len(w.artifacts) != 0 || w.bytes != 48<<10 {
		t.Errorf("%d artifacts, %d bytes left", len(w.artifacts), w.bytes)
	}
}

func TestCollectHostileNames(t *testing.T) {
	dir := t.TempDir()
	want := map[string]string{ // name → spelling
		"\xff\xfe": "%FF%FE", "a\nb": "a%0Ab", "a\tb": "a%09b", "\x1b[2Jx": "%1B[2Jx", "-rf": "-rf", "*": "*", `"'`: `"'`,
		`back\slash`: `back\slash`, "x\u202etxt.exe": "x%E2%80%AEtxt.exe", "trailing ": "trailing ", "…": "…", ".. ": ".. ",
		"CON": "CON", "100%": "100%25", "%FF": "%25FF", "z\u200bw": "z%E2%80%8Bw", "tag\U000e0041": "tag%F3%A0%81%81",
		strings.Repeat("x", 255): strings.Repeat("x", 255), strings.Repeat("\xff", 255): strings.Repeat("%FF", 255),
		"üñ漢": "üñ漢", "\u0085": "%C2%85",
	}
	for name := range want {
		put(t, dir, name, "x")
	}
	artifacts, skipped := collect(t, newCollector(dir, &shelf{}))
	check(t, "skipped", []glovebox.Skipped{}, skipped)
	got := map[string]string{}
	for _, a := range artifacts {
		name, err := unspell(a.Path)
		if err != nil {
			t.Error(err)
		}
		got[name] = a.Path
		checkInert(t, a.Path)
	}
	check(t, "spellings", want, got)
}

func TestCollectDeepTree(t *testing.T) {
	dir := t.TempDir()
	deep := strings.TrimSuffix(strings.Repeat("d/", 60), "/")
	put(t, dir, deep+"/bottom", "x")
	put(t, dir, strings.Repeat("d/", maxDepth)+"edge", "x")
	put(t, dir, "top", "x")
	artifacts, skipped := collect(t, newCollector(dir, &shelf{}))
	check(t, "artifacts", []string{strings.Repeat("d/", maxDepth) + "edge", "top"}, paths(artifacts))
	check(t, "skipped", []glovebox.Skipped{{
		Path:   strings.TrimSuffix(strings.Repeat("d/", maxDepth+1), "/"),
		Reason: "nested deeper than 32 folders", Fault: "program",
	}}, skipped)
}

func TestCollectManyNames(t *testing.T) {
	dir := t.TempDir()
	for i := range 3000 {
		put(t, dir, fmt.Sprintf("flood/%04d", i), "")
	}
	put(t, dir, "z-report", "x")
	put(t, dir, "z-folder/report", "x")
	artifacts, skipped := collect(t, newCollector(dir, &shelf{}))
	if len(artifacts) != 998 || artifacts[997].Path != "z-report" {
		t.Errorf("%d artifacts", len(artifacts))
	}
	const reason = "too many files: only the first 1000 names in /outputs were looked at"
	check(t, "skipped", []glovebox.Skipped{{Path: "flood", Reason: reason, Fault: "program"}, {Path: "z-folder", Reason: reason, Fault: "program"}}, skipped)
}

func TestCollectExactNumberOfNames(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "a", "")
	put(t, dir, "b", "")
	c := newCollector(dir, &shelf{})
	c.MaxEntries = 2
	artifacts, skipped := collect(t, c)
	check(t, "artifacts", []string{"a", "b"}, paths(artifacts))
	check(t, "skipped", []glovebox.Skipped{}, skipped)
}

func TestCollectManySkipped(t *testing.T) {
	dir := t.TempDir()
	for i := range 150 {
		if err := os.Symlink("x", filepath.Join(dir, fmt.Sprintf("%03d", i))); err != nil {
			t.Fatal(err)
		}
	}
	_, skipped := collect(t, newCollector(dir, &shelf{}))
	if len(skipped) != maxSkipped+1 || skipped[0].Path != "000" || skipped[maxSkipped].Reason != "… and 50 more" ||
		skipped[maxSkipped].Fault != glovebox.FaultProgram {
		t.Errorf("%d entries, the last %+v", len(skipped), skipped[len(skipped)-1])
	}
}

// TestCollectLongPath names what is too long by its beginning.
func TestCollectLongPath(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "a", "a")
	w := &walk{Collector: newCollector(dir, &shelf{})}
	n := &node{name: "file", depth: 18}
	for at := n; at.depth > 1; at = at.parent {
		at.parent = &node{name: strings.Repeat("n", 250), depth: at.depth - 1}
	}
	w.entry(t.Context(), n, false)
	if len(w.skipped) != 1 || w.skipped[0].Path != strings.Repeat("n", 80)+"…" || !strings.Contains(w.skipped[0].Reason, "4096 bytes") {
		t.Errorf("skipped %+v", w.skipped)
	}
}

func TestCollectFailures(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "a", "a")
	put(t, dir, "b", "b")
	put(t, dir, "c/d", "d")
	t.Run("one cannot be stored", func(t *testing.T) {
		s := &shelf{}
		c := newCollector(dir, s)
		c.Store = func(r io.Reader) (int64, string, error) {
			b, _ := io.ReadAll(r)
			if string(b) == "a" {
				return 0, "", errors.New("/var/lib: no space left")
			}
			return s.store(bytes.NewReader(b))
		}
		artifacts, skipped := collect(t, c)
		check(t, "artifacts", []string{"b", "c/d"}, paths(artifacts))
		check(t, "skipped", []glovebox.Skipped{{Path: "a", Reason: "it could not be stored", Fault: "glovebox"}}, skipped)
	})
	t.Run("some cannot be settled", func(t *testing.T) {
		many := t.TempDir()
		for i := range 2*settleAtOnce + 10 {
			put(t, many, fmt.Sprintf("%%%04d", i), "x")
		}
		s := &shelf{refuse: func(settle int) error {
			if settle == 2 {
				return errors.New("/var/lib: no space left")
			}
			return nil
		}}
		artifacts, skipped := collect(t, newCollector(many, s))
		if s.settles != 3 || len(artifacts) != settleAtOnce+10 || len(skipped) != settleAtOnce {
			t.Errorf("%d times settled, %d artifacts, %d skipped", s.settles, len(artifacts), len(skipped))
		}
		seen := map[string]bool{}
		for _, a := range artifacts {
			seen[a.Path] = true
		}
		for _, k := range skipped {
			if seen[k.Path] || !strings.HasPrefix(k.Path, "%250") || k.Reason != "it could not be stored" {
				t.Errorf("skipped %+v, kept too: %v", k, seen[k.Path])
			}
		}
	})
	t.Run("some cannot be opened", func(t *testing.T) {
		c := newCollector(dir, &shelf{})
		open := c.Open
		c.Open = func(path string) (*os.File, error) {
			switch path {
			case "a":
				return nil, os.ErrPermission
			case "b":
				return nil, fmt.Errorf("open /host/path: %w", syscall.EIO)
			case "c/d":
				return nil, os.ErrNotExist
			}
			return open(path)
		}
		artifacts, skipped := collect(t, c)
		check(t, "artifacts", []string{}, paths(artifacts))
		check(t, "skipped", []glovebox.Skipped{
			{Path: "a", Reason: "it may not be read", Fault: "glovebox"}, {Path: "b", Reason: "it could not be opened", Fault: "glovebox"},
			{Path: "c/d", Reason: "it was gone when it was looked at", Fault: "glovebox"},
		}, skipped)
	})
}

func TestCollectOutOfTime(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "a", "a")
	put(t, dir, "b", "b")
	put(t, dir, "c/d", "d")
	for name, c := range map[string]struct {
		cause         error
		reason, fault string
	}{
		"too slow":  {ErrNoTime, "there was no time left before it was looked at", "glovebox"},
		"cancelled": {nil, "the run was cancelled before it was looked at", "caller"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &shelf{}
			by := newCollector(dir, s)
			ctx, cancel := context.WithCancelCause(t.Context())
			by.Store = func(r io.Reader) (int64, string, error) {
				defer cancel(c.cause)
				return s.store(r)
			}
			artifacts, skipped, err := by.Collect(ctx)
			check(t, "error", error(nil), err)
			check(t, "artifacts", []string{"a"}, paths(artifacts))
			check(t, "skipped", []glovebox.Skipped{
				{Path: "b", Reason: c.reason, Fault: c.fault}, {Path: "c", Reason: c.reason, Fault: c.fault},
			}, skipped)
		})
	}
	t.Run("within a file", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
		defer cancel()
		<-ctx.Done()
		r := &boundedReader{alive: ctx.Err, r: strings.NewReader("x"), left: 1}
		if n, err := r.Read(make([]byte, 1)); n != 0 || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Read: %d, %v", n, err)
		}
	})
}

func TestCollectRefuses(t *testing.T) {
	t.Run("no outputs", func(t *testing.T) {
		c := newCollector(filepath.Join(t.TempDir(), "none"), &shelf{})
		if _, _, err := c.Collect(t.Context()); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("Collect: %v", err)
		}
	})
	t.Run("not configured", func(t *testing.T) {
		if _, _, err := (Collector{}).Collect(t.Context()); err == nil {
			t.Error("Collect succeeded")
		}
	})
}

func TestMediaType(t *testing.T) {
	tests := []struct{ name, data, want string }{
		{"a.png", "<!DOCTYPE html><script>", "text/html; charset=utf-8"},
		{"a.svg", `<svg xmlns="http://www.w3.org/2000/svg">`, "image/svg+xml"},
		{"a.svg", `<?xml version="1.0"?><svg>`, "image/svg+xml"},
		{"a.xlsx", "PK\x03\x04", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"},
		{"a.zip", "PK\x03\x04", "application/zip"},
		{"a.xlsx", "plain", "text/plain; charset=utf-8"},
		{"a.json", "\x00\x01", "application/octet-stream"},
		{"a.PY", "print(1)", "text/x-python; charset=utf-8"},
	}
	for _, tt := range tests {
		t.Run(tt.name+" "+tt.want, func(t *testing.T) {
			check(t, "type", tt.want, mediaType(tt.name, []byte(tt.data)))
		})
	}
}

func FuzzSpelling(f *testing.F) {
	for _, seed := range []string{"a/b", "\xff%", "%41", "\u202e\U000e0041", "100%", "a\x00b", "%zz"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, path string) {
		spelt := spell(path)
		checkInert(t, spelt)
		if got, err := unspell(spelt); err != nil || got != path {
			t.Errorf("%q is spelt %q, which reads %q, %v", path, spelt, got, err)
		}
		if strings.Count(spelt, "/") != strings.Count(path, "/") {
			t.Errorf("%q is spelt %q", path, spelt)
		}
		if names, err := fileNames(path); err == nil {
			for _, name := range names {
				if !isName(name) {
					t.Errorf("%q yields the name %q", path, name)
				}
			}
		}
	})
}
