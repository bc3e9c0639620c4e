// Package wire is what a driver and the init of its sandbox say to each other over one stream socket.
//
// The driver speaks first with a Setup; init answers Ready or Failed. Then, one at a time:
//
//	driver                 init
//	Setup    ────────────▶ builds the root, closes the way back
//	         ◀──────────── Ready (descriptor: the sandbox's own file system) | Failed
//	Exec     ────────────▶ forks, fences the child, leaves it at the gate
//	         ◀──────────── Started (descriptors: stdout, stderr, stdin if asked) | Failed
//	Go       ────────────▶ the child executes the program
//	         ◀──────────── Held, where Exec said so, when the interpreter waits for its code | Failed
//	Resume   ────────────▶ only after Held: the interpreter gets its code
//	         ◀──────────── Resumed | Failed
//	Attach   ────────────▶ only where Setup said Network, before the program has its code
//	         ◀──────────── Attached (descriptor: the link, if a device was asked for) | Failed
//	         ◀──────────── Ended, once, when the leader has ended
//	Open     ────────────▶ only when nothing of the user's is alive
//	         ◀──────────── Opened (descriptor) | Failed
//	Look     ────────────▶ at any time
//	         ◀──────────── Looked | Failed
//
// The socket is the lifeline too: when the driver's end closes, init ends and the kernel ends everything inside with it.
// Nothing inside the sandbox ever holds either end.
package wire

import "golang.org/x/sys/unix"

// Message is one frame. Exactly one field is set.
type Message struct {
	Setup   *Setup
	Ready   *Ready
	Exec    *Exec
	Started *Started
	Go      *Go
	Held    *Held
	Resume  *Resume
	Resumed *Resumed
	Ended   *Ended
	Open    *Open
	Opened  *Opened
	Look    *Look
	Looked  *Looked
	Failed  *Failed

	Attach   *Attach
	Attached *Attached
}

// Setup describes the sandbox to build.
type Setup struct {
	// SingleID is true where only ProgramID is mapped: init then keeps that id and holds its rights as ambient
	// capabilities.
	SingleID bool
	// KeepOwner keeps the starting user's id as saved id until the program's child has joined its control groups, which on
	// version 1 only the id that opened them may do.
	KeepOwner bool
	// Template makes the sandbox of a template: its /proc is whole, so that the kernel lets those made inside have one of
	// their own; its inputs show the very folder, whose own folders are those of the copies; and its program keeps the rights
	// by which it makes copies of itself.
	Template bool
	// Kernel says that the program is a kernel in user space, of Glovebox's own choice, and the sandbox's program one of its.
	// What is built for the latter is then at ImageDir of another root, which has a whole /proc, the devices, Beside and
	// Config at ConfigPath. What is executed there keeps init's rights over the sandbox's own namespaces.
	Kernel bool
	// Guest says that init is the first process of such a kernel: what it would build is there. It makes no namespaces,
	// for those that count are around the kernel.
	Guest bool

	Beside  []Mount // shown beside ImageDir
	Config  []byte  // the contents of ConfigPath
	Mounts  []Mount
	Devices []Mount // device nodes, shown with the program's right to use them
	Links   []Link
	Files   []File
	Inputs  string // a folder of the host shown at /inputs; empty for none

	// Network says that Attach may follow: there is then a folder at NetworkDir, and a file at NameServers.
	Network bool

	DiskBytes int64 // size of the sandbox's own file system, when init is to make it (tmpfs)
	DiskFiles int64
	DiskGiven bool // the sandbox's own file system is the descriptor that comes with the message

	Hostname  string
	Filter    []byte // struct sock_filter array for the program
	Landlock  bool   // fence the program's files with Landlock too
	OpenFiles uint64 // RLIMIT_NOFILE of the program
	Processes int64  // of a Guest, which has to bound them itself
}

// Mount shows a file or folder of the host read-only.
type Mount struct{ Source, Target string }

// Link is a symbolic link of the sandbox's root.
type Link struct{ Path, Target string }

// File is a small read-only file of the sandbox's root.
type File struct {
	Path string
	Data []byte
}

// Ready says that the sandbox is built. Its descriptor is the root of the sandbox's own file system.
type Ready struct {
	LandlockABI int
	Buffer      string // net.ipv4.tcp_rmem as the kernel shows it inside
}

// Exec starts the program. Descriptors: the code (if HasCode), then Files that become the program's, then the folder of a
// version 2 control group for the child to be born in (if BornIn), then CgroupFiles files of version 1 groups that the child
// writes "0" to in order to join, then the state of their freezer (if Freezer). A driver that freezes may die before it
// thaws, and in a frozen group nothing dies: init thaws it when the lifeline closes.
type Exec struct {
	Argv        [][]byte
	Env         [][]byte
	Dir         string
	HasCode     bool
	CodeName    string
	Files       int // descriptors that become the program's from FirstFile on; not of what is held, forked or a template
	BornIn      bool
	CgroupFiles int
	CPUs        []int // those to be kept to by affinity; none: all that the control groups leave
	Freezer     bool
	// Streams is how many of the last descriptors are ends of the streams, in a Guest, which cannot hand out its own: for
	// standard output, standard error and, if asked, standard input. It copies between them and pipes of its own, since a pipe
	// of the host takes part of a large write under such a kernel, and no program expects that.
	Streams int
	Stdin   bool // make a pipe for standard input; else it is empty
	// Held gives the program a socket as HoldFD, at which it waits for its code (see package boot).
	Held bool
	// Forked says that the program's process is there already: a copy of a template's, which waits at ForkFD to be fenced.
	// Argv and Env are not used.
	Forked bool
	// Channel gives the program the first descriptor (after the code) as HoldFD.
	Channel bool
}

// Started says that the program's process stands at the gate, one execve away from the program, with everything in force.
// The fields are the kernel's own words about it.
type Started struct {
	Status     string   // /proc/PID/status
	Mounts     string   // /proc/PID/mountinfo
	UIDMap     string   // /proc/PID/uid_map
	Namespaces []string // the link texts of /proc/PID/ns, one for each of NamespaceKinds, empty if unreadable
	Interfaces []string // the names in /proc/net/dev
	// Notifications is the link text of the descriptor on which init answers for the filter.
	Notifications string
}

// NamespaceKinds are the namespaces that a program has of its own, as /proc/PID/ns names them. They are constants in all but
// form.
var NamespaceKinds = [...]string{"cgroup", "ipc", "mnt", "net", "pid", "user", "uts"}

// Go opens the gate.
type Go struct{}

// Held says that the interpreter waits for its code, and what the kernel says of it by then.
type Held struct {
	Status      string   // /proc/PID/status
	Descriptors []string // the names in /proc/PID/fd
}

// Resume gives a held interpreter its code, the descriptor that comes with it, and what else is the request's.
type Resume struct {
	Args     [][]byte
	Env      [][]byte // the whole environment
	CodeName string
	Stdin    bool // standard input is the pipe that was made; else it is empty
	// Processes is the bound on processes from now on, of a Guest.
	Processes int64
}

// Resumed says that the code was handed over.
type Resumed struct{}

// Ended is how the leader ended: a wait status as wait4(2) gives it.
type Ended struct {
	WaitStatus uint32
	// NotStarted is set when the program could not be executed; WaitStatus is then that of an exit with 126 or 127.
	NotStarted string
}

// Open asks for a file or folder beneath /outputs, as raw bytes of its relative path.
type Open struct{ Path []byte }

// Opened carries the descriptor.
type Opened struct{ NotRegular bool }

// Look asks what other processes there are.
type Look struct{}

// Looked is what the kernel says of every process of the sandbox's process namespace but init.
type Looked struct{ Processes []Process }

// Process is one of them.
type Process struct {
	Status     string   // /proc/PID/status
	Namespaces []string // as in Started
}

// Attach gives the sandbox a network device, whose descriptor comes with the message, or files that go with it, or both. A
// Kernel's device that it had before, named without a descriptor, is given its address again, which the kernel before took.
type Attach struct {
	Device Device
	// Reopen says that the descriptor is a name for the device only: init opens it, in the sandbox's own network namespace.
	Reopen bool
	// Sizes are those of the contents, in bytes, which come one after the other in the file whose descriptor is the last. They
	// are not part of the message, since they are copied fewer times so.
	Sizes []int64
	Shown []Shown
}

// Device is the kind of a network device.
type Device int

// The devices, each with a virtio_net_hdr before each packet. What reads a TUN gets packets of IP, what reads a TAP frames.
const (
	NoDevice Device = iota
	TUN
	TAP
)

// Shown is a file that Attach brings.
type Shown struct {
	Path string
	// Over says that it is shown over what is at Path, if that is a regular file; else it is made below NetworkDir.
	Over    bool
	Content int // which of the contents it has
}

// Attached says that the network is there, in the kernel's own words.
type Attached struct {
	Interfaces []string // the names in /proc/net/dev
	Routes     string   // /proc/net/route
	Mounts     string   // /proc/self/mountinfo
	Buffer     string   // net.ipv4.tcp_rmem as the kernel shows it inside
}

// Failed says which step failed and the kernel's reason.
type Failed struct {
	Step   string
	Errno  int
	Detail string
}

// Rlimit is a resource limit of a process (getrlimit(2)) that a program is started with.
type Rlimit struct {
	What       uintptr
	Soft, Hard uint64
}

// Under is the limit as it can be set beneath the hard limit that the process has: a lower one stays.
//
//go:norace
//go:nosplit
func (r *Rlimit) Under(hard uint64) (soft, most uint64) {
	most = min(r.Hard, hard)
	return min(r.Soft, most), most
}

// ProgramLimits are the resource limits of a program besides that of its descriptors. What the caller's shell limits for
// itself is not the program's limit: where a hard limit of the caller stands against what a run is granted, the driver
// refuses to start. They are constants in all but form.
var ProgramLimits = [...]Rlimit{
	// What a run bounds for the whole tree.
	{unix.RLIMIT_AS, unix.RLIM_INFINITY, unix.RLIM_INFINITY},
	{unix.RLIMIT_CPU, unix.RLIM_INFINITY, unix.RLIM_INFINITY},
	{unix.RLIMIT_DATA, unix.RLIM_INFINITY, unix.RLIM_INFINITY},
	{unix.RLIMIT_FSIZE, unix.RLIM_INFINITY, unix.RLIM_INFINITY},
	{unix.RLIMIT_NPROC, unix.RLIM_INFINITY, unix.RLIM_INFINITY},
	// 1 and not 0: where the host pipes cores into a program of its own, 1 is the only limit that it heeds (core(5)).
	{unix.RLIMIT_CORE, 1, 1},
	// What the kernel counts per user it counts for whoever made the user namespace too.
	{unix.RLIMIT_SIGPENDING, 1024, 1024},
	{unix.RLIMIT_MSGQUEUE, 0, 0},
	// The kernel's own defaults; what is locked counts as the run's memory as well.
	{unix.RLIMIT_STACK, 8 << 20, unix.RLIM_INFINITY},
	{unix.RLIMIT_MEMLOCK, 8 << 20, 8 << 20},
	// No better priority than others, no real-time scheduling.
	{unix.RLIMIT_NICE, 0, 0},
	{unix.RLIMIT_RTPRIO, 0, 0},
}

// WaitingConnections is how many TCP connections wait to be accepted in a sandbox, all its sockets together.
const WaitingConnections = 768

// ReceiveBuffer is net.ipv4.tcp_rmem of a sandbox: the least, first and most bytes that a TCP socket holds of what was
// sent to it. What an accepted socket holds counts for the run; one that waits to be accepted holds no more.
const ReceiveBuffer = "4096\t32768\t32768"

// AttachedConnections and AttachedBuffer are the two of a sandbox that has a network: fewer connections can wait, each of
// which holds more, because a window of a packet or less would make the network slow. Their product is the same.
const (
	AttachedConnections = 96
	AttachedBuffer      = "4096\t131072\t262144"
)

// What Attach makes.
const (
	Interface   = "eth0"
	LinkMTU     = 65520
	LinkQueue   = 128                // packets that wait to be read from the link, which count for nobody
	LinkAddress = "\xc6\x12\x00\x02" // 198.18.0.2
	LinkMask    = "\xff\xff\xff\xfc" // /30
	LinkRouter  = "\xc6\x12\x00\x01" // 198.18.0.1: router and name server
	NetworkDir  = "/etc/glovebox"
	NameServers = "/etc/resolv.conf"
)

// ImageDir is where the sandbox's program's root is in that of a Kernel.
const ImageDir = "/image"

// ConfigPath is where a Kernel finds Setup.Config.
const ConfigPath = "/bundle/config.json"

// MeterSize is the size of what a Guest writes its counts to: 3 numbers of 64 bits, least byte first, which are the
// processes and threads that its program has now and had at most, and how often one more was refused. Below 0 is unknown.
const MeterSize = 24

// ControlFD is the descriptor on which init finds its control socket.
const ControlFD = 3

// HoldFD is the descriptor on which a held interpreter waits for its code, and a template for its orders.
const HoldFD = 3

// FirstFile is the first descriptor of a program beyond the standard streams, where it was given some.
const FirstFile = 3

// ForkFD is the descriptor on which the init of a forked sandbox finds the socket of the program's process.
const ForkFD = 4

// ForkedPID is the process id, inside, of the program of a forked sandbox: the second process there is.
const ForkedPID = 2

// OwnerID is the uid, in a template, of the user who started it, where that is not its own.
const OwnerID = ProgramID + 1

// ProgramID is the uid and gid of the program inside.
const ProgramID = 1000
