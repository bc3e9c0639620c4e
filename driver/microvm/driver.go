// Package microvm is the microVM rung: a program on a kernel of its own, in a machine that QEMU makes with as few devices
// as do.
//
// QEMU is itself the program of a sandbox of another driver, the jail: it has ids, namespaces, control groups and a filter
// of its own, opens nothing by name, listens nowhere, and is bounded and killed from outside. Inside the machine an agent
// of ours is process 1 (see package guest) and uses the process rung on the guest's kernel, so that the program stands
// behind that fence too. Driver and agent speak over one virtio port (see package guestlink); nothing that comes from there
// is trusted.
//
// The rung needs KVM. Emulation is for tests: QEMU's makers do not hold it for a security boundary.
package microvm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"glovebox"
	"glovebox/driver"
)

// Config says where the driver finds things. It is read by New only.
type Config struct {
	// Jail makes the sandboxes that QEMU runs in: the process rung. It must give descriptors (driver.Command.Files). Required.
	Jail driver.Driver
	// Guest and Init are the paths of glovebox-guest and glovebox-init. Empty: beside the running program.
	Guest, Init string
	// QEMU is the path of qemu-system-x86_64. Empty: where systems have it.
	QEMU string
	// Kernel is a folder with boot/vmlinuz-VERSION and lib/modules/VERSION, of which the newest cloud kernel is taken. Empty:
	// /.
	Kernel string
	// CacheDir keeps images of the root, which are large; it is made, and must be nobody else's. Required.
	CacheDir string
	// ScratchDir holds files that live as long as a sandbox. Required.
	ScratchDir string
	// Emulated does without KVM. It is for tests: emulation is no security boundary, which the posture then says.
	Emulated bool
}

// What a machine has beside the memory of its run.
const (
	guestBeside = 160 * glovebox.MiB // of the guest's memory: its kernel, its tables, the agent
	qemuKVM     = 96 * glovebox.MiB  // QEMU itself
	qemuTCG     = 256 * glovebox.MiB // with what it translated
	mostMemory  = 4 * glovebox.GiB   // for a run: the tables of more do not fit in guestBeside
)

// Driver makes sandboxes of the microVM rung. It is safe for concurrent use.
type Driver struct {
	cfg  Config
	find func() (found, error) // what there is on this machine, with what is missing as an error

	booting sync.Mutex
	boot    *bootFiles // of the kernel that was found last

	swept sync.Once // what others left

	imaging sync.Mutex
	images  map[string]*making // by path

	tsc func() uint64 // how fast the CPU's counter of time stamps counts, in kHz: measured once
}

// New checks cfg and the platform. It looks at the machine only when something is started or examined.
func New(cfg Config) (*Driver, error) {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		return nil, glovebox.Errorf(glovebox.CodeUnavailable, "run it on linux/amd64",
			"the microvm rung runs on linux/amd64; this is %s/%s", runtime.GOOS, runtime.GOARCH)
	}
	if cfg.Jail == nil || cfg.CacheDir == "" || cfg.ScratchDir == "" {
		return nil, errors.New("microvm driver: Jail, CacheDir and ScratchDir are required")
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find glovebox-guest: %w", err)
	}
	for name, path := range map[string]*string{"glovebox-guest": &cfg.Guest, "glovebox-init": &cfg.Init} {
		if *path == "" {
			*path = filepath.Join(filepath.Dir(self), name)
		}
	}
	if cfg.Kernel == "" {
		cfg.Kernel = "/"
	}
	d := &Driver{cfg: cfg, images: map[string]*making{}, tsc: sync.OnceValue(measureTSC)}
	d.find = remember(5*time.Second, d.look)
	return d, nil
}

// remember calls look again when the last answer is older than age.
func remember(age time.Duration, look func() (found, error)) func() (found, error) {
	var mu sync.Mutex
	var at time.Time
	var last found
	var lastErr error
	return func() (found, error) {
		mu.Lock()
		defer mu.Unlock()
		if at.IsZero() || time.Since(at) > age {
			last, lastErr = look()
			at = time.Now()
		}
		return last, lastErr
	}
}

// Isolation is the microvm rung.
func (d *Driver) Isolation() glovebox.Isolation { return glovebox.IsolationMicroVM }

// Available is nil, or says what this machine lacks and what mends it.
func (d *Driver) Available(context.Context) error {
	_, err := d.find()
	return err
}

// Overhead is the memory that a machine takes beside the limit of its run.
func (d *Driver) Overhead() glovebox.Size { return guestBeside + d.qemuMemory() }

func (d *Driver) qemuMemory() glovebox.Size {
	if d.cfg.Emulated {
		return qemuTCG
	}
	return qemuKVM
}

// bootLimit bounds the start of a machine. Under emulation and on a busy machine it may really take a minute.
func (d *Driver) bootLimit() time.Duration {
	if d.cfg.Emulated {
		return 3 * time.Minute
	}
	return 30 * time.Second
}

// checkSpec refuses what a machine cannot give.
func checkSpec(spec driver.Spec) error {
	l := spec.Limits
	if len(spec.Devices) > 0 {
		return errors.New("a program in a microVM cannot be shown devices of the host")
	}
	if l.Memory > mostMemory {
		return glovebox.Errorf(glovebox.CodeUnavailable,
			fmt.Sprintf("ask for --memory of at most %v, or for another rung", mostMemory),
			"a microVM has at most %v for its program, and %v were granted", mostMemory, l.Memory)
	}
	return nil
}

// Start boots a machine and makes a sandbox in it.
func (d *Driver) Start(ctx context.Context, spec driver.Spec) (driver.Sandbox, error) {
	s, err := d.cold(ctx, spec, nil)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// cold boots a machine and makes a sandbox in it, with an interpreter that waits if hold says so.
func (d *Driver) cold(ctx context.Context, spec driver.Spec, hold *driver.Hold) (*sandbox, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, d.bootLimit(), fmt.Errorf("the machine did not start in %v", d.bootLimit()))
	defer cancel()
	if err := checkSpec(spec); err != nil {
		return nil, err
	}
	s := &sandbox{driver: d, spec: spec, hold: hold}
	if err := s.start(ctx); err != nil {
		return nil, s.abandon(ctx, err)
	}
	return s, nil
}

var _ driver.Warmer = (*Driver)(nil)
