package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"glovebox"
)

// Config is what a measurement is made with.
type Config struct {
	// Program is the path of the glovebox whose command line and server are measured; its init lies beside it.
	Program string
	// Settings are the keys of every configuration that is written for it, besides data_dir: what this machine needs.
	Settings map[string]any
	// Engine opens an engine in this process, without spares, that a configuration file describes.
	Engine func(config string) (glovebox.Service, error)
	// Client opens a client of the server that listens on a socket.
	Client func(socket string) (glovebox.Service, error)
	// Who asks.
	Who glovebox.Principal
	// Dir is where folders are made, which are removed again. Empty: the system's folder for temporary files.
	Dir string

	// Rounds is how often each subject runs the shortest workload one at a time; longer workloads are run less often.
	Rounds int
	// Callers are the numbers of callers at a time. One is measured round by round, more of them for Seconds each.
	Callers []int
	// Workloads chooses by name; empty means all.
	Workloads []string
	// Seconds is how long each subject is measured for each workload and number of callers.
	Seconds float64
	// Quick measures less: enough to see that it works.
	Quick bool
	// Growth measures how cost grows in place of all that.
	Growth bool
	// Progress is told what is measured next; nil tells nobody.
	Progress func(string)

	// Bounds for tests, which want less than a quick measurement does.
	flood, live int
}

// Default is what is measured when nothing else is asked for. Quick says less.
func Default(quick bool) Config {
	if quick {
		return Config{Quick: true, Rounds: 6, Callers: []int{1, 10, floodCallers}, Seconds: 1}
	}
	return Config{Rounds: 40, Callers: []int{1, 10, floodCallers}, Seconds: 4}
}

// What a measurement may last; parts that do not fit any more are left out with a note.
const (
	mostTime   = 4 * time.Minute
	mostQuick  = time.Minute
	mostGrowth = 10 * time.Minute
)

// pause comes before each measurement.
const pause = 15 * time.Millisecond

// Run measures. The error is a *glovebox.Error, or that ctx was cancelled: then nothing is left running and there is no
// report. What could not be measured here is in the report's notes and no error.
func Run(ctx context.Context, cfg Config) (_ *Report, err error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	most := mostTime
	switch {
	case cfg.Growth:
		most = mostGrowth
	case cfg.Quick:
		most = mostQuick
	}
	dir, err := os.MkdirTemp(cfg.Dir, "glovebox-bench-")
	if err != nil {
		return nil, glovebox.Errorf(glovebox.CodeUnavailable, "make room in the folder for temporary files, or set TMPDIR",
			"no folder can be made for the measurement: %v", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.Chmod(dir, 0o711); err != nil { // the ids of other sandboxes must reach their roots in it
		return nil, glovebox.Internal("make the folder of the measurement", err)
	}
	if cfg.Settings, err = ownGroup(cfg.Settings); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, removeGroup()) }()
	started := time.Now()
	b := &bench{cfg: cfg, dir: dir, until: started.Add(most), report: &Report{Machine: machine(), Quick: cfg.Quick}}
	defer func() { err = errors.Join(err, b.close()) }()
	if err := b.prepare(ctx); err != nil {
		return nil, err
	}
	if cfg.Growth {
		err = b.growth(ctx)
	} else {
		err = b.measure(ctx)
	}
	if err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	b.report.TookMS = millis(time.Since(started))
	b.report.Bars = bars(b.report)
	return b.report, nil
}

func (c *Config) check() error {
	invalid := func(fix, format string, args ...any) error {
		return glovebox.Errorf(glovebox.CodeInvalid, fix, format, args...)
	}
	var known []string
	for _, j := range workloads() {
		if !slices.Contains(known, j.name) {
			known = append(known, j.name)
		}
	}
	for _, name := range c.Workloads {
		if !slices.Contains(known, name) {
			return invalid("name one of "+strings.Join(known, ", "), "there is no workload %.40q", name)
		}
	}
	for _, n := range c.Callers {
		if n < 1 || n > 1000 {
			return invalid("say 1 to 1000, such as 1,10,50", "%d callers at a time cannot be measured", n)
		}
	}
	switch {
	case c.Rounds < 1 || c.Rounds > 10000:
		return invalid("say 1 to 10000", "%d rounds cannot be measured", c.Rounds)
	case !(c.Seconds >= 0.1 && c.Seconds <= 60):
		return invalid("say 0.1 to 60", "%g seconds cannot be measured", c.Seconds)
	case len(c.Callers) == 0:
		return invalid("say how many, such as 1,10,50", "no number of callers is given")
	}
	return nil
}

// bench is one measurement.
type bench struct {
	cfg       Config
	dir       string
	until     time.Time
	kept      time.Duration // of the time until then, for what is still to come
	report    *Report
	programs  map[string]string    // the interpreter of each language
	higher    []glovebox.Isolation // rungs above process that this machine has
	workloads []workload
	subjects  []*subject
	engine    glovebox.Service
	servers   []*server
	warmed    *server // the one that is measured
	n         int     // folders made so far
}

// folder makes a folder of the measurement's own.
func (b *bench) folder(name string) (string, error) {
	b.n++
	dir := filepath.Join(b.dir, fmt.Sprintf("%s-%d", name, b.n))
	return dir, os.Mkdir(dir, 0o711)
}

func (b *bench) progress(format string, args ...any) {
	if b.cfg.Progress != nil {
		b.cfg.Progress(fmt.Sprintf(format, args...))
	}
}

// note says once what was not measured, and why.
func (b *bench) note(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if !slices.Contains(b.report.Notes, text) {
		b.report.Notes = append(b.report.Notes, text)
	}
}

// late reports whether what takes so long would end too late, and then says what is left out.
func (b *bench) late(want time.Duration, what string) bool {
	if time.Now().Add(want).Before(b.until) {
		return false
	}
	b.note("%s: left out, there was no time for it", what)
	return true
}

// close ends what was started.
func (b *bench) close() error {
	var errs []error
	for _, s := range b.servers {
		errs = append(errs, s.stop())
	}
	if b.engine != nil {
		errs = append(errs, b.engine.Close())
	}
	if err := errors.Join(errs...); err != nil {
		return glovebox.Internal("end what was measured", err)
	}
	return nil
}

// wait waits for d, or less if ctx ends.
func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
