package gvisor_test

import (
	"context"
	"fmt"
	"os/exec"
	"testing"
	"time"

	"glovebox"
	"glovebox/driver"
	"glovebox/internal/boot"
	"glovebox/internal/image"
)

var usual = glovebox.Limits{CPUs: 1, Memory: 512 * glovebox.MiB, Disk: 256 * glovebox.MiB, Files: 20000, OpenFiles: 1024,
	Processes: 128}

// workloads are programs with the modules that are loaded for them before.
var workloads = map[string]struct {
	code    string
	modules []string
}{
	"print":  {code: "print(1)\n"},
	"pandas": {"import pandas\nprint(pandas.DataFrame({'k': list('aba'), 'v': [1, 2, 3]}).groupby('k').sum())\n", []string{"pandas"}},
}

func python(t testing.TB, modules []string) (driver.Root, driver.Hold) {
	t.Helper()
	host, err := image.Host(image.Config{})
	if err != nil {
		t.Fatal(err)
	}
	program, err := host.Interpreter("python")
	if err != nil {
		t.Skip(err)
	}
	return host.Root(), driver.Hold{Lang: "python", Modules: modules, Memory: 256 * glovebox.MiB, Command: driver.Command{
		Argv: boot.Cold("python", program, "/code/main.py"), Env: []string{"PATH=/usr/bin:/bin", "HOME=/workspace"},
		Dir: "/workspace", CodeName: "main.py"}}
}

// times are sums of the parts of runs.
type times struct{ ready, first, end, gone time.Duration }

func (s times) report(b *testing.B, runs int) {
	for name, d := range map[string]time.Duration{"ready": s.ready, "first": s.first, "end": s.end, "close": s.gone} {
		b.ReportMetric(float64(d.Microseconds())/1000/float64(runs), name+"-ms/op")
	}
}

// follow executes a program and adds what that takes.
func (s *times) follow(b *testing.B, box driver.Sandbox, cmd driver.Command) (memory int64) {
	b.Helper()
	ctx := context.Background()
	t0 := time.Now()
	p, err := box.Exec(ctx, cmd)
	if err != nil {
		b.Fatal(err)
	}
	var buf [100]byte
	if _, err := p.Stdout().Read(buf[:]); err != nil {
		b.Fatal(err)
	}
	t1 := time.Now()
	<-p.Exited()
	if err := p.Kill(ctx); err != nil {
		b.Fatal(err)
	}
	t2 := time.Now()
	sample, err := p.Sample()
	if err != nil {
		b.Fatal(err)
	}
	if err := box.Close(ctx); err != nil {
		b.Fatal(err)
	}
	s.first, s.end, s.gone = s.first+t1.Sub(t0), s.end+t2.Sub(t1), s.gone+time.Since(t2)
	return sample.MemoryPeak
}

// BenchmarkHeld times the parts of a run for which an interpreter was ready.
func BenchmarkHeld(b *testing.B) {
	d := newDriver(b).(driver.Warmer)
	for name, w := range workloads {
		b.Run(name, func(b *testing.B) {
			root, hold := python(b, w.modules)
			var sum times
			var memory int64
			runs := 0
			for b.Loop() {
				begun := time.Now()
				box, err := d.Hold(context.Background(), driver.Spec{ID: fmt.Sprintf("bench_%d", runs), Limits: usual, Root: root}, hold)
				if err != nil {
					b.Fatal(err)
				}
				sum.ready += time.Since(begun)
				if err := box.Resize(usual); err != nil {
					b.Fatal(err)
				}
				cmd := hold.Command
				cmd.Code = []byte(w.code)
				memory = max(memory, sum.follow(b, box, cmd))
				runs++
			}
			sum.report(b, runs)
			b.ReportMetric(float64(memory>>20), "peak-MiB")
		})
	}
}

// BenchmarkCold times the parts of a run for which nothing was ready.
func BenchmarkCold(b *testing.B) {
	d := newDriver(b)
	root, hold := python(b, nil)
	var sum times
	runs := 0
	for b.Loop() {
		begun := time.Now()
		box, err := d.Start(context.Background(), driver.Spec{ID: fmt.Sprintf("bench_%d", runs), Limits: usual, Root: root})
		if err != nil {
			b.Fatal(err)
		}
		sum.ready += time.Since(begun)
		cmd := hold.Command
		cmd.Code = []byte(workloads["print"].code)
		sum.follow(b, box, cmd)
		runs++
	}
	sum.report(b, runs)
}

// BenchmarkDo is runsc by itself, with the same program.
func BenchmarkDo(b *testing.B) {
	_, hold := python(b, nil)
	for b.Loop() {
		cmd := exec.Command(programs.runsc, "--network=none", "--ignore-cgroups", "--host-settings=ignore", "--root="+b.TempDir(),
			"do", hold.Command.Argv[0], "-c", workloads["print"].code)
		if out, err := cmd.CombinedOutput(); err != nil {
			b.Fatalf("%v: %s", err, out)
		}
	}
}

// BenchmarkBare is the interpreter without any fence.
func BenchmarkBare(b *testing.B) {
	for name, w := range workloads {
		b.Run(name, func(b *testing.B) {
			_, hold := python(b, nil)
			for b.Loop() {
				if out, err := exec.Command(hold.Command.Argv[0], "-c", w.code).CombinedOutput(); err != nil {
					b.Fatalf("%v: %s", err, out)
				}
			}
		})
	}
}
