package imagestore

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// sealOf looks at every name beneath a folder and hashes what each is now: its name, type and mode, inode, size, change
// time, and whether it lies on the same device as the folder. The number of a device itself is not part of it: on some
// file systems it is another one after each mount. No link is followed and no file is read.
func sealOf(ctx context.Context, dir string) (string, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(fd)
	s := &sealer{ctx: ctx, hash: sha256.New(), buffer: make([]byte, 64<<10)}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return "", err
	}
	s.device = st.Dev
	s.note("", &st)
	if err := s.folder(fd, 0); err != nil {
		return "", err
	}
	return hex.EncodeToString(s.hash.Sum(nil)), nil
}

type sealer struct {
	ctx    context.Context
	hash   hash.Hash
	device uint64
	buffer []byte // of names of folders
	line   []byte
}

// note adds one name.
func (s *sealer) note(name string, st *unix.Stat_t) {
	b := append(s.line[:0], name...)
	b = append(b, 0)
	if st.Dev == s.device {
		b = append(b, 1)
	}
	for _, n := range []uint64{uint64(st.Mode), st.Ino, uint64(st.Size), uint64(st.Ctim.Sec), uint64(st.Ctim.Nsec),
		uint64(st.Mtim.Sec), uint64(st.Mtim.Nsec)} {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	s.line = b
	s.hash.Write(b)
}

// deepest is deeper than any tree that is unpacked.
const deepest = 200

func (s *sealer) folder(fd, depth int) error {
	if err := s.ctx.Err(); err != nil {
		return err
	}
	if depth > deepest {
		return fmt.Errorf("a folder is %d folders deep", depth)
	}
	var names []string
	for {
		n, err := unix.ReadDirent(fd, s.buffer)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			if err != nil {
				return fmt.Errorf("read a folder: %w", err)
			}
			break
		}
		_, _, names = unix.ParseDirent(s.buffer[:n], -1, names)
	}
	slices.Sort(names)
	for _, name := range names {
		var st unix.Stat_t
		if err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return fmt.Errorf("look at a file: %w", err)
		}
		s.note(name, &st)
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			continue
		}
		below, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open a folder: %w", err)
		}
		err = s.folder(below, depth+1)
		unix.Close(below)
		if err != nil {
			return err
		}
	}
	s.hash.Write([]byte("\x00end"))
	return nil
}
