package output

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix" // a rename that replaces nothing

	"glovebox"
)

// Place writes an artifact beneath dir. path is a glovebox.Artifact.Path: odd names get their own bytes back where those
// make a file name, and keep their spelling where they do not. Missing folders are made (mode 0755), the file is new (mode
// 0644, less the process's umask), nothing is ever executable. No link is followed, neither for the file nor for a folder
// above it, and no existing file is written to: without overwrite what is in the way is a conflict; with it a file or link
// in the way is replaced, and only a folder where the file should go is a conflict. The file is written beside its place,
// under a name that begins with .glovebox-, and has its own name only when it is whole, also if this process is killed
// meanwhile. On error, and when ctx ends, no part of the file is left. dir stays the caller's. Errors of r are returned
// wrapped, that of ctx as its cause.
func Place(ctx context.Context, dir *os.Root, path string, overwrite bool, r io.Reader) error {
	names, err := fileNames(path)
	if err != nil {
		return err
	}
	for _, name := range names[:len(names)-1] {
		sub, err := enter(dir, name, overwrite)
		if err != nil {
			return fmt.Errorf("place artifact: %w", err)
		}
		defer sub.Close() // only reads and makes entries: closing it cannot lose anything
		dir = sub
	}
	name := names[len(names)-1]
	if err := clearWay(dir, name, overwrite); err != nil {
		return fmt.Errorf("place artifact: %w", err)
	}
	if err := create(ctx, dir, name, overwrite, r); err != nil {
		return fmt.Errorf("place artifact: %w", err)
	}
	return nil
}

// fileNames splits an artifact's path into names of the local file system.
func fileNames(path string) ([]string, error) {
	names := strings.Split(path, "/")
	if len(names) > maxDepth+1 {
		return nil, glovebox.Errorf(glovebox.CodeInvalid, "use a path from the artifacts of a result",
			"the artifact's path is nested deeper than %d folders", maxDepth)
	}
	for i, spelt := range names {
		name, err := unspell(spelt)
		if err != nil || !isName(name) {
			name = spelt
		}
		if !isName(name) {
			return nil, glovebox.Errorf(glovebox.CodeInvalid, "use a path from the artifacts of a result",
				"the artifact's path is not a clean relative path")
		}
		names[i] = name
	}
	return names, nil
}

func isName(s string) bool {
	return s != "" && s != "." && s != ".." && !strings.ContainsAny(s, "/\x00")
}

// enter opens the folder name of dir, making it if need be, and makes sure that it is no link.
func enter(dir *os.Root, name string, overwrite bool) (*os.Root, error) {
	err := dir.Mkdir(name, 0o755)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	before, err := dir.Lstat(name)
	if err == nil && !before.IsDir() {
		if !overwrite {
			return nil, inTheWay()
		}
		if err = dir.Remove(name); err == nil {
			err = dir.Mkdir(name, 0o755)
		}
		if err == nil {
			before, err = dir.Lstat(name)
		}
	}
	if err != nil {
		return nil, err
	}
	sub, err := dir.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	// What was opened must be what was looked at, in case a link took its place in between.
	if after, err := sub.Stat("."); err != nil || !os.SameFile(before, after) {
		_ = sub.Close()
		return nil, inTheWay()
	}
	return sub, nil
}

// clearWay makes sure that nothing is in the way of an artifact, or only what may be replaced.
func clearWay(dir *os.Root, name string, overwrite bool) error {
	info, err := dir.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.IsDir() || !overwrite:
		return inTheWay()
	}
	return nil
}

// pieceBytes are copied at a time: between pieces a copy can be cancelled.
const pieceBytes = 16 << 20

func create(ctx context.Context, dir *os.Root, name string, overwrite bool, r io.Reader) error {
	beside := ".glovebox-" + strings.ToLower(rand.Text())
	f, err := dir.OpenFile(beside, os.O_CREATE|os.O_EXCL|os.O_WRONLY|syscall.O_NOFOLLOW, 0o644)
	if err != nil {
		return err
	}
	for err == nil {
		if err = context.Cause(ctx); err == nil {
			_, err = io.CopyN(f, r, pieceBytes)
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = rename(dir, beside, name, overwrite)
	}
	if err != nil {
		_ = dir.Remove(beside) // it is ours; the first error is what matters
	}
	return err
}

// rename gives a whole file its name. Without overwrite it takes no name that another process took meanwhile, as far as the
// file system can tell.
func rename(dir *os.Root, from, to string, overwrite bool) error {
	folder, err := dir.Open(".")
	if err != nil {
		return err
	}
	defer folder.Close() // only looked at
	fd := int(folder.Fd())
	if overwrite {
		err = unix.Renameat(fd, from, fd, to)
	} else if err = unix.Renameat2(fd, from, fd, to, unix.RENAME_NOREPLACE); errors.Is(err, unix.EINVAL) {
		// A file system that does not know how.
		if err = clearWay(dir, to, false); err == nil {
			err = unix.Renameat(fd, from, fd, to)
		}
	}
	if errors.Is(err, unix.EEXIST) || errors.Is(err, unix.EISDIR) {
		return inTheWay()
	}
	return err
}

func inTheWay() error {
	return glovebox.Errorf(glovebox.CodeConflict, "name an empty or new folder for --output, or add --overwrite",
		"a file, link or folder in the output folder is where an artifact goes")
}
