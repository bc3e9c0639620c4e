package output

import (
	"fmt"
	"io"
	"os"
)

// terminalChunk bounds how much is made inert at a time, and so the memory of a terminal writer.
const terminalChunk = 8 << 10

// Terminal returns a writer that passes what is written to it on to w as inert text, by the package's rules: nothing a
// program prints can then act on the terminal behind w. The result does not depend on how the bytes are cut into writes;
// something cut waits for its rest. Close writes what waits and leaves w open. One goroutine at a time. The first error of w
// is returned by every later call.
func Terminal(w io.Writer) io.WriteCloser { return &terminal{w: w} }

type terminal struct {
	w    io.Writer
	scan scanner
	err  error
}

func (t *terminal) Write(p []byte) (int, error) {
	done := 0
	for done < len(p) && t.err == nil {
		chunk := p[done:min(len(p), done+terminalChunk)]
		t.scan.write(chunk)
		if t.flush(); t.err == nil {
			done += len(chunk)
		}
	}
	return done, t.err
}

func (t *terminal) Close() error {
	if t.err != nil {
		return t.err
	}
	t.scan.finish()
	if t.flush(); t.err != nil {
		return t.err
	}
	t.err = os.ErrClosed
	return nil
}

func (t *terminal) flush() {
	if len(t.scan.out) == 0 {
		return
	}
	if _, err := t.w.Write(t.scan.out); err != nil {
		t.err = fmt.Errorf("write to terminal: %w", err)
	}
	t.scan.out = t.scan.out[:0]
}
