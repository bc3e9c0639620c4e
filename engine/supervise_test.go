package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"glovebox"
	"glovebox/driver"
	"glovebox/driver/drivertest"
)

// fakeCapture counts.
type fakeCapture struct {
	limit    int64
	read     atomic.Int64
	exceeded chan struct{}
	tell     *teller
}

func (c *fakeCapture) Copy(stream string, r io.Reader) error {
	buf := make([]byte, 1024)
	for {
		n, err := r.Read(buf)
		if total := c.read.Add(int64(n)); total > c.limit && total-int64(n) <= c.limit {
			close(c.exceeded)
		}
		if n > 0 {
			c.tell.live(stream, buf[:n])
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (c *fakeCapture) Exceeded() <-chan struct{} { return c.exceeded }

type program = func(ctx context.Context, p *drivertest.Proc) driver.Exit

// watching makes a watch on a new process of fake. It must be called in a bubble.
func watching(t *testing.T, fake *drivertest.Fake, sink glovebox.Sink) *watch {
	t.Helper()
	box, err := fake.Start(t.Context(), driver.Spec{ID: "a", Limits: testLimits})
	if err != nil {
		t.Fatal(err)
	}
	proc, err := box.Exec(t.Context(), driver.Command{})
	if err != nil {
		t.Fatal(err)
	}
	tell := newTeller("a", sink)
	return &watch{box: box, proc: proc, limits: testLimits, tell: tell, drained: make(chan struct{}),
		capture: &fakeCapture{limit: int64(testLimits.Output), exceeded: make(chan struct{}), tell: tell}}
}

// supervised runs a program of fake under supervision and returns the verdict. It must be called in a bubble.
func supervised(t *testing.T, ctx context.Context, fake *drivertest.Fake, sink glovebox.Sink) (verdict, facts, error) {
	t.Helper()
	w := watching(t, fake, sink)
	f, err := w.run(ctx)
	w.box.Close(t.Context())
	w.tell.close(ctx)
	if err != nil {
		return verdict{}, f, err
	}
	v, err := judge(f, testLimits)
	return v, f, err
}

func hang(ctx context.Context, _ *drivertest.Proc) driver.Exit {
	<-ctx.Done()
	return driver.Exit{}
}

func TestSupervise(t *testing.T) {
	for _, tt := range []struct {
		name   string
		prog   program
		cancel time.Duration // 0: never
		want   glovebox.Status
		within [2]time.Duration
	}{
		{"exit", func(context.Context, *drivertest.Proc) driver.Exit { return driver.Exit{Code: 3} }, 0,
			glovebox.StatusExited, [2]time.Duration{0, 0}},
		{"wall", hang, 0, glovebox.StatusWallLimit, [2]time.Duration{time.Minute, time.Minute}},
		{"cancel", hang, 5 * time.Second, glovebox.StatusCanceled, [2]time.Duration{5 * time.Second, 5 * time.Second}},
		{"cpu", func(ctx context.Context, p *drivertest.Proc) driver.Exit { p.Burn(1); return hang(ctx, p) }, 0,
			glovebox.StatusCPULimit, [2]time.Duration{29 * time.Second, 30*time.Second + pollFast}},
		{"cpu, slowly", func(ctx context.Context, p *drivertest.Proc) driver.Exit { p.Burn(0.6); return hang(ctx, p) }, 0,
			glovebox.StatusCPULimit, [2]time.Duration{49 * time.Second, 50*time.Second + pollSlow}},
		{"memory of a child", func(ctx context.Context, p *drivertest.Proc) driver.Exit {
			time.Sleep(time.Second)
			p.Count(func(s *driver.Sample) { s.OOMKills++ })
			return hang(ctx, p)
		}, 0, glovebox.StatusMemoryLimit, [2]time.Duration{time.Second, time.Second + pollSlow}},
		{"memory of the leader", func(_ context.Context, p *drivertest.Proc) driver.Exit {
			p.Count(func(s *driver.Sample) { s.OOMKills++ })
			return driver.Exit{Signal: syscall.SIGKILL}
		}, 0, glovebox.StatusMemoryLimit, [2]time.Duration{0, 0}},
		{"output", func(ctx context.Context, p *drivertest.Proc) driver.Exit {
			p.Stdout.Write(make([]byte, testLimits.Output+1))
			return hang(ctx, p)
		}, 0, glovebox.StatusOutputLimit, [2]time.Duration{0, 0}},
		{"output of exactly the limit", func(_ context.Context, p *drivertest.Proc) driver.Exit {
			p.Stderr.Write(make([]byte, testLimits.Output))
			return driver.Exit{}
		}, 0, glovebox.StatusExited, [2]time.Duration{0, 0}},
		{"a child outlives the leader", func(ctx context.Context, p *drivertest.Proc) driver.Exit {
			p.Fork(ctx, func(ctx context.Context) { <-ctx.Done() })
			return driver.Exit{}
		}, 0, glovebox.StatusExited, [2]time.Duration{0, 0}},
		{"end of streams is not end of run", func(_ context.Context, p *drivertest.Proc) driver.Exit {
			p.Stdout.(io.Closer).Close()
			p.Stderr.(io.Closer).Close()
			time.Sleep(5 * time.Second)
			return driver.Exit{Code: 7}
		}, 0, glovebox.StatusExited, [2]time.Duration{5 * time.Second, 5 * time.Second}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				if tt.cancel > 0 {
					defer time.AfterFunc(tt.cancel, stop).Stop()
				}
				fake := &drivertest.Fake{Program: tt.prog}
				v, f, err := supervised(t, ctx, fake, nil)
				if err != nil || v.status != tt.want {
					t.Fatalf("status = %v, %v, want %v", v.status, err, tt.want)
				}
				if f.wall < tt.within[0] || f.wall > tt.within[1] {
					t.Errorf("wall = %v, want within %v", f.wall, tt.within)
				}
				if n := len(fake.Live()); n > 0 {
					t.Errorf("%d sandboxes left", n)
				}
			})
		})
	}
}

func TestSuperviseFailsClosed(t *testing.T) {
	for _, step := range []string{"sample", "kill", "disk"} {
		t.Run(step, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				broken := errors.New("broken")
				fake := &drivertest.Fake{Program: hang, Fail: func(s string) error {
					if s == step {
						return broken
					}
					return nil
				}}
				_, _, err := supervised(t, t.Context(), fake, nil)
				if !errors.Is(err, broken) {
					t.Errorf("error = %v, want the driver's", err)
				}
				if n := len(fake.Live()); n > 0 {
					t.Errorf("%d sandboxes left", n)
				}
			})
		})
	}
}

// TestSuperviseRaces lets the program's end and every reason to kill it fall close together in many orders. Whatever comes
// first, there is one status and it fits what happened.
func TestSuperviseRaces(t *testing.T) {
	for seed := range uint64(300) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := rand.New(rand.NewPCG(seed, 0))
				near := func() time.Duration { return time.Minute + time.Duration(r.IntN(5)-2)*time.Millisecond }
				ends, cancels, floods := near(), near(), near()
				end := driver.Exit{Code: r.IntN(2)}
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				defer time.AfterFunc(cancels, stop).Stop()
				v, f, err := supervised(t, ctx, &drivertest.Fake{Program: func(ctx context.Context, p *drivertest.Proc) driver.Exit {
					p.Fork(ctx, func(ctx context.Context) {
						select {
						case <-time.After(floods):
							p.Stdout.Write(make([]byte, testLimits.Output+1))
						case <-ctx.Done():
						}
					})
					select {
					case <-time.After(ends):
						return end
					case <-ctx.Done():
						return driver.Exit{}
					}
				}}, nil)
				if err != nil {
					t.Fatal(err)
				}
				first := min(ends, cancels, floods, time.Minute)
				allowed := map[glovebox.Status]time.Duration{glovebox.StatusExited: ends, glovebox.StatusCanceled: cancels,
					glovebox.StatusOutputLimit: floods, glovebox.StatusWallLimit: time.Minute}
				at, known := allowed[v.status]
				if !known || v.status != glovebox.StatusOutputLimit && at != first {
					t.Errorf("status = %v at %v; ends %v cancels %v floods %v", v.status, f.wall, ends, cancels, floods)
				}
				if v.status == glovebox.StatusExited && (v.code == nil || *v.code != end.Code) {
					t.Errorf("exited with %v, want %d", v.code, end.Code)
				}
			})
		})
	}
}

// slowSink takes its time and may never return.
type slowSink struct {
	pause time.Duration
	never chan struct{}
	bytes int
}

func (s *slowSink) Event(e glovebox.Event) {
	time.Sleep(s.pause)
	if s.never != nil {
		<-s.never
	}
	s.bytes += len(e.Data)
}

func TestSuperviseSlowSink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := &slowSink{pause: 3 * time.Second}
		v, f, err := supervised(t, t.Context(), &drivertest.Fake{Program: func(_ context.Context, p *drivertest.Proc) driver.Exit {
			p.Stdout.Write(make([]byte, 3000))
			return driver.Exit{}
		}}, sink)
		if err != nil || v.status != glovebox.StatusExited || sink.bytes != 3000 || f.wall > 10*time.Second {
			t.Errorf("status %v (%v), heard %d bytes, wall %v", v.status, err, sink.bytes, f.wall)
		}
	})
}

func TestSuperviseSinkThatNeverReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := &slowSink{never: make(chan struct{})}
		defer close(sink.never)
		ctx, stop := context.WithTimeout(t.Context(), time.Hour)
		defer stop()
		v, f, err := supervised(t, ctx, &drivertest.Fake{Program: func(ctx context.Context, p *drivertest.Proc) driver.Exit {
			p.Stdout.Write(make([]byte, 3000))
			return hang(ctx, p)
		}}, sink)
		if err != nil || v.status != glovebox.StatusWallLimit || f.wall != time.Minute {
			t.Errorf("status %v (%v) after %v, want the wall limit on time", v.status, err, f.wall)
		}
	})
}

func TestSuperviseBelievesTheEarlierEnd(t *testing.T) {
	for i := range 40 { // a choice between two that are ready is made at random
		synctest.Test(t, func(t *testing.T) {
			w := watching(t, &drivertest.Fake{}, nil)
			<-w.proc.Exited()
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			f, err := w.run(ctx)
			if err != nil || f.killed != "" {
				t.Errorf("try %d: killed as %q (%v) although it had ended before", i, f.killed, err)
			}
			w.box.Close(t.Context())
		})
	}
}

// TestViolation: a placeholder where it may not go ends the run where that was configured, and the verdict is the policy's.
func TestViolation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watching(t, &drivertest.Fake{Program: func(ctx context.Context, _ *drivertest.Proc) driver.Exit {
			<-ctx.Done()
			return driver.Exit{}
		}}, nil)
		violated := make(chan struct{})
		w.violated = violated
		time.AfterFunc(time.Second, func() { close(violated) })
		f, err := w.run(t.Context())
		w.box.Close(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		v, err := judge(f, testLimits)
		if err != nil || v.status != glovebox.StatusPolicy || f.wall != time.Second || !strings.Contains(v.reason, "placeholder") {
			t.Errorf("%+v after %v: %v", v, f.wall, err)
		}
	})
}
