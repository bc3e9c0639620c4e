package process_test

import (
	"context"
	"testing"
	"time"
)

// TestForkCanceled: whoever gives up a copy while it is made, at whatever instant, harms no other copy and not the template.
func TestForkCanceled(t *testing.T) {
	w := newWarm(t)
	h := hold(t, w.image, "python")
	tm := w.template(w.spec(), h)
	p := begin(t, w.forked(tm, w.spec()), h, limits(), "import sys; sys.stdin.read(); print('lived')", nil)
	finished(t, p)
	beside := begin(t, w.forked(tm, w.spec()), h, limits(), "import time; time.sleep(600)", nil)
	canceled := 0
	for after := time.Duration(0); after < 12*time.Millisecond; after += 150 * time.Microsecond {
		ctx, cancel := context.WithTimeout(context.Background(), after)
		s, err := tm.Fork(ctx, w.spec())
		cancel()
		if err != nil {
			canceled++
		} else if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
		select {
		case <-tm.Ended():
			t.Fatalf("after %v: the template has ended", after)
		case <-beside.Exited():
			t.Fatalf("after %v: another copy has ended: %+v", after, beside.Exit())
		default:
		}
	}
	if canceled < 5 {
		t.Errorf("%d were canceled", canceled)
	}
	if got := w.run(w.forked(tm, w.spec()), h, "print(1)"); got.Out != "1\n" {
		t.Errorf("%+v", got)
	}
}
