package store

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

// Claims are locks on bytes of the file of turns, far behind the two of the turns: each name has the byte of its hash, and
// every Store that claims it shares the lock. So the kernel drops a claim with its process, however that ends, and a process
// of any namespace, or of a machine that shares the file system, can see it.

// Claim claims a name until the Store is closed or its process ends.
func (s *Store) Claim(name string) error {
	if err := s.turn.set(unix.F_RDLCK, claimByte(name)); err != nil {
		return diagnose("claim", s.dir, fmt.Errorf("lock: %w", err))
	}
	return nil
}

// Claimed reports whether another Store claims a name, in this process or any other.
func (s *Store) Claimed(name string) (bool, error) {
	lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: claimByte(name), Len: 1}
	if err := unix.FcntlFlock(s.turn.file.Fd(), unix.F_OFD_GETLK, &lock); err != nil {
		return false, diagnose("look for claims", s.dir, fmt.Errorf("look for locks: %w", err))
	}
	return lock.Type != unix.F_UNLCK, nil
}

// claimByte is from 2^61 on, and below the largest offset of a file.
func claimByte(name string) int64 {
	sum := sha256.Sum256([]byte(name))
	return 1<<61 + int64(binary.BigEndian.Uint64(sum[:])>>3)
}
