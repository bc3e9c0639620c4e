// Package erofs writes read-only images of files in the plain form of the EROFS file system, which Linux mounts since 5.4:
// no compression, no extended attributes, everything root's. It needs no tool, no rights and no copy of the tree: what goes
// in is named file by file.
//
// The form is that of the kernel's fs/erofs/erofs_fs.h: a superblock at 1024, inodes of 64 bytes at multiples of 32 bytes
// (their number is that multiple), folders as blocks of sorted entries, and each file's bytes in blocks that follow each
// other.
package erofs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"
)

const (
	blockSize  = 4096
	slotSize   = 32 // inodes are numbered by it
	inodeSize  = 64
	entrySize  = 12
	superAt    = 1024
	superMagic = 0xE0F5E1E2

	layoutPlain  = 0 // bytes in blocks of their own
	layoutInline = 2 // bytes behind the inode, in its block
	longName     = 255
	longTarget   = blockSize - inodeSize - 1
)

// The types of entries of folders.
const (
	typeFile   = 1
	typeFolder = 2
	typeLink   = 7
)

// node is one file, folder or link.
type node struct {
	name     string
	mode     uint32 // as stat(2) has it
	size     int64
	mtime    time.Time
	target   string
	open     func() (io.ReadCloser, error)
	children map[string]*node
	parent   *node

	slot  uint64 // the inode's number
	block uint32 // of its first bytes
	data  []byte // of a folder
}

// Tree is what an image is made of. The zero value is not ready: see New.
type Tree struct{ root *node }

// New makes an empty tree.
func New() *Tree {
	root := folder("", time.Unix(0, 0))
	root.parent = root
	return &Tree{root}
}

func folder(name string, mtime time.Time) *node {
	return &node{name: name, mode: 0o040755, mtime: mtime, children: map[string]*node{}}
}

// Folder adds a folder, or sets the mode and time of one. Parents are made. name is relative to the root, with slashes.
func (t *Tree) Folder(name string, perm fs.FileMode, mtime time.Time) error {
	n, err := t.folder(name)
	if err != nil {
		return err
	}
	n.mode, n.mtime = 0o040000|uint32(perm.Perm()), mtime
	return nil
}

// File adds a file of so many bytes, which are read from what open returns when the image is written.
func (t *Tree) File(name string, perm fs.FileMode, size int64, mtime time.Time, open func() (io.ReadCloser, error)) error {
	return t.add(name, &node{mode: 0o100000 | uint32(perm.Perm()), size: size, mtime: mtime, open: open})
}

// Link adds a symbolic link.
func (t *Tree) Link(name, target string, mtime time.Time) error {
	if target == "" || len(target) > longTarget {
		return fmt.Errorf("link %.200q: its target has %d bytes", name, len(target))
	}
	return t.add(name, &node{mode: 0o120777, size: int64(len(target)), mtime: mtime, target: target})
}

func (t *Tree) add(name string, n *node) error {
	in, err := t.folder(path.Dir(name))
	if err != nil {
		return err
	}
	n.name, n.parent = path.Base(name), in
	if n.name == "." || n.name == "/" || in.children[n.name] != nil {
		return fmt.Errorf("%.200q is there already", name)
	}
	if len(n.name) > longName || strings.ContainsRune(n.name, 0) {
		return fmt.Errorf("%.200q is no name", name)
	}
	in.children[n.name] = n
	return nil
}

// folder finds or makes a folder.
func (t *Tree) folder(name string) (*node, error) {
	at := t.root
	for part := range strings.SplitSeq(strings.Trim(path.Clean("/"+name), "/"), "/") {
		if part == "" {
			continue
		}
		if len(part) > longName || strings.ContainsRune(part, 0) {
			return nil, fmt.Errorf("%.200q is no name", name)
		}
		next := at.children[part]
		if next == nil {
			next = folder(part, time.Unix(0, 0))
			next.parent = at
			at.children[part] = next
		}
		if next.children == nil {
			return nil, fmt.Errorf("%.200q: %.200q is no folder", name, part)
		}
		at = next
	}
	return at, nil
}

// Write writes the image to an empty file and returns its size. It fails when a file has another length than was said.
func (t *Tree) Write(to *os.File) (int64, error) {
	all := t.nodes()
	end, err := place(all)
	if err != nil {
		return 0, err
	}
	meta := make([]byte, firstBlock(all)*blockSize)
	super(meta[superAt:], all, end)
	for _, n := range all {
		at := n.slot * slotSize
		n.inode(meta[at:])
		copy(meta[at+inodeSize:], n.target)
	}
	if _, err := to.WriteAt(meta, 0); err != nil {
		return 0, fmt.Errorf("write image: %w", err)
	}
	for _, n := range all {
		if err := n.write(to); err != nil {
			return 0, fmt.Errorf("write image: %w", err)
		}
	}
	if err := to.Truncate(int64(end) * blockSize); err != nil {
		return 0, fmt.Errorf("write image: %w", err)
	}
	return int64(end) * blockSize, nil
}

// nodes lists the tree, the root first.
func (t *Tree) nodes() []*node {
	all := []*node{t.root}
	for i := 0; i < len(all); i++ {
		all = append(all, all[i].sorted()...)
	}
	return all
}

func (n *node) sorted() []*node {
	list := make([]*node, 0, len(n.children))
	for _, c := range n.children {
		list = append(list, c)
	}
	slices.SortFunc(list, func(a, b *node) int { return strings.Compare(a.name, b.name) })
	return list
}

// place gives every inode its number and every content its blocks, and returns the number of blocks in all.
func place(all []*node) (end uint32, err error) {
	at := uint64(blockSize) // the superblock has the first
	for _, n := range all {
		need := uint64(inodeSize + len(n.target))
		if at%blockSize+need > blockSize {
			at = (at/blockSize + 1) * blockSize // what is behind an inode may not cross a block
		}
		n.slot = at / slotSize
		at += (need + inodeSize - 1) / inodeSize * inodeSize
	}
	for _, n := range all {
		if n.children != nil {
			n.data = n.entries()
			n.size = int64(len(n.data))
		}
	}
	block := int64(firstBlock(all))
	for _, n := range all {
		if n.size < 0 {
			return 0, fmt.Errorf("%q has %d bytes", n.name, n.size)
		}
		if n.target != "" || n.size == 0 {
			continue
		}
		n.block = uint32(block)
		if block += (n.size + blockSize - 1) / blockSize; block > 1<<32-2 {
			return 0, errors.New("the image is too large")
		}
	}
	return uint32(block), nil
}

// firstBlock is the one behind the last inode.
func firstBlock(all []*node) uint64 {
	last := all[len(all)-1]
	return (last.slot*slotSize + uint64(inodeSize+len(last.target)) + blockSize - 1) / blockSize
}

// entries are the content of a folder: blocks of entries, each with where its name begins in the block, and then the names.
func (n *node) entries() []byte {
	type entry struct {
		name string
		of   *node
	}
	list := []entry{{".", n}, {"..", n.parent}}
	for _, c := range n.children {
		list = append(list, entry{c.name, c})
	}
	slices.SortFunc(list, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	var out []byte
	for len(list) > 0 {
		count, used := 0, 0
		for count < len(list) && used+entrySize+len(list[count].name) <= blockSize {
			used += entrySize + len(list[count].name)
			count++
		}
		out = append(out, make([]byte, (blockSize-len(out)%blockSize)%blockSize)...) // a block that others follow is whole
		names := count * entrySize
		var text []byte
		for _, e := range list[:count] {
			out = binary.LittleEndian.AppendUint64(out, e.of.slot)
			out = binary.LittleEndian.AppendUint16(out, uint16(names+len(text)))
			out = append(out, e.of.kind(), 0)
			text = append(text, e.name...)
		}
		out = append(out, text...)
		list = list[count:]
	}
	return out
}

func (n *node) kind() byte {
	switch {
	case n.children != nil:
		return typeFolder
	case n.target != "":
		return typeLink
	}
	return typeFile
}

func (n *node) inode(b []byte) {
	layout, links := uint16(layoutPlain), uint32(1)
	if n.target != "" {
		layout = layoutInline
	}
	if n.children != nil {
		links = 2
		for _, c := range n.children {
			if c.children != nil {
				links++
			}
		}
	}
	le := binary.LittleEndian
	le.PutUint16(b[0:], layout<<1|1) // of 64 bytes
	le.PutUint16(b[4:], uint16(n.mode))
	le.PutUint64(b[8:], uint64(n.size))
	le.PutUint32(b[16:], n.block)
	le.PutUint32(b[20:], uint32(n.slot))
	le.PutUint64(b[32:], uint64(n.mtime.Unix()))
	le.PutUint32(b[40:], uint32(n.mtime.Nanosecond()))
	le.PutUint32(b[44:], links)
}

func super(b []byte, all []*node, blocks uint32) {
	le := binary.LittleEndian
	le.PutUint32(b[0:], superMagic)
	b[12] = 12 // blocks of 1<<12 bytes
	le.PutUint16(b[14:], uint16(all[0].slot))
	le.PutUint64(b[16:], uint64(len(all)))
	le.PutUint32(b[36:], blocks)
}

// write writes the content of a folder or file.
func (n *node) write(to *os.File) error {
	at := int64(n.block) * blockSize
	if n.children != nil {
		_, err := to.WriteAt(n.data, at)
		n.data = nil
		return err
	}
	if n.target != "" || n.size == 0 {
		return nil
	}
	from, err := n.open()
	if err != nil {
		return err
	}
	defer from.Close()
	if _, err := to.Seek(at, io.SeekStart); err != nil {
		return err
	}
	copied, err := io.CopyN(to, from, n.size)
	if err == nil {
		if more, _ := from.Read(make([]byte, 1)); more > 0 {
			err = errors.New("it has more")
		}
	}
	if err != nil {
		return fmt.Errorf("%q changed while it was read (%d of %d bytes): %w", n.name, copied, n.size, err)
	}
	return nil
}
