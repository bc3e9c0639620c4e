// Package driver is the contract of an isolation mechanism.
//
// A Driver makes Sandboxes; a Sandbox holds nothing of the user's until Exec releases code into it; a Process is what Exec
// started, with all its descendants. A driver delivers every limit of a Spec and every control of its rung, or Start fails
// with a glovebox.Error that names what is missing: it never makes something weaker than it was asked for.
//
// A driver measures and kills. It does not judge: whoever uses it decides the run's Status from what it measured.
package driver

import (
	"context"
	"io"
	"os"
	"syscall"
	"time"

	"glovebox"
)

// Driver makes sandboxes by one mechanism. Methods are safe for concurrent use.
type Driver interface {
	// Isolation is the rung this driver serves.
	Isolation() glovebox.Isolation
	// Controls examines this machine: each control of the rung, available or not, why, and what mends it.
	Controls(ctx context.Context) []glovebox.Control
	// Available is nil where the rung can be had on this machine, as far as a look tells that starts nothing. Else it is a
	// *glovebox.Error with code unavailable that names what is missing and the exact fix. It is asked before each run, so what
	// was found is taken to be so for some seconds. What only a start can show is told by Start.
	Available(ctx context.Context) error
	// Overhead is the memory that a sandbox takes beside its limit, for the mechanism itself: whoever counts memory counts
	// both. It is the same at any time.
	Overhead() glovebox.Size
	// Start makes a sandbox with nothing of the user's in it. On error nothing is left behind, unless it is
	// ErrLeftBehind too. ctx bounds the start only.
	Start(ctx context.Context, spec Spec) (Sandbox, error)
}

// Spec is what a sandbox is built from. It is read during Start only.
type Spec struct {
	// ID names the sandbox on the host (control groups and the like): letters, digits and underscores, unique among live
	// sandboxes.
	ID string
	// Limits are all set.
	Limits glovebox.Limits
	// Root is what the program sees as its file system, besides what every sandbox has (/dev, /proc, /workspace, /tmp,
	// /outputs).
	Root Root
	// Inputs is a folder of the host shown read-only at /inputs; empty means that /inputs is empty. It must not change
	// until the sandbox is closed and stays the caller's.
	Inputs string
	// Devices are device nodes of the host that the program finds, and may open as their modes say. They are for programs of
	// Glovebox's own, such as a machine monitor; a driver that cannot show any refuses. Targets lie below /dev.
	Devices []Mount
	// Network says that the sandbox shall take Sandbox.Attach. Without it a driver may refuse that.
	Network bool
}

// Root describes a runtime image as a minimal, read-only file system. Paths in it are absolute and clean; parents are made.
type Root struct {
	Mounts []Mount
	Links  []Link
	Files  []File
}

// Mount shows a file or folder of the host read-only.
type Mount struct{ Source, Target string }

// Link is a symbolic link.
type Link struct{ Path, Target string }

// File is a small file made for the sandbox, mode 0444.
type File struct {
	Path string
	Data []byte
}

// Command is a program to start in a sandbox.
type Command struct {
	// Argv is the program and its arguments; a name without a slash is looked up in the PATH of Env.
	Argv []string
	// Env is the whole environment, as NAME=VALUE.
	Env []string
	// Dir is the working directory.
	Dir string
	// Code, if not nil, is put read-only at /code/CodeName before the program starts.
	Code     []byte
	CodeName string
	// Stdin is copied to the program; nil means empty. It is never closed.
	Stdin io.Reader
	// Files become the program's descriptors 3, 4 and so on; they stay the caller's. They are for programs of Glovebox's own,
	// such as a machine monitor, which is given what it may use and opens nothing by name. At most MaxFiles; a driver that
	// cannot give any refuses.
	Files []*os.File
}

// MaxFiles bounds Command.Files.
const MaxFiles = 16

// Sandbox is one live isolated environment. It dies within a second of the process that started it, however that ends.
type Sandbox interface {
	// Exec releases code into the sandbox and starts it. One process at a time. An error means that nothing was started,
	// unless it is ErrReleased too.
	Exec(ctx context.Context, cmd Command) (Process, error)
	// Open opens a file or folder of the sandbox read-only, without following any link, blocking on a fifo or touching a
	// device: the path is relative to /outputs, and what is not a regular file or a folder yields ErrNotRegular. Only
	// while no process of the user's is alive. The caller closes the file.
	Open(path string) (*os.File, error)
	// Attach gives the sandbox a network whose other end is the link that is returned: an interface beside loopback, a
	// default route through it, a name server, and n's files. Nothing of the host is behind it but whoever reads the link, and
	// without Attach the program reaches nobody. It is called once at most, before Exec, whether or not an interpreter waits
	// already. Where it cannot be had it fails with code unavailable, and there is no network.
	Attach(ctx context.Context, n Network) (NetLink, error)
	// Disk tells how full the sandbox's own file system is. It works until Close.
	Disk() (DiskUse, error)
	// Close kills whatever is left, confirms that it is dead and releases everything the host gave. Closing again does
	// nothing.
	Close(ctx context.Context) error
}

// Process is a started program with all its descendants. Methods are safe for concurrent use.
type Process interface {
	// Stdout and Stderr are the read ends of the program's pipes; they end when nobody holds the other end. Both must be
	// read. They are closed by Close of the sandbox.
	Stdout() io.Reader
	Stderr() io.Reader
	// Exited is closed when the leader has ended, whether or not its descendants live.
	Exited() <-chan struct{}
	// Exit is how the leader ended. Only after Exited is closed.
	Exit() Exit
	// Sample reads the counters of the whole tree. It works until the sandbox is closed, also after everything died.
	Sample() (Sample, error)
	// Kill ends the whole tree and returns when none of it is alive. Killing what is dead does nothing.
	Kill(ctx context.Context) error
	// Posture is the controls in force, read back from the kernel for this very program.
	Posture() glovebox.Posture
	// Released is when the program was let go.
	Released() time.Time
}

// Exit is how a leader ended.
type Exit struct {
	// Lost is true when the sandbox itself ended before it could say how the leader did; the rest is then meaningless.
	Lost   bool
	Code   int            // meaningful when Signal is 0
	Signal syscall.Signal // 0 when it exited
	// NotStarted tells why the program could not be executed (no such file, bad format): Code is then 127 or 126, as a
	// shell would have it. Empty when it was started.
	NotStarted string
	// FenceKill is true when the signal was the fence's (a call killed by the system call filter).
	FenceKill bool
}

// Sample is a reading of a tree's counters. A field below zero is unknown.
type Sample struct {
	CPU           time.Duration // user and system time of the living and the dead
	Memory        int64         // bytes now
	MemoryPeak    int64         // bytes
	Processes     int64         // processes and threads now
	ProcessesPeak int64
	OOMKills      int64 // processes of the tree that the kernel killed for memory at the tree's own limit
	OOMOutside    int64 // likewise, at a limit that is not the tree's own
	ForksRefused  int64 // processes and threads refused at the limit
}

// DiskUse is the state of a sandbox's own file system.
type DiskUse struct {
	Used      int64 // bytes
	FreeBytes int64 // writes fail when it is 0; a driver may say 0 when only large writes fail
	FreeFiles int64
}
