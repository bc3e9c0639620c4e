package boot

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestTemplateRefuses: what a copy could not have for itself, or not at all, keeps a template from making any.
func TestTemplateRefuses(t *testing.T) {
	for name, c := range map[string]struct{ first, says string }{
		"nothing":        {"pass", "ready\npython "},
		"shared memory":  {"import mmap; held['m'] = mmap.mmap(-1, 4096)", "memory that it shares"},
		"private memory": {"import mmap; held['m'] = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE)", "ready\npython "},
		"a thread": {"import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
			"with 2 threads"},
	} {
		t.Run(name, func(t *testing.T) {
			fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			near, far := os.NewFile(uintptr(fds[0]), "near"), os.NewFile(uintptr(fds[1]), "far")
			defer near.Close()
			cmd := exec.Command("/usr/bin/python3", "-I", "-c",
				python(runPython, holdPython, templatePython, c.first+"\ntemplate(3, [])\n"), "/code/main.py")
			var said strings.Builder
			cmd.ExtraFiles, cmd.Stderr = []*os.File{far}, &said
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			far.Close()
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
