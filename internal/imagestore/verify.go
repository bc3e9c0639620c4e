package imagestore

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"glovebox"
	"glovebox/internal/livefolder"
	"glovebox/internal/unpack"
)

// Verification is what Verify found.
type Verification struct {
	Name    string `json:"name"`
	Digest  string `json:"digest"`
	OK      bool   `json:"ok"`
	Entries int    `json:"entries"` // that the manifest names
	Bytes   int64  `json:"bytes"`   // that were read
	// Problems are what is not as the manifest says, each with its path in the image; at most 20, and More beyond them.
	Problems []string `json:"problems"`
	More     int      `json:"more"`
	// Renewed tells that all was as the manifest says although something had been touched since, as it is after a copy of the
	// store: the image can be used again.
	Renewed bool `json:"renewed"`
}

const maxProblems = 20

// Verify reads all of an image and compares it with its manifest. What does not hold is in the Verification; an error means
// that it could not be checked.
func (s *Store) Verify(ctx context.Context, name string) (v *Verification, err error) {
	digest, lock, err := s.open(name, livefolder.Shared)
	v = &Verification{Name: name, Digest: digest, Problems: []string{}}
	if publicCode(err) == glovebox.CodeUnavailable {
		v.problem("%s", err.(*glovebox.Error).Public)
		return v, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	dir := s.folder(digest)
	manifest, err := readManifest(name, dir, digest)
	var entries []unpack.Entry
	if err == nil {
		entries, err = entriesOf(manifest)
	}
	if err != nil {
		v.problem("its manifest is damaged")
		return v, nil
	}
	v.Entries = len(entries)
	seal, err := sealOf(ctx, filepath.Join(dir, "tree"))
	if err == nil {
		err = v.tree(ctx, filepath.Join(dir, "tree"), entries)
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, glovebox.Internal("verify the image", err)
	}
	v.OK = len(v.Problems) == 0
	if v.OK {
		return v, glovebox.Internal("renew the seal", s.renew(ctx, v, dir, seal))
	}
	return v, nil
}

// renew seals a tree that was found whole. seal is from before it was read: what was changed meanwhile does not fit it.
func (s *Store) renew(ctx context.Context, v *Verification, dir, seal string) error {
	alone, err := s.alone()
	if err != nil {
		return err
	}
	defer alone.Close()
	was, err := os.ReadFile(filepath.Join(dir, "seal"))
	if err == nil && strings.TrimSuffix(string(was), "\n") == seal {
		return nil
	}
	v.Renewed = true
	return replaceFile(filepath.Join(dir, "seal"), seal+"\n")
}

func (v *Verification) problem(format string, args ...any) {
	if len(v.Problems) == maxProblems {
		v.More++
		return
	}
	v.Problems = append(v.Problems, fmt.Sprintf(format, args...))
}

// tree compares a tree with entries.
func (v *Verification) tree(ctx context.Context, dir string, entries []unpack.Entry) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	known := make(map[string]*unpack.Entry, len(entries))
	for i := range entries {
		known[entries[i].Path] = &entries[i]
	}
	buffer := make([]byte, 1<<20)
	err = fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil || name == "." {
			return err
		}
		e := known["/"+name]
		if e == nil {
			v.problem("%q was added", "/"+name)
			return nil
		}
		delete(known, "/"+name)
		return v.entry(root, name, d, e, buffer)
	})
	if err != nil {
		return err
	}
	for i := range entries { // in order, which that of a map is not
		if known[entries[i].Path] != nil {
			v.problem("%q is missing", entries[i].Path)
		}
	}
	return nil
}

// entry compares one path with what it must be.
func (v *Verification) entry(root *os.Root, name string, d fs.DirEntry, e *unpack.Entry, buffer []byte) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	kind, mode := unpack.Regular, fs.FileMode(0o444)
	switch info.Mode().Type() {
	case fs.ModeDir:
		kind = unpack.Folder
	case fs.ModeSymlink:
		kind = unpack.Link
	case 0:
	default:
		kind = 0
	}
	if kind == unpack.Folder || e.Executable {
		mode = 0o555
	}
	switch {
	case kind != e.Kind:
		v.problem("%q is another kind of thing", e.Path)
		return nil
	case kind != unpack.Link && info.Mode()&^fs.ModeType != mode:
		v.problem("%q has mode %v", e.Path, info.Mode()&^fs.ModeType)
		return nil
	case kind == unpack.Link:
		to, err := root.Readlink(name)
		if err == nil && to != e.Target {
			v.problem("%q leads elsewhere", e.Path)
		}
		return err
	case kind == unpack.Folder:
		return nil
	}
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.CopyBuffer(struct{ io.Writer }{h}, struct{ io.Reader }{f}, buffer)
	v.Bytes += n
	if err != nil {
		return fmt.Errorf("read %q: %w", e.Path, err)
	}
	if n != e.Size || [32]byte(h.Sum(nil)) != e.SHA256 {
		v.problem("%q has another content", e.Path)
	}
	return nil
}
