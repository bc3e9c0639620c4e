package bench

import (
	"slices"
	"time"
)

// Spread is how times are distributed, in milliseconds. A percentile is the least time that so many percent of all do not
// exceed: one that was measured.
type Spread struct {
	P50 float64 `json:"p50_ms"`
	P95 float64 `json:"p95_ms"`
	P99 float64 `json:"p99_ms"`
	Max float64 `json:"max_ms"`
}

func spread(times []time.Duration) Spread {
	sorted := slices.Sorted(slices.Values(times))
	return Spread{
		P50: millis(percentile(sorted, 50)), P95: millis(percentile(sorted, 95)), P99: millis(percentile(sorted, 99)),
		Max: millis(percentile(sorted, 100)),
	}
}

// percentile is the nearest rank: the value at place ceil(n·percent/100). Without values it is 0.
func percentile(sorted []time.Duration, percent int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	rank := (len(sorted)*percent + 99) / 100
	return sorted[min(max(rank, 1), len(sorted))-1]
}
