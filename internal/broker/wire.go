package broker

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"

	"glovebox"
)

// What a client and its broker say to each other. The control socket is of kind SOCK_SEQPACKET: each message on it is an
// Opening with one stream socket, and is not answered. The first stream brings a Setup and takes a Started; all others carry
// HTTP/2 in clear. When the control socket closes the broker ends.

// Opening says what a stream is for.
type Opening struct {
	// Kind is StreamSetup, StreamAdmin or StreamRun.
	Kind string `json:"kind"`
	// Binding names the run's binding, of StreamRun: requests on the stream are of that run, whatever they say.
	Binding string `json:"binding,omitempty"`
}

// The kinds of streams.
const (
	StreamSetup = "setup"
	StreamAdmin = "admin"
	StreamRun   = "run"
	// Host is the host inside at which the broker itself answers, on streams of StreamRun.
	Host = "broker.internal"
)

// Bounds of what is said.
const (
	maxOpening = 1 << 10
	maxSetup   = 16 << 20
	// MaxAnswer bounds an answer of the admin stream.
	MaxAnswer = 4 << 20
)

// Setup is all that a broker knows. It has the values of variables, and no others.
type Setup struct {
	Secrets []Spec
	Actions []Action
	Environ map[string]Secret // of Spec.Env and Spec.Pass, as far as they are set
	Network Network
	Roots   []byte // PEM; empty: the system's
	Dir     string // where it may keep keys of its own
}

// Network is how upstreams are reached.
type Network struct {
	Resolvers     []netip.AddrPort
	Proxy         Secret // http://[USER:PASSWORD@]HOST:PORT
	ProxyResolves bool
	// Private are the private networks in which what actions reach may lie.
	Private []netip.Prefix
}

// setupWire is a Setup as it is sent: there values are values.
type setupWire struct {
	Secrets       []Spec            `json:"secrets"`
	Actions       []Action          `json:"actions,omitempty"`
	Environ       map[string]string `json:"environ,omitempty"`
	Resolvers     []netip.AddrPort  `json:"resolvers,omitempty"`
	Proxy         string            `json:"proxy,omitempty"`
	ProxyResolves bool              `json:"proxy_resolves,omitempty"`
	Private       []netip.Prefix    `json:"private,omitempty"`
	Roots         []byte            `json:"roots,omitempty"`
	Dir           string            `json:"dir,omitempty"`
}

// encode is s as it is sent.
func (s *Setup) encode() ([]byte, error) {
	w := setupWire{Secrets: s.Secrets, Actions: s.Actions, Environ: map[string]string{}, Resolvers: s.Network.Resolvers,
		Proxy:         s.Network.Proxy.Reveal(),
		ProxyResolves: s.Network.ProxyResolves, Private: s.Network.Private, Roots: s.Roots, Dir: s.Dir}
	for name, v := range s.Environ {
		w.Environ[name] = v.Reveal()
	}
	return json.Marshal(w)
}

// Started is what a broker says to a Setup.
type Started struct {
	Error *Failure `json:"error,omitempty"`
}

// Failure is a glovebox.Error on the wire. Its cause stays where it was.
type Failure struct {
	Code    glovebox.Code `json:"code"`
	Message string        `json:"message"`
	Fix     string        `json:"fix,omitempty"`
}

// Failed makes a Failure of an error; nil for nil.
func Failed(err error) *Failure {
	if err == nil {
		return nil
	}
	var known *glovebox.Error
	if !errors.As(err, &known) {
		known = glovebox.Internal("ask the broker", err).(*glovebox.Error)
	}
	return &Failure{known.Code, known.Public, known.Fix}
}

// Err is f as an error; nil for nil.
func (f *Failure) Err() error {
	if f == nil {
		return nil
	}
	return glovebox.Errorf(f.Code, f.Fix, "%s", f.Message)
}

// Run is whose requests they are.
type Run struct {
	ID     string `json:"id"`
	Tenant string `json:"tenant,omitempty"`
	Rule   string `json:"rule,omitempty"`
}

// BindAsk asks to lend to a run. Placeholders are those of Lent, in its order.
type BindAsk struct {
	Binding string                `json:"binding"`
	Run     Run                   `json:"run"`
	Rules   []glovebox.EgressRule `json:"rules"`
	Lent    []Lent                `json:"lent"`
	Actions []string              `json:"actions,omitempty"` // that it may call
}

// Lent is one secret that a run was lent, for some of its hosts.
type Lent struct {
	Name        string   `json:"name"`
	Hosts       []string `json:"hosts"` // as Endpoint.String has them
	Placeholder string   `json:"placeholder"`
}

// ReplaceAsk changes the rules of a binding.
type ReplaceAsk struct {
	Binding string                `json:"binding"`
	Rules   []glovebox.EgressRule `json:"rules"`
}

// UnbindAsk ends a binding.
type UnbindAsk struct {
	Binding string `json:"binding"`
}

// Answer is what admin requests are answered.
type Answer struct {
	Error   *Failure  `json:"error,omitempty"`
	Checked []Checked `json:"checked,omitempty"`
}

// Checked tells of one secret's source whether it can be read, never what it holds.
type Checked struct {
	Name  string   `json:"name"`
	Error *Failure `json:"error,omitempty"`
}

// Paths of the admin stream.
const (
	PathBind    = "/bind"
	PathReplace = "/replace"
	PathUnbind  = "/unbind"
	PathCheck   = "/check"
)

// Headers by which a broker tells its client of a refusal: the reason (an egress.Reason), and the secret whose placeholder
// it was. No server can send them.
const (
	HeaderReason = "Glovebox-Reason"
	HeaderSecret = "Glovebox-Secret"
)

// SendOpening sends an Opening with a stream, which stays the caller's.
func SendOpening(control *net.UnixConn, o Opening, stream *os.File) error {
	b, err := json.Marshal(o)
	if err != nil {
		return err
	}
	raw, err := stream.SyscallConn()
	if err != nil {
		return err
	}
	// Within Control the descriptor cannot be closed and its number given to another file.
	controlled := raw.Control(func(fd uintptr) {
		_, _, err = control.WriteMsgUnix(b, syscall.UnixRights(int(fd)), nil)
	})
	if err = errors.Join(controlled, err); err != nil {
		return fmt.Errorf("open a stream to the broker: %w", err)
	}
	return nil
}

// ReceiveOpening takes an Opening and its stream, which the caller closes. io.EOF means that the other end is closed.
func ReceiveOpening(control *net.UnixConn) (o Opening, stream net.Conn, err error) {
	b, oob := make([]byte, maxOpening), make([]byte, 64)
	n, oobn, flags, _, err := control.ReadMsgUnix(b, oob)
	if err != nil {
		return o, nil, err
	}
	if n == 0 && oobn == 0 {
		return o, nil, io.EOF
	}
	files, err := received(oob[:oobn])
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	switch {
	case err != nil:
		return o, nil, err
	case flags&(syscall.MSG_TRUNC|syscall.MSG_CTRUNC) != 0 || len(files) != 1:
		return o, nil, errors.New("a message on the control socket is none that a client sends")
	}
	if err = json.Unmarshal(b[:n], &o); err != nil {
		return o, nil, err
	}
	stream, err = net.FileConn(files[0])
	return o, stream, err
}

func received(oob []byte) ([]*os.File, error) {
	messages, err := syscall.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	var files []*os.File
	for i := range messages {
		fds, failed := syscall.ParseUnixRights(&messages[i])
		err = errors.Join(err, failed)
		for _, fd := range fds {
			syscall.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "stream"))
		}
	}
	return files, err
}

// ReadSetup reads a Setup from its stream, to the end. An error holds nothing of it.
func ReadSetup(r io.Reader) (Setup, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxSetup+1))
	defer clear(b)
	if err != nil {
		return Setup{}, err
	}
	var w setupWire
	if len(b) > maxSetup || json.Unmarshal(b, &w) != nil {
		return Setup{}, errors.New("the set-up is too long, or cannot be read")
	}
	s := Setup{Secrets: w.Secrets, Actions: w.Actions, Environ: map[string]Secret{}, Roots: w.Roots, Dir: w.Dir,
		Network: Network{w.Resolvers, NewSecret(w.Proxy), w.ProxyResolves, w.Private}}
	for name, v := range w.Environ {
		s.Environ[name] = NewSecret(v)
	}
	return s, nil
}
