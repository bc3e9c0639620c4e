package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"glovebox"
)

// Growth is how something's costs grow with how much there is of it.
type Growth struct {
	Of     string   `json:"of"` // what there is more and more of
	Series []Series `json:"series"`
}

// Series is one cost at several amounts.
type Series struct {
	Cost   string  `json:"cost"`
	Unit   string  `json:"unit"`
	Points []Point `json:"points"`
}

// Point is a cost at an amount.
type Point struct {
	N     float64 `json:"n"`
	Value float64 `json:"value"`
}

func (g *Growth) add(cost, unit string, n, value float64) {
	i := slices.IndexFunc(g.Series, func(s Series) bool { return s.Cost == cost })
	if i < 0 {
		i = len(g.Series)
		g.Series = append(g.Series, Series{Cost: cost, Unit: unit})
	}
	g.Series[i].Points = append(g.Series[i].Points, Point{n, value})
}

// growth measures how costs grow, the parts one after the other. A part that fails is noted and the next one measured.
func (b *bench) growth(ctx context.Context) error {
	for _, part := range []struct {
		of   string
		most time.Duration // after which no larger amount is begun
		do   func(ctx context.Context, g *Growth, until time.Time) error
	}{
		{"live sandboxes that sleep", 2 * time.Minute, b.growLive},
		{"files in a workspace", time.Minute, b.growFiles},
		{"bytes of output", time.Minute + 30*time.Second, b.growOutput},
		{"runs in the trace", 6 * time.Minute, b.growTrace},
	} {
		if ctx.Err() != nil {
			break
		}
		b.progress("growth: %s", part.of)
		g := Growth{Of: part.of}
		until := time.Now().Add(part.most)
		if last := b.until.Add(-lastAmount); until.After(last) {
			until = last
		}
		if err := part.do(ctx, &g, until); err != nil && ctx.Err() == nil {
			b.note("growth, %s: %v", part.of, err)
		}
		if len(g.Series) > 0 {
			b.report.Growth = append(b.report.Growth, g)
		}
	}
	return nil
}

// lastAmount is kept of the time for the amount that was begun last.
const lastAmount = 15 * time.Second

// amounts picks those that a quick measurement is content with.
func (b *bench) amounts(all ...int) []int {
	if b.cfg.Quick {
		return all[:len(all)-1]
	}
	return all
}

// next reports whether there is time for the next amount.
func (b *bench) next(ctx context.Context, until time.Time, of string, n int) bool {
	if ctx.Err() != nil {
		return false
	}
	if time.Now().Before(until) {
		return true
	}
	b.note("growth, %s: %d and more were left out, there was no time", of, n)
	return false
}

// repeated runs a request several times and returns the median of the times to its end.
func (b *bench) repeated(ctx context.Context, svc glovebox.Runs, times int, req glovebox.Request) (time.Duration, error) {
	var took []time.Duration
	for range times {
		wait(ctx, pause)
		o := b.request(ctx, svc, req)
		if o.err != nil {
			return 0, o.err
		}
		took = append(took, o.done)
	}
	slices.Sort(took)
	return percentile(took, 50), nil
}

// growLive measures what the N-th live sandbox costs: the time to start it, the memory of each and of the server, and what a
// short run takes beside all of them.
func (b *bench) growLive(ctx context.Context, g *Growth, until time.Time) error {
	// Five hundred limits must fit the budget of a machine with 24 GiB. What a sandbox really takes is far less.
	limits := map[string]any{"memory": "32MiB", "disk": "1MiB", "wall": "15m"}
	s, err := b.serve(ctx, map[string]any{"memory_budget": "90%",
		"policy": map[string]any{"limits": map[string]any{"default": limits}}})
	if err != nil {
		return err
	}
	bash := func(code string) glovebox.Request { return processFence.request(workload{lang: "bash", code: code}) }
	asleep, err := b.sleep(ctx, s.client, 0, bash("echo up; read -r -t 3600 <> <(:)"))
	if err != nil {
		return err
	}
	defer asleep.wake()
	s.settle(ctx)
	before, err := s.held()
	if err != nil {
		return err
	}
	for _, n := range b.amounts(1, 10, 100, 500) {
		fewer := len(asleep.first)
		if !b.next(ctx, until, g.Of, n) {
			break
		}
		if err := asleep.more(ctx, n-fewer); err != nil {
			return err
		}
		s.settle(ctx)
		h, err := s.held()
		if err != nil {
			return err
		}
		short, err := b.repeated(ctx, s.client, 5, bash("echo 1"))
		if err != nil {
			return err
		}
		last := asleep.first[max(0, n-5):]
		x := float64(n)
		g.add("start of the last ones, to the first byte", "ms", x, millis(percentile(slices.Sorted(slices.Values(last)), 50)))
		g.add("a short run beside them", "ms", x, millis(short))
		g.add("memory of each further one", "MiB", x, float64(h.sandboxed-before.sandboxed)/float64(n-fewer)/(1<<20))
		g.add("memory of the server", "MiB", x, float64(h.server)/(1<<20))
		before = h
	}
	return asleep.wake()
}

// growFiles measures runs that make many files in their workspace, which goes when they end.
func (b *bench) growFiles(ctx context.Context, g *Growth, until time.Time) error {
	s, err := b.serve(ctx, nil)
	if err != nil {
		return err
	}
	for _, n := range b.amounts(1, 100, 1000, 10_000) {
		if !b.next(ctx, until, g.Of, n) {
			break
		}
		code := fmt.Sprintf("for i in range(%d):\n    with open(f'f{i}', 'w') as f: f.write('x' * 100)\nprint(1)\n", n)
		took, err := b.repeated(ctx, s.client, 5, processFence.request(workload{lang: "python", code: code}))
		if err != nil {
			return err
		}
		dir, err := b.folder("files")
		if err != nil {
			return err
		}
		bare := startCommand(ctx, dir, interpreted(b.programs["python"], "python", code))
		if bare.err != nil {
			return bare.err
		}
		removing := time.Now()
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
		g.add("a run, to its end", "ms", float64(n), millis(took))
		g.add("unprotected, with the removal", "ms", float64(n), millis(bare.done+time.Since(removing)))
	}
	return nil
}

// growOutput measures runs that print much, all of which is counted, hashed and kept.
func (b *bench) growOutput(ctx context.Context, g *Growth, until time.Time) error {
	s, err := b.serve(ctx, nil)
	if err != nil {
		return err
	}
	for _, n := range b.amounts(1e6, 1e8, 1e9) {
		if !b.next(ctx, until, g.Of, n) {
			break
		}
		if free, err := freeBytes(b.dir); err != nil || free < int64(n)*2 {
			b.note("growth, %s: %d and more were left out, there is no room for them on the disk (%v)", g.Of, n, err)
			break
		}
		req := processFence.request(workload{lang: "python", code: fmt.Sprintf(printing, n)})
		req.Limits = glovebox.Limits{Output: glovebox.Size(n + 1), Wall: 5 * time.Minute, CPU: 5 * time.Minute}
		out := &timedBuffer{started: time.Now()}
		res, err := s.client.Run(ctx, b.cfg.Who, req, &outputSink{stdout: out})
		took := time.Since(out.started)
		switch {
		case err != nil:
			return err
		case !res.OK || out.bytes != int64(n) || res.StdoutBytes != int64(n):
			return fmt.Errorf("a run that printed %d bytes ended with status %s, %d bytes were counted and %d came", n, res.Status,
				res.StdoutBytes, out.bytes)
		}
		h, err := s.held()
		if err != nil {
			return err
		}
		g.add("a run, to its end", "ms", float64(n), millis(took))
		g.add("memory of the server after it", "MiB", float64(n), float64(h.server)/(1<<20))
	}
	return nil
}

// printing prints so many bytes: lines of text, in blocks as large as pipes are.
const printing = `import sys
left, block = %d, (b"x" * 63 + b"\n") * 1024
while left > 0:
    sys.stdout.buffer.write(block[:left])
    left -= len(block)
`

func freeBytes(dir string) (int64, error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return 0, err
	}
	return int64(s.Bavail) * s.Bsize, nil
}

// growTrace fills a trace with records of runs that were refused, which needs no sandboxes, and measures runs and lists
// meanwhile.
func (b *bench) growTrace(ctx context.Context, g *Growth, until time.Time) (err error) {
	config, err := b.configuration("trace", nil)
	if err != nil {
		return err
	}
	data := filepath.Join(filepath.Dir(config), "data")
	svc, err := b.cfg.Engine(config)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, svc.Close()) }()
	filled := 0
	for _, n := range b.amounts(10, 1000, 100_000, 1_000_000) {
		const record = 2500 // bytes that one takes
		if free, err := freeBytes(b.dir); err != nil || free < int64(n)*record {
			b.note("growth, %s: %d and more were left out, there is no room for them on the disk (%v)", g.Of, n, err)
			break
		}
		more, err := b.refusals(ctx, svc, n-filled, until)
		filled += more
		if err != nil || ctx.Err() != nil {
			return err
		}
		if filled < n {
			b.note("growth, %s: there was time for %d, not for %d", g.Of, filled, n)
		}
		if err := b.measureTrace(ctx, g, svc, data, filled); err != nil {
			return err
		}
		if filled < n {
			break
		}
	}
	return nil
}

func (b *bench) measureTrace(ctx context.Context, g *Growth, svc glovebox.Service, data string, n int) error {
	run, err := b.repeated(ctx, svc, 9, processFence.request(workload{lang: "bash", code: "echo 1"}))
	if err != nil {
		return err
	}
	var lists []time.Duration
	for range 9 {
		started := time.Now()
		if _, err := svc.Traces(ctx, b.cfg.Who, glovebox.TraceQuery{Limit: 20}); err != nil {
			return err
		}
		lists = append(lists, time.Since(started))
	}
	var size int64
	err = filepath.WalkDir(data, func(_ string, e os.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return nil // what has just been removed
		}
		if info, err := e.Info(); err == nil {
			size += info.Size()
		}
		return nil
	})
	if err != nil {
		return err
	}
	slices.Sort(lists)
	g.add("a short cold run, to its end", "ms", float64(n), millis(run))
	g.add("the list of the newest 20", "ms", float64(n), millis(percentile(lists, 50)))
	g.add("on the disk", "MiB", float64(n), float64(size)/(1<<20))
	return nil
}

// growthTables shows each growth with its amounts side by side.
func (r *Report) growthTables(b *strings.Builder) {
	for _, g := range r.Growth {
		var amounts []float64
		for _, s := range g.Series {
			for _, p := range s.Points {
				if !slices.Contains(amounts, p.N) {
					amounts = append(amounts, p.N)
				}
			}
		}
		slices.Sort(amounts)
		fmt.Fprintf(b, "\n| %s |", g.Of)
		for _, n := range amounts {
			fmt.Fprintf(b, " %s |", amount(n))
		}
		b.WriteString("\n|---|" + strings.Repeat("---|", len(amounts)) + "\n")
		for _, s := range g.Series {
			fmt.Fprintf(b, "| %s, %s |", s.Cost, s.Unit)
			for _, n := range amounts {
				cell := "–"
				if i := slices.IndexFunc(s.Points, func(p Point) bool { return p.N == n }); i >= 0 {
					cell = number(s.Points[i].Value)
				}
				fmt.Fprintf(b, " %s |", cell)
			}
			b.WriteString("\n")
		}
	}
}

// amount shows how much there is of something.
func amount(n float64) string {
	for _, u := range []struct {
		size float64
		name string
	}{{1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if n >= u.size {
			return strconv.FormatFloat(n/u.size, 'g', 3, 64) + u.name
		}
	}
	return strconv.FormatFloat(n, 'g', 4, 64)
}
