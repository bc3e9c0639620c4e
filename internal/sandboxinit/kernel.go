package sandboxinit

import (
	"errors"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"glovebox/internal/sandboxinit/wire"
)

// buildAround makes the program's root that of an image and builds the root of the kernel around it.
func (s *sandbox) buildAround(files []*os.File, beside []attached) error {
	if err := s.makeData(files); err != nil {
		return err
	}
	for _, at := range []string{"/proc", "/dev", "/sys"} { // where the kernel puts its own
		if err := s.folder(at); err != nil {
			return step("make "+at, err)
		}
	}
	image := s.root
	if err := setAttr(image, unix.MOUNT_ATTR_RDONLY, 0); err != nil {
		return step("seal image", err)
	}
	var err error
	if s.root, err = newFS("tmpfs", harmless, "size=64m", "nr_inodes=4096", "mode=0755"); err != nil {
		return step("make root", err)
	}
	if err := scaffold(s.root, "/usr"); err != nil {
		return step("attach root", err)
	}
	if err := s.attach(image, wire.ImageDir); err != nil {
		return step("attach image", err)
	}
	for _, m := range beside {
		if err := s.place(m); err != nil {
			return step("place "+m.target, err)
		}
	}
	for _, dir := range []string{"/run", "/tmp", "/sys"} {
		if err := s.folder(dir); err != nil {
			return step("make "+dir, err)
		}
	}
	if err := s.file(wire.File{Path: wire.ConfigPath, Data: s.setup.Config}); err != nil {
		return step("make "+wire.ConfigPath, err)
	}
	s.proc, err = newFS("proc", harmless|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return step("mount proc", err)
	}
	return step("attach proc", s.attach(s.proc, "/proc"))
}

// look tells what the kernel says of the processes that there are. One that ends meanwhile is left out.
func (s *sandbox) look() error {
	names, err := s.readFolder(".")
	if err != nil {
		return s.fail(step("look at processes", err))
	}
	var l wire.Looked
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == os.Getpid() {
			continue
		}
		p := wire.Process{Status: s.readProc(name + "/status"), Namespaces: s.namespaces(pid)}
		if p.Status != "" {
			l.Processes = append(l.Processes, p)
		}
	}
	return s.conn.Send(wire.Message{Looked: &l})
}

// takeStreams divides the far ends of the streams from what comes before them.
func takeStreams(e *wire.Exec, files []*os.File) (streams, rest []*os.File, err error) {
	if e.Streams < 0 || e.Streams > len(files) {
		return nil, nil, errors.New("descriptors missing")
	}
	n := len(files) - e.Streams
	return files[n:], files[:n], nil
}
