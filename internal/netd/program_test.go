package netd

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"glovebox/internal/netwire"
)

// program is the path of glovebox-netd, built as it is delivered: with cgo its threads would make other calls.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "netd")
	if err != nil {
		return "", err
	}
	bin := filepath.Join(dir, "glovebox-netd")
	cmd := exec.Command("go", "build", "-o", bin, "glovebox/cmd/glovebox-netd")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", errors.Join(err, errors.New(string(out)), os.RemoveAll(dir))
	}
	f, err := os.Open(bin)
	if err != nil {
		return "", err
	}
	// It is executed by its descriptor, so that nothing is left behind however this process ends.
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 10)
	return filepath.Join("/proc/self/fd", strconv.Itoa(fd)), errors.Join(err, f.Close(), os.RemoveAll(dir))
})

// startNetd runs the program, with an interface.
func startNetd(t testing.TB, tap bool, s netwire.Setup, g gateway) (*world, *os.Process) {
	t.Helper()
	s.TAP = tap
	return startNetdOn(t, s, newLinkFile(t, tap, netwire.MTU), g)
}

// startNetdOn is startNetd with a link of any kind.
func startNetdOn(t testing.TB, s netwire.Setup, link *os.File, g gateway) (*world, *os.Process) {
	t.Helper()
	bin, err := program()
	if err != nil {
		t.Fatal(err)
	}
	near, far, err := netwire.Pair()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(bin)
	cmd.Stderr = os.Stderr
	cmd.ExtraFiles = []*os.File{far}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	far.Close()
	w := joinWorld(t, s, near, link, g)
	w.end = sync.OnceFunc(func() {
		w.host.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("netd ended: %v", err)
		}
	})
	t.Cleanup(w.end)
	return w, cmd.Process
}

// TestMuch: the program, behind its own fence, carries much on many connections, takes memory and gives it back.
func TestMuch(t *testing.T) {
	w, process := startNetd(t, false, netwire.Setup{}, all(echo))
	address := net.JoinHostPort(resolve(t, "good.test"), "80")
	var work sync.WaitGroup
	sent := bytes.Repeat([]byte("glovebox"), 1<<20)
	for range 20 {
		work.Go(func() {
			c, err := net.Dial("tcp", address)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			go func() { _, _ = c.Write(sent); _ = c.(*net.TCPConn).CloseWrite() }()
			if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, sent) {
				t.Errorf("%d bytes came back, others than were sent: %v", len(got), err)
			}
		})
	}
	work.Wait()
	w.await("the end of all", func(e netwire.Event) bool { return e.Kind == netwire.KindCounters && e.Counters.OpenFlows == 0 })
	used := memoryOf(t, process.Pid, "Private_Dirty")
	if t.Logf("netd takes %d KiB after 20 connections with 8 MiB both ways", used>>10); used > mostMemory/2 {
		t.Errorf("netd takes %d MiB", used>>20)
	}
}
