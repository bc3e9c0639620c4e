package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// folder is the private folder of a live run in the data_dir. It is locked while its run lives, so that another engine on
// the same data_dir can tell a dead run's folder from a live one's.
type folder struct {
	path string
	lock *os.File
}

func makeFolder(runs, id string) (*folder, error) {
	path := filepath.Join(runs, id)
	if err := os.Mkdir(path, 0o700); err != nil {
		return nil, fmt.Errorf("make the run's folder: %w", err)
	}
	f, err := os.Open(path)
	if err == nil {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock the run's folder: %w", err), f.Close(), os.Remove(path))
	}
	return &folder{path, f}, nil
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

// sweepAge is how old a folder must be before it can be a dead run's: a young one may be about to be locked.
const sweepAge = time.Minute

// sweepFolders removes the folders of runs whose engine died.
func sweepFolders(runs string, now time.Time) error {
	entries, err := os.ReadDir(runs)
	if err != nil {
		return err
	}
	var errs []error
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil || !info.IsDir() || now.Sub(info.ModTime()) < sweepAge {
			continue
		}
		f, err := os.Open(filepath.Join(runs, entry.Name()))
		if err != nil {
			continue // another engine was faster
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			errs = append(errs, removeTree(f.Name()))
		}
		f.Close()
	}
	return errors.Join(errs...)
}
