package drivertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"glovebox"
	"glovebox/driver"
)

// fault is what is wrong with a driver. Each part that is set replaces a part of a driver that works.
type fault struct {
	spec     func(*driver.Spec)
	start    func(ctx context.Context, start func(context.Context) (driver.Sandbox, error)) (driver.Sandbox, error)
	cmd      func(*driver.Command)
	exec     func(*brokenBox, context.Context, driver.Command) (driver.Process, error)
	out      func(text []byte) []byte // of all that is printed
	streams  func() io.Reader
	exit     func(*driver.Exit)
	sample   func(*driver.Sample)
	posture  func(glovebox.Posture)
	disk     func(*driver.DiskUse)
	open     func(path string) (*os.File, error)
	attach   func(n driver.Network, attach func(driver.Network) (driver.NetLink, error)) (driver.NetLink, error)
	kill     func(kill func() error) error
	close    func(close func() error) error
	resize   func() error
	lost     func() <-chan struct{}
	ended    func() <-chan struct{}
	absent   error
	released bool
	slack    time.Duration // of the case, where a fault makes it wait for ever; 0 means 20 s
	maker    bool          // the process that is started anew leaves something behind
}

// broken is a driver with a fault.
type broken struct {
	driver.Warmer
	fault

	mu   sync.Mutex
	made []driver.Sandbox // are really closed at the end
}

func (d *broken) Available(ctx context.Context) error {
	return errors.Join(d.absent, d.Warmer.Available(ctx))
}

func (d *broken) box(s driver.Sandbox, err error) (*brokenBox, error) {
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.made = append(d.made, s)
	return &brokenBox{Sandbox: s, d: d}, nil
}

func (d *broken) Start(ctx context.Context, spec driver.Spec) (driver.Sandbox, error) {
	if d.spec != nil {
		d.spec(&spec)
	}
	start := func(ctx context.Context) (driver.Sandbox, error) {
		b, err := d.box(d.Warmer.Start(ctx, spec))
		if err != nil {
			return nil, err
		}
		return b, nil
	}
	if d.start != nil {
		return d.start(ctx, start)
	}
	return start(ctx)
}

func (d *broken) held(s driver.HeldSandbox, err error) (driver.HeldSandbox, error) {
	b, err := d.box(s, err)
	if err != nil {
		return nil, err
	}
	return &brokenHeld{b, s}, nil
}

func (d *broken) Hold(ctx context.Context, spec driver.Spec, hold driver.Hold) (driver.HeldSandbox, error) {
	if d.start != nil {
		if _, err := d.start(ctx, func(context.Context) (driver.Sandbox, error) { return nil, nil }); err != nil {
			return nil, err
		}
	}
	return d.held(d.Warmer.Hold(ctx, spec, hold))
}

func (d *broken) Template(ctx context.Context, spec driver.Spec, hold driver.Hold) (driver.Template, error) {
	tm, err := d.Warmer.Template(ctx, spec, hold)
	if err != nil {
		return nil, err
	}
	return &brokenTemplate{tm, d}, nil
}

type brokenTemplate struct {
	driver.Template
	d *broken
}

func (t *brokenTemplate) Fork(ctx context.Context, spec driver.Spec) (driver.HeldSandbox, error) {
	if t.d.spec != nil {
		t.d.spec(&spec)
	}
	return t.d.held(t.Template.Fork(ctx, spec))
}

func (t *brokenTemplate) Ended() <-chan struct{} {
	if t.d.ended != nil {
		return t.d.ended()
	}
	return t.Template.Ended()
}

type brokenHeld struct {
	*brokenBox
	held driver.HeldSandbox
}

func (h *brokenHeld) Resize(l glovebox.Limits) error {
	if h.d.resize != nil {
		return h.d.resize()
	}
	return h.held.Resize(l)
}

func (h *brokenHeld) Lost() <-chan struct{} {
	if h.d.lost != nil {
		return h.d.lost()
	}
	return h.held.Lost()
}

type brokenBox struct {
	driver.Sandbox
	d *broken

	mu   sync.Mutex
	last driver.Process
}

func (b *brokenBox) Exec(ctx context.Context, cmd driver.Command) (driver.Process, error) {
	if b.d.cmd != nil {
		b.d.cmd(&cmd)
	}
	if b.d.exec != nil {
		return b.d.exec(b, ctx, cmd)
	}
	return b.really(ctx, cmd)
}

func (b *brokenBox) really(ctx context.Context, cmd driver.Command) (driver.Process, error) {
	p, err := b.Sandbox.Exec(ctx, cmd)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last = &brokenProcess{Process: p, d: b.d}
	return b.last, nil
}

// before is the last program that was started, if there was one.
func (b *brokenBox) before() driver.Process {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.last
}

func (b *brokenBox) Open(path string) (*os.File, error) {
	if b.d.open != nil {
		return b.d.open(path)
	}
	return b.Sandbox.Open(path)
}

func (b *brokenBox) Attach(ctx context.Context, n driver.Network) (driver.NetLink, error) {
	really := func(n driver.Network) (driver.NetLink, error) { return b.Sandbox.Attach(ctx, n) }
	if b.d.attach != nil {
		return b.d.attach(n, really)
	}
	return really(n)
}

func (b *brokenBox) Disk() (driver.DiskUse, error) {
	use, err := b.Sandbox.Disk()
	if b.d.disk != nil {
		b.d.disk(&use)
	}
	return use, err
}

func (b *brokenBox) Close(ctx context.Context) error {
	really := func() error { return b.Sandbox.Close(ctx) }
	if b.d.close != nil {
		return b.d.close(really)
	}
	return really()
}

type brokenProcess struct {
	driver.Process
	d *broken

	once sync.Once
	text *io.PipeReader
}

func (p *brokenProcess) Stdout() io.Reader {
	if p.d.streams != nil {
		return p.d.streams()
	}
	if p.d.out == nil {
		return p.Process.Stdout()
	}
	p.once.Do(func() { // all at its end
		read, write := io.Pipe()
		p.text = read
		go func() {
			text, _ := io.ReadAll(p.Process.Stdout())
			write.Write(p.d.out(text))
			write.Close()
		}()
	})
	return p.text
}

func (p *brokenProcess) Stderr() io.Reader {
	if p.d.streams != nil {
		return p.d.streams()
	}
	return p.Process.Stderr()
}

func (p *brokenProcess) Exit() driver.Exit {
	e := p.Process.Exit()
	if p.d.exit != nil {
		p.d.exit(&e)
	}
	return e
}

func (p *brokenProcess) Sample() (driver.Sample, error) {
	s, err := p.Process.Sample()
	if p.d.sample != nil {
		p.d.sample(&s)
	}
	return s, err
}

func (p *brokenProcess) Kill(ctx context.Context) error {
	really := func() error { return p.Process.Kill(ctx) }
	if p.d.kill != nil {
		return p.d.kill(really)
	}
	return really()
}

func (p *brokenProcess) Posture() glovebox.Posture {
	said := glovebox.Posture{}
	for name, value := range p.Process.Posture() {
		said[name] = value
	}
	if p.d.posture != nil {
		p.d.posture(said)
	}
	return said
}

func (p *brokenProcess) Released() time.Time {
	if p.d.released {
		return time.Time{}
	}
	return p.Process.Released()
}

// recorder is a test whose failure is seen and not shared.
type recorder struct {
	testing.TB
	mu       sync.Mutex
	failed   bool
	skipped  bool
	said     bytes.Buffer
	cleanups []func()
}

func (r *recorder) note(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = true
	fmt.Fprintln(&r.said, text)
}

func (r *recorder) Helper()                           {}
func (r *recorder) Error(args ...any)                 { r.note(fmt.Sprintln(args...)) }
func (r *recorder) Errorf(format string, args ...any) { r.note(fmt.Sprintf(format, args...)) }
func (r *recorder) Fatal(args ...any)                 { r.Error(args...); runtime.Goexit() }
func (r *recorder) Fatalf(f string, args ...any)      { r.Errorf(f, args...); runtime.Goexit() }
func (r *recorder) Fail()                             { r.note("failed") }
func (r *recorder) FailNow()                          { r.Fail(); runtime.Goexit() }
func (r *recorder) Log(...any)                        {}
func (r *recorder) Logf(string, ...any)               {}
func (r *recorder) Skip(args ...any)                  { r.skipped = true; runtime.Goexit() }
func (r *recorder) Skipf(string, ...any)              { r.skipped = true; runtime.Goexit() }
func (r *recorder) Cleanup(f func())                  { r.cleanups = append(r.cleanups, f) }

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

// run runs f and what it has to clean up, each to its end or to where it gave up.
func (r *recorder) run(f func()) {
	alone := func(f func()) {
		done := make(chan struct{})
		go func() { defer close(done); f() }()
		<-done
	}
	alone(f)
	for len(r.cleanups) > 0 {
		last := r.cleanups[len(r.cleanups)-1]
		r.cleanups = r.cleanups[:len(r.cleanups)-1]
		alone(last)
	}
}
