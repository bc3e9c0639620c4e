// Package livefolder makes folders that are locked while whoever made them lives, so that others on the same data_dir can
// tell what a dead process left from what is in use. A lock ends with its holder, however that ends.
package livefolder

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Folder is a folder that is locked until it is removed or let go. Its methods are not for concurrent use.
type Folder struct {
	Path string
	lock *os.File
}

// Make makes a folder, mode 0700, and locks it.
func Make(path string) (*Folder, error) {
	for {
		if err := os.Mkdir(path, 0o700); err != nil {
			return nil, fmt.Errorf("make a folder: %w", err)
		}
		lock, err := Lock(path, 0)
		if err == nil {
			return &Folder{path, lock}, nil
		}
		// A sweep may have found it between its making and its locking.
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, errors.Join(fmt.Errorf("lock a folder: %w", err), os.Remove(path))
		}
	}
}

// Remove deletes the folder with all that is in it, and lets it go.
func (f *Folder) Remove(context.Context) error {
	return errors.Join(RemoveTree(f.Path), f.lock.Close())
}

// Leave lets the folder go as it is, under whatever name it has.
func (f *Folder) Leave() error { return f.lock.Close() }

// How a folder is locked: bits that can be joined.
const (
	Shared = 1 << iota // others may share it
	NoWait             // fail with EWOULDBLOCK rather than wait
)

// Lock locks a folder until what it returns is closed. One that is gone, also once the lock is had, does not exist.
func Lock(path string, how int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	call := unix.LOCK_EX
	if how&Shared != 0 {
		call = unix.LOCK_SH
	}
	if how&NoWait != 0 {
		call |= unix.LOCK_NB
	}
	for err = unix.EINTR; err == unix.EINTR; {
		err = unix.Flock(int(f.Fd()), call)
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

// RemoveTree deletes a folder with all that is in it, also where folders in it are read-only.
func RemoveTree(path string) error {
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

// Sweep removes the folders in dir whose maker died: nobody holds them locked. Those that ours says false of are left alone;
// nil means that all are.
func Sweep(dir string, ours func(name string) bool) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, entry := range entries {
		if ours != nil && !ours(entry.Name()) {
			continue
		}
		lock, err := Lock(filepath.Join(dir, entry.Name()), NoWait)
		switch {
		case err == nil:
			errs = append(errs, RemoveTree(lock.Name()), lock.Close()) // the lock outlives the name
		case errors.Is(err, unix.EWOULDBLOCK), errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
			// It lives, somebody else was faster, or it is none.
		default:
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
