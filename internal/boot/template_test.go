package boot

import (
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestTemplateRefuses: what a copy could not have for itself, or not at all, keeps a template from making any.
func TestTemplateRefuses(t *testing.T) {
	for name, c := range map[string]struct{ first, code, says string }{
		"nothing":        {"pass", hexOfCopy(), "ready\npython "},
		"no code":        {"pass", "b''", "no place for the code of copies"},
		"shared memory":  {"import mmap; held['m'] = mmap.mmap(-1, 4096)", hexOfCopy(), "memory that it shares"},
		"private memory": {"import mmap; held['m'] = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE)", hexOfCopy(), "ready\npython "},
		"a thread": {"import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()", hexOfCopy(),
			"with 2 threads"},
	} {
		t.Run(name, func(t *testing.T) {
			near, said, cmd := startTemplate(t, c.first+"\ntemplate(3, [], "+c.code+")\n")
			b := make([]byte, 4096)
			n, _ := near.Read(b)
			near.Close() // which ends it
			if err := cmd.Wait(); (err != nil) != (n == 0) {
				t.Errorf("it ended with %v after %q", err, b[:n])
			}
			if got := string(b[:n]) + said.String(); !strings.Contains(got, c.says) {
				t.Errorf("it said %q, want %q", got, c.says)
			}
		})
	}
}

// startTemplate starts a template with its channel at near.
func startTemplate(t *testing.T, last string) (near *os.File, said *strings.Builder, cmd *exec.Cmd) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	near, far := os.NewFile(uintptr(fds[0]), "near"), os.NewFile(uintptr(fds[1]), "far")
	defer far.Close()
	t.Cleanup(func() { near.Close() })
	cmd = exec.Command("/usr/bin/python3", "-I", "-c", python(runPython, holdPython, templatePython, last), "/code/main.py")
	said = new(strings.Builder)
	cmd.ExtraFiles, cmd.Stderr = []*os.File{far}, said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return near, said, cmd
}

// hexOfCopy is the machine code as Python reads it.
func hexOfCopy() string { return fmt.Sprintf("bytes.fromhex(%q)", hex.EncodeToString(copyCode())) }

// TestCopyFails: what process 1 cannot do is told with its step and its error, nothing is left of it, and the template goes
// on.
func TestCopyFails(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	near, said, cmd := startTemplate(t, "template(3, [], "+hexOfCopy()+")\n")
	answer := func() string {
		b := make([]byte, 4096)
		n, err := near.Read(b)
		if err != nil {
			t.Fatalf("%v; it said %s", err, said)
		}
		return string(b[:n])
	}
	if got := answer(); !strings.HasPrefix(got, "ready\n") {
		t.Fatalf("it answered %q", got)
	}
	open := func() int {
		list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	before, fd := open(), int(null.Fd())
	for range 3 {
		for _, c := range []struct {
			name, order string
			fds         []int
			want        string
		}{
			{"no init", "fork\x000\x000\x000\x00\x000 0 1\n", []int{fd, fd}, "execute: errno 13"},
			{"no group", "fork\x000\x000\x001\x00\x000 0 1\n", []int{fd, fd, fd}, "join control groups: errno 9"},
			{"no folder", "fork\x000\x001\x000\x00\x000 0 1\n", []int{fd, fd, fd, fd}, "make a copy: errno 9"},
			{"nonsense", "spoon\x000\x000\x000\x00\x000 0 1\n", []int{fd, fd}, "read the order: errno 22"},
		} {
			if err := unix.Sendmsg(int(near.Fd()), []byte(c.order), unix.UnixRights(c.fds...), nil, 0); err != nil {
				t.Fatal(err)
			}
			if got := answer(); got != c.want {
				t.Errorf("%s: it answered %q, want %q", c.name, got, c.want)
			}
		}
	}
	for begun := time.Now(); open() != before; time.Sleep(time.Millisecond) { // after its last answer it closes the rest
		if time.Since(begun) > 5*time.Second {
			t.Fatalf("it has %d descriptors, and had %d", open(), before)
		}
	}
	near.Close()
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, said)
	}
}
