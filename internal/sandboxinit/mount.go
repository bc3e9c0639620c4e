package sandboxinit

import (
	"errors"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"glovebox/internal/sandboxinit/wire"
)

// harmless are the attributes of every mount but those of devices, and sealed of everything the program sees of the host.
const (
	harmless = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	sealed   = harmless | unix.MOUNT_ATTR_RDONLY
)

// attached is a mount that waits to be placed.
type attached struct {
	fd     int
	target string
	folder bool
}

// build makes the sandbox out of the namespaces init was started in. The order matters: what belongs to the host is opened
// first, with the rights of whoever started the sandbox; then init takes its own ids and no host path is used again.
func (s *sandbox) build(setup *wire.Setup, files []*os.File) error {
	s.setup, s.single = setup, setup.SingleID
	if setup.Guest {
		return s.buildGuest(files)
	}
	s.ignoreSignals()
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return step("make mounts private", err)
	}
	host, beside, err := openHost(setup)
	if err != nil {
		return err
	}
	if err := s.takeIDs(); err != nil {
		return err
	}
	// From here on /proc of this process belongs to the sandbox's root, so nothing inside can look into init.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return step("make init undumpable", err)
	}
	if err := s.makeRoot(); err != nil {
		return err
	}
	for _, m := range host {
		if err := s.place(m); err != nil {
			return step("place "+m.target, err)
		}
	}
	if err := s.fillRoot(); err != nil {
		return err
	}
	if setup.Kernel {
		if err := s.buildAround(files, beside); err != nil {
			return err
		}
	} else if err := s.buildWithin(files); err != nil {
		return err
	}
	if err := s.enter(); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(setup.Hostname)); err != nil {
		return step("set host name", err)
	}
	if err := loopbackUp(); err != nil {
		return step("bring up loopback", err)
	}
	return s.makeRuleset()
}

// buildWithin completes the root with what is not the host's.
func (s *sandbox) buildWithin(files []*os.File) error {
	if err := s.makeProc(); err != nil {
		return err
	}
	if err := s.makeDev(); err != nil {
		return err
	}
	return s.makeData(files)
}

// openHost opens everything of the host that the sandbox will show, already read-only: in the program's root, and beside it
// where there is a Kernel.
func openHost(setup *wire.Setup) (list, beside []attached, err error) {
	for _, m := range setup.Mounts {
		a, err := cloneTree(m.Source, sealed)
		if err != nil {
			return nil, nil, step("open "+m.Target+" of the host", err)
		}
		a.target = m.Target
		list = append(list, a)
	}
	for _, m := range setup.Beside {
		a, err := cloneTree(m.Source, sealed)
		if err != nil {
			return nil, nil, step("open "+m.Target+" of the host", err)
		}
		a.target = m.Target
		beside = append(beside, a)
	}
	devices := &list
	if setup.Kernel {
		devices = &beside
	}
	for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		a, err := cloneTree("/dev/"+name, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC)
		if err != nil {
			return nil, nil, step("open /dev/"+name+" of the host", err)
		}
		a.target = "/dev/" + name
		*devices = append(*devices, a)
	}
	for _, m := range setup.Devices {
		a, err := cloneTree(m.Source, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC)
		if err != nil {
			return nil, nil, step("open "+m.Target+" of the host", err)
		}
		a.target = m.Target
		*devices = append(*devices, a)
	}
	// Last, since what it is shown through covers a folder of the host.
	if setup.Inputs != "" {
		open := openInputs
		if setup.Template {
			open = func(folder string) (attached, error) { return cloneTree(folder, sealed) }
		}
		a, err := open(setup.Inputs)
		if err != nil {
			return nil, nil, step("open /inputs of the host", err)
		}
		a.target = "/inputs"
		list = append(list, a)
	}
	return list, beside, nil
}

// openInputs shows the folder of inputs through an overlay of itself and nothing: the program's table of mounts then names
// two words instead of a path of the host, which would tell who runs it and where. An overlay without an upper layer writes
// nothing.
func openInputs(folder string) (attached, error) {
	nothing, err := newFS("tmpfs", sealed, "size=4k", "nr_inodes=1", "mode=0555")
	if err != nil {
		return attached{}, err
	}
	defer unix.Close(nothing)
	// First in, then cover: the folder may lie below /tmp.
	if err := unix.Chdir(path.Dir(folder)); err != nil {
		return attached{}, err
	}
	if err := unix.MoveMount(nothing, "", unix.AT_FDCWD, "/tmp", unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return attached{}, err
	}
	fd, err := newFS("overlay", sealed, "lowerdir="+path.Base(folder)+":/tmp")
	if err := errors.Join(err, unix.Chdir("/")); err != nil {
		return attached{}, err
	}
	return attached{fd: fd, target: "/inputs", folder: true}, nil
}

// cloneTree makes a detached copy of the mount at source, following no link in its last element.
func cloneTree(source string, attr uint64) (attached, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, source,
		unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return attached{}, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return attached{}, err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return attached{}, unix.ELOOP
	}
	if err := setAttr(fd, attr, unix.AT_RECURSIVE); err != nil {
		return attached{}, err
	}
	return attached{fd: fd, folder: st.Mode&unix.S_IFMT == unix.S_IFDIR}, nil
}

func setAttr(fd int, attr uint64, flags uint) error {
	return unix.MountSetattr(fd, "", flags|unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: attr})
}

// takeIDs makes init the root of its own user namespace, which is nobody outside.
func (s *sandbox) takeIDs() error {
	if s.single {
		return nil
	}
	// Package syscall changes every thread; x/sys drops groups for the calling one alone. To stop every thread takes as long
	// as all of the rest here, and the init of a copy has no groups: it comes from a program that has none.
	groups, err := unix.Getgroups()
	if err != nil {
		return step("drop groups", err)
	}
	if len(groups) > 0 {
		if err := syscall.Setgroups(nil); err != nil {
			return step("drop groups", err)
		}
	}
	if err := syscall.Setresgid(0, 0, 0); err != nil {
		return step("take group id", err)
	}
	saved := 0
	if s.setup.KeepOwner {
		saved = -1
	}
	return step("take user id", syscall.Setresuid(0, 0, saved))
}

// newFS makes a detached mount of a fresh file system.
func newFS(kind string, attr int, options ...string) (int, error) {
	ctx, err := unix.Fsopen(kind, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, err
	}
	defer unix.Close(ctx)
	for _, o := range options {
		key, value, valued := strings.Cut(o, "=")
		if valued {
			err = unix.FsconfigSetString(ctx, key, value)
		} else {
			err = unix.FsconfigSetFlag(ctx, key)
		}
		if err != nil {
			return -1, err
		}
	}
	if err := unix.FsconfigCreate(ctx); err != nil {
		return -1, err
	}
	return unix.Fsmount(ctx, unix.FSMOUNT_CLOEXEC, attr)
}

// makeRoot makes the empty root and keeps it where the host's /tmp was, in this mount namespace only.
func (s *sandbox) makeRoot() error {
	fd, err := newFS("tmpfs", harmless, "size=16m", "nr_inodes=4096", "mode=0755")
	if err != nil {
		return step("make root", err)
	}
	err = unix.MoveMount(fd, "", unix.AT_FDCWD, "/tmp", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_SYMLINKS)
	s.root = fd
	return step("attach root", err)
}

// inRoot opens a path of the new root without following any link, however it got there.
func (s *sandbox) inRoot(p string, flags int, mode uint32) (int, error) {
	return unix.Openat2(s.root, "."+path.Clean("/"+p), &unix.OpenHow{
		Flags:   uint64(flags) | unix.O_CLOEXEC,
		Mode:    uint64(mode),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
}

// folder makes a folder of the root with its parents. What is there already must be a folder.
func (s *sandbox) folder(p string) error {
	p = path.Clean("/" + p)
	if p == "/" {
		return nil
	}
	if err := s.folder(path.Dir(p)); err != nil {
		return err
	}
	dir, err := s.inRoot(path.Dir(p), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	if err := unix.Mkdirat(dir, path.Base(p), 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}

// place attaches a mount to its target, which it makes if nothing is there.
func (s *sandbox) place(m attached) error {
	defer unix.Close(m.fd)
	if m.folder {
		return s.attach(m.fd, m.target)
	}
	if err := s.folder(path.Dir(m.target)); err != nil {
		return err
	}
	made, err := s.inRoot(m.target, unix.O_CREAT|unix.O_RDONLY|unix.O_NOFOLLOW, 0o444)
	if err != nil {
		return err
	}
	unix.Close(made)
	return s.moveTo(m.fd, m.target, unix.O_PATH)
}

// moveTo attaches a mount to what is at a path of the root.
func (s *sandbox) moveTo(fd int, p string, kind int) error {
	target, err := s.inRoot(p, kind, 0)
	if err != nil {
		return err
	}
	defer unix.Close(target)
	return unix.MoveMount(fd, "", target, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}

// fillRoot makes the links and small files of the image.
func (s *sandbox) fillRoot() error {
	for _, dir := range []string{"/inputs", "/run", "/var"} {
		if err := s.folder(dir); err != nil {
			return step("make "+dir, err)
		}
	}
	for _, l := range s.setup.Links {
		if err := s.link(l); err != nil {
			return step("make link "+l.Path, err)
		}
	}
	for _, f := range s.setup.Files {
		if err := s.file(f); err != nil {
			return step("make file "+f.Path, err)
		}
	}
	return s.roomForNetwork()
}

func (s *sandbox) file(f wire.File) error {
	if err := s.folder(path.Dir(f.Path)); err != nil {
		return err
	}
	fd, err := s.inRoot(f.Path, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW, 0o444)
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(fd), f.Path)
	_, err = file.Write(f.Data)
	return errors.Join(err, file.Close())
}

func (s *sandbox) link(l wire.Link) error {
	if err := s.folder(path.Dir(l.Path)); err != nil {
		return err
	}
	dir, err := s.inRoot(path.Dir(l.Path), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	return unix.Symlinkat(l.Target, dir, path.Base(l.Path))
}

// scaffold attaches a mount that only serves to build the root: the kernel copies only from what is attached. It covers a
// folder of the host that is not used any more, and goes when the host's root does. (Taking each off by itself would wait
// for every CPU each time.)
func scaffold(fd int, host string) error {
	return unix.MoveMount(fd, "", unix.AT_FDCWD, host, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// attach puts a fresh detached mount at a path of the root and keeps it open.
func (s *sandbox) attach(fd int, p string) error {
	if err := s.folder(p); err != nil {
		return err
	}
	return s.moveTo(fd, p, unix.O_PATH|unix.O_DIRECTORY)
}

// keepWritable returns a detached writable copy of an attached mount and makes the attached one read-only.
func keepWritable(fd int, attr uint64) (int, error) {
	mine, err := unix.OpenTree(fd, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return -1, err
	}
	if err := setAttr(fd, unix.MOUNT_ATTR_RDONLY|attr, 0); err != nil {
		return -1, err
	}
	unix.Close(fd)
	return mine, nil
}

// makeData makes the sandbox's own file system, whose size and inodes are the run's, and shows its folders where programs
// write. The folders are separate mounts of one file system, so one limit holds for all of them.
func (s *sandbox) makeData(files []*os.File) error {
	var err error
	if s.setup.DiskGiven {
		if len(files) != 1 {
			return step("take workspace", errors.New("descriptor missing"))
		}
		s.data, err = unix.FcntlInt(files[0].Fd(), unix.F_DUPFD_CLOEXEC, 3)
	} else {
		s.data, err = newFS("tmpfs", harmless, "size="+strconv.FormatInt(s.setup.DiskBytes, 10),
			"nr_inodes="+strconv.FormatInt(s.setup.DiskFiles+dataInodes, 10), "mode=0755")
	}
	if err != nil {
		return step("make workspace", err)
	}
	if err := scaffold(s.data, "/dev"); err != nil {
		return step("attach workspace", err)
	}
	for name, at := range map[string]string{
		"workspace": "/workspace", "outputs": "/outputs", "tmp": "/tmp", "shm": "/dev/shm",
	} {
		if err := s.dataFolder(name, at); err != nil {
			return step("make "+at, err)
		}
	}
	if s.setup.Kernel {
		return step("make /code", s.folder("/code")) // which the kernel makes
	}
	return s.makeCode()
}

// dataInodes are the root and the four folders of a file system made here.
const dataInodes = 5

func (s *sandbox) dataFolder(name, at string) error {
	if err := unix.Mkdirat(s.data, name, 0o755); err != nil {
		return err
	}
	if err := unix.Fchownat(s.data, name, wire.ProgramID, wire.ProgramID, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if at == "/tmp" || at == "/dev/shm" {
		if err := unix.Fchmodat(s.data, name, 0o1777, 0); err != nil {
			return err
		}
	}
	fd, err := unix.OpenTree(s.data, name, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return err
	}
	if err := setAttr(fd, harmless, 0); err != nil {
		return err
	}
	if at == "/outputs" {
		if s.outputs, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3); err != nil {
			return err
		}
	}
	return s.place(attached{fd: fd, target: at, folder: true})
}

// makeCode makes /code, which init fills and the program reads.
func (s *sandbox) makeCode() error {
	fd, err := newFS("tmpfs", harmless, "size=64m", "nr_inodes=64", "mode=0755")
	if err != nil {
		return step("make /code", err)
	}
	if err := s.attach(fd, "/code"); err != nil {
		return step("attach /code", err)
	}
	s.code, err = keepWritable(fd, harmless)
	return step("seal /code", err)
}

// enter makes the new root the only one there is.
func (s *sandbox) enter() error {
	if err := unix.Fchdir(s.root); err != nil {
		return step("enter root", err)
	}
	// Both roots at one place: the old one then lies on top and is taken off.
	if err := unix.PivotRoot(".", "."); err != nil {
		return step("pivot root", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return step("leave the host's root", err)
	}
	if !s.setup.Kernel { // whose image is sealed, and which keeps what it knows in its own root
		if err := setAttr(s.root, unix.MOUNT_ATTR_RDONLY, 0); err != nil {
			return step("seal root", err)
		}
	}
	return step("enter root", unix.Chdir("/"))
}
