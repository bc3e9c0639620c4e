package hostside

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"

	"golang.org/x/sys/unix"

	"glovebox"
	"glovebox/driver"
	"glovebox/internal/cleanup"
	"glovebox/internal/sandboxinit/wire"
)

// InMemory reports whether the sandbox's own file system is a tmpfs: fast, and charged to the run's memory.
func InMemory(l glovebox.Limits) bool { return l.Disk+glovebox.MemoryBesideDisk <= l.Memory }

// inMemoryInstead says which limits do without a workspace on disk. A --disk that is left out gives way to --memory.
func inMemoryInstead(l glovebox.Limits) string {
	whole := func(s glovebox.Size) int64 { return int64((s + glovebox.MiB - 1) / glovebox.MiB) }
	least, fits := whole(glovebox.MemoryBesideDisk+glovebox.MiB), whole(l.Disk+glovebox.MemoryBesideDisk)
	fix := fmt.Sprintf("ask for --memory of at least %dMiB, or run as root", fits)
	if room := l.Memory - glovebox.MemoryBesideDisk; room >= glovebox.MiB {
		return fmt.Sprintf("ask for --disk %dMiB at most, or %s", room/glovebox.MiB, fix)
	}
	if fits > least {
		return fmt.Sprintf("ask for --memory of at least %dMiB and leave --disk out, or %s", least, fix)
	}
	return fix
}

// MakeDisk makes the sandbox's own file system on the host's disk: a sparse file of fixed size behind a loop device. Its
// size is a hard limit that also counts files that are open but no longer have a name. What is returned is a detached
// mount. The file lies in scratch without a name and the device detaches itself, so everything is gone once the last
// descriptor is.
func MakeDisk(ctx context.Context, scratch string, l glovebox.Limits, i *IDs) (_ *os.File, err error) {
	if os.Getuid() != 0 {
		return nil, glovebox.Errorf(glovebox.CodeUnavailable, inMemoryInstead(l),
			"a workspace of %v beside %v of memory must lie on disk, and only root has a backing with a hard limit (loop)",
			l.Disk, l.Memory)
	}
	var undo cleanup.Stack
	defer func() { err = errors.Join(err, undo.Run(context.WithoutCancel(ctx))) }()
	file, err := DiskFile(ctx, scratch, l)
	if err != nil {
		return nil, err
	}
	undo.Push("close backing file", func(context.Context) error { return file.Close() })
	loop, device, err := attachLoop(file)
	if err != nil {
		return nil, err
	}
	undo.Push("close loop device", func(context.Context) error { return loop.Close() })
	return TakeDisk(device, l, i)
}

// DiskFile makes the sparse file behind a workspace on disk: in scratch, without a name, so that nothing is left whenever
// this process ends.
func DiskFile(ctx context.Context, scratch string, l glovebox.Limits) (*os.File, error) {
	if err := os.MkdirAll(scratch, 0o700); err != nil {
		return nil, fmt.Errorf("make scratch folder: %w", err)
	}
	file, err := os.OpenFile(scratch, os.O_RDWR|unix.O_TMPFILE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("make backing file: %w", err)
	}
	if err := format(ctx, file, l); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// TakeDisk mounts a device that has what DiskFile makes, for a sandbox with ids of its own. What is returned is a detached
// mount.
func TakeDisk(device string, l glovebox.Limits, i *IDs) (*os.File, error) {
	mount, err := mountDevice(device)
	if err != nil {
		return nil, err
	}
	if err := unix.Fchownat(wire.FD(mount), "", int(i.Init), int(i.Init), unix.AT_EMPTY_PATH); err != nil {
		return nil, errors.Join(fmt.Errorf("take workspace: %w", err), mount.Close())
	}
	if err := takeSpare(mount, l.Files); err != nil {
		return nil, errors.Join(err, mount.Close())
	}
	return mount, nil
}

// foldersInside are what init makes in a file system before the program gets it.
const foldersInside = 4

// takeSpare uses up the inodes that a file system has beyond what was granted, in its top folder, which the program never
// sees: mkfs makes whole blocks of them.
func takeSpare(mount *os.File, files int64) error {
	st, err := Measure(mount)
	if err != nil {
		return err
	}
	for n := files + foldersInside; n < int64(st.Ffree); n++ {
		if err := unix.Mknodat(wire.FD(mount), fmt.Sprintf("spare-%d", n), unix.S_IFREG, 0); err != nil {
			return fmt.Errorf("take spare inodes of workspace: %w", err)
		}
	}
	return nil
}

// format makes an ext4 of the size and with the inodes asked for. The tables come on top of the size, so that a program can
// really fill it up to the limit.
func format(ctx context.Context, file *os.File, l glovebox.Limits) error {
	mkfs := FindProgram("mkfs.ext4")
	if mkfs == "" {
		return glovebox.Errorf(glovebox.CodeUnavailable, "install e2fsprogs (apt-get install e2fsprogs)",
			"a workspace on disk needs mkfs.ext4")
	}
	const inodeSize, perGroup = 256, 128 * glovebox.MiB
	tables := glovebox.Size(l.Files+16)*inodeSize*9/8 + (l.Disk/perGroup+2)*64*glovebox.KiB + glovebox.MiB
	if err := file.Truncate(int64(l.Disk + tables)); err != nil {
		return fmt.Errorf("size backing file: %w", err)
	}
	cmd := exec.CommandContext(ctx, mkfs, "-q", "-F", "-b", "4096", "-m", "0", "-I", strconv.Itoa(inodeSize),
		"-N", strconv.FormatInt(l.Files+16, 10), "-O", "^has_journal,^resize_inode",
		"-E", "lazy_itable_init=1,nodiscard,root_owner=0:0", "/proc/self/fd/3")
	cmd.Env, cmd.ExtraFiles = []string{}, []*os.File{file}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("mkfs.ext4: %w: %.200q", err, out)
	}
	return nil
}

// attachLoop puts a loop device over file. Another process may take the free device first; then the next is tried.
func attachLoop(file *os.File) (*os.File, string, error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, "", glovebox.Errorf(glovebox.CodeUnavailable, "modprobe loop",
			"a workspace on disk needs loop devices, and this kernel offers none")
	}
	defer control.Close()
	for range 64 {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, "", fmt.Errorf("find free loop device: %w", err)
		}
		device := fmt.Sprintf("/dev/loop%d", n)
		loop, err := os.OpenFile(device, os.O_RDWR, 0)
		if err != nil {
			return nil, "", fmt.Errorf("open loop device: %w", err)
		}
		err = unix.IoctlLoopConfigure(int(loop.Fd()), &unix.LoopConfig{
			Fd: uint32(file.Fd()), Size: 4096, Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR},
		})
		if err == nil {
			return loop, device, nil
		}
		loop.Close()
		if !errors.Is(err, unix.EBUSY) {
			return nil, "", fmt.Errorf("configure loop device: %w", err)
		}
	}
	return nil, "", errors.New("find free loop device: others were always faster")
}

// mountDevice mounts without attaching: the host's mount table never shows it.
func mountDevice(device string) (*os.File, error) {
	ctx, err := unix.Fsopen("ext4", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("mount workspace: %w", err)
	}
	defer unix.Close(ctx)
	if err := unix.FsconfigSetString(ctx, "source", device); err != nil {
		return nil, fmt.Errorf("mount workspace: %w", err)
	}
	if err := unix.FsconfigCreate(ctx); err != nil {
		return nil, fmt.Errorf("mount workspace: %w", err)
	}
	fd, err := unix.Fsmount(ctx, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	if err != nil {
		return nil, fmt.Errorf("mount workspace: %w", err)
	}
	if err := unix.Unlinkat(fd, "lost+found", unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
		unix.Close(fd)
		return nil, fmt.Errorf("empty workspace: %w", err)
	}
	return os.NewFile(uintptr(fd), "workspace"), nil
}

// Measure reads the state of the file system that f is on.
func Measure(f *os.File) (unix.Statfs_t, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(wire.FD(f), &st); err != nil {
		return st, fmt.Errorf("measure workspace: %w", err)
	}
	return st, nil
}

// DiskUse measures a sandbox's own file system, with limits l, of which baseline bytes were in use before the program.
func DiskUse(f *os.File, baseline int64, l glovebox.Limits) (driver.DiskUse, error) {
	st, err := Measure(f)
	if err != nil {
		return driver.DiskUse{}, err
	}
	use := driver.DiskUse{
		Used:      max((int64(st.Blocks)-int64(st.Bfree))*st.Bsize-baseline, 0),
		FreeBytes: int64(st.Bavail) * st.Bsize,
		FreeFiles: int64(st.Ffree),
	}
	if !InMemory(l) {
		use.FreeBytes = freeOnDisk(use, int64(l.Disk))
	}
	return use, nil
}

// freeOnDisk says what is left where the workspace is an ext4. Its tables leave a few blocks beyond the limit, and it
// refuses a large write as a whole when the blocks left do not hold all of the (up to 2 MiB) page cache folio that the
// write starts.
func freeOnDisk(use driver.DiskUse, limit int64) int64 {
	folio := min(2*int64(glovebox.MiB), limit/32)
	left := min(use.FreeBytes, limit-use.Used)
	if left < folio {
		return 0
	}
	return left
}
