package netd

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"glovebox/internal/netwire"
)

// The tests of this package run in a network namespace of their own, with interfaces of their own: the test binary starts
// itself there. Its environment says where it is.
const (
	insideVar = "GLOVEBOX_NETD_INSIDE" // "yes", or why there is no namespace
	roleVar   = "GLOVEBOX_NETD_ROLE"   // what else than tests this process is
	tunVar    = "GLOVEBOX_NETD_TUN"    // where the device is, if it is elsewhere
)

func TestMain(m *testing.M) {
	switch {
	case strings.HasPrefix(os.Getenv(roleVar), roleFenced):
		os.Exit(beFenced(strings.TrimPrefix(os.Getenv(roleVar), roleFenced)))
	case os.Getenv(insideVar) != "":
		os.Exit(m.Run())
	}
	code, err := inNamespace(0, os.Args[1:]...)
	if code < 0 {
		os.Setenv(insideVar, err.Error())
		code = m.Run()
	}
	os.Exit(code)
}

// inNamespace runs this test binary in a fresh network namespace, as another user if uid is not 0, and returns how it exited; -1
// is that it could not be started.
func inNamespace(uid uint32, args ...string) (int, error) {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), insideVar+"=yes")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if id := cmp.Or(int(uid), os.Getuid()); id != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: id, Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: cmp.Or(int(uid), os.Getgid()), Size: 1}}
		cmd.SysProcAttr.Credential = &syscall.Credential{NoSetGroups: true} // which is that user outside
	}
	err := cmd.Run()
	if exited, ok := errors.AsType[*exec.ExitError](err); ok {
		return exited.ExitCode(), nil
	}
	if err != nil {
		return -1, err
	}
	return 0, nil
}

// openTun opens the device of interfaces. An interface is made in the namespace of who opened it.
func openTun() (*os.File, error) {
	device := cmp.Or(os.Getenv(tunVar), "/dev/net/tun")
	return os.OpenFile(device, os.O_RDWR|unix.O_CLOEXEC, 0)
}

// needNamespace skips a test where there is no namespace to be had; as root there is one.
func needNamespace(t testing.TB) {
	t.Helper()
	why := os.Getenv(insideVar)
	if why == "yes" {
		tun, err := openTun()
		if err == nil {
			tun.Close()
			return
		}
		why = err.Error()
	}
	if os.Getenv("GLOVEBOX_TEST_ROOT") == "1" {
		t.Fatalf("no interface in a network namespace: %s", why)
	}
	t.Skipf("no interface in a network namespace: %s", why)
}

// newLinkFile makes an interface as a driver does, and returns its descriptor. The interface goes when that is closed.
func newLinkFile(t testing.TB, tap bool, mtu int) *os.File {
	t.Helper()
	needNamespace(t)
	f, err := makeLink(tap, mtu)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func makeLink(tap bool, mtu int) (*os.File, error) {
	tun, err := openTun()
	if err != nil {
		return nil, err
	}
	fd := int(tun.Fd())
	const name = "glove0"
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return nil, err
	}
	kind := uint16(unix.IFF_TUN)
	if tap {
		kind = unix.IFF_TAP
	}
	ifr.SetUint16(kind | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
		return nil, fmt.Errorf("make an interface: %w", err)
	}
	const offloads = unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO6
	if err := unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, offloads); err != nil {
		return nil, fmt.Errorf("set offloads: %w", err)
	}
	if err := configureLink(name, mtu); err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, err
	}
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 10)
	tun.Close()
	return os.NewFile(uintptr(dup), "link"), err
}

func configureLink(name string, mtu int) error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	set := func(request uint, fill func(*unix.Ifreq) error) {
		ifr, failed := unix.NewIfreq(name)
		if failed == nil {
			failed = fill(ifr)
		}
		if failed == nil {
			failed = unix.IoctlIfreq(s, request, ifr)
		}
		if failed != nil {
			err = errors.Join(err, fmt.Errorf("request %#x: %w", request, failed))
		}
	}
	address := func(a netip.Addr) func(*unix.Ifreq) error {
		return func(ifr *unix.Ifreq) error { four := a.As4(); return ifr.SetInet4Addr(four[:]) }
	}
	inside := netwire.Inside()
	set(unix.SIOCSIFMTU, func(ifr *unix.Ifreq) error { ifr.SetUint32(uint32(mtu)); return nil })
	set(unix.SIOCSIFADDR, address(inside.Addr()))
	set(unix.SIOCSIFNETMASK, address(netip.MustParseAddr("255.255.255.252")))
	set(unix.SIOCSIFFLAGS, func(ifr *unix.Ifreq) error { ifr.SetUint16(unix.IFF_UP); return nil })
	// As drivers set them.
	buffers := os.WriteFile("/proc/sys/net/ipv4/tcp_rmem", []byte("4096\t131072\t262144"), 0o644)
	name = "lo"
	set(unix.SIOCSIFFLAGS, func(ifr *unix.Ifreq) error { ifr.SetUint16(unix.IFF_UP); return nil })
	if err = errors.Join(err, buffers); err != nil {
		return err
	}
	return defaultRoute(netwire.Outside())
}

// defaultRoute adds a route by a netlink message.
func defaultRoute(gateway netip.Addr) error {
	s, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	m := make([]byte, unix.SizeofNlMsghdr+unix.SizeofRtMsg+8)
	n := binary.NativeEndian
	n.PutUint32(m, uint32(len(m)))
	n.PutUint16(m[4:], unix.RTM_NEWROUTE)
	n.PutUint16(m[6:], unix.NLM_F_REQUEST|unix.NLM_F_ACK|unix.NLM_F_CREATE|unix.NLM_F_REPLACE)
	copy(m[unix.SizeofNlMsghdr:], []byte{unix.AF_INET, 0, 0, 0, unix.RT_TABLE_MAIN, unix.RTPROT_STATIC, unix.RT_SCOPE_UNIVERSE, unix.RTN_UNICAST})
	a := m[unix.SizeofNlMsghdr+unix.SizeofRtMsg:]
	n.PutUint16(a, 8)
	n.PutUint16(a[2:], unix.RTA_GATEWAY)
	four := gateway.As4()
	copy(a[4:], four[:])
	if err := unix.Sendto(s, m, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	b := make([]byte, 4096)
	k, _, err := unix.Recvfrom(s, b, 0)
	if err != nil {
		return err
	}
	if k < unix.SizeofNlMsghdr+4 || n.Uint16(b[4:]) != unix.NLMSG_ERROR {
		return errors.New("add a route: no answer")
	}
	if code := int32(n.Uint32(b[unix.SizeofNlMsghdr:])); code != 0 {
		return fmt.Errorf("add a route: %w", unix.Errno(-code))
	}
	return nil
}
