package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// folder is the private folder of a live run in the data_dir. It is locked while its run lives, so that another engine on
// the same data_dir can tell a dead run's folder from a live one's.
type folder struct {
	path string
	lock *os.File
}

// lateFolder is the folder of a run, made when something first needs one, which for most runs is never: to make and remove a
// folder costs as much as a tenth of all the rest. Methods are safe for concurrent use.
type lateFolder struct {
	mu      sync.Mutex
	made    *folder
	removed bool
}

// need makes the folder, unless it is there, and returns its path.
func (l *lateFolder) need(runs, id string) (_ string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.removed { // by a run that is over; whoever needs it now was given up
		return "", fmt.Errorf("make the run's folder: %w", fs.ErrClosed)
	}
	if l.made == nil {
		if l.made, err = makeFolder(runs, id); err != nil {
			return "", err
		}
	}
	return l.made.path, nil
}

// remove deletes the folder, if there is one, for good.
func (l *lateFolder) remove(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.removed = true
	if l.made == nil {
		return nil
	}
	return l.made.remove(ctx)
}

func makeFolder(runs, id string) (*folder, error) {
	path := filepath.Join(runs, id)
	for {
		if err := os.Mkdir(path, 0o700); err != nil {
			return nil, fmt.Errorf("make the run's folder: %w", err)
		}
		lock, err := lockFolder(path, 0)
		if err == nil {
			return &folder{path, lock}, nil
		}
		// A sweep may have found it between its making and its locking.
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, errors.Join(fmt.Errorf("lock the run's folder: %w", err), os.Remove(path))
		}
	}
}

// lockFolder locks a folder until what it returns is closed. One that is gone, also once the lock is had, does not exist.
func lockFolder(path string, how int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	for err = unix.EINTR; err == unix.EINTR; {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|how)
	}
	if err == nil {
		var locked, there fs.FileInfo
		if locked, err = f.Stat(); err == nil {
			there, err = os.Lstat(path)
		}
		if err == nil && !os.SameFile(locked, there) {
			err = fs.ErrNotExist
		}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// remove deletes the folder; inputs in it are read-only, also for their owner.
func (f *folder) remove(context.Context) error {
	return errors.Join(removeTree(f.path), f.lock.Close())
}

func removeTree(path string) error {
	err := os.RemoveAll(path)
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	err = filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			return os.Chmod(p, 0o700)
		}
		return err
	})
	return errors.Join(err, os.RemoveAll(path))
}

// sweepFolders removes the folders of runs whose engine died: nobody holds them locked.
func sweepFolders(runs string) error {
	entries, err := os.ReadDir(runs)
	if err != nil {
		return err
	}
	var errs []error
	for _, entry := range entries {
		lock, err := lockFolder(filepath.Join(runs, entry.Name()), unix.LOCK_NB)
		switch {
		case err == nil:
			errs = append(errs, removeTree(lock.Name()), lock.Close()) // the lock outlives the name
		case errors.Is(err, unix.EWOULDBLOCK), errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
			// It lives, another engine was faster, or it is no run's.
		default:
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
