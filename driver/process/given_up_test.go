package process_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"glovebox/driver"
	"glovebox/driver/process"
	"glovebox/internal/image"
)

// TestWarmGivenUp gives the making of what is to be ready up at 30 moments each: nothing is left of it.
func TestWarmGivenUp(t *testing.T) {
	needRoot(t)
	cgroup := fmt.Sprintf("/glovebox-given-up-%d", os.Getpid())
	removeGroup(t, cgroup)
	d, err := process.New(process.Config{Init: initBinary, ScratchDir: t.TempDir(), Cgroup: cgroup})
	if err != nil {
		t.Fatal(err)
	}
	im, err := image.Host(image.Config{})
	if err != nil {
		t.Fatal(err)
	}
	w := &warm{t: t, driver: d, image: im}
	h := hold(t, im, "python", "json")
	tm, err := d.Template(context.Background(), w.spec(), h)
	if err != nil {
		t.Fatal(err)
	}
	_, groups := members(t, cgroup)
	for name, c := range map[string]struct {
		most time.Duration
		make func(context.Context, driver.Spec) (func(context.Context) error, error)
	}{
		"template": {120 * time.Millisecond, func(ctx context.Context, s driver.Spec) (func(context.Context) error, error) {
			made, err := d.Template(ctx, s, h)
			if err != nil {
				return nil, err
			}
			return made.Close, nil
		}},
		"hold": {60 * time.Millisecond, func(ctx context.Context, s driver.Spec) (func(context.Context) error, error) {
			made, err := d.Hold(ctx, s, h)
			if err != nil {
				return nil, err
			}
			return made.Close, nil
		}},
		"fork": {15 * time.Millisecond, func(ctx context.Context, s driver.Spec) (func(context.Context) error, error) {
			made, err := tm.Fork(ctx, s)
			if err != nil {
				return nil, err
			}
			return made.Close, nil
		}},
	} {
		w.giveUp(name, c.most, func(ctx context.Context) (func(context.Context) error, error) { return c.make(ctx, w.spec()) },
			func() int { _, now := members(t, cgroup); return now - groups })
	}
	if got := w.run(w.forked(tm, w.spec()), h, "print(1)"); got.Out != "1\n" {
		t.Errorf("the template is not what it was: %+v", got)
	}
	if err := tm.Close(context.Background()); err != nil {
		t.Error(err)
	}
}

// giveUp gives a making up at 30 moments until most. After each nothing of it may be left.
func (w *warm) giveUp(name string, most time.Duration, make func(context.Context) (func(context.Context) error, error),
	left func() int) {
	w.t.Helper()
	gaveUp := 0
	for n := range 30 {
		after := most * time.Duration(n) / 30
		ctx, cancel := context.WithTimeout(context.Background(), after)
		end, err := make(ctx)
		cancel()
		if err != nil {
			gaveUp++
		} else if err := end(context.Background()); err != nil {
			w.t.Errorf("%s: %v", name, err)
		}
		if errors.Is(err, driver.ErrLeftBehind) {
			w.t.Errorf("%s: %v", name, err)
		}
		if n := left(); n != 0 {
			w.t.Fatalf("%s, given up after %v: %d groups are left (%v)", name, after, n, err)
		}
	}
	if gaveUp == 0 {
		w.t.Errorf("%s: it was never given up", name)
	}
}
