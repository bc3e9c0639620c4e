package process

import (
	"context"

	"glovebox"
)

// Controls is below.
func (d *Driver) Controls(ctx context.Context) []glovebox.Control { return nil }
