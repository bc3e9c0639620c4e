package sandboxinit

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"glovebox/internal/kernelfile"
	"glovebox/internal/sandboxinit/wire"
)

// attachNetwork makes the network and tells what the kernel says of it. An error means that the socket is broken.
func (s *sandbox) attachNetwork(a *wire.Attach, files []*os.File) error {
	if s.setup == nil || !s.setup.Network || s.attached && !s.setup.Kernel || s.waiting != nil {
		return s.fail(step("attach network", errors.New("the sandbox is not made for it, or not in a state for it")))
	}
	s.attached = true // whatever becomes of it
	var contents *os.File
	if n := len(files); len(a.Shown) > 0 && n > 0 {
		contents, files = files[n-1], files[:n-1]
	}
	var link []*os.File
	defer func() { wire.CloseAll(link) }() // the only one that stays is that of the driver
	switch {
	case a.Device == wire.NoDevice:
	case s.setup.Kernel && len(files) == 0:
		if err := s.configureAgain(); err != nil {
			return s.fail(step("configure interface again", err))
		}
	case len(files) != 1:
		return s.fail(step("attach network", errors.New("descriptor missing")))
	default:
		device, err := s.takeDevice(files[0], a.Reopen)
		if err != nil {
			return s.fail(step("open network device", err))
		}
		link = []*os.File{device}
		if err := s.makeInterface(device, a.Device); err != nil {
			return s.fail(err)
		}
	}
	if len(a.Shown) > 0 {
		show := s.show
		if s.guest != nil {
			show = s.showInGuest
		}
		if err := show(a, contents); err != nil {
			return s.fail(err)
		}
	}
	return s.conn.Send(wire.Message{Attached: &wire.Attached{
		Interfaces: interfaces(s.readProc("self/net/dev")), Routes: s.readProc("self/net/route"),
		Mounts: s.readProc("self/mountinfo"), Buffer: strings.TrimSpace(s.readProc("sys/net/ipv4/tcp_rmem")),
	}}, link...)
}

// takeDevice is the opened device. Which network namespace it makes interfaces in is that of whoever opens it.
func (s *sandbox) takeDevice(given *os.File, reopen bool) (*os.File, error) {
	var fd int
	var err error
	if reopen {
		name := fmt.Sprintf("self/fd/%d", wire.FD(given))
		fd, err = unix.Openat(s.proc, name, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	} else {
		fd, err = unix.FcntlInt(uintptr(wire.FD(given)), unix.F_DUPFD_CLOEXEC, 3)
	}
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "network device"), nil
}

// makeInterface makes the interface whose packets the device reads and writes. There is no IPv6: nothing behind the link
// speaks it, and so a program is told at once that there is no way there.
func (s *sandbox) makeInterface(device *os.File, kind wire.Device) error {
	err := kernelfile.WriteAt(s.proc, "sys/net/ipv6/conf/default/disable_ipv6", "1")
	if err != nil && !errors.Is(err, unix.ENOENT) { // a kernel without IPv6
		return step("switch IPv6 off", err)
	}
	if !s.setup.Kernel { // whose sockets are its own
		if err := kernelfile.WriteAt(s.proc, "sys/net/ipv4/tcp_rmem", wire.AttachedBuffer); err != nil {
			return step("limit receive buffers", err)
		}
		s.sockets.mu.Lock()
		s.sockets.most = wire.AttachedConnections
		s.sockets.mu.Unlock()
	}
	flags := map[wire.Device]uint16{wire.TUN: unix.IFF_TUN, wire.TAP: unix.IFF_TAP}[kind]
	if flags == 0 {
		return step("make interface", errors.New("an unknown kind of device"))
	}
	req, err := unix.NewIfreq(wire.Interface)
	if err != nil {
		return step("make interface", err)
	}
	req.SetUint16(flags | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if err := ioctlIfreq(wire.FD(device), unix.TUNSETIFF, req); err != nil {
		return step("make interface", err)
	}
	const offloads = unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO6
	if err := unix.IoctlSetInt(wire.FD(device), unix.TUNSETOFFLOAD, offloads); err != nil {
		return step("make interface offload", err)
	}
	sock, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return step("configure interface", err)
	}
	defer unix.Close(sock)
	if err := shortenQueue(sock); err != nil {
		return step("bound the interface's queue", err)
	}
	return step("configure interface", configureInterface(sock))
}

// shortenQueue bounds what waits to be read from the link. By the older call only the host's own root may.
func shortenQueue(sock int) error {
	req, err := unix.NewIfreq(wire.Interface)
	if err != nil {
		return err
	}
	if err := ioctlIfreq(sock, unix.SIOCGIFINDEX, req); err != nil {
		return err
	}
	kernel, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer unix.Close(kernel)
	m := struct {
		header unix.NlMsghdr
		link   unix.IfInfomsg
		about  unix.RtAttr
		length uint32
	}{about: unix.RtAttr{Len: unix.SizeofRtAttr + 4, Type: unix.IFLA_TXQLEN}, length: wire.LinkQueue}
	m.header = unix.NlMsghdr{Len: uint32(unsafe.Sizeof(m)), Type: unix.RTM_SETLINK,
		Flags: unix.NLM_F_REQUEST | unix.NLM_F_ACK}
	m.link.Index = int32(req.Uint32())
	if _, err := unix.Write(kernel, unsafe.Slice((*byte)(unsafe.Pointer(&m)), unsafe.Sizeof(m))); err != nil {
		return err
	}
	var answer struct { // netlink(7): an error of 0 says that it was done
		header unix.NlMsghdr
		errno  int32
		_      [1024]byte
	}
	n, err := unix.Read(kernel, unsafe.Slice((*byte)(unsafe.Pointer(&answer)), unsafe.Sizeof(answer)))
	switch {
	case err != nil:
		return err
	case n < unix.SizeofNlMsghdr+4 || answer.header.Type != unix.NLMSG_ERROR:
		return errors.New("the kernel answered something else")
	case answer.errno != 0:
		return unix.Errno(-answer.errno)
	}
	return nil
}

// configureAgain is for the next kernel on an interface. It does nothing if whoever had its other end has closed that.
func (s *sandbox) configureAgain() error {
	sock, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(sock)
	if err := configureInterface(sock); !errors.Is(err, unix.ENODEV) {
		return err
	}
	return nil
}

// configureInterface gives the interface its address and raises it, and sends everything to the router behind it.
func configureInterface(sock int) error {
	for _, c := range []struct {
		request uintptr
		set     func(*unix.Ifreq) error
	}{
		{unix.SIOCSIFMTU, func(r *unix.Ifreq) error { r.SetUint32(wire.LinkMTU); return nil }},
		{unix.SIOCSIFADDR, func(r *unix.Ifreq) error { return r.SetInet4Addr([]byte(wire.LinkAddress)) }},
		{unix.SIOCSIFNETMASK, func(r *unix.Ifreq) error { return r.SetInet4Addr([]byte(wire.LinkMask)) }},
		{unix.SIOCSIFFLAGS, func(r *unix.Ifreq) error { r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING); return nil }},
	} {
		req, err := unix.NewIfreq(wire.Interface)
		if err == nil {
			err = c.set(req)
		}
		if err == nil {
			err = ioctlIfreq(sock, c.request, req)
		}
		if err != nil {
			return fmt.Errorf("request %#x: %w", c.request, err)
		}
	}
	r := route{flags: unix.RTF_UP | unix.RTF_GATEWAY}
	r.to[0], r.mask[0], r.by[0] = unix.AF_INET, unix.AF_INET, unix.AF_INET
	copy(r.by[4:], wire.LinkRouter)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(sock), unix.SIOCADDRT, uintptr(unsafe.Pointer(&r))); errno != 0 {
		return fmt.Errorf("add route: %w", errno)
	}
	return nil
}

// route is struct rtentry (linux/route.h), with a struct sockaddr for each address.
type route struct {
	_            uintptr
	to, by, mask [16]byte
	flags        uint16
	_            int16
	_, _         uintptr
	metric       int16
	device       *byte
	mtu, window  uintptr
	irtt         uint16
}

// roomForNetwork makes where Attach will show its files, in a root that cannot be changed any more by then. Where /etc is a
// folder of an image, that is shown through an overlay of what it lacks.
func (s *sandbox) roomForNetwork() error {
	if !s.setup.Network {
		return nil
	}
	err := s.folder(wire.NetworkDir)
	if err == nil {
		err = s.emptyFile(wire.NameServers)
	}
	if errors.Is(err, unix.EROFS) {
		err = s.overlayEtc()
	}
	return step("make room for a network", err)
}

// emptyFile makes a file of the root where none is.
func (s *sandbox) emptyFile(p string) error {
	fd, err := s.inRoot(p, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if errors.Is(err, unix.ENOENT) {
		fd, err = s.inRoot(p, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW, 0o444)
	}
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// overlayEtc shows /etc, which is a mount that cannot be changed, through an overlay of it and of what it lacks.
func (s *sandbox) overlayEtc() error {
	const covered, etc = "/var", "etc" // a folder of the host, and one of the root
	fd, err := newFS("tmpfs", harmless, "size=64k", "nr_inodes=8", "mode=0755")
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Mkdirat(fd, path.Base(wire.NetworkDir), 0o755); err != nil {
		return err
	}
	servers, err := s.inRoot(wire.NameServers, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if errors.Is(err, unix.ENOENT) {
		servers, err = unix.Openat(fd, path.Base(wire.NameServers),
			unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o444)
	}
	if err != nil {
		return err
	}
	unix.Close(servers)
	if err := scaffold(fd, covered); err != nil {
		return err
	}
	if err := unix.Fchdir(s.root); err != nil {
		return err
	}
	over, err := newFS("overlay", sealed, "lowerdir="+covered+":"+etc)
	if err := errors.Join(err, unix.Chdir("/")); err != nil {
		return err
	}
	return s.attach(over, "/"+etc)
}

// show makes the files of a in a file system of their own and shows them where they are meant to be.
func (s *sandbox) show(a *wire.Attach, contents *os.File) error {
	const attr = harmless | unix.MOUNT_ATTR_NOEXEC
	fd, err := newFS("tmpfs", attr, filesOptions(a)...)
	if err != nil {
		return step("make files of the network", err)
	}
	defer unix.Close(fd)
	if err := writeFiles(fd, a, contents); err != nil {
		return step("make files of the network", err)
	}
	if err := setAttr(fd, unix.MOUNT_ATTR_RDONLY|attr, 0); err != nil {
		return step("seal files of the network", err)
	}
	if err := s.moveTo(fd, wire.NetworkDir, unix.O_PATH|unix.O_DIRECTORY); err != nil {
		return step("show "+wire.NetworkDir, err)
	}
	for _, f := range a.Shown {
		if f.Over {
			if err := s.showOver(fd, f); err != nil {
				return step("show "+f.Path, err)
			}
		}
	}
	return nil
}

// showOver shows a content over a regular file; where there is none, nothing.
func (s *sandbox) showOver(contents int, f wire.Shown) error {
	at, err := unix.Openat2(s.root, f.Path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
	switch {
	case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP):
		return nil
	case err != nil:
		return err
	}
	defer unix.Close(at)
	var st unix.Stat_t
	if err := unix.Fstat(at, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil
	}
	tree, err := unix.OpenTree(contents, contentName(f.Content),
		unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return err
	}
	defer unix.Close(tree)
	return unix.MoveMount(tree, "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}

// filesOptions bound the file system of the files.
func filesOptions(a *wire.Attach) []string {
	const page = 4096
	size, inodes := int64(page), 8
	for _, n := range a.Sizes {
		size += (n + page - 1) / page * page
	}
	for _, f := range a.Shown { // names of one content have one inode, but their folders have some
		inodes += 1 + strings.Count(f.Path, "/")
	}
	return []string{fmt.Sprintf("size=%d", size), fmt.Sprintf("nr_inodes=%d", inodes+len(a.Sizes)), "mode=0755"}
}

// contentName is what a content is called beside the files that have it.
func contentName(n int) string { return fmt.Sprintf(".%d", n) }

// writeFiles writes each content once, below the folder dir, and gives it the names of the files that are not Over.
func writeFiles(dir int, a *wire.Attach, contents *os.File) error {
	if contents == nil {
		return errors.New("descriptor missing")
	}
	at := int64(0)
	for i, n := range a.Sizes {
		fd, err := unix.Openat(dir, contentName(i),
			unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o444)
		if err != nil {
			return err
		}
		f := os.NewFile(uintptr(fd), "content")
		copied, err := io.Copy(f, io.NewSectionReader(contents, at, n))
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
		if at += n; copied != n {
			return errors.New("a content is cut off")
		}
	}
	for _, f := range a.Shown {
		if f.Content < 0 || f.Content >= len(a.Sizes) {
			return errors.New("a file without content")
		}
		if f.Over {
			continue
		}
		name, ok := strings.CutPrefix(f.Path, wire.NetworkDir+"/")
		if !ok || path.Clean(f.Path) != f.Path {
			return fmt.Errorf("%.100q is not below %s", f.Path, wire.NetworkDir)
		}
		// There is nothing in the folder that was not made here.
		for i, c := range name {
			if c != '/' {
				continue
			}
			if err := unix.Mkdirat(dir, name[:i], 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
				return err
			}
		}
		if err := unix.Linkat(dir, contentName(f.Content), dir, name, 0); err != nil {
			return err
		}
	}
	return nil
}

// showInGuest is show on a kernel in user space, which has the older calls alone. What is there is an image's, read-only,
// and its program has not begun.
func (s *sandbox) showInGuest(a *wire.Attach, contents *os.File) error {
	const attr = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount("network", wire.NetworkDir, "tmpfs", attr, strings.Join(filesOptions(a)[2:], ",")); err != nil {
		return step("make files of the network", err)
	}
	dir, err := unix.Open(wire.NetworkDir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return step("make files of the network", err)
	}
	defer unix.Close(dir)
	if err := writeFiles(dir, a, contents); err != nil {
		return step("make files of the network", err)
	}
	for _, f := range a.Shown {
		var st unix.Stat_t
		if !f.Over || unix.Stat(f.Path, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
			continue
		}
		from := path.Join(wire.NetworkDir, contentName(f.Content))
		if err := unix.Mount(from, f.Path, "", unix.MS_BIND, ""); err != nil {
			return step("show "+f.Path, err)
		}
	}
	return nil
}
