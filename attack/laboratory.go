package attack

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"glovebox"
)

// laboratory is everything that is planted around the runs. Its files are readable by everyone: modes are not what
// keeps a
// program out.
type laboratory struct {
	cfg     Config
	dir     string // a folder of its own
	secrets []canary
	files   []string // canary files
	name    string   // what they are called, and the variable, and the key
	input   string   // a file that is shown to some programs
	listen  *listeners
	shared  segment
	key     int // of the keyring; 0 where there is none
	memory  []byte
	undo    []func() error

	mu   sync.Mutex // for a run beside another
	runs []string   // ids of those that were
}

// segment is shared memory of the host.
type segment struct{ key, id int }

// makeLaboratory plants. On error nothing is left.
func makeLaboratory(cfg Config) (_ *laboratory, err error) {
	l := &laboratory{cfg: cfg, name: ".glovebox-planted-" + strings.ToLower(rand.Text()[:10])}
	defer func() {
		if err != nil {
			err = glovebox.Internal("plant what programs are to find", l.close(err))
		}
	}()
	l.secrets = makeCanaries("the environment", "a file", "a descriptor", "a listener", "shared memory", "/dev/shm",
		"the keyring",
		"memory", "another run", "the run before")
	base := os.TempDir()
	if len(base) > 60 { // the path of a unix socket has at most 107 bytes
		base = "/tmp"
	}
	if l.dir, err = os.MkdirTemp(base, "glovebox-battery-"); err != nil {
		return nil, err
	}
	l.undo = append(l.undo, func() error { return os.RemoveAll(l.dir) })
	if err = os.Chmod(l.dir, 0o755); err != nil {
		return nil, err
	}
	for _, plant := range []func() error{l.plantFiles, l.plantDescriptors, l.plantEnvironment, l.plantShared, l.plantKey} {
		if err = plant(); err != nil {
			return nil, err
		}
	}
	if l.listen, err = startListeners(l.dir, "127.0.0.1", l.secret("a listener")); err != nil {
		return nil, err
	}
	l.undo = append(l.undo, func() error { l.listen.Close(); return nil })
	l.memory = []byte(l.secret("memory"))
	return l, nil
}

func (l *laboratory) secret(place string) string { return valueOf(l.secrets, place) }

// close takes everything back, the last first, and returns the first failure, or err.
func (l *laboratory) close(err error) error {
	for i := len(l.undo) - 1; i >= 0; i-- {
		if failed := l.undo[i](); failed != nil && err == nil {
			err = glovebox.Internal("take back what was planted", failed)
		}
	}
	l.undo = nil
	return err
}

// remove takes a file back. One that is gone was told of as changed.
func remove(path string) error {
	if err := os.Remove(path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func (l *laboratory) plantFiles() error {
	for i, dir := range append([]string{l.dir}, l.cfg.Folders...) {
		path := filepath.Join(dir, l.name)
		err := os.WriteFile(path, []byte(l.secret("a file")), 0o644)
		if err == nil {
			err = os.Chmod(path, 0o644) // whatever mask the caller has
		}
		if err != nil && i > 0 {
			continue
		}
		if err != nil {
			return err
		}
		l.files = append(l.files, path)
		l.undo = append(l.undo, func() error { return remove(path) })
	}
	l.input = filepath.Join(l.dir, "input")
	if err := os.WriteFile(l.input, []byte("as it was"), 0o666); err != nil {
		return err
	}
	return os.Chmod(l.input, 0o666)
}

// plantDescriptors leaves descriptors open that a careless start of a program hands down: a file and two folders.
func (l *laboratory) plantDescriptors() error {
	path := filepath.Join(l.dir, "descriptor")
	if err := os.WriteFile(path, []byte(l.secret("a descriptor")), 0o600); err != nil {
		return err
	}
	for _, open := range []string{path, l.dir, "/"} {
		fd, err := unix.Open(open, unix.O_RDONLY, 0) // without O_CLOEXEC, on purpose
		if err != nil {
			return err
		}
		l.undo = append(l.undo, func() error { return unix.Close(fd) })
	}
	return nil
}

func (l *laboratory) plantEnvironment() error {
	for _, name := range []string{"GLOVEBOX_CANARY", "GLOVEBOX_CANARY_SECRET_ACCESS_KEY"} {
		if err := os.Setenv(name, l.secret("the environment")); err != nil {
			return err
		}
		l.undo = append(l.undo, func() error { return os.Unsetenv(name) })
	}
	return nil
}

// plantShared makes shared memory of both kinds. A machine that has none of a kind has none to protect.
func (l *laboratory) plantShared() error {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	l.shared.key = int(binary.LittleEndian.Uint32(b[:])&0x7fffffff | 1)
	id, err := unix.SysvShmGet(l.shared.key, 4096, unix.IPC_CREAT|unix.IPC_EXCL|0o644)
	if err == nil {
		l.shared.id = id
		l.undo = append(l.undo, func() error { _, err := unix.SysvShmCtl(id, unix.IPC_RMID, nil); return err })
		var at []byte
		if at, err = unix.SysvShmAttach(id, 0, 0); err != nil {
			return err
		}
		copy(at, l.secret("shared memory"))
		if err = unix.SysvShmDetach(at); err != nil {
			return err
		}
	} else if !errors.Is(err, unix.ENOSYS) {
		return err
	}
	path := filepath.Join("/dev/shm", l.name)
	if os.WriteFile(path, []byte(l.secret("/dev/shm")), 0o644) == nil {
		l.files = append(l.files, path)
		l.undo = append(l.undo, func() error { return remove(path) })
	}
	return nil
}

// plantKey puts a key into the caller's keyring, where the kernel keeps such.
func (l *laboratory) plantKey() error {
	id, err := unix.AddKey("user", l.name, []byte(l.secret("the keyring")), unix.KEY_SPEC_USER_KEYRING)
	if err != nil {
		return nil // no keyrings, or none for this user: then there are none to take
	}
	l.key = id
	l.undo = append(l.undo, func() error {
		_, err := unix.KeyctlInt(unix.KEYCTL_UNLINK, id, unix.KEY_SPEC_USER_KEYRING, 0, 0)
		return err
	})
	return nil
}

// place is where in this process's memory a canary lies: a process id, an address and a size.
func (l *laboratory) place() []string {
	return []string{strconv.Itoa(os.Getpid()), fmt.Sprint(uintptr(unsafe.Pointer(&l.memory[0]))),
		strconv.Itoa(len(l.memory))}
}
