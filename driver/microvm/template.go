package microvm

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"glovebox"
	"glovebox/driver"
	"glovebox/internal/guestlink"
)

// copyMemory is the most memory of a run whose machine is a clone: that of the machine which is saved.
const copyMemory = 512 * glovebox.MiB

// leastHeld is what an interpreter has until it gets code.
const leastHeld = 64 * glovebox.MiB

// Sizes is the memory of machines that wait. What was saved of a template is its memory, as far as it was written to; while
// it is made there is a whole machine.
func (d *Driver) Sizes(hold driver.Hold) driver.Sizes {
	return driver.Sizes{Alone: max(leastHeld, hold.Memory), Copy: leastHeld, Template: copyMemory + d.Overhead()}
}

// template is a machine that was booted once and saved, with a template of the process rung in it where there is one for
// the language. Clones have its memory as private copies: a page is copied when one of the two writes to it.
type template struct {
	driver *Driver
	spec   driver.Spec
	hold   driver.Hold
	found  found
	made   map[string]fileID // files that it was made of
	shape  shape
	inside bool     // the guest has a template too
	image  *os.File // of the root
	memory *os.File // of the guest; sealed
	state  *os.File // of its devices; sealed

	life context.Context // ends when nothing is cloned any more, and with it what is being cloned
	end  context.CancelFunc

	mu     sync.Mutex
	copies map[*sandbox]bool
	making sync.WaitGroup
}

// Template boots a machine, loads the interpreter's modules there, and saves it.
func (d *Driver) Template(ctx context.Context, spec driver.Spec, hold driver.Hold) (_ driver.Template, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*d.bootLimit(), errors.New("the template was not ready in time"))
	defer cancel()
	f, err := d.find()
	if err != nil {
		return nil, err
	}
	boot, err := d.bootFiles(f)
	if err != nil {
		return nil, err
	}
	spec.Limits.Memory = copyMemory
	t := &template{driver: d, spec: spec, hold: hold, found: f, made: boot.ids, inside: hold.Lang == "python",
		copies: map[*sandbox]bool{}}
	t.life, t.end = context.WithCancel(context.Background())
	if err := t.make(ctx, boot); err != nil {
		return nil, errors.Join(fmt.Errorf("make a template: %w", err), t.release())
	}
	return t, nil
}

// make boots the machine and saves it.
func (t *template) make(ctx context.Context, boot *bootFiles) (err error) {
	d := t.driver
	if t.image, err = d.rootImage(ctx, t.spec.Root); err != nil {
		return err
	}
	t.shape = d.shapeOf(t.spec.Limits, []diskFile{{guestlink.SerialRoot, t.image, true}})
	if t.memory, err = newMemory("guest"); err != nil {
		return err
	}
	if err := t.memory.Truncate(int64(t.shape.memory)); err != nil {
		return fmt.Errorf("size memory: %w", err)
	}
	if t.state, err = newMemory("state"); err != nil {
		return err
	}
	m, err := d.launch(ctx, t.spec.ID, t.spec.Limits, t.found, from{boot: boot, memory: t.memory}, t.shape)
	if err != nil {
		return err
	}
	if err := t.fill(ctx, m); err != nil {
		return m.abandon(ctx, err)
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
	defer cancel()
	if err := m.close(undo); err != nil {
		return errors.Join(err, driver.ErrLeftBehind)
	}
	// Nobody writes to either any more, and nobody can.
	return errors.Join(seal(t.memory), seal(t.state))
}

// fill has the guest load what there is to load, and saves it.
func (t *template) fill(ctx context.Context, m *machine) error {
	if err := m.meet(ctx); err != nil {
		return err
	}
	if t.inside {
		s := &sandbox{driver: t.driver, spec: t.spec, machine: m, late: true}
		start := s.message()
		start.Hold, start.Template = &t.hold, true
		if err := m.link.Call(ctx, guestlink.MethodTemplate, start, nil); err != nil {
			return fmt.Errorf("load the interpreter: %w", err)
		}
	}
	if err := m.qmp.do(ctx, "stop", nil, nil); err != nil {
		return err
	}
	return m.save(ctx, t.state)
}

// stateFD is the place of the file that a machine is restored from: behind the sockets.
const stateFD = 5

// withoutMemory leaves the guest's memory out of what is saved: it is a file of its own.
func (m *machine) withoutMemory(ctx context.Context) error {
	type capability struct {
		Capability string `json:"capability"`
		State      bool   `json:"state"`
	}
	return m.qmp.do(ctx, "migrate-set-capabilities",
		map[string]any{"capabilities": []capability{{"x-ignore-shared", true}}}, nil)
}

// save writes the state of a machine that is stopped.
func (m *machine) save(ctx context.Context, to *os.File) error {
	if err := m.withoutMemory(ctx); err != nil {
		return err
	}
	if err := m.qmp.do(ctx, "getfd", map[string]string{"fdname": "state"}, nil, to); err != nil {
		return err
	}
	if err := m.qmp.do(ctx, "migrate", map[string]string{"uri": "fd:state"}, nil); err != nil {
		return err
	}
	return m.poll(ctx, "query-migrate", func(status string) (bool, error) {
		if status == "failed" || status == "cancelled" {
			return false, fmt.Errorf("save the machine: %s", status)
		}
		return status == "completed", nil
	})
}

// restore reads the state of a machine that was saved; it stands still then.
func (m *machine) restore(ctx context.Context) error {
	if err := m.withoutMemory(ctx); err != nil {
		return err
	}
	if err := m.qmp.do(ctx, "migrate-incoming", map[string]string{"uri": fmt.Sprintf("fd:%d", stateFD)}, nil); err != nil {
		return err
	}
	return m.poll(ctx, "query-status", func(status string) (bool, error) { return status != "inmigrate", nil })
}

// poll asks for a status until it is what is waited for. QEMU has events for both, but tells them to nobody who came later.
func (m *machine) poll(ctx context.Context, command string, done func(string) (bool, error)) error {
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		var is struct {
			Status string `json:"status"`
		}
		if err := m.qmp.do(ctx, command, nil, &is); err != nil {
			return err
		}
		if ok, err := done(is.Status); ok || err != nil {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", command, context.Cause(ctx))
		}
	}
}

// Origin is restored: a sandbox is a clone of the machine that was saved.
func (t *template) Origin() string { return driver.StartRestored }

// Ended is closed when nothing can be cloned any more.
func (t *template) Ended() <-chan struct{} { return t.life.Done() }

var errEnded = errors.New("clone machine: the template is closed, or what it was made of has changed")

// begin counts s among the clones, unless there are to be no more. A template of which the kernel, QEMU or the agent has
// been exchanged is never restored: it ends.
func (t *template) begin(s *sandbox) error {
	now, err := t.driver.sources(t.found)
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil || !sameFiles(now, t.made) {
		t.end()
	}
	if t.life.Err() != nil {
		return errors.Join(errEnded, err)
	}
	t.copies[s] = true
	t.making.Add(1)
	return nil
}

// Fork makes a clone, in which the interpreter then waits; the clone stands still until it is needed.
func (t *template) Fork(ctx context.Context, spec driver.Spec) (driver.HeldSandbox, error) {
	d := t.driver
	ctx, cancel := context.WithTimeoutCause(ctx, d.bootLimit(), fmt.Errorf("the clone was not ready in %v", d.bootLimit()))
	defer cancel()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer context.AfterFunc(t.life, func() { stop(errEnded) })()
	l := spec.Limits
	if l.Memory > copyMemory || onDisk(l) || max(1, l.CPUs) > float64(t.shape.cpus) {
		return nil, glovebox.Errorf(glovebox.CodeUnavailable, "start such runs cold",
			"a clone has %v of memory at most, its workspace in memory, and as many CPUs as its template", copyMemory)
	}
	if rel, err := filepath.Rel(t.spec.Inputs, spec.Inputs); spec.Inputs != "" &&
		(t.spec.Inputs == "" || err != nil || rel == "." || !filepath.IsLocal(rel)) {
		return nil, errors.New("clone machine: the folder of inputs is not below that of the template")
	}
	s := &sandbox{driver: d, spec: spec, hold: &t.hold, kernel: t.found.version, late: true, room: copyMemory, of: t}
	if err := t.begin(s); err != nil {
		return nil, err
	}
	defer t.making.Done()
	if err := t.clone(ctx, s); err != nil {
		return nil, s.abandon(ctx, fmt.Errorf("clone machine: %w", err))
	}
	return heldSandbox{s}, nil
}

// clone restores a machine for s and has the interpreter wait in it.
func (t *template) clone(ctx context.Context, s *sandbox) error {
	// A file's place is that of all who have it open: each reads the state from its beginning.
	state, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", t.state.Fd()), os.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer state.Close()
	s.machine, err = t.driver.launch(ctx, s.spec.ID, s.spec.Limits, t.found, from{memory: t.memory, state: state}, t.shape)
	if err != nil {
		return err
	}
	m := s.machine
	if err := m.restore(ctx); err != nil {
		return err
	}
	if err := m.qmp.do(ctx, "cont", nil, nil); err != nil {
		return err
	}
	if err := m.meet(ctx); err != nil {
		return err
	}
	method := guestlink.MethodHold
	if t.inside {
		method = guestlink.MethodFork
	}
	if err := s.build(ctx, method); err != nil {
		return err
	}
	return s.pause(ctx)
}

// forget is called when a clone has been closed.
func (t *template) forget(s *sandbox) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.copies, s)
}

// Close ends the template and the clones that nobody closed. Closing again does nothing.
func (t *template) Close(ctx context.Context) error {
	t.mu.Lock()
	t.end()
	t.mu.Unlock() // who begins now sees that
	t.making.Wait()
	t.mu.Lock()
	left := slices.Collect(maps.Keys(t.copies))
	t.mu.Unlock()
	var err error
	for _, s := range left {
		err = errors.Join(err, s.Close(ctx))
	}
	return errors.Join(err, t.release())
}

// release lets go of what was saved.
func (t *template) release() error {
	t.end()
	t.mu.Lock()
	defer t.mu.Unlock()
	var err error
	for _, f := range []**os.File{&t.image, &t.memory, &t.state} {
		if *f != nil {
			err, *f = errors.Join(err, (*f).Close()), nil
		}
	}
	return err
}
