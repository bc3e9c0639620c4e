package sandboxinit

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"glovebox/internal/sandboxinit/wire"
)

// TestHandFails: what goes wrong while code is handed over is returned, and told once, by whoever answers.
func TestHandFails(t *testing.T) {
	file := func(name string, flags int) *os.File {
		f, err := os.OpenFile(name, flags, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	dir := t.TempDir()
	code := file(filepath.Join(dir, "given"), os.O_RDWR|os.O_CREATE)
	near, far, err := wire.Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	conn := wire.NewConn(far)
	defer conn.Close()
	// A group of processes that cannot be bounded any more.
	s := &sandbox{conn: conn, code: wire.FD(file(dir, unix.O_DIRECTORY)), guest: &guest{most: -1}}
	if err := s.hand(code, &wire.Resume{CodeName: "main.py"}, []*os.File{code}); !errors.Is(err, unix.EBADF) {
		t.Errorf("%v", err)
	}
	if err := s.conn.Send(wire.Message{Ready: &wire.Ready{}}); err != nil {
		t.Fatal(err)
	}
	if m, _, err := near.Receive(); err != nil || m.Ready == nil {
		t.Errorf("before the answer came %+v, %v", m, err)
	}
}
