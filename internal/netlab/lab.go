package netlab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The addresses of the laboratory. Machine and Twin are both on the link between the two namespaces; all others are
// behind it.
const (
	Machine  = "10.77.0.1" // where Glovebox runs
	Twin     = "10.77.0.2" // good.test and evil.test, as on a shared front; and the name server
	Bound    = "10.77.0.3"
	Echo     = "10.77.0.4"
	Wild     = "10.77.0.5"
	Git      = "10.77.0.6"
	Index    = "10.77.0.7"
	Bad      = "10.77.0.8" // servers whose TLS is wrong
	Raw      = "10.77.0.9" // what it is told is kept, byte for byte, at port 80
	Public   = "20.77.0.2" // an address that is nobody's private one
	Link     = "10.77.0.0/24"
	Link6    = "fd77::/64"
	Twin6    = "fd77::2"
	Machine6 = "fd77::1"
)

// metadata are addresses at which a leak would find something: they all answer here, so that a leak succeeds and is seen.
var metadata = []string{"169.254.169.254", "168.63.129.16", "fd00:ec2::254"}

// resolvers are addresses of well-known public resolvers, which answer here.
var resolvers = []string{"8.8.8.8", "1.1.1.1"}

// Lab is a laboratory. It is safe for concurrent use; what is seen is of everybody who uses it.
type Lab struct {
	Dir string // of its own, readable by everyone; gone after the test
	CA  string // a PEM file: the authority that vouches for the servers

	machine, internet *place
	authority         *authority
	names             *names
	sink              *sink
	seen              *seen
	away              []func()
	serving           sync.WaitGroup
}

// missing says why there cannot be a laboratory here, or nothing.
func missing() string {
	if os.Geteuid() != 0 {
		return "needs root, to make network namespaces with a link between them"
	}
	for _, tool := range []string{"ip"} {
		if _, err := exec.LookPath(tool); err != nil {
			return tool + " is missing: install iproute2 (make test does)"
		}
	}
	return ""
}

// Start makes a laboratory, which is taken away after the test. Where there cannot be one the test is skipped, or fails
// where GLOVEBOX_TEST_ROOT promises that there can.
func Start(t testing.TB) *Lab {
	t.Helper()
	if why := missing(); why != "" {
		if os.Getenv("GLOVEBOX_TEST_ROOT") == "1" {
			t.Fatalf("promised but missing: %s", why)
		}
		t.Skip(why)
	}
	l, err := open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// open makes a laboratory. On error nothing is left.
func open() (_ *Lab, err error) {
	l := &Lab{seen: &seen{}}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("make the laboratory: %w", err), l.Close())
		}
	}()
	if l.Dir, err = os.MkdirTemp("", "glovebox-netlab-"); err != nil {
		return nil, err
	}
	if err = os.Chmod(l.Dir, 0o755); err != nil {
		return nil, err
	}
	if l.authority, err = newAuthority(); err != nil {
		return nil, err
	}
	l.CA = filepath.Join(l.Dir, "ca.pem")
	if err = os.WriteFile(l.CA, l.authority.pem, 0o644); err != nil {
		return nil, err
	}
	if l.internet, err = newPlace(unix.CLONE_NEWNET, func() error { return nil }); err != nil {
		return nil, err
	}
	if l.machine, err = newPlace(unix.CLONE_NEWNET|unix.CLONE_NEWNS, l.furnish); err != nil {
		return nil, err
	}
	for _, step := range []func() error{l.link, l.watch, l.serveNames, l.serveWeb, l.serveRaw} {
		if err = step(); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// furnish covers, in the machine's own view of files, what would tell of the real one: its resolver. The device of
// tunnels is everybody's there, as udev has it on most systems, whatever it is here.
func (l *Lab) furnish() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	conf := filepath.Join(l.Dir, "resolv.conf")
	if err := os.WriteFile(conf, []byte("nameserver "+Twin+"\noptions timeout:2 attempts:1\n"), 0o644); err != nil {
		return err
	}
	if err := unix.Mount(conf, "/etc/resolv.conf", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("cover /etc/resolv.conf: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Stat("/dev/net/tun", &st); err != nil {
		return nil // then there are no tunnels, which is for the tests to say
	}
	tun := filepath.Join(l.Dir, "tun")
	if err := unix.Mknod(tun, unix.S_IFCHR|0o666, int(st.Rdev)); err != nil {
		return fmt.Errorf("make a device of tunnels: %w", err)
	}
	if err := os.Chmod(tun, 0o666); err != nil {
		return err
	}
	if err := unix.Mount(tun, "/dev/net/tun", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("cover /dev/net/tun: %w", err)
	}
	return nil
}

// link joins the two with a pair of devices. All that is not on the link is beyond it, in both versions of IP.
func (l *Lab) link() error {
	inside := fmt.Sprintf(`link set lo up
link set wan up
addr add %s/24 dev wan
addr add %s/64 dev wan nodad
route add default via %s
route add default via %s
`, Machine, Machine6, Twin, Twin6)
	outside := "link set lo up\nlink set world up\n"
	for _, a := range []string{Twin, Bound, Echo, Wild, Git, Index, Bad, Raw} {
		outside += "addr add " + a + "/24 dev world\n"
	}
	outside += "addr add " + Twin6 + "/64 dev world nodad\naddr add " + Public + "/32 dev lo\n"
	for _, a := range append(metadata, resolvers...) {
		if strings.Contains(a, ":") {
			outside += "addr add " + a + "/128 dev lo nodad\n"
		} else {
			outside += "addr add " + a + "/32 dev lo\n"
		}
	}
	if err := ip(l.internet, "link add world type veth peer name wan\nlink set wan netns "+l.machine.net+"\n"); err != nil {
		return err
	}
	if err := ip(l.internet, outside); err != nil {
		return err
	}
	return ip(l.machine, inside)
}

// ip has commands of ip done in a place.
func ip(p *place, commands string) error {
	return p.do(func() error {
		cmd := exec.Command("ip", "-batch", "-")
		cmd.Stdin = strings.NewReader(commands)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("ip: %w: %s", err, out)
		}
		return nil
	})
}

// Start starts a command on the machine: in its network, with its resolver. It is waited for as ever.
func (l *Lab) Start(cmd *exec.Cmd) error { return l.machine.do(cmd.Start) }

// Run runs a command on the machine.
func (l *Lab) Run(cmd *exec.Cmd) error {
	if err := l.Start(cmd); err != nil {
		return err
	}
	return cmd.Wait()
}

// Command makes a command with a path and a home and nothing else of this process's environment, whose proxies and
// authorities are the real machine's; Start or Run it here.
func (l *Lab) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + l.Dir, "LANG=C.UTF-8"}
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// Listen listens on the machine itself, as a service of the host would: a sandbox must never reach it.
func (l *Lab) Listen(network, address string) (ln net.Listener, err error) {
	err = l.machine.do(func() error {
		ln, err = net.Listen(network, address)
		return err
	})
	return ln, err
}

// Close takes everything away. Only whoever has not called Start with a test needs it.
func (l *Lab) Close() error {
	for i := len(l.away) - 1; i >= 0; i-- {
		l.away[i]()
	}
	l.serving.Wait()
	for _, p := range []*place{l.machine, l.internet} {
		if p != nil {
			p.close()
		}
	}
	if l.Dir == "" {
		return nil
	}
	return os.RemoveAll(l.Dir)
}
