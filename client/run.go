package client

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"glovebox"
)

const (
	lookEvery  = 250 * time.Millisecond // how often a run is looked after while it lasts
	stuckAfter = time.Second            // a sink that hears nothing more for so long is stuck
	cancelWait = 45 * time.Second       // until a run that was cancelled has told its result
	askWait    = 5 * time.Second        // for a short answer
	quietMost  = 45 * time.Second       // a server says something more often than that
)

var (
	errQuiet = errors.New("the server was silent for too long")
	errLate  = errors.New("the server did not tell the result of a cancelled run in time")
	errSeen  = errors.New("the result was learned otherwise")
)

// attempt is one run that a server was asked for.
type attempt struct {
	*Client
	who    glovebox.Principal
	sink   glovebox.Sink
	handle string

	id      atomic.Pointer[string] // nil until the server tells
	telling atomic.Int64           // since when the sink hears something, in Unix nanoseconds; 0: it does not
	heard   map[string]int64       // bytes of each stream

	mu   sync.Mutex
	over bool // Run returns: the sink hears nothing more
}

// outcome is what became of it.
type outcome struct {
	res *glovebox.Result
	err error
}

// Run implements glovebox.Runs. A sink that blocks holds up the program, as it does with an engine, and Run returns all the
// same once the run has ended; the sink may then still be in its last call. Cancelling ctx kills the run, of which the
// server then tells the result. What the server's answer lost on its way is fetched from its record.
func (c *Client) Run(ctx context.Context, who glovebox.Principal, req glovebox.Request, sink glovebox.Sink) (
	*glovebox.Result, error) {
	if err := owner(who); err != nil {
		return nil, err
	}
	body, err := encode(req)
	if err != nil {
		return nil, err
	}
	a := &attempt{Client: c, who: who, sink: sink, handle: rand.Text(), heard: map[string]int64{}}
	life, end := context.WithCancelCause(context.WithoutCancel(ctx))
	done := make(chan outcome, 1)
	go func() {
		res, err := a.exchange(life, end, body)
		done <- outcome{res, err}
	}()
	o, waited := a.watch(ctx, life, done)
	a.mu.Lock()
	a.over = true
	a.mu.Unlock()
	end(errSeen)
	if !waited {
		moment := time.NewTimer(stuckAfter)
		defer moment.Stop()
		select {
		case <-done:
		case <-moment.C: // it ends when the sink returns
		}
	}
	return o.res, o.err
}

// watch waits for the outcome. It passes a cancellation on, and looks for the result in the record while the sink is stuck.
// waited tells that the exchange has ended.
func (a *attempt) watch(ctx, life context.Context, done <-chan outcome) (o outcome, waited bool) {
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	canceled := ctx.Done()
	var late <-chan time.Time
	pass := false // the cancellation is still to be passed on
	for {
		select {
		case o := <-done:
			return o, true
		case <-late:
			return outcome{err: a.broken(life, errLate)}, false
		case <-canceled:
			canceled, pass = nil, true
			timer := time.NewTimer(cancelWait)
			defer timer.Stop()
			late = timer.C
			pass = !a.cancel(life)
		case <-look.C:
			if pass {
				pass = !a.cancel(life) // the server may not have heard of the run before
			}
			if since := a.telling.Load(); since != 0 && time.Since(time.Unix(0, since)) > stuckAfter {
				if res, err, ended := a.ended(life); ended {
					return outcome{res, err}, false
				}
			}
		}
	}
}

// cancel asks the server to end the run; it is false when that is to be tried again.
func (a *attempt) cancel(ctx context.Context) bool {
	ctx, stop := context.WithTimeout(ctx, askWait)
	defer stop()
	answer, err := a.do(ctx, "DELETE", "/v1/runs/"+a.handle, nil, nil)
	if err == nil {
		answer.Body.Close()
	}
	return err == nil
}

// ended looks in the record whether the run has ended, and how.
func (a *attempt) ended(ctx context.Context) (*glovebox.Result, error, bool) {
	id := a.id.Load()
	if id == nil {
		return nil, nil, false
	}
	ctx, stop := context.WithTimeout(ctx, askWait)
	defer stop()
	var shown struct {
		State  string
		Result *glovebox.Result
		Error  *glovebox.ErrorShown
	}
	if err := a.get(ctx, "GET", "/v1/runs/"+url.PathEscape(*id), nil, &shown); err != nil || shown.State != "ended" {
		return nil, nil, false
	}
	switch {
	case shown.Result != nil:
		return shown.Result, nil, true
	case shown.Error != nil:
		return nil, told(*shown.Error), true
	}
	return nil, nil, false
}

// exchange sends the request and reads the answer to its end.
func (a *attempt) exchange(ctx context.Context, end context.CancelCauseFunc, body []byte) (*glovebox.Result, error) {
	header := map[string]string{headerHandle: a.handle}
	if a.sink != nil {
		header["Accept"] = "text/event-stream"
	}
	answer, err := a.do(ctx, "POST", "/v1/runs", body, header)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if a.sink == nil {
		res := new(glovebox.Result)
		text, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
		if err != nil {
			return nil, a.broken(ctx, err)
		}
		if err := json.Unmarshal(text, res); err != nil {
			return nil, glovebox.Internal("read the result", err)
		}
		return res, nil
	}
	res, err := a.listen(answer.Body, end)
	var known *glovebox.Error
	if err == nil || errors.As(err, &known) || ctx.Err() != nil && context.Cause(ctx) != errQuiet {
		return res, err
	}
	return a.recover(ctx, a.broken(ctx, err))
}

// recover fetches from the record what an answer that broke off did not tell; it fails with why.
func (a *attempt) recover(ctx context.Context, why error) (*glovebox.Result, error) {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), cancelWait)
	defer stop()
	res, err, ended := a.ended(ctx)
	if !ended {
		return nil, why
	}
	for _, stream := range []string{"stdout", "stderr"} {
		for {
			piece, err := a.Output(ctx, a.who, *a.id.Load(), stream, a.heard[stream], int64(glovebox.MiB))
			if err != nil || len(piece) == 0 {
				break // the record has no more of it
			}
			a.tell(glovebox.Event{Kind: stream, Run: *a.id.Load(), Data: piece, Time: time.Now()})
		}
	}
	return res, err
}

// tell lets the sink hear an event.
func (a *attempt) tell(e glovebox.Event) {
	a.mu.Lock()
	over := a.over
	if !over {
		a.telling.Store(time.Now().UnixNano())
	}
	a.mu.Unlock()
	if over {
		return
	}
	a.heard[e.Kind] += int64(len(e.Data))
	a.sink.Event(e)
	a.telling.Store(0)
}
