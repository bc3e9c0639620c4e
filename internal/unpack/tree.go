package unpack

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"glovebox"
)

// Kind is what an entry of a tree is.
type Kind byte

// The kinds.
const (
	Folder  Kind = 'd'
	Regular Kind = 'f'
	Link    Kind = 'l'
)

// Entry is one path of a finished tree.
type Entry struct {
	// Path is absolute and clean; the root itself is no entry.
	Path string
	Kind Kind
	// Executable, Size (bytes) and SHA256 are those of a regular file.
	Executable bool
	Size       int64
	SHA256     [32]byte
	// Target is what a symbolic link says, as it was in the archive.
	Target string
}

// Dropped counts what the archives held and the tree does not.
type Dropped struct {
	Devices    int // device nodes, fifos and sockets
	Names      int // entries whose name has control characters, is not UTF-8 or is too long, and hard links to what was dropped
	Privileges int // files that lost a set-user-id or set-group-id bit, or extended attributes
	Reserved   int // entries beneath folders that are every sandbox's own, such as /proc
}

// Config says where a tree is made and how large it may be.
type Config struct {
	// Dir is an empty folder of the caller's. It stays the caller's, with all that is in it, also after a failure.
	Dir string
	// MaxBytes bounds what the archives hold together, unpacked, those parts included that a later layer removes.
	MaxBytes glovebox.Size
	// MaxEntries bounds the entries of the archives together.
	MaxEntries int
	// Reserved are names in the root folder that are left out, with all that is beneath.
	Reserved []string
}

// Bounds of one name.
const (
	maxName  = 255
	maxPath  = 4096
	maxDepth = 128
	maxLinks = 40 // the kernel's own
)

// Tree is a folder tree that is being made. It is for one goroutine.
type Tree struct {
	cfg     Config
	root    *os.Root
	top     *node
	layer   int
	entries int
	bytes   int64 // that were read
	written int64
	dropped Dropped
}

// node is one name of the tree.
type node struct {
	kind  Kind
	layer int // the layer that put it there, or was the last to mention it
	exec  bool
	size  int64
	sum   [32]byte
	to    string // of a link
	kids  map[string]*node
}

// New begins a tree. The caller closes it.
func New(cfg Config) (*Tree, error) {
	root, err := os.OpenRoot(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("open the folder of a tree: %w", err)
	}
	return &Tree{cfg: cfg, root: root, top: folderNode(0)}, nil
}

func folderNode(layer int) *node { return &node{kind: Folder, layer: layer, kids: map[string]*node{}} }

// Close lets go of the folder, and of nothing in it.
func (t *Tree) Close() error { return t.root.Close() }

// Most is what the archives may hold together.
func (t *Tree) Most() glovebox.Size { return t.cfg.MaxBytes }

// Dropped is what was left out so far.
func (t *Tree) Dropped() Dropped { return t.dropped }

// names takes a name of an archive apart. Its error refuses the archive; ok is false for a name that is left out.
func names(name string) (parts []string, ok bool, err error) {
	if len(name) > maxPath {
		return nil, false, nil
	}
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "" || part == ".":
			continue
		case part == "..":
			return nil, false, refused("make the archive anew, without such names",
				"the archive has the name %.120q, which climbs", name)
		case len(part) > maxName || !utf8.ValidString(part) || strings.ContainsFunc(part, unicode.IsControl):
			return nil, false, nil
		}
		parts = append(parts, part)
	}
	return parts, len(parts) <= maxDepth, nil
}

// refused is an error about what an archive holds.
func refused(fix, format string, args ...any) error {
	return glovebox.Errorf(glovebox.CodeInvalid, fix, format, args...)
}

// errLoop: a name leads through too many links.
var errLoop = errors.New("too many links")

// find walks from the root along parts, through links, as a program inside would. It returns the real path, without links,
// and the node; nil where there is none. Of what is missing at the end the rest is returned too.
func (t *Tree) find(parts []string) (real []string, at *node, rest []string, err error) {
	at, rest = t.top, slices.Clone(parts)
	chain := []*node{t.top}
	for links := 0; len(rest) > 0; {
		name := rest[0]
		switch name {
		case "", ".":
			rest = rest[1:]
			continue
		case "..": // only in links; above the root there is the root
			if len(chain) > 1 {
				chain, real = chain[:len(chain)-1], real[:len(real)-1]
			}
			at, rest = chain[len(chain)-1], rest[1:]
			continue
		}
		if at.kind != Folder {
			return real, nil, rest, nil
		}
		next := at.kids[name]
		if next == nil {
			return real, nil, rest, nil
		}
		rest = rest[1:]
		if next.kind != Link {
			at, real, chain = next, append(real, name), append(chain, next)
			continue
		}
		if links++; links > maxLinks {
			return nil, nil, nil, errLoop
		}
		if path.IsAbs(next.to) {
			chain, real = chain[:1], real[:0]
		}
		at, rest = chain[len(chain)-1], append(strings.Split(next.to, "/"), rest...)
	}
	return real, at, nil, nil
}

// parent finds the folder that is to hold the last of parts, and makes what is missing. A file that is in the way, or a link
// that leads nowhere, is refused: it would have to be removed for a name that only passes by.
func (t *Tree) parent(parts []string) (real []string, dir *node, err error) {
	above := parts[:len(parts)-1]
	real, dir, rest, err := t.find(above)
	if err != nil || dir != nil && dir.kind != Folder || dir == nil && !t.makable(real) {
		return nil, nil, refused("make the archive anew", "the archive has %.120q beneath what is no folder",
			strings.Join(parts, "/"))
	}
	if dir != nil {
		return real, dir, nil
	}
	dir = t.at(real)
	for _, name := range rest {
		switch name {
		case "", ".":
			continue
		case "..":
			return nil, nil, refused("make the archive anew", "the archive has %.120q beneath a link that leads nowhere",
				strings.Join(parts, "/"))
		}
		if len(real) >= maxDepth || len(disk(real)) >= maxPath {
			return nil, nil, refused("make the archive anew", "the archive has a path of too many folders")
		}
		if err := t.count(); err != nil {
			return nil, nil, err
		}
		real = append(real, name)
		if err := t.root.Mkdir(disk(real), 0o755); err != nil {
			return nil, nil, fmt.Errorf("make a folder: %w", err)
		}
		dir.kids[name] = folderNode(t.layer)
		dir = dir.kids[name]
	}
	return real, dir, nil
}

// makable tells whether folders can be made beneath a real path.
func (t *Tree) makable(real []string) bool {
	n := t.at(real)
	return n != nil && n.kind == Folder
}

// at is the node of a real path.
func (t *Tree) at(real []string) *node {
	n := t.top
	for _, name := range real {
		if n = n.kids[name]; n == nil {
			return nil
		}
	}
	return n
}

func disk(real []string) string {
	if len(real) == 0 {
		return "."
	}
	return strings.Join(real, "/")
}

// count bounds the number of entries.
func (t *Tree) count() error {
	if t.entries++; t.entries > t.cfg.MaxEntries {
		return refused("import something smaller", "the archive has more than %d entries", t.cfg.MaxEntries)
	}
	return nil
}

// remove takes a name out of a folder of the tree, with all beneath.
func (t *Tree) remove(real []string, dir *node, name string) error {
	if dir.kids[name] == nil {
		return nil
	}
	if err := t.root.RemoveAll(disk(append(slices.Clone(real), name))); err != nil {
		return fmt.Errorf("remove what a later layer replaces: %w", err)
	}
	delete(dir.kids, name)
	return nil
}

// Finish makes the tree read-only and returns what it holds, sorted by path: a folder before what is in it. Nothing can be
// added any more.
func (t *Tree) Finish() ([]Entry, error) {
	for _, name := range t.cfg.Reserved { // a link may have led there
		if err := t.remove(nil, t.top, name); err != nil {
			return nil, err
		}
	}
	var list []Entry
	err := t.finish(&list, nil, t.top)
	slices.SortFunc(list, func(a, b Entry) int { return strings.Compare(a.Path, b.Path) })
	return list, err
}

func (t *Tree) finish(list *[]Entry, real []string, n *node) error {
	if len(real) > 0 {
		*list = append(*list, Entry{Path: "/" + disk(real), Kind: n.kind, Executable: n.exec, Size: n.size, SHA256: n.sum,
			Target: n.to})
	}
	if n.kind != Folder {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(n.kids)) {
		if err := t.finish(list, append(real, name), n.kids[name]); err != nil {
			return err
		}
	}
	if err := t.root.Chmod(disk(real), 0o555); err != nil {
		return fmt.Errorf("make a folder read-only: %w", err)
	}
	// The same from each import: nothing of a folder's own date is in an archive that has no entry for it.
	return t.root.Chtimes(disk(real), time.Unix(0, 0), time.Unix(0, 0))
}

// Read returns the content of a regular file of the tree, through links as a program inside would find it. What is not there
// is fs.ErrNotExist, and so is what is no file or has more than most bytes.
func (t *Tree) Read(name string, most int64) ([]byte, error) {
	real, n, _, err := t.find(strings.Split(name, "/"))
	if err != nil || n == nil || n.kind != Regular || n.size > most {
		return nil, fs.ErrNotExist
	}
	return t.root.ReadFile(disk(real))
}

// Names are the names in a folder of the tree, sorted, with what each is; nothing when there is no such folder.
func (t *Tree) Names(name string) map[string]Kind {
	_, n, _, err := t.find(strings.Split(name, "/"))
	if err != nil || n == nil || n.kind != Folder {
		return nil
	}
	kinds := map[string]Kind{}
	for name, kid := range n.kids {
		kinds[name] = kid.kind
	}
	return kinds
}
