package output

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"glovebox"
)

// How much is read from a stream at a time: little until it fills that, since most streams say little, and then up to what a
// pipe holds by default.
const (
	copyFirst = 2 << 10
	copyMost  = 64 << 10
)

// Config says how one run's output is captured. It is read by New only.
type Config struct {
	// Limit is how many bytes are kept of both streams together. Positive.
	Limit glovebox.Size
	// View is how many bytes of each stream are shown, half from its start and half from its end. Zero shows none.
	View glovebox.Size
	// Dir makes a folder that no one else writes to, and returns its absolute path. What does not fit memory goes to the
	// files stdout and stderr in it, which must not exist. They belong to the caller afterwards, also after an error. It is
	// called when a stream first needs a file, for both at once if need be.
	Dir func() (string, error)
	// Live, if not nil, is given the bytes that are kept, as they come: in order for each stream, one call at a time. p is
	// valid during the call only. A slow Live slows the program and nothing else.
	Live func(stream string, p []byte)
}

// Capture bounds, counts, hashes and keeps what one run prints. Its memory does not depend on how much that is: the views of
// both streams and 256 KiB. Of both streams together it keeps exactly the first Limit bytes in the order in which they were
// read; what follows is read and counted, so that a program never blocks on a full pipe.
type Capture struct {
	limit    int64
	live     func(stream string, p []byte)
	streams  map[string]*stream
	exceeded chan struct{}

	mu   sync.Mutex // guards what both streams share
	read int64      // bytes read from both

	liveMu sync.Mutex // held during a call of live
}

// Captured is what a run printed. Nothing in it is shared with the Capture.
type Captured struct {
	Stdout, Stderr Stream
	// Flags is what was found, sorted and never nil. ansi, binary (as NUL) and invalid_utf8 are looked for in every byte
	// that was read, the others in the views.
	Flags []string
}

// Stream is what was printed on one stream.
type Stream struct {
	Bytes     int64  // read
	Kept      int64  // of them, the first ones, held in Memory or in the file Path
	SHA256    string // of the kept bytes, in hex
	Memory    []byte // the kept bytes, when they are few; else nil
	Path      string // else the file that holds them
	View      glovebox.Untrusted
	Truncated bool // View does not show every byte that was read
}

// New returns a Capture for one run. It opens nothing: files are made when they are needed.
func New(config Config) (*Capture, error) {
	switch {
	case config.Limit <= 0:
		return nil, fmt.Errorf("capture output: limit %d is not positive", config.Limit)
	case config.View < 0:
		return nil, fmt.Errorf("capture output: view %d is negative", config.View)
	case config.Dir == nil:
		return nil, errors.New("capture output: there is no folder for files")
	}
	c := &Capture{
		limit: int64(config.Limit), live: config.Live,
		streams: make(map[string]*stream, 2), exceeded: make(chan struct{}),
	}
	for _, name := range []string{"stdout", "stderr"} {
		c.streams[name] = newStream(config.Dir, name, int(config.View))
	}
	return c, nil
}

// Exceeded is closed once more than Limit bytes were read. Exactly Limit bytes do not close it.
func (c *Capture) Exceeded() <-chan struct{} { return c.exceeded }

// Copy reads the stream, stdout or stderr, until its end, also beyond the limit. It is called once for each stream; the two
// calls may run at once. The error is of reading: failures to keep are reported by Finish.
func (c *Capture) Copy(stream string, r io.Reader) error {
	s, ok := c.streams[stream]
	if !ok {
		return fmt.Errorf("capture output: %q is neither stdout nor stderr", stream)
	}
	buf := make([]byte, copyFirst)
	for idle := 0; idle < 100; {
		n, err := r.Read(buf)
		if n > 0 {
			idle = 0
			c.take(stream, s, buf[:n])
			if n == len(buf) && n < copyMost {
				buf = make([]byte, min(8*n, copyMost))
			}
		} else {
			idle++
		}
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return fmt.Errorf("read %s: %w", stream, err)
		}
	}
	return fmt.Errorf("read %s: %w", stream, io.ErrNoProgress)
}

// take counts p and keeps what the limit leaves of it.
func (c *Capture) take(name string, s *stream, p []byte) {
	c.mu.Lock()
	room := max(c.limit-c.read, 0)
	within := c.read <= c.limit
	c.read += int64(len(p))
	if within && c.read > c.limit {
		close(c.exceeded)
	}
	c.mu.Unlock()

	s.count(p)
	kept := p[:min(int64(len(p)), room)]
	if len(kept) == 0 {
		return
	}
	s.keep(kept)
	if c.live != nil {
		c.liveMu.Lock()
		defer c.liveMu.Unlock()
		c.live(name, kept)
	}
}

// Finish returns what was captured, once, after every call of Copy has returned. With an error the Captured is still true in
// all it says; fewer bytes are kept than the limit allows.
func (c *Capture) Finish() (Captured, error) {
	over := c.read > c.limit
	out, outFlags, outErr := c.streams["stdout"].finish(over)
	err, errFlags, errErr := c.streams["stderr"].finish(over)
	if outErr != nil {
		outErr = fmt.Errorf("keep stdout: %w", outErr)
	}
	if errErr != nil {
		errErr = fmt.Errorf("keep stderr: %w", errErr)
	}
	return Captured{Stdout: out, Stderr: err, Flags: (outFlags | errFlags).names()}, errors.Join(outErr, errErr)
}
