package engine

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"glovebox"
	"glovebox/driver"
	"glovebox/driver/drivertest"
	"glovebox/internal/image"
	"glovebox/internal/imagestore"
	"glovebox/internal/livefolder"
	"glovebox/internal/unpack"
)

// keepImage keeps an image of one program in the store of a data_dir.
func keepImage(t *testing.T, dir, name, content string) *imagestore.Stored {
	t.Helper()
	s := imagestore.New(imagestore.Config{Dir: filepath.Join(dir, "images")})
	t.Cleanup(func() { livefolder.RemoveTree(filepath.Join(dir, "images")) })
	st, err := s.Add(t.Context(), name, "test", true, func(_ context.Context, tree *unpack.Tree, _ string) (image.Settings, error) {
		err := tree.Put("/usr/bin/python3", []byte(content), true)
		return image.Settings{Env: []string{"A=image", "B=image"}, Modules: []string{"mod"}}, err
	})
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// TestStoredImage: a run has the image that it names, its environment below its own, and its digest in result and record.
func TestStoredImage(t *testing.T) {
	dir := t.TempDir()
	st := keepImage(t, dir, "tools", "1")
	var env []string
	var root string
	fake := &drivertest.Fake{Program: func(_ context.Context, p *drivertest.Proc) (x driver.Exit) {
		env, root = p.Command.Env, p.Spec.Root.Mounts[0].Source
		return x
	}}
	e := newEngine(t, fake, dir)
	res, err := e.Run(t.Context(), owner, glovebox.Request{Code: "x", Image: "tools", Env: map[string]string{"B": "own"}}, nil)
	if err != nil || res.Image != "tools@"+st.Digest {
		t.Fatalf("%+v, %v", res, err)
	}
	if got := strings.Join(env, " "); !strings.Contains(got, "A=image B=own ") || !strings.HasPrefix(root, dir) {
		t.Errorf("environment %q, root %q", got, root)
	}
	if r, err := e.Trace(t.Context(), owner, res.ID); err != nil || r.Image != res.Image {
		t.Errorf("record %+v, %v", r, err)
	}
	for name, want := range map[string]glovebox.Code{"tool": glovebox.CodeNotFound, "../tools": glovebox.CodeNotFound} {
		if _, err := e.Run(t.Context(), owner, glovebox.Request{Code: "x", Image: name}, nil); codeOf(err) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
	if d, err := e.Doctor(t.Context()); err != nil || len(d.Images) != 2 || d.Images[1].Name != "tools" {
		t.Errorf("doctor: %+v, %v", d, err)
	}
}

// TestChangedImage: what was changed in the store is refused, also while an engine lives, and another image by the same name
// is taken at once.
func TestChangedImage(t *testing.T) {
	dir := t.TempDir()
	st := keepImage(t, dir, "tools", "1")
	e := newEngine(t, &drivertest.Fake{}, dir)
	run := func() (*glovebox.Result, error) {
		return e.Run(t.Context(), owner, glovebox.Request{Code: "x", Image: "tools"}, nil)
	}
	if _, err := run(); err != nil {
		t.Fatal(err)
	}
	other := keepImage(t, dir, "tools", "2")
	if res, err := run(); err != nil || res.Image != "tools@"+other.Digest || other.Digest == st.Digest {
		t.Errorf("after another was made: %+v, %v", res, err)
	}
	file := filepath.Join(dir, "images", strings.Replace(other.Digest, ":", "-", 1), "tree/usr/bin/python3")
	time.Sleep(10 * time.Millisecond)
	if err := errors.Join(os.Chmod(file, 0o755), os.WriteFile(file, []byte("3"), 0o755), os.Chmod(file, 0o555)); err != nil {
		t.Fatal(err)
	}
	if _, err := run(); codeOf(err) != glovebox.CodeUnavailable {
		t.Errorf("after a change: %v", err)
	}
	if d, err := e.Doctor(t.Context()); err != nil || len(d.Images) != 1 {
		t.Errorf("doctor: %+v, %v", d, err)
	}
}

// TestStrangersImagesAreNotForked: an interpreter that a stranger made is held behind the fence of programs and never makes
// sandboxes of others on this machine's kernel.
func TestStrangersImagesAreNotForked(t *testing.T) {
	w := &ready{forks: true}
	for name, c := range map[string]struct {
		settings image.Settings
		rung     glovebox.Isolation
		want     bool
	}{
		"a stranger's":                    {image.Settings{}, "process", false},
		"the distribution's":              {image.Settings{Distribution: true}, "process", true},
		"a stranger's, kernel of its own": {image.Settings{}, "microvm", true},
	} {
		im, err := image.Unpacked("tools", t.TempDir(), "sha256:00", c.settings)
		if err != nil {
			t.Fatal(err)
		}
		k := w.kind(&drivertest.Fake{Rung: c.rung}, "local", "python", driver.Command{}, "", glovebox.Grant{Trust: "model"}, im)
		if k.Fork != c.want {
			t.Errorf("%s: %v", name, k.Fork)
		}
	}
}

// TestImageHeld: an engine without a pool lets go of an image with the run; one with a pool while sandboxes may show it.
func TestImageHeld(t *testing.T) {
	dir := t.TempDir()
	keepImage(t, dir, "tools", "1")
	synctest.Test(t, func(t *testing.T) {
		for name, keep := range map[string]time.Duration{"no pool": 0, "pool": 11 * time.Minute} {
			s := newStoredImages(filepath.Join(dir, "images"), Pool{})
			s.keep = keep
			_, done, err := s.use(t.Context(), "tools")
			_, again, err2 := s.use(t.Context(), "tools")
			if err != nil || err2 != nil {
				t.Fatal(name, err, err2)
			}
			held := func() bool {
				s.mu.Lock()
				defer s.mu.Unlock()
				return len(s.open) == 1
			}
			if err := done(t.Context()); err != nil || !held() {
				t.Errorf("%s: let go while in use: %v", name, err)
			}
			if err := errors.Join(again(t.Context()), again(t.Context())); err != nil || held() != (keep > 0) {
				t.Errorf("%s: %v, held: %v", name, err, held())
			}
			time.Sleep(keep + time.Second)
			synctest.Wait()
			if held() {
				t.Errorf("%s: still held", name)
			}
			if err := s.close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestImagesApart: while somebody looks at an image, others have theirs, and uses end; who waits for the same one waits no
// longer than they want.
func TestImagesApart(t *testing.T) {
	dir := t.TempDir()
	keepImage(t, dir, "tools", "1")
	keepImage(t, dir, "other", "2")
	s := newStoredImages(filepath.Join(dir, "images"), Pool{})
	defer s.close()
	_, done, err := s.use(t.Context(), "tools")
	if err != nil {
		t.Fatal(err)
	}
	end, err := s.turn(t.Context(), "tools") // a look that takes long
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	_, doneOther, err := s.use(t.Context(), "other")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(doneOther(t.Context()), done(t.Context())); err != nil {
		t.Error(err)
	}
	gone := errors.New("gone")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Millisecond, gone)
	defer cancel()
	if _, _, err := s.use(ctx, "tools"); !errors.Is(err, gone) {
		t.Errorf("%v", err)
	}
}

// TestWatchedImage: what an engine keeps is not looked at again for each run, and what is changed in it is refused at once.
func TestWatchedImage(t *testing.T) {
	dir := t.TempDir()
	st := keepImage(t, dir, "tools", "1")
	s := newStoredImages(filepath.Join(dir, "images"), Pool{Spares: 1})
	defer s.close()
	var checked time.Time
	for i := range 3 {
		_, done, err := s.use(t.Context(), "tools")
		if err != nil {
			t.Fatal(err)
		}
		im := s.open["tools"]
		if !im.watched || i > 0 && im.checked != checked {
			t.Errorf("watched: %v, looked at again: %v", im.watched, im.checked != checked)
		}
		checked = im.checked
		if err := done(t.Context()); err != nil {
			t.Error(err)
		}
	}
	file := filepath.Join(dir, "images", strings.Replace(st.Digest, ":", "-", 1), "tree/usr/bin/python3")
	if err := errors.Join(os.Chmod(file, 0o755), os.Chmod(file, 0o555)); err != nil {
		t.Fatal(err)
	}
	cut, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := s.use(cut, "tools"); err == nil {
		t.Error("used although it could not be looked at")
	}
	if _, _, err := s.use(t.Context(), "tools"); codeOf(err) != glovebox.CodeUnavailable {
		t.Errorf("after a change: %v", err)
	}
}
