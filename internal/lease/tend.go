package lease

import (
	"slices"
	"time"

	"glovebox"
	"glovebox/internal/admission"
)

// What runs that wait for memory get from the pool, and when. Runs wait for each other mostly, and longer if they all have
// to start cold.
const (
	grace    = 250 * time.Millisecond // then one gets the memory of what nobody asks for
	patience = 2 * time.Second        // then that of all
	respite  = 2 * time.Second        // in which nothing is made after that
	stranger = 512 * glovebox.MiB     // given to a run of another process, which does not say what it needs
)

// wait is a run that waits for memory.
type wait struct {
	need       glovebox.Size
	since, due time.Time
}

// Waits says that a run waits for so much memory. Spares give way to one that goes on waiting, and at once to one that could
// never be beside them. done says that it does not wait any more; it is called once.
func (p *Pool) Waits(need glovebox.Size) (done func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := &wait{need: need, since: time.Now()}
	w.due = w.since.Add(grace)
	if need+p.held > p.cfg.Memory.Budget() {
		w.due = w.since
	}
	p.waits[w] = struct{}{}
	p.stir()
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.waits, w)
	}
}

// sight is what was seen of the machine last. It is the loop's own.
type sight struct {
	at     time.Time
	short  bool  // the machine has little memory left
	place  int64 // of the run that had waited the longest
	failed bool
}

// loop tends the pool until it is closed.
func (p *Pool) loop() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-p.life.Done():
			return
		case <-p.wake:
		case <-timer.C:
		}
		give := p.look()
		timer.Reset(p.tend(give))
	}
}

// look looks at the machine now and then, and says how much memory is to be given away.
func (p *Pool) look() (give glovebox.Size) {
	now := time.Now()
	p.mu.Lock()
	nothing, own, held := len(p.shelves) == 0 && p.held == 0, len(p.waits) > 0, p.held
	p.mu.Unlock()
	if nothing || now.Sub(p.seen.at) < lookAt {
		return 0
	}
	p.seen.at = now
	available, all, err := p.cfg.Free()
	place, errWaiting := p.cfg.Memory.Waiting()
	if err == nil {
		err = errWaiting
	}
	if err != nil && !p.seen.failed {
		p.log.Error("look at the memory there is: nothing is kept ready", "err", err)
	}
	p.seen.failed = err != nil
	if p.seen.short = err != nil || available < all/10; p.seen.short {
		give = max(held/2, 1)
	}
	if place != 0 && place == p.seen.place && !own {
		give = max(give, stranger)
	}
	p.seen.place = place
	return give
}

// tend does what is due and says in what time something will be.
func (p *Pool) tend(give glovebox.Size) (next time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	next = lookAt
	for k, s := range p.shelves {
		p.adapt(s, now)
		p.prune(s, now)
		if s.target == 0 && len(s.spares) == 0 && s.making == 0 && !s.brewing {
			s.gone = true
			delete(p.shelves, k)
		}
	}
	p.giveAway(give, true, true, now)
	for w := range p.waits {
		if until := w.due.Sub(now); until > 0 {
			next = min(next, until)
			continue
		}
		if lacks := w.need + p.held - p.cfg.Memory.Budget(); lacks > 0 {
			p.giveAway(lacks, true, true, now)
		} else { // all but what runs are forked from: they wait for each other, and longer if they all start cold
			p.giveAway(w.need, now.Sub(w.since) >= patience, false, now)
		}
		w.due = now.Add(grace)
		next = min(next, grace)
	}
	if len(p.shelves) == 0 && p.held == 0 {
		return time.Hour // until somebody asks
	}
	return min(next, p.fill(now))
}

// adapt makes the target follow demand.
func (p *Pool) adapt(s *shelf, now time.Time) {
	idle := now.Sub(s.asked)
	switch {
	case idle >= p.cfg.Idle && !s.keep:
		s.target = 0
		p.retireAll(s)
	case idle >= p.cfg.Idle/10:
		s.target = min(s.target, p.cfg.Min)
	case now.Sub(s.measured) >= measure:
		s.target = max(min(s.target, p.cfg.Min), s.target-(s.low+1)/2)
		s.measured, s.low = now, min(len(s.spares), s.target)
	}
	p.renew(s, now)
}

// prune discards what is too old or too much.
func (p *Pool) prune(s *shelf, now time.Time) {
	for len(s.spares) > 0 {
		sp := s.spares[0]
		age := now.Sub(sp.born)
		if age < maxAge && len(s.spares) <= s.target {
			return
		}
		s.spares = s.spares[1:]
		reason := "idle"
		if age >= stale {
			reason = "age"
		}
		p.discard(s, sp, reason)
	}
}

// drop discards a kind with all that there is of it; p.mu is held.
func (p *Pool) drop(s *shelf, reason string) {
	s.gone = true
	for _, sp := range s.spares {
		p.discard(s, sp, reason)
	}
	s.spares = nil
	p.retireAll(s)
	delete(p.shelves, s.kind.key())
}

// giveAway gives so much memory back, or all that there is: what is in reserve, then the oldest spares, then templates. Of
// kinds that are asked for right now it takes nothing unless from all, and then templates only if they are to go too.
func (p *Pool) giveAway(need glovebox.Size, all, templates bool, now time.Time) {
	if need <= 0 {
		return
	}
	if p.rest = later(p.rest, now.Add(respite)); all {
		p.giving = later(p.giving, now.Add(respite))
		if templates {
			p.dry = later(p.dry, now.Add(respite))
		}
		need -= p.freeReserve(templates)
	}
	for need > 0 {
		var from *shelf
		for _, s := range p.shelves {
			if len(s.spares) > 0 && (all || !s.urgent(now)) && (from == nil || s.spares[0].born.Before(from.spares[0].born)) {
				from = s
			}
		}
		if from == nil {
			break
		}
		sp := from.spares[0]
		from.spares = from.spares[1:]
		need -= sp.held
		p.discard(from, sp, "memory")
	}
	for _, s := range p.shelves {
		for need > 0 && s.template != nil && (all && templates || !s.urgent(now)) {
			need -= s.template.memory
			p.retire(s)
		}
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// fill begins to make what is missing and may be made now. It says in what time more may be.
func (p *Pool) fill(now time.Time) (next time.Duration) {
	next = lookAt
	if p.closed || p.seen.short {
		p.freeReserve(true)
		return next
	}
	if wait := p.dry.Sub(now); wait > 0 {
		p.freeReserve(true)
		return min(next, wait)
	}
	giving := p.giving.Sub(now)
	if giving > 0 {
		p.freeReserve(false)
		next = min(next, giving)
	}
	for giving <= 0 && p.making < p.cfg.Makings && p.there < 4*p.cfg.Max {
		s, wait := p.neediest(now)
		if s == nil {
			if wait > 0 {
				next = min(next, wait)
			}
			break
		}
		p.make(s)
	}
	if !p.brewing {
		if s := p.thirstiest(now, giving > 0); s != nil {
			p.brew(s)
		}
	}
	p.trimReserve(now)
	return next
}

// trimReserve gives back the memory in reserve that is more than is missing.
func (p *Pool) trimReserve(now time.Time) {
	missing := map[glovebox.Size]int{}
	for _, s := range p.shelves {
		missing[s.holds()] += max(s.target-s.fresh(now)-s.making, 0)
		if s.forks() && s.target > 0 && !s.brewing && s.next == nil { // its first template, or the next
			missing[s.size.Template]++
		}
	}
	p.reserve = slices.DeleteFunc(p.reserve, func(r reserved) bool {
		if missing[r.memory]--; missing[r.memory] >= 0 {
			return false
		}
		p.settle(r.share, r.memory, false)
		return true
	})
}

// neediest is the shelf that a spare is made for next: one that is asked for right now before others, then the one that has
// the fewest. Where there is none yet because of a pause, wait says how long that is.
func (p *Pool) neediest(now time.Time) (best *shelf, wait time.Duration) {
	var urgent bool
	var least int
	for _, s := range p.shelves {
		n := s.fresh(now) + s.making
		if n >= s.target || s.forks() && (s.template == nil || s.template.spent(now)) {
			continue
		}
		u := s.urgent(now)
		pause := s.spareTries.again.Sub(now)
		if 2*len(s.spares) > s.target {
			pause = max(pause, s.asked.Add(courtesy).Sub(now))
		}
		if !p.reserves(s.holds()) {
			pause = max(pause, s.spareTries.noRoom.Sub(now))
		}
		if !u {
			pause = max(pause, p.rest.Sub(now))
		}
		switch {
		case pause > 0:
			if wait == 0 || pause < wait {
				wait = pause
			}
			continue
		case !u && p.making > 0: // one at a time
			continue
		case !p.fits(s.holds()) && !p.reserves(s.holds()):
			continue
		}
		if best == nil || u && !urgent || u == urgent && n < least {
			best, urgent, least = s, u, n
		}
	}
	return best, wait
}

// thirstiest is the shelf that a template is made for next: one that is asked for right now before others, which get none
// while runs wait for memory.
func (p *Pool) thirstiest(now time.Time, waited bool) (best *shelf) {
	for _, s := range p.shelves {
		u := s.urgent(now)
		if p.needsTemplate(s, now) && (u || best == nil && !waited) {
			best = s
			if u {
				break
			}
		}
	}
	return best
}

func (p *Pool) needsTemplate(s *shelf, now time.Time) bool {
	memory := s.size.Template
	pause := now.Before(s.templateTries.again) || now.Before(s.templateTries.noRoom) && !p.reserves(memory)
	return s.forks() && s.target > 0 && !s.brewing && !pause && s.next == nil && (s.template == nil || s.template.worn(now)) &&
		(p.fits(memory) || p.reserves(memory))
}

// fits tells whether the pool may hold so much more: never over half of the budget.
func (p *Pool) fits(memory glovebox.Size) bool { return p.held+memory <= p.cfg.Memory.Budget()/2 }

// mayPass tells whether so much more may be taken past runs that wait: they wait for each other mostly, and would all start
// cold without. That is a small part of the budget, and goes when one of them waits for longer.
func (p *Pool) mayPass(memory glovebox.Size) bool { return p.held+memory <= p.cfg.Memory.Budget()/4 }

// reserves tells whether there is memory in reserve.
func (p *Pool) reserves(memory glovebox.Size) bool {
	return slices.ContainsFunc(p.reserve, func(r reserved) bool { return r.memory == memory })
}

// claim takes memory out of the reserve, or out of the pool's bound: then its share is still to be taken, and nil.
func (p *Pool) claim(memory glovebox.Size) *admission.Share {
	i := slices.IndexFunc(p.reserve, func(r reserved) bool { return r.memory == memory })
	if i < 0 {
		p.held += memory
		return nil
	}
	share := p.reserve[i].share
	p.reserve = slices.Delete(p.reserve, i, i+1)
	return share
}
