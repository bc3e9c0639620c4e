package store

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix" // locks by open file
)

const (
	blobFolder = "blobs"
	newFolder  = "blobs/new" // half-written blobs and databases, on the file system of the whole ones
	copyBuffer = 256 << 10
	blobPrefix = "blob-" // of a half-written blob, which its writer holds locked
)

// Put keeps what r yields as a blob and returns its length in bytes and its SHA-256 in hex, which is its name. The blob is
// on the disk when Put returns. What is known already is kept once. r is read to its end and not closed.
func (s *Store) Put(r io.Reader) (n int64, sha string, err error) {
	b := s.NewBatch()
	if n, sha, err = b.Put(r); err == nil {
		err = b.Commit()
	}
	if err != nil {
		return 0, "", err
	}
	return n, sha, nil
}

// PutFile is Put for a regular file, which it takes over: the file is moved when it lies on the same file system, else
// copied and removed. Nobody may write to the file any more. After an error the file is still there.
func (s *Store) PutFile(path string) (n int64, sha string, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if err != nil {
		return 0, "", diagnose("put file", s.dir, err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return 0, "", errors.Join(errors.New("put file: it is not a regular file"), err)
	}
	if n, sha, err = hashTo(io.Discard, f, make([]byte, copyBuffer)); err != nil {
		return 0, "", diagnose("put file", s.dir, err)
	}
	folders := map[string]bool{}
	if err = s.settle([]unsettled{{f, sha}}, folders); err == nil {
		err = s.syncNames(slices.Collect(maps.Keys(folders)))
	}
	if errors.Is(err, syscall.EXDEV) {
		if _, err = f.Seek(0, io.SeekStart); err == nil {
			if n, sha, err = s.Put(f); err == nil {
				err = os.Remove(path)
			}
		}
	}
	if err != nil {
		return 0, "", diagnose("put file", s.dir, err)
	}
	return n, sha, nil
}

// Open opens a blob read-only by the hex SHA-256 that Put returned. The caller closes the file. One that is not there is
// fs.ErrNotExist.
func (s *Store) Open(sha string) (*os.File, error) {
	if raw, err := hex.DecodeString(sha); err != nil || len(raw) != sha256.Size {
		return nil, fmt.Errorf("open blob: %w: the name is not a SHA-256", fs.ErrNotExist)
	}
	f, err := os.Open(s.blobPath(sha))
	if err != nil {
		return nil, fmt.Errorf("open blob: %w", err)
	}
	return f, nil
}

// Remove removes a blob that was put before a time, and reports whether it is gone. Somebody may be about to name a younger
// one. A blob that is not there is gone.
func (s *Store) Remove(sha string, before time.Time) (bool, error) {
	if raw, err := hex.DecodeString(sha); err != nil || len(raw) != sha256.Size {
		return true, nil
	}
	// The time of its last move, which is when it was put, whenever it was written.
	info, err := os.Lstat(s.blobPath(sha))
	if err == nil {
		if stat, ok := info.Sys().(*syscall.Stat_t); !ok || !time.Unix(stat.Ctim.Unix()).Before(before) {
			return false, nil
		}
		err = os.Remove(s.blobPath(sha))
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return err == nil, diagnose("remove blob", s.dir, err)
}

func (s *Store) blobPath(sha string) string {
	return filepath.Join(s.dir, blobFolder, sha[:2], sha[2:])
}

// newBlob makes the file of a blob that is to be written and locks it until it is closed: so Sweep can tell what is being
// written from what a process that died has left, whose locks the kernel took away.
func newBlob(folder string) (*os.File, error) {
	for {
		f, err := os.CreateTemp(folder, blobPrefix)
		if err != nil {
			return nil, err
		}
		if err := lock(f, unix.LOCK_EX); err != nil {
			return nil, errors.Join(err, f.Close(), os.Remove(f.Name()))
		}
		// A sweep may have found it between its making and its locking.
		if named(f) {
			return f, nil
		}
		f.Close()
	}
}

// lock takes a lock of the file's, which ends when it is closed.
func lock(f *os.File, how int) error {
	for {
		if err := unix.Flock(int(f.Fd()), how); err != unix.EINTR {
			return err
		}
	}
}

// named reports whether the file is still what its name leads to.
func named(f *os.File) bool {
	mine, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(f.Name())
	return err == nil && os.SameFile(mine, there)
}

// Sweep removes what processes that died left half-written. It reads one folder, which is empty as a rule; a blob that is
// being written, by whatever process, stays.
func (s *Store) Sweep() error {
	folder := filepath.Join(s.dir, newFolder)
	entries, err := os.ReadDir(folder)
	if err != nil {
		return diagnose("sweep blobs", s.dir, err)
	}
	var errs []error
	for _, entry := range entries {
		if err := sweepFile(filepath.Join(folder, entry.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return diagnose("sweep blobs", s.dir, errors.Join(errs...))
}

// sweepFile removes what nobody writes any more. A database in the making is nobody's: there is one already, and whoever
// makes another will find that out.
func sweepFile(path string) error {
	if !strings.HasPrefix(filepath.Base(path), blobPrefix) {
		return os.Remove(path)
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer f.Close() // with it ends the lock, once the name is gone
	if err := lock(f, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil // it is being written
		}
		return err
	}
	return os.Remove(path)
}

func hashTo(w io.Writer, r io.Reader, buffer []byte) (int64, string, error) {
	h := sha256.New()
	n, err := io.CopyBuffer(struct{ io.Writer }{io.MultiWriter(w, h)}, struct{ io.Reader }{r}, buffer)
	return n, hex.EncodeToString(h.Sum(nil)), err
}
