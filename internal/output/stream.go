package output

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"os"
	"path/filepath"
	"syscall"
	"unicode/utf8"

	"glovebox"
)

// memoryFirst is how much of a stream is held in memory before it goes to a file.
const memoryFirst = 64 << 10

// stream is one stream while it is read. One goroutine uses it at a time.
type stream struct {
	read, kept int64
	hash       hash.Hash              // of the kept bytes
	memory     []byte                 // the kept bytes until there is a file
	dir        func() (string, error) // where the file goes
	name       string
	file       *os.File
	broken     error // why no more bytes are kept

	head     []byte // the first kept bytes, up to headSize
	headSize int
	tail     []byte // a ring of the last kept bytes after head, up to tailSize
	tailSize int
	tailNext int // where the ring is written next, once it is full

	found flags // in every byte read
	cut   [utf8.UTFMax]byte
	cuts  int // bytes in cut: the start of a character that was not yet whole
}

func newStream(dir func() (string, error), name string, view int) *stream {
	return &stream{dir: dir, name: name, hash: sha256.New(), headSize: view / 2, tailSize: view - view/2}
}

// count looks at every byte that was read, kept or not.
func (s *stream) count(p []byte) {
	s.read += int64(len(p))
	if s.found&flagANSI == 0 && bytes.IndexByte(p, charESC) >= 0 {
		s.found |= flagANSI
	}
	if s.found&flagBinary == 0 && bytes.IndexByte(p, 0) >= 0 {
		s.found |= flagBinary
	}
	if s.found&flagInvalid == 0 && !s.valid(p) {
		s.found |= flagInvalid
	}
}

// valid reports whether the stream is UTF-8 so far; a character cut at the end of p is finished by the next call.
func (s *stream) valid(p []byte) bool {
	for s.cuts > 0 && len(p) > 0 {
		s.cut[s.cuts] = p[0]
		s.cuts++
		p = p[1:]
		if utf8.FullRune(s.cut[:s.cuts]) {
			if !utf8.Valid(s.cut[:s.cuts]) {
				return false
			}
			s.cuts = 0
		}
	}
	if len(p) == 0 {
		return true
	}
	whole := len(p) - unfinished(p)
	s.cuts = copy(s.cut[:], p[whole:])
	return utf8.Valid(p[:whole])
}

// keep adds p, which the limit allows, to the kept bytes. After a failure nothing more is kept.
func (s *stream) keep(p []byte) {
	if s.broken != nil {
		return
	}
	if s.file == nil && len(s.memory)+len(p) > memoryFirst {
		if s.broken = s.spill(); s.broken != nil {
			return
		}
	}
	if s.file == nil {
		s.memory = append(s.memory, p...)
	} else {
		n, err := s.file.Write(p)
		s.broken = err
		p = p[:n]
	}
	s.kept += int64(len(p))
	s.hash.Write(p)
	s.show(p)
}

// spill moves the kept bytes from memory to the file. On error they stay in memory and there is no file.
func (s *stream) spill() error {
	dir, err := s.dir()
	if err != nil {
		return err
	}
	if !filepath.IsAbs(dir) {
		return errors.New("the folder for files is not an absolute path")
	}
	f, err := os.OpenFile(filepath.Join(dir, s.name), os.O_CREATE|os.O_EXCL|os.O_WRONLY|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	if _, err := f.Write(s.memory); err != nil {
		_ = f.Close() // the failure to write is what matters
		_ = os.Remove(f.Name())
		return err
	}
	s.file, s.memory = f, nil
	return nil
}

// show puts p into head and tail.
func (s *stream) show(p []byte) {
	n := min(len(p), s.headSize-len(s.head))
	s.head = append(s.head, p[:n]...)
	p = p[n:]
	if len(p) > s.tailSize {
		p = p[len(p)-s.tailSize:]
	}
	n = min(len(p), s.tailSize-len(s.tail))
	s.tail = append(s.tail, p[:n]...)
	for p = p[n:]; len(p) > 0; p = p[n:] {
		n = copy(s.tail[s.tailNext:], p)
		s.tailNext = (s.tailNext + n) % s.tailSize
	}
}

// finish closes the file and sums up. over says that the run went over its limit, so that the stream may have been cut
// anywhere.
func (s *stream) finish(over bool) (Stream, flags, error) {
	err := s.broken
	path := ""
	if s.file != nil {
		path = s.file.Name()
		if failed := s.file.Close(); err == nil && failed != nil {
			err = failed
		}
	}
	if err != nil {
		err = fmt.Errorf("%d of %d bytes kept: %w", s.kept, s.read, err)
	}
	if s.cuts > 0 && !over {
		s.found |= flagInvalid
	}
	tail := append(s.tail[s.tailNext:len(s.tail):len(s.tail)], s.tail[:s.tailNext]...)
	omitted := s.kept - int64(len(s.head)+len(tail))
	text, found := view(s.head, tail, omitted, s.kept < s.read)
	return Stream{
		Bytes: s.read, Kept: s.kept, SHA256: hex.EncodeToString(s.hash.Sum(nil)), Memory: s.memory, Path: path,
		View: glovebox.Untrusted(text), Truncated: omitted > 0 || s.kept < s.read,
	}, s.found | found, err
}
