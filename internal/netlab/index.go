package netlab

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
)

// newIndex is index.test: at /simple an index for pip with the package labwheel, elsewhere a registry for npm with the
// package labmodule. Each is small, and says "made in the laboratory".
func newIndex() (http.Handler, error) {
	wheel, err := makeWheel()
	if err != nil {
		return nil, err
	}
	module, err := makeModule()
	if err != nil {
		return nil, err
	}
	const file = "labwheel-1.0-py3-none-any.whl"
	m := http.NewServeMux()
	m.HandleFunc("/simple/labwheel/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<!DOCTYPE html><html><body><a href="/files/%s">%s</a></body></html>`, file, file)
	})
	m.HandleFunc("/files/"+file, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(wheel) })
	m.HandleFunc("/labmodule", func(w http.ResponseWriter, r *http.Request) {
		sum := sha512.Sum512(module)
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{
			"name": "labmodule", "dist-tags": map[string]string{"latest": "1.0.0"},
			"versions": map[string]any{"1.0.0": map[string]any{"name": "labmodule", "version": "1.0.0", "dist": map[string]string{
				"tarball":   "https://index.test/labmodule/-/labmodule-1.0.0.tgz",
				"integrity": "sha512-" + base64.StdEncoding.EncodeToString(sum[:])}}},
		})
	})
	m.HandleFunc("/labmodule/-/labmodule-1.0.0.tgz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(module) })
	return m, nil
}

func makeWheel() ([]byte, error) {
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	const info = "labwheel-1.0.dist-info/"
	for _, f := range [][2]string{
		{"labwheel.py", "said = 'made in the laboratory'\n"},
		{info + "METADATA", "Metadata-Version: 2.1\nName: labwheel\nVersion: 1.0\n"},
		{info + "WHEEL", "Wheel-Version: 1.0\nGenerator: laboratory\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
		{info + "RECORD", "labwheel.py,,\n" + info + "METADATA,,\n" + info + "WHEEL,,\n" + info + "RECORD,,\n"},
	} {
		w, err := z.Create(f[0])
		if err != nil {
			return nil, err
		}
		if _, err := w.Write([]byte(f[1])); err != nil {
			return nil, err
		}
	}
	err := z.Close()
	return b.Bytes(), err
}

func makeModule() ([]byte, error) {
	var b bytes.Buffer
	g := gzip.NewWriter(&b)
	t := tar.NewWriter(g)
	for _, f := range [][2]string{
		{"package/package.json", `{"name":"labmodule","version":"1.0.0","main":"index.js"}`},
		{"package/index.js", "module.exports = 'made in the laboratory'\n"},
	} {
		if err := t.WriteHeader(&tar.Header{Name: f[0], Mode: 0o644, Size: int64(len(f[1]))}); err != nil {
			return nil, err
		}
		if _, err := t.Write([]byte(f[1])); err != nil {
			return nil, err
		}
	}
	if err := t.Close(); err != nil {
		return nil, err
	}
	err := g.Close()
	return b.Bytes(), err
}

// repositories is git.test: /project.git can be fetched and pushed to. Without git there are none.
func (l *Lab) repositories() (http.Handler, error) {
	git, err := exec.LookPath("git")
	if err != nil {
		return http.NotFoundHandler(), nil
	}
	out, err := exec.Command(git, "--exec-path").Output()
	if err != nil {
		return nil, fmt.Errorf("git --exec-path: %w", err)
	}
	root := filepath.Join(l.Dir, "repositories")
	work := filepath.Join(l.Dir, "project")
	for _, args := range [][]string{
		{"init", "-q", "-b", "main", work},
		{"-C", work, "-c", "user.name=lab", "-c", "user.email=lab@lab.test", "commit", "-q", "--allow-empty",
			"-m", "made in the laboratory"},
		{"clone", "-q", "--bare", work, filepath.Join(root, "project.git")},
		{"-C", filepath.Join(root, "project.git"), "config", "http.receivepack", "true"},
	} {
		cmd := exec.Command(git, args...)
		cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "HOME="+l.Dir)
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("git %v: %w: %s", args, err, out)
		}
	}
	backend := &cgi.Handler{Path: filepath.Join(string(bytes.TrimSpace(out)), "git-http-backend"), Dir: root,
		Env: []string{"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1", "HOME=" + l.Dir}, Stderr: os.Stderr}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.TransferEncoding) > 0 { // which the CGI handler does not take
			body, err := io.ReadAll(io.LimitReader(r.Body, 64<<20))
			if err != nil {
				return
			}
			r.Body, r.ContentLength, r.TransferEncoding = io.NopCloser(bytes.NewReader(body)), int64(len(body)), nil
		}
		backend.ServeHTTP(w, r)
	}), nil
}
