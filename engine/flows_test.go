package engine

import (
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"glovebox"
)

// TestFlows: the same decisions are one, with what passed added up.
func TestFlows(t *testing.T) {
	var f flows
	if got := f.list(); got == nil || len(got) > 0 {
		t.Errorf("nothing is listed as %v", got)
	}
	get := glovebox.EgressFlow{Host: "good.test", Port: 443, Allowed: true, Layer: "http", Rule: "r1", Method: "GET", Path: "/a"}
	no := glovebox.EgressFlow{Host: "evil.test", Port: 443, Reason: "host-not-allowed", Layer: "tcp"}
	for i := range 3 {
		flow := get
		flow.BytesUp, flow.BytesDown = int64(i), 10
		f.add(flow)
	}
	no.Count = 40
	f.add(no)
	no.Count = 2
	f.add(no)
	other := get
	other.Path = "/b"
	f.add(other)
	get.Count, get.BytesUp, get.BytesDown, no.Count = 3, 3, 30, 42
	if diff := cmp.Diff([]glovebox.EgressFlow{get, no, other}, f.list()); diff != "" {
		t.Error(diff)
	}
}

// TestFlowsBounded: whatever a program asks for, what is kept is bounded, and nothing that was counted is lost.
func TestFlowsBounded(t *testing.T) {
	var f flows
	var all sync.WaitGroup
	const each = 5000
	for w := range 4 {
		all.Go(func() {
			for i := range each {
				flow := glovebox.EgressFlow{Host: fmt.Sprintf("h%d-%d.test", w, i), Port: 1 + i%65535, Reason: fmt.Sprint("reason", i%300),
					Layer: "http", Method: "GET", Path: fmt.Sprint("/", i), BytesUp: 1}
				if w == 0 {
					flow.Host, flow.Port = "one.test", 443 // of one host many paths
				}
				f.add(flow)
			}
		})
	}
	all.Wait()
	list := f.list()
	if len(list) > 1000 {
		t.Errorf("%d are kept", len(list))
	}
	var count, up int64
	for _, flow := range list {
		count += max(flow.Count, 1)
		up += flow.BytesUp
	}
	if count != 4*each || up != 4*each {
		t.Errorf("%d decisions and %d bytes are told, %d were", count, up, 4*each)
	}
}
