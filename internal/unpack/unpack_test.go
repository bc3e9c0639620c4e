package unpack

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"glovebox"
)

// item is an entry of an archive: "dir/", "file=content", "link -> target", "hard => target", or header for anything else.
type item any

func archive(t testing.TB, items ...item) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, i := range items {
		h, content := header(i)
		h.Size = int64(len(content))
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

func header(i item) (tar.Header, string) {
	h := tar.Header{Mode: 0o644, ModTime: time.Unix(1700000000, 0), Format: tar.FormatPAX}
	if given, ok := i.(tar.Header); ok {
		return given, ""
	}
	s := i.(string)
	if name, to, ok := strings.Cut(s, " => "); ok {
		h.Name, h.Linkname, h.Typeflag = name, to, tar.TypeLink
		return h, ""
	}
	if name, to, ok := strings.Cut(s, " -> "); ok {
		h.Name, h.Linkname, h.Typeflag = name, to, tar.TypeSymlink
		return h, ""
	}
	if strings.HasSuffix(s, "/") {
		h.Name, h.Typeflag = s, tar.TypeDir
		return h, ""
	}
	name, content, _ := strings.Cut(s, "=")
	h.Name, h.Typeflag = name, tar.TypeReg
	return h, content
}

func newTree(t testing.TB) (*Tree, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "tree")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	tree, err := New(Config{Dir: dir, MaxBytes: glovebox.MiB, MaxEntries: 200, Reserved: []string{"proc", "tmp"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		tree.Close()
		filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				return os.Chmod(p, 0o700)
			}
			return err
		})
	})
	return tree, dir
}

// onDisk is what a folder holds, in the words of archive.
func onDisk(t testing.TB, dir string) []string {
	t.Helper()
	var list []string
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		name, _ := filepath.Rel(dir, p)
		info, err := d.Info()
		switch {
		case err != nil:
			return err
		case d.IsDir():
			list = append(list, name+"/")
		case d.Type() == fs.ModeSymlink:
			to, _ := os.Readlink(p)
			list = append(list, name+" -> "+to)
		case d.Type().IsRegular():
			b, _ := os.ReadFile(p)
			list = append(list, name+"="+string(b))
			if m := info.Mode(); m != 0o444 && m != 0o555 {
				t.Errorf("%s has mode %v", name, m)
			}
		default:
			t.Errorf("%s is %v", name, d.Type())
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	return list
}

func TestLayers(t *testing.T) {
	long := strings.Repeat("n", 300)
	for _, tt := range []struct {
		name    string
		layers  [][]item
		want    []string
		dropped Dropped
	}{
		{"plain", [][]item{{"usr/", "usr/bin/", "usr/bin/a=1", "lib -> usr/lib", "./b=2", "/c=3"}},
			[]string{"b=2", "c=3", "lib -> usr/lib", "usr/", "usr/bin/", "usr/bin/a=1"}, Dropped{}},
		{"folders that nobody listed", [][]item{{"a/b/c=1"}}, []string{"a/", "a/b/", "a/b/c=1"}, Dropped{}},
		{"the same name twice", [][]item{{"a=1", "a=2", "b/", "b/c=1", "b=file", "d=1", "d/"}}, []string{"a=2", "b=file",
			"d/"}, Dropped{}},
		{"hard links", [][]item{{"a=1", "b => a", "a=2", "c => a", "d => d", "e => gone"}}, []string{"a=2", "b=1", "c=2"},
			Dropped{Names: 2}},
		{"whiteouts", [][]item{{"a/", "a/b=1", "a/c=1", "d/", "d/e=1", "f=1"}, {"a/.wh.b", "a/new=2", "d/.wh..wh..opq",
			"d/g=2", ".wh.f", ".wh.nothing"}},
			[]string{"a/", "a/c=1", "a/new=2", "d/", "d/g=2"}, Dropped{}},
		{"a whiteout spares its own layer", [][]item{{"a/", "a/b=1"}, {"a/", "a/c=2", ".wh.a"}}, []string{"a/", "a/c=2"},
			Dropped{}},
		{"links are kept and never written through", [][]item{{"out -> /etc", "out/x=1", "up -> ../../..", "up/y=1",
			"w -> usr", "usr/", "w/z=1"}},
			[]string{"etc/", "etc/x=1", "out -> /etc", "up -> ../../..", "usr/", "usr/z=1", "w -> usr", "y=1"}, Dropped{}},
		{"a file in place of a link", [][]item{{"a=1", "l -> a", "l=2"}}, []string{"a=1", "l=2"}, Dropped{}},
		{"a folder in place of a link", [][]item{{"a/", "l -> a", "l/", "l/x=1"}}, []string{"a/", "l/", "l/x=1"}, Dropped{}},
		{"devices", [][]item{{tar.Header{Name: "dev", Typeflag: tar.TypeChar}, tar.Header{Name: "sda", Typeflag: tar.TypeBlock},
			tar.Header{Name: "pipe", Typeflag: tar.TypeFifo}, "a=1"}}, []string{"a=1"}, Dropped{Devices: 3}},
		{"privileges", [][]item{{tar.Header{Name: "su", Typeflag: tar.TypeReg, Mode: 0o4755}, tar.Header{Name: "ping",
			Typeflag: tar.TypeReg,
			Mode:     0o755, PAXRecords: map[string]string{"SCHILY.xattr.security.capability": "x"}}}}, []string{"ping=", "su="},
			Dropped{Privileges: 2}},
		{"names", [][]item{{long + "=1", "a\nb=1", "a\x1b[31m=1", "c\xff=1", "ok é=1"}}, []string{"ok é=1"}, Dropped{Names: 4}},
		{"folders of every sandbox", [][]item{{"proc/", "proc/1/x=1", "tmp -> /etc", "a -> proc", "a/1=1", "a/b/c=1"}},
			[]string{"a -> proc"},
			Dropped{Reserved: 5}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tree, dir := newTree(t)
			for i, layer := range tt.layers {
				if err := tree.Layer(t.Context(), archive(t, layer...), i > 0); err != nil {
					t.Fatal(err)
				}
			}
			entries, err := tree.Finish()
			if err != nil {
				t.Fatal(err)
			}
			got := onDisk(t, dir)
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Error(d)
			}
			if d := cmp.Diff(tt.dropped, tree.Dropped()); d != "" {
				t.Error(d)
			}
			if len(entries) != len(got) {
				t.Errorf("%d entries for %d names", len(entries), len(got))
			}
		})
	}
}

func TestRefused(t *testing.T) {
	deep := strings.Repeat("d/", maxDepth+1)
	many := []item{}
	for i := range 201 {
		many = append(many, fmt.Sprint("f", i, "="))
	}
	for _, tt := range []struct {
		name string
		from io.Reader
		want string
	}{
		{"climbs", archive(t, "../etc/passwd=x"), "climbs"},
		{"climbs within", archive(t, "a/../../b=x"), "climbs"},
		{"a hard link that climbs", archive(t, "a => ../../etc/shadow"), "climbs"},
		{"beneath a file", archive(t, "a=1", "a/b=2"), "no folder"},
		{"beneath a link to a file", archive(t, "a=1", "l -> a", "l/b=2"), "no folder"},
		{"beneath links in a ring", archive(t, "a -> b", "b -> a", "a/x=1"), "no folder"},
		{"beneath a link that leads nowhere and up", archive(t, "a -> x/../y", "a/b=1"), "nowhere"},
		{"too many entries", archive(t, many...), "more than 200 entries"},
		{"too large", archive(t, "a="+strings.Repeat("x", 2<<20)), "more than 1MiB"},
		{"larger than it is", sparse(t), "more than 1MiB"},
		{"cut off", io.LimitReader(archive(t, "a=123456"), 514), "damaged"},
		{"no archive", strings.NewReader(strings.Repeat("garbage ", 200)), "damaged"},
		{"a hard link that replaces its target", archive(t, "a/", "a/b=1", "a => a/b"), "its own target"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tree, _ := newTree(t)
			err := tree.Layer(t.Context(), tt.from, false)
			var e *glovebox.Error
			if !errors.As(err, &e) || e.Code != glovebox.CodeInvalid || !strings.Contains(e.Public, tt.want) || e.Fix == "" {
				t.Errorf("error %v, want one of %q", err, tt.want)
			}
		})
	}
	tree, dir := newTree(t)
	if err := tree.Layer(t.Context(), archive(t, deep+"x=1"), false); err != nil || len(onDisk(t, dir)) != 0 ||
		tree.Dropped().Names != 1 {
		t.Errorf("a deep name: %v, %+v", err, tree.Dropped())
	}
}

// sparse is an archive of one file of 8 GiB that is all hole.
func sparse(t *testing.T) io.Reader {
	var b bytes.Buffer
	block := make([]byte, 512)
	copy(block, "hole")
	copy(block[100:], "0000644\x00")
	copy(block[124:], "00000000000\x00")
	copy(block[136:], "00000000000\x00")
	block[156] = 'S'
	copy(block[257:], "ustar  \x00")
	copy(block[386:], "100000000000"[:11]+"\x00") // one map entry at the end, of nothing
	copy(block[398:], "00000000000\x00")
	copy(block[483:], "77777777777\x00") // the real size
	copy(block[386:], "77777777777\x00")
	for i := 148; i < 156; i++ {
		block[i] = ' '
	}
	sum := 0
	for _, c := range block {
		sum += int(c)
	}
	copy(block[148:], fmt.Sprintf("%06o\x00 ", sum))
	b.Write(block)
	b.Write(make([]byte, 1024))
	return &b
}

// TestDates: Python goes by them.
func TestDates(t *testing.T) {
	tree, dir := newTree(t)
	if err := tree.Layer(t.Context(), archive(t, "a=1"), false); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(dir, "a")); err != nil || info.ModTime().Unix() != 1700000000 {
		t.Errorf("%v, %v", info, err)
	}
}

func TestPut(t *testing.T) {
	tree, dir := newTree(t)
	if err := tree.Layer(t.Context(), archive(t, "etc -> usr/etc", "usr/", "usr/etc/",
		"usr/etc/passwd -> /proc/self/mem", "var/", "var/tmp/", "var/tmp/x=1"), false); err != nil {
		t.Fatal(err)
	}
	if _, err := tree.Read("etc/passwd", 100); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("read through a link that leads out: %v", err)
	}
	if err := errors.Join(tree.Put("etc/passwd", []byte("x"), false), tree.Symlink("var/tmp", "/tmp"),
		tree.Put("new/a/b", nil, true)); err != nil {
		t.Fatal(err)
	}
	if b, err := tree.Read("/etc/passwd", 100); err != nil || string(b) != "x" {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := tree.Finish(); err != nil {
		t.Fatal(err)
	}
	want := []string{"etc -> usr/etc", "new/", "new/a/", "new/a/b=", "usr/", "usr/etc/", "usr/etc/passwd=x", "var/",
		"var/tmp -> /tmp"}
	if d := cmp.Diff(want, onDisk(t, dir)); d != "" {
		t.Error(d)
	}
}

// FuzzLayer: whatever an archive says, nothing outside of the folder of the tree changes, and what the tree says that it
// holds is what the folder holds.
func FuzzLayer(f *testing.F) {
	f.Add(archive(f, "usr/", "a=1", "l -> a", "h => a", "out -> /etc", "out/x=1", ".wh.a").Bytes(), true)
	f.Add(archive(f, "../x=1").Bytes(), false)
	f.Add(archive(f, "a/b/c=1", "a -> ..", "a/outside=1").Bytes(), true)
	f.Fuzz(func(t *testing.T, data []byte, layered bool) {
		tree, dir := newTree(t)
		beside := filepath.Join(filepath.Dir(dir), "beside")
		if err := os.WriteFile(beside, []byte("same"), 0o644); err != nil {
			t.Fatal(err)
		}
		err := tree.Layer(t.Context(), bytes.NewReader(data), layered)
		if err == nil {
			var entries []Entry
			if entries, err = tree.Finish(); err != nil {
				t.Fatal(err)
			}
			if n := len(onDisk(t, dir)); n != len(entries) {
				t.Errorf("%d names on disk for %d entries", n, len(entries))
			}
		}
		around, _ := os.ReadDir(filepath.Dir(dir))
		if b, err := os.ReadFile(beside); err != nil || string(b) != "same" || len(around) != 2 {
			t.Errorf("outside of the tree: %q, %v, %d names", b, err, len(around))
		}
	})
}
