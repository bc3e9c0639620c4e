package cgroup

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"glovebox"

	"github.com/google/go-cmp/cmp"
)

func TestJoin(t *testing.T) {
	g := newGroup(t, needRoot(t), small())
	cmd, out := member(t, g, "groups")
	if err := cmd.Run(); err != nil {
		t.Fatal(err, out)
	}
	for _, want := range []string{":memory:", ":pids:", ":cpu:", ":cpuset:", "0::"} {
		if g.host.Mode() == "v2" && want != "0::" {
			continue
		}
		if want == "0::" {
			want += testParent + "/run"
		} else {
			want += testParent
		}
		if !strings.Contains(out.String(), want+"/run\n") {
			t.Errorf("not in %s%s:\n%s", want, testParent, out)
		}
	}
	want1 := "Cpus_allowed_list:\t" + formatCPUs(g.cpus) + "\n"
	if len(g.cpus) == 1 && !strings.Contains(out.String(), want1) {
		t.Errorf("want %q in\n%s", want1, out)
	}
	got, err := g.Limits()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"memory": "67108864", "swap": got["swap"], "pids": "64", "cpu": "1", "cpuset": got["cpuset"]}
	if g.host.Mode() != "v2" {
		want["sockets"] = "16777216" // a quarter of the memory
	}
	if d := cmp.Diff(want, got); d != "" || got["swap"] != "0" && got["swap"] != "none" {
		t.Errorf("limits (-want +got):\n%s", d)
	}
}

func TestOutOfMemory(t *testing.T) {
	g := newGroup(t, needRoot(t), small())
	cmd, out := member(t, g, "memory")
	err := cmd.Run()
	if cmd.ProcessState == nil || cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("ended with %v, want a kill; %s", err, out)
	}
	s, err := g.Sample()
	// Charges that must not fail, such as a dying process's page tables, pass the limit by some pages.
	const forced = 1 << 20
	if err != nil || s.OOMKills < 1 || s.OOMOutside != 0 || s.MemoryPeak < 60<<20 || s.MemoryPeak > 64<<20+forced || s.CPU <= 0 {
		t.Errorf("sample %+v, %v", s, err)
	}
}

// TestOutOfMemoryAbove kills at the limit of the group above: that is not the run's doing.
func TestOutOfMemoryAbove(t *testing.T) {
	l := small()
	l.Memory = 512 << 20
	g := newGroup(t, needRoot(t), l)
	p := g.host.places["memory"]
	file := "memory.limit_in_bytes"
	if p.v2 {
		file = "memory.max"
		// Nothing swaps, or it would take the machine's swap to fill the group above.
		if err := write(p.dir+testParent, "memory.swap.max", "0"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	if err := write(p.dir+testParent, file, "67108864"); err != nil {
		t.Fatal(err)
	}
	cmd, out := member(t, g, "memory")
	if err := cmd.Run(); cmd.ProcessState == nil || cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("ended with %v, want a kill; %s", err, out)
	}
	if s, err := g.Sample(); err != nil || s.OOMKills != 0 || s.OOMOutside < 1 {
		t.Errorf("sample %+v, %v", s, err)
	}
}

func TestProcessLimit(t *testing.T) {
	l := small()
	l.Processes, l.Memory = 40, 512<<20
	g := newGroup(t, needRoot(t), l)
	cmd, out := member(t, g, "forks")
	if err := cmd.Run(); err != nil && !strings.Contains(out.String(), "refused") {
		t.Logf("%v", err) // the runtime of the member may itself have been refused a thread
	}
	s, err := g.Sample()
	if err != nil || s.ForksRefused < 1 || s.ProcessesPeak > 40 && s.ProcessesPeak >= 0 {
		t.Errorf("sample %+v, %v; %s", s, err, out)
	}
}

func TestCPUQuota(t *testing.T) {
	l := small()
	l.CPUs = 0.2
	g := newGroup(t, needRoot(t), l)
	cmd, out := member(t, g, "spin")
	start := time.Now()
	if err := cmd.Run(); err != nil {
		t.Fatal(err, out)
	}
	took := time.Since(start)
	s, err := g.Sample()
	if err != nil || s.CPU <= 0 || float64(s.CPU) > 0.2*float64(took)+float64(60*time.Millisecond) {
		t.Errorf("%v of CPU in %v, %v", s.CPU, took, err)
	}
	if got, err := g.Limits(); err != nil || got["cpu"] != "0.2" {
		t.Errorf("limits %v, %v", got, err)
	}
}

func TestKill(t *testing.T) {
	freezerOnly := func(h *Host) bool {
		p, ok := h.places["freezer"]
		if !ok || p.v2 {
			return false
		}
		h.unified = nil
		return true
	}
	for name, c := range map[string]struct {
		change func(h *Host) bool
		kill   func(g *Group, ctx context.Context) error
	}{
		"as the machine does":       {func(*Host) bool { return true }, (*Group).Kill},
		"freezer of version 1":      {freezerOnly, (*Group).Kill},
		"freezing without kill":     {func(h *Host) bool { return h.unified != nil }, (*Group).killWithout},
		"freezer without version 2": {freezerOnly, (*Group).killWithout},
	} {
		t.Run(name, func(t *testing.T) {
			h := needRoot(t)
			if !c.change(h) {
				t.Skip("not on a machine of version 2 alone or version 1 alone")
			}
			l := small()
			l.Memory, l.Processes = 512<<20, 200
			g := newGroup(t, h, l)
			cmd, out := member(t, g, "tree0")
			if err := cmd.Run(); err != nil {
				t.Fatal(err, out)
			}
			time.Sleep(50 * time.Millisecond)
			if empty, err := g.Empty(); empty || err != nil {
				t.Fatalf("empty %v, %v before the kill", empty, err)
			}
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			start := time.Now()
			if err := c.kill(g, ctx); err != nil {
				t.Fatal(err)
			}
			t.Logf("killed in %v", time.Since(start))
			if n := g.count(); n != 0 {
				t.Errorf("%d processes left", n)
			}
			if err := g.Kill(ctx); err != nil {
				t.Errorf("kill again: %v", err)
			}
		})
	}
}

func (g *Group) killWithout(ctx context.Context) error {
	p, _ := g.host.killer()
	return g.killFrozen(ctx, p)
}

func TestKillIsNotForOthers(t *testing.T) {
	h := needRoot(t)
	g := newGroup(t, h, small())
	bystander := exec.Command("/proc/self/exe")
	bystander.Env = []string{roleEnv + "=sleep"}
	bystander.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := bystander.Start(); err != nil {
		t.Fatal(err)
	}
	defer bystander.Wait()
	defer bystander.Process.Kill()
	cmd, _ := member(t, g, "sleep")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for !joined(g) {
		time.Sleep(time.Millisecond)
	}
	if err := g.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	if err := bystander.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the bystander: %v", err)
	}
}

func TestBornInside(t *testing.T) {
	h := needRoot(t)
	if h.unified == nil {
		t.Skip("no version 2 hierarchy here")
	}
	g := newGroup(t, h, small())
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{roleEnv + "=groups"}
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(g.Unified().Fd())}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "0::"+testParent+"/run/run\n") {
		t.Errorf("%v: %s", err, out)
	}
}

func TestRemove(t *testing.T) {
	h := needRoot(t)
	g := newGroup(t, h, small())
	cmd, _ := member(t, g, "sleep")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for !joined(g) {
		time.Sleep(time.Millisecond)
	}
	late, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := g.Remove(late); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("remove with a member inside: %v", err)
	}
	if _, err := limited(h, testParent, "run", small()); !isCode(err, glovebox.CodeConflict) {
		t.Errorf("same name again: %v", err)
	}
	if err := h.Sweep(testParent, func(string) bool { return false }); err == nil {
		t.Error("sweep says nothing of a group with processes")
	}
	if err := g.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	for range 2 {
		if err := g.Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := g.Sample(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("sample of what was removed: %v", err)
	}
	if len(h.load) != 0 {
		t.Errorf("CPUs still counted: %v", h.load)
	}
}

// joined reports whether a member is in every group.
func joined(g *Group) bool {
	for _, dir := range g.dirs {
		if pids, err := members(dir); err != nil || len(pids) == 0 {
			return false
		}
	}
	return true
}

func TestSweep(t *testing.T) {
	h := needRoot(t)
	for _, name := range []string{"old", "live"} {
		g, err := limited(h, testParent, name, small())
		if err != nil {
			t.Fatal(err)
		}
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
	}
	left := func() (names []string) {
		for _, p := range h.hierarchies() {
			for _, name := range []string{"old", "live"} {
				if _, err := os.Stat(p.dir + testParent + "/" + name); err == nil {
					names = append(names, name)
				}
			}
		}
		return names
	}
	if err := h.Sweep(testParent, func(name string) bool { return name == "live" }); err != nil {
		t.Fatal(err)
	}
	if got := left(); len(got) != len(h.hierarchies()) || got[0] != "live" {
		t.Errorf("left after a sweep: %v", got)
	}
	if err := h.Sweep(testParent, func(string) bool { return false }); err != nil {
		t.Fatal(err)
	}
	if got := left(); got != nil {
		t.Errorf("left after the last sweep: %v", got)
	}
}

func isCode(err error, code glovebox.Code) bool {
	var e *glovebox.Error
	return errors.As(err, &e) && e.Code == code
}

func BenchmarkNewRemove(b *testing.B) {
	h := needRoot(b)
	for b.Loop() {
		g, err := limited(h, testParent, "run", small())
		if err != nil {
			b.Fatal(err)
		}
		if err := g.Remove(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSample(b *testing.B) {
	h := needRoot(b)
	g := newGroup(b, h, small())
	for b.Loop() {
		if _, err := g.Sample(); err != nil {
			b.Fatal(err)
		}
	}
}
