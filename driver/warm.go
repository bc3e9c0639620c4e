package driver

import (
	"context"

	"glovebox"
)

// Warmer is a Driver that can have an interpreter ready in a sandbox before there is code for it. Methods are safe for
// concurrent use.
type Warmer interface {
	Driver
	// Sizes is the memory that is held for what is made of hold. It is the same at any time.
	Sizes(hold Hold) Sizes
	// Hold is Start, and then starts an interpreter in the sandbox that waits for its code behind the whole fence. That the
	// fence is complete was read back from the kernel when Hold returns. The interpreter and its sandbox serve one Exec.
	Hold(ctx context.Context, spec Spec, hold Hold) (HeldSandbox, error)
	// Template starts an interpreter of which such sandboxes are copies. It runs nothing of anybody's, ever. Its own memory is
	// that of spec.Limits; hold.Memory is that of a copy. ctx bounds the start only. A driver without templates for hold.Lang
	// fails with code unavailable and ErrNoTemplates.
	Template(ctx context.Context, spec Spec, hold Hold) (Template, error)
}

// How a sandbox of a template began, as results say it.
const (
	StartFork     = "fork"     // its interpreter is a copy of the template's process
	StartRestored = "restored" // it is a clone of what was saved of the template: a checkpoint, a machine
)

// Template is an interpreter from which sandboxes are forked. Methods are safe for concurrent use.
type Template interface {
	// Origin is how a sandbox of Fork began: StartFork or StartRestored. It is the same at any time.
	Origin() string
	// Fork makes a sandbox of its own, as Hold does, whose interpreter is a copy of the template's: with its modules loaded,
	// and sharing with all other copies what an interpreter fixes at its start (the hash seed, the layout of its memory).
	// Spec.Root must be the template's. Spec.Inputs, if any, must lie below the folder that is the template's Spec.Inputs.
	Fork(ctx context.Context, spec Spec) (HeldSandbox, error)
	// Ended is closed when the template can fork no more, whatever ended it.
	Ended() <-chan struct{}
	// Close ends the template and returns when everything of it is gone, the sandboxes that were forked from it included: the
	// kernel ends them with it.
	Close(ctx context.Context) error
}

// Hold describes an interpreter that waits for its code.
type Hold struct {
	// Lang is the language: python, node or bash.
	Lang string
	// Command is what Exec will be asked for, but for what comes with the request: more arguments, other variables, the code
	// and standard input.
	Command Command
	// Modules are loaded before. One that cannot be is left out.
	Modules []string
	// Memory bounds the sandbox until Exec, which gives it the memory of its limits. Before Sizes was asked it is what an
	// interpreter with these modules needs for itself.
	Memory glovebox.Size
}

// Sizes is the memory of what waits for code. Alone and Copy are limits of sandboxes, beside which each takes the driver's
// Overhead.
type Sizes struct {
	// Alone is what a sandbox of Hold may have until Exec. Zero: the driver has nothing ready for such an interpreter.
	Alone glovebox.Size
	// Copy is the same of a sandbox of Fork.
	Copy glovebox.Size
	// Template is all that a template takes, and what the limits of its Spec say. Zero: there are none for it, and Copy says
	// nothing.
	Template glovebox.Size
}

// HeldSandbox is a sandbox whose interpreter waits for its code.
type HeldSandbox interface {
	// Exec releases code to the interpreter that waits, once. A Command that differs from that of its Hold in more than
	// arguments, variables, code and standard input is an error, and nothing was started.
	Sandbox
	// Resize changes the limits before Exec: Memory and Processes may differ from those of the Spec, and what only whoever
	// supervises enforces (Wall, CPU, Egress, Output, View). Any other change is an error.
	Resize(limits glovebox.Limits) error
	// Lost is closed when the interpreter has ended, or the sandbox with it. Before Exec that means it serves no more.
	Lost() <-chan struct{}
}
