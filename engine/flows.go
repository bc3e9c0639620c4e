package engine

import (
	"slices"
	"sync"

	"glovebox"
)

// The bounds of what is kept of the gateway's decisions. Few reasons and rules bound what comes beyond them.
const (
	mostFlows = 512 // distinct decisions, requests told apart
	mostHosts = 896 // with those of which only host and port are kept
	mostRest  = 96  // with those of which not even these are
)

// flows are the decisions about one run, those that are the same counted together. It is safe for concurrent use, and
// bounded whatever a program asks for.
type flows struct {
	mu    sync.Mutex
	order []glovebox.EgressFlow
	at    map[glovebox.EgressFlow]int // by what is the same
}

// add counts a decision: with its request where there is room, else with its host, else with all others that have the same
// reason.
func (f *flows) add(flow glovebox.EgressFlow) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.at == nil {
		f.at = map[glovebox.EgressFlow]int{}
	}
	count, up, down := max(flow.Count, 1), flow.BytesUp, flow.BytesDown
	key := flow
	key.Count, key.BytesUp, key.BytesDown = 0, 0, 0
	i, ok := f.at[key]
	if !ok && len(f.order) >= mostFlows {
		key.Method, key.Path = "", ""
		i, ok = f.at[key]
	}
	if !ok && len(f.order) >= mostHosts {
		key.Host, key.Port, key.Rule = "", 0, ""
		i, ok = f.at[key]
	}
	if !ok && len(f.order) >= mostHosts+mostRest {
		key.Reason, key.Layer = "", ""
		i, ok = f.at[key]
	}
	if !ok {
		i = len(f.order)
		f.order = append(f.order, key)
		f.at[key] = i
	}
	one := &f.order[i]
	one.Count += count
	one.BytesUp += up
	one.BytesDown += down
}

// list is what was counted, in the order in which it was first seen.
func (f *flows) list() []glovebox.EgressFlow {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := slices.Clone(f.order)
	for i := range list {
		if list[i].Count == 1 {
			list[i].Count = 0 // which means one
		}
	}
	if list == nil {
		return []glovebox.EgressFlow{}
	}
	return list
}
