package cgroup

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// needRoot skips where there is no root or no control groups to work with, and fails where that was promised.
func needRoot(t testing.TB) *Host {
	t.Helper()
	lacks := func(why string) {
		if os.Getenv("GLOVEBOX_TEST_ROOT") == "1" {
			t.Fatalf("promised but missing: %s", why)
		}
		t.Skip(why)
	}
	if os.Geteuid() != 0 {
		lacks("needs root")
	}
	h, err := Detect("/sys/fs/cgroup")
	if err != nil {
		lacks(err.Error())
	}
	for _, f := range h.Controls(testParent) {
		if !f.Available {
			lacks(fmt.Sprintf("control %s: %s", f.Name, f.Detail))
		}
	}
	t.Cleanup(func() {
		for _, p := range h.hierarchies() {
			if err := rmdir(p.dir + testParent); err != nil {
				t.Errorf("left over: %v", err)
			}
		}
	})
	return h
}

var testParent = "/glovebox-test-" + strconv.Itoa(os.Getpid())

func small() Limits { return Limits{Memory: 64 << 20, Processes: 64, CPUs: 1} }

// limited makes a group with limits.
func limited(h *Host, parent, name string, l Limits) (*Group, error) {
	g, err := h.New(parent, name)
	if err != nil {
		return nil, err
	}
	if err := g.Limit(l); err != nil {
		g.Close()
		for _, dir := range g.folders() {
			os.RemoveAll(dir) // of a fake tree
		}
		return nil, err
	}
	return g, nil
}

func newGroup(t testing.TB, h *Host, l Limits) *Group {
	t.Helper()
	g, err := limited(h, testParent, "run", l)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := g.Kill(ctx); err != nil {
			t.Error(err)
		}
		if err := g.Remove(ctx); err != nil {
			t.Error(err)
		}
	})
	return g
}

// roleEnv makes the test binary a member of a group instead of a test.
const roleEnv = "GLOVEBOX_CGROUP_ROLE"

func TestMain(m *testing.M) {
	role := os.Getenv(roleEnv)
	if role == "" {
		os.Exit(m.Run())
	}
	if n, err := strconv.Atoi(os.Getenv("GLOVEBOX_CGROUP_FDS")); err == nil {
		for fd := 3; fd < 3+n; fd++ {
			if _, err := syscall.Write(fd, []byte("0")); err != nil {
				fmt.Println("join:", fd, err)
				os.Exit(9)
			}
			syscall.Close(fd)
		}
	}
	play(role)
	os.Exit(0)
}

// member is a command that joins g and plays a role. It dies with the test.
func member(t testing.TB, g *Group, role string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	// A Go program has many threads by the time it can write, so it joins as a whole.
	for _, p := range g.order {
		f, err := os.OpenFile(filepath.Join(g.dirs[p], "cgroup.procs"), os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		cmd.ExtraFiles = append(cmd.ExtraFiles, f)
	}
	cmd.Env = []string{roleEnv + "=" + role, "GLOVEBOX_CGROUP_FDS=" + strconv.Itoa(len(cmd.ExtraFiles))}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out := new(bytes.Buffer)
	cmd.Stdout, cmd.Stderr = out, out
	return cmd, out
}

func play(role string) {
	switch role {
	case "groups":
		b, _ := os.ReadFile("/proc/self/cgroup")
		s, _ := os.ReadFile("/proc/self/status")
		for line := range strings.Lines(string(s)) {
			if strings.HasPrefix(line, "Cpus_allowed_list") {
				b = append(b, line...)
			}
		}
		os.Stdout.Write(b)
	case "memory":
		var all [][]byte
		for range 200 {
			b := make([]byte, 1<<20)
			for i := 0; i < len(b); i += 4096 {
				b[i] = 1
			}
			all = append(all, b)
		}
		fmt.Println("kept", len(all))
	case "forks":
		refused := 0
		for range 60 {
			c := exec.Command("/proc/self/exe")
			c.Env = []string{roleEnv + "=sleep"}
			if err := c.Start(); err != nil {
				refused++
			}
		}
		fmt.Println("refused", refused)
	case "spin":
		var x [8]byte
		for end := time.Now().Add(600 * time.Millisecond); time.Now().Before(end); {
			binary.LittleEndian.PutUint64(x[:], binary.LittleEndian.Uint64(x[:])+1)
		}
	case "tree0", "tree1", "tree2":
		// Each forks two of the next kind and ends, so that the last generation has lost its parents; it ignores what can be
		// ignored and sleeps.
		if role != "tree2" {
			for range 3 {
				c := exec.Command("/proc/self/exe")
				c.Env = []string{roleEnv + "=tree" + string(role[4]+1)}
				c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
				c.Start()
			}
			return
		}
		time.Sleep(30 * time.Second)
	case "sleep":
		time.Sleep(30 * time.Second)
	}
}
