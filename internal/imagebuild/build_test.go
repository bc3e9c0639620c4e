package imagebuild

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"glovebox"
	"glovebox/internal/image"
	"glovebox/internal/imagestore"
	"glovebox/internal/livefolder"
	"glovebox/internal/unpack"
)

func wants(t *testing.T, err error, code glovebox.Code, op, text string) {
	t.Helper()
	var e *glovebox.Error
	if !errors.As(err, &e) || e.Code != code || e.Op != op || e.Fix == "" || !strings.Contains(e.Public+e.Fix, text) {
		t.Errorf("error %#v, want %s at %q with %q", err, code, op, text)
	}
}

func TestRecipe(t *testing.T) {
	many := make([]string, maxPackages+1)
	for i := range many {
		many[i] = "aa"
	}
	for name, tt := range map[string]struct {
		recipe   Recipe
		code     glovebox.Code
		op, text string
	}{
		"good":            {Recipe{Base: Release, Apt: []string{"python3", "g++", "libc6:amd64", "x11=1:2.3~rc1-4"}}, "", "", ""},
		"flag":            {Recipe{Base: Release, Apt: []string{"-oAPT::Update::Pre-Invoke::=id"}}, glovebox.CodeInvalid, "apt", "no package"},
		"removal":         {Recipe{Base: Release, Apt: []string{"dpkg-"}}, glovebox.CodeInvalid, "apt", "no package"},
		"too many":        {Recipe{Base: Release, Apt: many}, glovebox.CodeInvalid, "apt", "more than"},
		"pip address":     {Recipe{Base: Release, Pip: []string{"x @ https://evil.example/x.whl"}}, glovebox.CodeInvalid, "pip", "no addresses"},
		"pip path":        {Recipe{Base: Release, Pip: []string{"./x"}}, glovebox.CodeInvalid, "pip", "no package"},
		"pip flag":        {Recipe{Base: Release, Pip: []string{"--index-url=x"}}, glovebox.CodeInvalid, "pip", "no package"},
		"npm address":     {Recipe{Base: Release, Npm: []string{"git+ssh://x/y"}}, glovebox.CodeInvalid, "npm", "no package"},
		"npm folder":      {Recipe{Base: Release, Npm: []string{"../x"}}, glovebox.CodeInvalid, "npm", "no package"},
		"npm flag":        {Recipe{Base: Release, Npm: []string{"--ignore-scripts=false"}}, glovebox.CodeInvalid, "npm", "no package"},
		"go":              {Recipe{Base: Release, Go: []string{"golang.org/x/text@v0.14.0", "example.com/a/b/v2@v2.0.0-rc.1"}}, "", "", ""},
		"go address":      {Recipe{Base: Release, Go: []string{"https://example.com/x@v1.0.0"}}, glovebox.CodeInvalid, "go", "no package"},
		"go latest":       {Recipe{Base: Release, Go: []string{"example.com/x@latest"}}, glovebox.CodeInvalid, "go", "no package"},
		"climbs":          {Recipe{Base: Release, Files: []File{{Path: "/etc/../../x"}}}, glovebox.CodeInvalid, "files", "no path"},
		"relative":        {Recipe{Base: Release, Files: []File{{Path: "etc/x"}}}, glovebox.CodeInvalid, "files", "no path"},
		"cycle":           {Recipe{Base: "self"}, glovebox.CodeInvalid, "base", "its own base"},
		"base":            {Recipe{Base: "../x"}, glovebox.CodeInvalid, "base", "name of an image"},
		"host":            {Recipe{Base: "host"}, glovebox.CodeInvalid, "base", "base: release"},
		"covered":         {Recipe{Base: Release, Files: []File{{Path: "/code/x"}}}, glovebox.CodeInvalid, "files", "/opt"},
		"covered link":    {Recipe{Base: Release, Files: []File{{Path: "/var/tmp/x"}}}, glovebox.CodeInvalid, "files", "own there"},
		"replaced":        {Recipe{Base: Release, Files: []File{{Path: "/etc/passwd"}}}, glovebox.CodeInvalid, "files", "own there"},
		"not covered":     {Recipe{Base: Release, Files: []File{{Path: "/etc/timezone"}, {Path: "/opt/code"}, {Path: "/codes"}}}, "", "", ""},
		"apt over others": {Recipe{Base: "other", Apt: []string{"aa"}}, glovebox.CodeUnavailable, "apt", "base: release"},
	} {
		err := tt.recipe.check("self")
		if tt.code == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		wants(t, err, tt.code, tt.op, tt.text)
	}
}

func TestLock(t *testing.T) {
	list := []Locked{{"apt", "bb", "1:2-3", "sha256:" + strings.Repeat("a", 64)}, {"apt", "aa", "1", "sha256:" + strings.Repeat("b", 64)},
		{"npm", "node_modules/@x/y", "1.0.0", "sha512-" + strings.Repeat("A", 86) + "=="}}
	got, err := ParseLock(FormatLock(list))
	if d := cmp.Diff(sorted(list), got); d != "" || err != nil {
		t.Error(d, err)
	}
	_, err = ParseLock([]byte("# x\napt aa 1\n"))
	wants(t, err, glovebox.CodeInvalid, "", "line 2")
	for _, l := range []string{"pip https://stranger.example/x.tar.gz# 1", "pip x@file:///tmp/x# 1", "pip ../x 1", "pip -r 1",
		"pip x 1;y", "apt /tmp/x.deb 1", "apt x- 1/y", "apt ?name(x) 1"} {
		_, err = ParseLock([]byte(l + " sha256:" + strings.Repeat("a", 64) + "\n"))
		wants(t, err, glovebox.CodeInvalid, "", "no package")
	}
	apt := of(list, "apt")
	if err := compare("apt", apt, list); err != nil {
		t.Error(err)
	}
	wants(t, compare("apt", append(apt, Locked{"apt", "new", "1", "x"}), list), glovebox.CodeConflict, "", "has no apt new")
	wants(t, compare("apt", apt[:1], list), glovebox.CodeConflict, "", "not needed any more")
	other := []Locked{apt[0], {"apt", "aa", "2", apt[1].Hash}}
	wants(t, compare("apt", other, list), glovebox.CodeConflict, "", "version 1, and 2")
	other[1] = Locked{"apt", "aa", "1", apt[0].Hash}
	wants(t, compare("apt", other, list), glovebox.CodeConflict, "", "another hash")
}

func FuzzLock(f *testing.F) {
	f.Add([]byte("apt aa 1 sha256:" + strings.Repeat("0", 64)))
	f.Fuzz(func(t *testing.T, text []byte) {
		list, err := ParseLock(text)
		if err != nil {
			return
		}
		if again, err := ParseLock(FormatLock(list)); err != nil || !cmp.Equal(sorted(list), again) {
			t.Errorf("%v, %v", list, err)
		}
	})
}

// wheel makes a wheel: name, content, name, content, …
func wheel(t *testing.T, dir, name string, files ...string) string {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for i := 0; i < len(files); i += 2 {
		w, err := z.Create(files[i])
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(w, files[i+1])
	}
	z.Close()
	full := filepath.Join(dir, name)
	if err := os.WriteFile(full, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	return full
}

// demo is a wheel that pip takes for one.
func demo(t *testing.T, dir string) {
	wheel(t, dir, "demo_pkg-1.0-py3-none-any.whl", "demo_pkg/__init__.py", "def main():\n    print('demo')\n",
		"demo_pkg-1.0.data/scripts/tool", "#!python\n", "demo_pkg-1.0.data/data/share/x", "x",
		"demo_pkg-1.0.dist-info/entry_points.txt", "[console_scripts]\ndemo = demo_pkg:main\nbad = a b:c\n[other]\nno = a:b\n",
		"demo_pkg-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: demo-pkg\nVersion: 1.0\n",
		"demo_pkg-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
		"demo_pkg-1.0.dist-info/RECORD", "")
}

func TestWheel(t *testing.T) {
	dir := t.TempDir()
	demo(t, dir)
	var b bytes.Buffer
	if err := packWheel(&b, filepath.Join(dir, "demo_pkg-1.0-py3-none-any.whl"), "/site"); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for r := tar.NewReader(&b); ; {
		h, err := r.Next()
		if err != nil {
			break
		}
		text, _ := io.ReadAll(r)
		got[h.Name] = string(text)
	}
	for name, want := range map[string]string{"/site/demo_pkg/__init__.py": "def main", "/usr/local/bin/tool": "#!python", "/usr/local/share/x": "x",
		"/usr/local/bin/demo": "from demo_pkg import main\nsys.exit(main())"} {
		if !strings.Contains(got[name], want) {
			t.Errorf("%s has %q", name, got[name])
		}
	}
	if len(got) != 8 {
		t.Errorf("%d files: %v", len(got), got)
	}
	if err := packWheel(io.Discard, wheel(t, dir, "x.whl")+".no", "/site"); err == nil {
		t.Error("no wheel is none")
	}
}

// builder has a store with an image called base that has a Python.
func builder(t *testing.T, env ...string) (*Builder, *imagestore.Store) {
	t.Helper()
	dir := t.TempDir()
	t.Cleanup(func() { livefolder.RemoveTree(filepath.Join(dir, "images")) })
	s := imagestore.New(imagestore.Config{Dir: filepath.Join(dir, "images")})
	_, err := s.Add(t.Context(), "base", "test", false, func(_ context.Context, tree *unpack.Tree, _ string) (image.Settings, error) {
		return image.Settings{Env: []string{"A=base", "B=base"}, Modules: []string{"m"}, Distribution: true}, errors.Join(tree.Put("/usr/bin/python3.11", []byte("x"), true),
			tree.Symlink("/usr/bin/python3", "python3.11"))
	})
	if err != nil {
		t.Fatal(err)
	}
	scratch := filepath.Join(dir, "scratch")
	if err := os.Mkdir(scratch, 0o755); err != nil {
		t.Fatal(err)
	}
	for at := scratch; at != os.TempDir() && at != "/"; at = filepath.Dir(at) {
		os.Chmod(at, 0o755) // the user who fetches must reach it
	}
	return New(Config{Store: s, Scratch: scratch, Env: append(env, "PATH=/usr/bin:/bin"), Log: io.Discard,
		Ready: func(context.Context) error {
			return glovebox.Errorf(glovebox.CodeUnavailable, "mend it", "there is no gvisor rung")
		}}), s
}

func TestBuildOver(t *testing.T) {
	b, s := builder(t)
	r := Recipe{Base: "base", Env: map[string]string{"B": "own"}, Files: []File{{Path: "/opt/x", Data: []byte("y"), Executable: true}}}
	st, fetched, err := b.Build(t.Context(), "over", "test", r, nil, false)
	if err != nil || len(fetched) != 0 {
		t.Fatal(err, fetched)
	}
	u, err := s.Use(t.Context(), "over")
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	if d := cmp.Diff([]string{"A=base", "B=own"}, u.Env()); d != "" || !cmp.Equal(u.Modules(), []string{"m"}) || !u.Forks() {
		t.Error(d, u.Modules(), u.Forks())
	}
	if info, err := os.Stat(filepath.Join(u.Tree(), "opt/x")); err != nil || info.Mode() != 0o555 {
		t.Error(info, err)
	}
	if again, _, err := b.Build(t.Context(), "over", "test", r, nil, true); err != nil || again.Digest != st.Digest {
		t.Errorf("built again: %v, %v", again, err)
	}
	_, _, err = b.Build(t.Context(), "over", "test", Recipe{Base: "bas"}, nil, false)
	wants(t, err, glovebox.CodeConflict, "", "--replace") // before it is looked for what it is made of
	_, err = s.Add(t.Context(), "bare", "test", false, func(_ context.Context, tree *unpack.Tree, _ string) (image.Settings, error) {
		return image.Settings{}, tree.Put("/usr/bin/true", []byte("x"), true)
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		r        Recipe
		code     glovebox.Code
		op, text string
	}{
		"no base":   {Recipe{Base: "bas"}, glovebox.CodeNotFound, "base", "did you mean base?"},
		"no gvisor": {Recipe{Base: Release, Apt: []string{"aa"}}, glovebox.CodeUnavailable, "base", "no gvisor rung"},
		"no python": {Recipe{Base: "bare", Preimport: []string{"os"}}, glovebox.CodeInvalid, "preimport", "no Python"},
		"no module": {Recipe{Base: "base", Preimport: []string{"os; x"}}, glovebox.CodeInvalid, "preimport", "no name of a module"},
	} {
		_, _, err := b.Build(t.Context(), "x-"+strings.ReplaceAll(name, " ", "-"), "test", tt.r, nil, false)
		wants(t, err, tt.code, tt.op, tt.text)
	}
	if left, _ := os.ReadDir(filepath.Join(b.cfg.Scratch, filepath.Base(mustGlob(t, b.cfg.Scratch)))); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func mustGlob(t *testing.T, dir string) string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "glovebox-fetch-*"))
	if err != nil || len(names) != 1 {
		t.Fatal(names, err)
	}
	return names[0]
}

// TestPip fetches a wheel from a folder, by pip itself.
func TestPip(t *testing.T) {
	if _, err := os.Stat("/usr/lib/python3/dist-packages/pip"); err != nil {
		t.Skip("there is no pip of the system")
	}
	links := t.TempDir()
	demo(t, links)
	b, s := builder(t, "PIP_NO_INDEX=1", "PIP_FIND_LINKS="+links)
	r := Recipe{Base: "base", Pip: []string{"demo-pkg==1.0"}}
	_, fetched, err := b.Build(t.Context(), "with", "test", r, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	if len(fetched) != 1 || fetched[0].Name != "demo_pkg" || fetched[0].Version != "1.0" {
		t.Errorf("fetched %v", fetched)
	}
	u, err := s.Use(t.Context(), "with")
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	if _, err := os.Stat(filepath.Join(u.Tree(), "usr/local/lib/python3.11/dist-packages/demo_pkg/__init__.py")); err != nil {
		t.Error(err)
	}
	if u.Forks() {
		t.Error("an image with a wheel is taken for the distribution's alone")
	}
	if _, _, err := b.Build(t.Context(), "with", "test", r, fetched, true); err != nil {
		t.Errorf("locked: %v", err)
	}
	wheel(t, links, "demo_pkg-1.0-py3-none-any.whl", "evil.py", "x", "demo_pkg-1.0.dist-info/METADATA",
		"Metadata-Version: 2.1\nName: demo-pkg\nVersion: 1.0\n", "demo_pkg-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
	_, _, err = b.Build(t.Context(), "with", "test", r, fetched, true)
	wants(t, err, glovebox.CodeConflict, "pip", "another hash")
	_, _, err = b.Build(t.Context(), "none", "test", Recipe{Base: "base", Pip: []string{"absent-pkg"}}, nil, false)
	wants(t, err, glovebox.CodeUnavailable, "pip", "absent-pkg")
}

// TestDebs: what apt left is taken apart into what everything needs and the rest, each with its hash; a name that a shell
// could misread is refused.
func TestDebs(t *testing.T) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	f := &fetcher{dir: dir, root: root, log: io.Discard}
	from := filepath.Join(dir, "fetched")
	if err := os.Mkdir(from, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"base-files_12%3a4_amd64.deb", "hello_2.10-3_amd64.deb"} {
		if err := os.WriteFile(filepath.Join(from, name), []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	d, list, err := f.debs("fetched", []byte("Reading lists...\nInst base-files (12:4 Debian:12 [amd64])\nConf base-files (…)\n"))
	if err != nil || !cmp.Equal(d.essential, []string{"base-files_12%3a4_amd64.deb"}) || !cmp.Equal(d.others, []string{"hello_2.10-3_amd64.deb"}) {
		t.Fatalf("%+v, %v", d, err)
	}
	if len(list) != 2 || list[0].Version != "12:4" || !strings.HasPrefix(list[0].Hash, "sha256:") {
		t.Errorf("%+v", list)
	}
	if err := os.WriteFile(filepath.Join(from, "x_1_$(id).deb"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(d.dir); err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.debs("fetched", nil); err == nil {
		t.Error("a name for a shell is taken")
	}
}

func TestBrief(t *testing.T) {
	for text, want := range map[string]string{
		"Get:1 x\nE: Failed to fetch x\nE: Some index files failed\n": "E: Failed to fetch x; E: Some index files failed",
		"a\nb\nc\nd\n": "b; c; d", "": "",
	} {
		if got := brief([]byte(text)); got != want {
			t.Errorf("%q is %q", text, got)
		}
	}
}

// TestToolsLeadNowhere: a tool that was taken over leaves a link where its folder was, to what it may not read itself. Nothing
// beyond the tools' folder is taken. Nor has it the terminal of whoever builds.
func TestToolsLeadNowhere(t *testing.T) {
	secret := t.TempDir()
	if err := os.WriteFile(filepath.Join(secret, "a_1_all.deb"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	b, _ := builder(t)
	w := &work{Builder: b, recipe: Recipe{Npm: []string{"x"}}, env: map[string]string{}}
	folder, err := w.folder()
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Remove(context.Background())
	defer w.fetch.root.Close()
	if err := os.MkdirAll(filepath.Join(folder.Path, "apt/cache"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, filepath.Join(folder.Path, "apt/cache/archives")); err != nil {
		t.Fatal(err)
	}
	if _, list, err := w.fetch.debs("apt/cache/archives", nil); len(list) > 0 {
		t.Errorf("took %v, %v", list, err)
	}
	if hash, err := w.fetch.keep("apt/cache/archives/a_1_all.deb", filepath.Join(folder.Path, "kept")); err == nil {
		t.Errorf("kept %s", hash)
	}
	if modules, err := w.fetch.root.OpenRoot("apt/cache/archives"); err == nil {
		t.Errorf("opened %s", modules.Name())
	}
	if _, err := w.fetch.own("apt/cache/archives"); err == nil {
		t.Error("gave a folder of others away")
	}
	// The session is the sixth field of proc(5)'s stat.
	if _, err := w.fetch.run(t.Context(), "/", "", nil, "/bin/sh", "-c", `[ "$(cut -d' ' -f6 /proc/$$/stat)" = $$ ]`); err != nil {
		t.Errorf("it leads no session of its own: %v", err)
	}
}
