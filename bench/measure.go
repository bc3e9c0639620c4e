package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"glovebox"
)

// measure measures the memory of spares, while nothing else was asked for yet, then latency one at a time and with several
// callers, then memory with live runs. What nothing must be reached with comes last, and last of all rungs above the process
// rung: the spares that a server makes in place of theirs would take its processors from whoever has the next turn.
func (b *bench) measure(ctx context.Context) error {
	b.memory(ctx, "memory of spares", b.spares)
	if err := b.addServer(ctx); err != nil {
		return err
	}
	if slices.Contains(b.cfg.Callers, 1) {
		for _, j := range b.workloads {
			if err := b.rounds(ctx, j, false); err != nil {
				return glovebox.Internal("measure", err)
			}
			if j.name == "print" && j.lang == "python" {
				if err := b.burst(ctx, j, 1); err != nil {
					return glovebox.Internal("measure", err)
				}
			}
		}
	}
	b.kept = b.cfg.memoryTime()
	if err := b.bursts(ctx, func(j workload) bool { return j.name != "csv" }); err != nil {
		return err
	}
	b.kept = 0
	b.memory(ctx, "memory with live runs", b.sleepers)
	csv := func(j workload) bool { return j.name == "csv" && (!b.cfg.Quick || len(b.cfg.Workloads) > 0) }
	if err := b.bursts(ctx, csv); err != nil || !slices.Contains(b.cfg.Callers, 1) {
		return err
	}
	for _, j := range b.workloads {
		if err := b.rounds(ctx, j, true); err != nil {
			return glovebox.Internal("measure", err)
		}
	}
	return nil
}

// bursts measures workloads with every number of callers above one.
func (b *bench) bursts(ctx context.Context, want func(workload) bool) error {
	for _, callers := range b.cfg.Callers {
		for _, j := range b.workloads {
			if callers == 1 || j.lang != "python" || !want(j) || j.name != "print" && callers > mostCallersBig {
				continue
			}
			if err := b.burst(ctx, j, callers); err != nil {
				return glovebox.Internal("measure", err)
			}
		}
	}
	return nil
}

// mostCallersBig is up to how many callers at a time every workload is measured. The shortest alone is measured with more:
// fifty interpreters with pandas at a time are more than a small machine has room for.
const mostCallersBig = 20

// rounds lets the subjects of the process rung and below, or those above it, take turns, one run at a time.
func (b *bench) rounds(ctx context.Context, j workload, above bool) error {
	var cells []*cell
	for _, s := range b.subjects {
		if s.above == above && s.does(j) && (!b.cfg.Quick || j.name == "print" || s.burst && s.name != "runc") {
			cells = append(cells, newCell(s, j, 1))
		}
	}
	if len(cells) == 0 {
		return nil
	}
	rounds := max(b.cfg.Rounds/j.share, 2)
	b.progress("%s: %d rounds of %d subjects", j.title(), rounds, len(cells))
	for _, c := range cells {
		c.subject.run(ctx, j) // fills caches
	}
	for round := range rounds {
		if round >= 2 && b.late(b.cfg.reserve(), fmt.Sprintf("%s: rounds after the first few", j.title())) {
			break
		}
		// Each time in another order, so that nobody always comes after the same one, and in the same order in each report.
		for _, i := range rand.New(rand.NewPCG(1, uint64(round))).Perm(len(cells)) {
			c := cells[i]
			wait(ctx, pause)
			if ctx.Err() != nil {
				return nil
			}
			if err := c.turn(ctx); err != nil {
				return err
			}
		}
	}
	for _, c := range cells {
		row := c.finish(ctx)
		row.PerSecond = 0 // the pauses are in it
		b.report.Rows = append(b.report.Rows, row)
	}
	return nil
}

// burst lets the subjects take turns, each with so many callers at a time, who ask again as soon as they are answered. One
// caller asks in a row.
func (b *bench) burst(ctx context.Context, j workload, callers int) error {
	const turns = 2
	var cells []*cell
	for _, s := range b.subjects {
		if s.burst && s.does(j) && b.takesPart(s, j, callers) {
			c := newCell(s, j, callers)
			c.row.InARow = callers == 1
			cells = append(cells, c)
		}
	}
	what := fmt.Sprintf("%s, %d callers", j.title(), callers)
	seconds := time.Duration(b.cfg.Seconds * float64(time.Second))
	if callers == 1 {
		what, seconds = j.title()+", in a row", min(seconds, inARowMost)
	}
	b.progress("%s: %d subjects", what, len(cells))
	var late []string
	for range turns {
		for _, c := range cells {
			least := 0
			if c.subject.name == warmName && j.name == "print" && callers >= floodCallers {
				least = b.cfg.floodRuns() / turns
			}
			// A turn takes about as long as the one before.
			if time.Now().Add(max(seconds/turns, c.wall) + b.kept).After(b.until) {
				late = append(late, c.subject.name)
				continue
			}
			c.until = b.until.Add(-b.kept)
			if err := c.metering(ctx, func() { c.turnOf(ctx, seconds/turns, least) }); err != nil {
				return err
			}
			if ctx.Err() != nil {
				return nil
			}
		}
	}
	for _, c := range cells {
		if c.row.Runs > 0 {
			b.report.Rows = append(b.report.Rows, c.finish(ctx))
		}
	}
	if len(late) > 0 {
		slices.Sort(late)
		b.note("%s: measured for less time or not at all, there was none: %s", what, strings.Join(slices.Compact(late), "; "))
	}
	return nil
}

// inARowMost is for how long at most a subject is asked in a row.
const inARowMost = 2 * time.Second

// takesPart leaves out what a bar does not need where that would take too long, or too much memory.
func (b *bench) takesPart(s *subject, j workload, callers int) bool {
	switch {
	case b.cfg.Quick && callers >= floodCallers:
		return s.name == warmName
	case b.cfg.Quick && j.name != "print":
		return s.name == bwrapName || s.name == warmName
	case callers == 1 || callers >= floodCallers || j.name != "print":
		return s.name == bareName || s.name == bwrapName || s.name == warmName
	}
	return true
}

// turnOf keeps all callers asking for so long. A server has spares when it begins, which are soon used up: the first while,
// in which it lives on them, is not measured.
func (c *cell) turnOf(ctx context.Context, long time.Duration, least int) {
	if c.subject.spares {
		lead := newCell(c.subject, c.workload, c.callers)
		lead.flood(ctx, min(long/2, time.Second), 0)
		c.before += lead.row.Runs
		c.row.Failed += lead.row.Failed
		c.row.Wrong += lead.row.Wrong
		if c.row.FirstFailure == "" {
			c.row.FirstFailure = lead.row.FirstFailure
		}
	}
	c.flood(ctx, long, least)
}

const (
	floodCallers = 50   // callers at a time of the flood in which nothing may get lost
	flood        = 2000 // runs in it
	floodQuick   = 300
	floodLimit   = 40 * time.Second // for one turn of it
)

func (c *Config) floodRuns() int {
	switch {
	case c.flood > 0:
		return c.flood
	case c.Quick:
		return floodQuick
	}
	return flood
}

// reserve is what is kept of the time for what comes after the rounds.
func (c *Config) reserve() time.Duration {
	if c.Quick {
		return mostQuick * 6 / 10
	}
	return mostTime / 2
}

// memoryTime is what is kept of the time for memory with live runs.
func (c *Config) memoryTime() time.Duration {
	if c.Quick {
		return memoryQuick
	}
	return memoryFull
}

// How long a measurement of memory takes.
const (
	memoryQuick = 5 * time.Second
	memoryFull  = 15 * time.Second
)

// late reports whether there is no time for more runs than must be.
func (c *cell) late() bool { return !c.until.IsZero() && time.Now().After(c.until) }

// flood keeps all callers asking for so long, and until there were at least so many runs or it is late. It ends when each
// was answered, so that the rate is not flattered by runs that were begun and not ended.
func (c *cell) flood(ctx context.Context, long time.Duration, least int) {
	started := time.Now()
	var begun atomic.Int64
	more := func() bool {
		took := time.Since(started)
		return ctx.Err() == nil && took < floodLimit && (took < long || begun.Load() < int64(least) && !c.late())
	}
	var callers sync.WaitGroup
	for range c.callers {
		callers.Go(func() {
			for more() {
				begun.Add(1)
				c.once(ctx)
			}
		})
	}
	callers.Wait()
	c.wall += time.Since(started)
}
