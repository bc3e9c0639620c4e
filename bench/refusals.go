package bench

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"glovebox"
)

// refusals asks for count runs that are refused, each of which is recorded, and returns how many there were until then.
func (b *bench) refusals(ctx context.Context, svc glovebox.Runs, count int, until time.Time) (int, error) {
	// It is asked for by a principal who may not choose a file of the host.
	stranger := b.cfg.Who
	stranger.Owner = false
	req := glovebox.Request{Code: "print(1)", Inputs: []glovebox.Input{{Name: "x", Path: "/nonexistent"}}}
	const callers = 64 // records that wait for the disk at the same time are brought there together
	var (
		begun, ended atomic.Int64
		asking       sync.WaitGroup
		failure      error
		failed       sync.Once
	)
	for range callers {
		asking.Go(func() {
			for ctx.Err() == nil && time.Now().Before(until) && begun.Add(1) <= int64(count) {
				_, err := svc.Run(ctx, stranger, req, nil)
				var e *glovebox.Error
				if !errors.As(err, &e) || e.Code != glovebox.CodeDenied {
					failed.Do(func() { failure = errors.Join(errors.New("a run was to be refused and was not"), err) })
					return
				}
				ended.Add(1)
			}
		})
	}
	asking.Wait()
	if ctx.Err() != nil {
		return int(ended.Load()), nil
	}
	return int(ended.Load()), failure
}
