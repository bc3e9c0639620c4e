package action

import (
	"context"
	"crypto/rand"
	"slices"
	"sync"
	"time"

	"glovebox"
)

// board is what waits for the owner. Methods are safe for concurrent use.
type board struct {
	now func() time.Time

	mu      sync.Mutex
	waiting map[string]*wait
}

// wait is one call that waits. done is closed when its State is no longer pending.
type wait struct {
	approval glovebox.Approval
	done     chan struct{}
}

// post waits until somebody decides, the deadline comes, or ctx or the run's life ends, and returns how it ended.
func (b *board) post(ctx, life context.Context, a glovebox.Approval, most time.Duration) string {
	w := &wait{approval: a, done: make(chan struct{})}
	w.approval.ID, w.approval.State = "apr_"+rand.Text(), glovebox.ApprovalPending
	w.approval.Asked = b.now().UTC()
	w.approval.Deadline = w.approval.Asked.Add(most)
	b.mu.Lock()
	b.waiting[w.approval.ID] = w
	b.mu.Unlock()
	timer := time.NewTimer(most)
	defer timer.Stop()
	state := ""
	select {
	case <-w.done:
	case <-timer.C:
		state = glovebox.ApprovalExpired
	case <-ctx.Done():
		state = glovebox.ApprovalCanceled
	case <-life.Done():
		state = glovebox.ApprovalCanceled
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.waiting, w.approval.ID)
	if w.approval.State == glovebox.ApprovalPending { // nobody was sooner
		w.approval.State = state
	}
	return w.approval.State
}

// list is what waits, oldest first.
func (b *board) list() []glovebox.Approval {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := []glovebox.Approval{}
	for _, w := range b.waiting {
		if w.approval.State == glovebox.ApprovalPending {
			all = append(all, w.approval)
		}
	}
	slices.SortFunc(all, func(x, y glovebox.Approval) int { return x.Asked.Compare(y.Asked) })
	return all
}

// decide gives the owner's word. The first one counts.
func (b *board) decide(id string, approve bool) (glovebox.Approval, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	w := b.waiting[id]
	if w == nil {
		return glovebox.Approval{}, glovebox.Errorf(glovebox.CodeNotFound, "list what waits: `glovebox approvals ls`",
			"nothing waits under this id: it was never there, or was decided, or its time or run has ended")
	}
	if w.approval.State != glovebox.ApprovalPending {
		return w.approval, glovebox.Errorf(glovebox.CodeConflict, "nothing is left to do", "it was %s before", w.approval.State)
	}
	w.approval.State = glovebox.ApprovalDenied
	if approve {
		w.approval.State = glovebox.ApprovalApproved
	}
	close(w.done)
	return w.approval, nil
}
