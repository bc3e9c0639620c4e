package image

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"glovebox"
	"glovebox/driver"
)

// host makes a made-up host: "dir/" is a folder, "path -> target" a link, "path*" a program, else a file.
func host(t *testing.T, entries ...string) string {
	t.Helper()
	root := t.TempDir()
	for _, e := range entries {
		p, target, isLink := strings.Cut(e, " -> ")
		full := filepath.Join(root, strings.TrimSuffix(p, "*"))
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		switch {
		case isLink:
			err = os.Symlink(target, full)
		case strings.HasSuffix(p, "/"):
			err = os.MkdirAll(full, 0o755)
		case strings.HasSuffix(p, "*"):
			err = os.WriteFile(full, []byte("\x7fELF"), 0o755)
		default:
			err = os.WriteFile(full, []byte(p), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

var (
	debian = []string{
		"usr/bin/bash*", "usr/bin/python3.11*", "usr/bin/python3 -> python3.11", "usr/bin/apt-get*", "usr/sbin/", "usr/lib/",
		"usr/lib64/", "bin -> usr/bin", "sbin -> usr/sbin", "lib -> usr/lib", "lib64 -> /usr/lib64", "usr/bin/mawk*",
		"usr/bin/awk -> /etc/alternatives/awk", "etc/alternatives/awk -> /usr/bin/mawk", "etc/ld.so.cache", "etc/shadow",
		"etc/passwd", "etc/ssl/certs/ca.crt", "etc/ssl/private/key.pem", "etc/ssl/openssl.cnf", "etc/python3.11/sitecustomize.py",
		"etc/java-17-openjdk/security/java.security", "etc/pip.conf", "etc/ssh/ssh_host_key",
		"etc/os-release -> ../usr/lib/os-release",
		"usr/lib/os-release", "usr/share/zoneinfo/Etc/UTC", "var/lib/dpkg/status", "home/ann/.ssh/id", "root/.bashrc", "opt/x/y",
		"usr/lib/python3/dist-packages/numpy/", "usr/local/lib/python3.11/dist-packages/pandas/",
		"usr/lib/python3/dist-packages/obscure/",
	}
	fedora = []string{
		"usr/bin/bash*", "usr/bin/python3.13*", "usr/bin/python3 -> python3.13", "usr/bin/dnf*", "usr/lib64/", "bin -> usr/bin",
		"sbin -> usr/sbin", "usr/sbin -> bin", "lib -> usr/lib", "usr/lib/", "lib64 -> usr/lib64",
		"etc/pki/tls/certs/ca.crt", "etc/pki/tls/private/key", "etc/pki/ca-trust/extracted/pem/bundle.pem",
		"etc/ssl/certs -> ../pki/tls/certs",
		"etc/pki/tls/cert.pem -> /etc/pki/ca-trust/extracted/pem/bundle.pem", "etc/crypto-policies/back-ends/openssl.config",
		"usr/lib/sysimage/rpm/rpmdb.sqlite", "usr/lib64/python3.13/site-packages/numpy/",
	}
	alpine = []string{
		"usr/bin/python3*", "usr/lib/", "bin/bash*", "bin/busybox*", "sbin/apk*", "lib/apk/db/installed",
		"lib/ld-musl-x86_64.so.1*",
		"etc/ld-musl-x86_64.path", "etc/ssl/certs/ca-certificates.crt", "etc/ssl/cert.pem -> certs/ca-certificates.crt",
	}
)

func targets(r driver.Root) (mounts, links []string) {
	for _, m := range r.Mounts {
		mounts = append(mounts, m.Target)
	}
	for _, l := range r.Links {
		links = append(links, l.Path+" -> "+l.Target)
	}
	return mounts, links
}

func TestHostLayouts(t *testing.T) {
	for _, tt := range []struct {
		name          string
		entries       []string
		mounts, links []string
	}{
		{"debian", debian,
			[]string{"/usr", "/etc/alternatives", "/etc/java-17-openjdk", "/etc/ld.so.cache", "/etc/python3.11",
				"/etc/ssl/certs", "/etc/ssl/openssl.cnf"},
			[]string{"/bin -> /usr/bin", "/sbin -> /usr/sbin", "/lib -> /usr/lib", "/lib64 -> /usr/lib64",
				"/etc/os-release -> /usr/lib/os-release", "/etc/localtime -> /usr/share/zoneinfo/Etc/UTC", "/var/tmp -> /tmp"}},
		{"fedora", fedora,
			[]string{"/usr", "/etc/crypto-policies/back-ends", "/etc/pki/ca-trust/extracted", "/etc/pki/tls/certs"},
			[]string{"/bin -> /usr/bin", "/sbin -> /usr/bin", "/lib -> /usr/lib", "/lib64 -> /usr/lib64",
				"/etc/pki/tls/cert.pem -> /etc/pki/ca-trust/extracted/pem/bundle.pem", "/etc/ssl/certs -> /etc/pki/tls/certs",
				"/var/tmp -> /tmp"}},
		{"alpine, nothing merged", alpine,
			[]string{"/usr", "/bin", "/sbin", "/lib", "/etc/ld-musl-x86_64.path", "/etc/ssl/certs"},
			[]string{"/etc/ssl/cert.pem -> /etc/ssl/certs/ca-certificates.crt", "/var/tmp -> /tmp"}},
		{"links that lead out are left out",
			[]string{"usr/bin/bash*", "etc/ssl -> /root", "root/certs/secret", "etc/ld.so.cache -> /home/ann/key", "home/ann/key",
				"lib -> /opt/lib", "opt/lib/", "etc/fonts -> loop", "etc/loop -> fonts", "etc/magic -> ../../../../etc/shadow",
				"etc/shadow", "bin -> usr/bin", "etc/alternatives -> /", "etc/services -> nowhere"},
			[]string{"/usr"},
			[]string{"/bin -> /usr/bin", "/var/tmp -> /tmp"}},
		{"a link between places that are shown stays a link",
			[]string{"usr/bin/bash*", "etc/ssl -> /usr/share/ssl", "usr/share/ssl/certs/ca.crt"},
			[]string{"/usr"},
			[]string{"/etc/ssl/certs -> /usr/share/ssl/certs", "/var/tmp -> /tmp"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := host(t, tt.entries...)
			im, err := Host(Config{Root: root})
			if err != nil {
				t.Fatal(err)
			}
			r := im.Root()
			mounts, links := targets(r)
			if d := cmp.Diff(tt.mounts, mounts); d != "" {
				t.Errorf("mounts: %s", d)
			}
			if d := cmp.Diff(tt.links, links); d != "" {
				t.Errorf("links: %s", d)
			}
			for _, m := range r.Mounts {
				if m.Source != filepath.Join(root, m.Target) {
					t.Errorf("mount %s shows %s", m.Target, m.Source)
				}
			}
		})
	}
}

func TestHostSyntheticFiles(t *testing.T) {
	im, err := Host(Config{Root: host(t, debian...)})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, f := range im.Root().Files {
		got[f.Path] = string(f.Data)
	}
	for p, want := range map[string]string{
		"/etc/passwd":   "sandbox:x:1000:1000:sandbox:/workspace:/bin/sh",
		"/etc/hostname": "sandbox",
		"/etc/hosts":    "localhost",
	} {
		if !strings.Contains(got[p], want) {
			t.Errorf("%s is %q", p, got[p])
		}
	}
	if s, ok := got["/etc/resolv.conf"]; !ok || s != "" {
		t.Errorf("resolv.conf is %q, %v", s, ok)
	}
}

// A path that hides another would make one of the two vanish.
func TestAllowedPathsDoNotNest(t *testing.T) {
	var all []string
	for _, a := range allowed {
		all = append(all, a.path)
	}
	for _, f := range synthetic {
		all = append(all, f.Path)
	}
	for i, a := range all {
		if a != filepath.Clean(a) || !filepath.IsAbs(a) {
			t.Errorf("%s is not clean", a)
		}
		for j, b := range all {
			if i != j && (a == b || strings.HasPrefix(b, a+"/")) {
				t.Errorf("%s hides %s", a, b)
			}
		}
	}
}

func TestHostRefused(t *testing.T) {
	for _, tt := range []struct {
		name string
		root string
		code glovebox.Code
	}{
		{"nothing there", filepath.Join(t.TempDir(), "none"), glovebox.CodeUnavailable},
		{"no programs", host(t, "usr/lib/", "bin/sh*"), glovebox.CodeUnavailable},
		{"usr is a link", host(t, "usr -> /opt", "opt/bin/bash*"), glovebox.CodeUnavailable},
		{"usr is a file", host(t, "usr"), glovebox.CodeUnavailable},
		{"relative", "some/where", glovebox.CodeInvalid},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Host(Config{Root: tt.root})
			var e *glovebox.Error
			if !errors.As(err, &e) || e.Code != tt.code || e.Fix == "" {
				t.Fatalf("got %v, want %s with a fix", err, tt.code)
			}
			if strings.Contains(e.Public+e.Fix, tt.root) {
				t.Errorf("the message names a path of the host: %v", e)
			}
		})
	}
}

func TestIdentity(t *testing.T) {
	identity := func(t *testing.T, root string) string {
		t.Helper()
		im, err := Host(Config{Root: root})
		if err != nil {
			t.Fatal(err)
		}
		return im.Identity()
	}
	write := func(p string) func(*testing.T, string) {
		return func(t *testing.T, root string) {
			full := filepath.Join(root, p)
			if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(full, []byte("another state"), 0o755); err != nil {
				t.Fatal(err)
			}
			// The clock of a file system can be coarser than this test is fast.
			later := time.Now().Add(time.Hour)
			for _, p := range []string{full, filepath.Dir(full)} {
				if err := os.Chtimes(p, later, later); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	for _, tt := range []struct {
		name    string
		entries []string
		do      func(*testing.T, string)
		changes bool
	}{
		{"nothing happens", debian, func(*testing.T, string) {}, false},
		{"a person writes a file", debian, write("home/ann/notes"), false},
		{"a secret of the host changes", debian, write("etc/shadow"), false},
		{"a log grows", debian, write("var/log/syslog"), false},
		{"dpkg's state changes", debian, write("var/lib/dpkg/status"), true},
		{"python is replaced", debian, write("usr/bin/python3.11"), true},
		{"pip installs for everyone", debian, write("usr/local/lib/python3.11/dist-packages/polars"), true},
		{"a tool is put into /usr/local/bin", debian, write("usr/local/bin/tool"), true},
		{"another folder of /etc is shown", debian, write("etc/fonts/fonts.conf"), true},
		{"rpm's state changes", fedora, write("usr/lib/sysimage/rpm/rpmdb.sqlite"), true},
		{"apk's state changes", alpine, write("lib/apk/db/installed"), true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := host(t, tt.entries...)
			before := identity(t, root)
			if !strings.HasPrefix(before, "host@pkgs:") || len(before) != len("host@pkgs:")+16 {
				t.Errorf("identity is %q", before)
			}
			tt.do(t, root)
			if after := identity(t, root); (after != before) != tt.changes {
				t.Errorf("before %s, after %s, want a change: %v", before, after, tt.changes)
			}
		})
	}
}

func TestRootIsTheCallers(t *testing.T) {
	im, err := Host(Config{Root: host(t, debian...)})
	if err != nil {
		t.Fatal(err)
	}
	r := im.Root()
	r.Mounts[0], r.Links[0], r.Files[0] = driver.Mount{}, driver.Link{}, driver.File{}
	if again := im.Root(); again.Mounts[0].Target != "/usr" || again.Links[0].Path != "/bin" || again.Files[0].Path == "" {
		t.Error("changing one root changed the image")
	}
}

func BenchmarkHost(b *testing.B) {
	for b.Loop() {
		if _, err := Host(Config{}); err != nil {
			b.Fatal(err)
		}
	}
}
