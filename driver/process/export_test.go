package process

import (
	"context"

	"glovebox/driver"
	"glovebox/internal/sandboxinit/wire"
)

// GiveUp asks a sandbox for a file of /outputs and stops waiting for the answer at once.
func GiveUp(s driver.Sandbox, path string) error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := s.(*sandbox).ask(ctx, wire.Message{Open: &wire.Open{Path: []byte(path)}})
	return err
}

// Whole is what New makes of a pool.
func (p IDPool) Whole() (IDPool, error) { return p.whole() }
