package glovebox

import "io"

// Request is one run as asked for. Every field but the code (or Argv) may be left out; what is left out the policy fills in.
// A field that Glovebox knows and cannot honour is refused by name, never ignored.
type Request struct {
	Lang        string            `json:"lang,omitempty"` // python, node or bash; python when Code is set and Lang is not
	Code        string            `json:"code,omitempty"`
	Argv        []string          `json:"argv,omitempty"` // any program of the image, in place of Lang and Code
	Args        []string          `json:"args,omitempty"` // what the code sees as its arguments
	Trust       Trust             `json:"trust,omitempty"`
	Isolation   Isolation         `json:"isolation,omitempty"`
	Image       string            `json:"image,omitempty"`
	Env         map[string]string `json:"env,omitempty"`
	Stdin       string            `json:"stdin,omitempty"`
	Inputs      []Input           `json:"inputs,omitempty"`
	Allow       []string          `json:"allow,omitempty"`
	Secrets     []SecretRef       `json:"secrets,omitempty"`
	Actions     []string          `json:"actions,omitempty"` // names of configured actions that its program may call
	Session     string            `json:"session,omitempty"`
	Interpreter bool              `json:"interpreter,omitempty"`
	Detach      bool              `json:"detach,omitempty"`
	Limits      Limits            `json:"limits,omitzero"`

	// CodeName is what tracebacks call the code, a bare file name; empty means main with the language's suffix. On the
	// wire it is code_name.
	CodeName string `json:"-"`
	// StdinFrom streams standard input in place of Stdin. It is read until the program or the input ends and is never
	// closed. A read that blocks delays nothing. Not on the wire.
	StdinFrom io.Reader `json:"-"`
	// Collect asks for the files of /outputs to be kept, hashed and listed in Result.Artifacts. On the wire it is
	// collect, and true where it is left out.
	Collect bool `json:"-"`
}

// Input is one file or folder shown read-only at /inputs/Name. One of Content, ContentBase64, Path and Run is set.
type Input struct {
	Name          string `json:"name"`
	Content       string `json:"content,omitempty"`
	ContentBase64 string `json:"content_base64,omitempty"`
	Path          string `json:"path,omitempty"`     // beneath a configured input root; the local owner may name any path
	Run           string `json:"run,omitempty"`      // an earlier run of the same tenant, with Artifact
	Artifact      string `json:"artifact,omitempty"` // the path of that run's artifact
}

// SecretRef asks to lend a configured secret for requests to one host. It holds a name, never a value.
type SecretRef struct {
	Name string `json:"name"`
	Host string `json:"host"`
}
