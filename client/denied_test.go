package client

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"glovebox"
)

// TestDenied: a socket that this user may not reach is told to be another's, not to be missing.
func TestDenied(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("root may reach every socket")
	}
	socket := filepath.Join(t.TempDir(), "sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.Chmod(socket, 0); err != nil {
		t.Fatal(err)
	}
	c := New(Config{Socket: socket, UID: os.Getuid()})
	_, err = c.Rungs(t.Context())
	var e *glovebox.Error
	if !errors.As(err, &e) || e.Code != glovebox.CodeDenied || !strings.Contains(e.Public, "another user's") || !errors.Is(err, syscall.EACCES) {
		t.Errorf("%v", err)
	}
}
