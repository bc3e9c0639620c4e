package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"glovebox"
	"glovebox/driver"
	"glovebox/driver/drivertest"
)

// TestSpareFails: what fails before the code was released costs the run nothing but time, once.
func TestSpareFails(t *testing.T) {
	for name, tt := range map[string]struct {
		step string // fails, the first time
		lose bool   // the interpreter ends there instead
	}{
		"resize": {step: "resize"}, "exec": {step: "exec"}, "lost before exec": {step: "resize", lose: true},
		"lost and exec": {step: "exec", lose: true},
	} {
		t.Run(name, func(t *testing.T) {
			var ran atomic.Int64
			var spec driver.Spec
			w := newWarm(t, func(_ context.Context, p *drivertest.Proc) driver.Exit {
				ran.Add(1)
				spec = p.Spec
				text, err := os.ReadFile(filepath.Join(p.Spec.Inputs, "folder", "a"))
				fmt.Fprintf(p.Stdout, "%s %v %v", text, err, p.Command.Argv[len(p.Command.Argv)-1])
				return driver.Exit{}
			}, nil)
			before := w.fake.Held()
			var once sync.Once
			w.failing(func(step string) (err error) {
				if step == tt.step {
					once.Do(func() {
						if err = errors.New("broken"); tt.lose {
							err = nil
							for _, id := range before {
								w.fake.Lose(id)
							}
						}
						if tt.lose && step == "exec" {
							err = errors.New("its interpreter has ended")
						}
					})
				}
				return err
			})
			res := w.run(glovebox.Request{Code: "x", Args: []string{"arg"}, Inputs: []glovebox.Input{{Name: "folder/a", Content: "A"}}})
			if res.Start != "cold" || !res.OK || res.Stdout != "A <nil> arg" || ran.Load() != 1 {
				t.Errorf("start %s, stdout %q, ran %d times", res.Start, res.Stdout, ran.Load())
			}
			if spec.ID != res.ID || slices.Contains(before, spec.ID) {
				t.Errorf("it ran in %s", spec.ID)
			}
			if n := strings.Count(w.log.b.String(), "the run starts cold"); n != 1 {
				t.Errorf("it was logged %d times", n)
			}
		})
	}
}

// TestSpareFailsForGood: there is no third try, and none beside a sandbox that may live.
func TestSpareFailsForGood(t *testing.T) {
	t.Run("the cold start fails too", func(t *testing.T) {
		w := newWarm(t, nil, nil)
		w.failing(func(step string) error {
			if step == "exec" || step == "start" {
				return errors.New("broken")
			}
			return nil
		})
		_, err := w.Run(t.Context(), owner, glovebox.Request{Code: "x"}, nil)
		if codeOf(err) != glovebox.CodeInternal {
			t.Errorf("error = %v", err)
		}
	})
	t.Run("the spare cannot be closed", func(t *testing.T) {
		w := newWarm(t, func(context.Context, *drivertest.Proc) driver.Exit { t.Error("it runs"); return driver.Exit{} }, nil)
		var exec, shut atomic.Bool
		w.failing(func(step string) error {
			if step == "exec" && !exec.Swap(true) || step == "close" && !shut.Swap(true) {
				return errors.New("broken")
			}
			return nil
		})
		_, err := w.Run(t.Context(), owner, glovebox.Request{Code: "x"}, nil)
		if codeOf(err) != glovebox.CodeInternal {
			t.Errorf("error = %v", err)
		}
	})
}

// TestSpareThatMayHaveRun: code is never run twice.
func TestSpareThatMayHaveRun(t *testing.T) {
	w := newWarm(t, func(context.Context, *drivertest.Proc) driver.Exit { t.Error("it runs"); return driver.Exit{} }, nil)
	w.failing(func(step string) error {
		if step == "exec" {
			return fmt.Errorf("broken: %w", driver.ErrReleased)
		}
		return nil
	})
	_, err := w.Run(t.Context(), owner, glovebox.Request{Code: "x"}, nil)
	if codeOf(err) != glovebox.CodeInternal || slices.Contains(w.fake.Calls(), "start") {
		t.Errorf("error = %v, calls %v", err, w.fake.Calls())
	}
}

// loser ends all that waits as soon as a run is about to be released.
type loser struct{ *drivertest.Fake }

func (l loser) Event(e glovebox.Event) {
	if e.Kind == "start" {
		for _, id := range l.Held() {
			l.Lose(id)
		}
	}
}

// TestSpareIsLost between its taking and the release of the code.
func TestSpareIsLost(t *testing.T) {
	w := newWarm(t, nil, nil)
	res, err := w.Run(t.Context(), owner, glovebox.Request{Code: "x"}, loser{w.fake})
	if err != nil || !res.OK || res.Start != "cold" {
		t.Fatalf("result %+v, error %v", res, err)
	}
	if calls := w.fake.Calls(); slices.Index(calls, "exec") < slices.Index(calls, "start") {
		t.Errorf("what was lost was used: %v", calls)
	}
}

// greedy is a driver whose held sandboxes read their input and then fail.
type greedy struct{ *drivertest.Fake }

func (g greedy) Template(ctx context.Context, s driver.Spec, h driver.Hold) (driver.Template, error) {
	t, err := g.Fake.Template(ctx, s, h)
	return greedyTemplate{t}, err
}

type greedyTemplate struct{ driver.Template }

func (g greedyTemplate) Fork(ctx context.Context, s driver.Spec) (driver.HeldSandbox, error) {
	h, err := g.Template.Fork(ctx, s)
	return greedyBox{h}, err
}

type greedyBox struct{ driver.HeldSandbox }

func (g greedyBox) Exec(_ context.Context, cmd driver.Command) (driver.Process, error) {
	_, _ = cmd.Stdin.Read(make([]byte, 1))
	return nil, errors.New("broken")
}

// TestSpareThatReadFirst: a cold start would see a part of the input only.
func TestSpareThatReadFirst(t *testing.T) {
	w := newWarm(t, nil, func(c *Config) { c.Drivers[0] = greedy{c.Drivers[0].(*drivertest.Fake)} })
	_, err := w.Run(t.Context(), owner, glovebox.Request{Code: "x", Stdin: "input"}, nil)
	if codeOf(err) != glovebox.CodeInternal {
		t.Errorf("error = %v", err)
	}
	if slices.Contains(w.fake.Calls(), "start") {
		t.Error("it was started cold")
	}
}

// TestSpareBeforeTheRecord: no code is released before its start is recorded; limits are given meanwhile.
func TestSpareBeforeTheRecord(t *testing.T) {
	w := newWarm(t, nil, nil)
	if err := w.store.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Run(t.Context(), owner, glovebox.Request{Code: "x"}, nil); err == nil {
		t.Error("it ran")
	}
	if calls := w.fake.Calls(); slices.Contains(calls, "exec") || !slices.Contains(calls, "resize") {
		t.Errorf("calls = %v", calls)
	}
	if n := w.PoolStats().Taken; n != 1 {
		t.Errorf("%d spares were taken", n)
	}
}

// TestSpareCancelled at each step.
func TestSpareCancelled(t *testing.T) {
	for _, step := range []string{"resize", "exec", "disk", "kill"} {
		t.Run(step, func(t *testing.T) {
			w := newWarm(t, hang, nil)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			w.failing(func(s string) error {
				if s == step {
					cancel()
				}
				return nil
			})
			time.AfterFunc(200*time.Millisecond, cancel)
			res, err := w.Run(ctx, owner, glovebox.Request{Code: "x"}, nil)
			if err != nil || res.Status != glovebox.StatusCanceled {
				t.Errorf("result %+v, error %v", res, err)
			}
		})
	}
}

// changing is an image that is another from some time on.
type changing struct {
	fakeImage
	state *atomic.Pointer[string]
}

func (c changing) Identity() string { return *c.state.Load() }

// TestImageChanges: what was made of another state of the image serves nobody any more.
func TestImageChanges(t *testing.T) {
	var state atomic.Pointer[string]
	state.Store(new("host@1"))
	w := newWarm(t, nil, func(c *Config) { c.Image = changing{state: &state} })
	if res := w.run(glovebox.Request{Code: "x"}); res.Start != "fork" {
		t.Errorf("start = %s", res.Start)
	}
	w.settle()
	old := w.fake.Live()
	state.Store(new("host@2"))
	if res := w.run(glovebox.Request{Code: "x"}); res.Start != "cold" || res.Image != "host@2" {
		t.Errorf("start = %s of %s", res.Start, res.Image)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		left := slices.DeleteFunc(w.fake.Live(), func(id string) bool { return !slices.Contains(old, id) })
		if len(left) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("kept: %v", left)
		}
	}
	w.settle()
	if res := w.run(glovebox.Request{Code: "x"}); res.Start != "fork" {
		t.Errorf("start = %s", res.Start)
	}
}

// TestSparesGiveWay: a run that may have all the memory there is gets it.
func TestSparesGiveWay(t *testing.T) {
	w := newWarm(t, nil, func(c *Config) { c.Image = fakeImage{} })
	begun := time.Now()
	res := w.run(glovebox.Request{Code: "x", Limits: glovebox.Limits{Memory: 4 * glovebox.GiB}})
	if !res.OK || time.Since(begun) > 900*time.Millisecond || w.PoolStats().Discarded["memory"] == 0 {
		t.Errorf("%s after %v; %+v", res.Status, time.Since(begun), w.PoolStats())
	}
}

// TestSpareFoldersAreSwept: those of an engine that died, and not those that are in use.
func TestSpareFoldersAreSwept(t *testing.T) {
	w := newWarm(t, nil, nil)
	dead := filepath.Join(w.dir, "runs", "spare_dead")
	if err := os.MkdirAll(filepath.Join(dead, "inputs", "spare_fork"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dead, "inputs", "spare_fork", "a"), nil, 0o444); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(dead, "inputs", "spare_fork"), 0o555); err != nil {
		t.Fatal(err)
	}
	templates := w.fake.Templates()
	e, err := New(Config{DataDir: w.dir, Drivers: []driver.Driver{&drivertest.Fake{}}, Policy: lowRungs, Image: fakeImage{}, RuntimeDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Run(t.Context(), owner, glovebox.Request{Code: "x"}, nil); err != nil {
		t.Error(err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	left, err := os.ReadDir(filepath.Join(w.dir, "runs"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range left {
		names = append(names, f.Name())
	}
	slices.Sort(templates)
	if d := cmp.Diff(templates, names); d != "" {
		t.Errorf("folders, beside those of templates (-want +got):\n%s", d)
	}
}

// TestTeardownIsBounded: a flood of runs whose sandboxes do not go away leaves no more of them than the bound, beside those
// that callers wait for.
func TestTeardownIsBounded(t *testing.T) {
	const bound = 8
	for name, pool := range map[string]Pool{"cold": {}, "warm": {Spares: 4, Forks: true}} {
		t.Run(name, func(t *testing.T) {
			stuck := make(chan struct{})
			fake := &drivertest.Fake{Dir: t.TempDir(), Fail: func(step string) error {
				if step == "close" {
					<-stuck
				}
				return nil
			}}
			cfg := Config{DataDir: t.TempDir(), Drivers: []driver.Driver{fake}, Policy: lowRungs, Image: fakeImage{}, RuntimeDir: t.TempDir(),
				MemoryBudget: 4 * glovebox.GiB, Pool: pool}
			cfg.Policy.Limits.Default = glovebox.Limits{Memory: 65 * glovebox.MiB, Disk: glovebox.MiB}
			e, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			e.teardown = make(chan struct{}, bound)
			const callers = 4
			var all sync.WaitGroup
			var done atomic.Int64
			ctx, cancel := context.WithCancel(t.Context())
			for range callers {
				all.Go(func() {
					for ctx.Err() == nil {
						if _, err := e.Run(ctx, owner, glovebox.Request{Code: "x"}, nil); err == nil {
							done.Add(1)
						}
					}
				})
			}
			for last := int64(-1); last <= 0 || last != done.Load(); time.Sleep(500 * time.Millisecond) {
				last = done.Load()
			}
			var out int64 // what waits to be removed, templates and spares left out
			for _, id := range fake.Live() {
				if !slices.Contains(fake.Held(), id) && !slices.Contains(fake.Templates(), id) {
					out++
				}
			}
			if done.Load() == 0 || out > bound+callers {
				t.Errorf("%d runs ended and %d sandboxes are left, at a bound of %d", done.Load(), out, bound)
			}
			t.Logf("%d runs ended, %d sandboxes are left", done.Load(), out)
			close(stuck)
			cancel()
			all.Wait()
			if err := e.Close(); err != nil {
				t.Error(err)
			}
			if left := fake.Live(); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}
