// Package process is the process rung: a program behind namespaces, a read-only root, control groups, no capabilities, its
// own user ids, Landlock and a system call filter, on the host's kernel. It needs no daemon and no container engine, and
// works as root and as an ordinary user.
//
// A sandbox is one process of ours, glovebox-init, started in fresh namespaces (see package sandboxinit); everything of the
// user's is a descendant of it. The driver holds one end of a socket, the lifeline, and init ends when that end closes.
package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"

	"glovebox"
	"glovebox/driver"
	"glovebox/internal/cgroup"
	"glovebox/internal/lockfile"
	"glovebox/internal/seccomp"
	"glovebox/internal/userscope"
)

// Config says where the driver finds and puts things. It is read by New only.
type Config struct {
	// Init is the path of glovebox-init. Empty: beside the running program.
	Init string
	// Cgroup is the group under which each run gets its own, as a path below every hierarchy. Empty: /glovebox for root; for a
	// user below the user's own group on version 2, and /glovebox-UID on version 1.
	Cgroup string
	// IDs is the pool of host ids for root. Zero: 65536 ids from 0x70000000.
	IDs IDPool
	// RuntimeDir holds the id locks, which all engines of one user must share. Empty: /run/glovebox for root, else
	// /tmp/glovebox-UID.
	RuntimeDir string
	// ScratchDir holds the backing files of workspaces on disk. Required.
	ScratchDir string
	// Accept names the controls that a run may go without: landlock. Anything else is required.
	Accept []string
}

// acceptable are the controls that an operator may accept to be without, by name.
var acceptable = []string{"landlock"}

// Driver makes sandboxes of the process rung. It is safe for concurrent use.
type Driver struct {
	cfg      Config
	filter   []byte     // for programs that their control group keeps to their CPUs
	pinned   []byte     // for those that are kept to them by affinity
	template []byte     // for templates
	abi      func() int // the kernel's version of Landlock

	around   surroundings
	unmapped func() *refusal // why root has no ids to give, if so
	found    look

	groups sync.Mutex
	host   *cgroup.Host // once found
	swept  sync.Once
}

// New checks cfg and the platform. It looks at the machine only when something is started or examined.
func New(cfg Config) (*Driver, error) {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		return nil, glovebox.Errorf(glovebox.CodeUnavailable, "run it on linux/amd64",
			"the process rung runs on linux/amd64; this is %s/%s", runtime.GOOS, runtime.GOARCH)
	}
	for _, name := range cfg.Accept {
		if !slices.Contains(acceptable, name) {
			return nil, glovebox.Errorf(glovebox.CodeInvalid, fmt.Sprintf("drivers.process.accept takes some of %q", acceptable),
				"the process rung cannot go without %q", name)
		}
	}
	if cfg.ScratchDir == "" {
		return nil, errors.New("process driver: ScratchDir is empty")
	}
	if cfg.Init == "" {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find glovebox-init: %w", err)
		}
		cfg.Init = filepath.Join(filepath.Dir(self), "glovebox-init")
	}
	if cfg.IDs == (IDPool{}) {
		cfg.IDs = defaultPool
	}
	pool, err := cfg.IDs.whole()
	if err != nil {
		return nil, err
	}
	cfg.IDs = pool
	if cfg.RuntimeDir == "" {
		cfg.RuntimeDir = lockfile.Folder()
	}
	filter, err := seccomp.Filter(runtime.GOARCH)
	if err != nil {
		return nil, fmt.Errorf("build system call filter: %w", err)
	}
	pinned, err := seccomp.Pinned(runtime.GOARCH)
	if err != nil {
		return nil, fmt.Errorf("build system call filter: %w", err)
	}
	template, err := seccomp.Template(runtime.GOARCH)
	if err != nil {
		return nil, fmt.Errorf("build system call filter: %w", err)
	}
	d := &Driver{cfg: cfg, filter: filter, pinned: pinned, template: template}
	d.abi = sync.OnceValue(landlockABI)
	d.around = surroundings{proc: "/proc", root: os.Getuid() == 0}
	d.unmapped = sync.OnceValue(func() *refusal { return d.around.unmapped(d.cfg.IDs) })
	return d, nil
}

// parent is the control group under which runs get theirs.
func (d *Driver) parent(host *cgroup.Host) string {
	switch {
	case d.cfg.Cgroup != "":
		return d.cfg.Cgroup
	case os.Getuid() != 0 && host.Mode() != "v2":
		return fmt.Sprintf("/glovebox-%d", os.Getuid())
	}
	return host.Parent()
}

// findGroups looks for the machine's control groups, once. An ordinary user who has been given no part of version 2's tree
// asks systemd for one, and this process moves there.
func (d *Driver) findGroups(ctx context.Context) (*cgroup.Host, error) {
	d.groups.Lock()
	defer d.groups.Unlock()
	if d.host != nil {
		return d.host, nil
	}
	const tree = "/sys/fs/cgroup"
	host, err := cgroup.Detect(tree)
	if err != nil {
		return nil, err
	}
	if d.cfg.Cgroup == "" && !host.Delegated() {
		if host.Bounded() {
			return nil, glovebox.Errorf(glovebox.CodeUnavailable,
				"set Delegate=yes where the limit is set (systemd-run -p Delegate=yes …)",
				"glovebox's own control group has a limit and is not its own to divide")
		}
		err := userscope.Enter(ctx)
		if err == nil {
			if host, err = cgroup.Detect(tree); err == nil && !host.Delegated() {
				err = errors.New("the scope that systemd gave lacks memory, pids or cpu")
			}
		}
		if err != nil {
			return nil, &glovebox.Error{Code: glovebox.CodeUnavailable, Op: "find control groups", Err: err,
				Public: "this user has no control groups, and systemd's user manager was not to be had for some", Fix: cgroup.ScopeFix}
		}
	}
	d.host = host
	return host, nil
}

// Isolation is the process rung.
func (d *Driver) Isolation() glovebox.Isolation { return glovebox.IsolationProcess }

func (d *Driver) accepts(name string) bool { return slices.Contains(d.cfg.Accept, name) }

// Start makes a sandbox: init in fresh namespaces with its root built, and a control group that nothing is in yet.
func (d *Driver) Start(ctx context.Context, spec driver.Spec) (driver.Sandbox, error) {
	s, err := d.start(ctx, spec, origin{})
	if err != nil {
		return nil, err
	}
	return s, nil
}
