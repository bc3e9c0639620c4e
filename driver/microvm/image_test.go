package microvm

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"glovebox/driver"
)

// imageWorld is a folder to make images of, and a driver that makes them.
func imageWorld(t *testing.T) (*Driver, driver.Root) {
	t.Helper()
	source := t.TempDir()
	for name, text := range map[string]string{"bin/sh": "sh", "bin/more": "more", "etc/a": "a"} {
		name = filepath.Join(source, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("bin", filepath.Join(source, "link")); err != nil {
		t.Fatal(err)
	}
	d := &Driver{cfg: Config{CacheDir: filepath.Join(t.TempDir(), "images"), ScratchDir: t.TempDir()}, images: map[string]*making{}}
	return d, driver.Root{Mounts: []driver.Mount{{Source: source, Target: "/usr"},
		{Source: filepath.Join(source, "etc/a"), Target: "/etc/a"}}}
}

// made lists the images that there are.
func made(t *testing.T, d *Driver) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(d.cfg.CacheDir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func TestImageIsMadeOnce(t *testing.T) {
	d, root := imageWorld(t)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			f, err := d.rootImage(context.Background(), root)
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := f.Write([]byte("x")); err == nil {
				t.Error("the image can be written")
			}
			f.Close()
		})
	}
	all.Wait()
	if names := made(t, d); len(names) != 1 {
		t.Errorf("there are %q", names)
	}
}

// TestImageFollows: whatever changes of a file, and what else is there, makes another image; what is old goes, in time.
func TestImageFollows(t *testing.T) {
	d, root := imageWorld(t)
	file := filepath.Join(root.Mounts[0].Source, "bin/sh")
	was := time.Now().Add(-time.Hour)
	for _, c := range []struct {
		what   string
		change func() error
	}{
		{"nothing yet", func() error { return nil }},
		{"its size", func() error { return os.WriteFile(file, []byte("shell"), 0o644) }},
		{"its bytes alone", func() error { return errors.Join(os.WriteFile(file, []byte("x2"), 0o644), os.Chtimes(file, was, was)) }},
		{"its mode", func() error { return os.Chmod(file, 0o600) }},
		{"another in its place", func() error {
			return errors.Join(os.WriteFile(file+"x", []byte("sh"), 0o644), os.Rename(file+"x", file))
		}},
		{"one more", func() error { return os.WriteFile(file+"y", nil, 0o644) }},
		{"a link", func() error { return os.Symlink("x", file+"z") }},
	} {
		before := made(t, d)
		if err := c.change(); err != nil {
			t.Fatal(err)
		}
		f, err := d.rootImage(context.Background(), root)
		if err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		f.Close()
		if after := made(t, d); slices.Equal(before, after) {
			t.Errorf("%s: no other image was made", c.what)
		} else if len(after) > keptImages+1 {
			t.Errorf("%s: there are %q", c.what, after)
		}
	}
}

// TestImagesInTurn: images that are used in turn stay; what was not used for the longest time goes.
func TestImagesInTurn(t *testing.T) {
	d, _ := imageWorld(t)
	use := func(source string) string {
		f, err := d.rootImage(context.Background(), driver.Root{Mounts: []driver.Mount{{Source: source, Target: "/usr"}}})
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		return f.Name()
	}
	sources := make([]string, keptImages+2)
	for i := range sources {
		sources[i] = t.TempDir()
	}
	made := make([]string, len(sources))
	for i, source := range sources[:keptImages+1] {
		made[i] = use(source)
		when := time.Now().Add(time.Duration(i-100) * time.Minute)
		if err := os.Chtimes(made[i], when, when); err != nil {
			t.Fatal(err)
		}
	}
	use(sources[0]) // the oldest
	last := len(sources) - 1
	made[last] = use(sources[last])
	for i, name := range made {
		if _, err := os.Stat(name); (err == nil) == (i == 1) {
			t.Errorf("image %d: %v", i, err)
		}
	}
}

// TestImageGoesOn: whoever gives up leaves the making to go on, and begins no other.
func TestImageGoesOn(t *testing.T) {
	d, root := imageWorld(t)
	items, err := walk(context.Background(), root.Mounts[0], true)
	if err != nil {
		t.Fatal(err)
	}
	more, err := walk(context.Background(), root.Mounts[1], true)
	if err != nil {
		t.Fatal(err)
	}
	slow := &making{done: make(chan struct{})}
	d.images[filepath.Join(d.cfg.CacheDir, "root-"+imageName(append(items, more...))+".erofs")] = slow
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	if f, err := d.rootImage(ctx, root); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, %v", f, err)
	}
	if names := made(t, d); len(names) > 0 || d.images == nil {
		t.Errorf("there are %q", names)
	}
	slow.err = errors.New("disk full")
	close(slow.done)
	if f, err := d.rootImage(context.Background(), root); !errors.Is(err, slow.err) {
		t.Errorf("%v, %v", f, err)
	}
}

// TestImageOfWhatChanges: a file that is not what was looked at makes no image, and nothing is left of it.
func TestImageOfWhatChanges(t *testing.T) {
	d, root := imageWorld(t)
	items, err := walk(context.Background(), root.Mounts[0], true)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root.Mounts[0].Source, "bin/sh"), []byte("other"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := ownFolder(d.cfg.CacheDir); err != nil {
		t.Fatal(err)
	}
	err = d.makeImage(context.Background(), filepath.Join(d.cfg.CacheDir, "root-x.erofs"), items)
	if err == nil || !strings.Contains(err.Error(), "changed") {
		t.Errorf("it was made: %v", err)
	}
	if names := made(t, d); len(names) > 0 {
		t.Errorf("there are %q", names)
	}
}

func TestImageFolderOfOthers(t *testing.T) {
	d, root := imageWorld(t)
	if err := os.MkdirAll(d.cfg.CacheDir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(d.cfg.CacheDir, 0o777); err != nil {
		t.Fatal(err)
	}
	if f, err := d.rootImage(context.Background(), root); err == nil {
		f.Close()
		t.Error("a folder to which others may write was used")
	}
}
