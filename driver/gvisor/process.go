package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"glovebox"
	"glovebox/driver"
	"glovebox/internal/hostside"
)

// process is the program of a sandbox and all its descendants.
type process struct {
	sandbox        *sandbox
	kernel         *kernel
	released       time.Time
	stdout, stderr *os.File
	stdin          *os.File // nil when standard input is empty
	posture        glovebox.Posture
	before         time.Duration // CPU time that was used before its code was released

	dead   atomic.Bool // the whole tree, once Kill has confirmed it
	exited chan struct{}
	exit   driver.Exit // guarded by sandbox.mu until exited is closed
	killed bool        // likewise: by Kill
	ended  bool
}

func (p *process) Stdout() io.Reader         { return p.stdout }
func (p *process) Stderr() io.Reader         { return p.stderr }
func (p *process) Exited() <-chan struct{}   { return p.exited }
func (p *process) Exit() driver.Exit         { return p.exit }
func (p *process) Posture() glovebox.Posture { return p.posture }
func (p *process) Released() time.Time       { return p.released }

// begin checks, before the program's first instruction, that everything is as it should be in the kernels' own words.
func (p *process) begin(ctx context.Context, r hostside.Reply) error {
	if r.Message.Started == nil || len(r.Files) != 0 {
		return errors.New("execute: unexpected answer")
	}
	var err error
	if p.posture, err = p.sandbox.readPosture(ctx, p.kernel, r.Message.Started); err != nil {
		return err
	}
	c, err := p.sandbox.group.Sample()
	if err != nil {
		return fmt.Errorf("read counters: %w", err)
	}
	p.before = c.CPU
	return nil
}

// Sample reads the control group's counters, and those of the kernel in user space for what only it knows. The memory that
// this kernel took before there was a program is left out.
func (p *process) Sample() (driver.Sample, error) {
	c, err := p.sandbox.group.Sample()
	if err != nil {
		return driver.Sample{}, fmt.Errorf("read counters: %w", err)
	}
	p.sandbox.mu.Lock()
	own := p.sandbox.own
	p.sandbox.mu.Unlock()
	s := driver.Sample(c)
	s.CPU = max(0, c.CPU-p.before)
	limit := int64(p.sandbox.spec.Limits.Memory) // what is beyond is the kernel's
	s.Memory, s.MemoryPeak = min(less(c.Memory, own), limit), min(less(c.MemoryPeak, own), limit)
	s.Processes, s.ProcessesPeak, s.ForksRefused = p.kernel.counts()
	if p.dead.Load() {
		s.Processes = 0
	}
	return s, nil
}

// less takes from a counter, which is unknown below zero.
func less(counter, n int64) int64 {
	if counter < 0 {
		return counter
	}
	return max(0, counter-n)
}

// Kill ends the kernel with everything on it; if the group cannot do it, the end of the guard does.
func (p *process) Kill(ctx context.Context) error {
	s := p.sandbox
	s.mu.Lock()
	p.killed = true
	s.mu.Unlock()
	if p.dead.Load() {
		return nil
	}
	err := s.group.KillMembers(ctx)
	if err == nil {
		p.dead.Store(true)
		s.mu.Lock()
		p.kernel.killed = true // before the link to it has said so
		s.mu.Unlock()
		return nil
	}
	ctx, cancel := hostside.UndoContext(ctx)
	defer cancel()
	if guardErr := s.endGuard(ctx); guardErr != nil {
		return errors.Join(err, guardErr)
	}
	p.dead.Store(true)
	return nil
}

// abort ends a program that was not let go.
func (p *process) abort(ctx context.Context) error {
	ctx, cancel := hostside.UndoContext(ctx)
	defer cancel()
	return p.Kill(ctx)
}

func (p *process) closeStreams() error { return hostside.CloseStreams(p.stdin, p.stdout, p.stderr) }
