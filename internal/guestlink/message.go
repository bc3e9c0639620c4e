package guestlink

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"glovebox"
	"glovebox/driver"
)

// The methods that the agent serves. Each has one of the types below as arguments, and as answer.
const (
	MethodHello    = "hello"    // nothing → Hello
	MethodResync   = "resync"   // Resync → Resync: its nonce, once everything is as it says
	MethodStart    = "start"    // Start → nothing
	MethodHold     = "hold"     // Start → nothing
	MethodTemplate = "template" // Start → nothing
	MethodFork     = "fork"     // Start → nothing
	MethodResize   = "resize"   // glovebox.Limits → nothing
	MethodInputs   = "inputs"   // Inputs → nothing
	MethodAttach   = "attach"   // Attach → nothing
	MethodExec     = "exec"     // Exec → Executed
	MethodExited   = "exited"   // nothing → driver.Exit, when the leader has ended
	MethodLost     = "lost"     // nothing → nothing, when the interpreter that is held has ended
	MethodSample   = "sample"   // nothing → driver.Sample
	MethodKill     = "kill"     // nothing → nothing, when all is dead
	MethodOpen     = "open"     // Open → Opened
	MethodDisk     = "disk"     // nothing → driver.DiskUse
)

// What driver and agent must agree on besides.
const (
	Version    = "glovebox-guest 1" // what the agent says it is
	ModulesDir = "/modules"         // in the initramfs: modules of the kernel, to be loaded in the order of their names
	InitPath   = "/glovebox-init"   // in the initramfs: the binary of glovebox-init
	PortName   = "ctl"              // of the virtio port
	SerialRoot = "root"             // serial numbers of disks: of the image,
	SerialIn   = "inputs"           // of the inputs of a cold start,
	SerialWork = "work"             // and of a workspace on disk
)

// Hello is what the agent is.
type Hello struct{ Version string }

// Resync makes a machine that was saved its own: nothing of a request goes in before it is answered.
type Resync struct {
	Nonce    string
	Random   []byte // from the host, for every source of randomness
	UnixNano int64  // the time of day
}

// Start describes a sandbox in the guest, and the interpreter to be held in it, if one is.
type Start struct {
	Spec     driver.Spec
	Hold     *driver.Hold
	Template bool // it is for a template, whose folder of inputs is above those of its forks
	OnDisk   bool // its workspace is the disk, not memory
	Inputs   bool // the disk of inputs has them; else those that come late do, if Spec has any
}

// Inputs announces files for /inputs: a stream of so many, each a length (4 bytes, little-endian), an Input of so many
// bytes, and the file's own.
type Inputs struct {
	Stream uint32
	Count  int
}

// Input is one file, folder or link of the inputs. A folder comes before what is in it.
type Input struct {
	Path     []byte // from the folder of inputs on
	Folder   bool
	Target   []byte // of a link
	Perm     uint32
	UnixNano int64
	Size     int64
}

// Attach is driver.Network on its way, with the streams that carry its packets (see SendPackets): In goes to the guest.
type Attach struct {
	Contents    [][]byte
	Files, Over []File
	In, Out     uint32
}

// File is a driver.File, whose Data is one of the contents.
type File struct {
	Path    string
	Content int
}

// Exec is driver.Command on its way: streams by number, and bytes that need be no text.
type Exec struct {
	Argv, Env      [][]byte
	Dir            string
	HasCode        bool
	Code           []byte
	CodeName       string
	Stdout, Stderr uint32
	HasStdin       bool
	Stdin          uint32
}

// Executed says that the code was released, and behind what fence.
type Executed struct{ Posture glovebox.Posture }

// Open asks for a file or folder beneath /outputs. What is in it comes as a stream: of a file, parts of an offset and a
// length (8 bytes each, little-endian) and so many bytes; of a folder, names with a zero behind each.
type Open struct {
	Path   []byte
	Stream uint32
}

// Opened says what it is.
type Opened struct {
	Folder bool
	Size   int64
	Perm   uint32
}

// answer is what comes back of a call.
type answer struct {
	Failed *failure        `json:",omitempty"`
	Result json.RawMessage `json:",omitempty"`
}

// failure is an error on its way.
type failure struct {
	Kind   string // of kinds, or empty
	Text   string
	Code   glovebox.Code `json:",omitempty"` // with Public and Fix, those of a *glovebox.Error
	Public string        `json:",omitempty"`
	Fix    string        `json:",omitempty"`
}

// kinds are the errors that whoever calls tells apart.
var kinds = []struct {
	name string
	err  error
}{
	{"not regular", driver.ErrNotRegular}, {"left behind", driver.ErrLeftBehind}, {"released", driver.ErrReleased},
	{"no templates", driver.ErrNoTemplates}, {"attached", driver.ErrAttached}, {"not there", fs.ErrNotExist},
	{"not allowed", fs.ErrPermission},
}

// farError is an error of the other end.
type farError struct {
	text string
	kind error
}

func (e *farError) Error() string { return e.text }
func (e *farError) Unwrap() error { return e.kind }

func encodeCall(method string, in any) ([]byte, error) {
	args, err := json.Marshal(in)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", method, err)
	}
	if len(method) > 255 || len(args) > maxCall-256 {
		return nil, glovebox.Errorf(glovebox.CodeInvalid, "put what is large into an input file",
			"code, arguments and variables of %d MiB are more than a microVM takes", len(args)>>20)
	}
	return append(append([]byte{byte(len(method))}, method...), args...), nil
}

// Decode reads one JSON value that came over a link, strictly.
func Decode(b []byte, out any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(out); err != nil {
		return fmt.Errorf("%w: %w", errProtocol, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: bytes after a message", errProtocol)
	}
	return nil
}

const maxText = 4 << 10 // bytes of an error's text

func encodeAnswer(result any, err error) []byte {
	var a answer
	if err == nil {
		if a.Result, err = json.Marshal(result); err == nil && len(a.Result) > maxAnswer-256 {
			err = errors.New("the answer is too long")
		}
	}
	if err != nil {
		f := &failure{Text: cut(err.Error())}
		for _, k := range kinds {
			if errors.Is(err, k.err) {
				f.Kind = k.name
				break
			}
		}
		if known := new(glovebox.Error); errors.As(err, &known) {
			f.Code, f.Public, f.Fix = known.Code, cut(known.Public), cut(known.Fix)
		}
		a = answer{Failed: f}
	}
	b, err := json.Marshal(a)
	if err != nil { // which strings and numbers do not
		return []byte(`{"Failed":{"Text":"no answer could be made"}}`)
	}
	return b
}

func cut(s string) string {
	if len(s) > maxText {
		return s[:maxText]
	}
	return s
}

func (l *Link) decodeAnswer(b []byte, out any) error {
	var a answer
	if err := Decode(b, &a); err != nil {
		return err
	}
	if f := a.Failed; f != nil {
		return f.error(l.distrust.Load())
	}
	if out == nil {
		return nil
	}
	return Decode(a.Result, out)
}

func (f *failure) error(distrust bool) error {
	far := &farError{text: fmt.Sprintf("in the guest: %.4096q", f.Text)}
	for _, k := range kinds {
		if k.name == f.Kind {
			far.kind = k.err
		}
	}
	if f.Code == "" || distrust {
		return far
	}
	known := glovebox.Errorf(f.Code, cut(f.Fix), "%s", cut(f.Public))
	known.Err = far
	return known
}
