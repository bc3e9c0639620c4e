package microvm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"glovebox"
	"glovebox/driver"
	"glovebox/internal/erofs"
)

// imageForm changes when images are made in another way.
const imageForm = "1"

// item is one file of an image to be.
type item struct {
	path, target string // on the host; in the image
	info         fs.FileInfo
	id           fileID
}

// making is an image that is being made.
type making struct {
	done chan struct{}
	err  error // only once done is closed
}

// makeLimit bounds the making of an image. A large one on a slow disk takes minutes.
const makeLimit = 15 * time.Minute

// rootImage opens the image of what root mounts, which is made at its first use. An image is named by what it was made of:
// device, inode, size and times of every file.
func (d *Driver) rootImage(ctx context.Context, root driver.Root) (*os.File, error) {
	if err := ownFolder(d.cfg.CacheDir); err != nil {
		return nil, err
	}
	var items []item
	for _, m := range root.Mounts {
		more, err := walk(ctx, m, true)
		if err != nil {
			return nil, fmt.Errorf("look at the image: %w", err)
		}
		items = append(items, more...)
	}
	name := filepath.Join(d.cfg.CacheDir, "root-"+imageName(items)+".erofs")
	f, err := os.Open(name)
	if err == nil {
		_ = os.Chtimes(name, time.Now(), time.Now()) // by which forgetImages goes; without it the image is made anew sooner
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	m := d.begin(name, items)
	select {
	case <-m.done:
	case <-ctx.Done():
		return nil, fmt.Errorf("make the image, which goes on: %w", context.Cause(ctx))
	}
	if m.err != nil {
		return nil, fmt.Errorf("make the image: %w", m.err)
	}
	return os.Open(name)
}

// begin has an image made, by one goroutine however many want it. It goes on when they give up, so that whoever has too
// little time for it is not the last: it ends by itself, at makeLimit at the latest.
func (d *Driver) begin(name string, items []item) *making {
	d.imaging.Lock()
	defer d.imaging.Unlock()
	if m := d.images[name]; m != nil {
		return m
	}
	m := &making{done: make(chan struct{})}
	d.images[name] = m
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), makeLimit)
		defer cancel()
		m.err = d.makeImage(ctx, name, items)
		if m.err == nil {
			d.forgetImages(name)
		}
		d.imaging.Lock()
		defer d.imaging.Unlock()
		delete(d.images, name)
		close(m.done)
	}()
	return m
}

// ownFolder makes a folder that is nobody else's.
func ownFolder(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return fmt.Errorf("look at %s: %w", dir, err)
	}
	if int(st.Uid) != os.Getuid() || st.Mode&0o022 != 0 {
		return glovebox.Errorf(glovebox.CodeUnavailable, "chown it to the user of glovebox, chmod 700 it, and empty it",
			"others may write to the folder of images %s", dir)
	}
	return nil
}

// walk lists what a mount shows: files, folders and links. Sockets, devices and the like have no place in an image. With
// hide, folders that may not be read are empty; else they are an error.
func walk(ctx context.Context, m driver.Mount, hide bool) ([]item, error) {
	var items []item
	err := filepath.WalkDir(m.Source, func(p string, e fs.DirEntry, err error) error {
		if hide && errors.Is(err, fs.ErrPermission) && e.IsDir() && p != m.Source {
			return fs.SkipDir // it was listed; see hidden
		}
		if err != nil || ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		if kind := info.Mode().Type(); kind != 0 && kind != fs.ModeDir && kind != fs.ModeSymlink {
			return nil
		}
		id, err := idOf(info)
		if err != nil {
			return err
		}
		items = append(items, item{p, filepath.Join(m.Target, strings.TrimPrefix(p, m.Source)), info, id})
		return nil
	})
	return items, err
}

func imageName(items []item) string {
	h := sha256.New()
	fmt.Fprintf(h, "%s\x00", imageForm)
	for _, i := range items {
		fmt.Fprintf(h, "%s\x00%s\x00%v %v\n", i.path, i.target, i.id, i.info.Mode())
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// makeImage writes an image beside name and then gives it the name, so that an image is whole or not there.
func (d *Driver) makeImage(ctx context.Context, name string, items []item) (err error) {
	tree := erofs.New()
	for _, i := range items {
		var err error
		if hidden(i) {
			err = tree.File(i.target, 0, 0, i.info.ModTime(), nil)
		} else {
			err = addItem(ctx, tree, i)
		}
		if err != nil {
			return err
		}
	}
	f, err := os.CreateTemp(d.cfg.CacheDir, "making-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close(), os.Remove(f.Name()))
		}
	}()
	if _, err := tree.Write(f); err != nil {
		return err
	}
	if err := errors.Join(f.Chmod(0o400), f.Sync()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), name); err != nil {
		return err
	}
	return f.Close()
}

// hidden is true of a file that an ordinary user who runs Glovebox may not read. The image has it empty, and nobody may
// read it there, as nobody may on the process rung.
func hidden(i item) bool {
	return i.info.Mode().IsRegular() && errors.Is(unix.Access(i.path, unix.R_OK), unix.EACCES)
}

func addItem(ctx context.Context, tree *erofs.Tree, i item) error {
	mtime := i.info.ModTime()
	switch i.info.Mode().Type() {
	case fs.ModeDir:
		return tree.Folder(i.target, i.info.Mode(), mtime)
	case fs.ModeSymlink:
		target, err := os.Readlink(i.path)
		if err != nil {
			return err
		}
		return tree.Link(i.target, target, mtime)
	}
	return tree.File(i.target, i.info.Mode(), i.info.Size(), mtime, func() (io.ReadCloser, error) {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return openSame(i)
	})
}

// openSame opens the file that was looked at, and no other.
func openSame(i item) (*os.File, error) {
	f, err := os.OpenFile(i.path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil {
		var id fileID
		if id, err = idOf(info); err == nil && id != i.id {
			err = fmt.Errorf("%q changed while it was copied", i.path)
		}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// keptImages is how many images of a root are kept besides the newest: those that were used last. Runs that name another
// runtime image in turn would else wait for one to be made, each time.
const keptImages = 3

// forgetImages removes the images that were not used for the longest time, and what is half made of old. Machines that have
// one open keep it.
func (d *Driver) forgetImages(but string) {
	type old struct {
		name string
		when time.Time
	}
	var list []old
	entries, err := os.ReadDir(d.cfg.CacheDir)
	if err != nil {
		return // it is tried again after the next image
	}
	for _, e := range entries {
		name := filepath.Join(d.cfg.CacheDir, e.Name())
		info, err := e.Info()
		if err != nil || name == but {
			continue
		}
		if strings.HasPrefix(e.Name(), "root-") || time.Since(info.ModTime()) > time.Hour {
			list = append(list, old{name, info.ModTime()})
		}
	}
	slices.SortFunc(list, func(a, b old) int { return b.when.Compare(a.when) })
	for _, o := range list[min(keptImages, len(list)):] {
		_ = os.Remove(o.name) // likewise
	}
}

// inputsImage makes an image of a folder of inputs, in a file that has no name.
func (d *Driver) inputsImage(ctx context.Context, folder string) (_ *os.File, err error) {
	items, err := walk(ctx, driver.Mount{Source: folder, Target: "/"}, false)
	if err != nil {
		return nil, fmt.Errorf("look at inputs: %w", err)
	}
	tree := erofs.New()
	for _, i := range items {
		if err := addItem(ctx, tree, i); err != nil {
			return nil, fmt.Errorf("take inputs: %w", err)
		}
	}
	f, err := d.nameless()
	if err != nil {
		return nil, err
	}
	if _, err := tree.Write(f); err != nil {
		return nil, errors.Join(fmt.Errorf("take inputs: %w", err), f.Close())
	}
	defer f.Close()
	return readOnly(f)
}

// readOnly opens a file again, for reading alone: what QEMU is given it cannot write to.
func readOnly(f *os.File) (*os.File, error) {
	return os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), os.O_RDONLY|unix.O_CLOEXEC, 0)
}

// nameless makes a file on disk that is gone with its last descriptor.
func (d *Driver) nameless() (*os.File, error) {
	if err := os.MkdirAll(d.cfg.ScratchDir, 0o700); err != nil {
		return nil, fmt.Errorf("make scratch folder: %w", err)
	}
	f, err := os.OpenFile(d.cfg.ScratchDir, os.O_RDWR|unix.O_TMPFILE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("make scratch file: %w", err)
	}
	return f, nil
}
