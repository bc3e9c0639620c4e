package unpack

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"glovebox"
)

// A whiteout of a layer removes what layers below it have.
const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
)

// Layer unpacks a tar stream over what the tree has, and reads the stream to its end. With layered, names that begin with
// .wh. remove what lower layers have, as image formats have it. An error that is about the archive is a *glovebox.Error with
// code invalid; after any error the tree is good for nothing.
func (t *Tree) Layer(ctx context.Context, from io.Reader, layered bool) error {
	t.layer++
	from = &bounded{ctx: ctx, from: from, tree: t}
	archive := tar.NewReader(from)
	for {
		h, err := archive.Next()
		if err == io.EOF {
			break
		}
		if err == nil {
			err = t.entry(archive, h, layered)
		}
		if err != nil {
			return broken(ctx, err)
		}
	}
	_, err := io.Copy(io.Discard, from) // whoever checks what was read sees all of it
	return broken(ctx, err)
}

// broken tells an archive that is none from what went wrong here.
func broken(ctx context.Context, err error) error {
	var told *glovebox.Error
	var here *fs.PathError
	var link *os.LinkError
	switch {
	case err == nil || ctx.Err() != nil || errors.As(err, &told) || errors.As(err, &here) || errors.As(err, &link):
		return err
	}
	return &glovebox.Error{Code: glovebox.CodeInvalid, Op: "unpack", Public: "the archive is damaged, or it is no archive",
		Fix: "make or fetch it again", Err: err}
}

// bounded reads no more than a tree may hold: what an archive says of its sizes is not asked.
type bounded struct {
	ctx  context.Context
	from io.Reader
	tree *Tree
}

func (b *bounded) Read(p []byte) (int, error) {
	if err := b.ctx.Err(); err != nil {
		return 0, context.Cause(b.ctx)
	}
	n, err := b.from.Read(p)
	b.tree.bytes += int64(n)
	if b.tree.bytes > int64(b.tree.cfg.MaxBytes) {
		return 0, b.tree.tooLarge()
	}
	return n, err
}

func (t *Tree) tooLarge() error {
	return refused("import something smaller, or raise images.max_size in glovebox.yaml", "the archive holds more than %v",
		t.cfg.MaxBytes)
}

// entry puts one entry of an archive into the tree.
func (t *Tree) entry(archive *tar.Reader, h *tar.Header, layered bool) error {
	if err := t.count(); err != nil {
		return err
	}
	parts, ok, err := names(h.Name)
	switch {
	case err != nil:
		return err
	case !ok:
		t.dropped.Names++
		return nil
	case len(parts) == 0: // the root itself
		return nil
	case slices.Contains(t.cfg.Reserved, parts[0]):
		t.dropped.Reserved++
		return nil
	}
	if name := parts[len(parts)-1]; layered && strings.HasPrefix(name, whiteout) {
		return t.whiteout(parts)
	}
	switch h.Typeflag {
	case tar.TypeDir, tar.TypeReg, tar.TypeRegA, tar.TypeGNUSparse, tar.TypeSymlink, tar.TypeLink: //nolint:staticcheck
	case tar.TypeXGlobalHeader:
		return nil
	default: // device nodes, fifos, and what nobody knows
		t.dropped.Devices++
		return nil
	}
	real, dir, err := t.parent(parts)
	if err != nil {
		return err
	}
	// A link may have led from an innocent name to a folder that is every sandbox's own.
	if top := append(slices.Clone(real), parts[len(parts)-1])[0]; slices.Contains(t.cfg.Reserved, top) {
		t.dropped.Reserved++
		return nil
	}
	return t.put(archive, h, real, dir, parts[len(parts)-1])
}

// put makes one name of a folder of the tree.
func (t *Tree) put(archive *tar.Reader, h *tar.Header, real []string, dir *node, name string) error {
	there := dir.kids[name]
	if h.Typeflag == tar.TypeDir && there != nil && there.kind == Folder {
		there.layer = t.layer
		return nil
	}
	if len(real) >= maxDepth || len(disk(real))+len(name) >= maxPath {
		t.dropped.Names++
		return nil
	}
	var linked *node
	var linkedAt []string
	if h.Typeflag == tar.TypeLink { // before anything is removed: it may be a link to itself
		var err error
		linkedAt, linked, err = t.linked(h)
		if err != nil || linked == nil || linked == there {
			return err
		}
	}
	if err := t.remove(real, dir, name); err != nil {
		return err
	}
	full := disk(append(slices.Clone(real), name))
	n := &node{layer: t.layer}
	switch h.Typeflag {
	case tar.TypeDir:
		n = folderNode(t.layer)
		if err := t.root.Mkdir(full, 0o755); err != nil {
			return fmt.Errorf("make a folder: %w", err)
		}
	case tar.TypeSymlink:
		if h.Linkname == "" || len(h.Linkname) >= maxPath || strings.ContainsRune(h.Linkname, 0) {
			t.dropped.Names++
			return nil
		}
		n.kind, n.to = Link, h.Linkname
		if err := t.root.Symlink(h.Linkname, full); err != nil {
			return fmt.Errorf("make a link: %w", err)
		}
	case tar.TypeLink:
		if t.at(linkedAt) != linked { // it was beneath what this name replaced
			return refused("make the archive anew", "the archive has a hard link that replaces its own target")
		}
		*n = *linked
		n.layer = t.layer
		if err := t.root.Link(disk(linkedAt), full); err != nil {
			return fmt.Errorf("make a hard link: %w", err)
		}
	default:
		if err := t.file(archive, h, full, n); err != nil {
			return err
		}
	}
	dir.kids[name] = n
	return nil
}

// linked finds the file that a hard link is to; nil for one that was left out or is no regular file.
func (t *Tree) linked(h *tar.Header) ([]string, *node, error) {
	parts, ok, err := names(h.Linkname)
	if err != nil {
		return nil, nil, err
	}
	if !ok || len(parts) == 0 {
		t.dropped.Names++
		return nil, nil, nil
	}
	real, dir, _, err := t.find(parts[:len(parts)-1])
	if err == nil && dir != nil && dir.kind == Folder {
		if n := dir.kids[parts[len(parts)-1]]; n != nil && n.kind == Regular {
			return append(slices.Clone(real), parts[len(parts)-1]), n, nil
		}
	}
	t.dropped.Names++
	return nil, nil, nil
}

// file writes a regular file.
func (t *Tree) file(archive io.Reader, h *tar.Header, full string, n *node) (err error) {
	n.kind, n.exec = Regular, h.Mode&0o111 != 0
	if h.Mode&0o6000 != 0 || hasAttributes(h) {
		t.dropped.Privileges++
	}
	mode := fs.FileMode(0o444)
	if n.exec {
		mode = 0o555
	}
	// What is read of a sparse file is less than what it holds.
	if t.written += h.Size; h.Size < 0 || t.written > int64(t.cfg.MaxBytes) {
		return t.tooLarge()
	}
	f, err := t.root.OpenFile(full, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return fmt.Errorf("make a file: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := f.Chmod(mode); err != nil { // whatever the mask
		return fmt.Errorf("make a file: %w", err)
	}
	h256 := sha256.New()
	if n.size, err = io.Copy(io.MultiWriter(f, h256), archive); err != nil {
		return fmt.Errorf("write a file: %w", err)
	}
	h256.Sum(n.sum[:0])
	// Python believes what it compiled before only as long as the source has the date that it had then.
	date := h.ModTime
	if date.Unix() < 0 || date.Year() > 2200 { // which not every file system can hold
		date = time.Unix(0, 0)
	}
	if err := t.root.Chtimes(full, time.Time{}, date); err != nil {
		return fmt.Errorf("date a file: %w", err)
	}
	return nil
}

func hasAttributes(h *tar.Header) bool {
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, "SCHILY.xattr.") {
			return true
		}
	}
	return false
}

// whiteout removes what lower layers have at a name, or in a folder.
func (t *Tree) whiteout(parts []string) error {
	name := parts[len(parts)-1]
	real, dir, _, err := t.find(parts[:len(parts)-1])
	if err != nil || dir == nil || dir.kind != Folder {
		return nil // it removes what is not there
	}
	if name == opaque {
		for _, kid := range slices.Sorted(maps.Keys(dir.kids)) {
			if _, err := t.lower(real, dir, kid); err != nil {
				return err
			}
		}
		return nil
	}
	_, err = t.lower(real, dir, strings.TrimPrefix(name, whiteout))
	return err
}

// lower removes a name of a folder unless this layer put it there, or something in it; it tells whether the name is gone.
func (t *Tree) lower(real []string, dir *node, name string) (gone bool, err error) {
	n := dir.kids[name]
	if n == nil {
		return true, nil
	}
	keep := n.layer == t.layer
	if n.kind == Folder {
		at := append(slices.Clone(real), name)
		for _, kid := range slices.Sorted(maps.Keys(n.kids)) {
			gone, err := t.lower(at, n, kid)
			if err != nil {
				return false, err
			}
			keep = keep || !gone
		}
	}
	if keep {
		return false, nil
	}
	return true, t.remove(real, dir, name)
}

// Put replaces a file of the tree, or makes it with the folders above it. Whatever was at that name is gone; links on the
// way are followed inside the tree.
func (t *Tree) Put(name string, data []byte, executable bool) error {
	mode := int64(0o444)
	if executable {
		mode = 0o555
	}
	h := &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: mode, Size: int64(len(data)), ModTime: time.Unix(0, 0)}
	return t.place(h, data)
}

// Symlink is Put for a symbolic link.
func (t *Tree) Symlink(name, target string) error {
	return t.place(&tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: target}, nil)
}

func (t *Tree) place(h *tar.Header, data []byte) error {
	parts, ok, err := names(h.Name)
	if err != nil || !ok || len(parts) == 0 {
		return errors.Join(errors.New("put a file into a tree: a bad name"), err)
	}
	real, dir, err := t.parent(parts)
	if err != nil {
		return err
	}
	name := parts[len(parts)-1]
	if h.Typeflag != tar.TypeReg {
		return t.put(nil, h, real, dir, name)
	}
	if err := t.remove(real, dir, name); err != nil {
		return err
	}
	n := &node{layer: t.layer}
	if err := t.file(bytes.NewReader(data), h, disk(append(slices.Clone(real), name)), n); err != nil {
		return err
	}
	dir.kids[name] = n
	return nil
}

// Remove takes a name out of the tree, with all beneath. One that is not there is no error.
func (t *Tree) Remove(name string) error {
	parts, ok, err := names(name)
	if err != nil || !ok || len(parts) == 0 {
		return err
	}
	real, dir, _, err := t.find(parts[:len(parts)-1])
	if err != nil || dir == nil || dir.kind != Folder {
		return nil
	}
	return t.remove(real, dir, parts[len(parts)-1])
}
