package httpapi

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"glovebox"
)

var errLeft = errors.New("its client left")

// run runs one program: with events as they happen if the client asks for those, else the Result is the answer.
func (c *call) run() error {
	handle, err := c.handle()
	if err != nil {
		return err
	}
	text, err := c.body()
	if err != nil {
		return err
	}
	req, err := decodeRequest(text)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(c.r.Context()))
	l := &live{who: c.who, handle: handle, cancel: cancel}
	if err := c.live.enter(l); err != nil {
		cancel(nil)
		c.w.Header().Set(headerNotRun, "refused")
		return err
	}
	defer c.live.leave(l)
	defer c.cancelWhenLeft(ctx, cancel)()
	if !strings.Contains(c.r.Header.Get("Accept"), "text/event-stream") {
		res, err := c.cfg.Service.Run(ctx, c.who, req, names{&c.Door.live, l})
		if err != nil {
			return err
		}
		return c.answer(http.StatusOK, res)
	}
	s := newStream(c, l)
	res, err := c.cfg.Service.Run(ctx, c.who, req, s)
	return s.end(res, err)
}

// handle is what the client calls the run, if anything.
func (c *call) handle() (string, error) {
	h := c.r.Header.Get(headerHandle)
	if h == "" {
		return "", nil
	}
	other := func(r rune) bool { return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') }
	if len(h) < 16 || len(h) > 64 || strings.ContainsFunc(h, other) {
		return "", glovebox.Errorf(glovebox.CodeInvalid, "send 16 to 64 letters and digits, new for each run",
			"the header %s holds no handle", headerHandle)
	}
	return h, nil
}

// cancelWhenLeft cancels the run some time after its client has left. The function it returns ends that.
func (c *call) cancelWhenLeft(ctx context.Context, cancel context.CancelCauseFunc) (done func()) {
	ended := make(chan struct{})
	stop := context.AfterFunc(c.r.Context(), func() {
		defer close(ended)
		grace := time.NewTimer(c.cfg.Grace)
		defer grace.Stop()
		select {
		case <-grace.C:
			cancel(errLeft)
		case <-ctx.Done():
		}
	})
	return func() {
		cancel(nil)
		if !stop() {
			<-ended
		}
	}
}

// names learns a run's id from its first event.
type names struct {
	live *registry
	run  *live
}

// Event implements glovebox.Sink.
func (n names) Event(e glovebox.Event) {
	if e.Kind == "start" {
		n.live.name(n.run, e.Run)
	}
}

// runShown is a run as GET /v1/runs/{id} shows it.
type runShown struct {
	ID     string               `json:"id"`
	State  string               `json:"state"`  // queued, running or ended
	Status *glovebox.Status     `json:"status"` // null until it ended, and where no program was started
	Result *glovebox.Result     `json:"result"`
	Error  *glovebox.ErrorShown `json:"error"`
}

// showRun tells of a run, which is named by its id or, while it lasts, by its handle.
func (c *call) showRun(name string) error {
	if l, id := c.live.find(c.who, name); l != nil {
		if id == "" {
			return c.answer(http.StatusOK, runShown{State: "queued"})
		}
		name = id
	}
	rec, err := c.cfg.Service.Trace(c.r.Context(), c.who, name)
	if err != nil {
		return err
	}
	shown := runShown{ID: rec.ID, State: "ended", Result: rec.Result, Error: rec.Error}
	if rec.State == "running" {
		shown.State = "running"
	}
	if rec.Result != nil {
		shown.Status = &rec.Result.Status
	}
	return c.answer(http.StatusOK, shown)
}

// cancel ends a run in progress. Its result says so, to whoever waits for it.
func (c *call) cancel(name string) error {
	l, id := c.live.find(c.who, name)
	if l == nil {
		if _, err := c.cfg.Service.Trace(c.r.Context(), c.who, name); err != nil {
			return err
		}
		return glovebox.Errorf(glovebox.CodeConflict, "GET /v1/runs/"+short(name)+" tells how it ended",
			"this run is not in progress here")
	}
	l.cancel(errAsked)
	return c.answer(http.StatusAccepted, struct {
		ID    string `json:"id"`
		State string `json:"state"`
	}{id, "running"})
}

var errAsked = errors.New("its client cancelled it")
