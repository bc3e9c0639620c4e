// Package lockfile keeps what the processes of one user share on one machine: locks on bytes of a file that need not hold
// any. A lock belongs to one opening of the file and ends with it, however its process does, so that nothing is left to
// clean up. Nobody is told when a lock ends.
package lockfile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"glovebox"
)

// Folder is where the locks of the calling user lie, which no other user can make or change: /run/glovebox for root, else
// /tmp/glovebox-UID. (/run/user/UID comes and goes with the user's logins, and what runs beside one, as cron does, would
// have locks of its own.)
func Folder() string {
	uid := os.Getuid()
	if uid == 0 {
		return "/run/glovebox"
	}
	return fmt.Sprintf("/tmp/glovebox-%d", uid)
}

// File is one opening of a file of locks. What another opening holds, in this process or another, conflicts with it; its own
// locks never do. Methods are safe for concurrent use, Close last.
type File struct {
	f        *os.File
	dir      string
	dev, ino uint64
}

// Range is Length bytes from Start.
type Range struct{ Start, Length int64 }

// Open opens a file of locks and makes what is missing. A folder that is not the calling user's alone is refused: whoever
// else could make the folder could hold all locks. The caller closes the File.
func Open(dir, name string) (*File, error) {
	path := filepath.Join(dir, name)
	if err := check(dir); errors.Is(err, unix.ENOENT) {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("make folder for locks: %w", err)
		}
		if err := check(dir); err != nil {
			return nil, err
		}
	} else if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open locks: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, errors.Join(fmt.Errorf("look at locks: %w", err), f.Close())
	}
	return &File{f, dir, st.Dev, st.Ino}, nil
}

// Named reports whether whoever opened the file now would get this one: its folder is refused as Open would.
func (l *File) Named() (bool, error) {
	err := check(l.dir)
	var st unix.Stat_t
	if err == nil {
		err = unix.Lstat(l.f.Name(), &st)
	}
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return err == nil && st.Dev == l.dev && st.Ino == l.ino, err
}

func check(dir string) error {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return fmt.Errorf("look at folder for locks: %w", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Uid != uint32(os.Getuid()) || st.Mode&0o022 != 0 {
		return glovebox.Errorf(glovebox.CodeUnavailable, "remove "+dir+" (it is made anew) or let root do it",
			"the folder for locks is not the calling user's own")
	}
	return nil
}

// Take locks all of a range, or nothing and says false when others hold some of it. It never waits.
func (l *File) Take(r Range) (bool, error) {
	err := l.control(unix.F_OFD_SETLK, unix.F_WRLCK, &r)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return false, nil
	}
	return err == nil, err
}

// Leave gives back what is held of a range.
func (l *File) Leave(r Range) error { return l.control(unix.F_OFD_SETLK, unix.F_UNLCK, &r) }

// Each calls found for the locks of others within a range, in no order, until it says false. What is told of a lock is its
// part within the range. The locks may change meanwhile: one that is there all the time is told once.
func (l *File) Each(within Range, found func(Range) (more bool)) error {
	for left := []Range{within}; len(left) > 0; {
		in := left[len(left)-1]
		left = left[:len(left)-1]
		if in.Length <= 0 { // which the kernel takes for all that follows
			continue
		}
		held, taken, err := l.holder(in)
		if err != nil {
			return err
		}
		if !taken {
			continue
		}
		if !found(held) {
			return nil
		}
		if n := held.Start - in.Start; n > 0 {
			left = append(left, Range{in.Start, n})
		}
		if end := held.Start + held.Length; end < in.Start+in.Length {
			left = append(left, Range{end, in.Start + in.Length - end})
		}
	}
	return nil
}

// holder returns the part within r of one lock of somebody else's, if there is one.
func (l *File) holder(r Range) (held Range, taken bool, err error) {
	lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: r.Start, Len: r.Length}
	if err := l.call(unix.F_OFD_GETLK, &lock); err != nil {
		return Range{}, false, fmt.Errorf("look for locks: %w", err)
	}
	if lock.Type == unix.F_UNLCK {
		return Range{}, false, nil
	}
	end := r.Start + r.Length
	if lock.Len > 0 { // 0: to the end of all files
		end = min(end, lock.Start+lock.Len)
	}
	start := max(r.Start, lock.Start)
	return Range{start, end - start}, true, nil
}

func (l *File) control(cmd int, kind int16, r *Range) error {
	lock := unix.Flock_t{Type: kind, Whence: io.SeekStart, Start: r.Start, Len: r.Length}
	if err := l.call(cmd, &lock); err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	return nil
}

func (l *File) call(cmd int, lock *unix.Flock_t) error {
	for {
		if err := unix.FcntlFlock(l.f.Fd(), cmd, lock); err != unix.EINTR {
			return err
		}
	}
}

// ReadAt and WriteAt are for the file's bytes, which locks have nothing to do with.
func (l *File) ReadAt(p []byte, at int64) (int, error) { return l.f.ReadAt(p, at) }

// WriteAt writes bytes of the file.
func (l *File) WriteAt(p []byte, at int64) (int, error) { return l.f.WriteAt(p, at) }

// Close gives back all locks.
func (l *File) Close() error { return l.f.Close() }
