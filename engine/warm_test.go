package engine_test

import (
	"context"
	"testing"
	"time"

	"glovebox"
	"glovebox/engine"
)

// warmEngine is a real engine that has Python ready.
func warmEngine(t *testing.T) *engine.Engine {
	t.Helper()
	e := realEngineWith(t, engine.Pool{Spares: 4, Forks: true})
	warm(t, e)
	return e
}

// warm waits until all that was asked for is ready.
func warm(t testing.TB, e *engine.Engine) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		st := e.PoolStats()
		ready := len(st.Kinds) > 0
		for _, k := range st.Kinds {
			ready = ready && k.Ready >= 2
		}
		if ready {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not ready: %+v", st)
		}
	}
}

// TestWarmStatus: a program ends as it does in a sandbox of its own making.
func TestWarmStatus(t *testing.T) {
	e := warmEngine(t)
	starts := map[string]int{}
	for name, tt := range statusCases {
		t.Run(name, func(t *testing.T) {
			tt.check(t, e) // that there is one for the next
			warm(t, e)
			starts[tt.check(t, e).Start]++
		})
	}
	if starts["fork"] < 4 || starts["spare"] < 7 {
		t.Errorf("starts = %v", starts)
	}
	t.Logf("starts = %v", starts)
}

func TestWarmFiles(t *testing.T) {
	e := warmEngine(t)
	checkFiles(t, e)
	warm(t, e)
	if res := checkFiles(t, e); res.Start != "spare" {
		t.Errorf("start = %s", res.Start)
	}
	res, err := e.Run(t.Context(), tester, glovebox.Request{Inputs: []glovebox.Input{{Name: "a/b", Content: "text"}},
		Code: "import os; print(open('/inputs/a/b').read(), os.listdir('/inputs'), oct(os.stat('/inputs').st_mode), os.getuid())"}, nil)
	if err != nil || res.Start != "fork" || string(res.Stdout) != "text ['a'] 0o40555 1000\n" {
		t.Errorf("result %+v, error %v", res, err)
	}
}

// TestWarmCancel cancels at many instants: there is a result each time and nothing is left.
func TestWarmCancel(t *testing.T) {
	e := warmEngine(t)
	for after := time.Duration(0); after < 20*time.Millisecond; after += 500 * time.Microsecond {
		ctx, cancel := context.WithTimeout(t.Context(), after)
		res, err := e.Run(ctx, tester, glovebox.Request{Code: "import time, os\nif os.fork(): time.sleep(0.01)\nelse: time.sleep(60)"}, nil)
		cancel()
		if err != nil {
			t.Fatalf("after %v: %v", after, err)
		}
		if res.Status != glovebox.StatusCanceled && res.Status != glovebox.StatusExited || res.OK != (res.ExitCode != nil) {
			t.Fatalf("after %v: status %s, code %v", after, res.Status, res.ExitCode)
		}
		warm(t, e)
	}
}

// BenchmarkWarm is a run in what was ready.
func BenchmarkWarm(b *testing.B) {
	for name, code := range map[string]string{"print": "print(1)", "pandas": "import pandas as pd\nprint(pd.DataFrame({'a': [1]}).a.sum())"} {
		b.Run(name, func(b *testing.B) {
			e := realEngineWith(b, engine.Pool{Spares: 8, Forks: true})
			warm(b, e)
			starts, startMS := map[string]int{}, int64(0)
			for b.Loop() {
				res, err := e.Run(b.Context(), tester, glovebox.Request{Code: code}, nil)
				if err != nil || !res.OK {
					b.Fatalf("result %+v, error %v", res, err)
				}
				starts[res.Start]++
				startMS += *res.Usage.StartMS
			}
			for how, n := range starts {
				b.ReportMetric(float64(n)/float64(b.N), how+"/op")
			}
			b.Logf("%+v", e.PoolStats())
		})
	}
}
