package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"glovebox"
	"glovebox/driver"
	"glovebox/internal/boot"
	"glovebox/internal/lease"
	"glovebox/internal/livefolder"
)

// Pool is what an engine has ready before anybody asks. The zero value is nothing: every run starts cold.
type Pool struct {
	// Spares is the most that are ready of one kind. Zero: there is no pool.
	Spares int
	// Idle is how long nobody asks for a kind before the last of its spares goes. Zero: 10 minutes.
	Idle time.Duration
	// Forks allows spares that are forks of one interpreter. They share with each other what it fixed at its start, such as
	// its hash seed and the layout of its memory, and never with another tenant's. Code of hostile trust gets none.
	Forks bool
}

// home is the tenant for which Python is ready from the start.
const home = "local"

// baseModules are loaded in every Python that waits: what most programs of a few lines begin with.
var baseModules = []string{"json", "csv", "re", "datetime", "statistics", "sqlite3", "math", "random", "collections",
	"itertools", "functools"}

// waitMemory is what an interpreter needs for itself while it waits for its code. Those that load their modules themselves
// need more than a fork does; the driver says what that makes.
var waitMemory = map[string]glovebox.Size{"bash": 64 * glovebox.MiB, "node": 128 * glovebox.MiB, "python": 64 * glovebox.MiB}

// dataMemory is for one that has loaded the image's Modules too, which it does where a program names one of them. They
// take a while to load, and memory.
const dataMemory = 320 * glovebox.MiB

// ready is what an engine has ready. A nil *ready has nothing.
type ready struct {
	pool  *lease.Pool
	forks bool
	// network says that spares are made so that they can be given one, where that costs nothing. The kernel of the gVisor rung
	// must have its device from the start: there spares with one are a kind of their own.
	network bool

	mu     sync.Mutex
	limits glovebox.Limits // those that spares are made with: the policy's defaults
	policy int             // how often it has changed
}

// change goes by the defaults of another policy: spares of the one before are discarded.
func (w *ready) change(limits glovebox.Limits) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.limits, w.policy = limits, w.policy+1
}

// defaults are the limits that spares are made with now, and the count of the policy that they are of.
func (w *ready) defaults() (glovebox.Limits, int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.limits, w.policy
}

// newReady makes the pool, or nil where there is to be none or nothing can be run anyway.
func (e *Engine) newReady() *ready {
	_, imageErr := e.image()
	memory, memoryErr := e.memory()
	if e.cfg.Pool.Spares == 0 || imageErr != nil || memoryErr != nil {
		return nil // requests are told of the errors
	}
	pool, err := lease.New(lease.Config{Memory: memory, Inputs: e.spareInputs, Max: e.cfg.Pool.Spares, Idle: e.cfg.Pool.Idle,
		Log: e.cfg.Log, Free: machineMemory})
	if err != nil {
		e.cfg.Log.Error("have sandboxes ready: all runs start cold", "err", err)
		return nil
	}
	return &ready{pool: pool, limits: e.policy().DefaultLimits(), forks: e.cfg.Pool.Forks,
		network: e.network != nil}
}

// begin has Python ready for requests that say nothing of themselves, so that the first of them need not start cold.
func (w *ready) begin(e *Engine) {
	if w == nil {
		return
	}
	d := e.decide(e.life, self("pool"), glovebox.Request{Code: "pass"})
	warmer, ok := e.drivers[d.Grant.Isolation].(driver.Warmer)
	if !d.Allow || !ok {
		return
	}
	image, err := e.image()
	if err != nil {
		return // requests are told
	}
	cmd, err := command(glovebox.Request{Lang: "python"}, image)
	if err != nil {
		return // as well
	}
	plain := w.kind(warmer, home, "python", cmd, "", d.Grant, image)
	if warmer.Sizes(plain.Hold).Alone == 0 {
		return
	}
	w.pool.Keep(plain)
	if data := image.Modules(); len(data) > 0 {
		w.pool.Keep(w.kind(warmer, home, "python", cmd, data[0], d.Grant, image))
	}
}

// kind is what serves code in lang, whose interpreter is started by cmd, without arguments.
func (w *ready) kind(d driver.Warmer, tenant, lang string, cmd driver.Command, code string, g glovebox.Grant,
	image Image) lease.Kind {
	cmd.Env, cmd.Code, cmd.Stdin = environment(image, nil), nil, nil // what else there is comes with the request
	hold := driver.Hold{Lang: lang, Command: cmd, Memory: waitMemory[lang]}
	if lang == "python" {
		hold.Modules = baseModules
		if data := image.Modules(); slices.ContainsFunc(data, func(m string) bool { return mentions(code, m) }) {
			hold.Modules, hold.Memory = slices.Concat(baseModules, data), dataMemory
		}
	}
	// On a kernel of its own whoever makes the copies is within the same boundary as they.
	forks := w.forks && lang == "python" && g.Trust != glovebox.TrustHostile &&
		(image.Forks() || d.Isolation() != glovebox.IsolationProcess)
	identity := image.Identity()
	name, _, _ := strings.Cut(identity, "@")
	limits, count := w.defaults()
	return lease.Kind{Driver: d, Policy: count, Tenant: tenant, Trust: g.Trust, Image: name, Identity: identity,
		Root:   image.Root(),
		Limits: limits, Hold: hold, Fork: forks, Network: w.network && d.Isolation() != glovebox.IsolationGVisor}
}

// serves tells whether a sandbox that was made before could be just what a request asks for: its interpreter was started
// with the default environment, for code of the default name, in a workspace of the default size.
func (w *ready) serves(req glovebox.Request, lang, codeName string, l glovebox.Limits) bool {
	d, _ := w.defaults()
	if len(req.Argv) > 0 || waitMemory[lang] == 0 || codeName != codeNames[lang] {
		return false
	}
	if l.Disk != d.Disk || l.Files != d.Files || l.OpenFiles != d.OpenFiles || l.CPUs != d.CPUs ||
		inMemory(l) != inMemory(d) {
		return false
	}
	for name := range req.Env {
		if boot.AtStart(lang, name) {
			return false
		}
	}
	return true
}

// inMemory tells which kind of workspace limits call for.
func inMemory(l glovebox.Limits) bool { return l.Disk+glovebox.MemoryBesideDisk <= l.Memory }

// mentions tells whether a text has a word, with nothing around it that could be part of a name.
func mentions(text, word string) bool {
	part := func(c byte) bool {
		return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
	}
	for at := 0; ; {
		i := strings.Index(text[at:], word)
		if i < 0 {
			return false
		}
		begin, end := at+i, at+i+len(word)
		if (begin == 0 || !part(text[begin-1])) && (end == len(text) || !part(text[end])) {
			return true
		}
		at = end
	}
}

// spareInputs makes the folder that a sandbox of the pool shows as its inputs: in a folder as a run has one, or below that
// of its template.
func (e *Engine) spareInputs(_ context.Context, id, below string) (string, func(context.Context) error, error) {
	var dir string
	var remove func(context.Context) error
	if below != "" {
		dir = filepath.Join(below, id)
		remove = func(context.Context) error { return livefolder.RemoveTree(dir) }
	} else {
		if _, err := e.record(); err != nil {
			return "", nil, err
		}
		f, err := livefolder.Make(filepath.Join(e.runs, id))
		if err != nil {
			return "", nil, err
		}
		dir, remove = filepath.Join(f.Path, "inputs"), f.Remove
	}
	err := os.Mkdir(dir, 0o755)
	if err == nil {
		err = os.Chmod(dir, 0o755) // whatever the mask
	}
	if err != nil {
		return "", nil, errors.Join(fmt.Errorf("make the folder of inputs: %w", err), remove(context.Background()))
	}
	return dir, remove, nil
}

// takeSpare takes a sandbox that is ready, or forks one, where it serves the run as one of its own would, and gives it the
// run's inputs. It waits for nobody else's. Its errors are refusals.
func (r *run) takeSpare(ctx context.Context) error {
	w, g := r.ready(), r.decision.Grant
	if w == nil || r.share == nil || ctx.Err() != nil {
		return nil
	}
	lang := language(r.req)
	d, ok := r.drivers[g.Isolation].(driver.Warmer)
	if !ok || !w.serves(r.req, lang, r.command.CodeName, g.Limits) {
		return nil
	}
	cmd := r.command
	cmd.Argv = cmd.Argv[:len(cmd.Argv)-len(r.req.Args)]
	kind := w.kind(d, r.who.Tenant, lang, cmd, r.req.Code, g, r.image)
	if d.Sizes(kind.Hold).Alone == 0 {
		return nil // the driver has no such interpreter ready
	}
	if r.way != nil {
		kind.Network = true
		if r.way.atStart(lang) {
			return nil // its interpreter reads variables of the way only when it starts
		}
	}
	if r.spare = w.pool.Take(kind, g.Limits.Memory); r.spare == nil {
		r.spare = w.pool.Fork(ctx, kind, g.Limits.Memory)
	}
	if r.spare == nil {
		return nil
	}
	r.begunAs = r.spare.Start
	r.adopt(r.spare.Sandbox, r.spare.Close)
	if err := moveInputs(r.given, r.spare.Inputs); err != nil {
		return glovebox.Internal("give a spare its inputs", err)
	}
	r.given = ""
	return nil
}

// moveInputs moves what was copied for a run into the folder that a spare shows, which is empty; there is nothing to move
// where from is empty. The folders are closed after, for whoever is not root may move none that is.
func moveInputs(from, to string) error {
	if from == "" {
		return os.Chmod(to, 0o555)
	}
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	if err := os.Chmod(from, 0o755); err != nil {
		return err
	}
	for _, e := range entries {
		was, is := filepath.Join(from, e.Name()), filepath.Join(to, e.Name())
		if e.IsDir() {
			if err := os.Chmod(was, 0o755); err != nil {
				return err
			}
		}
		if err := os.Rename(was, is); err != nil {
			return err
		}
		if e.IsDir() {
			if err := os.Chmod(is, 0o555); err != nil {
				return err
			}
		}
	}
	return errors.Join(os.Remove(from), os.Chmod(to, 0o555))
}

// exec releases the code, into the spare if the run has one, else into a sandbox of its own. A spare that fails before that
// is discarded, and the run starts cold after all.
func (r *run) exec(ctx context.Context) error {
	if r.spare == nil {
		return r.letGo(ctx)
	}
	err := r.execSpare(ctx)
	if err == nil || ctx.Err() != nil || r.stdin.begun() || errors.Is(err, driver.ErrReleased) {
		return err
	}
	r.cfg.Log.Warn("use a spare: the run starts cold", "id", r.id, "spare", r.spare.ID, "err", err)
	if err := r.discardSpare(ctx); err != nil {
		return err
	}
	if err := r.reopen(ctx); err != nil {
		return err
	}
	if err := r.makeBox(ctx); err != nil {
		return err
	}
	return r.letGo(ctx)
}

// fitSpare gives the spare the run's limits and its network. What fails is told by execSpare.
func (r *run) fitSpare(ctx context.Context) {
	if r.unfit = r.spare.Sandbox.Resize(r.decision.Grant.Limits); r.unfit == nil {
		r.unfit = r.way.connect(ctx, r.spare.Sandbox)
	}
}

// execSpare releases the code into the spare. On error it was not, unless that is driver.ErrReleased too.
func (r *run) execSpare(ctx context.Context) error {
	if ended(r.spare.Sandbox.Lost()) {
		return errors.New("the interpreter has ended while it waited")
	}
	if r.unfit != nil {
		return r.unfit
	}
	return r.letGo(ctx)
}

// discardSpare closes the spare. Its inputs, which are in the record by now, become those of the sandbox that follows.
func (r *run) discardSpare(ctx context.Context) error {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
	defer stop()
	if len(r.req.Inputs) > 0 {
		dir, err := r.needFolder()
		if err != nil {
			return err
		}
		own := filepath.Join(dir, "inputs")
		// Before the sandbox is closed, with which they are removed.
		err = errors.Join(os.Chmod(r.spare.Inputs, 0o755), os.Rename(r.spare.Inputs, own), os.Chmod(own, 0o555))
		if err != nil {
			return glovebox.Internal("keep the inputs of a spare", err)
		}
		r.given = own
	}
	if err := r.release(ctx); err != nil {
		return fmt.Errorf("close the spare: %w", err)
	}
	r.spare, r.box, r.release, r.begunAs = nil, nil, nil, "cold"
	return nil
}

// adopt makes a sandbox the run's, with what closes it.
func (r *run) adopt(box driver.Sandbox, shut func(context.Context) error) {
	var once sync.Once
	var closed error
	r.box = box
	release := func(ctx context.Context) error {
		once.Do(func() { closed = shut(ctx) })
		return closed
	}
	r.release = release
	r.undo.Push("close the sandbox", release)
}

// acquire waits for the run's memory. Spares give way to it if it has to wait for long.
func (r *run) acquire(ctx context.Context) (err error) {
	limit := r.decision.Grant.Limits.Memory + r.extra()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if r.share, err = r.memory.Try(limit, false); err != nil || r.share != nil {
		return err
	}
	if w := r.ready(); w != nil {
		defer w.pool.Waits(limit)()
	}
	if r.network != nil {
		defer r.network.waits(ctx)()
	}
	r.share, err = r.memory.Acquire(ctx, limit)
	return err
}

// PoolStats counts what was ready and was not; zero without a pool.
func (e *Engine) PoolStats() lease.Stats {
	w := e.ready()
	if w == nil {
		return lease.Stats{}
	}
	return w.pool.Stats()
}

// closeReady ends what is ready, and waits for what is given out.
func (e *Engine) closeReady() {
	w := e.ready()
	if w == nil {
		return
	}
	ctx, stop := context.WithTimeout(context.Background(), 2*undoLimit)
	defer stop()
	if err := w.pool.Close(ctx); err != nil {
		e.cfg.Log.Error("close what is ready", "err", err)
	}
}
