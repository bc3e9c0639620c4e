package attack_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// callerEnv makes the tests run the command as an ordinary user. The tests themselves stay root: they plant and watch.
const callerEnv = "GLOVEBOX_TEST_CALLER"

// The two ways in which an ordinary user's programs get their ids.
const (
	ownID       = "own id"          // there are no subordinate ids, so that a program has the user's own
	subordinate = "subordinate ids" // newuidmap takes them from the user's range
)

// A caller is the ordinary user in whose name the command is run.
type caller struct {
	id int // of the user and its group; no account of a machine has it
}

// becomeCaller makes the laboratory one of an ordinary user, where that is asked for. For subordinate ids the process must
// be in a mount namespace of its own, in which the user gets an account.
func (l *laboratory) becomeCaller() error {
	how := os.Getenv(callerEnv)
	if how == "" {
		return nil
	}
	pid := os.Getpid()
	c := &caller{id: 0x71000000 + pid%65536}
	l.caller, l.uids = c, idRange{uint32(c.id), 1}
	if how == subordinate {
		l.uids = idRange{0x74000000 + uint32(pid%1024)*8192, 4096}
		for file, line := range map[string]string{
			"/etc/passwd": fmt.Sprintf("root:x:0:0::/root:/bin/sh\ntester:x:%d:%d::%s:/bin/sh\n", c.id, c.id, l.dir),
			"/etc/subuid": fmt.Sprintf("tester:%d:%d\n", l.uids.start, l.uids.count),
			"/etc/subgid": fmt.Sprintf("tester:%d:%d\n", l.uids.start, l.uids.count),
		} {
			own := filepath.Join(l.dir, filepath.Base(file))
			if err := os.WriteFile(own, []byte(line), 0o644); err != nil {
				return err
			}
			if err := syscall.Mount(own, file, "", syscall.MS_BIND, ""); err != nil {
				return fmt.Errorf("cover %s: %w", file, err)
			}
		}
	}
	// The repository may lie where a user cannot go.
	l.home = filepath.Join(l.dir, "home")
	if err := os.CopyFS(filepath.Join(l.home, "programs"), os.DirFS("programs")); err != nil {
		return err
	}
	for _, parent := range []string{l.cgroup, l.cgroup + "-neighbour"} {
		if err := handOver(parent, c.id); err != nil {
			return err
		}
	}
	return nil
}

// handOver makes the control groups that root gives an ordinary user on version 1, as doctor prints it.
func handOver(cgroup string, uid int) error {
	for _, c := range []string{"memory", "pids", "cpu", "cpuacct", "cpuset", "freezer"} {
		top := "/sys/fs/cgroup/" + c
		dir := top + cgroup
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		if c == "cpuset" {
			for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(read(filepath.Join(top, file))), 0o644); err != nil {
					return err
				}
			}
		}
		for _, file := range []string{"", "cgroup.procs", "tasks"} {
			if err := os.Chown(filepath.Join(dir, file), uid, uid); err != nil {
				return err
			}
		}
	}
	return nil
}

// plantKey puts a canary into the caller's own keyring.
func (l *laboratory) plantKey() error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its changed id
		if l.caller != nil {
			id := uintptr(l.caller.id)
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, id, id, id); errno != 0 {
				done <- errno
				return
			}
		}
		_, err := unix.AddKey("user", keyName(), []byte(l.secret("keyring")), unix.KEY_SPEC_USER_KEYRING)
		if err == nil {
			_, err = unix.KeyctlSearch(unix.KEY_SPEC_USER_KEYRING, "user", keyName(), 0)
		}
		done <- err
	}()
	return <-done
}

// give makes a folder the caller's.
func (l *laboratory) give(dir string) error {
	if l.caller == nil {
		return nil
	}
	return os.Chown(dir, l.caller.id, l.caller.id)
}

// folder makes a folder for one test that the caller can reach and write, unlike the testing package's.
func (l *laboratory) folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", fmt.Sprintf("glovebox-attack-%d-test-", os.Getpid()))
	if err == nil {
		err = errors.Join(os.Chmod(dir, 0o755), l.give(dir))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// asCaller has a command run in the caller's name, where its programs are.
func (l *laboratory) asCaller(cmd *exec.Cmd) {
	cmd.Dir, cmd.SysProcAttr = l.home, &syscall.SysProcAttr{}
	if l.caller == nil {
		return
	}
	id := uint32(l.caller.id)
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: id, Gid: id, Groups: []uint32{id + 1}}
	cmd.Env = slices.DeleteFunc(cmd.Environ(), func(v string) bool { return strings.HasPrefix(v, "XDG_") })
	cmd.Env = append(cmd.Env, "HOME="+l.home)
}

// notAsUser are the tests that cannot hold, or say nothing, where an ordinary user runs the command, with the reason.
var notAsUser = map[string]string{
	"TestCT11JustUnderTheLimits/real_disk": onlyRootHasDisk,
	"TestFS22FillTheDisk/memory_96MiB":     onlyRootHasDisk,
	"TestNothingIsShared":                  "with the user's own id two runs have one id outside",
	"TestRP042TinyLimits":                  onlyRootHasDisk + "; with a workspace in memory the least memory is 65 MiB",
	"TestEveryEndIsTheSame":                inThisProcess,
	"TestPairsUnderTheLimits":              inThisProcess,
	"TestEndedAtEveryInstant":              inThisProcess,
	"TestBatteryAsAnOrdinaryUser":          "it is what runs the others",
}

const (
	onlyRootHasDisk = "only root has workspaces on disk, with a hard limit; a user is refused, with the memory that is needed instead"
	inThisProcess   = "its engine is in the process of the tests, which is root; what it repeats is run by commands in other tests"
)

var testEnd = regexp.MustCompile(`(?m)^--- (PASS|FAIL|SKIP): (Test\w+)`)

// TestBatteryAsAnOrdinaryUser runs the other tests again in the name of a user without rights.
func TestBatteryAsAnOrdinaryUser(t *testing.T) {
	need(t)
	if !long() {
		t.Skip("for the long form")
	}
	if _, err := os.Stat("/sys/fs/cgroup/memory"); err != nil {
		missing(t, "not a machine of version 1")
		return
	}
	skip := "^" + strings.Join(slices.Sorted(maps.Keys(notAsUser)), "$|^") + "$"
	for _, how := range []string{ownID, subordinate} {
		t.Run(how, func(t *testing.T) {
			if _, err := exec.LookPath("newuidmap"); how == subordinate && err != nil {
				t.Fatal("newuidmap is missing: install uidmap (make test does)")
			}
			cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.v", "-test.timeout=20m",
				"-test.skip="+skip)
			cmd.Env = append(os.Environ(), callerEnv+"="+how, "GLOVEBOX_TEST_LONG=")
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Unshareflags: syscall.CLONE_NEWNS}
			err := cmd.Run()
			ends := map[string]int{}
			for _, m := range testEnd.FindAllStringSubmatch(out.String(), -1) {
				ends[m[1]]++
			}
			fmt.Printf("    %s: %v, left out %d\n", t.Name(), ends, len(notAsUser))
			if err != nil || ends["FAIL"] > 0 || ends["PASS"] < 90 {
				t.Errorf("%v, %v\n%s", err, ends, out.String())
			}
		})
	}
}
