package lease

import (
	"context"
	"errors"
	"time"

	"glovebox"
	"glovebox/driver"
	"glovebox/internal/admission"
)

// When a template is replaced: all its forks share what an interpreter fixes at its start, and the more of them there were
// the more could be learnt of that.
const (
	templateUses  = 200
	templateFails = 3 // in a row
)

// template is an interpreter of which spares are forks. The pool's mutex guards what changes.
type template struct {
	id, inputs string
	box        driver.Template
	remove     func(context.Context) error
	share      *admission.Share
	memory     glovebox.Size
	born       time.Time
	uses       int // forks that were begun
	live       int // those of them that are not closed
	closing    bool
}

// spent tells that nothing more is forked from it.
func (t *template) spent(now time.Time) bool {
	return t.uses >= templateUses || now.Sub(t.born) >= maxAge || over(t.box.Ended())
}

// worn tells that the next one should be made: on a busy machine that takes as long as most of the uses that are left.
func (t *template) worn(now time.Time) bool {
	return t.uses >= templateUses/8 || now.Sub(t.born) >= maxAge*3/4
}

// brew begins to make a template; p.mu is held.
func (p *Pool) brew(s *shelf) {
	p.brewing, s.brewing = true, true
	memory := s.size.Template
	past := p.mayPass(memory)
	t := &template{id: newID(), memory: memory, share: p.claim(memory)}
	p.work.Go(func() {
		err := p.buildTemplate(&s.kind, t, past)
		p.mu.Lock()
		defer p.mu.Unlock()
		defer p.stir()
		p.brewing, s.brewing = false, false
		now := time.Now()
		if err != nil {
			p.settle(t.share, memory, errors.Is(err, driver.ErrLeftBehind))
			if errors.Is(err, driver.ErrNoTemplates) && !p.closed {
				s.held = true
				p.log.Warn("nothing can be forked here: each spare loads its modules itself", append(s.attrs(), "err", err)...)
				return
			}
			p.failed(s, &s.templateTries, now, "make a template", err)
			return
		}
		t.born = now
		s.templateTries = tries{}
		if s.template == nil {
			s.template = t
		} else {
			s.next = t
		}
		if p.closed || s.gone || s.target == 0 {
			p.retireAll(s)
			return
		}
		if s.next == nil {
			p.provide(memory)
		}
	})
}

// provide holds memory for the successor of a template, while there is some: once runs wait for memory there is none,
// and all would start cold when the template is used up. p.mu is held.
func (p *Pool) provide(memory glovebox.Size) {
	if p.reserves(memory) || !p.mayPass(memory) {
		return
	}
	share, err := p.cfg.Memory.Try(memory, false)
	if err != nil || share == nil {
		return // its time may come when the template is closed
	}
	p.held += memory
	p.reserve = append(p.reserve, reserved{share, memory})
}

func (p *Pool) buildTemplate(kind *Kind, t *template, past bool) (err error) {
	ctx, stop := context.WithTimeout(p.life, brewLimit)
	defer stop()
	if t.share == nil {
		if t.share, err = p.take(t.memory, past); err != nil {
			return err
		}
	}
	if t.inputs, t.remove, err = p.cfg.Inputs(ctx, t.id, ""); err != nil {
		return err
	}
	spec := driver.Spec{ID: t.id, Limits: kind.Limits, Root: kind.Root, Inputs: t.inputs,
		Network: kind.Network}
	spec.Limits.Memory = t.memory
	hold := kind.Hold
	hold.Memory = kind.Driver.Sizes(kind.Hold).Copy
	if t.box, err = kind.Driver.Template(ctx, spec, hold); err != nil {
		return errors.Join(err, p.undo(t.remove))
	}
	return nil
}

// renew retires a shelf's template if it is spent; p.mu is held.
func (p *Pool) renew(s *shelf, now time.Time) {
	if s.template != nil && s.template.spent(now) {
		p.retire(s)
	}
}

// retireAll retires a shelf's template and its successor; p.mu is held.
func (p *Pool) retireAll(s *shelf) {
	p.retire(s)
	p.retire(s)
}

// retire forks no more from a shelf's template, whose successor takes its place, if there is one. It is closed after the
// last of its forks; p.mu is held.
func (p *Pool) retire(s *shelf) {
	t := s.template
	if t == nil {
		return
	}
	s.template, s.next = s.next, nil
	p.retired[t] = struct{}{}
	if t.live == 0 {
		p.closeTemplate(t)
	}
}

// leave says that a fork is closed; p.mu is held.
func (p *Pool) leave(t *template) {
	t.live--
	if _, retired := p.retired[t]; retired && t.live == 0 {
		p.closeTemplate(t)
	}
}

// closeTemplate closes a retired template; p.mu is held.
func (p *Pool) closeTemplate(t *template) {
	if t.closing {
		return
	}
	t.closing = true
	p.work.Go(func() {
		err := p.undo(func(ctx context.Context) error { return errors.Join(t.box.Close(ctx), t.remove(ctx)) })
		p.mu.Lock()
		defer p.mu.Unlock()
		if err != nil {
			p.log.Error("close a template: its memory stays taken", "id", t.id, "err", err)
		}
		delete(p.retired, t)
		if err == nil && !p.closed && time.Now().After(p.dry) {
			p.reserve = append(p.reserve, reserved{t.share, t.memory}) // for its successor, if one is missing
		} else {
			p.settle(t.share, t.memory, err != nil)
		}
		p.stir()
	})
}
