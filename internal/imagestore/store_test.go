package imagestore

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"glovebox"
	"glovebox/internal/image"
	"glovebox/internal/livefolder"
	"glovebox/internal/unpack"
)

// filled makes a tree of some files: names that end with / are folders.
func filled(files map[string]string) Fill {
	return func(ctx context.Context, t *unpack.Tree, _ string) (image.Settings, error) {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for name, content := range files {
			h := &tar.Header{Name: name, Mode: 0o755, Size: int64(len(content)), Typeflag: tar.TypeReg, ModTime: time.Unix(1e9, 0)}
			if to, ok := strings.CutPrefix(content, "-> "); ok {
				h.Typeflag, h.Linkname, h.Size, content = tar.TypeSymlink, to, 0, ""
			}
			if err := w.WriteHeader(h); err != nil {
				return image.Settings{}, err
			}
			io.WriteString(w, content)
		}
		w.Close()
		if err := t.Layer(ctx, &b, false); err != nil {
			return image.Settings{}, err
		}
		return image.NewSettings(map[string]string{"PATH": "/usr/bin", "A": "b \"c\""}, []string{"numpy"})
	}
}

var small = map[string]string{"usr/bin/python3": "#!", "usr/bin/py": "-> python3", "bin": "-> usr/bin", "usr/lib/a.so": "lib",
	"etc/passwd": "root:x:0:0::/:/bin/sh\ndaemon:x:1:1::/:/bin/false\nann:secret:1000:1000::/home:/bin/sh\n", "var/tmp": "-> /else",
	"etc/shadow": "root:hash", "proc/x": "1"}

func newStore(t *testing.T) *Store {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "images")
	t.Cleanup(func() { livefolder.RemoveTree(dir) })
	return New(Config{Dir: dir})
}

func add(t *testing.T, s *Store, name string, files map[string]string) *Stored {
	t.Helper()
	st, err := s.Add(t.Context(), name, "test", false, filled(files))
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func code(t *testing.T, err error, want glovebox.Code, text string) {
	t.Helper()
	var e *glovebox.Error
	if !errors.As(err, &e) || e.Code != want || e.Fix == "" || !strings.Contains(e.Public+e.Fix, text) {
		t.Errorf("error %v, want %s with %q", err, want, text)
	}
}

// folders are those of the store but names.
func folders(t *testing.T, s *Store) []string {
	t.Helper()
	entries, err := os.ReadDir(s.cfg.Dir)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, e := range entries {
		if e.Name() != "names" {
			list = append(list, e.Name())
		}
	}
	return list
}

func TestUse(t *testing.T) {
	s := newStore(t)
	st := add(t, s, "small", small)
	u, err := s.Use(t.Context(), "small")
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	if u.Identity() != "small@"+st.Digest || !digestPattern().MatchString(st.Digest) {
		t.Errorf("identity %s", u.Identity())
	}
	if d := cmp.Diff([]string{`A=b "c"`, "PATH=/usr/bin"}, u.Env()); d != "" {
		t.Error(d)
	}
	if p, err := u.Interpreter("python"); err != nil || p != "/usr/bin/python3" || !cmp.Equal(u.Modules(), []string{"numpy"}) {
		t.Errorf("%s, %v, %v", p, err, u.Modules())
	}
	_, err = u.Interpreter("node")
	code(t, err, glovebox.CodeUnavailable, "image small has no interpreter for node in /usr/bin")
	root := u.Root()
	var shown []string
	for _, m := range root.Mounts {
		shown = append(shown, m.Target)
	}
	if d := cmp.Diff([]string{"/etc", "/usr", "/var"}, shown); d != "" || len(root.Links) != 1 {
		t.Error(d, root.Links)
	}
	tree := filepath.Join(u.dir, "tree")
	if b, _ := os.ReadFile(tree + "/etc/passwd"); !strings.Contains(string(b), "daemon:x:1:") || strings.Contains(string(b), "ann") {
		t.Errorf("passwd %q", b)
	}
	if to, _ := os.Readlink(tree + "/var/tmp"); to != "/tmp" {
		t.Errorf("/var/tmp -> %s", to)
	}
	for _, gone := range []string{"/etc/shadow", "/proc"} {
		if _, err := os.Lstat(tree + gone); err == nil {
			t.Errorf("there is %s", gone)
		}
	}
	list, err := s.List()
	if err != nil || len(list) != 1 || list[0].Digest != st.Digest || list[0].Dropped.Reserved != 1 || list[0].Problem != "" {
		t.Errorf("%+v, %v", list, err)
	}
	if _, err := s.Use(t.Context(), "smal"); err == nil {
		t.Error("no such image is used")
	} else {
		code(t, err, glovebox.CodeNotFound, "did you mean small?")
	}
}

// TestTampered: whatever is changed in the store, the image is not used, and verify says what it is.
func TestTampered(t *testing.T) {
	write := func(p string) error {
		return errors.Join(os.Chmod(p, 0o644), os.WriteFile(p, []byte("bad"), 0o644), os.Chmod(p, 0o555))
	}
	for name, tt := range map[string]struct {
		change func(tree string) error
		want   string // what verify says; empty: it holds
	}{
		"content of the same length": {func(tree string) error {
			return write(tree + "/usr/lib/a.so")
		}, `"/usr/lib/a.so" has another content`},
		"added": {func(tree string) error {
			return errors.Join(os.Chmod(tree+"/usr/lib", 0o755), os.WriteFile(tree+"/usr/lib/b", nil, 0o444), os.Chmod(tree+"/usr/lib", 0o555))
		}, `"/usr/lib/b" was added`},
		"removed": {func(tree string) error {
			return errors.Join(os.Chmod(tree+"/usr/lib", 0o755), os.Remove(tree+"/usr/lib/a.so"), os.Chmod(tree+"/usr/lib", 0o555))
		}, `"/usr/lib/a.so" is missing`},
		"link": {func(tree string) error {
			return errors.Join(os.Chmod(tree, 0o755), os.Remove(tree+"/bin"), os.Symlink("/etc", tree+"/bin"), os.Chmod(tree, 0o555))
		}, `"/bin" leads elsewhere`},
		"mode":     {func(tree string) error { return os.Chmod(tree+"/usr/bin/python3", 0o755|os.ModeSetuid) }, "has mode"},
		"touched":  {func(tree string) error { return os.Chtimes(tree+"/usr/lib/a.so", time.Now(), time.Now()) }, ""},
		"manifest": {func(tree string) error { return write(filepath.Dir(tree) + "/manifest") }, "manifest"},
		"seal":     {func(tree string) error { return os.Remove(filepath.Dir(tree) + "/seal") }, ""},
		"gone":     {func(tree string) error { return livefolder.RemoveTree(filepath.Dir(tree)) }, "folder is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			st := add(t, s, "small", small)
			u, err := s.Use(t.Context(), "small")
			if err != nil {
				t.Fatal(err)
			}
			defer u.Close()
			time.Sleep(10 * time.Millisecond) // clocks of file systems are coarse
			if err := tt.change(filepath.Join(s.folder(st.Digest), "tree")); err != nil {
				t.Fatal(err)
			}
			if name != "manifest" && name != "seal" {
				code(t, u.Check(t.Context()), glovebox.CodeUnavailable, "glovebox image verify small")
			}
			_, err = s.Use(t.Context(), "small")
			code(t, err, glovebox.CodeUnavailable, "glovebox image verify small")
			v, err := s.Verify(t.Context(), "small")
			if err != nil || v.OK != (tt.want == "") || v.Renewed != v.OK || !strings.Contains(strings.Join(v.Problems, "\n"), tt.want) {
				t.Fatalf("%+v, %v", v, err)
			}
			if v.OK {
				if u, err := s.Use(t.Context(), "small"); err != nil {
					t.Error("verified, and not used: ", err)
				} else {
					u.Close()
				}
				return
			}
			u.Close()
			if again, err := s.Add(t.Context(), "small", "test", false, filled(small)); err != nil || again.Digest != st.Digest {
				t.Fatalf("made again: %v", err)
			}
			if u, err := s.Use(t.Context(), "small"); err != nil {
				t.Error("made again, and not used: ", err)
			} else {
				u.Close()
			}
			if got := folders(t, s); len(got) != 1 {
				t.Errorf("left: %v", got)
			}
		})
	}
}

func TestNames(t *testing.T) {
	s := newStore(t)
	first := add(t, s, "a", small)
	if again := add(t, s, "a", small); again.Digest != first.Digest {
		t.Error("the same has another digest")
	}
	add(t, s, "b", small)
	other := map[string]string{"usr/bin/x": "y"}
	_, err := s.Add(t.Context(), "a", "test", false, filled(other))
	code(t, err, glovebox.CodeConflict, "--replace")
	if _, err = s.Add(t.Context(), "a", "test", true, filled(other)); err != nil {
		t.Fatal(err)
	}
	if got := folders(t, s); len(got) != 2 {
		t.Errorf("folders %v", got)
	}
	if err := s.Remove("b"); err != nil {
		t.Error(err)
	}
	code(t, s.Remove("b"), glovebox.CodeNotFound, "")
	if got := folders(t, s); len(got) != 1 || got[0] == strings.Replace(first.Digest, ":", "-", 1) {
		t.Errorf("folders %v", got)
	}
	for _, bad := range []string{"", "host", "A", "../x", ".x", "a/b", strings.Repeat("a", 65)} {
		_, err := s.Add(t.Context(), bad, "test", false, filled(small))
		code(t, err, glovebox.CodeInvalid, "--name")
		_, err = s.Use(t.Context(), bad)
		code(t, err, glovebox.CodeNotFound, "")
	}
}

// TestRemoveInUse: an image in use stays, whole, and one that was replaced meanwhile goes with the next change.
func TestRemoveInUse(t *testing.T) {
	s := newStore(t)
	add(t, s, "a", small)
	u, err := s.Use(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	code(t, s.Remove("a"), glovebox.CodeConflict, "in use")
	if _, err := s.Add(t.Context(), "a", "test", true, filled(map[string]string{"x": "y"})); err != nil {
		t.Fatal(err)
	}
	if err := u.Check(t.Context()); err != nil {
		t.Error(err)
	}
	u.Close()
	if err := s.Remove("a"); err != nil {
		t.Error(err)
	}
	if got := folders(t, s); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
}

func TestFailedFill(t *testing.T) {
	s := newStore(t)
	ctx, cancel := context.WithCancel(t.Context())
	for name, fill := range map[string]Fill{
		"fails": func(context.Context, *unpack.Tree, string) (image.Settings, error) {
			return image.Settings{}, errors.New("no")
		},
		"cancelled": func(ctx context.Context, tree *unpack.Tree, work string) (image.Settings, error) {
			cancel()
			return filled(small)(ctx, tree, work)
		},
	} {
		if _, err := s.Add(ctx, "a", "test", false, fill); err == nil {
			t.Error(name)
		}
		if got := folders(t, s); len(got) != 0 {
			t.Errorf("%s: left: %v", name, got)
		}
	}
}

// TestAtOnce: the same from many sides at once is one image, which is whole.
func TestAtOnce(t *testing.T) {
	s := newStore(t)
	var all sync.WaitGroup
	for i := range 6 {
		all.Go(func() {
			if _, err := s.Add(t.Context(), fmt.Sprint("n", i%2), "test", false, filled(small)); err != nil {
				t.Error(err)
			}
			u, err := s.Use(t.Context(), fmt.Sprint("n", i%2))
			if err != nil {
				t.Error(err)
				return
			}
			u.Close()
		})
	}
	all.Wait()
	if got := folders(t, s); len(got) != 1 {
		t.Errorf("folders %v", got)
	}
}

func TestManifest(t *testing.T) {
	settings, err := image.NewSettings(map[string]string{"A": "x\ty"}, []string{"a.b"})
	if err != nil {
		t.Fatal(err)
	}
	entries := []unpack.Entry{{Path: "/a", Kind: unpack.Folder}, {Path: `/a/"é`, Kind: unpack.Regular, Executable: true, Size: 3, SHA256: [32]byte{1}},
		{Path: "/l x", Kind: unpack.Link, Target: "a\nb \""}}
	settings.Distribution = true
	text := encode(settings, entries)
	gotSettings, err := settingsOf(text)
	if d := cmp.Diff(settings, gotSettings); d != "" || err != nil {
		t.Error(d, err)
	}
	got, err := entriesOf(text)
	if d := cmp.Diff(entries, got); d != "" || err != nil {
		t.Error(d, err)
	}
	for _, bad := range []string{"", "x", manifestHead + "\nq 1", manifestHead + "\nf 0444 1 00 \"/a\"", manifestHead + "\nd 0555 x"} {
		if _, err := entriesOf([]byte(bad)); err == nil {
			t.Errorf("%q is taken for a manifest", bad)
		}
	}
}

// FuzzManifest: what is read of any text can be written and read again.
func FuzzManifest(f *testing.F) {
	f.Add(encode(image.Settings{Env: []string{"A=b"}}, []unpack.Entry{{Path: "/a", Kind: unpack.Link, Target: "b"}}))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := settingsOf(text)
		entries, err2 := entriesOf(text)
		if err != nil || err2 != nil {
			return
		}
		again, err := entriesOf(encode(s, entries))
		if err != nil || !cmp.Equal(entries, again) {
			t.Errorf("%v: %s", err, cmp.Diff(entries, again))
		}
	})
}

// TestWatch: what is changed is heard of at once, and reading is not.
func TestWatch(t *testing.T) {
	for name, change := range map[string]func(tree string) error{
		"content": func(tree string) error {
			f := tree + "/usr/lib/a.so"
			return errors.Join(os.Chmod(f, 0o755), os.WriteFile(f, []byte("bad"), 0o755))
		},
		"mode":  func(tree string) error { return os.Chmod(tree+"/usr/bin/python3", 0o755) },
		"added": func(tree string) error { return os.WriteFile(tree+"/usr/lib/b", nil, 0o444) },
		"date":  func(tree string) error { return os.Chtimes(tree+"/usr/lib/a.so", time.Now(), time.Now()) },
		"root":  func(tree string) error { return os.Chmod(tree, 0o700) },
	} {
		s := newStore(t)
		add(t, s, "small", small)
		u, err := s.Use(t.Context(), "small")
		if err != nil {
			t.Fatal(err)
		}
		if u.Quiet() {
			t.Error("it knows without a watch")
		}
		if err := u.Watch(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := os.ReadFile(u.Tree() + "/usr/lib/a.so"); err != nil || !u.Quiet() {
			t.Errorf("%s: reading is heard: %v", name, err)
		}
		if err := change(u.Tree()); err != nil && os.Getuid() == 0 {
			t.Fatal(err)
		} else if err == nil && u.Quiet() {
			t.Errorf("%s is not heard of", name)
		}
		if !u.Quiet() {
			t.Errorf("%s is heard of twice", name)
		}
		u.Close()
	}
}
