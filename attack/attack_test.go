package attack_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	battery "glovebox/attack"
)

// laboratory is everything planted around the sandboxes under test. It is made once by TestMain and read by the tests.
type laboratory struct {
	dir       string // everything below is in it, unless said otherwise
	bin       string
	data      string // data_dir, shared by the runs and the neighbour
	config    string
	cgroup    string  // parent of the control groups of the runs under test
	uids      idRange // of the processes of the runs under test
	pool      idRange // what the configuration says of ids, which counts for root alone
	secrets   []battery.Canary
	listen    *battery.Listeners
	neighbour *neighbour
	files     []string     // canary files, outside and inside of dir
	home      string       // folder in which the command is called, with the programs in it; empty is this one
	caller    *caller      // who calls it; nil is root
	known     map[int]bool // processes with the runs' ids that are there all the time, by number
}

type idRange struct{ start, count uint32 }

func (r idRange) has(id uint32) bool { return id >= r.start && id-r.start < r.count }

var lab *laboratory // nil where the laboratory could not be made, with the reason in lacking

var lacking string

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	runtime.LockOSThread() // the neighbour ends with the thread that starts it
	if os.Geteuid() != 0 {
		lacking = "needs root"
		return m.Run()
	}
	sweepDead()
	dir, err := os.MkdirTemp("", fmt.Sprintf("glovebox-attack-%d-", os.Getpid()))
	if err != nil {
		fmt.Fprintln(os.Stderr, "attack:", err)
		return 1
	}
	defer os.RemoveAll(dir)
	l, err := makeLaboratory(dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, "attack: make laboratory:", err)
		return 1
	}
	lab = l
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		<-stop
		l.close()
		os.RemoveAll(dir)
		os.Exit(1)
	}()
	code := m.Run()
	signal.Stop(stop)
	if err := l.close(); err != nil {
		fmt.Fprintln(os.Stderr, "attack: after the tests:", err)
		return 1
	}
	return code
}

// sweepDead removes what tests left that were killed before they could.
func sweepDead() {
	for _, pattern := range []string{"/root/.glovebox-canary-*", "/var/tmp/.glovebox-canary-*", filepath.Join(os.TempDir(), "glovebox-attack-*"),
		"/sys/fs/cgroup/*/glovebox-attack-*", "/sys/fs/cgroup/glovebox-attack-*"} {
		found, _ := filepath.Glob(pattern)
		for _, path := range found {
			var pid int
			name := strings.TrimPrefix(strings.TrimPrefix(filepath.Base(path), ".glovebox-canary-"), "glovebox-attack-")
			if n, err := fmt.Sscanf(name, "%d", &pid); n != 1 || err != nil || syscall.Kill(pid, 0) == nil {
				continue
			}
			if !strings.HasPrefix(path, "/sys/") {
				os.RemoveAll(path)
			} else if children, _ := filepath.Glob(path + "/run_*"); len(children) == 0 {
				os.Remove(path)
			}
		}
	}
}

// need skips where there is no laboratory, and fails where one was promised.
func need(t *testing.T) *laboratory {
	t.Helper()
	if lab != nil {
		return lab
	}
	if os.Getenv("GLOVEBOX_TEST_ROOT") == "1" {
		t.Fatalf("promised but missing: %s", lacking)
	}
	t.Skip(lacking)
	return nil
}

// long reports whether the long forms of the tests were asked for.
func long() bool { return os.Getenv("GLOVEBOX_TEST_LONG") == "1" }

func makeLaboratory(dir string) (_ *laboratory, err error) {
	if err := os.Chmod(dir, 0o755); err != nil { // mode bits are not what keeps the sandbox out
		return nil, err
	}
	pid := os.Getpid()
	l := &laboratory{
		dir: dir, bin: filepath.Join(dir, "bin"), data: filepath.Join(dir, "data"),
		config: filepath.Join(dir, "glovebox.yaml"),
		cgroup: fmt.Sprintf("/glovebox-attack-%d", pid),
		pool:   idRange{0x72000000 + uint32(pid%1024)*8192, 4096},
	}
	l.uids = l.pool
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	build := exec.Command("go", "build", "-o", l.bin+"/", "glovebox/cmd/glovebox", "glovebox/cmd/glovebox-init")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build: %w: %s", err, out)
	}
	l.secrets = battery.MakeCanaries("environment", "config", "data_dir", "home", "var", "folder", "keyring", "neighbour env",
		"neighbour file", "neighbour argument", "banner", "stdin of the command")
	if err := l.becomeCaller(); err != nil {
		return nil, fmt.Errorf("become an ordinary user: %w", err)
	}
	if err := l.writeConfig(l.config, l.cgroup, l.pool); err != nil {
		return nil, err
	}
	if err := l.plantFiles(); err != nil {
		return nil, err
	}
	if l.listen, err = battery.StartListeners(l.dir, "", l.secret("banner")); err != nil {
		return nil, err
	}
	known := map[int]bool{}
	if l.neighbour, err = startNeighbour(l); err != nil {
		return nil, fmt.Errorf("start neighbour: %w", err)
	}
	if err := l.plantKey(); err != nil { // which stays as long as a process of the caller's lives
		return nil, fmt.Errorf("plant key: %w", err)
	}
	if l.caller != nil { // the neighbour is another run of the same user's
		for _, p := range l.processes(l.uids) {
			known[p.pid] = true
		}
		l.known = known
	}
	return l, nil
}

func keyName() string { return "glovebox-attack-" + strconv.Itoa(os.Getpid()) }

func (l *laboratory) writeConfig(path, cgroup string, ids idRange) error {
	return os.WriteFile(path, fmt.Appendf(nil, `# %s
data_dir: %s
drivers:
  process:
    cgroup: %s
    uid_pool: "%d:%d"
    init: %s
`, l.secret("config"), l.data, cgroup, ids.start, ids.count, filepath.Join(l.bin, "glovebox-init")), 0o644)
}

// plantFiles puts canaries where programs look, all readable by everyone: file modes are not what is tested.
func (l *laboratory) plantFiles() error {
	if err := os.MkdirAll(l.data, 0o700); err != nil {
		return err
	}
	if err := l.give(l.data); err != nil {
		return err
	}
	name := ".glovebox-canary-" + strconv.Itoa(os.Getpid())
	for _, p := range []struct{ path, secret string }{
		{"/root/" + name, "home"}, {"/var/tmp/" + name, "var"}, {filepath.Join(l.dir, name), "folder"},
		{filepath.Join(l.data, name), "data_dir"},
	} {
		l.files = append(l.files, p.path)
		if err := os.WriteFile(p.path, []byte(l.secret(p.secret)), 0o644); err != nil {
			return fmt.Errorf("plant file: %w", err)
		}
	}
	return nil
}

// close takes everything back, and tells when the host did not stay as it was.
func (l *laboratory) close() error {
	var wrong []string
	if l.neighbour != nil {
		if err := l.neighbour.stop(); err != nil {
			wrong = append(wrong, err.Error())
		}
	}
	if l.listen != nil {
		l.listen.Close()
	}
	for _, f := range l.files {
		if err := os.Remove(f); err != nil {
			wrong = append(wrong, err.Error())
		}
	}
	if id, err := unix.KeyctlSearch(unix.KEY_SPEC_USER_KEYRING, "user", keyName(), 0); err == nil {
		unix.KeyctlInt(unix.KEYCTL_UNLINK, id, unix.KEY_SPEC_USER_KEYRING, 0, 0)
	}
	if l.caller != nil {
		os.RemoveAll(fmt.Sprintf("/tmp/glovebox-%d", l.caller.id)) // of its locks
	}
	for _, parent := range []string{l.cgroup, l.cgroup + "-neighbour"} {
		for _, dir := range groupDirs(parent) {
			if err := removeGroup(dir); err != nil {
				wrong = append(wrong, err.Error())
			}
		}
	}
	if wrong != nil {
		return fmt.Errorf("%s", strings.Join(wrong, "; "))
	}
	return nil
}

// removeGroup removes a parent that the tests made. A group with processes or with groups of runs in it stays and is an error.
func removeGroup(dir string) error {
	var err error
	for range 20 {
		if err = unix.Rmdir(dir); err == nil || err == unix.ENOENT {
			return nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	return fmt.Errorf("control group %s stays: %w", dir, err)
}

// glovebox makes the command that the laboratory runs, with a canary in its environment and an open descriptor of a canary.
func (l *laboratory) glovebox(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(l.bin, "glovebox"), args...)
	l.asCaller(cmd)
	cmd.Env = append(cmd.Environ(), "GLOVEBOX_CANARY="+l.secret("environment"),
		"AWS_SECRET_ACCESS_KEY="+l.secret("environment"))
	return cmd
}
