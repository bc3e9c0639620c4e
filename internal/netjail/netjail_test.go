package netjail

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"glovebox"
	"glovebox/driver/process"
	"glovebox/internal/admission"
	"glovebox/internal/netwire"
)

// The programs, built once: standIn is this package's testdata in place of glovebox-netd.
var initBinary, standIn string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "glovebox-netjail-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		panic(err)
	}
	initBinary, standIn = filepath.Join(dir, "glovebox-init"), filepath.Join(dir, "standin")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", dir, "glovebox/cmd/glovebox-init",
		"glovebox/internal/netjail/testdata/standin")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		panic(string(out))
	}
	if other := os.Getenv("GLOVEBOX_TEST_NETD"); other != "" {
		standIn = other
	}
	return m.Run()
}

// jails makes Jails over the real process rung.
func jails(t testing.TB, ready int) (*Jails, *admission.Admission) {
	t.Helper()
	jail, err := process.New(process.Config{Init: initBinary, ScratchDir: t.TempDir(), RuntimeDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if err := jail.Available(t.Context()); err != nil {
		if os.Getenv("GLOVEBOX_TEST_ROOT") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	budget, err := admission.New(admission.Config{Dir: t.TempDir(), Size: 400 * glovebox.MiB})
	if err != nil {
		t.Fatal(err)
	}
	j, err := New(Config{Jail: jail, Program: standIn, Ready: ready,
		Memory: func() (*admission.Admission, error) { return budget, nil }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close(context.WithoutCancel(t.Context())); budget.Close() })
	return j, budget
}

// link is a pair of sockets in place of a sandbox's link: the first end is the netd's.
func link(t testing.TB) (theirs, ours *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	theirs, ours = os.NewFile(uintptr(fds[0]), "link"), os.NewFile(uintptr(fds[1]), "link")
	t.Cleanup(func() { theirs.Close(); ours.Close() })
	return theirs, ours
}

// ask has the stand-in try to read a file and says how it went.
func ask(t *testing.T, n *Netd, ours *os.File, path string) string {
	t.Helper()
	if _, err := ours.WriteString(path); err != nil {
		t.Fatal(err)
	}
	e, err := n.Host().Next()
	if err != nil {
		t.Fatal(err, n.Why())
	}
	return e.Host
}

func soon(t testing.TB, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !is(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not %s after 10 s", what)
		}
	}
}

// TestTake: a netd is given its link and speaks, sees no file but itself, and is gone with its Close, whether it was ready
// or not.
func TestTake(t *testing.T) {
	for name, ready := range map[string]int{"on demand": 0, "ready": 1} {
		t.Run(name, func(t *testing.T) {
			j, _ := jails(t, ready)
			soon(t, "ready", func() bool { return j.Ready() == ready })
			n, err := j.Take(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			theirs, ours := link(t)
			if err := n.Start(t.Context(), netwire.Setup{}, theirs); err != nil {
				t.Fatal(err)
			}
			theirs.Close()
			for path, want := range map[string]string{inside: "read", "/etc/passwd": "absent", "/usr/bin/env": "absent"} {
				if got := ask(t, n, ours, path); got != want {
					t.Errorf("%s is %s, want %s", path, got, want)
				}
			}
			if p := n.Posture(); p["network"] != "loopback only" {
				t.Errorf("the netd's own network is %q", p["network"])
			}
			if err := n.Close(t.Context()); err != nil {
				t.Error(err)
			}
			select {
			case <-n.Ended():
			default:
				t.Error("it lives on")
			}
			if _, err := ours.Read(make([]byte, 1)); err == nil {
				t.Error("the link is still held")
			}
		})
	}
}

// TestReadyIsReplaced: what was taken is replaced, counts for its taker alone, and nothing is left.
func TestReadyIsReplaced(t *testing.T) {
	j, budget := jails(t, 2)
	soon(t, "2 ready", func() bool { return j.Ready() == 2 })
	for range 3 {
		n, err := j.Take(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		soon(t, "2 ready again", func() bool { return j.Ready() == 2 })
		if err := n.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if held, err := budget.Taken(); err != nil || held != 2*Memory {
		t.Errorf("%v is held (%v), want that of two", held, err)
	}
	j.Close(t.Context())
	if held, err := budget.Taken(); err != nil || held != 0 {
		t.Errorf("%v is held after the end (%v)", held, err)
	}
}

// TestGiveWay: runs that wait for memory get that of those that nobody took.
func TestGiveWay(t *testing.T) {
	j, budget := jails(t, 2)
	soon(t, "2 ready", func() bool { return j.Ready() == 2 })
	done := j.Waits(t.Context())
	if held, err := budget.Taken(); err != nil || held != 0 {
		t.Errorf("%v is held while a run waits (%v)", held, err)
	}
	share, err := budget.Try(budget.Budget(), false)
	if err != nil || share == nil {
		t.Fatal("the run does not get the memory", err)
	}
	done()
	if err := share.Release(); err != nil {
		t.Fatal(err)
	}
	soon(t, "2 ready after that", func() bool { return j.Ready() == 2 })
}

// TestDeath: the end of a netd is seen at once by whoever serves it, and one that ended while it waited is not given out.
func TestDeath(t *testing.T) {
	j, _ := jails(t, 1)
	soon(t, "ready", func() bool { return j.Ready() == 1 })
	n, err := j.Take(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	theirs, ours := link(t)
	if err := n.Start(t.Context(), netwire.Setup{}, theirs); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	if _, err := ours.WriteString("die"); err != nil {
		t.Fatal(err)
	}
	if e, err := n.Host().Next(); err == nil {
		t.Errorf("a dead netd said %+v", e)
	}
	<-n.Ended()
	soon(t, "printed", func() bool { return n.Why() != nil })
	if why := n.Why(); !strings.Contains(why.Error(), "panic: told to") {
		t.Error(why)
	}
	if err := n.Close(t.Context()); err != nil {
		t.Error(err)
	}
	soon(t, "ready", func() bool { return j.Ready() == 1 })
	j.mu.Lock()
	waits := j.ready[0].netd
	j.mu.Unlock()
	if err := waits.process.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-waits.Ended()
	again, err := j.Take(t.Context())
	if err != nil || again == waits {
		t.Fatalf("a dead netd is given out: %v (%v)", again == waits, err)
	}
	if err := again.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestAbsent: without the program the error says what is missing and what mends it.
func TestAbsent(t *testing.T) {
	j, _ := jails(t, 0)
	j.cfg.Program = "/no/such/glovebox-netd"
	_, err := j.Take(t.Context())
	var told *glovebox.Error
	if !errors.As(err, &told) || told.Code != glovebox.CodeUnavailable || !strings.Contains(told.Public, "glovebox-netd") ||
		told.Fix == "" {
		t.Errorf("%#v", err)
	}
}
