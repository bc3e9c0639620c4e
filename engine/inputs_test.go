package engine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"golang.org/x/sys/unix"

	"glovebox"
	"glovebox/internal/livefolder"
	"glovebox/policy"
)

// tree writes files into a new folder; a value that starts with -> is a link.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if target, ok := strings.CutPrefix(text, "->"); ok {
			err = os.Symlink(target, path)
		} else {
			err = os.WriteFile(path, []byte(text), 0o640)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func take(t *testing.T, cfg policy.Config, who glovebox.Principal, inputs ...glovebox.Input) (string,
	[]glovebox.InputRecord, error) {
	t.Helper()
	p, err := policy.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "inputs")
	t.Cleanup(func() { livefolder.RemoveTree(dir) })
	records, err := takeInputs(t.Context(), p, who, inputs, dir)
	return dir, records, err
}

func TestTakeInputs(t *testing.T) {
	src := tree(t, map[string]string{"a.txt": "A", "folder/b.txt": "B", "folder/deep/c": "C", "link": "->a.txt"})
	dir, records, err := take(t, policy.Config{}, owner,
		glovebox.Input{Name: "one", Path: filepath.Join(src, "a.txt")},
		glovebox.Input{Name: "in/folder", Path: filepath.Join(src, "folder")},
		glovebox.Input{Name: "followed", Path: filepath.Join(src, "link")},
		glovebox.Input{Name: "in/text", Content: "T"},
		glovebox.Input{Name: "bytes", ContentBase64: "/wA="},
		glovebox.Input{Name: "empty"})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"one": "A", "in/folder/b.txt": "B", "in/folder/deep/c": "C", "followed": "A", "in/text": "T",
		"bytes": "\xff\x00", "empty": ""}
	got, sums := map[string]string{}, map[string]string{}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if mode := map[bool]fs.FileMode{true: 0o555, false: 0o444}[d.IsDir()]; info.Mode().Perm() != mode {
			t.Errorf("%s has mode %v, want %v", path, info.Mode(), mode)
		}
		if d.IsDir() {
			return nil
		}
		text, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		got[name] = string(text)
		sum := sha256.Sum256(text)
		sums[name] = hex.EncodeToString(sum[:])
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("files (-want +got):\n%s", d)
	}
	for _, r := range records {
		if r.SHA256 != sums[r.Name] || r.Bytes != int64(len(want[r.Name])) {
			t.Errorf("record %+v does not fit the copy", r)
		}
	}
	if len(records) != len(want) {
		t.Errorf("%d records, want %d", len(records), len(want))
	}
}

func TestTakeInputsRefuses(t *testing.T) {
	src := tree(t, map[string]string{"root/a": "A", "root/out": "->../secret", "root/in": "->a", "secret": "S",
		"links/x": "->/etc/passwd", "dangling": "->nowhere", "dev/ok": ""})
	for _, name := range []string{"fifo", "dev/fifo"} {
		if err := syscall.Mkfifo(filepath.Join(src, name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	stranger := glovebox.Principal{Tenant: "acme", Name: "bot"}
	cfg := policy.Config{InputRoots: []string{filepath.Join(src, "root")}}
	for name, tt := range map[string]struct {
		who  glovebox.Principal
		path string
		want glovebox.Code // empty: taken
	}{
		"missing":                {owner, src + "/none", glovebox.CodeInvalid},
		"dangling link":          {owner, src + "/dangling", glovebox.CodeInvalid},
		"fifo":                   {owner, src + "/fifo", glovebox.CodeInvalid},
		"file of proc":           {owner, "/proc/version", glovebox.CodeInvalid},
		"waiting file of proc":   {owner, "/proc/kmsg", glovebox.CodeInvalid},
		"folder of proc":         {owner, "/proc/self/net", glovebox.CodeInvalid},
		"file of sysfs":          {owner, "/sys/kernel/mm/transparent_hugepage/enabled", glovebox.CodeInvalid},
		"fifo in a folder":       {owner, src + "/dev", glovebox.CodeInvalid},
		"device":                 {owner, "/dev/zero", glovebox.CodeInvalid},
		"link in a folder":       {owner, src + "/links", glovebox.CodeInvalid},
		"beneath the root":       {stranger, src + "/root/a", ""},
		"link within the root":   {stranger, src + "/root/in", ""},
		"link out of the root":   {stranger, src + "/root/out", glovebox.CodeDenied},
		"outside the root":       {stranger, src + "/secret", glovebox.CodeDenied},
		"dots out of the root":   {stranger, src + "/root/../secret", glovebox.CodeDenied},
		"a stranger's own fancy": {stranger, "/etc/passwd", glovebox.CodeDenied},
	} {
		t.Run(name, func(t *testing.T) {
			done := make(chan error, 1)
			go func() {
				_, _, err := take(t, cfg, tt.who, glovebox.Input{Name: "given", Path: tt.path})
				done <- err
			}()
			select {
			case err := <-done:
				if codeOf(err) != tt.want {
					t.Fatalf("error = %v, want %q", err, tt.want)
				}
				if err != nil && strings.Contains(err.(*glovebox.Error).Public, src) {
					t.Errorf("the message names a path of the host: %v", err)
				}
				if err != nil && err.(*glovebox.Error).Fix == "" {
					t.Errorf("no fix: %v", err)
				}
			case <-time.After(10 * time.Second):
				t.Fatal("hangs")
			}
		})
	}
}

func TestTakeInputsStopsWhenCancelled(t *testing.T) {
	p, err := policy.New(policy.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = takeInputs(ctx, p, owner, []glovebox.Input{{Name: "a", Content: "x"}}, filepath.Join(t.TempDir(), "inputs"))
	if err != context.Canceled {
		t.Errorf("error = %v", err)
	}
}

// TestInputThatNeverAnswers: cancelling ends the taking of inputs even while a call of the system does not return. A pipe
// that is not polled stands for a file whose server is gone.
func TestInputThatNeverAnswers(t *testing.T) {
	var fds [2]int
	if err := syscall.Pipe(fds[:]); err != nil {
		t.Fatal(err)
	}
	stuck := os.NewFile(uintptr(fds[0]), "stuck")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	released := make(chan struct{})
	done := make(chan error, 1)
	go func() {
		done <- whileLasts(ctx, 50*time.Millisecond, func() error {
			defer close(released)
			_, err := stuck.Read(make([]byte, 1))
			return err
		})
	}()
	select {
	case err := <-done:
		if err != context.DeadlineExceeded {
			t.Errorf("error = %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("hangs")
	}
	syscall.Close(fds[1])
	<-released
}

// A file of the kernel may look regular and yield bytes only later; a pipe stands for it here.
func TestInputThatWaits(t *testing.T) {
	from, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	defer from.Close()
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	in := &intake{dir: root, buffer: make([]byte, 16)}
	err = in.file(t.Context(), "a", from, from)
	var known *glovebox.Error
	if !errors.As(err, &known) || known.Code != glovebox.CodeInvalid {
		t.Errorf("error = %v", err)
	}
}

// TestNoDescriptorsForInputs: what Glovebox itself lacks is not said to be wrong with the input.
func TestNoDescriptorsForInputs(t *testing.T) {
	for errno, want := range map[error]glovebox.Code{unix.EMFILE: glovebox.CodeExhausted, unix.ENFILE: glovebox.CodeExhausted,
		unix.EACCES: glovebox.CodeInvalid} {
		if got := codeOf(unreadable("a", &os.PathError{Op: "open", Path: "/a", Err: errno})); got != want {
			t.Errorf("%v is %s, want %s", errno, got, want)
		}
	}
}
