package imagesource

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/klauspost/compress/zstd"

	"glovebox"
	"glovebox/internal/image"
	"glovebox/internal/unpack"
)

const platform = "linux/amd64"

// packing is a tar archive of files: name, content, name, content, …
func packing(t testing.TB, files ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := 0; i < len(files); i += 2 {
		if err := w.WriteHeader(&tar.Header{Name: files[i], Mode: 0o755, Size: int64(len(files[i+1]))}); err != nil {
			t.Fatal(err)
		}
		io.WriteString(w, files[i+1])
	}
	w.Close()
	return b.Bytes()
}

// made is an image of two layers, the upper of which removes and adds.
func made(t testing.TB, arch string) v1.Image {
	t.Helper()
	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: arch,
		Config: v1.Config{Env: []string{"PATH=/opt/bin", "HOME=/root"}, Entrypoint: []string{"/evil"}}})
	for _, files := range [][]string{{"usr/bin/a", "1", "usr/bin/b", "1"}, {"usr/bin/.wh.b", "", "usr/bin/c", "3"}} {
		text := packing(t, files...)
		l, e := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text)), nil })
		if e != nil {
			t.Fatal(e)
		}
		if img, e = mutate.AppendLayers(img, l); e != nil {
			t.Fatal(e)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// get imports a source and lists the files of the tree, with their content.
func get(t testing.TB, cfg Config, source string) (map[string]string, image.Settings, error) {
	t.Helper()
	dir := t.TempDir()
	at, work := filepath.Join(dir, "tree"), filepath.Join(dir, "work")
	if err := errors.Join(os.Mkdir(at, 0o700), os.Mkdir(work, 0o700)); err != nil {
		t.Fatal(err)
	}
	tree, err := unpack.New(unpack.Config{Dir: at, MaxBytes: 10 * glovebox.MiB, MaxEntries: 1000})
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	cfg.Platform = platform
	s, err := Import(t.Context(), cfg, source, tree, work)
	files := map[string]string{}
	filepath.WalkDir(at, func(p string, d fs.DirEntry, _ error) error {
		if d.Type().IsRegular() {
			b, _ := os.ReadFile(p)
			files[strings.TrimPrefix(p, at)] = string(b)
		}
		return nil
	})
	return files, s, err
}

func put(t testing.TB, text []byte) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "image.tar")
	if err := os.WriteFile(name, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func gzipped(text []byte) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	w.Write(text)
	w.Close()
	return b.Bytes()
}

func zstded(text []byte) []byte {
	w, _ := zstd.NewWriter(nil)
	return w.EncodeAll(text, nil)
}

// saved is what docker save writes.
func saved(t testing.TB, img v1.Image) []byte {
	t.Helper()
	var b bytes.Buffer
	tag, err := name.NewTag("example.test/made:1")
	if err == nil {
		err = tarball.Write(tag, img, &b)
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// laidOut is the folder of an OCI layout.
func laidOut(t testing.TB, images ...v1.Image) string {
	t.Helper()
	dir := t.TempDir()
	p, err := layout.Write(dir, empty.Index)
	for _, img := range images {
		c, _ := img.ConfigFile()
		err = errors.Join(err, p.AppendImage(img, layout.WithPlatform(v1.Platform{OS: c.OS, Architecture: c.Architecture})))
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// packed archives a folder.
func packedFolder(t testing.TB, dir string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.AddFS(os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	w.Close()
	return b.Bytes()
}

var whole = map[string]string{"/usr/bin/a": "1", "/usr/bin/c": "3"}

func TestImport(t *testing.T) {
	img := made(t, "amd64")
	root := packing(t, "usr/bin/a", "1", "usr/bin/c", "3", "manifest.json", "not of docker")
	withRoot := map[string]string{"/usr/bin/a": "1", "/usr/bin/c": "3", "/manifest.json": "not of docker"}
	for name, tt := range map[string]struct {
		source string
		want   map[string]string
		env    []string
	}{
		"layout":               {laidOut(t, made(t, "arm64"), img), whole, []string{"PATH=/opt/bin"}},
		"layout in an archive": {put(t, packedFolder(t, laidOut(t, img))), whole, []string{"PATH=/opt/bin"}},
		"docker save":          {put(t, saved(t, img)), whole, []string{"PATH=/opt/bin"}},
		"docker save, gzip":    {put(t, gzipped(saved(t, img))), whole, []string{"PATH=/opt/bin"}},
		"root":                 {put(t, root), withRoot, nil},
		"root, gzip":           {put(t, gzipped(root)), withRoot, nil},
		"root, zstd":           {put(t, zstded(root)), withRoot, nil},
	} {
		t.Run(name, func(t *testing.T) {
			files, s, err := get(t, Config{}, tt.source)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, files); d != "" {
				t.Error(d)
			}
			if d := cmp.Diff(tt.env, s.Env); d != "" {
				t.Error(d)
			}
		})
	}
}

// altered changes the file of a layout that satisfies.
func altered(t *testing.T, change func(name string, text []byte) []byte) string {
	t.Helper()
	dir := laidOut(t, made(t, "amd64"))
	filepath.WalkDir(dir, func(p string, d fs.DirEntry, _ error) error {
		if d.Type().IsRegular() {
			text, _ := os.ReadFile(p)
			if next := change(strings.TrimPrefix(p, dir+"/"), text); next == nil {
				os.Remove(p)
			} else if !bytes.Equal(next, text) {
				os.WriteFile(p, next, 0o600)
			}
		}
		return nil
	})
	return dir
}

func TestBadSource(t *testing.T) {
	blob := func(begin string) func(func([]byte) []byte) func(string, []byte) []byte {
		return func(to func([]byte) []byte) func(string, []byte) []byte {
			return func(name string, text []byte) []byte {
				if strings.HasPrefix(name, "blobs/") && bytes.HasPrefix(text, []byte(begin)) {
					return to(text)
				}
				return text
			}
		}
	}
	gone := func([]byte) []byte { return nil }
	other := func(text []byte) []byte { return append(text, ' ') }
	for name, tt := range map[string]struct{ source, want string }{
		"nothing":          {"/nowhere/at/all", "there is no"},
		"no archive":       {put(t, []byte("text")), "no archive"},
		"empty":            {put(t, nil), ""},
		"a folder":         {t.TempDir(), "no OCI layout"},
		"xz":               {put(t, []byte("\xfd7zXZ\x00....")), "xz"},
		"platform":         {laidOut(t, made(t, "arm64")), "linux/arm64"},
		"two images":       {laidOut(t, made(t, "amd64"), made(t, "amd64")), "holds 2 images"},
		"layer changed":    {altered(t, blob("\x1f\x8b")(func(b []byte) []byte { return gzipped(packing(t, "usr/bin/evil", "x")) })), "digest"},
		"layer cut":        {altered(t, blob("\x1f\x8b")(func(b []byte) []byte { return b[:len(b)/2] })), "damaged"},
		"layer with more":  {altered(t, blob("\x1f\x8b")(func(b []byte) []byte { return append(b, gzipped([]byte("x"))...) })), "digest"},
		"layer gone":       {altered(t, blob("\x1f\x8b")(gone)), "missing"},
		"documents":        {altered(t, blob("{")(other)), "digest"},
		"documents gone":   {altered(t, blob("{")(gone)), "missing"},
		"saved, no config": {put(t, packing(t, "manifest.json", `[{"Config":"x.json","Layers":[]}]`)), "configuration"},
		"saved, climbing":  {put(t, packing(t, "manifest.json", `[{"Config":"../../etc/passwd","Layers":[]}]`)), "configuration"},
		"saved, wrong":     {put(t, packing(t, "manifest.json", `[{"Config":1}]`)), "manifest.json"},
		"saved, layers":    {put(t, packing(t, "manifest.json", `[{"Config":"`+hexes+`.json","Layers":["x"]}]`, hexes+".json", `{}`)), "1 layers"},
	} {
		t.Run(name, func(t *testing.T) {
			files, _, err := get(t, Config{}, tt.source)
			var e *glovebox.Error
			if name == "empty" {
				return // an archive of nothing
			}
			if !errors.As(err, &e) || e.Fix == "" || e.Code == glovebox.CodeInternal || !strings.Contains(e.Public+e.Fix, tt.want) {
				t.Errorf("error %v, want one of %q (%v)", err, tt.want, files)
			}
		})
	}
}

var hexes = strings.Repeat("ab", 32)

// TestRegistry pulls from a registry in this process.
func TestRegistry(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	ref, err := name.ParseReference(host+"/team/made:1", name.Insecure)
	if err == nil {
		err = remote.Write(ref, made(t, "amd64"))
	}
	if err != nil {
		t.Fatal(err)
	}
	files, s, err := get(t, Config{PlainHTTP: true}, "docker://"+ref.String())
	if d := cmp.Diff(whole, files); d != "" || err != nil || len(s.Env) != 1 {
		t.Error(d, err, s)
	}
	digest, _ := made(t, "amd64").Digest()
	if _, _, err := get(t, Config{PlainHTTP: true}, "docker://"+host+"/team/made@"+digest.String()); err != nil {
		t.Error(err)
	}
	for source, want := range map[string]string{
		"docker://" + host + "/team/none:1": "could not be fetched",
		"docker://python:3":                 "in full",
		"docker://team/made:1":              "in full",
		"docker://" + host + "/team/made":   "in full",
	} {
		_, _, err := get(t, Config{PlainHTTP: true}, source)
		var e *glovebox.Error
		if !errors.As(err, &e) || !strings.Contains(e.Public+e.Fix, want) {
			t.Errorf("%s: %v", source, err)
		}
	}
}

// TestOnlyNamedHosts: a registry that sends its callers elsewhere is not followed, unless that place was named.
func TestOnlyNamedHosts(t *testing.T) {
	asked := 0
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	far := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { asked++; inner.ServeHTTP(w, r) }))
	defer far.Close()
	near := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
			http.Redirect(w, r, far.URL+r.URL.Path, http.StatusTemporaryRedirect)
			return
		}
		inner.ServeHTTP(w, r)
	}))
	defer near.Close()
	host := strings.TrimPrefix(near.URL, "http://")
	ref, err := name.ParseReference(host+"/team/made:1", name.Insecure)
	if err == nil {
		err = remote.Write(ref, made(t, "amd64"))
	}
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = get(t, Config{PlainHTTP: true}, "docker://"+ref.String())
	var e *glovebox.Error
	elsewhere := strings.TrimPrefix(far.URL, "http://")
	if !errors.As(err, &e) || e.Code != glovebox.CodeDenied || !strings.Contains(e.Fix, "--also "+elsewhere) || asked > 0 {
		t.Fatalf("error %v, asked %d times", err, asked)
	}
	if files, _, err := get(t, Config{PlainHTTP: true, Hosts: []string{elsewhere}}, "docker://"+ref.String()); err != nil || !cmp.Equal(whole, files) {
		t.Error(err, files)
	}
}

// lying answers with other bytes than the digest that was asked for.
type lying struct{ next http.RoundTripper }

func (l lying) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := l.next.RoundTrip(r)
	if err == nil && strings.Contains(r.URL.Path, "/blobs/") {
		b, _ := io.ReadAll(res.Body)
		if bytes.HasPrefix(b, []byte("\x1f\x8b")) {
			b[len(b)/2] ^= 1
		}
		res.Body = io.NopCloser(bytes.NewReader(b))
	}
	return res, err
}

func TestLyingRegistry(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	ref, err := name.ParseReference(strings.TrimPrefix(server.URL, "http://")+"/team/made:1", name.Insecure)
	if err == nil {
		err = remote.Write(ref, made(t, "amd64"))
	}
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = get(t, Config{PlainHTTP: true, Transport: lying{http.DefaultTransport}}, "docker://"+ref.String())
	var e *glovebox.Error
	if !errors.As(err, &e) || e.Code != glovebox.CodeInvalid || !strings.Contains(e.Public, "damaged") {
		t.Errorf("error %v", err)
	}
}

func TestName(t *testing.T) {
	for source, want := range map[string]string{"docker://host:5000/a/Python:3.12": "python", "docker://h.x/a@sha256:00": "a",
		"/tmp/Root.tar.gz": "root", "x.tgz": "x", "layout/": "layout", ".": "."} {
		if got := Name(source); got != want {
			t.Errorf("%s is called %s, want %s", source, got, want)
		}
	}
}

// FuzzSource: no file makes the reader of layouts panic or run away.
func FuzzSource(f *testing.F) {
	f.Add(saved(f, made(f, "amd64")))
	f.Add(packedFolder(f, laidOut(f, made(f, "amd64"))))
	sum := sha256.Sum256([]byte("{}"))
	f.Add(packing(f, "index.json", fmt.Sprintf(`{"manifests":[{"digest":"sha256:%s"}]}`, hex.EncodeToString(sum[:]))))
	f.Fuzz(func(t *testing.T, text []byte) {
		get(t, Config{}, put(t, text))
	})
}

// TestArchiveBomb: an archive of layers that grows when it is unpacked is given up at what an image may hold, before it fills
// the disk.
func TestArchiveBomb(t *testing.T) {
	text := packing(t, "manifest.json", "[]", "blobs/a", strings.Repeat("\x00", 8<<20))
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	z.Write(text)
	z.Close()
	dir := t.TempDir()
	name := filepath.Join(dir, "bomb.tar.gz")
	if err := os.WriteFile(name, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	work := t.TempDir()
	plain, err := plainFile(t.Context(), f, work, 1<<20)
	var known *glovebox.Error
	if !errors.As(err, &known) || !strings.Contains(known.Public, "more than 1MiB") {
		t.Errorf("%v, %v", plain, err)
	}
	if info, err := os.Stat(filepath.Join(work, "archive.tar")); err != nil || info.Size() > 1<<20+1 {
		t.Errorf("%v, %v", info, err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	if kept, err := keepsLayers(t.Context(), f, 1<<20); err == nil {
		t.Errorf("it was read to its end, and is one of layers: %v", kept)
	}
}
