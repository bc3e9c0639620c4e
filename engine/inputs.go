package engine

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"glovebox"
	"glovebox/policy"
)

// Bounds of the inputs of one run, all together.
const (
	maxInputBytes = 8 * glovebox.GiB
	maxInputFiles = 100_000 // files and folders
	maxInputDepth = 64
)

// inputWait bounds the wait for bytes of a file that may have some later. Files of the kernel can look regular and do that.
const inputWait = 2 * time.Second

// intake copies the inputs of one run into a folder. What it copies it has opened once, looked at through that descriptor,
// and hashed as it was written: the program sees the bytes of the record and no later ones.
type intake struct {
	policy  *policy.Policy
	who     glovebox.Principal
	dir     *os.Root
	buffer  []byte
	reflink bool // until the file system says that it cannot

	bytes   int64
	entries int
	records []glovebox.InputRecord
	folders []string // made, parents first
}

// takeInputs copies the inputs into dir, which is made where it is not there yet; else it is empty and nobody else's. Errors
// are *glovebox.Error and name the input, or ctx's.
func takeInputs(ctx context.Context, p *policy.Policy, who glovebox.Principal, inputs []glovebox.Input, dir string) (
	[]glovebox.InputRecord, error) {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, glovebox.Internal("make the folder of inputs", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, glovebox.Internal("open the folder of inputs", err)
	}
	defer root.Close()
	in := &intake{policy: p, who: who, dir: root, buffer: make([]byte, 256<<10), reflink: true, folders: []string{"."}}
	if err := whileLasts(ctx, inputWait, func() error { return in.takeAll(ctx, inputs) }); err != nil {
		return nil, err
	}
	for _, f := range slices.Backward(in.folders) {
		if err := root.Chmod(f, 0o555); err != nil {
			return nil, glovebox.Internal("close the folder of inputs", err)
		}
	}
	return in.records, nil
}

// whileLasts does what do does while ctx lasts. No call of the system on somebody's file is sure to return, so that once ctx
// is over do, which then ends at its next step, is waited for only for the time grace.
func whileLasts(ctx context.Context, grace time.Duration, do func() error) error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	stuck := time.NewTimer(grace)
	defer stuck.Stop()
	select {
	case <-done:
	case <-stuck.C:
	}
	return ctx.Err()
}

// takeAll copies the inputs.
func (in *intake) takeAll(ctx context.Context, inputs []glovebox.Input) error {
	for i := range inputs {
		if err := in.take(ctx, &inputs[i]); err != nil {
			return err
		}
	}
	return nil
}

func (in *intake) take(ctx context.Context, i *glovebox.Input) error {
	if err := in.parents(path.Dir(i.Name)); err != nil {
		return err
	}
	if i.Path == "" {
		var r io.Reader = strings.NewReader(i.Content)
		if i.ContentBase64 != "" {
			r = base64.NewDecoder(base64.StdEncoding, strings.NewReader(i.ContentBase64))
		}
		return in.file(ctx, i.Name, r, nil)
	}
	place, err := in.policy.Place(in.who, *i)
	if err != nil {
		return err
	}
	handle, err := openPlace(place)
	if err != nil {
		return unreadable(i.Name, err)
	}
	return in.entry(ctx, i.Name, handle, 0)
}

// openPlace opens what a request named without any effect on it: the descriptor is good for looking only.
func openPlace(p policy.Place) (int, error) {
	if p.Root == "" {
		return retry(func() (int, error) { return unix.Open(p.Path, unix.O_PATH|unix.O_CLOEXEC, 0) })
	}
	root, err := unix.Open(p.Root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(root)
	return retry(func() (int, error) {
		return unix.Openat2(root, p.Path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS})
	})
}

// retry repeats an opening that a signal or, beneath a root, a rename elsewhere disturbed.
func retry(open func() (int, error)) (fd int, err error) {
	for range 100 {
		if fd, err = open(); err != unix.EINTR && err != unix.EAGAIN {
			break
		}
	}
	return fd, err
}

// entry copies the file or folder that handle is of, and closes handle.
func (in *intake) entry(ctx context.Context, name string, handle, depth int) error {
	defer unix.Close(handle)
	if err := ctx.Err(); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(handle, &st); err != nil {
		return unreadable(name, err)
	}
	kind := st.Mode & unix.S_IFMT
	switch kind {
	case unix.S_IFREG, unix.S_IFDIR:
	case unix.S_IFLNK:
		return glovebox.Errorf(glovebox.CodeInvalid, "pass a copy in which links are files: cp -rL FOLDER COPY",
			"input %q is a symbolic link", name)
	default:
		return glovebox.Errorf(glovebox.CodeInvalid, "pass regular files and folders; put what it yields in a file first",
			"input %q is neither a file nor a folder", name)
	}
	if err := refuseKernelFile(name, handle); err != nil {
		return err
	}
	// The same object is opened again, through the descriptor that was looked at: no name is resolved a second time.
	fd, err := retry(func() (int, error) {
		return unix.Open(fmt.Sprintf("/proc/self/fd/%d", handle), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return unreadable(name, err)
	}
	if kind == unix.S_IFDIR {
		return in.folder(ctx, name, os.NewFile(uintptr(fd), name), depth)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	return in.file(ctx, name, f, f)
}

// kernelFiles are the file systems that the kernel makes up. A file of theirs looks regular and is none: reading it can wait
// for ever, or do something.
var kernelFiles = []int64{
	unix.AAFS_MAGIC, unix.ANON_INODE_FS_MAGIC, unix.BDEVFS_MAGIC, unix.BINDERFS_SUPER_MAGIC, unix.BINFMTFS_MAGIC,
	unix.BPF_FS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC, unix.DEBUGFS_MAGIC, unix.DEVMEM_MAGIC,
	unix.DEVPTS_SUPER_MAGIC, unix.DMA_BUF_MAGIC, unix.EFIVARFS_MAGIC, unix.FUTEXFS_SUPER_MAGIC, unix.NSFS_MAGIC,
	unix.OPENPROM_SUPER_MAGIC, unix.PID_FS_MAGIC, unix.PIPEFS_MAGIC, unix.PROC_SUPER_MAGIC, unix.PSTOREFS_MAGIC,
	unix.RDTGROUP_SUPER_MAGIC, unix.SECURITYFS_MAGIC, unix.SELINUX_MAGIC, unix.SMACK_MAGIC, unix.SOCKFS_MAGIC,
	unix.SYSFS_MAGIC, unix.TRACEFS_MAGIC, unix.USBDEVICE_SUPER_MAGIC, unix.XENFS_SUPER_MAGIC,
	0x19800202, // mqueue
	0x62656570, // configfs
	0x65735543, // fusectl
	0x67596969, // rpc_pipefs
	0x6e667364, // nfsd
}

// refuseKernelFile refuses what is of a file system that the kernel makes up.
func refuseKernelFile(name string, handle int) error {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(handle, &fs); err != nil {
		return unreadable(name, err)
	}
	if !slices.Contains(kernelFiles, int64(uint32(fs.Type))) {
		return nil
	}
	return glovebox.Errorf(glovebox.CodeInvalid, "put what it says in a file first, such as: cat FILE > COPY, and pass COPY",
		"input %q is made up by the kernel (it is of /proc, /sys or the like) and is no file to copy", name)
}

// folder copies what is in f and closes f.
func (in *intake) folder(ctx context.Context, name string, f *os.File, depth int) error {
	defer f.Close()
	if depth >= maxInputDepth {
		return glovebox.Errorf(glovebox.CodeInvalid, "pass a flatter folder", "input %q is more than %d folders deep", name,
			maxInputDepth)
	}
	if err := in.makeFolder(name); err != nil {
		return err
	}
	names, err := f.Readdirnames(maxInputFiles + 1)
	if err != nil && err != io.EOF {
		return unreadable(name, err)
	}
	slices.Sort(names)
	for _, n := range names {
		inner := path.Join(name, n)
		handle, err := retry(func() (int, error) {
			return unix.Openat(int(f.Fd()), n, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		})
		if err != nil {
			return unreadable(inner, err)
		}
		if err := in.entry(ctx, inner, handle, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// file copies r; source is r where it is a file of the host.
func (in *intake) file(ctx context.Context, name string, r io.Reader, source *os.File) error {
	if err := in.count(name); err != nil {
		return err
	}
	to, err := in.dir.OpenFile(filepath.FromSlash(name), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return keeping(name, err)
	}
	defer to.Close()
	write := io.Writer(to)
	if source != nil && in.clone(to, source) {
		// The copy shares its blocks with the source; it is the copy that is read and hashed.
		r, write = to, io.Discard
	}
	sum, n := sha256.New(), int64(0)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		if source != nil {
			_ = source.SetReadDeadline(time.Now().Add(inputWait)) // an error for files that never wait
		}
		got, err := r.Read(in.buffer)
		if n += int64(got); in.bytes+n > int64(maxInputBytes) {
			return glovebox.Errorf(glovebox.CodeInvalid, "pass less", "the inputs have more than %v in all", maxInputBytes)
		}
		sum.Write(in.buffer[:got])
		if _, err := write.Write(in.buffer[:got]); err != nil {
			return keeping(name, err)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return unreadable(name, err)
		}
	}
	in.bytes += n
	in.records = append(in.records, glovebox.InputRecord{Name: name, Bytes: n, SHA256: hex.EncodeToString(sum.Sum(nil))})
	return keeping(name, to.Chmod(0o444))
}

func (in *intake) clone(to, from *os.File) bool {
	if in.reflink {
		in.reflink = unix.IoctlFileClone(int(to.Fd()), int(from.Fd())) == nil
	}
	return in.reflink
}

func (in *intake) count(name string) error {
	if in.entries++; in.entries > maxInputFiles {
		return glovebox.Errorf(glovebox.CodeInvalid, "pack them into an archive and pass that",
			"the inputs have more than %d files, %q being one", maxInputFiles, name)
	}
	return nil
}

// parents makes the folders that lead to an input.
func (in *intake) parents(dir string) error {
	if dir == "." || slices.Contains(in.folders, dir) {
		return nil
	}
	if err := in.parents(path.Dir(dir)); err != nil {
		return err
	}
	return in.makeFolder(dir)
}

func (in *intake) makeFolder(name string) error {
	if err := in.count(name); err != nil {
		return err
	}
	if err := in.dir.Mkdir(filepath.FromSlash(name), 0o755); err != nil {
		return keeping(name, err)
	}
	in.folders = append(in.folders, name)
	return nil
}

// unreadable is the error for an input that could not be read. It tells the kind of failure and not where on the host.
func unreadable(name string, err error) error {
	why := "it cannot be read"
	var errno syscall.Errno
	switch {
	case errors.Is(err, unix.EXDEV):
		return &glovebox.Error{Code: glovebox.CodeDenied, Op: "open input", Err: err,
			Public: fmt.Sprintf("input %q leads out of its input root", name),
			Fix:    "name a file beneath the root, not a link out of it"}
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		return &glovebox.Error{Code: glovebox.CodeExhausted, Op: "open input", Err: err,
			Public: fmt.Sprintf("input %q could not be opened: no more files may be open at a time", name),
			Fix:    "run less at a time, or raise the limit where glovebox is started (ulimit -n)"}
	case errors.Is(err, os.ErrDeadlineExceeded):
		why = "it holds nothing yet and does not end"
	case errors.Is(err, fs.ErrNotExist):
		why = "there is no such file"
	case errors.As(err, &errno):
		why = "it cannot be read: " + errno.Error()
	}
	return &glovebox.Error{Code: glovebox.CodeInvalid, Op: "open input", Public: fmt.Sprintf("input %q: %s", name, why),
		Fix: "check that the file is there and readable, and that it does not change while it is read", Err: err}
}

// keeping is the error for an input that could not be written into the data_dir; nil for nil.
func keeping(name string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT):
		return &glovebox.Error{Code: glovebox.CodeUnavailable, Op: "keep input", Err: err,
			Public: fmt.Sprintf("the disk of the data_dir has no room for input %q", name), Fix: "free space for the data_dir"}
	case errors.Is(err, unix.ENAMETOOLONG):
		return &glovebox.Error{Code: glovebox.CodeInvalid, Op: "keep input", Err: err,
			Public: fmt.Sprintf("the path of input %.80q… is too long", name), Fix: "pass a flatter folder"}
	}
	return glovebox.Internal("keep input", err)
}
