package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"glovebox"
	"glovebox/driver"
	"glovebox/internal/hostside"
	"glovebox/internal/sandboxinit/wire"
)

// process is the program of a sandbox and all its descendants.
type process struct {
	sandbox        *sandbox
	released       time.Time
	stdout, stderr *os.File
	stdin          *os.File // nil when standard input is empty
	posture        glovebox.Posture
	before         time.Duration // CPU time that was used before its code was released

	dead   atomic.Bool // the whole tree, once Kill has confirmed it
	exited chan struct{}
	exit   driver.Exit // guarded by sandbox.mu until exited is closed
	ended  bool
}

// begin takes the streams and checks, before the program's first instruction, that the fence is what it should be in the
// kernel's own words.
func (p *process) begin(r hostside.Reply, stdin bool) error {
	want := 2
	if stdin {
		want = 3
	}
	started := r.Message.Started
	if started == nil || len(r.Files) != want {
		return errors.New("execute: unexpected answer")
	}
	read := p.sandbox.readPosture
	if p.sandbox.origin.template {
		read = p.sandbox.readTemplatePosture
	}
	posture, err := read(started)
	if err != nil {
		return err
	}
	p.posture, p.stdout, p.stderr = posture, r.Files[0], r.Files[1]
	if stdin {
		p.stdin = r.Files[2]
	}
	return nil
}

func (p *process) Stdout() io.Reader         { return p.stdout }
func (p *process) Stderr() io.Reader         { return p.stderr }
func (p *process) Exited() <-chan struct{}   { return p.exited }
func (p *process) Exit() driver.Exit         { return p.exit }
func (p *process) Posture() glovebox.Posture { return p.posture }
func (p *process) Released() time.Time       { return p.released }

// Sample reads the control group's counters.
func (p *process) Sample() (driver.Sample, error) {
	c, err := p.sandbox.group.Sample()
	if err != nil {
		return driver.Sample{}, fmt.Errorf("read counters: %w", err)
	}
	c.CPU = max(0, c.CPU-p.before)
	if s := p.sandbox.shared; s > 0 {
		c.Memory, c.MemoryPeak = plus(c.Memory, s), plus(c.MemoryPeak, s)
	}
	return driver.Sample(c), nil
}

// plus adds to a counter, which is unknown below zero.
func plus(counter, n int64) int64 {
	if counter < 0 {
		return counter
	}
	return counter + n
}

// Kill ends every process in the control group; if the group cannot do it, the end of init does.
func (p *process) Kill(ctx context.Context) error {
	// Another may be started after it.
	err := p.sandbox.group.KillMembers(ctx)
	if err == nil {
		p.awaitReaped(ctx)
		p.dead.Store(true)
		return nil
	}
	ctx, cancel := hostside.UndoContext(ctx)
	defer cancel()
	if initErr := p.sandbox.endInit(ctx); initErr != nil {
		return errors.Join(err, initErr)
	}
	p.dead.Store(true)
	return nil
}

// killOnce is Kill unless that has been confirmed.
func (p *process) killOnce(ctx context.Context) error {
	if p.dead.Load() {
		return nil
	}
	return p.sandbox.group.Kill(ctx)
}

// abort ends a program that was not let go.
func (p *process) abort(ctx context.Context) error {
	ctx, cancel := hostside.UndoContext(ctx)
	defer cancel()
	return p.Kill(ctx)
}

// awaitReaped waits a moment for init to take note of the dead, so that they no longer count as processes. They are dead in
// any case.
func (p *process) awaitReaped(ctx context.Context) {
	counted := func() bool {
		n, err := p.sandbox.group.Processes()
		return err == nil && n > 0
	}
	if !counted() { // as a rule: a timer for nothing wakes a thread
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	for wait := 100 * time.Microsecond; counted(); wait *= 2 {
		select {
		case <-ctx.Done():
			return
		case <-p.sandbox.gone:
			return
		case <-time.After(wait):
		}
	}
}

func (p *process) closeStreams() error { return hostside.CloseStreams(p.stdin, p.stdout, p.stderr) }

func exitOf(e *wire.Ended) driver.Exit {
	status := syscall.WaitStatus(e.WaitStatus)
	x := driver.Exit{NotStarted: e.NotStarted}
	if status.Signaled() {
		x.Signal = status.Signal()
		// The filter's only killing action raises SIGSYS, and nothing else does unless the program raises it itself.
		x.FenceKill = x.Signal == unix.SIGSYS
		return x
	}
	x.Code = status.ExitStatus()
	return x
}
