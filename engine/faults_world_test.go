package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"glovebox"
	"glovebox/driver"
	"glovebox/driver/drivertest"
	"glovebox/internal/netjail"
	"glovebox/internal/store"
)

// world is what one seed runs in.
type world struct {
	t      *testing.T
	random *rand.Rand // used before anything goes on at once
	dir    string
	disk   *smallDisk
	plan   plan
	fake   *drivertest.Fake
	net    *fakeNetwork
	engine *Engine
	log    lockedBuffer
	runs   []*planned
	leave  time.Duration // when the engine is closed, whatever goes on; 0: after the runs

	mu       sync.Mutex
	calls    map[string]int
	all      int
	jumps    time.Duration
	ended    map[string]int           // exit codes of the programs that came to their own end, by run
	unclosed map[string]glovebox.Size // memory limits of sandboxes whose Close failed
}

// planned is one run of a world.
type planned struct {
	req    glovebox.Request
	sink   glovebox.Sink
	begin  time.Duration
	cancel time.Duration // 0: never
	res    *glovebox.Result
	err    error
}

const (
	canaryEnv, canaryStdin = "canary-of-the-environment", "canary-of-standard-input"

	worldBudget = 256 * glovebox.MiB
)

func newWorld(t *testing.T, seed uint64, dir string, disk *smallDisk) *world {
	w := &world{t: t, random: rand.New(rand.NewPCG(seed, 0)), dir: dir, disk: disk, calls: map[string]int{}, ended: map[string]int{},
		unclosed: map[string]glovebox.Size{}}
	w.plan = w.newPlan()
	for range 1 + w.random.IntN(4) {
		w.runs = append(w.runs, w.newRun())
	}
	if w.random.IntN(6) == 0 {
		w.leave = time.Duration(1 + w.random.Int64N(int64(8*time.Second)))
	}
	w.fake = &drivertest.Fake{Program: w.program, Fail: w.fail, Dir: filepath.Join(disk.dir, "outputs")}
	if err := os.MkdirAll(w.fake.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	w.net = newFakeNetwork(w.fail)
	w.net.allows, w.net.dies = []glovebox.EgressFlow{{Host: "good.test", Port: 443, Allowed: true}}, w.random.IntN(8) == 0
	return w
}

// newRun invents a request. What its program does is in its arguments, one after the other.
func (w *world) newRun() *planned {
	r := w.random
	words := []string{"print:10", "print:3000", "print:90000", "err:10", "err:70000", "sleep:1", "sleep:300", "sleep:2500", "fork:100",
		"fork:60000", "burn:2", "oom:1", "leave:100", "leave:60000", "read:1", "hang:1", "refuse:1"}
	argv := []string{"program"}
	for range r.IntN(5) {
		argv = append(argv, words[r.IntN(len(words))])
	}
	argv = append(argv, []string{"exit:0", "exit:0", "exit:0", "exit:3", "signal:11"}[r.IntN(5)])
	p := &planned{begin: time.Duration(r.Int64N(int64(time.Second))) * time.Duration(r.IntN(2))}
	p.req = glovebox.Request{Argv: argv, Env: map[string]string{"TOKEN": canaryEnv}, Collect: r.IntN(2) == 0,
		Limits: glovebox.Limits{Memory: []glovebox.Size{65, 100, 200, 256, 257}[r.IntN(5)] * glovebox.MiB, Disk: glovebox.MiB,
			Wall: []time.Duration{time.Second, 3 * time.Second, 10 * time.Second}[r.IntN(3)],
			CPU:  []time.Duration{time.Second, 30 * time.Second}[r.IntN(2)]}}
	if r.IntN(2) == 0 {
		p.req.Limits.Output, p.req.Limits.View = 5000, 256
	}
	switch r.IntN(4) {
	case 0:
		p.req.Stdin = canaryStdin
	case 1:
		p.req.StdinFrom = &slowReader{wait: time.Duration(r.Int64N(int64(5 * time.Second))), fails: r.IntN(2) == 0}
	}
	switch r.IntN(8) {
	case 0:
		p.req.Inputs = []glovebox.Input{{Name: "deep/a", Content: strings.Repeat("a", 1+r.IntN(9000))}, {Name: "b", Content: "b"}}
	case 1:
		p.req.Inputs = []glovebox.Input{{Name: "a", Path: "/no/such/file"}}
	case 2:
		p.req.Trust = glovebox.TrustHostile // refused
	}
	if r.IntN(3) == 0 {
		p.req.Allow = []string{"good.test"}
	}
	if r.IntN(3) == 0 {
		p.cancel = time.Duration(1 + r.Int64N(int64(3*time.Second)))
	}
	// Where both streams wait for the sink one does so at a mutex, and time would not run.
	if r.IntN(3) == 0 && !strings.Contains(strings.Join(argv, " "), "err:") {
		p.sink = lazySink(time.Duration(r.Int64N(int64(2 * time.Second))))
	}
	return p
}

// slowReader is a standard input that takes its time.
type slowReader struct {
	wait  time.Duration
	fails bool
	done  bool
}

func (s *slowReader) Read(p []byte) (int, error) {
	switch time.Sleep(s.wait); {
	case !s.done:
		s.done = true
		return copy(p, canaryStdin), nil
	case s.fails:
		return 0, &os.PathError{Op: "read", Path: "/somewhere", Err: syscall.EIO}
	}
	return 0, io.EOF
}

type lazySink time.Duration

func (s lazySink) Event(glovebox.Event) { time.Sleep(time.Duration(s)) }

// program does what its arguments say. It says whether it came to its own end.
func (w *world) program(ctx context.Context, p *drivertest.Proc) driver.Exit {
	wait := func(d time.Duration) bool {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(d):
			return true
		}
	}
	for _, word := range p.Command.Argv[1:] {
		verb, number, _ := strings.Cut(word, ":")
		n, err := strconv.Atoi(number)
		if err != nil {
			w.t.Error(err)
		}
		switch verb {
		case "print":
			io.WriteString(p.Stdout, strings.Repeat("x", n))
		case "err":
			io.WriteString(p.Stderr, strings.Repeat("é\x1b[1m", n/6))
		case "sleep":
			wait(time.Duration(n) * time.Millisecond)
		case "fork":
			p.Fork(ctx, func(ctx context.Context) { wait(time.Duration(n) * time.Millisecond) })
		case "burn":
			p.Burn(float64(n))
		case "oom":
			p.Count(func(s *driver.Sample) { s.OOMKills++ })
		case "refuse":
			p.Count(func(s *driver.Sample) { s.ForksRefused++ })
		case "leave":
			_ = p.Leave("folder/"+word, bytes.Repeat([]byte("y"), n)) // the disk may be full
		case "read":
			_, _ = io.Copy(io.Discard, p.Stdin)
		case "hang":
			<-ctx.Done()
		case "signal":
			return driver.Exit{Signal: syscall.Signal(n)}
		case "exit":
			w.mu.Lock()
			defer w.mu.Unlock()
			if ctx.Err() == nil {
				w.ended[p.Spec.ID] = n
			}
			return driver.Exit{Code: n}
		}
	}
	return driver.Exit{}
}

// lockedBuffer is a log.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// now is a clock that is set forward and back while one looks.
func (w *world) now() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.jumps = -w.jumps*3/2 + time.Second
	if w.jumps > 24*time.Hour {
		w.jumps = 0
	}
	return time.Now().Add(w.jumps)
}

func (w *world) open() *Engine {
	e, err := New(Config{DataDir: w.dir, Drivers: []driver.Driver{observed{w.fake, w}}, Policy: egressPolicy(), Image: fakeImage{},
		MemoryBudget: worldBudget, RuntimeDir: filepath.Join(w.disk.dir, "locks"), Now: w.now,
		Log: slog.New(slog.NewTextHandler(&w.log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	if err != nil {
		w.t.Fatal(err)
	}
	e.network = w.net.network()
	return e
}

// observed is the driver, and notes which sandboxes it could not close.
type observed struct {
	driver.Driver
	w *world
}

func (o observed) Start(ctx context.Context, spec driver.Spec) (driver.Sandbox, error) {
	box, err := o.Driver.Start(ctx, spec)
	return observedBox{box, o.w, spec}, err
}

type observedBox struct {
	driver.Sandbox
	w    *world
	spec driver.Spec
}

func (o observedBox) Close(ctx context.Context) error {
	err := o.Sandbox.Close(ctx)
	if err != nil {
		o.w.mu.Lock()
		defer o.w.mu.Unlock()
		o.w.unclosed[o.spec.ID] = o.spec.Limits.Memory
		if o.spec.Network {
			o.w.unclosed[o.spec.ID] += netjail.Memory
		}
	}
	return err
}

// run lives one engine's life, then looks at what the next one finds.
func (w *world) run() {
	for _, b := range w.plan.troubles {
		if b.step == "" {
			b.begin(w.t, w)
		}
	}
	w.engine = w.open()
	closed := make(chan error, 1)
	if w.leave > 0 {
		time.AfterFunc(w.leave, func() { closed <- w.engine.Close() })
	}
	var all sync.WaitGroup
	for _, p := range w.runs {
		all.Go(func() {
			time.Sleep(p.begin)
			ctx, stop := context.WithCancel(w.t.Context())
			defer stop()
			if p.cancel > 0 {
				defer time.AfterFunc(p.cancel, stop).Stop()
			}
			p.res, p.err = w.engine.Run(ctx, owner, p.req, p.sink)
		})
	}
	all.Wait()
	if w.leave > 0 {
		<-closed
	}
	w.engine.removing.Wait()
	w.checkMemory()
	// With a closed store or a full disk it may say so.
	if err := w.engine.Close(); err != nil && len(w.plan.troubles) == 0 {
		w.t.Errorf("close: %v", err)
	}
	for _, b := range w.plan.troubles {
		b.end(w.t)
	}
	w.check()
	// A reader and a sink that take their time are waited for by nobody. Whatever else still goes on when they have returned
	// ends the test.
	time.Sleep(time.Minute)
	if w.t.Failed() {
		w.t.Logf("%v", w.plan)
		for _, p := range w.runs {
			w.t.Logf("run %v of %v, stdin %q, %d inputs, cancelled after %v: result %v, error %v", p.req.Argv, p.req.Limits, p.req.Stdin,
				len(p.req.Inputs), p.cancel, p.res, p.err)
		}
		w.t.Logf("log:\n%s", w.log.b.String())
	}
}

// checkMemory: only that of sandboxes that could not be closed is still held, until the engine is closed.
func (w *world) checkMemory() {
	a, err := w.engine.memory()
	if err != nil {
		return // without it nothing ran
	}
	for _, b := range w.plan.troubles {
		b.end(w.t) // so that one can look
	}
	var want glovebox.Size
	for _, limit := range w.unclosed {
		if w.leave == 0 {
			want += limit
		}
	}
	if held, err := a.Taken(); err != nil || held != want {
		w.t.Errorf("%v is held, want %v: that of the sandboxes that could not be closed (%v)", held, want, err)
	}
}

// check is what must be true at the end, whatever failed.
func (w *world) check() {
	if left := w.fake.Live(); len(left) > 0 {
		w.t.Errorf("sandboxes are left: %v", left)
	}
	if ways, netds := w.net.left(); ways+netds > 0 || !w.net.closed {
		w.t.Errorf("%d ways out and %d netds are left; the gateway is closed: %v", ways, netds, w.net.closed)
	}
	next := w.open()
	defer func() {
		if err := next.Close(); err != nil {
			w.t.Errorf("close the next engine: %v", err)
		}
		w.checkFiles()
		if err := os.RemoveAll(w.fake.Dir); err != nil { // what the fake itself could not remove
			w.t.Error(err)
		}
	}()
	records, err := next.Traces(w.t.Context(), owner, glovebox.TraceQuery{Limit: 100})
	if err != nil {
		w.t.Errorf("the next engine: %v", err)
		return
	}
	if a, err := next.memory(); err != nil {
		w.t.Error(err)
	} else if held, err := a.Taken(); err != nil || held > 0 {
		w.t.Errorf("%v is held in the end (%v)", held, err)
	}
	byID := map[string]glovebox.Record{}
	for _, r := range records {
		byID[r.ID] = r
		if r.State != "ended" && r.State != "interrupted" && r.State != "refused" {
			w.t.Errorf("%s is %s in the end", r.ID, r.State)
		}
	}
	if len(records) > len(w.runs) {
		w.t.Errorf("%d runs have %d records", len(w.runs), len(records))
	}
	for _, p := range w.runs {
		w.checkRun(p, byID)
	}
	w.checkRecords(next)
	if n := strings.Count(w.log.b.String(), canaryEnv) + strings.Count(w.log.b.String(), canaryStdin); n > 0 {
		w.t.Errorf("what the program was given is %d times in the log", n)
	}
}

// checkRun: what the caller was told is what is recorded.
func (w *world) checkRun(p *planned, records map[string]glovebox.Record) {
	if (p.res == nil) == (p.err == nil) {
		w.t.Errorf("result %v and error %v", p.res, p.err)
		return
	}
	if p.err != nil {
		var e *glovebox.Error
		if !errors.As(p.err, &e) || e.Public == "" || e.Fix == "" {
			w.t.Errorf("error %#v", p.err)
		}
		if s := fmt.Sprintf("%+v", p.err) + e.Fix; strings.Contains(s, "canary") {
			w.t.Errorf("what the program was given is in the error %s", s)
		}
		return
	}
	rec := records[p.res.ID]
	if rec.State != "ended" || rec.Result == nil || rec.Result.Status != p.res.Status || rec.Result.Reason != p.res.Reason {
		w.t.Errorf("told %s (%s), recorded %s, %+v", p.res.Status, p.res.Reason, rec.State, rec.Result)
	}
	code, own := w.ended[p.res.ID]
	if p.res.OK != (p.res.Status == glovebox.StatusExited && *p.res.ExitCode == 0) {
		w.t.Errorf("ok is %v with %s", p.res.OK, p.res.Status)
	}
	if p.res.Status == glovebox.StatusExited && (!own || *p.res.ExitCode != code) {
		w.t.Errorf("it is said to have exited with %d, and did so with %d: %v", *p.res.ExitCode, code, own)
	}
	shown, err := json.Marshal(p.res)
	if err != nil || bytes.Contains(shown, []byte("canary")) {
		w.t.Errorf("what the program was given is in the result, or it is none: %s (%v)", shown, err)
	}
}

// checkRecords looks at the rows themselves.
func (w *world) checkRecords(e *Engine) {
	var starts, ends, twice, canaries int
	err := e.store.View(w.t.Context(), func(tx *store.Tx) error {
		return tx.QueryRow(w.t.Context(), `SELECT (SELECT count(*) FROM records WHERE kind = 'run.start'),
			(SELECT count(*) FROM records WHERE kind = 'run.end'),
			(SELECT count(*) FROM (SELECT run FROM records GROUP BY run, kind HAVING count(*) > 1)),
			(SELECT count(*) FROM records WHERE instr(CAST(skeleton AS TEXT), 'canary') > 0) +
			(SELECT count(*) FROM payloads WHERE instr(CAST(body AS TEXT), 'canary') > 0)`).Scan(&starts, &ends, &twice, &canaries)
	})
	var told []glovebox.TraceRef
	for _, p := range w.runs {
		if p.res != nil {
			told = append(told, p.res.Trace)
		}
	}
	if v, err := e.Verify(w.t.Context(), owner, told); err != nil || !v.OK {
		w.t.Errorf("the trace does not hold, or not what callers were told of it: %+v (%v)", v, err)
	}
	if err != nil || starts != ends || twice > 0 || canaries > 0 {
		w.t.Errorf("%d starts, %d ends, %d recorded twice, %d with what the program was given (%v)", starts, ends, twice, canaries, err)
	}
}

// checkFiles: the folders of live runs and of half-written files are empty.
func (w *world) checkFiles() {
	for _, dir := range []string{filepath.Join(w.dir, "runs"), filepath.Join(w.dir, "blobs/new")} {
		left, err := os.ReadDir(dir)
		if err != nil || len(left) > 0 {
			w.t.Errorf("left in %s: %v (%v)", filepath.Base(dir), left, err)
		}
	}
}
