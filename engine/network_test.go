package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"glovebox"
	"glovebox/driver"
	"glovebox/driver/drivertest"
	"glovebox/internal/gateway"
	"glovebox/internal/netjail"
	"glovebox/policy"
)

var (
	flowGood = glovebox.EgressFlow{Host: "good.test", Port: 443, Allowed: true, Layer: "http", Rule: "r1", Method: "GET", Path: "/a",
		BytesUp: 3, BytesDown: 4}
	flowEvil = glovebox.EgressFlow{Host: "evil.test", Port: 443, Reason: "host-not-allowed", Layer: "tcp"}
)

// egressPolicy lets requests name good.test.
func egressPolicy() policy.Config {
	p := lowRungs
	p.Egress.Rules = []glovebox.EgressRule{{ID: "r1", Host: "good.test"}}
	return p
}

// waits is a program that runs until its standard input ends.
func waits(_ context.Context, p *drivertest.Proc) driver.Exit {
	_, _ = io.Copy(io.Discard, p.Stdin)
	return driver.Exit{}
}

// newAllowing makes an engine whose network is made up. The test fails if anything of a network is left at the end.
func newAllowing(t *testing.T, fake *drivertest.Fake, change func(*fakeNetwork)) (*Engine, *fakeNetwork) {
	t.Helper()
	if fake.Dir == "" {
		fake.Dir = t.TempDir()
	}
	net := newFakeNetwork(func(string) error { return nil })
	if change != nil {
		change(net)
	}
	e, err := New(Config{DataDir: t.TempDir(), Drivers: []driver.Driver{fake}, Policy: egressPolicy(), Image: fakeImage{},
		RuntimeDir: t.TempDir(), MemoryBudget: glovebox.GiB})
	if err != nil {
		t.Fatal(err)
	}
	e.network = net.network()
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		ways, netds := net.left()
		if live := fake.Live(); ways+netds+len(live) > 0 || !net.closed {
			t.Errorf("left: %d ways, %d netds, sandboxes %v; closed: %v", ways, netds, live, net.closed)
		}
	})
	return e, net
}

var allowGood = glovebox.Request{Code: "print(1)", Allow: []string{"good.test"}}

// seen waits until a sink has heard of some flows.
type flowSink struct {
	mu   sync.Mutex
	list []glovebox.EgressFlow
	more chan struct{}
}

func (s *flowSink) Event(e glovebox.Event) {
	if e.Kind != "egress" {
		return
	}
	s.mu.Lock()
	s.list = append(s.list, e.Egress)
	s.mu.Unlock()
	s.more <- struct{}{}
}

// TestEgress: a run that is granted a way out has it, from before its code until its end; its decisions are told as they
// happen, in the result, and in the record.
func TestEgress(t *testing.T) {
	fake := &drivertest.Fake{Program: waits}
	e, net := newAllowing(t, fake, func(f *fakeNetwork) {
		f.allows = []glovebox.EgressFlow{flowGood, flowEvil, flowEvil}
		f.usage = gateway.Usage{BytesUp: 30, BytesDown: 12}
	})
	var began []string
	var env []string
	fake.Program = func(ctx context.Context, p *drivertest.Proc) driver.Exit {
		began, env = fake.Calls(), p.Command.Env
		if ways, netds := net.left(); ways != 1 || netds != 1 {
			t.Errorf("the program runs with %d ways and %d netds", ways, netds)
		}
		return waits(ctx, p)
	}
	sink := &flowSink{more: make(chan struct{}, 16)}
	in, feed := io.Pipe()
	req := allowGood
	req.Env, req.StdinFrom = map[string]string{"TOKEN": "mine"}, in
	go func() {
		for range 3 {
			<-sink.more
		}
		feed.Close()
	}()
	res, err := e.Run(t.Context(), owner, req, sink)
	if err != nil {
		t.Fatal(err)
	}
	if attach, exec := slices.Index(began, "attach"), slices.Index(began, "exec"); attach < 0 || exec < attach {
		t.Errorf("the code came before the network: %v", began)
	}
	for _, want := range []string{"SSL_CERT_FILE=/etc/glovebox/ca.pem", "TOKEN=mine", "HOME=/gateway", "LANG=C.UTF-8"} {
		if !slices.Contains(env, want) {
			t.Errorf("the environment %v lacks %s", env, want)
		}
	}
	evil := flowEvil
	evil.Count = 2
	want := []glovebox.EgressFlow{flowGood, evil}
	if d := cmp.Diff(want, res.Egress); d != "" || *res.Usage.EgressBytes != 42 || len(res.LimitsHit) > 0 || res.Reason != "" {
		t.Errorf("result %+v:\n%s", res, d)
	}
	if d := cmp.Diff([]glovebox.EgressFlow{flowGood, flowEvil, flowEvil}, sink.list); d != "" {
		t.Errorf("heard:\n%s", d)
	}
	rec, err := e.Trace(t.Context(), owner, res.ID)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, rec.Result.Egress); d != "" || len(rec.Decision.Grant.Egress) == 0 || *rec.Result.Usage.EgressBytes != 42 {
		t.Errorf("recorded %+v:\n%s", rec.Decision, d)
	}
}

// TestNoEgress: without a grant nothing of a network is touched, and zero bytes are known to have left.
func TestNoEgress(t *testing.T) {
	fake := &drivertest.Fake{Program: waits}
	e, net := newAllowing(t, fake, nil)
	res, err := e.Run(t.Context(), owner, glovebox.Request{Code: "print(1)"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if net.begun > 0 || slices.Contains(fake.Calls(), "attach") || *res.Usage.EgressBytes != 0 || len(res.Egress) > 0 {
		t.Errorf("%d ways, calls %v, result %+v", net.begun, fake.Calls(), res)
	}
}

// TestEgressRefused: what cannot be given a way out is refused by name, and nothing runs.
func TestEgressRefused(t *testing.T) {
	absent := glovebox.Errorf(glovebox.CodeUnavailable, "put it there", "glovebox-netd is missing")
	for name, c := range map[string]struct {
		change func(*Engine, *fakeNetwork)
		code   glovebox.Code
		says   string
	}{
		"no gateway":  {func(e *Engine, _ *fakeNetwork) { e.network = nil }, glovebox.CodeUnavailable, "no gateway"},
		"no netd":     {func(_ *Engine, f *fakeNetwork) { f.absent = absent }, glovebox.CodeUnavailable, "glovebox-netd"},
		"no way":      {func(_ *Engine, f *fakeNetwork) { f.fail = failAt("way", absent) }, glovebox.CodeUnavailable, "glovebox-netd"},
		"netd fails":  {func(_ *Engine, f *fakeNetwork) { f.fail = failAt("netd", absent) }, glovebox.CodeUnavailable, "glovebox-netd"},
		"link fails":  {func(_ *Engine, f *fakeNetwork) { f.fail = failAt("link", errPlanned) }, glovebox.CodeInternal, "failed"},
		"not allowed": {func(*Engine, *fakeNetwork) {}, glovebox.CodeDenied, "other.test"},
	} {
		t.Run(name, func(t *testing.T) {
			fake := &drivertest.Fake{Program: func(context.Context, *drivertest.Proc) driver.Exit {
				t.Error("it runs")
				return driver.Exit{}
			}}
			e, net := newAllowing(t, fake, nil)
			was := e.network
			c.change(e, net)
			req := allowGood
			who := owner
			if name == "not allowed" {
				req.Allow, who.Owner = []string{"other.test"}, false
			}
			res, err := e.Run(t.Context(), who, req, nil)
			var told *glovebox.Error
			if !errors.As(err, &told) || told.Code != c.code || !strings.Contains(told.Public, c.says) || told.Fix == "" {
				t.Errorf("%v, %#v", res, err)
			}
			e.network = was
		})
	}
}

func failAt(step string, err error) func(string) error {
	return func(s string) error {
		if s == step {
			return err
		}
		return nil
	}
}

// TestAttachFails: a sandbox that cannot be given its network is closed, and its code is not run in it.
func TestAttachFails(t *testing.T) {
	fake := &drivertest.Fake{Program: func(context.Context, *drivertest.Proc) driver.Exit {
		t.Error("it runs")
		return driver.Exit{}
	}, Fail: failAt("attach", glovebox.Errorf(glovebox.CodeUnavailable, "modprobe tun", "there is no /dev/net/tun"))}
	e, _ := newAllowing(t, fake, nil)
	_, err := e.Run(t.Context(), owner, allowGood, nil)
	var told *glovebox.Error
	if !errors.As(err, &told) || told.Code != glovebox.CodeUnavailable || told.Fix != "modprobe tun" {
		t.Errorf("%#v", err)
	}
}

// TestNetdDies: the sandbox has no network then, its run goes on, and the result says so.
func TestNetdDies(t *testing.T) {
	e, _ := newAllowing(t, &drivertest.Fake{Program: func(ctx context.Context, p *drivertest.Proc) driver.Exit {
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
		fmt.Fprint(p.Stdout, "done")
		return driver.Exit{}
	}}, func(f *fakeNetwork) { f.dies = true })
	res, err := e.Run(t.Context(), owner, allowGood, nil)
	if err != nil || !res.OK || res.Stdout != "done" || !strings.Contains(res.Reason, "network ended") {
		t.Errorf("%+v, %v", res, err)
	}
}

// TestEgressLimit: nothing passes any more, the program goes on, and the result names the limit.
func TestEgressLimit(t *testing.T) {
	e, _ := newAllowing(t, &drivertest.Fake{Program: waits}, func(f *fakeNetwork) {
		f.usage = gateway.Usage{BytesUp: 1 << 20, LimitHit: true}
	})
	req := allowGood
	req.Limits.Egress = glovebox.MiB
	res, err := e.Run(t.Context(), owner, req, nil)
	if err != nil || !res.OK || !slices.Equal(res.LimitsHit, []string{"egress"}) || !strings.Contains(res.Reason, "--egress-limit") {
		t.Errorf("%+v, %v", res, err)
	}
}

// TestNetdMemory: a netd counts as what its run takes, until it is gone.
func TestNetdMemory(t *testing.T) {
	fake := &drivertest.Fake{}
	e, net := newAllowing(t, fake, nil)
	memory, err := e.memory()
	if err != nil {
		t.Fatal(err)
	}
	req := allowGood
	req.Limits.Memory, req.Limits.Disk = 100*glovebox.MiB, glovebox.MiB
	fake.Program = func(ctx context.Context, p *drivertest.Proc) driver.Exit {
		if held, err := memory.Taken(); err != nil || held != 100*glovebox.MiB+netjail.Memory {
			t.Errorf("%v is held (%v)", held, err)
		}
		return driver.Exit{}
	}
	if _, err := e.Run(t.Context(), owner, req, nil); err != nil {
		t.Fatal(err)
	}
	e.removing.Wait()
	if held, err := memory.Taken(); err != nil || held != 0 {
		t.Errorf("%v is held after it (%v)", held, err)
	}
	net.fail = failAt("netd close", errPlanned)
	if _, err := e.Run(t.Context(), owner, req, nil); err != nil {
		t.Fatal(err)
	}
	e.removing.Wait()
	if held, err := memory.Taken(); err != nil || held != 100*glovebox.MiB+netjail.Memory {
		t.Errorf("%v is held while a netd may live (%v)", held, err)
	}
	req.Limits.Memory = glovebox.GiB - netjail.Memory + glovebox.MiB
	var told *glovebox.Error
	if _, err := e.Run(t.Context(), owner, req, nil); !errors.As(err, &told) || told.Code != glovebox.CodeUnavailable {
		t.Errorf("a run that does not fit with its netd: %v", err)
	}
}

// TestWarmEgress: a sandbox that was ready before anybody asked is given its network when it is lent; and where its
// interpreter would not see a variable of the way the run starts cold.
func TestWarmEgress(t *testing.T) {
	for _, c := range []struct {
		name, env, want string
	}{{"ready", "SSL_CERT_FILE=/etc/glovebox/ca.pem", "fork"}, {"read at start", "OMP_NUM_THREADS=1", "cold"}} {
		t.Run(c.name, func(t *testing.T) {
			net := newFakeNetwork(func(string) error { return nil })
			net.env = []string{c.env}
			w := newWarm(t, nil, func(c *Config) {
				c.Policy, c.Network = egressPolicy(), Network{Jail: c.Drivers[0], Gateway: func() (*gateway.Gateway, error) { return nil, errPlanned }}
			})
			w.network = net.network()
			for range 3 {
				w.settle()
				if res := w.run(allowGood); res.Start != c.want || !res.OK {
					t.Errorf("%+v", res)
				}
			}
			w.removing.Wait()
			if ways, netds := net.left(); ways+netds > 0 || net.begun != 3 {
				t.Errorf("%d ways of %d and %d netds are left", ways, net.begun, netds)
			}
		})
	}
}

// TestSpareWithoutNetwork: where a sandbox that was ready fails before its code is in it, the run starts cold, with a network
// of its own: a netd has one link.
func TestSpareWithoutNetwork(t *testing.T) {
	for _, step := range []string{"attach", "exec", "link"} {
		t.Run(step, func(t *testing.T) {
			var mu sync.Mutex
			failed := false
			once := func(s string) error {
				mu.Lock()
				defer mu.Unlock()
				if s != step || failed {
					return nil
				}
				failed = true
				return errPlanned
			}
			net := newFakeNetwork(once)
			net.env = []string{"X=y"}
			w := newWarm(t, nil, func(c *Config) {
				c.Policy, c.Network = egressPolicy(), Network{Jail: c.Drivers[0], Gateway: func() (*gateway.Gateway, error) { return nil, errPlanned }}
			})
			w.network = net.network()
			w.failing(once)
			net.allows = []glovebox.EgressFlow{flowGood}
			res := w.run(allowGood)
			if !res.OK || res.Start != "cold" || net.begun != 2 || !failed {
				t.Errorf("%+v after %d ways", res, net.begun)
			}
			w.removing.Wait()
			if ways, netds := net.left(); ways+netds > 0 {
				t.Errorf("%d ways and %d netds are left", ways, netds)
			}
		})
	}
}

// TestLent: what a run is lent is in its environment in place of what the request says, and is taken back at its end.
func TestLent(t *testing.T) {
	e, net := newAllowing(t, &drivertest.Fake{}, nil)
	r := &run{Engine: e, id: "run_1", image: fakeImage{}, req: glovebox.Request{Env: map[string]string{"TOKEN": "mine", "HOME": "/mine"}},
		decision: glovebox.Decision{Grant: glovebox.Grant{Secrets: []glovebox.SecretRef{{Name: "TOKEN", Host: "good.test"}}}}}
	if err := errors.Join(r.canOpen(t.Context()), r.openWay(t.Context())); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"TOKEN=placeholder", "HOME=/mine", "SSL_CERT_FILE=/etc/glovebox/ca.pem"} {
		if !slices.Contains(r.command.Env, want) {
			t.Errorf("the environment %v lacks %s", r.command.Env, want)
		}
	}
	if net.lent != 1 {
		t.Errorf("%d are lent", net.lent)
	}
	if err := r.undo.Run(t.Context()); err != nil || net.lent != 0 {
		t.Errorf("%d are lent still (%v)", net.lent, err)
	}
	e.network.lend = nil
	var told *glovebox.Error
	if err := r.canOpen(t.Context()); !errors.As(err, &told) || told.Code != glovebox.CodeUnavailable {
		t.Errorf("without a broker: %v", err)
	}
}

// TestEndedByPlaceholder: a placeholder where it may not go ends its run, where that is configured, as the policy's doing.
func TestEndedByPlaceholder(t *testing.T) {
	e, _ := newAllowing(t, &drivertest.Fake{Program: func(ctx context.Context, _ *drivertest.Proc) driver.Exit {
		<-ctx.Done()
		return driver.Exit{}
	}}, func(f *fakeNetwork) { f.ends = true })
	res, err := e.Run(t.Context(), owner, allowGood, nil)
	if err != nil || res.Status != glovebox.StatusPolicy || !strings.Contains(res.Reason, "placeholder") {
		t.Errorf("%+v, %v", res, err)
	}
}

// TestRemoteHasNoWay: the other Glovebox judges by rules of its own, so that nothing that was granted a way out goes there:
// it is refused by name, and the other hears nothing of it.
func TestRemoteHasNoWay(t *testing.T) {
	here := egressPolicy()
	here.Remote = glovebox.IsolationProcess
	e, other := twoEngines(t, &drivertest.Fake{}, here, egressPolicy())
	req := allowGood
	req.Isolation = glovebox.IsolationRemote
	_, err := e.Run(t.Context(), owner, req, nil)
	var told *glovebox.Error
	if !errors.As(err, &told) || told.Code != glovebox.CodeUnavailable || !strings.Contains(told.Public, "way out") || told.Fix == "" {
		t.Errorf("%#v", err)
	}
	if n := other.asked.Load(); n > 0 {
		t.Errorf("the other was asked %d times", n)
	}
	records, err := e.Traces(t.Context(), owner, glovebox.TraceQuery{})
	if err != nil || len(records) != 1 || records[0].State != "refused" || len(records[0].Decision.Grant.Egress) == 0 {
		t.Errorf("recorded %+v (%v)", records, err)
	}
}

// TestRemoteFlows: what the other says of egress can act on no terminal here.
func TestRemoteFlows(t *testing.T) {
	e, f := twoEngines(t, &drivertest.Fake{}, policy.Config{}, policy.Config{})
	evil := "\x1b[2J"
	f.run = func(ctx context.Context, who glovebox.Principal, req glovebox.Request, sink glovebox.Sink) (*glovebox.Result, error) {
		res, err := f.Engine.Run(ctx, who, req, sink)
		if err == nil {
			res.Egress = []glovebox.EgressFlow{{Host: evil, Reason: evil, Layer: evil, Rule: evil, Method: evil, Path: evil}}
		}
		return res, err
	}
	res, err := e.Run(t.Context(), owner, glovebox.Request{Code: "x", Trust: "model", Isolation: "remote"}, nil)
	if err != nil || len(res.Egress) != 1 {
		t.Fatal(res, err)
	}
	if said := fmt.Sprintf("%+v", res.Egress[0]); strings.Contains(said, "\x1b") {
		t.Errorf("%q", said)
	}
}
