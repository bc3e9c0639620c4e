package microvm

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"glovebox"
	"glovebox/driver"
	"glovebox/internal/cleanup"
	"glovebox/internal/guestlink"
	"glovebox/internal/hostside"
)

// shape is all that a machine is made of. A machine that was saved can be restored only into one of the same shape.
type shape struct {
	memory glovebox.Size // of the guest
	cpus   int
	disks  []diskFile
	tsc    uint64 // kHz; only where emulated
}

// diskFile is a disk of a machine.
type diskFile struct {
	serial   string
	file     *os.File
	readOnly bool
}

// machine is a running QEMU in its jail, with an agent in it.
type machine struct {
	jail    driver.Sandbox
	process driver.Process
	link    *guestlink.Link
	qmp     *qmp
	printed hostside.Tail  // by the guest's kernel, and by QEMU
	work    sync.WaitGroup // all that reads from it
	closing sync.Once
	closed  error
}

// from says what a machine starts from: files to boot, or one that was saved.
type from struct {
	boot   *bootFiles
	memory *os.File // of the guest: shared while a template is made, private to whoever is restored from it
	state  *os.File // of what is restored
}

// launch starts QEMU in a sandbox of the jail, and returns when it takes commands.
func (d *Driver) launch(ctx context.Context, id string, limits glovebox.Limits, f found, of from, s shape) (
	_ *machine, err error) {
	m := &machine{}
	defer func() {
		if err != nil {
			err = m.abandon(ctx, err)
		}
	}()
	files := &given{}
	defer files.close()
	control, err := files.socket("control")
	if err != nil {
		return nil, err
	}
	m.qmp = newQMP(control)
	port, err := files.socket("port")
	if err != nil {
		return nil, err
	}
	m.link = guestlink.New(port, nil)
	if of.state != nil {
		files.add(of.state)
	}
	argv := d.arguments(f, of, s, files)
	devices, err := d.devices()
	if err != nil {
		return nil, err
	}
	m.jail, err = d.cfg.Jail.Start(ctx, driver.Spec{ID: id + "_vm", Limits: d.jailLimits(limits, s), Root: qemuRoot(f),
		Devices: devices})
	if err != nil {
		return nil, fmt.Errorf("start the machine's jail: %w", err)
	}
	m.process, err = m.jail.Exec(ctx, driver.Command{Argv: argv, Env: []string{"PATH=/usr/bin", "HOME=/workspace",
		"TMPDIR=/tmp"}, Dir: "/workspace", Files: files.far})
	if err != nil {
		return nil, fmt.Errorf("start the machine: %w", err)
	}
	files.close() // so that an end of QEMU is seen
	m.attend()
	if err := m.qmp.greet(ctx); err != nil {
		return nil, err
	}
	return m, nil
}

// attend reads all that comes from the machine until it ends.
func (m *machine) attend() {
	m.work.Go(m.qmp.run)
	m.work.Go(func() { _ = m.link.Run() }) // whoever calls learns why
	m.work.Go(func() { _, _ = io.Copy(&m.printed, m.process.Stdout()) })
	m.work.Go(func() { _, _ = io.Copy(&m.printed, m.process.Stderr()) })
	m.work.Go(m.watch)
}

// watch ends what is left of a machine of which one part has ended: an agent that broke the rules of the link loses its
// machine.
func (m *machine) watch() {
	select {
	case <-m.process.Exited():
		_ = m.link.Close()
		return
	case <-m.link.Done():
	}
	ctx, cancel := context.WithTimeout(context.Background(), undoLimit)
	defer cancel()
	_ = m.process.Kill(ctx) // what lives on then ends when the machine is closed, which is told
}

// kill ends the machine, and all that runs in it, and returns when the kernel says so.
func (m *machine) kill(ctx context.Context) error {
	err := m.process.Kill(ctx)
	_ = m.link.Close() // whose reason is known
	return err
}

// close ends the machine and releases everything.
func (m *machine) close(ctx context.Context) error {
	m.closing.Do(func() {
		var undo cleanup.Stack
		undo.Push("wait for what reads from the machine", func(context.Context) error { m.work.Wait(); return nil })
		undo.Push("close the machine's sockets", func(context.Context) error {
			if m.qmp != nil { // neither is there where descriptors ran out
				_ = m.qmp.conn.Close() // either may have ended
			}
			if m.link != nil {
				_ = m.link.Close()
			}
			return nil
		})
		if m.jail != nil {
			undo.Push("end the machine", m.jail.Close)
		}
		m.closed = undo.Run(ctx)
	})
	return m.closed
}

// explain adds to an error what a machine that has ended printed.
func (m *machine) explain(err error) error {
	if m.link.Alive() {
		return err
	}
	return errors.Join(err, m.printed.Printed("the machine"))
}

// undoLimit bounds what is undone after a failure, however the caller's context ended.
const undoLimit = 15 * time.Second

// abandon closes a machine that could not be brought up, and says what it printed.
func (m *machine) abandon(ctx context.Context, err error) error {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), undoLimit, errors.New("it took longer than 15 s"))
	defer cancel()
	if left := m.close(ctx); left != nil {
		err = errors.Join(err, driver.ErrLeftBehind, left)
	}
	return errors.Join(err, m.printed.Printed("the machine"))
}

// jailLimits are the limits of QEMU itself: the guest's memory and its own, and the CPUs of the run.
func (d *Driver) jailLimits(l glovebox.Limits, s shape) glovebox.Limits {
	return glovebox.Limits{Wall: l.Wall, CPU: l.CPU, CPUs: l.CPUs, Memory: s.memory + d.qemuMemory(), Disk: 4 * glovebox.MiB,
		Files: 64, OpenFiles: 256, Processes: 64, Egress: 1, Output: glovebox.MiB, View: 1}
}

// shapeOf is the shape of a machine for a run.
func (d *Driver) shapeOf(l glovebox.Limits, disks []diskFile) shape {
	s := shape{memory: (l.Memory + guestBeside + glovebox.MiB - 1) / glovebox.MiB * glovebox.MiB,
		cpus: max(1, int(math.Ceil(l.CPUs))), disks: disks}
	if d.cfg.Emulated {
		s.tsc = d.tsc()
	}
	return s
}

// given collects descriptors for QEMU.
type given struct {
	far []*os.File // in order, from descriptor 3 on
	own []*os.File // those of them that are closed once QEMU has them
}

func (g *given) close() {
	for _, f := range g.own {
		_ = f.Close() // QEMU has its own
	}
	g.own = nil
}

// add returns the number that f will have.
func (g *given) add(f *os.File) int {
	g.far = append(g.far, f)
	return 2 + len(g.far)
}

// socket makes a connected pair and returns this process's end.
func (g *given) socket(name string) (*os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make socket: %w", err)
	}
	far := os.NewFile(uintptr(fds[1]), name)
	g.own = append(g.own, far)
	g.add(far)
	if err := unix.SetNonblock(fds[0], true); err != nil {
		return nil, errors.Join(fmt.Errorf("make socket: %w", err), unix.Close(fds[0]))
	}
	return os.NewFile(uintptr(fds[0]), name), nil
}

// The places of the sockets among the descriptors: the first two.
const (
	controlFD = 3
	portFD    = 4
)

// arguments are QEMU's command line. Everything that it works with is a descriptor of files.
func (d *Driver) arguments(f found, of from, s shape, files *given) []string {
	mib := int64(s.memory / glovebox.MiB)
	argv := []string{f.qemu, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
		"-m", fmt.Sprintf("%dM", mib), "-smp", fmt.Sprint(s.cpus)}
	machine := "microvm,dump-guest-core=off,mem-merge=off"
	if d.cfg.Emulated {
		argv = append(argv, "-accel", "tcg,thread=multi,tb-size=64", "-cpu", "max,la57=off")
	} else {
		argv = append(argv, "-accel", "kvm", "-cpu", "host")
		machine += ",pit=off,pic=off,rtc=off"
	}
	if of.memory != nil {
		share := "on"
		if of.state != nil {
			share = "off"
		}
		machine += ",memory-backend=memory"
		argv = append(argv, "-object", fmt.Sprintf("memory-backend-file,id=memory,size=%dM,mem-path=/proc/self/fd/%d,share=%s",
			mib, files.add(of.memory), share))
	}
	argv = append(argv, "-M", machine,
		"-chardev", fmt.Sprintf("socket,id=control,fd=%d", controlFD), "-mon", "chardev=control,mode=control",
		"-device", "virtio-serial-device,max_ports=2", "-chardev", fmt.Sprintf("socket,id=port,fd=%d", portFD),
		"-device", "virtserialport,chardev=port,name="+guestlink.PortName, "-serial", "stdio")
	for i, disk := range s.disks {
		node, only := fmt.Sprintf("disk%d", i), "off"
		if disk.readOnly {
			only = "on"
		}
		argv = append(argv, "-add-fd", fmt.Sprintf("fd=%d,set=%d", files.add(disk.file), i+1),
			"-blockdev", fmt.Sprintf("driver=raw,node-name=%s,read-only=%s,file.driver=file,file.locking=off,"+
				"file.filename=/dev/fdset/%d", node, only, i+1),
			"-device", fmt.Sprintf("virtio-blk-device,drive=%s,serial=%s", node, disk.serial))
	}
	if of.boot == nil {
		return append(argv, "-incoming", "defer")
	}
	return append(argv, "-kernel", fmt.Sprintf("/proc/self/fd/%d", files.add(of.boot.kernel)),
		"-initrd", fmt.Sprintf("/proc/self/fd/%d", files.add(of.boot.initrd)), "-append", d.kernelArguments(s))
}

// kernelArguments are the guest kernel's. The self-tests of its ciphers are left out because nothing uses them; where
// emulated there is nothing to measure the clock by, so it is told.
func (d *Driver) kernelArguments(s shape) string {
	list := []string{"console=ttyS0", "quiet", "loglevel=3", "panic=-1", "reboot=t", "cryptomgr.notests", "cgroup_no_v1=all"}
	if d.cfg.Emulated {
		list = append(list, "tsc=reliable", fmt.Sprintf("tsc_early_khz=%d", s.tsc), "no_timer_check", "mitigations=off")
	}
	return strings.Join(list, " ")
}

// qemuRoot is what QEMU sees as its file system: programs and libraries of the host, read-only.
func qemuRoot(f found) driver.Root {
	root := driver.Root{Mounts: []driver.Mount{{Source: "/usr", Target: "/usr"}}}
	for _, name := range []string{"/bin", "/lib", "/lib64", "/etc/ld.so.cache"} {
		info, err := os.Lstat(name)
		if err != nil {
			continue // what is not there QEMU does not need here
		}
		if target, err := os.Readlink(name); info.Mode()&os.ModeSymlink != 0 && err == nil {
			root.Links = append(root.Links, driver.Link{Path: name, Target: target})
			continue
		}
		root.Mounts = append(root.Mounts, driver.Mount{Source: name, Target: name})
	}
	if dir := filepath.Dir(f.qemu); !strings.HasPrefix(dir, "/usr/") {
		root.Mounts = append(root.Mounts, driver.Mount{Source: dir, Target: dir})
	}
	return root
}

// meet waits for the agent and gives the machine randomness and a time of its own. After that it is like no other.
func (m *machine) meet(ctx context.Context) error {
	var hello guestlink.Hello
	if err := m.link.Call(ctx, guestlink.MethodHello, nil, &hello); err != nil {
		return fmt.Errorf("wait for the guest: %w", err)
	}
	if hello.Version != guestlink.Version {
		return fmt.Errorf("the guest's agent is %.40q, and this driver needs %q", hello.Version, guestlink.Version)
	}
	fresh := make([]byte, 64+16)
	if _, err := rand.Read(fresh); err != nil {
		return err
	}
	nonce := hex.EncodeToString(fresh[64:])
	var ack guestlink.Resync
	err := m.link.Call(ctx, guestlink.MethodResync, guestlink.Resync{Nonce: nonce, Random: fresh[:64],
		UnixNano: time.Now().UnixNano()}, &ack)
	if err != nil {
		return fmt.Errorf("make the guest its own: %w", err)
	}
	if ack.Nonce != nonce {
		return errors.New("make the guest its own: it answered for another")
	}
	return nil
}
