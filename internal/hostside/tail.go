package hostside

import (
	"fmt"
	"sync"
)

// Tail keeps the last 2 KiB of what is written to it. It is safe for concurrent use.
type Tail struct {
	mu   sync.Mutex
	text []byte
}

const tailSize = 2048 // bytes

// Write implements io.Writer.
func (t *Tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b[max(0, len(b)-tailSize):]...)
	t.text = t.text[max(0, len(t.text)-tailSize):]
	return len(b), nil
}

// Printed is an error that says what was written, and by whom; nil where nothing was.
func (t *Tail) Printed(who string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.text) == 0 {
		return nil
	}
	return fmt.Errorf("%s printed %q", who, t.text)
}
