package process_test

import (
	"context"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// TestTemplateClosesMeanwhile: a copy that is being made when its template is closed is undone, or closed with it.
func TestTemplateClosesMeanwhile(t *testing.T) {
	w := newWarm(t)
	h := hold(t, w.image, "python")
	for n := range 8 {
		tm := w.template(w.spec(), h)
		spec := w.spec()
		var making sync.WaitGroup
		making.Go(func() {
			s, err := tm.Fork(context.Background(), spec)
			if err != nil {
				return
			}
			select {
			case <-s.Lost():
			case <-time.After(5 * time.Second):
				t.Error("a copy lives on")
			}
		})
		time.Sleep(time.Duration(n) * time.Millisecond)
		if err := tm.Close(context.Background()); err != nil {
			t.Error(err)
		}
		making.Wait()
		if left, _ := filepath.Glob("/sys/fs/cgroup/*/*/" + spec.ID + "-*"); len(left) > 0 {
			t.Errorf("left: %q", left)
		}
	}
}
