package glovebox

import (
	"context"
	"io"
)

// Service is all that a door can ask for. An engine implements it; so will a client of a remote engine, which is why the
// command line is written against it. Methods are safe for concurrent use. Errors are *Error; anything else is a bug.
type Service interface {
	Runs
	Traces
	Admin
	// Close waits for background work, then releases everything. Runs in progress are cancelled.
	Close() error
}

// Runs starts programs and reads what they left.
type Runs interface {
	// Run runs one program and returns when it has ended, everything of it is dead and its end is recorded. A program's
	// fate is the Result's Status. An error means that Glovebox refused or failed; then no Result is returned. Cancelling
	// ctx kills the run and yields a Result with StatusCanceled. Sink may be nil.
	Run(ctx context.Context, who Principal, req Request, sink Sink) (*Result, error)
	// Output reads a piece of what a run printed, exactly, up to the output limit. Stream is stdout or stderr. The piece
	// is shorter than limit only at the end. limit is at most 16 MiB.
	Output(ctx context.Context, who Principal, run, stream string, offset, limit int64) ([]byte, error)
	// Artifact opens a file that a run left in /outputs, by its Artifact.Path. The caller closes it.
	Artifact(ctx context.Context, who Principal, run, path string) (io.ReadCloser, error)
}

// Traces reads the record.
type Traces interface {
	// Trace returns one run's record. The run must be of the principal's tenant, else it is not found.
	Trace(ctx context.Context, who Principal, run string) (*Record, error)
	// Traces lists records of the principal's tenant, newest first.
	Traces(ctx context.Context, who Principal, q TraceQuery) ([]Record, error)
	// Verify checks the whole trace, of all tenants, which is for the owner alone: every record, every signature, every kept
	// byte, and the heads from outside. What does not hold is in the Verification; an error means that it could not be
	// checked.
	Verify(ctx context.Context, who Principal, heads []TraceRef) (*Verification, error)
}

// Admin tells about the machine.
type Admin interface {
	// Doctor examines every control of every rung on this machine and the images it can run.
	Doctor(ctx context.Context) (*Report, error)
	// Rungs tells which rungs this machine itself can give now, lowest first, as far as a look tells that starts nothing.
	// What the other rungs lack is told with them.
	Rungs(ctx context.Context) ([]Rung, error)
}

// Rung is one rung as a machine can give it now.
type Rung struct {
	Isolation     Isolation `json:"isolation"`
	Available     bool      `json:"available"`
	Detail        string    `json:"detail"`         // what is missing; empty when available
	Fix           string    `json:"fix"`            // what mends it; empty when available
	OverheadBytes int64     `json:"overhead_bytes"` // memory that a sandbox takes beside its limit
}

// Report is what Doctor found.
type Report struct {
	Ready    bool      `json:"ready"` // a request that says nothing of itself can run
	Machine  string    `json:"machine"`
	User     string    `json:"user"`
	Controls []Control `json:"controls"`
	Images   []Image   `json:"images"`
	// Default is the decision about a request that says nothing of itself: the rung that it gets, or why it is refused.
	Default Decision `json:"default"`
}

// Control is one control of one rung, or what every rung needs of the machine.
type Control struct {
	Isolation Isolation `json:"isolation"` // empty: of every rung alike
	Name      string    `json:"name"`
	Available bool      `json:"available"`
	Required  bool      `json:"required"` // without it the rung refuses to run, unless the configuration accepts that by name
	Detail    string    `json:"detail"`   // what was found
	Fix       string    `json:"fix"`      // the exact command that mends it; empty when available
}

// Image is a runtime image and what it can run.
type Image struct {
	Name      string            `json:"name"`      // such as host
	Identity  string            `json:"identity"`  // such as host@pkgs:1a2b…: an identity, not an integrity claim
	Languages map[string]string `json:"languages"` // language → interpreter path and version
	Packages  []string          `json:"packages"`  // notable Python packages present
	Missing   map[string]string `json:"missing"`   // language → the command that installs it
}
