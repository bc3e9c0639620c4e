package glovebox

import "time"

// Decision is the policy's verdict on one request.
type Decision struct {
	Allow  bool   `json:"allow"`
	Rule   string `json:"rule"`   // which rule decided
	Reason string `json:"reason"` // one sentence
	// Asked is the rung that was asked for, or auto; empty where the request was malformed otherwise.
	Asked Isolation `json:"asked,omitempty"`
	Grant Grant     `json:"grant"` // what was allowed; zero when refused
	Code  Code      `json:"code,omitempty"`
	Fix   string    `json:"fix,omitempty"`
}

// Grant is what a request was allowed: every limit is set.
type Grant struct {
	Isolation Isolation `json:"isolation"`
	// AtLeast is the rung that another Glovebox must deliver, where Isolation is remote.
	AtLeast Isolation `json:"at_least,omitempty"`
	Trust   Trust     `json:"trust"`
	Image   string    `json:"image"`
	Limits  Limits    `json:"limits"`
	// Egress are the rules of what may leave; none means that the sandbox has no network. Secrets are lent by the broker.
	Egress  []EgressRule `json:"egress,omitempty"`
	Secrets []SecretRef  `json:"secrets,omitempty"`
	Actions []string     `json:"actions,omitempty"` // that the broker does for it
}

// Record is one run as the trace keeps it: what was started and, once it ended, how.
type Record struct {
	ID        string    `json:"id"`
	State     string    `json:"state"` // running, ended, refused or interrupted
	Started   time.Time `json:"started"`
	Ended     time.Time `json:"ended,omitzero"`
	Principal Principal `json:"principal"`

	Lang       string        `json:"lang,omitempty"`
	Argv       []string      `json:"argv,omitempty"`
	Args       []string      `json:"args,omitempty"`
	Code       Untrusted     `json:"code,omitempty"` // whole when it is small, else its beginning
	CodeBytes  int64         `json:"code_bytes"`
	CodeSHA256 string        `json:"code_sha256,omitempty"`
	EnvNames   []string      `json:"env_names,omitempty"`
	Inputs     []InputRecord `json:"inputs,omitempty"`
	Decision   Decision      `json:"decision"`
	Image      string        `json:"image,omitempty"`
	// Cut names the lists of the record, and of its result, of which only the beginning is kept, with what they held.
	Cut map[string]Cut `json:"cut,omitempty"`

	// Erased is when retention erased the code, the texts, the output and the artifacts; zero while they are kept.
	Erased time.Time `json:"erased,omitzero"`

	StartSeq int64       `json:"start_seq"`
	Result   *Result     `json:"result,omitempty"` // nil until ended; its text fields are the bounded views
	Error    *ErrorShown `json:"error,omitempty"`  // set when the run was refused or Glovebox failed
}

// Cut tells of a list that was too large to be kept whole.
type Cut struct {
	Items  int64  `json:"items"`
	Bytes  int64  `json:"bytes"`  // of the items as JSON, each with a newline
	SHA256 string `json:"sha256"` // of the same
}

// InputRecord is one file that a run was given.
type InputRecord struct {
	Name   string `json:"name"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// ErrorShown is an Error as a caller sees it.
type ErrorShown struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
	Fix     string `json:"fix"`
}

// TraceQuery selects records, newest first. The zero value selects the newest 50.
type TraceQuery struct {
	Limit  int    // at most 1000; 0 means 50
	Before string // only runs started before this run id
	Status Status
	Since  time.Time // only runs started then or later; zero: no bound
	Until  time.Time // only runs started before then; zero: no bound
}

// Verification is what was found when all of the trace was checked.
type Verification struct {
	OK      bool     `json:"ok"`      // all of it holds
	Records int64    `json:"records"` // in the log
	Head    TraceRef `json:"head"`    // the newest signed tree head
	Key     string   `json:"key"`     // the public key of the signatures
	Heads   int      `json:"heads"`   // how many heads from outside were compared
	Blobs   int64    `json:"blobs"`   // outputs and artifacts whose bytes were read and compared
	// Erased are the ranges of records, first and last, whose payloads retention erased. They are proved but for those.
	Erased [][2]int64 `json:"erased"`
	// Found is how many records were written before there was a log. They were sealed later, as they were found.
	Found int64 `json:"found"`
	// Problems are what does not hold, by record, at most 100.
	Problems []TraceProblem `json:"problems"`
	More     int64          `json:"more"` // problems beyond those
}

// TraceProblem is one thing that does not hold.
type TraceProblem struct {
	Seq  int64  `json:"seq"`           // the record; 0 when it is no one record's
	Run  string `json:"run,omitempty"` // its run, where that can be told
	Kind string `json:"kind"`          // changed, removed, reordered, cut_off or forged
	Text string `json:"text"`          // one sentence
}
