package store

import (
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
)

// Batch keeps many blobs in much less time than one after the other: each has to be brought to the disk, and they go there
// together. It is not safe for concurrent use. Each blob holds a descriptor until the next Settle or Commit.
type Batch struct {
	store   *Store
	pending []unsettled
	folders map[string]bool // with names that are not on the disk yet
	buffer  []byte
}

// unsettled is a whole blob that does not have its name yet.
type unsettled struct {
	file *os.File
	sha  string
}

// NewBatch returns an empty batch. Whoever puts into it commits it.
func (s *Store) NewBatch() *Batch { return &Batch{store: s, folders: map[string]bool{}} }

// Put writes what r yields as a blob and returns its length in bytes and its SHA-256 in hex, which is its name. It can be
// opened and is on the disk after Commit. r is read to its end and not closed.
func (b *Batch) Put(r io.Reader) (n int64, sha string, err error) {
	f, err := newBlob(filepath.Join(b.store.dir, newFolder))
	if err != nil {
		return 0, "", diagnose("put blob", b.store.dir, err)
	}
	if b.buffer == nil {
		b.buffer = make([]byte, copyBuffer)
	}
	if n, sha, err = hashTo(f, r, b.buffer); err != nil {
		return 0, "", diagnose("put blob", b.store.dir, errors.Join(err, f.Close(), os.Remove(f.Name())))
	}
	b.pending = append(b.pending, unsettled{f, sha})
	return n, sha, nil
}

// Settle brings the contents of all blobs since the last time to the disk and gives them their names, which last after
// Commit. After an error none of them counts as kept.
func (b *Batch) Settle() error {
	pending := b.pending
	b.pending = nil
	err := b.store.settle(pending, b.folders)
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

// Commit settles, then brings the names of all blobs since the last Commit to the disk: a folder has many of them, and is
// written once. After an error none of them counts as kept. Either way the batch is empty then and can be used again.
func (b *Batch) Commit() error {
	err := b.Settle()
	folders := slices.Collect(maps.Keys(b.folders))
	clear(b.folders)
	if err != nil || len(folders) == 0 {
		return err
	}
	return diagnose("put blob", b.store.dir, b.store.syncNames(folders))
}

// syncers is how many files are brought to the disk at a time. The disk takes their requests together.
const syncers = 16

// settle moves files to the places of their hashes once their contents are on the disk, and notes their folders, which are
// still to be synced. A blob of that name is replaced by its equal, so that the time taken does not tell whether somebody
// had it before.
func (s *Store) settle(blobs []unsettled, folders map[string]bool) error {
	err := together(blobs, func(u unsettled) error {
		if err := u.file.Chmod(0o400); err != nil {
			return err
		}
		return u.file.Sync()
	})
	if err != nil {
		return err
	}
	for _, u := range blobs {
		folder := filepath.Dir(s.blobPath(u.sha))
		if !folders[folder] {
			if err := os.Mkdir(folder, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
			folders[folder] = true
		}
	}
	for _, u := range blobs {
		if err := os.Rename(u.file.Name(), s.blobPath(u.sha)); err != nil {
			return err
		}
	}
	return nil
}

// syncNames brings the names in folders to the disk.
func (s *Store) syncNames(folders []string) error {
	// Also when none was made: whoever made them may not have synced them yet.
	if err := SyncFolder(filepath.Join(s.dir, blobFolder)); err != nil {
		return err
	}
	return together(folders, SyncFolder)
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
