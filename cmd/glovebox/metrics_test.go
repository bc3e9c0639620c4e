package main

import (
	"fmt"
	"testing"

	"glovebox"
	"glovebox/internal/lease"
)

// TestPoolMetricsApart: no two numbers have the same name and labels, which who reads them refuses.
func TestPoolMetricsApart(t *testing.T) {
	kind := lease.KindStats{Tenant: "local", Trust: glovebox.TrustModel, Isolation: glovebox.IsolationProcess, Lang: "python"}
	other := kind
	other.Trust = glovebox.TrustInfluenced
	st := lease.Stats{Discarded: map[string]int64{"age": 1, "idle": 2}, Kinds: []lease.KindStats{kind, other}}
	seen := map[string]bool{}
	for _, m := range poolMetrics(st) {
		key := fmt.Sprint(m.Name, m.Labels)
		if seen[key] {
			t.Errorf("%s is there twice", key)
		}
		seen[key] = true
	}
}
