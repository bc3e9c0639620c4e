package hostside

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// SealedFile seals code, or other parts that follow each other, into memory, so that what was recorded is what is run.
func SealedFile(parts ...[]byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("code", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("keep code: %w", err)
	}
	f := os.NewFile(uintptr(fd), "code")
	for _, part := range parts {
		if _, err := f.Write(part); err != nil {
			f.Close()
			return nil, fmt.Errorf("keep code: %w", err)
		}
	}
	const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		f.Close()
		return nil, fmt.Errorf("seal code: %w", err)
	}
	return f, nil
}
