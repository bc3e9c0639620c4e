package guest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"glovebox/internal/guestlink"
)

// takeInputs fills the folder that the sandbox shows as /inputs. No program runs yet.
func (a *agent) takeInputs(i guestlink.Inputs) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.box == nil || a.started != nil {
		return errState
	}
	from, err := a.link.ReaderOf(i.Stream)
	if err != nil {
		return err
	}
	defer from.Close()
	for range i.Count {
		if err := takeInput(lateDir, from); err != nil {
			return err
		}
	}
	return nil
}

// takeInput makes one file, folder or link below dir.
func takeInput(dir string, from io.Reader) error {
	head := make([]byte, 4)
	if _, err := io.ReadFull(from, head); err != nil {
		return fmt.Errorf("take inputs: %w", err)
	}
	n := binary.LittleEndian.Uint32(head)
	if n > 64<<10 {
		return fmt.Errorf("take inputs: a header of %d bytes", n)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(from, text); err != nil {
		return fmt.Errorf("take inputs: %w", err)
	}
	var i guestlink.Input
	if err := guestlink.Decode(text, &i); err != nil {
		return fmt.Errorf("take inputs: %w", err)
	}
	name := filepath.Join(dir, filepath.Clean("/"+string(i.Path)))
	switch {
	case i.Folder && name == dir:
		return os.Chmod(dir, os.FileMode(i.Perm))
	case i.Folder:
		return os.Mkdir(name, os.FileMode(i.Perm))
	case len(i.Target) > 0:
		return os.Symlink(string(i.Target), name)
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, os.FileMode(i.Perm))
	if err != nil {
		return err
	}
	_, err = io.CopyN(f, from, i.Size)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("take inputs: %w", err)
	}
	when := time.Unix(0, i.UnixNano)
	return os.Chtimes(name, when, when)
}
