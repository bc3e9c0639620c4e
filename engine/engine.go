package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"glovebox"
	"glovebox/driver"
	"glovebox/internal/admission"
	"glovebox/internal/livefolder"
	"glovebox/internal/store"
	"glovebox/internal/trace"
	"glovebox/policy"
)

// Config is what an Engine is made of.
type Config struct {
	// DataDir holds the trace and the folders of live runs. It is made when missing. Required.
	DataDir string
	// Trace says how the trace is sealed and what of it is kept.
	Trace Trace
	// Policy decides. The drivers are asked at each decision which rungs there are.
	Policy policy.Config
	// Drivers make the sandboxes, one for each rung.
	Drivers []driver.Driver
	// Remote is another Glovebox, for the rung of that name. Zero: there is none.
	Remote Remote
	// Image is the runtime image called host; nil means what package image makes of this machine.
	Image Image
	// MemoryBudget bounds the memory limits of all live runs together, of every process of this user; a run that does not
	// fit now waits. Zero: MemoryPercent of what the machine and this process's own control group allow; that zero: 75.
	MemoryBudget  glovebox.Size
	MemoryPercent int
	// RuntimeDir holds the locks by which they share it. Empty: /run/glovebox for root, else
	// /tmp/glovebox-UID.
	RuntimeDir string
	// Pool is what is ready before anybody asks. Zero: nothing.
	Pool Pool
	// Network opens a way out of a sandbox where one is granted. Zero: there is none.
	Network Network
	// Log gets one line for each run and what goes wrong beside them; nil discards.
	Log *slog.Logger
	// ServedBy is what results say about who served them; empty means local.
	ServedBy string
	// Now tells the time of records; nil means time.Now. Limits go by the machine's monotonic clock whatever it says.
	Now func() time.Time
}

// Trace is how the record of runs is sealed and what of it is kept. The zero value keeps everything.
type Trace struct {
	// Key is the path of the file of the key that signs the record; empty means trace.key in DataDir. It is made when it is
	// missing and nothing was signed yet.
	Key string
	// HeadsFile, HeadsSyslog and HeadsWebhook are where signed tree heads go besides: a file that is appended to, the socket
	// of the system logger, and an address that they are posted to. Empty means nowhere. While one cannot be reached nothing
	// is run.
	HeadsFile, HeadsSyslog, HeadsWebhook string
	// Retention is how long after its end what a run left is kept; zero means for ever.
	Retention time.Duration
	// DataLimit bounds what is kept of all runs together; zero means no bound.
	DataLimit glovebox.Size
}

// Image is a runtime image. Its methods are safe for concurrent use and cheap.
type Image interface {
	// Root is what a sandbox shows of it.
	Root() driver.Root
	// Identity names its exact state.
	Identity() string
	// Interpreter is the path, inside, of what runs a language. The error is a *glovebox.Error.
	Interpreter(lang string) (string, error)
	// Report tells what it can run.
	Report() glovebox.Image
	// Env is the image's own environment, as NAME=VALUE.
	Env() []string
	// Modules are what is worth loading before a Python program that names one of them.
	Modules() []string
	// Forks tells whether its Python may be the template of others on this machine's own kernel.
	Forks() bool
}

// Engine implements glovebox.Service. It is safe for concurrent use.
type Engine struct {
	cfg     Config
	rules   policies
	drivers map[glovebox.Isolation]driver.Driver
	other   *other
	image   func() (Image, error)
	stored  *storedImages
	memory  func() (*admission.Admission, error)
	ready   func() *ready // nil without a pool
	network *network      // nil without a gateway
	runs    string        // the folder of the folders of live runs
	free    func() (memory, disk glovebox.Size, err error)

	opened chan struct{} // closed when store, trace and failed are set
	store  *store.Store
	trace  *trace.Trace
	failed error

	mu        sync.Mutex
	closed    bool
	leaving   context.CancelCauseFunc // cancels all runs
	life      context.Context
	busy      sync.WaitGroup // what uses the store: runs, tending, and the opening of the store
	removing  sync.WaitGroup // what removes sandboxes and folders and needs no store
	teardown  chan struct{}  // a token for each teardown that goes on beside callers
	tended    sync.Once
	retained  time.Time // when retention last came to its end; it is held by whoever has the token of retaining
	retaining chan struct{}
}

// retainEvery is how often an engine looks for what retention erases.
const retainEvery = time.Minute

// maxTeardown bounds how many sandboxes are removed at a time beside the callers; a run beyond them waits for its own.
const maxTeardown = 64

var errClosing = errors.New("the engine is closing")

// New makes an Engine. It returns at once: the data_dir is opened beside it, and what is wrong with that is told by the
// first use. Errors are those of the configuration.
func New(cfg Config) (*Engine, error) {
	if cfg.DataDir == "" {
		return nil, errors.New("new engine: DataDir is empty")
	}
	if cfg.Pool.Spares < 0 || cfg.Pool.Idle < 0 {
		return nil, fmt.Errorf("new engine: a pool of %d spares, idle after %v, makes no sense", cfg.Pool.Spares, cfg.Pool.Idle)
	}
	dir, err := filepath.Abs(cfg.DataDir)
	if err != nil {
		return nil, err
	}
	cfg.DataDir = dir
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.ServedBy == "" {
		cfg.ServedBy = "local"
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Trace.Key == "" {
		cfg.Trace.Key = filepath.Join(dir, "trace.key")
	}
	e := &Engine{cfg: cfg, drivers: map[glovebox.Isolation]driver.Driver{}, runs: filepath.Join(dir, "runs"),
		opened: make(chan struct{}), teardown: make(chan struct{}, maxTeardown), retaining: make(chan struct{}, 1)}
	e.image, e.other = newImages(cfg.Image).get, newOther(cfg.Remote)
	e.stored = newStoredImages(filepath.Join(dir, "images"), cfg.Pool)
	e.memory = sync.OnceValues(func() (*admission.Admission, error) {
		return admission.New(admission.Config{Dir: cfg.RuntimeDir, Size: cfg.MemoryBudget, Percent: cfg.MemoryPercent})
	})
	for _, d := range cfg.Drivers {
		if d.Isolation() == glovebox.IsolationRemote {
			return nil, errors.New("new engine: the remote rung has no driver: set Remote")
		}
		if _, twice := e.drivers[d.Isolation()]; twice {
			return nil, errors.New("new engine: two drivers for the rung " + string(d.Isolation()))
		}
		e.drivers[d.Isolation()] = d
	}
	if e.rules.now, err = policy.New(cfg.Policy); err != nil {
		return nil, err
	}
	if e.network, err = e.newNetwork(); err != nil {
		return nil, err
	}
	e.ready = sync.OnceValue(e.newReady)
	e.free = e.freeRoom
	e.life, e.leaving = context.WithCancelCause(context.Background())
	e.busy.Go(e.open)
	// So that both are known by the time a run asks, which is told what is wrong.
	e.busy.Go(func() { _, _ = e.image(); _, _ = e.memory(); e.ready().begin(e) })
	return e, nil
}

// open opens the data_dir, once.
func (e *Engine) open() {
	defer close(e.opened)
	s, err := store.Open(store.Config{Dir: e.cfg.DataDir})
	if err != nil {
		e.failed = trace.Explain("open the trace", err)
		return
	}
	if err := os.Mkdir(e.runs, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		e.failed = glovebox.Internal("make the folder of runs", errors.Join(err, s.Close()))
		return
	}
	c := e.cfg.Trace
	t, err := trace.New(context.WithoutCancel(e.life), trace.Config{Store: s, Key: c.Key, Now: e.cfg.Now, Log: e.cfg.Log,
		Heads:     trace.Heads{File: c.HeadsFile, Syslog: c.HeadsSyslog, Webhook: c.HeadsWebhook},
		Retention: trace.Retention{Age: c.Retention, Bytes: c.DataLimit}})
	if err != nil {
		e.failed = trace.Explain("open the trace", errors.Join(err, s.Close()))
		return
	}
	e.store, e.trace = s, t
}

// record is the trace, once it is open.
func (e *Engine) record() (*trace.Trace, error) {
	<-e.opened
	return e.trace, e.failed
}

// enter begins something that Close waits for; leave ends it. The context ends also when the engine closes.
func (e *Engine) enter(ctx context.Context) (_ context.Context, leave func(), _ error) {
	if ctx == nil {
		return nil, nil, glovebox.Errorf(glovebox.CodeInvalid, "pass context.Background()", "the context is nil")
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, nil, glovebox.Errorf(glovebox.CodeUnavailable, "start it again", "the engine is closed")
	}
	e.busy.Add(1)
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(e.life, func() { cancel(errClosing) })
	return ctx, func() { stop(); cancel(nil); e.busy.Done() }, nil
}

// beside removes something that no caller waits for and Close does. It is called between enter and leave and does not use
// the store.
func (e *Engine) beside(work func()) {
	select {
	case e.teardown <- struct{}{}:
		e.removing.Go(func() {
			defer func() { <-e.teardown }()
			work()
		})
	default:
		work()
	}
}

// Close cancels the runs in progress, waits for them and for what goes on beside them, then closes the data_dir.
func (e *Engine) Close() error {
	e.mu.Lock()
	first := !e.closed
	e.closed = true
	e.mu.Unlock()
	e.leaving(errClosing)
	e.busy.Wait()
	if first && e.other.Service != nil {
		defer e.closeOther()
	}
	defer e.giveBack() // what goes on while the store is closed
	if !first || e.store == nil {
		return nil
	}
	if err := errors.Join(e.trace.Close(), e.store.Close()); err != nil {
		return glovebox.Internal("close the trace", err) // not a refusal: what ran has run
	}
	return nil
}

// closeOther lets the other Glovebox go, which goes on.
func (e *Engine) closeOther() {
	if err := e.other.Service.Close(); err != nil {
		e.cfg.Log.Error("let the other Glovebox go", "err", err)
	}
}

// giveBack ends what is ready and waits until all sandboxes are gone, then gives back the memory of those that could not be
// closed too: nothing of them outlives this process, which is about to end.
func (e *Engine) giveBack() {
	e.closeReady()
	e.removing.Wait()
	e.closeNetwork()
	e.stored.close()
	if a, err := e.memory(); err == nil {
		a.Close()
	}
}

// Output implements glovebox.Runs.
func (e *Engine) Output(ctx context.Context, who glovebox.Principal, run, stream string, offset, limit int64) (
	[]byte, error) {
	ctx, t, leave, err := e.reading(ctx, who)
	if err != nil {
		return nil, err
	}
	defer leave()
	return t.Output(ctx, who.Tenant, run, stream, offset, limit)
}

// Artifact implements glovebox.Runs.
func (e *Engine) Artifact(ctx context.Context, who glovebox.Principal, run, path string) (io.ReadCloser, error) {
	ctx, t, leave, err := e.reading(ctx, who)
	if err != nil {
		return nil, err
	}
	defer leave()
	return t.OpenArtifact(ctx, who.Tenant, run, path)
}

// Trace implements glovebox.Traces.
func (e *Engine) Trace(ctx context.Context, who glovebox.Principal, run string) (*glovebox.Record, error) {
	ctx, t, leave, err := e.reading(ctx, who)
	if err != nil {
		return nil, err
	}
	defer leave()
	e.tend()
	return t.Get(ctx, who.Tenant, run)
}

// Traces implements glovebox.Traces.
func (e *Engine) Traces(ctx context.Context, who glovebox.Principal, q glovebox.TraceQuery) ([]glovebox.Record, error) {
	ctx, t, leave, err := e.reading(ctx, who)
	if err != nil {
		return nil, err
	}
	defer leave()
	e.tend()
	return t.List(ctx, who.Tenant, q)
}

// Verify implements glovebox.Traces.
func (e *Engine) Verify(ctx context.Context, who glovebox.Principal, heads []glovebox.TraceRef) (
	*glovebox.Verification, error) {
	ctx, t, leave, err := e.reading(ctx, who)
	if err != nil {
		return nil, err
	}
	defer leave()
	if !who.Owner {
		return nil, glovebox.Errorf(glovebox.CodeDenied, "ask the owner of this machine",
			"the whole trace is the owner's to verify")
	}
	return t.Verify(ctx, heads)
}

// reading begins a use of the trace by who. The context ends also when the engine closes.
func (e *Engine) reading(ctx context.Context, who glovebox.Principal) (context.Context, *trace.Trace, func(), error) {
	if who.Tenant == "" {
		return nil, nil, nil, glovebox.Errorf(glovebox.CodeDenied, "authenticate", "nobody is asking")
	}
	ctx, leave, err := e.enter(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	t, err := e.record()
	if err != nil {
		leave()
		return nil, nil, nil, err
	}
	return ctx, t, leave, nil
}

// tend puts right what an engine that died left behind, once in an engine's life: it ends the records of its runs and
// removes their folders and half-written files. It is called between enter and leave, when the trace is open.
func (e *Engine) tend() {
	e.tended.Do(func() {
		n, err := e.trace.Interrupted(e.life)
		if err != nil && e.life.Err() == nil {
			e.cfg.Log.Error("close interrupted runs", "err", err)
		}
		if n > 0 {
			e.cfg.Log.Warn("runs were interrupted", "runs", n)
		}
		if err := errors.Join(livefolder.Sweep(e.runs, nil), e.store.Sweep(), e.stored.store.Sweep()); err != nil {
			e.cfg.Log.Error("remove what dead engines left", "err", err)
		}
	})
}

// retain erases what retention says, now and then, a bounded amount at a time. It is called as tend is.
func (e *Engine) retain() {
	select {
	case e.retaining <- struct{}{}:
		defer func() { <-e.retaining }()
	default:
		return // somebody does it
	}
	if !e.retained.IsZero() && time.Since(e.retained) < retainEvery {
		return
	}
	n, more, err := e.trace.Retain(e.life)
	if err != nil {
		e.cfg.Log.Error("erase by retention", "err", err)
	}
	if n > 0 {
		e.cfg.Log.Info("erased by retention", "runs", n)
	}
	if !more {
		e.retained = time.Now()
	}
}
