package gvisor_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"glovebox"
)

// Environment variables by which the test binary runs again as an ordinary user: with the control group that it was handed,
// and in the second case as root who first gives the user an account with subordinate ids.
const (
	userCgroupEnv = "GLOVEBOX_TEST_USER_CGROUP"
	accountEnv    = "GLOVEBOX_TEST_ACCOUNT"
	tunEnv        = "GLOVEBOX_TEST_TUN"
	programsEnv   = "GLOVEBOX_TEST_PROGRAMS"
)

// nobodyElse is an id that no account of a machine has, so the user has no subordinate ids either.
const nobodyElse = 54321

// handOver makes the control groups that root gives an ordinary user on version 1, as doctor prints it.
func handOver(t *testing.T, cgroup string) {
	t.Helper()
	for _, c := range []string{"memory", "pids", "cpu", "cpuacct", "cpuset", "freezer"} {
		top := "/sys/fs/cgroup/" + c
		dir := top + cgroup
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := os.Remove(dir); err != nil {
				t.Errorf("left over: %v", err)
			}
		})
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			if value, err := os.ReadFile(filepath.Join(top, file)); c == "cpuset" {
				if err := errors.Join(err, os.WriteFile(filepath.Join(dir, file), value, 0o644)); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, file := range []string{"", "cgroup.procs", "tasks"} {
			if err := os.Chown(filepath.Join(dir, file), nobodyElse, nobodyElse); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// haveAccount covers the machine's lists of accounts, in this mount namespace only, and becomes the user.
func haveAccount() error {
	for file, line := range map[string]string{
		"/etc/passwd": fmt.Sprintf("root:x:0:0::/root:/bin/sh\ntester:x:%d:%d::/:/bin/sh\n", nobodyElse, nobodyElse),
		"/etc/subuid": "tester:300000:65536\n", "/etc/subgid": "tester:300000:65536\n",
	} {
		own := filepath.Join(os.Getenv("TMPDIR"), filepath.Base(file))
		if err := os.WriteFile(own, []byte(line), 0o644); err != nil {
			return err
		}
		if err := syscall.Mount(own, file, "", syscall.MS_BIND, ""); err != nil {
			return fmt.Errorf("cover %s: %w", file, err)
		}
	}
	env := append(os.Environ(), userCgroupEnv+"="+os.Getenv(accountEnv), accountEnv+"=")
	return asUser(env, os.Stdout, userTests, user())
}

// userTests are what is run again: each way in which ids, limits and files of the sandbox meet those of the host.
const userTests = "^TestRun$|^TestConformance$/" +
	"^(a_sandbox_dies|inputs_are|what_is_not|files:_the_limit|memory:_the|processes:_threads|disk:_the|held:_code|kill_ends|network:_(names|its_files))"

func asUser(env []string, out io.Writer, tests string, sys *syscall.SysProcAttr) error {
	cmd := exec.Command("/proc/self/exe", "-test.run", tests, "-test.v")
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = "/", env, out, out, sys
	return cmd.Run()
}

func user() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Credential: &syscall.Credential{
		Uid: nobodyElse, Gid: nobodyElse, Groups: []uint32{nobodyElse + 1, nobodyElse + 2},
	}}
}

// TestOrdinaryUser: with subordinate ids a user has the rung; without, it is refused by name.
func TestOrdinaryUser(t *testing.T) {
	needRoot(t)
	if _, err := os.Stat("/sys/fs/cgroup/memory"); err != nil {
		t.Skip("not a machine of version 1")
	}
	for name, c := range map[string]struct {
		env, tests, want string
		sys              *syscall.SysProcAttr
	}{
		"no ids": {userCgroupEnv, "^TestNoIDs$", "--- PASS: TestNoIDs", user()},
		"subordinate ids": {accountEnv, "", "--- PASS: TestConformance/network:_names", &syscall.SysProcAttr{
			Cloneflags: syscall.CLONE_NEWNS, Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := exec.LookPath("newuidmap"); err != nil {
				t.Fatal("newuidmap is missing: install uidmap (make test does)")
			}
			cgroup := fmt.Sprintf("/glovebox-gvisor-user-%d", os.Getpid())
			handOver(t, cgroup)
			scratch, err := os.MkdirTemp("", "glovebox-user-")
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(scratch)
			if err := os.Chown(scratch, nobodyElse, nobodyElse); err != nil {
				t.Fatal(err)
			}
			tun := filepath.Join(t.TempDir(), "tun") // as most machines have it
			if err := unix.Mknod(tun, unix.S_IFCHR|0o666, int(unix.Mkdev(10, 200))); err != nil {
				t.Fatal(err)
			}
			for path, mode := range map[string]os.FileMode{tun: 0o666, filepath.Dir(tun): 0o755, filepath.Dir(filepath.Dir(tun)): 0o755} {
				if err := os.Chmod(path, mode); err != nil {
					t.Fatal(err)
				}
			}
			var out bytes.Buffer
			err = asUser([]string{"PATH=/usr/bin:/bin", "TMPDIR=" + scratch, "HOME=" + scratch, c.env + "=" + cgroup,
				tunEnv + "=" + tun, programsEnv + "=" + strings.Join([]string{programs.runsc, programs.init, programs.probe}, ":")}, &out, c.tests, c.sys)
			if err != nil || !strings.Contains(out.String(), c.want) || strings.Contains(out.String(), "--- SKIP: TestRun") {
				t.Errorf("%v\n%s", err, out.String())
			}
		})
	}
}

// TestNoIDs runs as such a user.
func TestNoIDs(t *testing.T) {
	if os.Getenv(userCgroupEnv) == "" {
		t.Skip("TestOrdinaryUser runs it")
	}
	err := newDriver(t).Available(t.Context())
	var known *glovebox.Error
	if !errors.As(err, &known) || known.Code != glovebox.CodeUnavailable || !strings.Contains(known.Public, "subordinate ids") ||
		known.Fix == "" {
		t.Errorf("available: %+v", err)
	}
}
