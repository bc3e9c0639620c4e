package guest

import (
	"encoding/binary"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// sendParts sends what of a file has bytes: an offset, a length, and the bytes, for each part.
func sendParts(to io.Writer, f *os.File, size int64) error {
	for at := int64(0); at < size; {
		start, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // a hole up to the end
		}
		if err != nil {
			return err
		}
		end, err := unix.Seek(int(f.Fd()), start, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		end = min(end, size)
		head := binary.LittleEndian.AppendUint64(nil, uint64(start))
		head = binary.LittleEndian.AppendUint64(head, uint64(end-start))
		if _, err := to.Write(head); err != nil {
			return err
		}
		if _, err := io.Copy(to, io.NewSectionReader(f, start, end-start)); err != nil {
			return err
		}
		at = end
	}
	return nil
}
