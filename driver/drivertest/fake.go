package drivertest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"glovebox"
	"glovebox/driver"
)

// Fake is a driver in memory. Its fields are set before its first use; methods are safe for concurrent use.
type Fake struct {
	// Rung is the rung it claims; empty means process.
	Rung glovebox.Isolation
	// Program is what Exec runs. It must end soon after ctx, which ends when the tree is killed; what it returns then is
	// replaced by SIGKILL. What it started with Fork outlives it.
	Program func(ctx context.Context, p *Proc) driver.Exit
	// Fail, if set, is called before each step (controls, start, hold, template, fork, resize, attach, exec, sample, kill,
	// open, disk, close, end) and may delay it, or fail it by returning an error. A failing close still releases; so does end,
	// which is the close of a template.
	Fail func(step string) error
	// Missing are controls that it reports besides one that is there.
	Missing []glovebox.Control
	// Absent, if set, is asked for what Available says.
	Absent func() error
	// Extra is what Overhead says.
	Extra glovebox.Size
	// Restores makes its templates say that what is forked of them is restored.
	Restores bool
	// Dir is an existing folder for what programs leave in /outputs; without it they leave nothing.
	Dir string

	mu        sync.Mutex
	calls     []string
	live      []string
	held      map[string]*fakeHeld
	templates map[string]*fakeTemplate
	orphans   []string
}

// Calls lists the steps taken so far, samples left out.
func (f *Fake) Calls() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

// Live lists the ids of the sandboxes that are not closed.
func (f *Fake) Live() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.live)
}

func (f *Fake) step(name string) error {
	if name != "sample" {
		f.mu.Lock()
		f.calls = append(f.calls, name)
		f.mu.Unlock()
	}
	if f.Fail == nil {
		return nil
	}
	return f.Fail(name)
}

// Isolation implements driver.Driver.
func (f *Fake) Isolation() glovebox.Isolation {
	if f.Rung == "" {
		return glovebox.IsolationProcess
	}
	return f.Rung
}

// Controls implements driver.Driver.
func (f *Fake) Controls(context.Context) []glovebox.Control {
	f.step("controls")
	return append([]glovebox.Control{{Isolation: f.Isolation(), Name: "fake", Available: true, Required: true}}, f.Missing...)
}

// Available implements driver.Driver.
func (f *Fake) Available(context.Context) error {
	if f.Absent == nil {
		return nil
	}
	return f.Absent()
}

// Overhead implements driver.Driver.
func (f *Fake) Overhead() glovebox.Size { return f.Extra }

// Start implements driver.Driver.
func (f *Fake) Start(ctx context.Context, spec driver.Spec) (driver.Sandbox, error) {
	if err := f.step("start"); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("start: %w", err)
	}
	b, err := f.box(spec)
	if err != nil {
		return nil, err // not b, which would be an interface around a nil pointer
	}
	return b, nil
}

// box makes a sandbox.
func (f *Fake) box(spec driver.Spec) (*fakeBox, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if slices.Contains(f.live, spec.ID) {
		return nil, fmt.Errorf("start: %s lives", spec.ID)
	}
	b := &fakeBox{fake: f, spec: spec, disk: driver.DiskUse{FreeBytes: int64(spec.Limits.Disk), FreeFiles: spec.Limits.Files}}
	if f.Dir != "" {
		b.outputs = filepath.Join(f.Dir, spec.ID)
		if err := os.Mkdir(b.outputs, 0o700); err != nil {
			return nil, err
		}
	}
	f.live = append(f.live, spec.ID)
	return b, nil
}

type fakeBox struct {
	fake    *Fake
	spec    driver.Spec
	outputs string

	mu     sync.Mutex
	proc   *Proc
	disk   driver.DiskUse
	net    *fakeNetwork
	closed bool
}

func (b *fakeBox) Exec(ctx context.Context, cmd driver.Command) (driver.Process, error) {
	if err := b.fake.step("exec"); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("exec: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || b.proc != nil {
		return nil, errors.New("exec: the sandbox is closed or in use")
	}
	b.proc = newProc(b, cmd)
	return fakeProcess{b.proc}, nil
}

func (b *fakeBox) Open(path string) (*os.File, error) {
	if err := b.fake.step("open"); err != nil {
		return nil, err
	}
	if b.outputs == "" {
		return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	}
	if path == "" {
		path = "."
	}
	root, err := os.OpenRoot(b.outputs)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	switch info, err := root.Lstat(path); {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular() && !info.IsDir():
		return nil, driver.ErrNotRegular
	}
	return root.Open(path)
}

func (b *fakeBox) Disk() (driver.DiskUse, error) {
	if err := b.fake.step("disk"); err != nil {
		return driver.DiskUse{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.disk, nil
}

func (b *fakeBox) Close(ctx context.Context) error {
	b.mu.Lock()
	p, closed := b.proc, b.closed
	b.closed = true
	b.mu.Unlock()
	if closed {
		return nil
	}
	err := b.fake.step("close")
	if p != nil {
		err = errors.Join(err, p.kill(ctx))
	}
	err = errors.Join(err, b.detach())
	b.fake.mu.Lock()
	b.fake.live = slices.DeleteFunc(b.fake.live, func(id string) bool { return id == b.spec.ID })
	b.fake.mu.Unlock()
	if b.outputs != "" {
		err = errors.Join(err, os.RemoveAll(b.outputs))
	}
	return err
}

// Proc is a program of a Fake and all that it started, as the program sees it.
type Proc struct {
	Command driver.Command
	Spec    driver.Spec
	// Stdin ends with the program's input or with its life.
	Stdin io.Reader
	// Stdout and Stderr block until they are read, as full pipes do.
	Stdout, Stderr io.Writer

	box      *fakeBox
	released time.Time
	end      context.CancelFunc
	tree     sync.WaitGroup // the leader and what it forked
	streams  [3]*io.PipeReader
	exited   chan struct{}
	dead     chan struct{}

	mu     sync.Mutex
	killed bool // before the leader ended
	lost   bool // likewise, with the whole sandbox
	over   bool // the leader has ended
	exit   driver.Exit
	sample driver.Sample
	rate   float64 // CPUs in use since burning
	since  time.Time
}

func newProc(b *fakeBox, cmd driver.Command) *Proc {
	ctx, end := context.WithCancel(context.Background())
	p := &Proc{Command: cmd, Spec: b.spec, box: b, released: time.Now(), end: end, exited: make(chan struct{}),
		dead: make(chan struct{})}
	p.sample = driver.Sample{Memory: 1 << 20, MemoryPeak: 1 << 20, Processes: 1, ProcessesPeak: 1, CPU: time.Millisecond}
	var ends [3]*io.PipeWriter
	for i := range ends {
		p.streams[i], ends[i] = io.Pipe()
	}
	p.Stdin, p.Stdout, p.Stderr = p.streams[0], ends[1], ends[2]
	go func() { // it ends with the input's next piece: a reader that blocks is nobody's to interrupt
		if cmd.Stdin != nil {
			io.Copy(ends[0], cmd.Stdin)
		}
		ends[0].Close()
	}()
	p.tree.Go(func() {
		exit := driver.Exit{}
		if b.fake.Program != nil {
			exit = b.fake.Program(ctx, p)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		switch p.exit = exit; {
		case p.lost:
			p.exit = driver.Exit{Lost: true}
		case p.killed:
			p.exit = driver.Exit{Signal: syscall.SIGKILL}
		}
		p.over = true
		close(p.exited)
	})
	go func() { // the pipes end with the last of the tree
		p.tree.Wait()
		p.streams[0].Close()
		ends[1].Close()
		ends[2].Close()
		p.Count(func(s *driver.Sample) { s.Processes = 0 })
		close(p.dead)
	}()
	return p
}

// Fork starts a descendant that holds the streams open and outlives the leader; ctx ends when the tree is killed.
func (p *Proc) Fork(ctx context.Context, child func(ctx context.Context)) {
	p.Count(func(s *driver.Sample) { s.Processes++; s.ProcessesPeak = max(s.ProcessesPeak, s.Processes) })
	p.tree.Go(func() {
		child(ctx)
		p.Count(func(s *driver.Sample) { s.Processes-- })
	})
}

// Count changes the counters that Sample shows.
func (p *Proc) Count(change func(*driver.Sample)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settle()
	change(&p.sample)
}

// Burn makes the tree use that many CPUs from now on, until it is killed or Burn(0).
func (p *Proc) Burn(cpus float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settle()
	p.rate = cpus
}

// settle adds the CPU time used since the last call; p.mu is held.
func (p *Proc) settle() {
	now := time.Now()
	p.sample.CPU += time.Duration(p.rate * float64(now.Sub(p.since)))
	p.since = now
}

// SetDisk sets what Disk of the sandbox tells.
func (p *Proc) SetDisk(use driver.DiskUse) {
	p.box.mu.Lock()
	defer p.box.mu.Unlock()
	p.box.disk = use
}

// Leave writes a file into /outputs.
func (p *Proc) Leave(path string, data []byte) error {
	full := filepath.Join(p.box.outputs, path)
	if err := os.MkdirAll(filepath.Dir(full), 0o700); err != nil {
		return err
	}
	return os.WriteFile(full, data, 0o600)
}

// lose ends the tree as the end of its sandbox would.
func (p *Proc) lose() {
	p.mu.Lock()
	p.lost = p.lost || !p.over
	p.mu.Unlock()
	p.end()
}

// kill is idempotent; it returns when the tree is dead or ctx ends.
func (p *Proc) kill(ctx context.Context) error {
	p.mu.Lock()
	p.killed = p.killed || !p.over
	p.settle()
	p.rate = 0
	p.mu.Unlock()
	p.end()
	for _, s := range []any{p.streams[0], p.Stdout, p.Stderr} {
		s.(io.Closer).Close() // whoever of the tree reads or writes them stops
	}
	select {
	case <-p.dead:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("kill: %w", ctx.Err())
	}
}

// fakeProcess is a Proc from outside.
type fakeProcess struct{ p *Proc }

func (f fakeProcess) Stdout() io.Reader         { return f.p.streams[1] }
func (f fakeProcess) Stderr() io.Reader         { return f.p.streams[2] }
func (f fakeProcess) Exited() <-chan struct{}   { return f.p.exited }
func (f fakeProcess) Posture() glovebox.Posture { return glovebox.Posture{"fake": "yes"} }
func (f fakeProcess) Released() time.Time       { return f.p.released }

func (f fakeProcess) Exit() driver.Exit {
	f.p.mu.Lock()
	defer f.p.mu.Unlock()
	return f.p.exit
}

func (f fakeProcess) Sample() (driver.Sample, error) {
	if err := f.p.box.fake.step("sample"); err != nil {
		return driver.Sample{}, err
	}
	f.p.mu.Lock()
	defer f.p.mu.Unlock()
	f.p.settle()
	return f.p.sample, nil
}

func (f fakeProcess) Kill(ctx context.Context) error {
	if err := f.p.box.fake.step("kill"); err != nil {
		return err
	}
	return f.p.kill(ctx)
}
