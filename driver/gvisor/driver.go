// Package gvisor is the gVisor rung: the program runs on a kernel of its own, in user space (runsc), and reaches that of the
// host only through it. It needs no daemon and no container engine.
//
// A sandbox is a guard, which is glovebox-init in fresh namespaces with ids of the sandbox's own, as on the process rung.
// The guard builds the root that the program will see, and starts runsc beside it. In runsc the first process is
// glovebox-init too, which starts the program. What runsc is lies in one control group and ends with the guard, which ends
// with the lifeline.
package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"

	"glovebox"
	"glovebox/driver"
	"glovebox/internal/hostside"
	"glovebox/internal/lockfile"
)

// Config says where the driver finds and puts things. It is read by New only.
type Config struct {
	// Runsc is the path of runsc. Empty: beside the running program.
	Runsc string
	// Init is the path of glovebox-init. Empty: beside the running program.
	Init string
	// Cgroup is as for the process rung (see hostside.NewGroups).
	Cgroup string
	// IDs is the pool of host ids for root. Zero: 65536 ids from 0x70000000.
	IDs hostside.IDPool
	// RuntimeDir holds the id locks, which all engines of one user must share. Empty: /run/glovebox for root, else
	// /tmp/glovebox-UID.
	RuntimeDir string
	// NetworkDevice is the machine's device of networks. Empty: /dev/net/tun.
	NetworkDevice string
	// ScratchDir holds the backing files of workspaces on disk. Required.
	ScratchDir string
}

// Driver makes sandboxes of the gVisor rung. It is safe for concurrent use.
type Driver struct {
	cfg      Config
	groups   *hostside.Groups
	around   hostside.Surroundings
	unmapped func() *hostside.Refusal // why root has no ids to give, if so
	found    found
}

// Overhead is the memory that a sandbox may take beside its limit: the kernel in user space, what serves it files, and what
// they keep for the program. It was measured to be 30 to 45 MiB for programs that do little; the rest is for those that have
// much open, and for the tables of pages of large ones.
const overhead = 64 * glovebox.MiB

// New checks cfg and the platform. It looks at the machine only when something is started or examined.
func New(cfg Config) (*Driver, error) {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		return nil, glovebox.Errorf(glovebox.CodeUnavailable, "run it on linux/amd64",
			"the gvisor rung runs on linux/amd64; this is %s/%s", runtime.GOOS, runtime.GOARCH)
	}
	if cfg.ScratchDir == "" {
		return nil, errors.New("gvisor driver: ScratchDir is empty")
	}
	for name, path := range map[string]*string{"glovebox-init": &cfg.Init, "runsc": &cfg.Runsc} {
		if *path == "" {
			self, err := os.Executable()
			if err != nil {
				return nil, fmt.Errorf("find %s: %w", name, err)
			}
			*path = filepath.Join(filepath.Dir(self), name)
		}
	}
	if cfg.NetworkDevice == "" {
		cfg.NetworkDevice = hostside.TunDevice
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
	d := &Driver{cfg: cfg, groups: hostside.NewGroups(cfg.Cgroup, cfg.RuntimeDir)}
	d.around = hostside.Surroundings{Proc: "/proc", Root: os.Getuid() == 0}
	d.unmapped = sync.OnceValue(func() *hostside.Refusal { return d.around.Unmapped(d.cfg.IDs) })
	return d, nil
}

// Isolation is the gVisor rung.
func (d *Driver) Isolation() glovebox.Isolation { return glovebox.IsolationGVisor }

// Overhead is the memory that a sandbox may take beside its limit.
func (d *Driver) Overhead() glovebox.Size { return overhead }

// Start makes a sandbox: a guard with the program's root built, and a kernel that waits for the program.
func (d *Driver) Start(ctx context.Context, spec driver.Spec) (driver.Sandbox, error) {
	s, err := d.start(ctx, spec, spec.Limits.Memory)
	if err != nil {
		return nil, err
	}
	return s, nil
}
