package brokerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"glovebox"
	"glovebox/internal/broker"
	"glovebox/internal/brokerd/action"
	"glovebox/internal/brokerd/mint"
	"glovebox/internal/upstream"
)

// Config is what Serve needs beside what its client says.
type Config struct {
	// Dialer makes what reaches upstreams. Required.
	Dialer func(broker.Network) (Dialer, error)
	// Log gets what goes wrong and what was found in answers, without a value; nil discards.
	Log *slog.Logger
}

// Dialer dials what a name stands for, as upstream.Dialer does.
type Dialer interface {
	DialContext(ctx context.Context, t upstream.Target) (net.Conn, error)
}

// setupTime is how long a client may take to say what it wants.
const setupTime = 10 * time.Second

// Serve is a broker for the client at the other end of control, until that closes. It takes control over. The error is nil
// when the client closed it.
func Serve(control *net.UnixConn, cfg Config) error {
	defer control.Close()
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s, err := begin(control, cfg)
	if err != nil {
		return err
	}
	for err == nil {
		var o broker.Opening
		var stream net.Conn
		if o, stream, err = broker.ReceiveOpening(control); err == nil {
			s.door.hand(&tagged{stream, o})
		}
	}
	s.close()
	if errors.Is(err, io.EOF) {
		return nil
	}
	return fmt.Errorf("hear the client: %w", err)
}

// begin takes in the set-up and says whether it can be done.
func begin(control *net.UnixConn, cfg Config) (*server, error) {
	o, stream, err := broker.ReceiveOpening(control)
	if err != nil {
		return nil, fmt.Errorf("hear the client: %w", err)
	}
	defer stream.Close()
	if o.Kind != broker.StreamSetup {
		return nil, errors.New("the first stream is no set-up")
	}
	if err := stream.SetDeadline(time.Now().Add(setupTime)); err != nil {
		return nil, err
	}
	setup, err := broker.ReadSetup(stream)
	if err != nil {
		return nil, fmt.Errorf("read the set-up: %w", err)
	}
	s, failed := newServer(setup, cfg)
	if err := json.NewEncoder(stream).Encode(broker.Started{Error: broker.Failed(failed)}); err != nil {
		failed = errors.Join(failed, err)
	}
	if failed != nil && s != nil {
		s.close()
	}
	return s, failed
}

// server is the broker of one client.
type server struct {
	log     *slog.Logger
	store   *store
	mint    *mint.Mint
	actions *action.Actions
	actor   *http.Transport // of their requests
	dialer  Dialer
	network tlsRoots
	specs   map[string]*broker.Spec
	http    *http.Server
	door    *door
	serving sync.WaitGroup
	life    context.Context
	end     context.CancelFunc

	mu       sync.Mutex
	bindings map[string]*binding
}

func newServer(setup broker.Setup, cfg Config) (*server, error) {
	if err := broker.CheckAll(setup.Secrets); err != nil {
		return nil, err
	}
	roots, err := newRoots(setup.Roots)
	if err != nil {
		return nil, err
	}
	dialer, err := cfg.Dialer(setup.Network)
	if err != nil {
		return nil, err
	}
	s := &server{log: cfg.Log, dialer: dialer, network: roots, specs: map[string]*broker.Spec{}, door: newDoor(),
		bindings: map[string]*binding{}, store: newStore(setup)}
	for i := range setup.Secrets {
		s.specs[setup.Secrets[i].Name] = &setup.Secrets[i]
	}
	if err := s.newMint(setup, roots); err != nil {
		return nil, err
	}
	if err := s.newActions(setup, roots); err != nil {
		return nil, err
	}
	s.life, s.end = context.WithCancel(context.Background())
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	s.http = &http.Server{
		Handler: s, Protocols: protocols, MaxHeaderBytes: 256 << 10,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError), // it could quote a request
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, openingKey{}, c.(*tagged).opening)
		},
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 512, MaxReceiveBufferPerConnection: 4 << 20,
			MaxReceiveBufferPerStream: 1 << 20},
	}
	s.serving.Go(func() { _ = s.http.Serve(s.door) }) // it ends with the door
	return s, nil
}

// close ends all that is under way and forgets what was lent.
func (s *server) close() {
	s.end()
	s.mu.Lock()
	all := s.bindings
	s.bindings = nil
	s.mu.Unlock()
	var closing sync.WaitGroup
	for _, b := range all {
		closing.Go(b.close)
	}
	closing.Wait()
	_ = s.http.Close() // its connections are sockets of this process
	s.door.Close()
	s.serving.Wait()
}

type openingKey struct{}

// ServeHTTP serves a stream as it was opened: whose it is was said then, and by no request.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o := r.Context().Value(openingKey{}).(broker.Opening)
	switch o.Kind {
	case broker.StreamAdmin:
		s.admin(w, r)
		return
	case broker.StreamRun:
		s.mu.Lock()
		b := s.bindings[o.Binding]
		s.mu.Unlock()
		if b != nil {
			b.ServeHTTP(w, r)
			return
		}
	}
	panic(http.ErrAbortHandler) // nothing was lent, or no more
}

// admin does what the client asks of the broker itself.
func (s *server) admin(w http.ResponseWriter, r *http.Request) {
	var a broker.Answer
	var err error
	switch r.URL.Path {
	case broker.PathBind:
		err = asked(r, s.bind)
	case broker.PathReplace:
		err = asked(r, s.replace)
	case broker.PathUnbind:
		err = asked(r, s.unbind)
	case broker.PathCheck:
		a.Checked = s.check(r.Context())
	default:
		err = glovebox.Errorf(glovebox.CodeNotFound, "use a glovebox-broker of the same version",
			"the broker does not know %s", r.URL.Path)
	}
	if err != nil {
		s.log.Warn("an admin request failed", "path", r.URL.Path, "err", err)
	}
	a.Error = broker.Failed(err)
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(a) // a client that is gone needs no answer
}

func asked[T any](r *http.Request, do func(context.Context, T) error) error {
	var v T
	if err := json.NewDecoder(io.LimitReader(r.Body, broker.MaxAnswer)).Decode(&v); err != nil {
		return glovebox.Errorf(glovebox.CodeInvalid, "use a glovebox-broker of the same version", "the request cannot be read")
	}
	return do(r.Context(), v)
}

// check tries each source. What was read is forgotten.
func (s *server) check(ctx context.Context) []broker.Checked {
	var list []broker.Checked
	for _, spec := range s.store.specs {
		var err error
		if spec.Mint == nil || !spec.Mint.Sourceless() {
			_, err = s.store.credential(ctx, spec, true)
		}
		list = append(list, broker.Checked{Name: spec.Name, Error: broker.Failed(err)})
	}
	return list
}

// tagged is a stream with what it is for.
type tagged struct {
	net.Conn
	opening broker.Opening
}

// door is a listener for streams that were handed over.
type door struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newDoor() *door { return &door{conns: make(chan net.Conn), done: make(chan struct{})} }

// hand waits until a stream is taken; it is closed where the door is.
func (d *door) hand(c net.Conn) {
	select {
	case d.conns <- c:
	case <-d.done:
		c.Close()
	}
}

// Accept implements net.Listener.
func (d *door) Accept() (net.Conn, error) {
	select {
	case c := <-d.conns:
		return c, nil
	case <-d.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (d *door) Close() error {
	d.once.Do(func() { close(d.done) })
	return nil
}

// Addr implements net.Listener.
func (d *door) Addr() net.Addr { return &net.UnixAddr{Name: "broker", Net: "unix"} }
