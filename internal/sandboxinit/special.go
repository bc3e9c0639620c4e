package sandboxinit

import (
	"errors"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"glovebox/internal/kernelfile"
	"glovebox/internal/sandboxinit/wire"
)

// Of /proc the program sees its own processes and what describes the machine in general. What follows is hidden because it
// tells of the host, or sealed because it steers the kernel. What only the real root may open needs no cover; the most
// dangerous of it gets one all the same.
var (
	hiddenFiles = []string{
		"cmdline", "config.gz", "diskstats", "interrupts", "kcore", "key-users", "keys", "kmsg", "latency_stats",
		"locks", "modules", "mtrr", "partitions", "sched_debug", "softirqs", "swaps", "sysrq-trigger", "timer_list",
	}
	hiddenFolders = []string{"acpi", "asound", "bus", "driver", "dynamic_debug", "fs", "irq", "mpt", "pressure", "scsi", "tty"}
	// A boot id tells one machine, and one boot of it, from another (random(4)).
	hiddenSys = []string{"sys/kernel/random/boot_id"}
)

// makeProc mounts a fresh /proc, hides what is not the program's business and seals the rest.
func (s *sandbox) makeProc() error {
	const attr = harmless | unix.MOUNT_ATTR_NOEXEC
	// Where init has another id than the program, the program does not even see it.
	fd, err := newFS("proc", attr, "hidepid=2")
	if err != nil {
		return step("mount proc", err)
	}
	if err := s.attach(fd, "/proc"); err != nil {
		return step("attach proc", err)
	}
	if s.setup.Template {
		s.proc = fd
		return s.limitKernel()
	}
	if s.proc, err = keepWritable(fd, attr); err != nil {
		return step("seal proc", err)
	}
	if err := s.limitKernel(); err != nil {
		return err
	}
	empty, err := newFS("tmpfs", attr|unix.MOUNT_ATTR_RDONLY, "size=4k", "nr_inodes=2", "mode=0555")
	if err != nil {
		return step("make empty folder", err)
	}
	defer unix.Close(empty)
	if err := scaffold(empty, "/usr"); err != nil {
		return step("make empty folder", err)
	}
	null, err := s.inRoot("/dev/null", unix.O_PATH, 0)
	if err != nil {
		return step("find null device", err)
	}
	defer unix.Close(null)
	for _, name := range hiddenFolders {
		if err := s.cover(empty, "/proc/"+name); err != nil {
			return step("hide /proc/"+name, err)
		}
	}
	for _, name := range slices.Concat(hiddenFiles, hiddenSys) {
		if err := s.cover(null, "/proc/"+name); err != nil {
			return step("hide /proc/"+name, err)
		}
	}
	return nil
}

// limitKernel lowers what the kernel lends to a user or a network in all, of which a sandbox could otherwise take the
// host's share too: watches are counted for whoever made the user namespace as well, and connections that nobody accepts,
// or that have ended, for nobody.
func (s *sandbox) limitKernel() error {
	const buffer = "sys/net/ipv4/tcp_rmem"
	for _, l := range []struct{ file, most string }{
		{"sys/user/max_inotify_instances", "16"}, {"sys/user/max_inotify_watches", "8192"}, {buffer, wire.ReceiveBuffer},
		{"sys/net/ipv4/tcp_max_tw_buckets", "4096"},
	} {
		if s.setup.Template && strings.HasPrefix(l.file, "sys/user/") {
			continue // what is made below would have one sandbox's together
		}
		if err := kernelfile.WriteAt(s.proc, l.file, l.most); err != nil {
			return step("limit "+l.file, err)
		}
	}
	s.sockets.proc, s.sockets.single = s.proc, s.single
	s.buffer = strings.TrimSpace(s.readProc(buffer))
	return nil
}

// cover puts what an attached mount shows over a path of the root; a target that the kernel does not have needs no cover.
func (s *sandbox) cover(with int, target string) error {
	at, err := s.inRoot(target, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(at)
	fd, err := unix.OpenTree(with, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := setAttr(fd, unix.MOUNT_ATTR_RDONLY, 0); err != nil {
		return err
	}
	return unix.MoveMount(fd, "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}

// makeDev completes /dev, whose few nodes are in place: a private terminal file system and the usual links.
func (s *sandbox) makeDev() error {
	fd, err := newFS("devpts", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC, "newinstance", "ptmxmode=0666",
		"mode=0620", "max=64")
	if err != nil {
		return step("mount devpts", err)
	}
	defer unix.Close(fd)
	if err := s.attach(fd, "/dev/pts"); err != nil {
		return step("attach devpts", err)
	}
	dev, err := s.inRoot("/dev", unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return step("make /dev", err)
	}
	defer unix.Close(dev)
	for name, target := range map[string]string{
		"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1",
		"stderr": "/proc/self/fd/2",
	} {
		if err := unix.Symlinkat(target, dev, name); err != nil {
			return step("make /dev/"+name, err)
		}
	}
	return nil
}

// loopbackUp raises the only interface that a fresh network namespace has.
func loopbackUp() error {
	sock, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(sock)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_UP)
	return ioctlIfreq(sock, unix.SIOCSIFFLAGS, req)
}

func ioctlIfreq(fd int, request uintptr, req *unix.Ifreq) error {
	// x/sys has typed wrappers for reading requests only.
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(unsafe.Pointer(req)))
	if errno != 0 {
		return errno
	}
	return nil
}

// interfaces lists the network interfaces that /proc/net/dev names.
func interfaces(dev string) []string {
	var names []string
	for line := range strings.Lines(dev) {
		if name, _, ok := strings.Cut(line, ":"); ok {
			names = append(names, strings.TrimSpace(name))
		}
	}
	return names
}
