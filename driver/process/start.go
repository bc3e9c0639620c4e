package process

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

// startLimit bounds a start on a machine that is very busy; it usually takes a few milliseconds.
const startLimit = 30 * time.Second

// bounded is ctx for a start, of which what is said when it takes too long.
func (d *Driver) bounded(ctx context.Context, what string) (context.Context, context.CancelFunc) {
	limit := d.cfg.StartLimit
	return context.WithTimeoutCause(ctx, limit, fmt.Errorf("%s in %v", what, limit))
}

// start makes a sandbox of what of says.
func (d *Driver) start(ctx context.Context, spec driver.Spec, of origin) (*sandbox, error) {
	ctx, cancel := d.bounded(ctx, "the sandbox did not start")
	defer cancel()
	if err := d.checkMachine(spec.Limits); err != nil {
		return nil, err
	}
	i, err := hostside.TakeIDs(d.cfg.IDs, d.cfg.RuntimeDir)
	if err != nil {
		return nil, err
	}
	s := &sandbox{driver: d, spec: spec, origin: of, ids: i, gone: make(chan struct{})}
	of.from.note(s, true)
	if err := s.start(ctx); err != nil {
		d.found.failed(err)
		if left := s.abandon(ctx); left != nil {
			err = errors.Join(err, driver.ErrLeftBehind, left)
		}
		return nil, err
	}
	return s, nil
}

// start makes the control groups and starts init in its namespaces, then tells it what to build and sets the limits
// meanwhile.
func (s *sandbox) start(ctx context.Context) error {
	host, err := s.driver.groups.Find(ctx)
	if err != nil {
		return fmt.Errorf("find control groups: %w", err)
	}
	name := s.ids.GroupName(s.spec.ID)
	if s.origin.from != nil {
		s.group, err = s.origin.from.box.group.Below(name)
	} else {
		s.group, err = host.New(s.driver.groups.Parent(host), name)
	}
	if err != nil {
		return fmt.Errorf("make control groups: %w", err)
	}
	bearer := s.ids.Init // whoever bears the program
	if s.origin.from != nil {
		bearer = s.origin.from.box.ids.Init
	}
	if err := s.group.Delegate(int(bearer), int(bearer)); err != nil {
		return fmt.Errorf("make control groups: %w", err)
	}
	if err := s.spawn(ctx); err != nil {
		return err
	}
	if err := s.sendSetup(ctx); err != nil {
		return err
	}
	limits := s.spec.Limits
	if err := s.group.Limit(cgroup.Limits{
		Memory: int64(s.startMemory()), Processes: limits.Processes, CPUs: limits.CPUs,
	}); err != nil {
		return explainLimit(err, limits)
	}
	if s.origin.template {
		// On a busy machine many wait for what it makes.
		if err := s.group.Favor(); err != nil {
			return fmt.Errorf("limit control groups: %w", err)
		}
	}
	s.driver.groups.SweepOnce(host, s.ids.Token, name)
	return s.awaitReady(ctx)
}

// startMemory is the memory that the sandbox may have now.
func (s *sandbox) startMemory() glovebox.Size {
	if s.origin.held > 0 && !s.resized {
		return s.origin.held
	}
	return s.spec.Limits.Memory
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

// abandon closes a sandbox that could not be made.
func (s *sandbox) abandon(ctx context.Context) error {
	ctx, cancel := hostside.UndoContext(ctx)
	defer cancel()
	return s.Close(ctx)
}

// spawn starts init in its namespaces, waiting to be told what to build, with its ids mapped.
func (s *sandbox) spawn(ctx context.Context) error {
	conn, far, err := wire.Pair()
	if err != nil {
		return err
	}
	defer far.Close()
	var started *hostside.Init
	if s.origin.from != nil {
		started, err = s.origin.from.fork(ctx, s, far)
	} else {
		started, err = s.spawnFresh(far)
	}
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	s.init = started
	go func() {
		// An init that cannot be waited for counts as alive: its ids stay taken.
		if started.Wait() == nil {
			close(s.gone)
		}
	}()
	s.link = hostside.NewLink(hostside.LinkConfig{Conn: conn, Ended: s.end, End: started.Kill,
		Explain: s.driver.around.Failure})
	if s.origin.from != nil {
		return nil
	}
	if err := s.ids.WriteMaps(ctx, started.PID, s.origin.template); err != nil {
		return fmt.Errorf("map ids: %w", err)
	}
	return nil
}

// spawnFresh starts an init of this process's own.
func (s *sandbox) spawnFresh(far *os.File) (*hostside.Init, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("open null device: %w", err)
	}
	defer null.Close()
	cradle := -1
	if f := s.group.Cradle(); f != nil {
		cradle = wire.FD(f)
	}
	started, err := hostside.Spawn(s.driver.cfg.Init, null, far, cradle)
	if err != nil {
		return nil, s.driver.around.Spawn(s.driver.cfg.Init, err)
	}
	return started, nil
}

func (s *sandbox) sendSetup(ctx context.Context) error {
	spec := s.spec
	setup := &wire.Setup{
		SingleID: s.ids.Single, KeepOwner: s.ids.KeepOwner, Template: s.origin.template, Inputs: spec.Inputs,
		Network: spec.Network, DiskBytes: int64(spec.Limits.Disk), DiskFiles: spec.Limits.Files,
		Hostname: hostname, Filter: s.filter(), OpenFiles: uint64(spec.Limits.OpenFiles),
		Landlock: s.driver.abi() > 0 && !s.origin.template,
	}
	for _, m := range spec.Root.Mounts {
		if s.origin.from != nil {
			m.Source = m.Target // what the template shows
		}
		setup.Mounts = append(setup.Mounts, wire.Mount(m))
	}
	for _, m := range spec.Devices {
		setup.Devices = append(setup.Devices, wire.Mount(m))
	}
	for _, l := range spec.Root.Links {
		setup.Links = append(setup.Links, wire.Link(l))
	}
	for _, f := range spec.Root.Files {
		setup.Files = append(setup.Files, wire.File(f))
	}
	if s.origin.from != nil && spec.Inputs != "" {
		inside, err := s.origin.from.inside(spec.Inputs)
		if err != nil {
			return err
		}
		setup.Inputs = inside
	}
	var files []*os.File
	if !hostside.InMemory(spec.Limits) {
		disk, err := s.driver.makeDisk(ctx, spec.Limits, s.ids)
		if err != nil {
			return fmt.Errorf("make workspace: %w", err)
		}
		defer disk.Close()
		setup.DiskGiven, files = true, []*os.File{disk}
	}
	return s.link.Send(wire.Message{Setup: setup}, files...)
}

// makeDisk makes the sandbox's own file system outside of memory, or takes the one that there is for it.
func (d *Driver) makeDisk(ctx context.Context, l glovebox.Limits, i *hostside.IDs) (*os.File, error) {
	if d.cfg.WorkDisk != "" {
		return hostside.TakeDisk(d.cfg.WorkDisk, l, i)
	}
	return hostside.MakeDisk(ctx, d.cfg.ScratchDir, l, i)
}

// filter is the system call filter of what is executed in the sandbox.
func (s *sandbox) filter() []byte {
	switch {
	case s.origin.template:
		return s.driver.template
	case s.group.ControlsCPUs():
		return s.driver.filter
	}
	return s.driver.pinned
}

// hostname is what every sandbox is called inside.
const hostname = "sandbox"

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
	s.data, s.landlock, s.buffer = r.Files[0], r.Message.Ready.LandlockABI, r.Message.Ready.Buffer
	s.baseline = (int64(st.Blocks) - int64(st.Bfree)) * st.Bsize
	return nil
}

// checkMachine refuses what could not be given, before anything is made: a fence that the kernel lacks, and what a hard
// limit of this process stands against.
func (d *Driver) checkMachine(l glovebox.Limits) error {
	if err := d.checkFence(); err != nil {
		return err
	}
	return hostside.CheckOwnLimits(l)
}

// checkFence refuses where ids or a fence are missing.
func (d *Driver) checkFence() error {
	if d.around.Root {
		if r := d.unmapped(); r != nil {
			return r.Because("take ids", nil)
		}
	}
	if d.abi() == 0 && !d.accepts("landlock") && d.around.Filtered() {
		return glovebox.Errorf(glovebox.CodeUnavailable, hostside.SeccompFix,
			"a filter of system calls over Glovebox, as containers have it, hides Landlock, the second fence on files")
	}
	if d.abi() == 0 && !d.accepts("landlock") {
		return glovebox.Errorf(glovebox.CodeUnavailable,
			"boot a kernel with Landlock (lsm=…,landlock), or set drivers.process.accept: [landlock]",
			"this kernel has no Landlock, the second fence on files")
	}
	return nil
}

// landlockABI asks the kernel for its version of Landlock; 0 is none (landlock_create_ruleset(2)).
func landlockABI() int {
	n, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(n)
}
