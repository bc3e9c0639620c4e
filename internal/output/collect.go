package output

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"glovebox"
)

const (
	maxDepth       = 32        // folders below /outputs
	maxPathBytes   = 4096      // of one path inside
	shownPathBytes = 80        // of a longer one
	maxPathsBytes  = 4 << 20   // of all spelt paths of artifacts
	maxSkipped     = 100       // entries of the list of what was skipped
	namesAtOnce    = 1024      // names read from a folder at a time
	readAtOnce     = 128 << 10 // bytes read from a file at a time
)

// Collector takes the regular files out of a sandbox's /outputs. It reaches them through Open alone and believes nothing but
// the descriptor that it is handed. All fields are required.
type Collector struct {
	// Open opens a file or folder for reading without following links or blocking; the path is relative to /outputs, which
	// itself is ".".
	Open func(path string) (*os.File, error)
	// NotRegular recognises Open's error for what is neither a regular file nor a folder.
	NotRegular func(error) bool
	// Store takes one file's bytes and returns how many there were and their SHA-256 in hex. When r fails, Store fails and
	// keeps nothing. It may hold something for each file until the next Settle.
	Store func(r io.Reader) (bytes int64, sha256 string, err error)
	// Settle is called when enough files are held, and at the end. After an error none of those since the last time is kept.
	Settle func() error
	// MaxBytes bounds the bytes of all files together, MaxFile those of one file. Holes count as bytes.
	MaxBytes, MaxFile glovebox.Size
	// MaxEntries bounds the names that are looked at.
	MaxEntries int
}

// ErrNoTime is the cause of a context that ends because collecting took too long. Any other end of it is the caller's doing.
var ErrNoTime = errors.New("collecting took too long")

// Collect returns the files kept and what was skipped, each sorted by path and never nil. One bad entry never costs another.
// Files of a folder come before those of its folders, so a flood below does not crowd out what lies above. When ctx ends,
// what is left is skipped: Collect then returns what it has, without an error. An error means that /outputs could not be
// opened.
func (c Collector) Collect(ctx context.Context) (artifacts []glovebox.Artifact, skipped []glovebox.Skipped, err error) {
	if c.Open == nil || c.NotRegular == nil || c.Store == nil || c.Settle == nil ||
		c.MaxBytes <= 0 || c.MaxFile <= 0 || c.MaxEntries <= 0 {
		return nil, nil, errors.New("collect outputs: the collector is not fully configured")
	}
	w := &walk{
		Collector: c, artifacts: []glovebox.Artifact{}, skipped: []glovebox.Skipped{},
		entries: c.MaxEntries, bytes: int64(c.MaxBytes), paths: maxPathsBytes,
	}
	root, err := c.Open(".")
	if err != nil {
		return nil, nil, fmt.Errorf("collect outputs: %w", err)
	}
	w.folder(ctx, root, nil)
	for len(w.queue) > 0 {
		next := w.queue[0]
		w.queue = w.queue[1:]
		w.entry(ctx, next, true)
	}
	w.settle()
	slices.SortFunc(w.artifacts, func(a, b glovebox.Artifact) int { return cmp.Compare(a.Path, b.Path) })
	return w.artifacts, w.report(), nil
}

// walk is one collection.
type walk struct {
	Collector
	queue     []*node // folders still to be read
	entries   int     // names that may still be looked at
	bytes     int64   // that may still be kept
	paths     int     // bytes of spelt paths that may still be kept
	unsettled []glovebox.Artifact
	artifacts []glovebox.Artifact
	skipped   []glovebox.Skipped
	more      int // skipped beyond what the list holds
	moreFault string
	buffer    *bufio.Reader // of the file that is read
}

// node is a name in a folder; paths are made when needed, so that a deep tree does not cost a path for each name.
type node struct {
	parent *node // nil for a name in /outputs itself
	name   string
	depth  int // 1 for a name in /outputs itself
}

func (n *node) path() string {
	names := make([]string, n.depth)
	for ; n != nil; n = n.parent {
		names[n.depth-1] = n.name
	}
	return strings.Join(names, "/")
}

// skip is for what the program did.
func (w *walk) skip(path, format string, args ...any) {
	w.skipSpelt(glovebox.FaultProgram, spell(path), fmt.Sprintf(format, args...))
}

// fail is for what Glovebox or the machine could not do.
func (w *walk) fail(path, reason string) { w.skipSpelt(glovebox.FaultGlovebox, spell(path), reason) }

// late is for what ctx ended before.
func (w *walk) late(ctx context.Context, path, undone string) {
	if errors.Is(context.Cause(ctx), ErrNoTime) {
		w.fail(path, "there was no time left before it was "+undone)
		return
	}
	w.skipSpelt(glovebox.FaultCaller, spell(path), "the run was cancelled before it was "+undone)
}

func (w *walk) skipSpelt(fault, path, reason string) {
	if len(w.skipped) < maxSkipped {
		w.skipped = append(w.skipped, glovebox.Skipped{Path: path, Reason: reason, Fault: fault})
		return
	}
	w.more++
	// The one that weighs most stands for them.
	if w.moreFault == "" || fault == glovebox.FaultGlovebox || w.moreFault == glovebox.FaultProgram {
		w.moreFault = fault
	}
}

const reasonUnstored = "it could not be stored"

// report is the sorted list of what was skipped, its end standing for what it has no room for.
func (w *walk) report() []glovebox.Skipped {
	slices.SortFunc(w.skipped, func(a, b glovebox.Skipped) int {
		return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Reason, b.Reason))
	})
	if w.more > 0 {
		w.skipped = append(w.skipped, glovebox.Skipped{Reason: fmt.Sprintf("… and %d more", w.more), Fault: w.moreFault})
	}
	return w.skipped
}

// folder reads the names in dir, closes it, keeps its files and queues its folders. at is nil for /outputs itself.
func (w *walk) folder(ctx context.Context, dir *os.File, at *node) {
	names, err := w.list(ctx, dir)
	path, depth := ".", 1
	if at != nil {
		path, depth = at.path(), at.depth+1
	}
	switch {
	case errors.Is(err, errTooMany):
		w.skip(path, "too many files: only the first %d names in /outputs were looked at", w.MaxEntries)
	case ctx.Err() != nil:
		w.late(ctx, path, "looked at to its end")
	case err != nil:
		w.fail(path, "the folder could not be read to its end")
	}
	for _, name := range names {
		w.entry(ctx, &node{parent: at, name: name, depth: depth}, false)
	}
}

var errTooMany = errors.New("too many names")

// list reads the names in dir, as many as may still be looked at, and closes it. What was read is sorted, also with an
// error.
func (w *walk) list(ctx context.Context, dir *os.File) (names []string, err error) {
	defer dir.Close() // only read
	for err == nil {
		if err = ctx.Err(); err != nil {
			break
		}
		var some []string
		// Names only: what kind of thing a name is, its descriptor tells. One more than allowed shows that there are more.
		some, err = dir.Readdirnames(min(namesAtOnce, w.entries+1))
		if len(some) > w.entries {
			some, err = some[:w.entries], errTooMany
		}
		w.entries -= len(some)
		names = append(names, some...)
	}
	slices.Sort(names)
	if err == io.EOF {
		err = nil
	}
	return names, err
}

// entry opens a name: a file is kept, a folder is queued or, when its turn has come, read.
func (w *walk) entry(ctx context.Context, n *node, turn bool) {
	path := n.path()
	switch {
	case ctx.Err() != nil:
		w.late(ctx, path, "looked at")
		return
	case len(path) > maxPathBytes:
		w.skipSpelt(glovebox.FaultProgram, spell(path[:shownPathBytes])+"…",
			fmt.Sprintf("its path is longer than %d bytes", maxPathBytes))
		return
	}
	f, err := w.Open(path)
	if err != nil {
		w.unopened(path, err)
		return
	}
	info, err := f.Stat()
	if err == nil && info.IsDir() && turn {
		w.folder(ctx, f, n) // closes f
		return
	}
	defer f.Close() // only read
	switch {
	case err != nil:
		w.fail(path, "it could not be examined")
	case info.IsDir() && n.depth > maxDepth:
		w.skip(path, "nested deeper than %d folders", maxDepth)
	case info.IsDir():
		w.queue = append(w.queue, n)
	case turn || !info.Mode().IsRegular():
		w.skip(path, "not a regular file")
	default:
		w.file(ctx, path, f, info)
	}
}

// unopened says why a name could not be opened, in words that tell nothing of the host.
func (w *walk) unopened(path string, err error) {
	switch {
	case w.NotRegular(err):
		w.skip(path, "not a regular file")
	case errors.Is(err, fs.ErrPermission):
		w.fail(path, "it may not be read")
	case errors.Is(err, fs.ErrNotExist):
		w.fail(path, "it was gone when it was looked at")
	default:
		w.fail(path, "it could not be opened")
	}
}

// file keeps one regular file.
func (w *walk) file(ctx context.Context, path string, f *os.File, info fs.FileInfo) {
	spelt := spell(path)
	switch size := info.Size(); {
	case size > int64(w.MaxFile):
		w.skip(path, "too large: %d bytes; one file may have %d", size, int64(w.MaxFile))
		return
	case size > w.bytes:
		w.skip(path, "too large: %d bytes; all files together may have %d", size, int64(w.MaxBytes))
		return
	case len(spelt) > w.paths:
		w.skip(path, "the paths of all files together are too long")
		return
	}
	bounded := &boundedReader{alive: ctx.Err, r: f, left: min(int64(w.MaxFile), w.bytes)}
	r := w.reader(bounded)
	first, err := r.Peek(sniffBytes)
	if err == io.EOF {
		err = nil
	}
	media := mediaType(path, first)
	var size int64
	var sum string
	if err == nil {
		size, sum, err = w.Store(r)
	}
	w.bytes -= bounded.read // whatever became of it, so that failures are bounded too
	switch {
	case errors.Is(bounded.err, errGrew):
		w.skip(path, "too large: it grew while it was read")
	case ctx.Err() != nil && err != nil:
		w.late(ctx, path, "read")
	case bounded.err != nil:
		w.fail(path, "it could not be read")
	case err != nil:
		w.fail(path, reasonUnstored)
	default:
		w.paths -= len(spelt)
		kept := glovebox.Artifact{Path: spelt, Bytes: size, SHA256: sum, MediaType: media}
		w.unsettled = append(w.unsettled, kept)
		if len(w.unsettled) == settleAtOnce {
			w.settle()
		}
	}
}

// reader is a buffer on r, the same for every file: a new one for each would cost more than most files do.
func (w *walk) reader(r io.Reader) *bufio.Reader {
	if w.buffer == nil {
		w.buffer = bufio.NewReaderSize(r, readAtOnce)
	} else {
		w.buffer.Reset(r)
	}
	return w.buffer
}

// settleAtOnce is how many files are settled together. Each may hold a descriptor until then.
const settleAtOnce = 64

// settle keeps the files since the last time for good, or none of them.
func (w *walk) settle() {
	if len(w.unsettled) == 0 {
		return
	}
	if err := w.Settle(); err == nil {
		w.artifacts = append(w.artifacts, w.unsettled...)
	} else {
		for _, a := range w.unsettled {
			w.skipSpelt(glovebox.FaultGlovebox, a.Path, reasonUnstored)
		}
	}
	w.unsettled = w.unsettled[:0]
}

var errGrew = errors.New("file is larger than it was")

// boundedReader reads at most left bytes, only while alive returns nil, and remembers its failure whatever its user makes of
// it.
type boundedReader struct {
	alive      func() error
	r          io.Reader
	left, read int64
	err        error // other than the end of the file
}

func (b *boundedReader) Read(p []byte) (int, error) {
	if b.err == nil {
		b.err = b.alive()
	}
	if b.err != nil {
		return 0, b.err
	}
	n, err := b.r.Read(p)
	if int64(n) > b.left {
		n, err = int(b.left), errGrew
	}
	b.left -= int64(n)
	b.read += int64(n)
	if err != nil && err != io.EOF {
		b.err = err
	}
	return n, err
}
