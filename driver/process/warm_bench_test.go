package process_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"glovebox/driver"
	"glovebox/driver/process"
	"glovebox/internal/image"
)

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
		b.Run(name, func(b *testing.B) { benchFork(b, d, im, hold(b, im, "python", modules...)) })
	}
}

func benchFork(b *testing.B, d *process.Driver, im *image.Image, h driver.Hold) {
	ctx := context.Background()
	tm, err := d.Template(ctx, driver.Spec{ID: "tmpl", Limits: limits(), Root: im.Root()}, h)
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
		cmd := h.Command
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
