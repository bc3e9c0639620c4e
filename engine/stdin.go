package engine

import (
	"errors"
	"io"
	"strings"
	"sync"
	"syscall"

	"glovebox"
)

// stdin is what a program reads. It remembers why it could not be read to its end, since a driver can only end it then, and
// a program cannot tell that from a whole one.
type stdin struct {
	from io.Reader

	mu     sync.Mutex
	read   bool
	failed error
}

// newStdin is nil where a request gives nothing to read.
func newStdin(req glovebox.Request) *stdin {
	switch {
	case req.StdinFrom != nil:
		return &stdin{from: req.StdinFrom}
	case req.Stdin != "":
		return &stdin{from: strings.NewReader(req.Stdin)}
	}
	return nil
}

// Read implements io.Reader.
func (s *stdin) Read(p []byte) (int, error) {
	s.mu.Lock()
	s.read = true
	s.mu.Unlock()
	n, err := s.from.Read(p)
	if err != nil && err != io.EOF {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.failed == nil {
			s.failed = err
		}
	}
	return n, err
}

// begun tells whether any of it may have been read; false for a nil stdin.
func (s *stdin) begun() bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.read
}

// failure is what kept the input from being read to its end so far; nil for a nil stdin.
func (s *stdin) failure() error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// whyEarly says why an input ended early in words that name nothing of the host.
func whyEarly(err error) string {
	var errno syscall.Errno
	switch {
	case errors.As(err, &errno):
		return errno.Error()
	case errors.Is(err, io.ErrUnexpectedEOF):
		return io.ErrUnexpectedEOF.Error()
	}
	return "its reader failed"
}
