package gvisor_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"glovebox"
	"glovebox/driver/gvisor"
	"glovebox/internal/image"
)

// assemble runs a script as root of a kernel of its own and returns what it left and printed.
func assemble(t *testing.T, ctx context.Context, script string, limits glovebox.Limits) (result, log string, err error) {
	t.Helper()
	if needRoot(t); os.Getuid() != 0 {
		t.Skip("needs root")
	}
	host, err := image.Host(image.Config{})
	if err != nil {
		t.Fatal(err)
	}
	given := t.TempDir()
	if err := errors.Join(os.Chmod(given, 0o755), os.WriteFile(filepath.Join(given, "in"), []byte("given"), 0o444)); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if b, e := os.ReadFile(filepath.Join(given, "in")); string(b) != "given" {
			t.Errorf("the input was changed: %q, %v", b, e)
		}
	}()
	var out bytes.Buffer
	d := newDriver(t).(*gvisor.Driver)
	err = d.Assemble(ctx, gvisor.Assembly{ID: "assemble_of_test", Limits: limits, Root: host.Root(), Inputs: given, Log: &out,
		Argv: []string{"/bin/sh", "-euc", script}, Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, Result: "result",
		Take: func(f *os.File) error {
			b, err := io.ReadAll(f)
			result = string(b)
			return err
		}})
	return result, out.String(), err
}

var assembleLimits = glovebox.Limits{CPUs: 2, Memory: 512 * glovebox.MiB, Disk: 256 * glovebox.MiB, Files: 20000, OpenFiles: 1024, Processes: 128,
	Wall: time.Minute, CPU: time.Minute, Egress: 1, Output: glovebox.MiB, View: 1024}

// TestAssemble: what only root may do works there, and nothing of it is outside.
func TestAssemble(t *testing.T) {
	result, log, err := assemble(t, t.Context(), `
id -u
mkdir -p /build/etc /build/proc /usr/local/assembled
echo x > /build/etc/shadow
chown 33:42 /build/etc/shadow
chmod 4750 /build/etc/shadow
mknod /build/null c 1 3
mount -t proc proc /build/proc
umount /build/proc
cat /inputs/in
ls /sys/class/net 2>/dev/null || true
stat -c '%u:%g %a' /build/etc/shadow > /outputs/result
echo more >> /inputs/in # which goes where all that it writes goes
`, assembleLimits)
	if err != nil || result != "33:42 4750\n" || !strings.HasPrefix(log, "0\ngiven") {
		t.Errorf("result %q, error %v, log:\n%s", result, err, log)
	}
	if _, err := os.Stat("/usr/local/assembled"); err == nil {
		t.Error("the host was changed")
	}
}

func TestAssembleFails(t *testing.T) {
	for name, tt := range map[string]struct {
		script, want string
	}{
		"exit code":   {"echo why; exit 3", "exit code 3"},
		"no result":   {"true", "result"},
		"a link":      {"ln -s /etc/passwd /outputs/result", "result"},
		"a full disk": {"head -c 400000000 /dev/zero > /outputs/result", "exit code 1"},
	} {
		t.Run(name, func(t *testing.T) {
			_, log, err := assemble(t, t.Context(), tt.script, assembleLimits)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, log %q", err, log)
			}
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	begun := time.Now()
	if _, _, err := assemble(t, ctx, "sleep 60", assembleLimits); !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) > 20*time.Second {
		t.Errorf("after %v: %v", time.Since(begun), err)
	}
}
