package imagestore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// watch hears from the kernel what is changed in a tree: one descriptor to read in place of a look at every name.
type watch struct{ fd int }

// changes are what a watch hears of: all but reading. Whoever writes through memory is heard of when the file is closed.
const changes = unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVE | unix.IN_CLOSE_WRITE |
	unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR | unix.IN_DONT_FOLLOW

// watchTree begins to hear of a tree. It fails where the user has no watches left for all of its folders.
func watchTree(ctx context.Context, dir string) (*watch, error) {
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watch an image: %w", err)
	}
	err = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil || !d.IsDir() {
			return err
		}
		_, err = unix.InotifyAddWatch(fd, name, changes)
		return err
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("watch an image: %w", err), unix.Close(fd))
	}
	return &watch{fd}, nil
}

// quiet reports whether nothing was heard since it was last asked.
func (w *watch) quiet() bool {
	buffer := make([]byte, 64<<10)
	for quiet := true; ; quiet = false {
		n, err := unix.Read(w.fd, buffer)
		for err == unix.EINTR {
			n, err = unix.Read(w.fd, buffer)
		}
		if err != nil || n <= 0 {
			return quiet && err == unix.EAGAIN
		}
	}
}

func (w *watch) close() error { return unix.Close(w.fd) }

// Watch has Quiet know, from then on, and checks the tree once more. It fails where the kernel lends no watches for that, or
// when the tree was changed; only the latter is a *glovebox.Error.
func (u *Used) Watch(ctx context.Context) error {
	w, err := watchTree(ctx, u.Tree())
	if err != nil {
		return err
	}
	if err := u.Check(ctx); err != nil {
		return errors.Join(err, w.close())
	}
	u.watch = w
	return nil
}

// Quiet reports whether the kernel said of no change in the tree since Watch, or since Quiet was last asked. Without a Watch
// that went well it does not know, and says false.
func (u *Used) Quiet() bool { return u.watch != nil && u.watch.quiet() }
