package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"glovebox"
	"glovebox/driver"
	"glovebox/internal/cgroup"
	"glovebox/internal/hostside"
	"glovebox/internal/sandboxinit/wire"
)

// startTimeout bounds a start on a machine that is very busy; it usually takes a third of a second.
const startTimeout = 30 * time.Second

// hostname is what every sandbox is called inside.
const hostname = "sandbox"

// start makes a sandbox with so much memory for the program.
func (d *Driver) start(ctx context.Context, spec driver.Spec, memory glovebox.Size) (*sandbox, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, errors.New("the sandbox did not start in 30 s"))
	defer cancel()
	if err := d.Available(ctx); err != nil {
		return nil, err
	}
	if err := d.checkMachine(spec.Limits); err != nil {
		return nil, err
	}
	i, err := hostside.TakeIDs(d.cfg.IDs, d.cfg.RuntimeDir)
	if err != nil {
		return nil, err
	}
	s := &sandbox{driver: d, spec: spec, ids: i, gone: make(chan struct{}), memory: memory}
	if err := s.start(ctx); err != nil {
		if left := s.abandon(ctx); left != nil {
			err = errors.Join(err, driver.ErrLeftBehind, left)
		}
		return nil, err
	}
	return s, nil
}

func (s *sandbox) start(ctx context.Context) error {
	host, err := s.driver.groups.Find(ctx)
	if err != nil {
		return fmt.Errorf("find control groups: %w", err)
	}
	name := s.ids.GroupName(s.spec.ID)
	if s.group, err = host.New(s.driver.groups.Parent(host), name); err != nil {
		return fmt.Errorf("make control groups: %w", err)
	}
	if err := s.group.Delegate(int(s.ids.Init), int(s.ids.Init)); err != nil {
		return fmt.Errorf("make control groups: %w", err)
	}
	if err := s.spawn(ctx); err != nil {
		return err
	}
	if err := s.sendSetup(ctx); err != nil {
		return err
	}
	if err := s.group.Limit(cgroup.Limits{
		Memory: int64(s.memory + overhead), Processes: hostProcesses(s.spec.Limits), CPUs: s.spec.Limits.CPUs,
	}); err != nil {
		return explainLimit(err, s.spec.Limits)
	}
	s.driver.groups.SweepOnce(host, s.ids.Token, name)
	if err := s.awaitReady(ctx); err != nil {
		return err
	}
	if s.assembly != nil {
		return nil
	}
	return s.boot(ctx)
}

// hostProcesses bounds what the kernel in user space takes of the host's processes and threads. Each of the program's is one
// or two of the host's, beside its own.
func hostProcesses(l glovebox.Limits) int64 { return 4*l.Processes + 256 }

// spawn starts the guard in its namespaces, waiting to be told what to build, with its ids mapped.
func (s *sandbox) spawn(ctx context.Context) error {
	conn, far, err := wire.Pair()
	if err != nil {
		return err
	}
	defer far.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return errors.Join(fmt.Errorf("open null device: %w", err), conn.Close())
	}
	defer null.Close()
	cradle := -1
	if f := s.group.Cradle(); f != nil {
		cradle = wire.FD(f)
	}
	guard, err := hostside.Spawn(s.driver.cfg.Init, null, far, cradle, kernelCapabilities...)
	if err != nil {
		return errors.Join(s.driver.around.Spawn(s.driver.cfg.Init, err), conn.Close())
	}
	s.guard = guard
	go func() {
		// A guard that cannot be waited for counts as alive: its ids stay taken.
		if guard.Wait() == nil {
			close(s.gone)
		}
	}()
	s.link = hostside.NewLink(hostside.LinkConfig{Conn: conn, Ended: s.launcherEnded, End: guard.Kill,
		Explain: s.driver.around.Failure})
	if err := s.ids.WriteMaps(ctx, guard.PID, false); err != nil {
		return fmt.Errorf("map ids: %w", err)
	}
	return nil
}

func (s *sandbox) sendSetup(ctx context.Context) error {
	config, err := configure(hostname, s.spec.Limits.Disk, s.spec.Network)
	if s.assembly != nil {
		config, err = s.assembly.configure()
	}
	if err != nil {
		return fmt.Errorf("describe the sandbox to runsc: %w", err)
	}
	spec := s.spec
	setup := &wire.Setup{
		KeepOwner: s.ids.KeepOwner, Kernel: true, Inputs: spec.Inputs, Config: config, Network: spec.Network,
		Beside:    []wire.Mount{{Source: s.driver.cfg.Runsc, Target: runscPath}},
		DiskBytes: int64(spec.Limits.Disk), DiskFiles: spec.Limits.Files, Hostname: hostname,
		OpenFiles: hostOpenFiles,
	}
	for _, m := range spec.Root.Mounts {
		setup.Mounts = append(setup.Mounts, wire.Mount(m))
	}
	for _, l := range spec.Root.Links {
		setup.Links = append(setup.Links, wire.Link(l))
	}
	for _, f := range spec.Root.Files {
		setup.Files = append(setup.Files, wire.File(f))
	}
	var files []*os.File
	if !hostside.InMemory(spec.Limits) {
		disk, err := hostside.MakeDisk(ctx, s.driver.cfg.ScratchDir, spec.Limits, s.ids)
		if err != nil {
			return fmt.Errorf("make workspace: %w", err)
		}
		defer disk.Close()
		setup.DiskGiven, files = true, []*os.File{disk}
	}
	return s.link.Send(wire.Message{Setup: setup}, files...)
}

// hostOpenFiles is the limit of descriptors of runsc, which has some for each file that the program has open or has used.
const hostOpenFiles = 1 << 20

func (s *sandbox) awaitReady(ctx context.Context) error {
	r, err := s.link.Await(ctx)
	if err != nil {
		return fmt.Errorf("build sandbox: %w", err)
	}
	if r.Message.Ready == nil || len(r.Files) != 1 {
		wire.CloseAll(r.Files)
		return errors.New("build sandbox: unexpected answer")
	}
	st, err := hostside.Measure(r.Files[0])
	if err != nil {
		wire.CloseAll(r.Files)
		return err
	}
	s.data = r.Files[0]
	s.baseline = (int64(st.Blocks) - int64(st.Bfree)) * st.Bsize
	return nil
}

// explainLimit says which limit the machine cannot give.
func explainLimit(err error, l glovebox.Limits) error {
	var few *cgroup.TooFewCPUsError
	if errors.As(err, &few) {
		return &glovebox.Error{Code: glovebox.CodeUnavailable, Op: "limit CPUs", Err: err,
			Public: fmt.Sprintf("%g CPUs were granted, and Glovebox may use %d here", l.CPUs, few.Allowed),
			Fix:    fmt.Sprintf("ask for --cpus %d at most", few.Allowed)}
	}
	return fmt.Errorf("make control groups: %w", err)
}

// leastMemory is what a program has at least. On the process rung the kernel refuses what is less by itself.
const leastMemory = glovebox.MiB

// checkMachine refuses what could not be given, before anything is made.
func (d *Driver) checkMachine(l glovebox.Limits) error {
	if d.around.Root {
		if r := d.unmapped(); r != nil {
			return r.Because("take ids", nil)
		}
	}
	if l.Memory < leastMemory {
		return glovebox.Errorf(glovebox.CodeInvalid, fmt.Sprintf("ask for --memory %v at least", leastMemory),
			"%v of memory is not enough for any program", l.Memory)
	}
	return hostside.CheckOwnLimits(l)
}

// kernelCapabilities are what runsc needs beside what any init has, over the sandbox's own namespaces: what serves files may
// keep a set-id bit, which nothing honours, what makes namespaces within may map id 0, and what starts the kernel gives it a
// packet socket on the interface of its network.
var kernelCapabilities = []uintptr{unix.CAP_FSETID, unix.CAP_SETFCAP, unix.CAP_NET_RAW}
