package engine

import (
	"context"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"

	"glovebox/internal/livefolder"
)

// lateFolder is the private folder of a live run in the data_dir, made when something first needs one, which for most runs
// is never: to make and remove a folder costs as much as a tenth of all the rest. Methods are safe for concurrent use.
type lateFolder struct {
	mu      sync.Mutex
	made    *livefolder.Folder
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
		if l.made, err = livefolder.Make(filepath.Join(runs, id)); err != nil {
			return "", err
		}
	}
	return l.made.Path, nil
}

// remove deletes the folder, if there is one, for good.
func (l *lateFolder) remove(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.removed = true
	if l.made == nil {
		return nil
	}
	return l.made.Remove(ctx)
}
