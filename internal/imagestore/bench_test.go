package imagestore

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// BenchmarkSeal is what each use of an image of 20,000 files costs.
func BenchmarkSeal(b *testing.B) {
	dir := b.TempDir()
	for i := range 1000 {
		sub := filepath.Join(dir, fmt.Sprint("d", i%20), fmt.Sprint("e", i))
		if err := os.MkdirAll(sub, 0o755); err != nil {
			b.Fatal(err)
		}
		for j := range 20 {
			if err := os.WriteFile(filepath.Join(sub, fmt.Sprintf("a_file_of_usual_name_%d.py", j)), nil, 0o444); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := sealOf(b.Context(), dir); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/21_000, "µs/name")
}
