package hostside

import (
	"errors"
	"os"
	"testing"
	"time"

	"glovebox/internal/sandboxinit/wire"
)

// TestEndKeepsNoFiles: descriptors that come with the word of an end are closed: whoever was taken over could fill this
// process's table with them.
func TestEndKeepsNoFiles(t *testing.T) {
	conn, far, err := wire.Pair()
	if err != nil {
		t.Fatal(err)
	}
	heard := make(chan *wire.Ended, 200)
	l := NewLink(LinkConfig{Conn: conn, Ended: func(e *wire.Ended) { heard <- e }, End: func() error { return nil },
		Explain: func(*wire.Failed) error { return errors.New("failed") }})
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	other := wire.NewConn(far)
	for range 100 {
		if err := other.Send(wire.Message{Ended: &wire.Ended{}}, write, write); err != nil {
			t.Fatal(err)
		}
		<-heard
	}
	if err := errors.Join(write.Close(), other.Close(), l.Close()); err != nil {
		t.Fatal(err)
	}
	// Nobody has the other end any more: then reading ends.
	done := make(chan error, 1)
	go func() {
		_, err := read.Read(make([]byte, 1))
		done <- err
	}()
	if err := read.SetReadDeadline(time.Now().Add(2 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if err := <-done; errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("descriptors are kept")
	}
}
