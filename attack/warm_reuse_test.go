package attack_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"glovebox"
)

// TestLTWarmReuse: runs in what was ready before leave every trace that they can, and none finds one: each begins exactly as a
// run in a sandbox of its own does, and what they are copies of stays.
func TestLTWarmReuse(t *testing.T) {
	code := read("programs/lt_reuse.py")
	ask := func(s *soak, n int) *glovebox.Result {
		res, err := s.run(t.Context(), glovebox.Request{Code: code, Args: []string{fmt.Sprint("m", n), []string{"exit", "kill", "abort", "end"}[n%4]},
			Env: map[string]string{"GIVEN": "yes"}, Inputs: []glovebox.Input{{Name: "a", Content: "b"}}, Limits: glovebox.Limits{View: 64 * glovebox.KiB, Wall: 20 * time.Second}}, nil)
		if err != nil {
			t.Error(err)
			return &glovebox.Result{}
		}
		return res
	}
	cold := ask(newSoak(t), 0)
	want := strings.Split(string(cold.Stdout), "\n")
	if len(want) < 18 || cold.Start != "cold" {
		t.Fatalf("cold: %s, %s %s", cold.Start, cold.Stdout, cold.Stderr)
	}
	for name, forks := range map[string]bool{"fork": true, "spare": false} {
		t.Run(name, func(t *testing.T) {
			w := newWarmSoak(t, forks)
			w.ready()
			runs := 60
			if long() {
				runs = 2000
			}
			templates := w.engine.PoolStats()
			var all sync.WaitGroup
			var mu sync.Mutex
			starts := map[string]int{}
			next := make(chan int)
			for range 3 {
				all.Go(func() {
					for n := range next {
						res := ask(w.soak, n)
						got := strings.Split(string(res.Stdout), "\n")
						mu.Lock()
						starts[res.Start]++
						for i, line := range got {
							if i >= len(want) || line != want[i] {
								t.Errorf("run %d (%s, %s) says\n%.1500s\nand not\n%.1500s\n%s", n, res.Start, res.Status, line, want[min(i, len(want)-1)], res.Stderr)
							}
						}
						if len(got) != len(want) {
							t.Errorf("run %d (%s, %s) says %d lines, %s", n, res.Start, res.Status, len(got), res.Stderr)
						}
						mu.Unlock()
					}
				})
			}
			for n := range runs {
				if t.Failed() {
					break
				}
				next <- n
			}
			close(next)
			all.Wait()
			now := w.engine.PoolStats()
			t.Logf("starts %v, %+v", starts, now)
			if starts[name] < runs/2 || now.Failed != 0 || now.Discarded["lost"] != 0 {
				t.Errorf("starts %v, before %+v, after %+v", starts, templates, now)
			}
		})
	}
}
