package microvm

import (
	"context"
	"os"

	"glovebox"
	"glovebox/internal/hostside"
)

// workDisk makes the disk of a workspace: a sparse file without a name, with an empty file system. The guest mounts it;
// nothing of the host's ever reads what the guest wrote to it.
func (d *Driver) workDisk(ctx context.Context, l glovebox.Limits) (*os.File, error) {
	return hostside.DiskFile(ctx, d.cfg.ScratchDir, l)
}
