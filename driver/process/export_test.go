package process

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"glovebox/driver"
	"glovebox/internal/hostside"
	"glovebox/internal/sandboxinit/wire"
)

// GiveUp asks a sandbox for a file of /outputs and stops waiting for the answer at once.
func GiveUp(s driver.Sandbox, path string) error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := s.(*sandbox).link.Ask(ctx, wire.Message{Open: &wire.Open{Path: []byte(path)}})
	return err
}

// Around makes a driver see what is below proc in place of /proc, as root or not.
func Around(d *Driver, proc string, root bool) {
	d.around = hostside.Surroundings{Proc: proc, Root: root}
}

// Spawn, Step and Unmapped are what a driver says of refusals by the kernel.
func (d *Driver) Spawn(err error) error { return d.around.Spawn(d.cfg.Init, err) }

func (d *Driver) Step(name string, errno unix.Errno) error {
	return d.around.Step(name, errno, errors.New("inside: "+name))
}

func (d *Driver) Unmapped(pool hostside.IDPool) (public, fix string) {
	if r := d.around.Unmapped(pool); r != nil {
		return r.Public, r.Fix
	}
	return "", ""
}
