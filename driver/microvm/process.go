package microvm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"

	"glovebox"
	"glovebox/driver"
	"glovebox/internal/guestlink"
)

// process is the program in the guest and all its descendants.
type process struct {
	sandbox        *sandbox
	stdout, stderr *guestlink.Reader
	stdin          *guestlink.Writer // nil when standard input is empty
	released       time.Time
	posture        glovebox.Posture

	before time.Duration // CPU time that the machine had taken before the code was released

	exited chan struct{}
	exit   driver.Exit // only once exited is closed

	mu   sync.Mutex
	last driver.Sample // that the guest told
}

// watch waits for the leader's end, or the machine's.
func (p *process) watch(m *machine) {
	m.work.Go(func() {
		defer close(p.exited)
		ctx, stop := context.WithCancel(context.Background()) // the link's end ends the call
		defer stop()
		if err := m.link.Call(ctx, guestlink.MethodExited, nil, &p.exit); err != nil {
			p.exit = driver.Exit{Lost: true}
			_ = m.link.Close() // an agent that does not know is not what it was, and its machine ends
			return
		}
		p.exit = plausible(p.exit)
	})
}

// plausible is how a leader can have ended, of what the guest says.
func plausible(e driver.Exit) driver.Exit {
	switch {
	case e.Lost, e.Code < 0, e.Code > 255, e.Signal < 0, e.Signal > 64, e.Signal != 0 && e.Code != 0:
		return driver.Exit{Lost: true}
	}
	if len(e.NotStarted) > 1024 {
		e.NotStarted = e.NotStarted[:1024]
	}
	if e.Signal != syscall.SIGSYS {
		e.FenceKill = false
	}
	return e
}

func (p *process) Stdout() io.Reader         { return p.stdout }
func (p *process) Stderr() io.Reader         { return p.stderr }
func (p *process) Exited() <-chan struct{}   { return p.exited }
func (p *process) Exit() driver.Exit         { return p.exit }
func (p *process) Posture() glovebox.Posture { return p.posture }
func (p *process) Released() time.Time       { return p.released }

// over tells whether the leader has ended.
func (p *process) over() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// answerLimit bounds what is asked of an agent that may be busy, or no longer what it was.
func (d *Driver) answerLimit() time.Duration {
	if d.cfg.Emulated {
		return 20 * time.Second
	}
	return 2 * time.Second
}

// Sample asks the guest for the counters of the tree. It cannot have used more CPU time than the whole machine did: what
// the guest's kernel takes for time of the tree while others of the host run is not. Once the machine has ended the
// counters are what they were last, and what the host's kernel killed it for is added.
func (p *process) Sample() (driver.Sample, error) {
	m := p.sandbox.machine
	ctx, cancel := context.WithTimeout(context.Background(), p.sandbox.driver.answerLimit())
	defer cancel()
	var now driver.Sample
	err := m.link.Call(ctx, guestlink.MethodSample, nil, &now)
	if err != nil && m.link.Alive() {
		return driver.Sample{}, fmt.Errorf("read counters: %w", err)
	}
	outer, outerErr := m.process.Sample()
	if outerErr != nil {
		return driver.Sample{}, fmt.Errorf("read counters: %w", outerErr)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		now.CPU = min(now.CPU, max(outer.CPU-p.before, 0))
		p.last = forward(p.last, now)
		return p.last, nil
	}
	s := p.last
	s.Memory, s.Processes = 0, 0
	s.OOMOutside += outer.OOMKills + max(outer.OOMOutside, 0)
	return s, nil
}

// forward is now, without what a guest's kernel does not do: time and counts that fall.
func forward(last, now driver.Sample) driver.Sample {
	now.CPU = max(now.CPU, last.CPU)
	now.MemoryPeak = max(now.MemoryPeak, last.MemoryPeak)
	now.ProcessesPeak = max(now.ProcessesPeak, last.ProcessesPeak)
	now.OOMKills = max(now.OOMKills, last.OOMKills)
	now.OOMOutside = max(now.OOMOutside, last.OOMOutside)
	now.ForksRefused = max(now.ForksRefused, last.ForksRefused)
	return now
}

// Kill has the agent end the tree. An agent that does not do that in time loses its machine, which ends everything in it.
func (p *process) Kill(ctx context.Context) error {
	m := p.sandbox.machine
	ask, cancel := context.WithTimeoutCause(ctx, p.sandbox.driver.answerLimit(), errors.New("the guest did not answer in time"))
	defer cancel()
	if m.link.Alive() {
		if err := m.link.Call(ask, guestlink.MethodKill, nil, nil); err == nil {
			return nil
		}
	}
	undo, stop := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
	defer stop()
	return m.kill(undo)
}

// posture is what is in force: of the machine, of QEMU as its jail read it back, and of the program as the guest did.
func (s *sandbox) posture(inside glovebox.Posture) glovebox.Posture {
	p := glovebox.Posture{"rung": string(glovebox.IsolationMicroVM), "machine": "QEMU microvm, its own kernel",
		"guest_kernel": s.kernel, "acceleration": "kvm", "lifeline": "held"}
	if s.driver.cfg.Emulated {
		p["acceleration"] = "emulated: no security boundary"
	}
	for k, v := range s.machine.process.Posture() {
		p["jail_"+k] = v
	}
	maps.Copy(p, told(inside))
	return p
}

// told is what a guest says, as far as an agent of ours could say it.
func told(inside glovebox.Posture) glovebox.Posture {
	unprintable := func(r rune) bool { return r == utf8.RuneError || !unicode.IsPrint(r) }
	p, n := glovebox.Posture{}, 0
	for k, v := range inside {
		if n++; n > 64 || len(k) > 64 || len(v) > 512 || strings.ContainsFunc(k+v, unprintable) || k == "rung" {
			continue
		}
		p["guest_"+k] = v
	}
	return p
}
