package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"glovebox"
)

// subject is one way to run a program.
type subject struct {
	name      string // as tables show it
	rung      string // what fences the program, for plots
	langs     []string
	workloads []string // empty means all
	burst     bool     // it is measured with several callers too
	above     bool     // its rung is above the process rung, or may be
	// spares says that it keeps some ready.
	spares bool

	run func(ctx context.Context, j workload) outcome
	// meter is the CPU time spent so far by what serves the runs; nil where each outcome has its own.
	meter func() (time.Duration, error)
	// coarse says that the meter counts in steps longer than a run.
	coarse bool
	// unmetered says that what it started ends without telling what it cost.
	unmetered bool
	// settle waits until nothing is done any more for what was asked; nil where that is at once.
	settle func(ctx context.Context)
	// ended tells whether the record of a run says that it ended; nil where there are no records.
	ended func(ctx context.Context, run string) (bool, error)
}

func (s *subject) does(j workload) bool {
	return slices.Contains(s.langs, j.lang) && (len(s.workloads) == 0 || slices.Contains(s.workloads, j.name))
}

// outcome is one measured run.
type outcome struct {
	first, done time.Duration // since the start
	cpu         time.Duration // when the subject has no meter
	out         []byte
	start       string // how Glovebox started it
	id          string // its record
	rung        glovebox.Isolation
	err         error // it failed: what was asked for did not come
}

// Row is what was measured of one workload in one subject with so many callers at a time.
type Row struct {
	Workload string `json:"workload"`
	Lang     string `json:"lang"`
	Subject  string `json:"subject"`
	Rung     string `json:"rung"` // what fenced the program
	Callers  int    `json:"callers"`
	// InARow says that one caller asked run after run, without pauses. Else one caller asks each subject in turn.
	InARow bool `json:"in_a_row"`

	Runs   int `json:"runs"`
	Failed int `json:"failed"` // did not end as it should
	Wrong  int `json:"wrong"`  // printed something else
	Lost   int `json:"lost"`   // has no record that says that it ended
	// FirstFailure tells of one of them.
	FirstFailure string `json:"first_failure,omitempty"`

	First        Spread         `json:"first"` // to the first byte of output
	Done         Spread         `json:"done"`  // to the end
	PerSecond    float64        `json:"runs_per_second"`
	CPUMS        *float64       `json:"cpu_ms"`         // per run
	MachineCPUMS *float64       `json:"machine_cpu_ms"` // per run, of the whole machine
	Starts       map[string]int `json:"starts,omitempty"`
}

// cell gathers one Row. Its methods are safe for concurrent use.
type cell struct {
	subject  *subject
	workload workload
	callers  int
	until    time.Time // after which a flood does no more than it must; zero means never

	mu          sync.Mutex
	first, done []time.Duration
	cpu         time.Duration
	unmetered   bool // cpu is not known
	machine     time.Duration
	wall        time.Duration // of all floods
	before      int           // runs that are in cpu and machine, and were not measured
	ids         []string
	row         Row
}

func newCell(s *subject, j workload, callers int) *cell {
	return &cell{subject: s, workload: j, callers: callers, unmetered: s.unmetered, row: Row{Workload: j.name, Lang: j.lang,
		Subject: s.name, Rung: s.rung, Callers: callers, Starts: map[string]int{}}}
}

// once runs the workload once and judges it.
func (c *cell) once(ctx context.Context) {
	bounded, done := context.WithTimeoutCause(ctx, mostOne, errTooLong)
	defer done()
	o := c.subject.run(bounded, c.workload)
	if ctx.Err() != nil {
		return // what was interrupted tells nothing
	}
	if bounded.Err() != nil && o.err == nil {
		o.err = errTooLong
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.row.Runs++
	c.cpu += o.cpu
	if o.start != "" {
		c.row.Starts[o.start]++
	}
	if o.rung != "" {
		c.row.Rung = string(o.rung)
	}
	if o.id != "" {
		c.ids = append(c.ids, o.id)
	}
	switch {
	case o.err != nil:
		c.fail(&c.row.Failed, o.err)
		return
	case string(o.out) != c.workload.want:
		c.fail(&c.row.Wrong, fmt.Errorf("printed %.200q, want %.200q", o.out, c.workload.want))
		return
	}
	c.first, c.done = append(c.first, o.first), append(c.done, o.done)
}

func (c *cell) fail(count *int, err error) {
	*count++
	if c.row.FirstFailure == "" {
		c.row.FirstFailure = err.Error()
	}
}

// mostOne bounds how long one run may take before it counts as failed.
const mostOne = time.Minute

var errTooLong = fmt.Errorf("it had not ended after %v", mostOne)

// turn is one run among those of others.
func (c *cell) turn(ctx context.Context) error {
	if c.subject.coarse {
		c.unmetered = true
		c.once(ctx)
		return nil
	}
	err := c.metering(ctx, func() { c.once(ctx) })
	c.machine = 0 // it counts in steps longer than a run
	return err
}

// metering measures what do costs in CPU time.
func (c *cell) metering(ctx context.Context, do func()) error {
	read := func() (own, all time.Duration, err error) {
		if c.subject.meter != nil {
			own, err = c.subject.meter()
		}
		all, failed := machineCPU()
		return own, all, errors.Join(err, failed)
	}
	own, all, err := read()
	if err != nil {
		return err
	}
	do()
	if c.subject.settle != nil {
		c.subject.settle(ctx)
	}
	ownAfter, allAfter, err := read()
	if err != nil {
		return err
	}
	c.cpu += ownAfter - own
	c.machine += allAfter - all
	return nil
}

// finish looks for the records of all runs and returns the row.
func (c *cell) finish(ctx context.Context) Row {
	for _, id := range c.ids {
		if c.subject.ended == nil || ctx.Err() != nil {
			break
		}
		ended, err := c.subject.ended(ctx, id)
		if err == nil && !ended {
			err = fmt.Errorf("the record of %s does not say that it ended", id)
		}
		if err != nil && ctx.Err() == nil {
			c.fail(&c.row.Lost, err)
		}
	}
	c.row.First, c.row.Done = spread(c.first), spread(c.done)
	if good := len(c.done); good > 0 && c.wall > 0 {
		c.row.PerSecond = float64(good) / c.wall.Seconds()
	}
	if c.row.Runs > 0 {
		per := func(d time.Duration) *float64 { return new(millis(d) / float64(c.row.Runs+c.before)) }
		if !c.unmetered {
			c.row.CPUMS = per(c.cpu)
		}
		if c.machine > 0 {
			c.row.MachineCPUMS = per(c.machine)
		}
	}
	return c.row
}
