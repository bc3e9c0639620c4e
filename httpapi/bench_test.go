package httpapi

import (
	"context"
	"testing"
	"time"

	"glovebox"
)

// BenchmarkRun is what the door and the client cost beside a Service that takes no time: to the first byte of standard
// output, and to the result.
func BenchmarkRun(b *testing.B) {
	w := newWorld(b)
	line := []byte("ready\n")
	result := filled[glovebox.Result]()
	w.run = func(_ context.Context, _ glovebox.Principal, _ glovebox.Request, s glovebox.Sink) (*glovebox.Result, error) {
		s.Event(glovebox.Event{Kind: "start", Run: "run_1", Time: time.Now()})
		s.Event(glovebox.Event{Kind: "stdout", Run: "run_1", Time: time.Now(), Data: line})
		return &result, nil
	}
	req := glovebox.Request{Code: "print('ready')", Args: []string{"a"}}
	var first time.Duration
	for b.Loop() {
		begun := time.Now()
		if _, err := w.client.Run(context.Background(), owner, req, sinkFunc(func(e glovebox.Event) {
			if e.Kind == "stdout" {
				first += time.Since(begun)
			}
		})); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(first.Microseconds())/float64(b.N), "µs-to-first-byte")
}

// BenchmarkOutput is what each byte costs that a program prints.
func BenchmarkOutput(b *testing.B) {
	w := newWorld(b)
	piece := make([]byte, 32<<10)
	for i := range piece {
		piece[i] = "abcdefg\n"[i%8]
	}
	const pieces = 512
	w.run = func(_ context.Context, _ glovebox.Principal, _ glovebox.Request, s glovebox.Sink) (*glovebox.Result, error) {
		for range pieces {
			s.Event(glovebox.Event{Kind: "stdout", Run: "run_1", Data: piece})
		}
		return &glovebox.Result{}, nil
	}
	b.SetBytes(pieces * int64(len(piece)))
	for b.Loop() {
		if _, err := w.client.Run(context.Background(), owner, glovebox.Request{Code: "1"}, sinkFunc(func(glovebox.Event) {})); err != nil {
			b.Fatal(err)
		}
	}
}
