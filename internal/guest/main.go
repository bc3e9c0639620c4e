// Package guest is process 1 of a microVM: the agent by which the driver on the host makes a sandbox inside the machine and
// runs the program in it. The sandbox is one of the process rung, with all of its fence, on the guest's own kernel; the
// agent serves that rung's driver to the host over a virtio port (see package guestlink).
//
// It runs from a file system in memory that the driver made, and opens nothing that a program wrote but outputs that it is
// asked for. When it cannot go on it ends the machine.
package guest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"glovebox/internal/guestlink"
)

// Where things are in the guest besides those that the driver puts there.
const (
	imageDir   = "/image"
	inputsDir  = "/inputs"
	lateDir    = "/inputs/late" // those that come just before the code
	scratchDir = "/scratch"
	cgroupDir  = "/sys/fs/cgroup"
	newRoot    = "/root"
)

// Main runs the agent and does not return while the machine is to live. Started by hand it does nothing.
func Main() int {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "glovebox-guest is process 1 of a microVM, not to be started by hand")
		return 125
	}
	err := run()
	if console, e := os.OpenFile("/dev/console", os.O_WRONLY, 0); e == nil {
		fmt.Fprintf(console, "glovebox-guest: %v\n", err)
	}
	// The monitor ends where the machine would start anew.
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
	return 1
}

func run() error {
	if err := mountKernel("/"); err != nil {
		return err
	}
	if err := loadModules(); err != nil {
		return err
	}
	if err := leaveInitramfs(); err != nil {
		return err
	}
	if err := prepare(); err != nil {
		return err
	}
	var port *port
	err := await(func() (err error) { port, err = openPort(); return err })
	if err != nil {
		return err
	}
	a := &agent{}
	a.link = guestlink.New(port, a.serve)
	return a.link.Run()
}

// mountKernel mounts what the kernel shows, below root.
func mountKernel(root string) error {
	for _, m := range []struct{ kind, at, options string }{
		{"devtmpfs", "dev", "mode=0755"}, {"proc", "proc", ""}, {"sysfs", "sys", ""},
	} {
		at := filepath.Join(root, m.at)
		if err := os.MkdirAll(at, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.kind, at, m.kind, unix.MS_NOSUID|unix.MS_NOEXEC, m.options); err != nil {
			return fmt.Errorf("mount %s: %w", m.kind, err)
		}
	}
	return nil
}

// loadModules loads what the driver put there: only what this kernel does not have built in.
func loadModules() error {
	names, err := filepath.Glob(filepath.Join(guestlink.ModulesDir, "*"))
	if err != nil {
		return err
	}
	for _, name := range names { // in order
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		flags := 0
		if !strings.HasSuffix(name, ".ko") {
			flags = unix.MODULE_INIT_COMPRESSED_FILE
		}
		err = unix.FinitModule(int(f.Fd()), "", flags)
		f.Close()
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("load module %s: %w", filepath.Base(name), err)
		}
	}
	return os.RemoveAll(guestlink.ModulesDir) // it is memory
}

// leaveInitramfs moves to a root that a sandbox can leave: the kernel's first one cannot be.
func leaveInitramfs() error {
	if err := os.MkdirAll(newRoot, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", newRoot, "tmpfs", 0, "mode=0755"); err != nil {
		return fmt.Errorf("mount root: %w", err)
	}
	if err := copyFile(filepath.Join(newRoot, guestlink.InitPath), guestlink.InitPath); err != nil {
		return err
	}
	for _, name := range []string{guestlink.InitPath, "/init"} {
		if err := os.Remove(name); err != nil {
			return err
		}
	}
	for _, at := range []string{"dev", "proc", "sys"} {
		if err := unix.Unmount("/"+at, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("leave /%s: %w", at, err)
		}
	}
	if err := mountKernel(newRoot); err != nil {
		return err
	}
	if err := unix.Chdir(newRoot); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("enter root: %w", err)
	}
	return unix.Chdir("/")
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// prepare makes what the process rung finds on a host: control groups, folders, and limits that bound nothing.
func prepare() error {
	if err := unix.Mount("cgroup2", cgroupDir, "cgroup2", unix.MS_NOSUID|unix.MS_NOEXEC|unix.MS_NODEV, ""); err != nil {
		return fmt.Errorf("mount control groups: %w", err)
	}
	for _, dir := range []string{"/tmp", "/usr", "/run", scratchDir, inputsDir, imageDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	endless := unix.Rlimit{Cur: 1 << 20, Max: 1 << 20}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &endless); err != nil {
		return fmt.Errorf("lift limits: %w", err)
	}
	endless = unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	for _, what := range []int{unix.RLIMIT_NPROC, unix.RLIMIT_MEMLOCK, unix.RLIMIT_STACK, 11 /* RLIMIT_SIGPENDING */} {
		if err := unix.Setrlimit(what, &endless); err != nil {
			return fmt.Errorf("lift limits: %w", err)
		}
	}
	// As where memory is plentiful: what a program asks for it is given, and what it then uses its own limit bounds.
	if err := os.WriteFile("/proc/sys/vm/overcommit_memory", []byte("1"), 0); err != nil {
		return fmt.Errorf("give memory out: %w", err)
	}
	var root string
	err := await(func() (err error) { root, err = disk(guestlink.SerialRoot); return err })
	if err != nil {
		return err
	}
	if err := unix.Mount(root, imageDir, "erofs", unix.MS_RDONLY|unix.MS_NODEV|unix.MS_NOSUID, ""); err != nil {
		return fmt.Errorf("mount image: %w", err)
	}
	return nil
}

// await tries until it goes well, for some seconds: the kernel may still be finding what the machine has.
func await(try func() error) error {
	for n := 0; ; n++ {
		err := try()
		if err == nil || n == 1000 {
			return err
		}
		if _, err := unix.Poll(nil, 10); err != nil && err != unix.EINTR {
			return err
		}
	}
}

// disk is the device of the disk with a serial number.
func disk(serial string) (string, error) {
	found, err := filepath.Glob("/sys/block/vd*/serial")
	if err != nil {
		return "", err
	}
	for _, name := range found {
		text, err := os.ReadFile(name)
		if err != nil {
			return "", err
		}
		if strings.TrimSpace(string(text)) == serial {
			return "/dev/" + filepath.Base(filepath.Dir(name)), nil
		}
	}
	return "", fmt.Errorf("no disk has the serial number %q", serial)
}

// port is the virtio port as a stream that never ends: a host that is not there is waited for.
type port struct{ file *os.File }

// openPort finds the port by its name.
func openPort() (*port, error) {
	names, err := filepath.Glob("/sys/class/virtio-ports/*/name")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		if strings.TrimSpace(string(text)) != guestlink.PortName {
			continue
		}
		fd, err := unix.Open("/dev/"+filepath.Base(filepath.Dir(name)), unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("open port: %w", err)
		}
		return &port{os.NewFile(uintptr(fd), "port")}, nil
	}
	return nil, errors.New("the machine has no port for the driver")
}

// Read implements io.Reader.
func (p *port) Read(b []byte) (int, error) {
	for {
		n, err := unix.Read(int(p.file.Fd()), b)
		switch {
		case n > 0:
			return n, nil
		case err == nil || err == unix.EPIPE: // nobody is connected
			if err := p.await(unix.POLLIN); err != nil {
				return 0, err
			}
		case err != unix.EINTR && err != unix.EAGAIN:
			return 0, err
		}
	}
}

// await waits for an event. While nobody is connected the kernel says so at once, so that it must be asked again: not too
// often.
func (p *port) await(event int16) error {
	poll := []unix.PollFd{{Fd: int32(p.file.Fd()), Events: event}}
	_, err := unix.Poll(poll, -1)
	if err == nil && poll[0].Revents&unix.POLLHUP != 0 {
		_, err = unix.Poll(nil, 5)
	}
	if err != nil && err != unix.EINTR {
		return err
	}
	return nil
}

// Write implements io.Writer.
func (p *port) Write(b []byte) (int, error) {
	written := 0
	for written < len(b) {
		n, err := unix.Write(int(p.file.Fd()), b[written:])
		switch {
		case n > 0:
			written += n
		case err == unix.EPIPE || err == unix.EAGAIN:
			if err := p.await(unix.POLLOUT); err != nil {
				return written, err
			}
		case err != nil && err != unix.EINTR:
			return written, err
		}
	}
	return written, nil
}

// Close implements io.Closer.
func (p *port) Close() error { return p.file.Close() }
