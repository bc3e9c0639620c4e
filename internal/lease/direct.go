package lease

import (
	"context"
	"errors"
	"time"

	"glovebox"
	"glovebox/driver"
)

// Fork makes a sandbox of a kind for a run with so much memory that found no spare, where there is a template to fork it
// from: that costs less than half of a start from nothing. It waits for nobody else's. Nil: the run starts cold. Whoever
// has the Lease closes it.
func (p *Pool) Fork(ctx context.Context, kind Kind, memory glovebox.Size) *Lease {
	if ctx.Err() != nil {
		return nil
	}
	sp := &spare{id: newID(), left: make(chan struct{}), born: time.Now()}
	p.mu.Lock()
	s := p.shelves[kind.key()]
	if s != nil {
		p.renew(s, time.Now())
	}
	if p.closed || s == nil || !s.forks() || s.template == nil || s.template.spent(time.Now()) || memory < s.size.Copy {
		p.mu.Unlock()
		return nil
	}
	sp.memory, sp.held = s.size.Copy, s.holds()
	sp.start, sp.of = s.template.box.Origin(), s.template
	sp.of.uses++
	sp.of.live++
	p.out++ // so that Close waits
	p.mu.Unlock()
	// Also when the run is cancelled meanwhile: whoever gives up waiting for a fork may end its template, and with that the
	// sandboxes of other runs.
	making, stop := context.WithTimeout(context.WithoutCancel(ctx), directLimit)
	defer stop()
	err := p.assemble(making, &s.kind, sp)
	lives := errors.Is(err, driver.ErrLeftBehind)
	if lives { // beyond the run and its memory, until the budget's engine is closed
		_, _ = p.take(sp.held, true)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if lives {
		p.held += sp.held
	}
	close(sp.left)
	if err == nil {
		p.counts.Direct++
		return &Lease{Sandbox: sp.box, ID: sp.id, Inputs: sp.inputs, Start: sp.start, pool: p, spare: sp}
	}
	p.spareFailed(s, time.Now(), "fork a sandbox for a run", err)
	p.returned(sp)
	return nil
}

// returned says that a spare which was given out is gone; p.mu is held.
func (p *Pool) returned(sp *spare) {
	if sp.of != nil {
		p.leave(sp.of)
	}
	if p.out--; p.closed && p.out == 0 {
		close(p.none)
	}
	p.stir()
}
