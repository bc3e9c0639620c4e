package lease

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strings"
	"time"

	"glovebox"
	"glovebox/driver"
	"glovebox/internal/admission"
)

// errNoRoom says that there is no memory for a spare now, which is no failure.
var errNoRoom = errors.New("no memory is free for it")

// spare is a sandbox that waits.
type spare struct {
	id, inputs, start string
	box               driver.HeldSandbox
	remove            func(context.Context) error // the folder
	share             *admission.Share            // nil once it was given out
	memory            glovebox.Size               // that it may have
	held              glovebox.Size               // that is held for it, with what it takes beside
	of                *template
	born              time.Time
	left              chan struct{} // closed when it is on no shelf any more
}

// close ends the sandbox, then removes its folder.
func (sp *spare) close(ctx context.Context) error {
	return errors.Join(sp.box.Close(ctx), sp.remove(ctx))
}

// reserved is memory that is held for a spare to be.
type reserved struct {
	share  *admission.Share
	memory glovebox.Size
}

// make begins to make a spare; p.mu is held.
func (p *Pool) make(s *shelf) {
	sp := &spare{id: newID(), start: "spare", memory: s.memory(), held: s.holds(), left: make(chan struct{})}
	if s.forks() {
		sp.start, sp.of = s.template.box.Origin(), s.template
		sp.of.uses++
		sp.of.live++
	}
	past := p.mayPass(sp.held)
	sp.share = p.claim(sp.held)
	s.making++
	p.making++
	p.there++
	p.work.Go(func() {
		begun := time.Now()
		err := p.build(&s.kind, sp, past)
		p.mu.Lock()
		defer p.mu.Unlock()
		defer p.stir()
		now := time.Now()
		s.making--
		p.making--
		if !s.urgent(now) {
			p.rest = now.Add(pauses * now.Sub(begun))
		}
		if err != nil {
			p.there--
			p.spareFailed(s, now, "make a spare", err)
			if sp.of != nil {
				p.leave(sp.of)
			}
			p.settle(sp.share, sp.held, errors.Is(err, driver.ErrLeftBehind))
			return
		}
		sp.born = now
		p.counts.Made++
		p.place(s, sp, now)
	})
}

// build makes sp. On error all but its memory is given back.
func (p *Pool) build(kind *Kind, sp *spare, past bool) (err error) {
	ctx, stop := context.WithTimeout(p.life, makeLimit)
	defer stop()
	if sp.share == nil {
		if sp.share, err = p.take(sp.held, past); err != nil {
			return err
		}
	}
	return p.assemble(ctx, kind, sp)
}

// assemble makes sp's folder and sandbox. On error both are given back.
func (p *Pool) assemble(ctx context.Context, kind *Kind, sp *spare) (err error) {
	below := ""
	if sp.of != nil {
		below = sp.of.inputs
	}
	if sp.inputs, sp.remove, err = p.cfg.Inputs(ctx, sp.id, below); err != nil {
		return err
	}
	spec := driver.Spec{ID: sp.id, Limits: kind.Limits, Root: kind.Root, Inputs: sp.inputs, Network: kind.Network}
	if sp.of != nil {
		sp.box, err = sp.of.box.Fork(ctx, spec)
	} else {
		hold := kind.Hold
		hold.Memory = sp.memory
		sp.box, err = kind.Driver.Hold(ctx, spec, hold)
	}
	if err != nil {
		return errors.Join(err, p.undo(sp.remove))
	}
	return nil
}

// place puts a new spare on its shelf, if it is wanted any more; p.mu is held.
func (p *Pool) place(s *shelf, sp *spare, now time.Time) {
	switch {
	case p.closed:
		p.discard(s, sp, "closed")
		return
	case s.gone || s.target == 0:
		p.discard(s, sp, "idle")
		return
	}
	s.spares = append(s.spares, sp)
	p.work.Go(func() {
		select {
		case <-sp.left:
			return
		case <-sp.box.Lost():
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		for i, other := range s.spares {
			if other == sp {
				s.spares = append(s.spares[:i], s.spares[i+1:]...)
				p.discard(s, sp, "lost")
				p.spareFailed(s, time.Now(), "keep a spare", errors.New("its interpreter has ended"))
				p.stir()
				return
			}
		}
	})
	p.prune(s, now)
}

// discard closes a spare that is on no shelf; p.mu is held.
func (p *Pool) discard(s *shelf, sp *spare, reason string) {
	close(sp.left)
	p.counts.Discarded[reason]++
	p.work.Go(func() {
		err := p.undo(sp.close)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.there--
		if err != nil {
			p.log.Error("close a spare: its memory stays taken", append(s.attrs(), "id", sp.id, "err", err)...)
		}
		if sp.of != nil {
			p.leave(sp.of)
		}
		p.settle(sp.share, sp.held, err != nil)
		p.stir()
	})
}

// spareFailed counts a spare that could not be made or kept, which may be its template's fault; p.mu is held.
func (p *Pool) spareFailed(s *shelf, now time.Time, what string, err error) {
	p.failed(s, &s.spareTries, now, what, err)
	if n := s.spareTries.failures; n > 0 && n%templateFails == 0 {
		p.retire(s)
	}
}

// failed counts what could not be made, and tells the first of a row; p.mu is held.
func (p *Pool) failed(s *shelf, t *tries, now time.Time, what string, err error) {
	switch {
	case p.closed:
		return
	case errors.Is(err, errNoRoom):
		t.noRoom = now.Add(noRoomPause)
		return
	}
	p.counts.Failed++
	t.note(now)
	attrs := append(s.attrs(), "err", err)
	if t.failures == 1 {
		p.log.Warn(what+": runs start cold meanwhile", attrs...)
		return
	}
	p.log.Debug(what, attrs...)
}

// take takes memory of the budget.
func (p *Pool) take(memory glovebox.Size, past bool) (*admission.Share, error) {
	share, err := p.cfg.Memory.Try(memory, past)
	if err == nil && share == nil {
		err = errNoRoom
	}
	return share, err
}

// settle gives memory back, unless something that had it may still live; p.mu is held.
func (p *Pool) settle(share *admission.Share, memory glovebox.Size, lives bool) {
	if lives {
		return
	}
	p.held -= memory
	if share != nil {
		if err := share.Release(); err != nil {
			p.log.Error("give back memory", "err", err)
		}
	}
}

// freeReserve gives what is in reserve back, for the next templates only if that is said, and tells how much it was.
func (p *Pool) freeReserve(templates bool) (freed glovebox.Size) {
	now, keep := time.Now(), map[glovebox.Size]int{}
	for _, s := range p.shelves {
		if !templates && s.forks() && s.urgent(now) && s.next == nil {
			keep[s.size.Template]++
		}
	}
	p.reserve = slices.DeleteFunc(p.reserve, func(r reserved) bool {
		if keep[r.memory]--; keep[r.memory] >= 0 {
			return false
		}
		freed += r.memory
		p.settle(r.share, r.memory, false)
		return true
	})
	return freed
}

// undo runs what gives something back, whatever ends meanwhile.
func (p *Pool) undo(what func(context.Context) error) error {
	ctx, stop := context.WithTimeout(context.WithoutCancel(p.life), closeLimit)
	defer stop()
	return what(ctx)
}

// newID is unlike that of any run.
func newID() string { return "spare_" + strings.ToLower(rand.Text()) }
