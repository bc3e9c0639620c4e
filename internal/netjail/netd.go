package netjail

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"glovebox"
	"glovebox/driver"
	"glovebox/internal/cleanup"
	"glovebox/internal/hostside"
	"glovebox/internal/netwire"
)

// Memory is the limit of one netd, its stack's buffers included, and what it takes of the budget.
const Memory = 96 * glovebox.MiB

const (
	inside    = "/glovebox-netd"
	undoLimit = 15 * time.Second // what is undone after a failure, however the caller's context ended
)

// limits are those of a netd. It is one CPU's worth for a run beside those of its own; nothing bounds its time but its end.
func limits() glovebox.Limits {
	return glovebox.Limits{Wall: time.Hour, CPU: time.Hour, CPUs: 1, Memory: Memory, Disk: glovebox.MiB, Files: 16,
		OpenFiles: 1024, Processes: 32, Egress: 1, Output: glovebox.MiB, View: 1}
}

// Netd is one live netd. Its methods are safe for concurrent use.
type Netd struct {
	host    *netwire.Host
	box     driver.Sandbox
	process driver.Process
	printed hostside.Tail
	work    sync.WaitGroup // all that reads what it prints
	closing sync.Once
	closed  error
}

// start starts a netd that belongs to nobody yet. On error nothing is left behind, unless it is driver.ErrLeftBehind too.
func start(ctx context.Context, jail driver.Driver, program string) (_ *Netd, err error) {
	n := &Netd{}
	defer func() {
		if err != nil {
			err = n.abandon(ctx, err)
		}
	}()
	near, far, err := netwire.Pair()
	if err != nil {
		return nil, err
	}
	defer far.Close()
	if n.host, err = netwire.NewHost(near); err != nil {
		return nil, errors.Join(err, near.Close())
	}
	n.box, err = jail.Start(ctx, driver.Spec{ID: "netd_" + strings.ToLower(rand.Text()), Limits: limits(),
		Root: driver.Root{Mounts: []driver.Mount{{Source: hostside.Followed(program), Target: inside}}}})
	if err != nil {
		n.box = nil // an interface around a nil pointer would not be nil
		return nil, fmt.Errorf("make the sandbox of a netd: %w", err)
	}
	n.process, err = n.box.Exec(ctx, driver.Command{Argv: []string{inside}, Env: []string{}, Dir: "/workspace",
		Files: []*os.File{far}})
	if err != nil {
		n.process = nil
		return nil, fmt.Errorf("start a netd: %w", err)
	}
	n.work.Go(func() { _, _ = io.Copy(&n.printed, n.process.Stdout()) })
	n.work.Go(func() { _, _ = io.Copy(&n.printed, n.process.Stderr()) })
	return n, nil
}

// Host is the end of the netd's socket that the gateway serves. The Netd closes it.
func (n *Netd) Host() *netwire.Host { return n.host }

// Start gives the netd its link, which stays the caller's, and returns when it serves. Once.
func (n *Netd) Start(ctx context.Context, setup netwire.Setup, link *os.File) error {
	if err := n.host.Start(ctx, setup, link); err != nil {
		return errors.Join(fmt.Errorf("give a netd its link: %w", err), n.Why())
	}
	return nil
}

// Ended is closed when the netd has ended, whatever ended it: its sandbox has no network then.
func (n *Netd) Ended() <-chan struct{} { return n.process.Exited() }

// Why says what the netd printed, which is nothing unless it failed; nil where it printed nothing.
func (n *Netd) Why() error { return n.printed.Printed("a netd") }

// Sample reads the netd's counters.
func (n *Netd) Sample() (driver.Sample, error) { return n.process.Sample() }

// Posture is what holds the netd, read back from the kernel.
func (n *Netd) Posture() glovebox.Posture { return n.process.Posture() }

// Close ends the netd and returns when all of it is gone. Closing again does nothing.
func (n *Netd) Close(ctx context.Context) error {
	n.closing.Do(func() {
		var undo cleanup.Stack
		undo.Push("wait for what reads from a netd", func(context.Context) error { n.work.Wait(); return nil })
		if n.box != nil {
			undo.Push("end a netd", n.box.Close)
		}
		if n.host != nil {
			undo.Push("close a netd's socket", func(context.Context) error { _ = n.host.Close(); return nil }) // it may be closed
		}
		n.closed = undo.Run(ctx)
	})
	return n.closed
}

// abandon closes a netd that could not be started, and says what it printed.
func (n *Netd) abandon(ctx context.Context, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
	defer cancel()
	if left := n.Close(ctx); left != nil {
		err = errors.Join(err, driver.ErrLeftBehind, left)
	}
	return errors.Join(err, n.Why())
}
