package image

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"glovebox"
)

func TestInterpreter(t *testing.T) {
	for _, tt := range []struct {
		name    string
		entries []string
		lang    string
		want    string // path, or the fix when there is none
	}{
		{"debian python", debian, "python", "/usr/bin/python3"},
		{"debian bash", debian, "bash", "/usr/bin/bash"},
		{"bash of a host that is not merged", alpine, "bash", "/bin/bash"},
		{"node through apt-get", debian, "node", "run as root: apt-get install -y nodejs"},
		{"node through dnf", fedora, "node", "run as root: dnf install -y nodejs"},
		{"node through apk", alpine, "node", "run as root: apk add nodejs"},
		{"python through pacman", []string{"usr/bin/pacman*"}, "python", "run as root: pacman -S --noconfirm python"},
		{"python through zypper", []string{"usr/bin/zypper*"}, "python", "run as root: zypper install -y python3"},
		{"no package manager", []string{"usr/bin/ls*"}, "bash",
			"run as root: install bash into /usr with the system's package manager"},
		{"the operator's own comes first", append([]string{"usr/local/bin/python3*"}, debian...), "python",
			"/usr/local/bin/python3"},
		{"a person's own is not taken",
			append([]string{"usr/local/bin/python3 -> /root/.pyenv/python3", "root/.pyenv/python3*"}, debian...), "python",
			"/usr/bin/python3"},
		{"nor one reached by way of a person's home",
			append([]string{"usr/local/bin/python3 -> /root/p", "root/p -> /usr/bin/python3.11"}, debian...), "python",
			"/usr/bin/python3"},
		{"by way of alternatives",
			append([]string{"usr/bin/node -> /etc/alternatives/node", "etc/alternatives/node -> /usr/bin/nodejs", "usr/bin/nodejs*"},
				debian...), "node", "/usr/bin/node"},
		{"by way of alternatives that are not shown",
			[]string{"usr/bin/python3 -> /etc/other/python3", "etc/other/python3 -> /usr/bin/python3.12", "usr/bin/python3.12*",
				"usr/bin/apk", "usr/sbin/apk*"}, "python", "run as root: apk add python3"},
		{"what cannot be executed is not taken", []string{"usr/bin/python3", "usr/bin/dnf*"}, "python",
			"run as root: dnf install -y python3"},
		{"a folder is not taken", []string{"usr/bin/python3/", "usr/bin/dnf*"}, "python", "run as root: dnf install -y python3"},
		{"a loop ends", []string{"usr/bin/python3 -> python3", "usr/bin/dnf*"}, "python", "run as root: dnf install -y python3"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			im, err := Host(Config{Root: host(t, tt.entries...)})
			if err != nil {
				t.Fatal(err)
			}
			got, err := im.Interpreter(tt.lang)
			if err != nil {
				var e *glovebox.Error
				if !errors.As(err, &e) || e.Code != glovebox.CodeUnavailable {
					t.Fatalf("got %v, want unavailable", err)
				}
				got = e.Fix
			}
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestInterpreterUnknownLanguage(t *testing.T) {
	im, err := Host(Config{Root: host(t, debian...)})
	if err != nil {
		t.Fatal(err)
	}
	for _, lang := range []string{"", "ruby", "../bash", strings.Repeat("x", 1000)} {
		_, err := im.Interpreter(lang)
		var e *glovebox.Error
		if !errors.As(err, &e) || e.Code != glovebox.CodeInvalid || len(e.Public) > 200 {
			t.Errorf("%.20q: got %v", lang, err)
		}
	}
}

func TestReport(t *testing.T) {
	root := host(t, append([]string{"usr/bin/node*"}, debian...)...)
	header := filepath.Join(root, "usr/include/node/node_version.h")
	if err := os.MkdirAll(filepath.Dir(header), 0o755); err != nil {
		t.Fatal(err)
	}
	text := "#ifndef X\n#define NODE_MAJOR_VERSION 20\n#define NODE_MINOR_VERSION 11\n#define NODE_PATCH_VERSION 1\n"
	if err := os.WriteFile(header, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	im, err := Host(Config{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	want := glovebox.Image{
		Name: "host", Identity: im.Identity(),
		Languages: map[string]string{
			"bash": "/usr/bin/bash", "node": "/usr/bin/node 20.11.1", "python": "/usr/bin/python3 3.11",
		},
		Packages: []string{"numpy", "pandas"},
		Missing:  map[string]string{},
	}
	if d := cmp.Diff(want, im.Report()); d != "" {
		t.Error(d)
	}

	// What a link of an image names is not opened on the host.
	outside := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(outside, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove(header), os.Symlink(outside, header)); err != nil {
		t.Fatal(err)
	}
	opened := make(chan error, 1)
	go func() { opened <- os.WriteFile(outside, []byte(text), 0) }() // until it is read, or given up below
	if got := im.Report().Languages["node"]; got != "/usr/bin/node" {
		t.Errorf("it read a file of the host: %q", got)
	}
	if f, err := os.OpenFile(outside, os.O_RDONLY|syscall.O_NONBLOCK, 0); err == nil {
		<-opened
		f.Close()
	}

	im, err = Host(Config{Root: host(t, "usr/bin/dnf*")})
	if err != nil {
		t.Fatal(err)
	}
	missing := map[string]string{
		"bash": "dnf install -y bash", "node": "dnf install -y nodejs", "python": "dnf install -y python3",
	}
	if d := cmp.Diff(missing, im.Report().Missing); d != "" {
		t.Error(d)
	}
}
