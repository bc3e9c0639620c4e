package hostside

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"glovebox/internal/sandboxinit/wire"
)

// TunDevice is where the machine has its device for networks.
const TunDevice = "/dev/net/tun"

// NetworkDevice opens the device of a network for the sandbox of init. The kernel makes the interfaces of a device in the
// network namespace of whoever opens it: where all may open it, init does, by the name that the descriptor is (reopen); else
// root does, who joins init's namespace for that moment. The caller closes it.
func NetworkDevice(path string, init *Init) (f *os.File, reopen bool, err error) {
	all, refusal := deviceOf(path)
	if refusal != nil {
		return nil, false, refusal.Because("attach network", nil)
	}
	if !all {
		f, err = init.openInside(path)
	} else {
		f, err = openFile(path, unix.O_PATH)
	}
	if err != nil {
		r := Refusal{"the device of networks, " + path + ", cannot be opened", "modprobe tun; chmod 0666 " + path +
			" (in a container: docker run --device /dev/net/tun)"}
		return nil, false, r.Because("attach network", err)
	}
	return f, all, nil
}

// NetworkRefusal says why sandboxes cannot have a network on this machine, nil where they can as far as a look tells.
func NetworkRefusal(path string) *Refusal {
	all, refusal := deviceOf(path)
	if refusal != nil {
		return refusal
	}
	flags := unix.O_RDWR
	if !all {
		flags = unix.O_RDWR | unix.O_NONBLOCK
	}
	f, err := openFile(path, flags)
	if err != nil {
		return &Refusal{"the device of networks, " + path + ", cannot be opened: " + err.Error(),
			"modprobe tun, and see that it is loaded at each start (/etc/modules-load.d); in a container: docker run --device " +
				path}
	}
	f.Close()
	return nil
}

// deviceOf tells whether all may open the device, or why nobody can here.
func deviceOf(path string) (all bool, refusal *Refusal) {
	var st unix.Stat_t
	switch err := unix.Stat(path, &st); {
	case err != nil:
		return false, &Refusal{"there is no device of networks, " + path,
			"modprobe tun (a kernel with CONFIG_TUN); in a container: docker run --device /dev/net/tun"}
	case st.Mode&unix.S_IFMT != unix.S_IFCHR:
		return false, &Refusal{path + " is not a device", "remove it, then modprobe tun"}
	case st.Mode&0o006 == 0o006:
		return true, nil
	case os.Getuid() != 0:
		return false, &Refusal{"the device of networks, " + path + ", is root's alone (its usual mode is 0666)",
			"sudo chmod 0666 " + path + `; to last: echo 'KERNEL=="tun", MODE="0666"' | sudo tee /etc/udev/rules.d/60-tun.rules`}
	}
	return false, nil
}

// openInside opens a device of the host as this process, in init's network namespace. A thread joins that for the moment of
// the call and goes back; it keeps its user, its mounts and all else, and no other thread notices.
func (p *Init) openInside(path string) (*os.File, error) {
	type opened struct {
		f   *os.File
		err error
	}
	done := make(chan opened, 1)
	go func() {
		runtime.LockOSThread()
		f, back, err := p.joinAndOpen(path)
		if back == nil {
			runtime.UnlockOSThread()
		} // else the thread ends with this goroutine
		done <- opened{f, err}
	}()
	o := <-done
	return o.f, o.err
}

// joinAndOpen leaves its thread in another network namespace if back is an error.
func (p *Init) joinAndOpen(path string) (f *os.File, back, err error) {
	home, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open own network namespace: %w", err)
	}
	defer unix.Close(home)
	fd := wire.FD(p.pidfd)
	if fd < 0 {
		return nil, nil, errors.New("init has ended")
	}
	if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
		return nil, nil, fmt.Errorf("join the sandbox's network namespace: %w", err)
	}
	f, err = openFile(path, unix.O_RDWR|unix.O_NONBLOCK)
	return f, unix.Setns(home, unix.CLONE_NEWNET), err
}

func openFile(path string, flags int) (*os.File, error) {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("open", err)
	}
	return os.NewFile(uintptr(fd), path), nil
}
