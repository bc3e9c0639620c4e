package httpapi

import (
	"context"
	"sync"

	"glovebox"
)

// registry knows the runs in progress by handle and by id.
type registry struct {
	mu       sync.Mutex
	byName   map[string]*live
	all      map[*live]bool
	draining chan struct{} // nil until no more begin; closed when none is left
}

// live is one run in progress.
type live struct {
	who    glovebox.Principal
	handle string // empty: its client gave it none
	cancel context.CancelCauseFunc
	id     string // empty until the service tells; guarded by the registry
}

// enter adds a run.
func (g *registry) enter(l *live) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.draining != nil:
		return errDraining
	case l.handle != "" && g.byName[l.handle] != nil:
		return glovebox.Errorf(glovebox.CodeConflict, "give each run a handle of its own", "a run with this handle is in progress")
	}
	if g.byName == nil {
		g.byName, g.all = map[string]*live{}, map[*live]bool{}
	}
	if l.handle != "" {
		g.byName[l.handle] = l
	}
	g.all[l] = true
	return nil
}

var errDraining = glovebox.Errorf(glovebox.CodeUnavailable, "ask again when it has started again", "the server stops")

// name gives a run its id.
func (g *registry) name(l *live, id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if l.id == "" && id != "" {
		l.id = id
		g.byName[id] = l
	}
}

func (g *registry) leave(l *live) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, name := range []string{l.handle, l.id} {
		if name != "" {
			delete(g.byName, name)
		}
	}
	delete(g.all, l)
	if g.draining != nil && len(g.all) == 0 {
		close(g.draining)
	}
}

// find returns the run of who that has name as its handle or id, and its id, or nil.
func (g *registry) find(who glovebox.Principal, name string) (l *live, id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if l = g.byName[name]; l == nil || l.who != who {
		return nil, ""
	}
	return l, l.id
}

func (g *registry) count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.all)
}

// drain lets no more runs begin. What it returns is closed when none is left.
func (g *registry) drain() (empty <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.draining == nil {
		g.draining = make(chan struct{})
		if len(g.all) == 0 {
			close(g.draining)
		}
	}
	return g.draining
}

// cancelAll cancels every run and says how many they were.
func (g *registry) cancelAll(why error) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	for l := range g.all {
		l.cancel(why)
	}
	return len(g.all)
}
