package main

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"glovebox"
	"glovebox/httpapi"
	"glovebox/internal/lease"
)

// pooled is a service that has sandboxes ready.
type pooled interface{ PoolStats() lease.Stats }

// metricsOf is what a server tells of itself: how often something was ready, and what there is.
func metricsOf(svc glovebox.Service) func() []httpapi.Metric {
	p, ok := svc.(pooled)
	if !ok {
		return nil
	}
	return func() []httpapi.Metric { return poolMetrics(p.PoolStats()) }
}

func poolMetrics(st lease.Stats) []httpapi.Metric {
	list := []httpapi.Metric{
		{Name: "glovebox_pool_taken_total", Help: "Runs that got a sandbox that was ready.", Value: float64(st.Taken)},
		{Name: "glovebox_pool_empty_total", Help: "Runs that one could have served and found none.", Value: float64(st.Empty)},
		{Name: "glovebox_pool_direct_total", Help: "Those of them that were forked on the spot and not started cold.",
			Value: float64(st.Direct)},
		{Name: "glovebox_pool_made_total", Help: "Sandboxes that were made ready.", Value: float64(st.Made)},
		{Name: "glovebox_pool_failed_total", Help: "Failures to make or keep one.", Value: float64(st.Failed)},
		{Name: "glovebox_pool_templates", Help: "Interpreters that sandboxes are forked from.", Value: float64(st.Templates)},
	}
	for _, reason := range slices.Sorted(maps.Keys(st.Discarded)) {
		list = append(list, httpapi.Metric{Name: "glovebox_pool_discarded_total",
			Help: "Sandboxes that were ready and nobody got.", Value: float64(st.Discarded[reason]),
			Labels: []httpapi.Label{{Name: "reason", Value: reason}}})
	}
	ready := func(name, help string, value func(lease.KindStats) float64) {
		for _, k := range st.Kinds {
			list = append(list, httpapi.Metric{Name: name, Help: help, Value: value(k), Labels: []httpapi.Label{
				{Name: "tenant", Value: k.Tenant}, {Name: "trust", Value: string(k.Trust)},
				{Name: "isolation", Value: string(k.Isolation)}, {Name: "lang", Value: k.Lang},
				{Name: "modules", Value: strings.Join(k.Modules, " ")}, {Name: "fork", Value: strconv.FormatBool(k.Fork)}}})
		}
	}
	ready("glovebox_pool_ready", "Sandboxes that are ready now.", func(k lease.KindStats) float64 { return float64(k.Ready) })
	ready("glovebox_pool_target", "How many should be.", func(k lease.KindStats) float64 { return float64(k.Target) })
	return list
}
