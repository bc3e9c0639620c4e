package process_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// userCgroupEnv makes the suite run in a control group handed to an ordinary user.
const userCgroupEnv = "GLOVEBOX_TEST_USER_CGROUP"

// nobodyElse is an id that no account of a machine has, so the user has no subordinate ids either.
const nobodyElse = 54321

// handOver makes the control groups that root gives an ordinary user on version 1, as doctor prints it.
func handOver(t *testing.T, cgroup string, uid int) {
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
		if c == "cpuset" {
			for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
				value, err := os.ReadFile(filepath.Join(top, file))
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(dir, file), value, 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, file := range []string{"", "cgroup.procs", "tasks"} {
			if err := os.Chown(filepath.Join(dir, file), uid, uid); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// accountEnv makes the test binary, as root in a mount namespace of its own, give the user an account with subordinate ids
// before it becomes that user.
const accountEnv = "GLOVEBOX_TEST_ACCOUNT"

// haveAccount covers the machine's lists of accounts, in this mount namespace only.
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
	return nil
}

// asUser runs the conformance suite again, and what init does in the program's place, as an ordinary user, in this process's
// mounts.
func asUser(env []string, out io.Writer, sys *syscall.SysProcAttr) error {
	cmd := exec.Command("/proc/self/exe", "-test.run", "TestConformance|TestSupervisorDiesWhileAllIsFrozen|TestListen|TestHold|TestFork|TestHeldRefuses|TestTemplateEnds|TestCopiesTake", "-test.v")
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = "/", env, out, out, sys
	return cmd.Run()
}

func user() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Credential: &syscall.Credential{
		Uid: nobodyElse, Gid: nobodyElse, Groups: []uint32{nobodyElse + 1, nobodyElse + 2},
	}}
}

// TestOrdinaryUser runs the conformance suite as a user without rights: once without an account, so that the program has the
// user's own id, and once with subordinate ids.
func TestOrdinaryUser(t *testing.T) {
	needRoot(t)
	if _, err := os.Stat("/sys/fs/cgroup/memory"); err != nil {
		t.Skip("not a machine of version 1")
	}
	for name, c := range map[string]struct {
		env string
		sys *syscall.SysProcAttr
	}{
		"own id": {userCgroupEnv, user()},
		"subordinate ids": {accountEnv, &syscall.SysProcAttr{
			Cloneflags: syscall.CLONE_NEWNS, Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := exec.LookPath("newuidmap"); c.env == accountEnv && err != nil {
				t.Fatal("newuidmap is missing: install uidmap (make test does)")
			}
			cgroup := fmt.Sprintf("/glovebox-user-%d", os.Getpid())
			handOver(t, cgroup, nobodyElse)
			scratch, err := os.MkdirTemp("", "glovebox-user-")
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(scratch)
			if err := os.Chown(scratch, nobodyElse, nobodyElse); err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			err = asUser([]string{"PATH=/usr/bin:/bin", "TMPDIR=" + scratch, "HOME=" + scratch, c.env + "=" + cgroup,
				"GLOVEBOX_TEST_INIT=" + initBinary, "GLOVEBOX_TEST_PROBE=" + probeBinary,
				tunEnv + "=" + openDevice(t)}, &out, c.sys)
			if err != nil || strings.Count(out.String(), "--- PASS: TestConformance/") < 30 ||
				!strings.Contains(out.String(), "--- PASS: TestSupervisorDiesWhileAllIsFrozen") ||
				!strings.Contains(out.String(), "--- PASS: TestListen/bound") ||
				!strings.Contains(out.String(), "--- PASS: TestForks") {
				t.Errorf("%v\n%s", err, out.String())
			}
		})
	}
}
