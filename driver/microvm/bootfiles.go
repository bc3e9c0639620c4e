package microvm

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"

	"golang.org/x/sys/unix"

	"glovebox/internal/guestlink"
)

// bootFiles are what a machine starts with: the kernel, and an initramfs with the agent. They are in memory and sealed, so
// that what was looked at is what is booted, and whatever may read on the host's disks, QEMU can.
type bootFiles struct {
	kernel, initrd *os.File
	ids            map[string]fileID
	machine        found
}

// bootFiles makes them, or takes those that were made of the same files.
func (d *Driver) bootFiles(f found) (*bootFiles, error) {
	d.booting.Lock()
	defer d.booting.Unlock()
	ids, err := d.sources(f)
	if err != nil {
		return nil, err
	}
	if d.boot != nil && sameFiles(d.boot.ids, ids) {
		return d.boot, nil
	}
	b := &bootFiles{ids: ids, machine: f}
	if b.kernel, err = sealedCopy("kernel", func(to io.Writer) error { return copyTo(to, f.vmlinuz) }); err != nil {
		return nil, err
	}
	b.initrd, err = sealedCopy("initramfs", func(to io.Writer) error { return d.writeInitramfs(to, f.modules) })
	if err != nil {
		return nil, errors.Join(err, b.kernel.Close())
	}
	// Those of before are closed once nobody starts with them: the garbage collector closes files.
	d.boot = b
	return b, nil
}

// sources are the files that shape a machine, with what they are now.
func (d *Driver) sources(f found) (map[string]fileID, error) {
	ids := map[string]fileID{}
	for _, name := range append([]string{f.qemu, f.vmlinuz, d.cfg.Guest, d.cfg.Init}, f.modules...) {
		id, err := identify(name)
		if err != nil {
			return nil, fmt.Errorf("look at what a machine starts with: %w", err)
		}
		ids[name] = id
	}
	return ids, nil
}

func sameFiles(a, b map[string]fileID) bool {
	if len(a) != len(b) {
		return false
	}
	for name, id := range a {
		if b[name] != id {
			return false
		}
	}
	return true
}

func copyTo(to io.Writer, name string) error {
	from, err := os.Open(name)
	if err != nil {
		return err
	}
	defer from.Close()
	_, err = io.Copy(to, from)
	return err
}

// sealedCopy makes a file in memory that nobody can change any more.
func sealedCopy(name string, write func(io.Writer) error) (*os.File, error) {
	f, err := newMemory(name)
	if err != nil {
		return nil, err
	}
	err = write(f)
	if err == nil {
		err = seal(f)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make %s: %w", name, err), f.Close())
	}
	return f, nil
}

func newMemory(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("make %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

func seal(f *os.File) error {
	const seals = unix.F_SEAL_WRITE | unix.F_SEAL_GROW | unix.F_SEAL_SHRINK | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		return fmt.Errorf("seal: %w", err)
	}
	return nil
}

// writeInitramfs writes what the kernel unpacks as its first root: the agent, init, and the modules in order.
func (d *Driver) writeInitramfs(to io.Writer, modules []string) error {
	a := &archive{to: to}
	for _, dir := range []string{"dev", "proc", "sys", "root", "modules"} {
		a.add(dir, 0o040755, nil)
	}
	// The kernel opens it for process 1 before anything is mounted.
	a.device("dev/console", 5, 1)
	for name, from := range map[string]string{"init": d.cfg.Guest, guestlink.InitPath[1:]: d.cfg.Init} {
		a.file(name, from)
	}
	for i, from := range modules {
		a.file(path.Join(guestlink.ModulesDir[1:], fmt.Sprintf("%02d-%s", i, filepath.Base(from))), from)
	}
	a.add("TRAILER!!!", 0, nil)
	return a.err
}

// archive writes the form "newc" of cpio, which the kernel unpacks (its Documentation/driver-api/early-userspace/
// buffer-format.rst).
type archive struct {
	to  io.Writer
	ino int
	err error
}

func (a *archive) file(name, from string) {
	data, err := os.ReadFile(from)
	if a.err = errors.Join(a.err, err); a.err == nil {
		a.add(name, 0o100755, data)
	}
}

func (a *archive) add(name string, mode uint32, data []byte) { a.entry(name, mode, data, 0, 0) }

func (a *archive) device(name string, major, minor uint32) {
	a.entry(name, 0o020600, nil, major, minor)
}

func (a *archive) entry(name string, mode uint32, data []byte, major, minor uint32) {
	if a.err != nil {
		return
	}
	a.ino++
	var b bytes.Buffer
	fmt.Fprintf(&b, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X", a.ino, mode, 0, 0, 1, 0, len(data), 0, 0,
		major, minor, len(name)+1, 0)
	b.WriteString(name)
	b.WriteByte(0)
	b.Write(make([]byte, (4-b.Len()%4)%4))
	b.Write(data)
	b.Write(make([]byte, (4-b.Len()%4)%4))
	_, a.err = a.to.Write(b.Bytes())
}
