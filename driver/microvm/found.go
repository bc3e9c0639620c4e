package microvm

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"glovebox"
	"glovebox/driver"
	"glovebox/internal/hostside"
)

// found is what a machine has of what the rung needs.
type found struct {
	qemu    string // path
	version string // of the kernel
	vmlinuz string
	modules []string // paths, in the order in which they are to be loaded
}

// What mends what is missing, as Debian and Ubuntu name the packages.
const (
	qemuFix   = "apt-get install -y --no-install-recommends qemu-system-x86"
	kernelFix = "apt-get install -y --no-install-recommends linux-image-cloud-amd64, or name a folder with a " +
		"kernel's files in drivers.microvm.kernel"
	kvmFix = "use a machine with hardware virtualisation (in a virtual machine: switch nested virtualisation on), modprobe " +
		"kvm_intel or kvm_amd, and let Glovebox open /dev/kvm; to try the rung without its protection set " +
		"drivers.microvm.emulated: true"
)

// moduleNames are the parts of the kernel that a guest needs, in the order in which they are loaded. What is built in is
// left out.
var moduleNames = []string{
	"virtio_ring", "virtio", "virtio_mmio", "virtio_console", "virtio_blk", "libcrc32c", "erofs", "overlay", "tun",
}

func unavailable(fix, format string, args ...any) error {
	return glovebox.Errorf(glovebox.CodeUnavailable, fix, format, args...)
}

// look looks for all that the rung needs.
func (d *Driver) look() (found, error) {
	var f found
	var err error
	if f.qemu, err = d.findQEMU(); err != nil {
		return f, err
	}
	if err := d.findAgent(); err != nil {
		return f, err
	}
	if f.version, f.vmlinuz, err = d.findKernel(); err != nil {
		return f, err
	}
	if f.modules, err = findModules(filepath.Join(d.cfg.Kernel, "lib/modules", f.version)); err != nil {
		return f, err
	}
	return f, d.findKVM()
}

func (d *Driver) findQEMU() (string, error) {
	paths := []string{d.cfg.QEMU}
	if d.cfg.QEMU == "" {
		paths = []string{"/usr/bin/qemu-system-x86_64", "/usr/local/bin/qemu-system-x86_64"}
	}
	for _, p := range paths {
		if unix.Access(p, unix.X_OK) == nil {
			return hostside.Followed(p), nil
		}
	}
	if d.cfg.QEMU != "" {
		return "", unavailable("set drivers.microvm.qemu in glovebox.yaml to where qemu-system-x86_64 is, or leave it out",
			"QEMU is not at %s, which drivers.microvm.qemu names, or not executable", d.cfg.QEMU)
	}
	return "", unavailable(qemuFix, "QEMU is not at %s", strings.Join(paths, " or "))
}

func (d *Driver) findAgent() error {
	for _, p := range []struct{ name, key, path string }{
		{"glovebox-guest", "", d.cfg.Guest}, {"glovebox-init", hostside.InitKey, d.cfg.Init},
	} {
		if unix.Access(p.path, unix.X_OK) != nil {
			r := hostside.Missing(p.name, p.key, p.path)
			return unavailable(r.Fix, "%s", r.Public)
		}
	}
	return nil
}

// findKernel finds the newest kernel made for virtual machines.
func (d *Driver) findKernel() (version, path string, err error) {
	names, err := filepath.Glob(filepath.Join(d.cfg.Kernel, "boot/vmlinuz-*-cloud-amd64"))
	if err != nil || len(names) == 0 {
		return "", "", unavailable(kernelFix, "no kernel is at %s", filepath.Join(d.cfg.Kernel, "boot/vmlinuz-*-cloud-amd64"))
	}
	path = slices.MaxFunc(names, func(a, b string) int { return compareVersions(filepath.Base(a), filepath.Base(b)) })
	return strings.TrimPrefix(filepath.Base(path), "vmlinuz-"), path, nil
}

// compareVersions compares number by number and word by word.
func compareVersions(a, b string) int {
	split := func(s string) []string {
		return strings.FieldsFunc(s, func(r rune) bool { return r == '.' || r == '-' || r == '+' })
	}
	return slices.CompareFunc(split(a), split(b), func(x, y string) int {
		n, errN := strconv.Atoi(x)
		m, errM := strconv.Atoi(y)
		if errN == nil && errM == nil {
			return cmp.Compare(n, m)
		}
		return strings.Compare(x, y)
	})
}

// findModules finds the modules' files below a folder of modules.
func findModules(dir string) ([]string, error) {
	builtin, err := os.ReadFile(filepath.Join(dir, "modules.builtin"))
	if err != nil {
		return nil, unavailable(kernelFix, "the kernel's modules are not at %s", dir)
	}
	paths := map[string]string{}
	err = filepath.WalkDir(filepath.Join(dir, "kernel"), func(p string, e fs.DirEntry, err error) error {
		if name, _, ok := strings.Cut(filepath.Base(p), ".ko"); ok && err == nil {
			paths[strings.ReplaceAll(name, "-", "_")] = p
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look for modules: %w", err)
	}
	var list []string
	for _, name := range moduleNames {
		switch p := paths[name]; {
		case p != "":
			list = append(list, p)
		case !strings.Contains(strings.ReplaceAll(string(builtin), "-", "_"), "/"+name+".ko"):
			return nil, unavailable(kernelFix, "the kernel at %s has no %s", dir, name)
		}
	}
	return list, nil
}

func (d *Driver) findKVM() error {
	if d.cfg.Emulated {
		return nil
	}
	f, err := os.OpenFile(kvmPath, os.O_RDWR, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return unavailable(kvmFix, "this machine has no /dev/kvm")
	case err != nil:
		return unavailable(kvmFix, "/dev/kvm cannot be opened: %v", err)
	}
	defer f.Close()
	cpus, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return fmt.Errorf("look for hardware virtualisation: %w", err)
	}
	if !virtualises(string(cpus)) {
		// Some hosts offer a KVM that runs nothing but kernels made for it.
		return unavailable(kvmFix, "there is a /dev/kvm, but no hardware virtualisation behind it (neither vmx nor svm)")
	}
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("look at /dev/kvm: %w", err)
	}
	if os.Getuid() != 0 && info.Mode().Perm()&0o006 != 0o006 {
		return unavailable("run Glovebox as root, or chmod 666 /dev/kvm (a udev rule keeps it so)",
			"QEMU runs under an id of its own, which may not open /dev/kvm")
	}
	return nil
}

// virtualises tells whether /proc/cpuinfo names the CPU's own support of virtual machines.
func virtualises(cpus string) bool {
	for line := range strings.Lines(cpus) {
		name, value, _ := strings.Cut(line, ":")
		if flags := strings.Fields(value); strings.TrimSpace(name) == "flags" {
			return slices.Contains(flags, "vmx") || slices.Contains(flags, "svm")
		}
	}
	return false
}

const kvmPath = "/dev/kvm"

// devices are what QEMU needs of the host's. Root makes a node that QEMU's own id may open, in a folder that nobody else may
// enter.
func (d *Driver) devices() ([]driver.Mount, error) {
	if d.cfg.Emulated {
		return nil, nil
	}
	node := kvmPath
	if os.Getuid() == 0 {
		dir := filepath.Join(d.cfg.ScratchDir, "devices")
		if err := ownFolder(dir); err != nil {
			return nil, err
		}
		node = filepath.Join(dir, "kvm")
		var st unix.Stat_t
		if err := unix.Stat(kvmPath, &st); err != nil {
			return nil, fmt.Errorf("look at /dev/kvm: %w", err)
		}
		if err := unix.Mknod(node, unix.S_IFCHR, int(st.Rdev)); err != nil && !errors.Is(err, unix.EEXIST) {
			return nil, fmt.Errorf("make a node for KVM: %w", err)
		}
		if err := os.Chmod(node, 0o666); err != nil {
			return nil, fmt.Errorf("make a node for KVM: %w", err)
		}
	}
	return []driver.Mount{{Source: node, Target: kvmPath}}, nil
}

// fileID tells a file's content from another's without reading it.
type fileID struct {
	dev, ino    uint64
	size        int64
	mtime, when syscall.Timespec // when: of the last change of any kind
}

func identify(path string) (fileID, error) {
	info, err := os.Stat(path)
	if err != nil {
		return fileID{}, err
	}
	return idOf(info)
}

func idOf(info fs.FileInfo) (fileID, error) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fileID{}, errors.New("the file system does not say which file it is")
	}
	return fileID{st.Dev, st.Ino, st.Size, st.Mtim, st.Ctim}, nil
}
