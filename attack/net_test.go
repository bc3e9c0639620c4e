package attack_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// addresses are all addresses by which the host can be reached from itself.
func addresses(t *testing.T) []string {
	t.Helper()
	all := []string{"127.0.0.1", "127.0.0.53", "127.255.255.254", "::1", "0.0.0.0", "::", "::ffff:127.0.0.1"}
	own, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range own {
		if n, ok := a.(*net.IPNet); ok && !n.IP.IsLoopback() && !n.IP.IsLinkLocalUnicast() {
			all = append(all, n.IP.String())
		}
	}
	return all
}

func TestNT01Out(t *testing.T) {
	l := need(t)
	contained(t, attack(t, trial{program: "nt01_out.py", args: append([]string{fmt.Sprint(l.listen.TCP)},
		addresses(t)...)}))
	contained(t, attack(t, trial{program: "nt01_out.py", args: append([]string{fmt.Sprint(l.listen.UDP)},
		addresses(t)...)}))
}

func TestNT02Names(t *testing.T) {
	l := need(t)
	contained(t, attack(t, trial{program: "nt02_names.py",
		args: append([]string{l.listen.Mark, fmt.Sprint(l.listen.UDP)}, addresses(t)...)}))
}

func TestNT03Loopback(t *testing.T) {
	contained(t, attack(t, trial{program: "nt03_scan.py"}))
}

// TestNT07NetworkOfTheRun looks from outside at the network that a program has: a loopback and nothing else, in both versions
// of IP, so that there is no way to any metadata service.
func TestNT07NetworkOfTheRun(t *testing.T) {
	l := need(t)
	looked := 0
	attack(t, trial{program: "sleep.sh", args: []string{"1"}, during: func() {
		settle(10*time.Second, func() bool {
			for _, p := range l.processes(l.uids) {
				dir := filepath.Join("/proc", fmt.Sprint(p.pid), "net")
				devices := strings.Split(strings.TrimSpace(read(filepath.Join(dir, "dev"))), "\n")
				if p.name != "sleep" || len(devices) < 3 {
					continue
				}
				looked++
				if len(devices) != 3 || !strings.HasPrefix(strings.TrimSpace(devices[2]), "lo:") {
					t.Errorf("network devices %q", devices)
				}
				if routes := strings.Split(strings.TrimSpace(read(filepath.Join(dir, "route"))),
					"\n"); len(routes) > 1 {
					t.Errorf("routes %q", routes)
				}
				for _, route := range strings.Split(strings.TrimSpace(read(filepath.Join(dir, "ipv6_route"))), "\n") {
					if route != "" && !strings.HasSuffix(route, " lo") {
						t.Errorf("route %q", route)
					}
				}
				own, _ := os.Readlink(filepath.Join("/proc", fmt.Sprint(p.pid), "ns/net"))
				host, _ := os.Readlink("/proc/self/ns/net")
				if own == host || own == "" {
					t.Errorf("network namespace %q is the host's %q", own, host)
				}
			}
			return looked > 0
		})
	}})
	if looked == 0 {
		t.Error("no process of the run was seen")
	}
}

func TestNT08RawSockets(t *testing.T) {
	contained(t, attack(t, trial{program: "nt08_raw.py"}))
}

func TestNT12UnixSockets(t *testing.T) {
	l := need(t)
	contained(t, attack(t, trial{program: "nt12_unix.py", args: []string{"abstract=" + l.listen.Abstract,
		"abstract-dgram=" + l.listen.Datagram, "path=" + l.listen.Path, "path=/proc/1/root" + l.listen.Path,
		"abstract=" + l.neighbour.name, "path=/tmp/" + l.neighbour.name, "path=/run/docker.sock"}}))
}

func TestNT17Inbound(t *testing.T) {
	l := need(t)
	const port = 28472
	reached := ""
	contained(t, attack(t, trial{program: "nt17_inbound.py", args: []string{fmt.Sprint(port)}, during: func() {
		for end := time.Now().Add(1500 * time.Millisecond); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			for _, a := range addresses(t) {
				if c, err := net.DialTimeout("tcp", net.JoinHostPort(a, fmt.Sprint(port)),
					100*time.Millisecond); err == nil {
					c.Close()
					reached = a
				}
			}
		}
	}}))
	if reached != "" {
		t.Errorf("the program's port was reached at %s", reached)
	}
	_ = l
}

func TestNT18RunToRun(t *testing.T) {
	l := need(t)
	contained(t, attack(t, trial{program: "nt18_neighbour.py", args: []string{fmt.Sprint(l.neighbour.port),
		l.neighbour.name}}))
}

// A grant of nothing, in whatever spelling, opens nothing; what is not there yet is refused by name.
func TestNT26EmptyMeansClosed(t *testing.T) {
	need(t)
	for name, flags := range map[string][]string{
		"everything": {"--allow", "*"}, "a suffix": {"--allow", "*.com"}, "blank": {"--allow", " "}, "nothing": {"--allow", ""},
		"an address": {"--allow", "127.0.0.1"}, "this machine": {"--allow", "localhost"}, "metadata": {"--allow", "metadata.google.internal"},
	} {
		t.Run(name, func(t *testing.T) {
			o := attack(t, trial{program: "ct_hello.py", flags: flags})
			if o.Error == nil || o.exit == 0 {
				t.Errorf("accepted: status %q", o.Status)
			}
		})
	}
}

// TestRS49Unaccepted fills connections that nobody accepts, which the kernel counts for nobody. What it gets is read from the
// kernel's own count of what lies in TCP sockets, of the whole machine.
func TestRS49Unaccepted(t *testing.T) {
	const most, noise = 32 << 20, 16 << 20
	before, stop := tcpMemory(t), make(chan struct{})
	peak := make(chan int64)
	go func() {
		var high int64
		for {
			high = max(high, tcpMemory(t))
			select {
			case <-stop:
				peak <- high
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
	o := attack(t, trial{program: "rs49_unaccepted.py", args: []string{"4", "24000", "1"}, tell: true, within: time.Minute,
		flags: []string{"--memory", "96MiB", "--disk", "16MiB", "--wall", "50s"}}) // in memory, which a user can have too
	close(stop)
	if got := <-peak - before; got > most+noise {
		t.Errorf("%d MiB lie in TCP sockets that no run pays for", got>>20)
	} else {
		t.Logf("%d MiB lie in TCP sockets", got>>20)
	}
	if o.Status != "exited" || !strings.Contains(o.Stdout, "held") {
		t.Errorf("status %s, stdout %q, stderr %q", o.Status, o.Stdout, o.Stderr)
	}
	if !settle(10*time.Second, func() bool { return tcpMemory(t)-before < noise }) {
		t.Errorf("%d bytes lay in TCP sockets before and %d do now", before, tcpMemory(t))
	}
}

// tcpMemory is what lies in all TCP sockets of the machine.
func tcpMemory(t *testing.T) int64 {
	for line := range strings.Lines(read("/proc/net/sockstat")) {
		if f := strings.Fields(line); f[0] == "TCP:" {
			pages, err := strconv.ParseInt(f[len(f)-1], 10, 64)
			if err != nil {
				t.Error(err)
			}
			return pages * int64(os.Getpagesize())
		}
	}
	t.Error("the kernel does not say what lies in TCP sockets")
	return 0
}
