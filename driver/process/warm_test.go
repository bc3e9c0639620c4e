package process_test

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"glovebox"
	"glovebox/driver"
	"glovebox/driver/process"
	"glovebox/internal/boot"
	"glovebox/internal/image"
)

// pythonHold is an interpreter that waits for /code/main.py.
func pythonHold(t testing.TB, im *image.Image, modules ...string) driver.Hold {
	t.Helper()
	program, err := im.Interpreter("python")
	if err != nil {
		t.Fatal(err)
	}
	return driver.Hold{Lang: "python", Modules: modules, Memory: 128 * glovebox.MiB, Command: driver.Command{
		Argv: boot.Cold("python", program, "/code/main.py"), Env: []string{"PATH=/usr/bin:/bin", "HOME=/workspace", "LANG=C.UTF-8"},
		Dir: "/workspace", CodeName: "main.py"}}
}

// resumed runs code in a sandbox whose interpreter waits, and closes it.
func resumed(t testing.TB, s driver.HeldSandbox, hold driver.Hold, code string, args ...string) (stdout, stderr string, x driver.Exit) {
	t.Helper()
	ctx := context.Background()
	defer func() {
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
	}()
	if err := s.Resize(limits()); err != nil {
		t.Fatal(err)
	}
	cmd := hold.Command
	cmd.Argv = append(cmd.Argv[:len(cmd.Argv):len(cmd.Argv)], args...)
	cmd.Code = []byte(code)
	p, err := s.Exec(ctx, cmd)
	if err != nil {
		t.Fatal(err)
	}
	var out, errs strings.Builder
	done := make(chan error, 1)
	go func() { _, err := io.Copy(&errs, p.Stderr()); done <- err }()
	if _, err := io.Copy(&out, p.Stdout()); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	select {
	case <-p.Exited():
	case <-time.After(20 * time.Second):
		t.Fatal("it does not end")
	}
	return out.String(), errs.String(), p.Exit()
}

func TestForks(t *testing.T) {
	d, err := process.New(process.Config{Init: initBinary, ScratchDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	im, err := image.Host(image.Config{})
	if err != nil {
		t.Fatal(err)
	}
	hold := pythonHold(t, im, "json", "csv")
	ctx := context.Background()
	tm, err := d.Template(ctx, driver.Spec{ID: "tmpl", Limits: limits(), Root: im.Root()}, hold)
	if err != nil {
		t.Fatal(err)
	}
	for n := range 5 {
		begun := time.Now()
		s, err := tm.Fork(ctx, driver.Spec{ID: fmt.Sprintf("fork_%d", n), Limits: limits(), Root: im.Root()})
		if err != nil {
			t.Fatal(err)
		}
		made := time.Now()
		out, errs, x := resumed(t, s, hold, "print(1)\n")
		t.Logf("made %v, ran %v: %q %q %+v", made.Sub(begun), time.Since(made), out, errs, x)
	}
	if err := tm.Close(ctx); err != nil {
		t.Error(err)
	}
}

// BenchmarkFork times the parts of a run in a copy.
func BenchmarkFork(b *testing.B) {
	d, err := process.New(process.Config{Init: initBinary, ScratchDir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	im, err := image.Host(image.Config{})
	if err != nil {
		b.Fatal(err)
	}
	for name, modules := range map[string][]string{
		"base": {"json", "csv", "re", "datetime", "statistics", "sqlite3"}, "data": {"json", "numpy", "pandas", "openpyxl", "matplotlib"},
	} {
		b.Run(name, func(b *testing.B) { benchFork(b, d, im, pythonHold(b, im, modules...)) })
	}
}

func benchFork(b *testing.B, d *process.Driver, im *image.Image, hold driver.Hold) {
	ctx := context.Background()
	tm, err := d.Template(ctx, driver.Spec{ID: "tmpl", Limits: limits(), Root: im.Root()}, hold)
	if err != nil {
		b.Fatal(err)
	}
	var make, first, end, gone time.Duration
	runs := 0
	for b.Loop() {
		t0 := time.Now()
		s, err := tm.Fork(ctx, driver.Spec{ID: fmt.Sprintf("bench_%d", runs), Limits: limits(), Root: im.Root()})
		if err != nil {
			b.Fatal(err)
		}
		t1 := time.Now()
		if err := s.Resize(limits()); err != nil {
			b.Fatal(err)
		}
		cmd := hold.Command
		cmd.Code = []byte("print(1)")
		p, err := s.Exec(ctx, cmd)
		if err != nil {
			b.Fatal(err)
		}
		var buf [10]byte
		if _, err := p.Stdout().Read(buf[:]); err != nil {
			b.Fatal(err)
		}
		t2 := time.Now()
		<-p.Exited()
		if err := p.Kill(ctx); err != nil {
			b.Fatal(err)
		}
		t3 := time.Now()
		if err := s.Close(ctx); err != nil {
			b.Fatal(err)
		}
		t4 := time.Now()
		make, first, end, gone = make+t1.Sub(t0), first+t2.Sub(t1), end+t3.Sub(t2), gone+t4.Sub(t3)
		runs++
	}
	for name, d := range map[string]time.Duration{"make": make, "first": first, "end": end, "close": gone} {
		b.ReportMetric(float64(d.Microseconds())/1000/float64(runs), name+"-ms/op")
	}
	if err := tm.Close(ctx); err != nil {
		b.Error(err)
	}
}
