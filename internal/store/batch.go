package store

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
)

// Batch keeps many blobs in much less time than one after the other: each has to be brought to the disk, and they go there
// together. It is not safe for concurrent use. Each blob holds a descriptor until the next Commit.
type Batch struct {
	store   *Store
	pending []unsettled
}

// unsettled is a whole blob that does not have its name yet.
type unsettled struct {
	file *os.File
	sha  string
}

// NewBatch returns an empty batch. Whoever puts into it commits it.
func (s *Store) NewBatch() *Batch { return &Batch{store: s} }

// Put writes what r yields as a blob and returns its length in bytes and its SHA-256 in hex, which is its name. It can be
// opened and is on the disk after Commit. r is read to its end and not closed.
func (b *Batch) Put(r io.Reader) (n int64, sha string, err error) {
	f, err := newBlob(filepath.Join(b.store.dir, newFolder))
	if err != nil {
		return 0, "", diagnose("put blob", b.store.dir, err)
	}
	if n, sha, err = hashTo(f, r); err != nil {
		return 0, "", diagnose("put blob", b.store.dir, errors.Join(err, f.Close(), os.Remove(f.Name())))
	}
	b.pending = append(b.pending, unsettled{f, sha})
	return n, sha, nil
}

// Commit brings all blobs since the last Commit to the disk. After an error none of them counts as kept. Either way the
// batch is empty then and can be used again.
func (b *Batch) Commit() error {
	pending := b.pending
	b.pending = nil
	err := b.store.settle(pending)
	for _, u := range pending {
		if err != nil {
			if gone := os.Remove(u.file.Name()); !errors.Is(gone, fs.ErrNotExist) { // it may have got its name
				err = errors.Join(err, gone)
			}
		}
		u.file.Close()
	}
	return diagnose("put blob", b.store.dir, err)
}

// syncers is how many files are brought to the disk at a time. The disk takes their requests together.
const syncers = 16

// settle moves files to the places of their hashes and returns when contents and names are on the disk. A blob of that name
// is replaced by its equal, so that the time taken does not tell whether somebody had it before.
func (s *Store) settle(blobs []unsettled) error {
	if len(blobs) == 0 {
		return nil
	}
	err := together(blobs, func(u unsettled) error {
		if err := u.file.Chmod(0o400); err != nil {
			return err
		}
		return u.file.Sync()
	})
	if err != nil {
		return err
	}
	var folders []string
	seen := map[string]bool{}
	for _, u := range blobs {
		folder := filepath.Dir(s.blobPath(u.sha))
		if seen[folder] {
			continue
		}
		if err := os.Mkdir(folder, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		seen[folder], folders = true, append(folders, folder)
	}
	// Also when none was made: whoever made them may not have synced them yet.
	if err := syncFolder(filepath.Join(s.dir, blobFolder)); err != nil {
		return err
	}
	for _, u := range blobs {
		if err := os.Rename(u.file.Name(), s.blobPath(u.sha)); err != nil {
			return err
		}
	}
	return together(folders, syncFolder)
}

// together does the work on each item, some at a time, and returns all errors.
func together[T any](items []T, work func(T) error) error {
	if len(items) == 1 {
		return work(items[0])
	}
	errs := make([]error, len(items))
	turns := make(chan struct{}, syncers)
	var all sync.WaitGroup
	for i, item := range items {
		turns <- struct{}{}
		all.Go(func() {
			defer func() { <-turns }()
			errs[i] = work(item)
		})
	}
	all.Wait()
	return errors.Join(errs...)
}
