package imagestore

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"glovebox"
	"glovebox/internal/image"
	"glovebox/internal/livefolder"
	"glovebox/internal/unpack"
)

// killedDir is the variable by which TestKilled tells a process of its own which store to use.
const killedDir = "IMAGESTORE_TEST_KILLED"

// TestKilled: a process that is killed while it makes an image leaves nothing that could be used, and nothing at all once
// somebody makes another.
func TestKilled(t *testing.T) {
	if dir := os.Getenv(killedDir); dir != "" {
		s := New(Config{Dir: dir})
		s.Add(t.Context(), "a", "test", false, func(ctx context.Context, tree *unpack.Tree, work string) (image.Settings, error) {
			filled(small)(ctx, tree, work)
			os.WriteFile(filepath.Join(filepath.Dir(dir), "half"), nil, 0o600)
			<-ctx.Done()
			return image.Settings{}, ctx.Err()
		})
		return
	}
	s := newStore(t)
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilled$")
	cmd.Env = append(os.Environ(), killedDir+"="+s.cfg.Dir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(filepath.Join(filepath.Dir(s.cfg.Dir), "half")); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("it does not begin")
		}
	}
	if err := s.Sweep(); err != nil {
		t.Error(err)
	}
	if got := folders(t, s); len(got) != 1 || !strings.HasPrefix(got[0], making) {
		t.Errorf("while it lives: %v", got)
	}
	cmd.Process.Kill()
	cmd.Wait()
	if names, err := s.Names(); err != nil || len(names) != 0 {
		t.Errorf("half an image has a name: %v, %v", names, err)
	}
	add(t, s, "b", map[string]string{"x": "y"})
	if got := folders(t, s); len(got) != 1 || strings.HasPrefix(got[0], making) {
		t.Errorf("left: %v", got)
	}
}

// TestFullDisk: what does not fit is refused and leaves nothing, and the images that are there stay whole.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	switch err := unix.Mount("images", dir, "tmpfs", 0, "size=2m"); {
	case err == nil:
		t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	case os.Getenv("GLOVEBOX_TEST_ROOT") == "1":
		t.Fatal("root was promised: ", err)
	default:
		t.Skip("needs root")
	}
	s := New(Config{Dir: filepath.Join(dir, "images")})
	t.Cleanup(func() { livefolder.RemoveTree(s.cfg.Dir) })
	add(t, s, "small", small)
	before := folders(t, s)
	for range 2 {
		_, err := s.Add(t.Context(), "big", "test", false, filled(map[string]string{"a": strings.Repeat("x", 3<<20)}))
		var e *glovebox.Error
		if !errors.As(err, &e) || e.Code != glovebox.CodeExhausted || !strings.Contains(e.Fix, "data_dir") {
			t.Errorf("error %v", err)
		}
		if got := folders(t, s); len(got) != len(before) {
			t.Errorf("left: %v", got)
		}
	}
	u, err := s.Use(t.Context(), "small")
	if err != nil {
		t.Fatal(err)
	}
	u.Close()
}
