package process_test

import (
	"context"
	"fmt"
	"io"
	"testing"
	"time"

	"glovebox/driver"
	"glovebox/driver/process"
	"glovebox/internal/image"
)

// BenchmarkRun times the parts of a run of /bin/true in a fresh sandbox.
func BenchmarkRun(b *testing.B) {
	d, err := process.New(process.Config{Init: initBinary, ScratchDir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	host, err := image.Host(image.Config{})
	if err != nil {
		b.Fatal(err)
	}
	var start, exec, end, gone time.Duration
	runs := 0
	for b.Loop() {
		t0 := time.Now()
		spec := driver.Spec{ID: fmt.Sprintf("bench_%d", runs), Limits: limits(), Root: host.Root()}
		s, err := d.Start(context.Background(), spec)
		if err != nil {
			b.Fatal(err)
		}
		t1 := time.Now()
		p, err := s.Exec(context.Background(), driver.Command{Argv: []string{"/bin/true"}, Env: []string{}, Dir: "/workspace"})
		if err != nil {
			b.Fatal(err)
		}
		t2 := time.Now()
		if _, err := io.Copy(io.Discard, p.Stdout()); err != nil {
			b.Fatal(err)
		}
		<-p.Exited()
		t3 := time.Now()
		if err := s.Close(context.Background()); err != nil {
			b.Fatal(err)
		}
		t4 := time.Now()
		start, exec, end, gone = start+t1.Sub(t0), exec+t2.Sub(t1), end+t3.Sub(t2), gone+t4.Sub(t3)
		runs++
	}
	for name, d := range map[string]time.Duration{"start": start, "exec": exec, "program": end, "close": gone} {
		b.ReportMetric(float64(d.Microseconds())/1000/float64(runs), name+"-ms/op")
	}
}
