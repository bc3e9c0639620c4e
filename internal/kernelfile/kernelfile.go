// Package kernelfile reads and writes the small files through which the kernel is asked and told: those of /proc and of
// control groups.
//
// The kernel lets such files be polled, so package os hands each to the runtime's poller: six more calls for a file of ten
// bytes, and another thread woken for each. A run reads some forty of them.
package kernelfile

import (
	"io/fs"

	"golang.org/x/sys/unix"
)

// most bounds what is read of one file: a table of mounts has 100 bytes for each.
const most = 16 << 20

// Read returns the text of a file. Errors are *fs.PathError, EFBIG for more than 16 MiB.
func Read(path string) (string, error) { return ReadAt(unix.AT_FDCWD, path) }

// ReadAt is Read for a path that is relative to an open folder.
func ReadAt(dir int, path string) (string, error) {
	fd, err := open(dir, path, unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	text, err := readAll(func(p []byte, _ int64) (int, error) { return unix.Read(fd, p) })
	return text, failed("read", path, err)
}

// Write gives a file a value in one write, as the kernel wants it. The file must exist. Errors are *fs.PathError.
func Write(path, value string) error { return WriteAt(unix.AT_FDCWD, path, value) }

// WriteAt is Write for a path that is relative to an open folder.
func WriteAt(dir int, path, value string) error {
	fd, err := open(dir, path, unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for {
		_, err := unix.Write(fd, []byte(value))
		if err != unix.EINTR {
			return failed("write", path, err)
		}
	}
}

// File is an open file of one counter or a few, that can be read again and again. It is not safe for use while it is closed.
type File struct {
	fd   int
	path string
}

// Open opens a file for reading. The caller closes it. Errors are *fs.PathError.
func Open(path string) (*File, error) {
	fd, err := open(unix.AT_FDCWD, path, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	return &File{fd, path}, nil
}

// Read returns the file's present text, from its start. Errors are those of [Read].
func (f *File) Read() (string, error) {
	// The kernel writes a file of counters in one piece, so that a reading of a part of the room is the whole.
	for room := make([]byte, 1024); ; room = make([]byte, 4*len(room)) {
		n, err := unix.Pread(f.fd, room, 0)
		for err == unix.EINTR {
			n, err = unix.Pread(f.fd, room, 0)
		}
		if err != nil {
			return "", failed("read", f.path, err)
		}
		if n < len(room) {
			return string(room[:n]), nil
		}
		if n >= most {
			return "", failed("read", f.path, unix.EFBIG)
		}
	}
}

// Close closes the file.
func (f *File) Close() error { return failed("close", f.path, unix.Close(f.fd)) }

func open(dir int, path string, flags int) (int, error) {
	for {
		fd, err := unix.Openat(dir, path, flags|unix.O_CLOEXEC, 0)
		if err != unix.EINTR {
			return fd, failed("open", path, err)
		}
	}
}

// readAll reads until nothing more comes: a file of the kernel's may come in pieces of a page.
func readAll(read func(p []byte, offset int64) (int, error)) (string, error) {
	text := make([]byte, 0, 1024)
	for len(text) < most {
		if cap(text)-len(text) < 512 {
			text = append(make([]byte, 0, 4*cap(text)), text...)
		}
		n, err := read(text[len(text):cap(text)], int64(len(text)))
		switch {
		case err == unix.EINTR:
		case err != nil:
			return "", err
		case n == 0:
			return string(text), nil
		default:
			text = text[:len(text)+n]
		}
	}
	return "", unix.EFBIG
}

func failed(op, path string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: path, Err: err}
}
