package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"glovebox"
)

// Memory is what a server and its sandboxes take, in bytes of proportional share. A nil field could not be measured.
type Memory struct {
	// Server is the server itself: before it was asked for anything, and after all bursts.
	Server      *int64 `json:"server_bytes"`
	ServerAfter *int64 `json:"server_after_bytes"`
	// Spare is what one more spare with pandas loaded takes: the memory of a template and many spares, less that of the same
	// template and few, by the difference of their numbers. What spares share with each other and with the template is in both.
	Spare       *int64 `json:"spare_bytes"`
	SparesFew   int    `json:"spares_few"`
	SparesMany  int    `json:"spares_many"`
	FewBytes    int64  `json:"spares_few_bytes"` // the template included
	ManyBytes   int64  `json:"spares_many_bytes"`
	Live        int    `json:"live"`              // sleeping runs at a time
	ServerLive  *int64 `json:"server_live_bytes"` // the server with them
	SandboxLive *int64 `json:"live_bytes"`        // each of them, outside of the server
	LiveStart   Spread `json:"live_start"`        // to the first byte of each
}

// memory measures a part of it, and notes why not where that fails.
func (b *bench) memory(ctx context.Context, what string, do func(context.Context, *Memory) error) {
	if ctx.Err() != nil || b.late(b.cfg.memoryTime()/3, what) {
		return
	}
	b.progress("%s", what)
	if b.report.Memory == nil {
		b.report.Memory = &Memory{}
	}
	if err := do(ctx, b.report.Memory); err != nil && ctx.Err() == nil {
		b.note("%s: not measured: %v", what, err)
	}
}

// held is the memory of a server and of all that it has sandboxed.
type held struct {
	server, sandboxed int64
}

func (s *server) held() (h held, err error) {
	tree, err := descendants(s.pid())
	if err != nil {
		return h, err
	}
	if h.server, err = proportional(tree[:1]); err != nil {
		return h, fmt.Errorf("the memory of another user's processes is for root to see: %w", err)
	}
	h.sandboxed, err = proportional(tree[1:])
	return h, err
}

// pandasFiles is in the path of files that are mapped wherever pandas is loaded.
const pandasFiles = "/pandas/_libs/"

const (
	fewSpares  = 2  // that a server begins with
	moreSpares = 10 // so many more are wanted
)

// family is a template with pandas loaded and its forks, which are its descendants. The zero value is none.
type family struct {
	template, spares int // the first process of the template's sandbox; how many forks
	bytes            int64
}

// family finds that of a server that has spares.
func (s *server) family() (family, error) {
	tree, err := descendants(s.pid())
	if err != nil {
		return family{}, err
	}
	for _, t := range tree[1:] {
		if t.parent != s.pid() {
			continue
		}
		own, err := descendants(t.pid)
		if err != nil {
			continue // it has ended
		}
		if n := sandboxes(own, pandasFiles); n > fewSpares {
			return family{template: t.pid, spares: n - 1}, nil
		}
	}
	return family{}, nil
}

// grown is what a family is now, without its memory.
func (f family) grown() (family, error) {
	tree, err := descendants(f.template)
	f.spares = sandboxes(tree, pandasFiles) - 1
	return f, err
}

// weighed is a family with its memory.
func (f family) weighed() (family, error) {
	tree, err := descendants(f.template)
	if err == nil {
		f.spares = sandboxes(tree, pandasFiles) - 1
		f.bytes, err = proportional(tree)
	}
	return f, err
}

// spares starts a server of its own and compares what a template and its spares take when they are few and when they are
// many. It tries twice: while others want the memory, a server gives its spares away. Nothing may have been asked of the
// server before: what a pool has ready follows what was asked for lately, so that after a burst there are many even if
// nobody asks. The spares are those for requests that say nothing of their trust, which are ready from the start; for this
// server the process rung will do for them.
func (b *bench) spares(ctx context.Context, m *Memory) error {
	workload, ok := b.workload("pandas")
	if !ok {
		return errors.New("there is no workload with pandas")
	}
	err := b.compare(ctx, m, workload)
	if err != nil && ctx.Err() == nil && time.Now().Add(b.cfg.reserve()).Before(b.until) { // others may have wanted the memory
		err = b.compare(ctx, m, workload)
	}
	return err
}

func (b *bench) compare(ctx context.Context, m *Memory, workload workload) (err error) {
	s, err := b.serve(ctx, map[string]any{"policy": map[string]any{"trust": map[string]any{
		string(glovebox.TrustInfluenced): string(glovebox.IsolationProcess)}}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	before, err := s.held()
	if err != nil {
		return err
	}
	m.Server = new(before.server)
	few, err := stocked(ctx, s.family, fewSpares, startLimit)
	if err != nil {
		return err
	}
	s.settle(ctx)
	if few, err = few.weighed(); err != nil {
		return err
	}
	many, err := b.demand(ctx, s, few, workload)
	if err != nil {
		return err
	}
	m.SparesFew, m.FewBytes, m.SparesMany, m.ManyBytes = few.spares, few.bytes, many.spares, many.bytes
	m.Spare = new((many.bytes - few.bytes) / int64(many.spares-few.spares))
	return nil
}

// demand asks until the family has enough more spares. A pool has twice as many ready after a request found none, and
// replaces a template of which some were made: so it asks no more often than it must, and what the next template begins with
// is not counted.
func (b *bench) demand(ctx context.Context, s *server, few family, j workload) (many family, err error) {
	const (
		waves = 3                      // twice as many each time, which then is enough
		apart = 150 * time.Millisecond // a pool grows ten times a second at most
		limit = 10 * time.Second
	)
	for wave := range waves {
		callers := few.spares<<wave + 2 // more than there are spares
		c := newCell(&subject{run: b.ask(s.client, fence{})}, j, callers)
		c.flood(ctx, 0, callers)
		switch {
		case ctx.Err() != nil:
			return many, context.Cause(ctx)
		case c.row.FirstFailure != "":
			return many, errors.New(c.row.FirstFailure)
		case c.row.Rung != string(glovebox.IsolationProcess):
			return many, fmt.Errorf("what is ready from the start is of rung %s", c.row.Rung)
		}
		wait(ctx, apart)
	}
	if _, err := stocked(ctx, few.grown, few.spares+moreSpares, limit); err != nil {
		return many, err
	}
	s.settle(ctx)
	many, err = few.weighed()
	if err == nil && many.spares < few.spares+moreSpares {
		err = errTooFew(many.spares, few.spares+moreSpares)
	}
	return many, err
}

// stocked waits until there are so many spares and their number stays the same for a second: on a busy machine a server may
// rest for a while and then go on.
func stocked(ctx context.Context, look func() (family, error), least int, limit time.Duration) (f family, err error) {
	last, since, until := -1, time.Now(), time.Now().Add(limit)
	for time.Now().Before(until) {
		if f, err = look(); err != nil {
			return f, err
		}
		if f.spares != last {
			last, since = f.spares, time.Now()
		}
		if f.spares >= least && time.Since(since) >= time.Second {
			return f, nil
		}
		if wait(ctx, 50*time.Millisecond); ctx.Err() != nil {
			return f, context.Cause(ctx)
		}
	}
	return f, errTooFew(f.spares, least)
}

func errTooFew(spares, want int) error {
	return fmt.Errorf("a template with pandas loaded had %d spares, and not %d, when there was no more time for it", spares,
		want)
}

func (b *bench) workload(name string) (workload, bool) {
	for _, j := range b.workloads {
		if j.name == name && j.lang == "python" {
			return j, true
		}
	}
	return workload{}, false
}

// sleeperLimits let a hundred runs be live at a time on a small machine: the sum of their memory limits must fit the budget.
var sleeperLimits = map[string]any{"memory": "128MiB", "disk": "64MiB"}

// sleepers starts a server with small limits and has many runs sleep in it. Before that it looks at the one that has served
// all bursts.
func (b *bench) sleepers(ctx context.Context, m *Memory) error {
	after, err := b.warmed.held()
	if err != nil {
		return err
	}
	m.ServerAfter = new(after.server)
	count := 100
	switch {
	case b.cfg.live > 0:
		count = b.cfg.live
	case b.cfg.Quick:
		count = 20
	}
	s, err := b.serve(ctx, map[string]any{"policy": map[string]any{"limits": map[string]any{"default": sleeperLimits}}})
	if err != nil {
		return err
	}
	s.settle(ctx)
	before, err := s.held()
	if err != nil {
		return err
	}
	asleep, err := b.sleep(ctx, s.client, count, processFence.request(workload{lang: "python", code: sleeping}))
	defer asleep.wake()
	if err != nil {
		return err
	}
	s.settle(ctx)
	h, err := s.held()
	if err != nil {
		return err
	}
	m.Live, m.LiveStart = count, spread(asleep.first)
	m.ServerLive, m.SandboxLive = new(h.server), new((h.sandboxed-before.sandboxed)/int64(count))
	if err := asleep.wake(); err != nil {
		return err
	}
	return s.stop()
}

// sleeping says that it is there and then does nothing.
const sleeping = `import time
print("up", flush=True)
time.sleep(3600)
`

// sleepers are runs that sleep until they are woken.
type sleepers struct {
	start   func()
	cancel  context.CancelFunc
	running sync.WaitGroup
	up      chan time.Duration
	failed  chan error
	first   []time.Duration // until each said that it was there, in order
}

// sleepersLimit bounds how long one may take to say that it is there.
const sleepersLimit = 20 * time.Second

// sleep starts runs, a few at a time, and returns when all of them are there.
func (b *bench) sleep(ctx context.Context, svc glovebox.Runs, count int, req glovebox.Request) (*sleepers, error) {
	inner, cancel := context.WithCancel(ctx)
	s := &sleepers{cancel: cancel, up: make(chan time.Duration, 1), failed: make(chan error, 1)}
	s.start = func() {
		res, err := svc.Run(inner, b.cfg.Who, req, &upSink{started: time.Now(), up: s.up})
		if err == nil && res.Status != glovebox.StatusCanceled {
			err = fmt.Errorf("a run that was to sleep ended with status %s: %s %.200s", res.Status, res.Reason, string(res.Stderr))
		}
		if err != nil && inner.Err() == nil {
			select {
			case s.failed <- err:
			default: // another one was
			}
		}
	}
	return s, s.more(ctx, count)
}

// more starts more of them, one after the other, each when the one before is there.
func (s *sleepers) more(ctx context.Context, count int) error {
	for range count {
		s.running.Go(s.start)
		if err := s.await(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (s *sleepers) await(ctx context.Context) error {
	timer := time.NewTimer(sleepersLimit)
	defer timer.Stop()
	select {
	case took := <-s.up:
		s.first = append(s.first, took)
		return nil
	case err := <-s.failed:
		return err
	case <-timer.C:
		return fmt.Errorf("run %d had not begun after %v", len(s.first)+1, sleepersLimit)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// wake ends them and returns when they have ended, with the failure of one if there was any.
func (s *sleepers) wake() error {
	s.cancel()
	s.running.Wait()
	select {
	case err := <-s.failed:
		return err
	default:
		return nil
	}
}

// upSink says once when the first byte came.
type upSink struct {
	started time.Time
	up      chan<- time.Duration
	told    bool
}

// Event tells of the first output.
func (s *upSink) Event(e glovebox.Event) {
	if e.Kind == "stdout" && !s.told {
		s.told = true
		s.up <- time.Since(s.started) // whoever started it waits for this
	}
}
