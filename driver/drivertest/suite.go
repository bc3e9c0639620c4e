package drivertest

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"glovebox"
	"glovebox/driver"
)

// Subject is a driver to be tested.
type Subject struct {
	// New makes the driver. It may end the test when the machine cannot run it.
	New func(t *testing.T) driver.Driver
	// Root is a runtime image with /bin/sh, the usual shell utilities and setsid.
	Root driver.Root
	// Simulated is true for a driver without a kernel behind it: the cases about files, limits and the host are left out.
	Simulated bool
	// Slack is how long a step may take on a busy machine before the suite calls it hung; 0 means 20 s.
	Slack time.Duration
	// Probe is the built command of the folder probe; empty: it is built, which needs Go.
	Probe string
	// Interpreters are paths in Root by language (python, node or bash), for a driver that has them ready. Without any the
	// cases about that are left out, and the driver must not be a driver.Warmer.
	Interpreters map[string]string
	// Without are cases that cannot hold on this machine, each with the reason, besides those of [Absent].
	Without map[string]string

	test string // which one called Run
}

// Run tests s against the contract of package driver. Each case is a subtest, and cases use one driver, one after another.
// Some start this test anew, as a process that is there to be killed.
func Run(t *testing.T, s Subject) {
	if s.test = t.Name(); s.Slack == 0 {
		s.Slack = 20 * time.Second
	}
	if !s.Simulated && s.Probe == "" && os.Getenv(probeEnv) == "" {
		s.Probe = buildProbe(t)
	}
	switch os.Getenv(roleEnv) {
	case "watch":
		watch(t)
		return
	case "supervise":
		supervise(t, s)
		return
	}
	d := s.New(t)
	absent := Absent(d.Isolation())
	maps.Copy(absent, s.Without)
	cases := s.cases(d)
	for name := range absent {
		if s.Simulated {
			break
		}
		if _, ok := allCases()[name]; !ok {
			t.Errorf("no case is called %q", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(cases)) {
		t.Run(name, func(t *testing.T) {
			if why := absent[name]; why != "" && !s.Simulated {
				if _, ok := d.(driver.Warmer); ok && copyCases[name] != nil {
					runCase(t, d, s, refusesTemplates)
				}
				t.Skipf("not on this rung: %s", why)
			}
			runCase(t, d, s, cases[name])
		})
	}
}

// runCase runs one case, and then looks for what is left of it.
func runCase(t testing.TB, d driver.Driver, s Subject, one func(*bench)) {
	b := &bench{TB: t, driver: d, subject: s, limits: testLimits, slack: s.Slack, mark: "suite_" + rand.Text()}
	b.subject.Root = s.root()
	before := b.offspring()
	t.Cleanup(func() { b.nothingLeft(before) }) // after those of the case, which close its sandboxes
	one(b)
}

// cases are those that can be asked of a driver.
func (s *Subject) cases(d driver.Driver) map[string]func(*bench) {
	if s.Simulated {
		return merged(lifeCases, streamCases)
	}
	all := allCases()
	if _, ok := d.(driver.Warmer); !ok && len(s.Interpreters) == 0 {
		for name := range merged(warmCases, copyCases) {
			delete(all, name)
		}
	}
	return all
}

func allCases() map[string]func(*bench) {
	return merged(lifeCases, streamCases, fileCases, limitCases, hostCases, selfCases, useCases, instantCases, orderCases,
		networkCases, warmCases, copyCases)
}

func merged(tables ...map[string]func(*bench)) map[string]func(*bench) {
	all := map[string]func(*bench){}
	for _, table := range tables {
		maps.Copy(all, table)
	}
	return all
}

// testLimits suit every case that is not about a limit.
var testLimits = glovebox.Limits{
	Wall: time.Minute, CPU: time.Minute, CPUs: 1, Memory: 256 * glovebox.MiB, Disk: 16 * glovebox.MiB, Files: 2000,
	OpenFiles: 256, Processes: 64, Egress: glovebox.MiB, Output: 16 * glovebox.MiB, View: 16 * glovebox.KiB,
}

// bench is what one case works with.
type bench struct {
	testing.TB
	driver  driver.Driver
	subject Subject
	limits  glovebox.Limits
	inputs  string
	network bool // sandboxes are made for one
	slack   time.Duration
	mark    string // is in the name of each sandbox of the case
	made    atomic.Int64
}

func (b *bench) spec() driver.Spec {
	return driver.Spec{ID: fmt.Sprintf("%s_%d", b.mark, b.made.Add(1)), Limits: b.limits,
		Root: b.subject.Root, Inputs: b.inputs, Network: b.network}
}

// context ends when a step must be over.
func (b *bench) context() context.Context {
	ctx, stop := context.WithTimeout(context.Background(), b.slack)
	b.Cleanup(stop)
	return ctx
}

// start makes a sandbox that the test closes at its end.
func (b *bench) start() driver.Sandbox {
	b.Helper()
	box, err := b.driver.Start(b.context(), b.spec())
	if err != nil {
		b.Fatalf("start: %v", err)
	}
	b.Cleanup(func() {
		if err := box.Close(b.context()); err != nil {
			b.Errorf("close: %v", err)
		}
	})
	return box
}

// shell is a command that runs script.
func shell(script string) driver.Command {
	return driver.Command{Argv: []string{"/bin/sh", "-c", script}, Env: []string{"PATH=/usr/bin:/bin"}, Dir: "/"}
}

// running is a process whose streams are being read.
type running struct {
	driver.Process
	out, err strings.Builder // complete once read is done
	read     sync.WaitGroup
}

// exec starts cmd and reads its streams to their ends.
func (b *bench) exec(box driver.Sandbox, cmd driver.Command) *running {
	b.Helper()
	p, err := box.Exec(b.context(), cmd)
	if err != nil {
		b.Fatalf("exec: %v", err)
	}
	return b.reading(p)
}

// reading reads the streams of a process to their ends.
func (b *bench) reading(p driver.Process) *running {
	r := &running{Process: p}
	r.read.Go(func() { io.Copy(&r.out, p.Stdout()) })
	r.read.Go(func() { io.Copy(&r.err, p.Stderr()) })
	return r
}

// exitUnkilled waits for the end of a program that leaves nobody behind, and of its streams.
func (b *bench) exitUnkilled(r *running) driver.Exit {
	b.Helper()
	b.within("leader's exit", r.Exited())
	b.within("end of the streams", waited(&r.read))
	return r.Exit()
}

// exit waits for the leader, ends the rest and returns how the leader ended; the streams are complete then.
func (b *bench) exit(r *running) driver.Exit {
	b.Helper()
	b.within("leader's exit", r.Exited())
	if err := r.Kill(b.context()); err != nil {
		b.Fatalf("kill: %v", err)
	}
	b.within("end of the streams", waited(&r.read))
	return r.Exit()
}

// run is start, exec and exit of one command.
func (b *bench) run(cmd driver.Command) (*running, driver.Exit, driver.Sandbox) {
	b.Helper()
	box := b.start()
	r := b.exec(box, cmd)
	return r, b.exit(r), box
}

// within fails the test when done is not closed in time.
func (b *bench) within(what string, done <-chan struct{}) {
	b.Helper()
	select {
	case <-done:
	case <-time.After(b.slack):
		b.Fatalf("%s: not within %v", what, b.slack)
	}
}

func waited(g *sync.WaitGroup) <-chan struct{} {
	done := make(chan struct{})
	go func() { g.Wait(); close(done) }()
	return done
}

// wantExit fails the test unless e is a plain exit with code.
func (b *bench) wantExit(r *running, e driver.Exit, code int) {
	b.Helper()
	if e.Lost || e.Signal != 0 || e.NotStarted != "" || e.Code != code {
		b.Fatalf("exit = %+v, want code %d; stderr:\n%s", e, code, r.err.String())
	}
}
