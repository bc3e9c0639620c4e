package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"

	"glovebox"
	"glovebox/driver"
	"glovebox/internal/admission"
)

// Config says how many spares there are and what they need of the host.
type Config struct {
	// Memory is the budget that spares share with runs. Required.
	Memory *admission.Admission
	// Inputs makes a folder that is shown to a sandbox as its inputs: one of its own, which is swept when this process dies,
	// or one below that of a template. The returned function removes it. Required.
	Inputs func(ctx context.Context, id, below string) (dir string, remove func(context.Context) error, err error)
	// Free tells how much memory of the machine programs can have now, and how much there is. Required.
	Free func() (available, all glovebox.Size, err error)
	// Min and Max bound the spares of a kind that is asked for. Zero: 2 and 32.
	Min, Max int
	// Idle is how long nobody asks for a kind before its last spare goes; after a tenth of it Min are left. Zero: 10 minutes.
	Idle time.Duration
	// Makings is how many spares are made at a time. Zero: half as many as there are processors, at least one. A template
	// may be made beside them.
	Makings int
	// Log gets what cannot be made; nil discards.
	Log *slog.Logger
}

const (
	maxKinds  = 64
	maxAge    = 10 * time.Minute       // of a spare and of a template
	stale     = 9 * time.Minute        // a spare of that age is replaced
	quiet     = time.Second            // somebody asks right now if it is less than this ago
	pauses    = 3                      // what was made while nobody asks is followed by a pause so many times as long
	measure   = 10 * time.Second       // how often demand is measured
	courtesy  = 4 * time.Millisecond   // to a run that has taken one of many: another is made once it has begun
	growEvery = 100 * time.Millisecond // how often the target of a kind may double
	lookAt    = time.Second            // how often the machine is looked at

	noRoomPause = 100 * time.Millisecond // after there was no memory
	firstPause  = time.Second            // after a failure
	lastPause   = time.Minute

	// Drivers bound what they do themselves, each as its mechanism needs (an emulated machine takes minutes to boot); these are
	// for one that does not come back.
	makeLimit   = 4 * time.Minute  // to make a spare
	brewLimit   = 10 * time.Minute // to make a template
	directLimit = 30 * time.Second // to make a fork while a run waits for it
	closeLimit  = 30 * time.Second // to close either
)

// Pool has spares ready. It is safe for concurrent use.
type Pool struct {
	cfg  Config
	log  *slog.Logger
	wake chan struct{}
	life context.Context
	end  context.CancelFunc
	work sync.WaitGroup // all goroutines

	seen sight // the loop's own

	mu      sync.Mutex
	closed  bool
	policy  int
	shelves map[key]*shelf
	making  int
	brewing bool
	there   int                // spares on the host, those in the making and those being closed included
	out     int                // leases
	none    chan struct{}      // closed when the pool is closed and no lease is out
	rest    time.Time          // what nobody asks for is not made before
	giving  time.Time          // no spare is made before
	dry     time.Time          // no template is made before
	waits   map[*wait]struct{} // runs that wait for memory
	held    glovebox.Size      // memory of spares and templates, and of reserve
	reserve []reserved         // memory of spares that were given out, for those that replace them
	retired map[*template]struct{}
	counts  Stats
}

// Stats counts what a pool did since it was made, and says what it has.
type Stats struct {
	Taken, Empty, Made, Failed int64
	// Direct is how many of those that found nothing were forked from a template on the spot.
	Direct int64
	// Discarded is by reason.
	Discarded map[string]int64
	Templates int
	Kinds     []KindStats
}

// KindStats is the same of one kind.
type KindStats struct {
	Tenant        string
	Trust         glovebox.Trust
	Isolation     glovebox.Isolation
	Lang          string
	Modules       []string
	Fork          bool
	Taken, Empty  int64
	Ready, Making int
	Target        int
}

// New makes a Pool that has nothing ready yet. The caller closes it.
func New(cfg Config) (*Pool, error) {
	if cfg.Memory == nil || cfg.Inputs == nil || cfg.Free == nil {
		return nil, errors.New("new pool: Memory, Inputs and Free are required")
	}
	if cfg.Max == 0 {
		cfg.Max = 32
	}
	if cfg.Min == 0 {
		cfg.Min = min(2, cfg.Max)
	}
	if cfg.Idle == 0 {
		cfg.Idle = 10 * time.Minute
	}
	if cfg.Makings == 0 {
		cfg.Makings = max(1, runtime.NumCPU()/2)
	}
	if cfg.Min < 0 || cfg.Min > cfg.Max || cfg.Makings < 0 || cfg.Idle < 0 {
		return nil, fmt.Errorf("new pool: %d to %d spares, idle after %v, make no sense", cfg.Min, cfg.Max, cfg.Idle)
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	p := &Pool{cfg: cfg, log: cfg.Log, wake: make(chan struct{}, 1), shelves: map[key]*shelf{}, none: make(chan struct{}),
		waits: map[*wait]struct{}{}, retired: map[*template]struct{}{}, counts: Stats{Discarded: map[string]int64{}}}
	p.life, p.end = context.WithCancel(context.Background())
	p.work.Go(p.loop)
	return p, nil
}

// Keep has spares of a kind ready from now on, whether or not anybody asks.
func (p *Pool) Keep(kind Kind) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.shelf(&kind); s != nil {
		s.keep = true
		s.target = max(s.target, p.cfg.Min)
	}
	p.stir()
}

// Take gives out a spare of a kind, for a run with so much memory, or nil when there is none. It never waits. Whoever has
// the Lease closes it.
func (p *Pool) Take(kind Kind, memory glovebox.Size) *Lease {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.stir()
	var s *shelf
	if memory >= kind.least() { // else no spare could ever be for such runs
		s = p.shelf(&kind)
	}
	if s == nil {
		p.counts.Empty++
		return nil
	}
	now := time.Now()
	wanted := memory >= s.memory()
	if wanted {
		s.asked = now
	}
	for i := 0; i < len(s.spares); {
		sp := s.spares[i]
		if sp.memory > memory {
			i++ // it may have more already than the run is granted
			continue
		}
		s.spares = slices.Delete(s.spares, i, i+1)
		s.low = min(s.low, len(s.spares))
		switch {
		case over(sp.box.Lost()):
			p.discard(s, sp, "lost")
			continue
		case now.Sub(sp.born) >= maxAge:
			p.discard(s, sp, "age")
			continue
		}
		close(sp.left)
		p.reserve = append(p.reserve, reserved{sp.share, sp.held})
		sp.share = nil // the run's own covers it
		p.there--
		s.taken++
		s.spareTries = tries{}
		p.counts.Taken++
		p.out++
		return &Lease{Sandbox: sp.box, ID: sp.id, Inputs: sp.inputs, Start: sp.start, pool: p, spare: sp}
	}
	if wanted && now.Sub(s.grown) >= growEvery { // what is missing may be in the making
		s.grown = now
		s.target = min(max(2*s.target, p.cfg.Min, 1), p.cfg.Max)
	}
	s.empty++
	p.counts.Empty++
	return nil
}

// shelf returns that of a kind, and makes it; nil where it may not be. What it makes obsolete is discarded, and kept of the
// new state of its image if it was to be kept.
func (p *Pool) shelf(kind *Kind) *shelf {
	k := kind.key()
	if s := p.shelves[k]; s != nil || p.closed || kind.Policy < p.policy {
		return s
	}
	p.policy = kind.Policy
	var kept []Kind
	for _, s := range p.shelves {
		switch {
		case s.kind.Policy != kind.Policy:
			p.drop(s, "policy")
		case s.kind.Image == kind.Image && s.kind.Identity != kind.Identity:
			if s.keep {
				next := s.kind
				next.Identity, next.Root = kind.Identity, kind.Root
				kept = append(kept, next)
			}
			p.drop(s, "image")
		}
	}
	now := time.Now()
	for i := range kept {
		p.add(&kept[i], now).keep = true
	}
	if s := p.shelves[k]; s != nil {
		return s
	}
	if len(p.shelves) >= maxKinds && !p.makeRoom(now) {
		return nil
	}
	return p.add(kind, now)
}

// add makes the shelf of a kind.
func (p *Pool) add(kind *Kind, now time.Time) *shelf {
	s := &shelf{kind: *kind, size: kind.Driver.Sizes(kind.Hold), over: kind.Driver.Overhead(), asked: now, measured: now,
		grown: now, target: max(p.cfg.Min, 1)}
	s.held = s.size.Template == 0
	p.shelves[kind.key()] = s
	return s
}

// makeRoom drops the kind that nobody asked for the longest, unless all are wanted.
func (p *Pool) makeRoom(now time.Time) bool {
	var oldest *shelf
	for _, s := range p.shelves {
		if !s.keep && !s.urgent(now) && (oldest == nil || s.asked.Before(oldest.asked)) {
			oldest = s
		}
	}
	if oldest == nil {
		return false
	}
	p.drop(oldest, "kinds")
	return true
}

// Stats counts.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := p.counts
	st.Discarded = maps.Clone(st.Discarded)
	st.Templates = len(p.retired)
	for _, s := range p.shelves {
		if s.next != nil {
			st.Templates++
		}
		if s.template != nil {
			st.Templates++
		}
		st.Kinds = append(st.Kinds, KindStats{Tenant: s.kind.Tenant, Trust: s.kind.Trust,
			Isolation: s.kind.Driver.Isolation(), Lang: s.kind.Hold.Lang, Modules: slices.Clone(s.kind.Hold.Modules), Fork: s.forks(),
			Taken: s.taken, Empty: s.empty, Ready: len(s.spares), Making: s.making, Target: s.target})
	}
	slices.SortFunc(st.Kinds, func(a, b KindStats) int {
		return slices.Compare(append([]string{a.Tenant, string(a.Trust), string(a.Isolation), a.Lang}, a.Modules...),
			append([]string{b.Tenant, string(b.Trust), string(b.Isolation), b.Lang}, b.Modules...))
	})
	return st
}

// Close ends all that was not given out, and waits for it and for the leases. When ctx ends first the templates are closed
// all the same, which ends what was forked from them, and the error says how many leases were out.
func (p *Pool) Close(ctx context.Context) error {
	p.mu.Lock()
	if first := !p.closed; first {
		p.closed = true
		for _, s := range p.shelves {
			p.drop(s, "closed")
		}
		p.freeReserve(true)
		if p.out == 0 {
			close(p.none)
		}
	}
	p.mu.Unlock()
	p.end()
	var err error
	select {
	case <-p.none:
	case <-ctx.Done():
		p.mu.Lock()
		err = fmt.Errorf("close the pool: %d sandboxes are still given out: %w", p.out, context.Cause(ctx))
		for t := range p.retired {
			p.closeTemplate(t)
		}
		p.mu.Unlock()
	}
	p.work.Wait()
	return err
}

// stir makes the loop look again.
func (p *Pool) stir() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Lease is a sandbox that was given out. Its holder alone uses it.
type Lease struct {
	Sandbox driver.HeldSandbox
	// ID is the Spec's.
	ID string
	// Inputs is the folder that the sandbox shows as /inputs: as Config.Inputs made it, and the holder's to fill before Exec.
	Inputs string
	// Start is spare, or the word of the template that it was made from.
	Start string

	pool  *Pool
	spare *spare
	once  sync.Once
	err   error
}

// Close closes the sandbox and removes its folder. Closing again does nothing.
func (l *Lease) Close(ctx context.Context) error {
	l.once.Do(func() {
		l.err = l.spare.close(ctx)
		p := l.pool
		p.mu.Lock()
		defer p.mu.Unlock()
		p.returned(l.spare)
	})
	return l.err
}

func over(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
