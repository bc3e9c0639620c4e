package wire

import (
	"bytes"
	"os"
	"testing"
)

// TestConnLongMessages: a message comes whole with its descriptors also where the socket takes it in pieces, and so does the
// next one.
func TestConnLongMessages(t *testing.T) {
	near, end, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	far := NewConn(end)
	defer near.Close()
	defer far.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	sizes := []int{0, 1, 4 << 20, 100, 1 << 20}
	sent := make(chan error, 1)
	go func() {
		for i, n := range sizes {
			files := []*os.File{null, null}[:i%3]
			if err := near.Send(Message{Open: &Open{Path: bytes.Repeat([]byte{'a' + byte(i)}, n)}}, files...); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	for i, n := range sizes {
		m, files, err := far.Receive()
		if err != nil {
			t.Fatal(err)
		}
		if m.Open == nil || !bytes.Equal(m.Open.Path, bytes.Repeat([]byte{'a' + byte(i)}, n)) || len(files) != i%3 {
			t.Errorf("message %d: %d descriptors, and another text", i, len(files))
		}
		CloseAll(files)
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
}
