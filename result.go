package glovebox

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"glovebox/internal/spelling"
)

// Status is how a program ended: decided once, from the kernel and the supervisor, never from what the program printed.
type Status string

// The ways to end.
const (
	StatusExited       Status = "exited"
	StatusSignaled     Status = "signaled"
	StatusWallLimit    Status = "wall_limit"
	StatusCPULimit     Status = "cpu_limit"
	StatusMemoryLimit  Status = "memory_limit"
	StatusProcessLimit Status = "process_limit"
	StatusOutputLimit  Status = "output_limit"
	StatusDiskLimit    Status = "disk_limit"
	StatusPolicy       Status = "policy"
	StatusBudget       Status = "budget"
	StatusCanceled     Status = "canceled"
)

// ParseStatus reads the name of a status. The error says what names there are.
func ParseStatus(name string) (Status, error) {
	known := []Status{
		StatusExited, StatusSignaled, StatusWallLimit, StatusCPULimit, StatusMemoryLimit, StatusProcessLimit, StatusOutputLimit,
		StatusDiskLimit, StatusPolicy, StatusBudget, StatusCanceled,
	}
	names := make([]string, len(known))
	for i, k := range known {
		if names[i] = string(k); names[i] == name {
			return k, nil
		}
	}
	fix := "the status of a run that ended is one of " + strings.Join(names, ", ")
	// A list shows more beside it: "exited 1".
	word, _, _ := strings.Cut(name, " ")
	if n := spelling.Nearest(word, names); n != "" {
		fix = "did you mean " + n + "?"
	}
	if len(name) > 120 {
		name = name[:120] + "…"
	}
	return "", Errorf(CodeInvalid, fix, "%q is no status", name)
}

// Untrusted is text or bytes that came from inside a sandbox. As JSON it is the text itself, since a reader of a Result
// expects it; printed with fmt or logged with slog it shows only its length and hash, so that it never reaches a log or a
// terminal by accident. Take the bytes with string(u) where they are rendered on purpose.
type Untrusted string

// String shows length and hash, not the text.
func (u Untrusted) String() string {
	sum := sha256.Sum256([]byte(u))
	return fmt.Sprintf("untrusted(%d bytes, sha256 %s)", len(u), hex.EncodeToString(sum[:6]))
}

// Format keeps every fmt verb from showing the text.
func (u Untrusted) Format(f fmt.State, _ rune) { fmt.Fprint(f, u.String()) }

// LogValue keeps slog from showing the text.
func (u Untrusted) LogValue() slog.Value { return slog.StringValue(u.String()) }

// Result is what happened in a run whose program was started. The names of its JSON form do not change.
type Result struct {
	ID        string   `json:"id"`
	OK        bool     `json:"ok"` // exited with code 0
	Status    Status   `json:"status"`
	ExitCode  *int     `json:"exit_code"` // nil unless Status is exited or the program exited at a limit
	Signal    *string  `json:"signal"`    // SIGSEGV and the like; nil unless a signal ended the leader
	Reason    string   `json:"reason"`    // one sentence, empty after a plain exit
	LimitsHit []string `json:"limits_hit"`

	Stdout          Untrusted `json:"stdout"` // head and tail, valid UTF-8, control sequences neutralised
	Stderr          Untrusted `json:"stderr"`
	StdoutBytes     int64     `json:"stdout_bytes"` // all that was printed and read
	StderrBytes     int64     `json:"stderr_bytes"`
	StdoutTruncated bool      `json:"stdout_truncated"`
	StderrTruncated bool      `json:"stderr_truncated"`
	Untrusted       bool      `json:"untrusted"` // always true: what a program prints is data
	Flags           []string  `json:"flags"`

	Asked     Isolation `json:"asked"`     // the rung that was asked for, or auto
	Isolation Isolation `json:"isolation"` // the rung that ran it
	Posture   Posture   `json:"posture"`
	Trust     Trust     `json:"trust"`
	Rule      string    `json:"rule"`
	Image     string    `json:"image"`
	Start     string    `json:"start"` // cold, spare, fork or restored
	ServedBy  string    `json:"served_by"`
	// Remote is set where another Glovebox ran it. Posture, Image, Start and what was measured are then the other's.
	Remote *RemoteRun `json:"remote,omitempty"`

	Limits    Limits       `json:"limits"` // the effective ones
	Usage     Usage        `json:"usage"`
	Artifacts []Artifact   `json:"artifacts"`
	Skipped   []Skipped    `json:"skipped"` // what /outputs held and was not kept
	Egress    []EgressFlow `json:"egress"`
	Trace     TraceRef     `json:"trace"`
}

// Posture is the controls that were really in force, read back from the kernel while the program ran. Keys and values are
// documented by the driver that fills it in.
type Posture map[string]string

// Usage is what was measured. A nil field is unknown, never zero.
type Usage struct {
	WallMS          *int64 `json:"wall_ms"`
	CPUMS           *int64 `json:"cpu_ms"`
	MemoryPeakBytes *int64 `json:"memory_peak_bytes"`
	DiskBytes       *int64 `json:"disk_bytes"` // in use at the end
	ProcessesPeak   *int64 `json:"processes_peak"`
	EgressBytes     *int64 `json:"egress_bytes"`
	QueueMS         *int64 `json:"queue_ms"` // waiting for its memory
	StartMS         *int64 `json:"start_ms"` // from the request's arrival to the release of the code, without queue_ms
}

// Artifact is one regular file collected from /outputs.
type Artifact struct {
	Path      string `json:"path"` // relative, slash-separated; bytes that are not UTF-8 are written %XX, and % is %25
	Bytes     int64  `json:"bytes"`
	SHA256    string `json:"sha256"`
	MediaType string `json:"media_type"`
}

// Skipped is something in /outputs that was not kept, and why.
type Skipped struct {
	Path   string `json:"path"` // spelt as Artifact.Path; empty for what stands for many
	Reason string `json:"reason"`
	Fault  string `json:"fault"` // whose doing it is: FaultProgram, FaultCaller or FaultGlovebox
}

// Whose doing it is that something was not kept.
const (
	FaultProgram  = "program"  // a link, a special file, more than its limits
	FaultCaller   = "caller"   // who cancelled
	FaultGlovebox = "glovebox" // or the machine's: what was asked for was not delivered
)

// EgressFlow is one decision of the gateway, or several that were the same.
type EgressFlow struct {
	Host    string `json:"host"` // as the program named it; an address where it named none; empty for those beyond a bound
	Port    int    `json:"port"`
	Allowed bool   `json:"allowed"`
	Reason  string `json:"reason"`           // why it was refused; empty where it was allowed
	Layer   string `json:"layer,omitempty"`  // where it was decided: dns, tcp, tls, http or broker
	Rule    string `json:"rule,omitempty"`   // the rule that decided
	Method  string `json:"method,omitempty"` // of a request
	Path    string `json:"path,omitempty"`   // of a request, without its query
	Count   int64  `json:"count,omitempty"`  // how many were the same; 0 means one
	// BytesUp and BytesDown are what passed, of all of them.
	BytesUp   int64 `json:"bytes_up,omitempty"`
	BytesDown int64 `json:"bytes_down,omitempty"`
}

// TraceRef is the signed head of the trace's Merkle tree after the run's end record: SEQ:HASH is what `glovebox trace verify
// --head` takes. Kept elsewhere, it proves every record up to that one.
type TraceRef struct {
	Seq int64 `json:"seq"` // the number of the end record, and how many records the tree has
	// Hash is the root of the tree in hex, a dot, and the signature (four bytes that tell the key, then 64 of ed25519) in
	// base64url without padding. What is signed is a checkpoint: the lines "glovebox/trace", Seq, and the root in base64.
	Hash string `json:"hash"`
}

// RemoteRun is a run as the other Glovebox that did it has it.
type RemoteRun struct {
	ServedBy  string    `json:"served_by"` // where the other is
	Run       string    `json:"run"`       // its id there
	Isolation Isolation `json:"isolation"` // the rung that ran it
	Rule      string    `json:"rule"`      // which rule there decided
	Trace     TraceRef  `json:"trace"`     // the head of the trace there
}

// Event is something a caller of Run is told while the run goes on.
type Event struct {
	// Kind is start, stdout, stderr, egress or usage.
	Kind string
	// Run is the run's id.
	Run string
	// Data is output exactly as the program wrote it; it is valid only during the call and must not be kept.
	Data []byte
	// Usage is a sample, for Kind usage, about once a second.
	Usage Usage
	// Egress is a decision of the gateway, for Kind egress. A caller that does not keep up misses some; the Result has all.
	Egress EgressFlow
	// Limits are the effective ones, for Kind start.
	Limits Limits
	// Time is when it happened.
	Time time.Time
}

// Sink receives the events of one run, one at a time, in order for each stream. A slow Sink slows the program and nothing
// else: every limit keeps counting.
type Sink interface {
	Event(Event)
}
