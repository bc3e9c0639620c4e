package microvm

import (
	"context"

	"glovebox/driver"
)

// KillMachine ends QEMU as a fault of its own would.
func KillMachine(ctx context.Context, s driver.Sandbox) error {
	return s.(*sandbox).machine.process.Kill(ctx)
}

// MachineCPU is the CPU time that QEMU has taken, in ms, and the memory that it has.
func MachineCPU(s driver.HeldSandbox) (driver.Sample, error) {
	return s.(heldSandbox).machine.process.Sample()
}
