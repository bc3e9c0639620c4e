package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"syscall"

	"glovebox"
	"glovebox/driver"
	"glovebox/internal/hostside"
	"glovebox/internal/sandboxinit/wire"
)

// Assembly is a program that makes files as root: it may change owners, mount and make devices, on a kernel of its own and
// over nothing outside. It has no network. What it sees of the host cannot be written; what it writes elsewhere than beneath
// /outputs is kept apart and gone after.
type Assembly struct {
	// ID, Limits, Root and Inputs are those of a driver.Spec.
	ID     string
	Limits glovebox.Limits
	Root   driver.Root
	Inputs string
	// Argv is the program, whose path is absolute, with its arguments. Env is its environment.
	Argv, Env []string
	// Log gets what it prints while it runs, from one goroutine at a time.
	Log io.Writer
	// Result is a file beneath /outputs that it leaves, and Take what is done with that. Nothing of the program is alive
	// by then.
	Result string
	Take   func(*os.File) error
}

// rootCapabilities are over the kernel that the assembly has to itself.
var rootCapabilities = []string{"CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH",
	"CAP_FOWNER", "CAP_FSETID",
	"CAP_KILL", "CAP_MKNOD", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_ADMIN", "CAP_SYS_CHROOT",
	"CAP_SYS_PTRACE", "CAP_SYS_RESOURCE"}

// configure writes the configuration of its kernel.
func (a *Assembly) configure() ([]byte, error) {
	b := bundle{Version: "1.0.0", Hostname: hostname, Root: bundleRoot{wire.ImageDir, false}}
	b.Process.Args, b.Process.Env, b.Process.Cwd = a.Argv, a.Env, "/"
	b.Process.Capabilities = map[string][]string{}
	for _, set := range []string{"bounding", "effective", "permitted"} {
		b.Process.Capabilities[set] = rootCapabilities
	}
	for _, kind := range []string{"pid", "ipc", "uts", "mount", "network"} {
		b.Linux.Namespaces = append(b.Linux.Namespaces, bundleNamespace{Type: kind})
	}
	b.Mounts = []bundleMount{
		{"/proc", "proc", "proc", nil},
		{"/tmp", "tmpfs", "tmpfs", []string{"size=256m"}},
		{"/outputs", "bind", path.Join(wire.ImageDir, "outputs"), []string{"rw"}},
	}
	return json.Marshal(b)
}

// assembleArguments are runsc's. What the program writes to its root goes into a file without a name on the sandbox's own
// file system, which is bounded.
func assembleArguments() []string {
	return []string{
		runscPath, "--root=" + stateDir, "--network=none", "--platform=systrap",
		"--overlay2=root:dir=" + path.Join(wire.ImageDir, "workspace"), "--ignore-cgroups", "--host-settings=ignore",
		"run", "--bundle=" + path.Dir(wire.ConfigPath), "assembly",
	}
}

// Assemble runs an assembly to its end. An error of the program's own is a *glovebox.Error with code invalid. Limits are
// enforced from outside, but for time, which ctx bounds.
func (d *Driver) Assemble(ctx context.Context, a Assembly) (err error) {
	if len(a.Argv) == 0 || !path.IsAbs(a.Argv[0]) || a.Take == nil {
		return errors.New("assemble: no program, or nobody to take the result")
	}
	if err := d.Available(ctx); err != nil {
		return err
	}
	ids, err := hostside.TakeIDs(d.cfg.IDs, d.cfg.RuntimeDir)
	if err != nil {
		return err
	}
	s := &sandbox{driver: d, ids: ids, gone: make(chan struct{}), memory: a.Limits.Memory, assembly: &a,
		spec: driver.Spec{ID: a.ID, Limits: a.Limits, Root: a.Root, Inputs: a.Inputs}}
	defer func() { err = errors.Join(err, s.abandon(ctx)) }()
	if err := s.start(ctx); err != nil {
		return fmt.Errorf("assemble: %w", err)
	}
	k := &kernel{launched: make(chan struct{}), said: said{also: a.Log}}
	defer k.close()
	if err := s.execute(ctx, k, assembleArguments()); err != nil {
		return fmt.Errorf("assemble: %w", err)
	}
	select {
	case <-k.launched:
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("assemble: %w", context.Cause(ctx)), s.killGroup(ctx))
	}
	if err := s.killGroup(ctx); err != nil {
		return err
	}
	if err := s.assembled(k); err != nil {
		return err
	}
	f, err := s.Open(a.Result)
	if err != nil {
		return fmt.Errorf("assemble: take the result: %w", err)
	}
	defer f.Close()
	return a.Take(f)
}

// killGroup ends what is left of a kernel.
func (s *sandbox) killGroup(ctx context.Context) error {
	ctx, cancel := hostside.UndoContext(ctx)
	defer cancel()
	return s.group.Kill(ctx)
}

// assembled tells how the program ended.
func (s *sandbox) assembled(k *kernel) error {
	const fix = "read what it printed before that"
	if k.how == nil {
		return errors.New("assemble: its guard has ended")
	}
	status := syscall.WaitStatus(k.how.WaitStatus)
	switch {
	case s.outOfMemory():
		return glovebox.Errorf(glovebox.CodeInvalid, "give it more memory", "what assembles the image used more than %v of memory",
			s.spec.Limits.Memory)
	case status.Signaled():
		return errors.Join(fmt.Errorf("assemble: runsc ended by signal %v", status.Signal()), k.said.error())
	case status.ExitStatus() != 0:
		return &glovebox.Error{Code: glovebox.CodeInvalid, Op: "assemble", Fix: fix, Err: k.said.error(),
			Public: fmt.Sprintf("what assembles the image failed with exit code %d", status.ExitStatus())}
	}
	return nil
}
