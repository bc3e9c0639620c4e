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
	// Spare is what one more spare with pandas loaded takes: the memory of all sandboxes with many spares, less that with
	// few, by the difference of their numbers. What spares share with each other and with their template is in both.
	Spare       *int64 `json:"spare_bytes"`
	SparesFew   int    `json:"spares_few"`
	SparesMany  int    `json:"spares_many"`
	FewBytes    int64  `json:"spares_few_bytes"` // all sandboxes together, templates included
	ManyBytes   int64  `json:"spares_many_bytes"`
	Live        int    `json:"live"`              // sleeping runs at a time
	ServerLive  *int64 `json:"server_live_bytes"` // the server with them
	SandboxLive *int64 `json:"live_bytes"`        // each of them, outside of the server
	LiveStart   Spread `json:"live_start"`        // to the first byte of each
}

// memory measures memory.
func (b *bench) memory(ctx context.Context) error {
	m := &Memory{}
	b.report.Memory = m
	for _, part := range []struct {
		what string
		do   func(context.Context, *Memory) error
	}{{"memory of spares", b.spares}, {"memory with live runs", b.sleepers}} {
		if b.late(b.cfg.memoryTime()/4, part.what) {
			continue
		}
		b.progress("%s", part.what)
		if err := part.do(ctx, m); err != nil && ctx.Err() == nil {
			b.note("%s: not measured: %v", part.what, err)
		}
	}
	return nil
}

// held is the memory of a server and of all that it has sandboxed.
type held struct {
	server, sandboxed int64
	sandboxes         int
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
	h.sandboxes = sandboxes(tree[1:])
	return h, err
}

// spares starts a server of its own and compares what its sandboxes take when there are few spares and when there are many.
func (b *bench) spares(ctx context.Context, m *Memory) error {
	after, err := b.warmed.held()
	if err != nil {
		return err
	}
	m.ServerAfter = new(after.server)
	job, ok := b.job("pandas")
	if !ok {
		return errors.New("there is no job with pandas")
	}
	s, err := b.serve(ctx, nil)
	if err != nil {
		return err
	}
	before, err := s.held()
	if err != nil {
		return err
	}
	m.Server = new(before.server)
	if !b.warm(ctx, s, processFence, job) {
		return errors.New("the server never answered from a spare")
	}
	few, err := s.held()
	if err != nil {
		return err
	}
	many, err := b.demand(ctx, s, few, job)
	if err != nil {
		return err
	}
	m.SparesFew, m.FewBytes, m.SparesMany, m.ManyBytes = few.sandboxes, few.sandboxed, many.sandboxes, many.sandboxed
	more := many.sandboxes - few.sandboxes
	if more < 2 {
		return fmt.Errorf("the server kept %d sandboxes ready when idle and %d under demand, which tells nothing of one",
			few.sandboxes, many.sandboxes)
	}
	m.Spare = new((many.sandboxed - few.sandboxed) / int64(more))
	return s.stop()
}

// demand asks for many runs at a time until the server keeps ten more sandboxes ready. It asks for no more than it must: a
// server replaces a template that made many, and then has two for a while.
func (b *bench) demand(ctx context.Context, s *server, few held, j job) (many held, err error) {
	const tries, callers = 4, 12
	for try := 0; try < tries && (try == 0 || time.Now().Before(b.until)); try++ {
		newCell(&subject{run: b.ask(s.client, processFence)}, j, callers).flood(ctx, 0, callers)
		s.stocked(ctx)
		s.settle(ctx)
		if many, err = s.held(); err != nil || many.sandboxes >= few.sandboxes+10 {
			break
		}
	}
	return many, err
}

// stocked waits until the server makes no more sandboxes ready. On a busy machine it may rest for a while and then go on.
func (s *server) stocked(ctx context.Context) {
	most, since, until := 0, time.Now(), time.Now().Add(settleLimit)
	for time.Since(since) < time.Second && time.Now().Before(until) && ctx.Err() == nil {
		tree, err := descendants(s.pid())
		if err != nil {
			return
		}
		if n := sandboxes(tree[1:]); n > most {
			most, since = n, time.Now()
		}
		wait(ctx, 50*time.Millisecond)
	}
}

func (b *bench) job(name string) (job, bool) {
	for _, j := range b.jobs {
		if j.name == name && j.lang == "python" {
			return j, true
		}
	}
	return job{}, false
}

// sleeperLimits let a hundred runs be live at a time on a small machine: the sum of their memory limits must fit the budget.
var sleeperLimits = map[string]any{"memory": "128MiB", "disk": "64MiB"}

// sleepers starts a server with small limits and has many runs sleep in it.
func (b *bench) sleepers(ctx context.Context, m *Memory) error {
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
	asleep, err := b.sleep(ctx, s.client, count, processFence.request(job{lang: "python", code: sleeping}))
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
