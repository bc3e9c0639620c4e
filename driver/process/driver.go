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
	"time"

	"glovebox"
	"glovebox/driver"
	"glovebox/internal/hostside"
	"glovebox/internal/lockfile"
	"glovebox/internal/seccomp"
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
	// WorkDisk is a block device that holds what hostside.DiskFile makes, for the workspace of one sandbox that needs one on
	// disk. Empty: a file of ScratchDir behind a loop device.
	WorkDisk string
	// NetworkDevice is the machine's device of networks. Empty: /dev/net/tun.
	NetworkDevice string
	// StartLimit bounds each start, of a sandbox, an interpreter or a program. Zero: 30 s. It is longer on an emulated machine.
	StartLimit time.Duration
	// Accept names the controls that a run may go without: landlock. Anything else is required.
	Accept []string
}

// IDPool is a range of user and group ids of the host.
type IDPool = hostside.IDPool

// acceptable are the controls that an operator may accept to be without, by name.
var acceptable = []string{"landlock"}

// Driver makes sandboxes of the process rung. It is safe for concurrent use.
type Driver struct {
	cfg      Config
	filter   []byte     // for programs that their control group keeps to their CPUs
	pinned   []byte     // for those that are kept to them by affinity
	template []byte     // for templates
	abi      func() int // the kernel's version of Landlock

	around   hostside.Surroundings
	unmapped func() *hostside.Refusal // why root has no ids to give, if so
	found    look

	groups *hostside.Groups
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
	if cfg.StartLimit == 0 {
		cfg.StartLimit = startLimit
	}
	if cfg.NetworkDevice == "" {
		cfg.NetworkDevice = hostside.TunDevice
	}
	if cfg.Init == "" {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find glovebox-init: %w", err)
		}
		cfg.Init = filepath.Join(filepath.Dir(self), "glovebox-init")
	}
	if cfg.IDs == (hostside.IDPool{}) {
		cfg.IDs = hostside.DefaultPool
	}
	pool, err := cfg.IDs.Whole()
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
	d.groups = hostside.NewGroups(cfg.Cgroup, cfg.RuntimeDir)
	d.abi = sync.OnceValue(landlockABI)
	d.around = hostside.Surroundings{Proc: "/proc", Root: os.Getuid() == 0}
	d.unmapped = sync.OnceValue(func() *hostside.Refusal { return d.around.Unmapped(d.cfg.IDs) })
	return d, nil
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
