package drivertest

import (
	"crypto/rand"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// hostCases plant things on the host, and in a neighbour, that no program may find.
var hostCases = map[string]func(*bench){
	"files that were planted on the host are not found":        caseCanaries,
	"variables, descriptors and memory of the host stay there": caseInherited,
	"nothing of the host is reached, nor anything beyond":      caseReach,
	"a program reaches itself":                                 caseLoop,
	"processes of a program share memory by its name":          caseWake,
	"sandboxes at the same time do not see each other":         casePair,
	"inputs, code and image cannot be changed in any way":      caseChange,
}

// plant makes files of a random name in folders of the host that anybody may read.
func (b *bench) plant() (name, secret string, paths []string) {
	b.Helper()
	name, secret = "canary-"+rand.Text(), "secret-"+rand.Text()
	home, _ := os.UserHomeDir()
	for _, dir := range []string{b.TempDir(), os.TempDir(), "/var/tmp", "/dev/shm", "/run", home} {
		path := filepath.Join(dir, name)
		if os.WriteFile(path, []byte(secret), 0o644) != nil {
			continue // not ours to write in
		}
		b.Cleanup(func() { os.Remove(path) })
		paths = append(paths, path)
	}
	if len(paths) < 3 {
		b.Fatalf("planted in %q alone", paths)
	}
	return name, secret, paths
}

func caseCanaries(b *bench) {
	name, secret, paths := b.plant()
	tries := []string{"read"}
	for _, path := range paths {
		for _, from := range []string{"", "../../../../..", "/proc/self/root", "/proc/1/root", "/proc/self/cwd/../..",
			"/inputs/../..", "/proc/1/cwd/../../.."} {
			tries = append(tries, from+path)
		}
	}
	b.mustNot(b.said(tries...), len(tries)-1)
	lines := b.said("find", name, "/")
	if text := strings.Join(lines, "\n"); text != "" || strings.Contains(text, secret) {
		b.Errorf("found: %s", text)
	}
	for _, line := range b.said("read", "/proc/self/mountinfo") {
		if strings.Contains(line, b.mark) || strings.Contains(line, strings.Trim(filepath.Base(paths[0]), "/")) {
			b.Errorf("the table of mounts names the host's folders: %s", line)
		}
	}
}

func caseInherited(b *bench) {
	secret := "secret-" + rand.Text()
	b.Setenv("GLOVEBOX_SUITE_SECRET", secret)
	path := filepath.Join(b.TempDir(), "open")
	if err := os.WriteFile(path, []byte(secret), 0o644); err != nil {
		b.Fatal(err)
	}
	// One that a child would inherit.
	fd, err := unix.Open(path, unix.O_RDONLY, 0)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { unix.Close(fd) })
	lines := b.said("read", "/proc/self/environ", "/proc/1/environ", "/proc/2/environ", "/proc/self/cmdline", "/proc/1/cmdline",
		"/proc/self/fd/"+strconv.Itoa(fd), "/proc/1/fd/"+strconv.Itoa(fd), "/proc/cmdline", "/proc/keys")
	if text := strings.Join(lines, "\n"); strings.Contains(text, secret) || len(lines) < 9 {
		b.Errorf("it reads: %s", note(text))
	}
	f := b.facts()
	for n, want := range []string{"0", "1 pipe", "2 pipe"} {
		if len(f["fd"]) != 3 || !strings.HasPrefix(f["fd"][n], want) {
			b.Fatalf("descriptors are %q, want 0 to 2, of which two are pipes", f["fd"])
		}
	}
}

// doors are listeners of the host that count who comes.
type doors struct {
	visits atomic.Int64
	ways   []string
}

func (b *bench) doors() *doors {
	b.Helper()
	d := &doors{}
	word := "suite-" + rand.Text()
	dir, err := os.MkdirTemp("", "doors-") // short: it is the folder of a socket
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		b.Fatal(err)
	}
	places := [][2]string{{"tcp", "127.0.0.1:0"}, {"tcp", "[::1]:0"}, {"unix", filepath.Join(dir, "door")},
		{"unix", "@" + word}}
	addresses, _ := net.InterfaceAddrs()
	for _, a := range addresses {
		if ip, ok := a.(*net.IPNet); ok && !ip.IP.IsLoopback() && ip.IP.IsGlobalUnicast() {
			places = append(places, [2]string{"tcp", net.JoinHostPort(ip.IP.String(), "0")})
		}
	}
	for _, p := range places {
		l, err := net.Listen(p[0], p[1])
		if err != nil && p[0] == "tcp" && len(d.ways) > 0 {
			continue // no such address here
		}
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { l.Close() })
		d.ways = append(d.ways, p[0]+":"+l.Addr().String())
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				d.visits.Add(1)
				c.Close()
			}
		}()
	}
	packets, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { packets.Close() })
	d.ways = append(d.ways, "udp:"+packets.LocalAddr().String())
	go func() {
		buf := make([]byte, 100)
		for {
			if _, _, err := packets.ReadFrom(buf); err != nil {
				return
			}
			d.visits.Add(1)
		}
	}()
	return d
}

func caseReach(b *bench) {
	d := b.doors()
	ways := append([]string{"try", "tcp:198.51.100.1:80", "tcp:169.254.169.254:80", "tcp:[2001:db8::1]:443",
		"udp:198.51.100.53:53", "dns:canary.example", "dns:localhost.invalid", "vsock:host", "packet:", "raw:"}, d.ways...)
	for _, name := range []string{"/run/dbus/system_bus_socket", "/run/systemd/private", "/run/docker.sock", "/dev/log",
		"/var/run/nscd/socket"} {
		ways = append(ways, "unix:"+name)
	}
	const size = 4096
	if id, err := unix.SysvShmGet(unix.IPC_PRIVATE, size, unix.IPC_CREAT|0o666); err == nil {
		b.Cleanup(func() { unix.SysvShmCtl(id, unix.IPC_RMID, nil) })
		ways = append(ways, "shm:"+strconv.Itoa(id))
	}
	name := "suite-" + rand.Text()
	if id, err := unix.AddKey("user", name, []byte("secret"), unix.KEY_SPEC_USER_KEYRING); err == nil {
		b.Cleanup(func() { unix.KeyctlInt(unix.KEYCTL_UNLINK, id, unix.KEY_SPEC_USER_KEYRING, 0, 0) })
		ways = append(ways, "key:"+name)
	}
	b.mustNot(b.said(ways...), len(ways)-1)
	if n := d.visits.Load(); n > 0 {
		b.Errorf("listeners of the host had %d visits", n)
	}
	if got := b.facts().one("interfaces"); got != "lo" {
		b.Errorf("network interfaces are %q, want lo alone", got)
	}
}

func caseLoop(b *bench) {
	for _, line := range b.said("loop") {
		if !strings.HasPrefix(line, "yes ") {
			b.Errorf("within its own sandbox: %s", line)
		}
	}
}

func caseWake(b *bench) {
	if lines := b.said("wake", "/dev/shm/word"); len(lines) != 1 || lines[0] != "yes wake /dev/shm/word" {
		b.Errorf("a child that waits in shared memory: %q", lines)
	}
}

func casePair(b *bench) {
	word := "pair-" + rand.Text()
	one := b.start()
	r, lines := b.talk(one, probe("serve", word))
	at := strings.Fields(b.await(lines, "at "))
	ways := []string{"try", "tcp:" + at[1], "unix:@" + word, "signal:"}
	if at[2] != "-1" {
		ways = append(ways, "shm:"+at[2])
	}
	b.mustNot(b.said(ways...), len(ways)-1)
	b.mustNot(b.said("read", "/workspace/"+word, "/tmp/"+word, "/dev/shm/"+word), 3)
	if found := strings.Join(b.said("find", word, "/"), ""); found != "" {
		b.Errorf("a sandbox has what another made: %s", found)
	}
	r.hangUp()
	for line := range lines {
		b.Errorf("the other sandbox: %s", line)
	}
	b.wantExit(r.running, b.exit(r.running), 0)
	for _, line := range b.said("facts") {
		if strings.Contains(line, word) {
			b.Error("facts of a sandbox name another's")
		}
	}
}

func caseChange(b *bench) {
	b.inputs = b.TempDir()
	if err := os.Chmod(b.inputs, 0o755); err != nil {
		b.Fatal(err)
	}
	before := map[string]string{}
	for _, name := range []string{"a.txt", "folder/b.txt"} {
		path := filepath.Join(b.inputs, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			b.Fatal(err)
		}
		// Modes that let anybody write are not what keeps a program out.
		if err := os.WriteFile(path, []byte(name), 0o666); err != nil {
			b.Fatal(err)
		}
		if err := os.Chmod(path, 0o666); err != nil {
			b.Fatal(err)
		}
		before[path] = state(path)
	}
	cmd := probe("change", "/inputs/a.txt", "/inputs/folder/b.txt", "/inputs/folder", "/code/main.txt", "/bin/sh",
		"/etc/passwd", probePath)
	cmd.Code, cmd.CodeName = []byte("code"), "main.txt"
	r, e, _ := b.run(cmd)
	b.wantExit(r, e, 0)
	b.mustNot(strings.Split(strings.TrimSpace(r.out.String()), "\n"), 7*14)
	for path, was := range before {
		if is := state(path); is != was {
			b.Errorf("an input was %s and is %s", was, is)
		}
	}
}

// state is what a file is, but for when it was read.
func state(path string) string {
	info, err := os.Lstat(path)
	if err != nil {
		return err.Error()
	}
	text, err := os.ReadFile(path)
	return note([]any{info.Mode(), info.ModTime(), string(text), err})
}
