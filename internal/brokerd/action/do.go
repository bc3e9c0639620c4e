package action

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"unicode/utf8"

	"glovebox"
)

// once does what an idempotency key stands for one time: who comes again gets the same answer.
func (r *Run) once(ctx context.Context, v *verb, what *prepared, key string) answer {
	sum := what.sum()
	r.mu.Lock()
	k := r.keys[key]
	if k != nil {
		r.mu.Unlock()
		if k.sum != sum {
			return problem(http.StatusConflict, "idempotency-key", "use another key for another call",
				"this Idempotency-Key was used with other arguments")
		}
		select {
		case <-k.done:
			return k.answer
		case <-ctx.Done():
			return problem(http.StatusServiceUnavailable, "canceled", "ask again with the same key", "the client is gone")
		}
	}
	if len(r.keys) >= maxKeys || r.kept >= maxKept {
		r.mu.Unlock()
		return problem(http.StatusTooManyRequests, "quota", "use fewer keys", "this run has used too many idempotency keys")
	}
	k = &keyed{sum: sum, done: make(chan struct{})}
	r.keys[key] = k
	r.mu.Unlock()
	a := r.do(ctx, v, what)
	r.mu.Lock()
	k.answer = a
	if a.acted {
		r.kept += len(a.body)
	} else {
		delete(r.keys, key) // nothing was done: it may be tried again
	}
	r.mu.Unlock()
	close(k.done)
	return a
}

// sum tells calls apart that would do different things.
func (p *prepared) sum() [32]byte {
	b, err := json.Marshal([]any{p.method, p.url, p.header, p.body, p.command})
	if err != nil { // strings are never in want of that
		return sha256.Sum256(p.body)
	}
	return sha256.Sum256(b)
}

// do does a call: within the run's limits, after approval where that is demanded, and whether or not the program waits.
func (r *Run) do(ctx context.Context, v *verb, what *prepared) answer {
	select {
	case r.atOnce <- struct{}{}:
		defer func() { <-r.atOnce }()
	default:
		return problem(http.StatusTooManyRequests, "quota", "wait for the others", "%d calls are under way", maxAtOnce)
	}
	r.mu.Lock()
	if r.calls[v.Name] >= v.PerRun {
		r.mu.Unlock()
		return problem(http.StatusTooManyRequests, "quota", "ask the operator for a higher per_run",
			"action %s may be called %d times by a run", v.Name, v.PerRun)
	}
	r.calls[v.Name]++
	r.mu.Unlock()
	log := r.actions.cfg.Log.With("action", v.Name, "run", r.run.ID, "tenant", r.run.Tenant)
	if v.Approval {
		if state := r.actions.board.post(ctx, r.life, r.approval(v, what), v.Wait); state != glovebox.ApprovalApproved {
			log.Info("an action was not done", "approval", state)
			return problem(http.StatusForbidden, "approval-"+state, "ask the owner", "the call was not approved: it was %s", state)
		}
	}
	// From here on it is done, even if the program goes away: half of an action would be worse.
	ctx, stop := context.WithTimeout(r.life, v.Timeout)
	defer stop()
	begun := r.actions.cfg.Now()
	a := r.perform(ctx, v, what)
	a.acted = true
	log.Info("an action was done", "status", a.status, "ms", r.actions.cfg.Now().Sub(begun).Milliseconds(),
		"approved", v.Approval)
	return a
}

// approval shows exactly what would be done.
func (r *Run) approval(v *verb, what *prepared) glovebox.Approval {
	a := glovebox.Approval{Run: r.run.ID, Tenant: r.run.Tenant, Action: v.Name, Method: what.method, URL: what.url,
		Headers: what.header, Command: what.command, Body: string(what.body)}
	if v.HTTP != nil {
		a.Secret = v.HTTP.Secret
	}
	return a
}

// outcome is what a program is told of an action that was done.
type outcome struct {
	Action    string `json:"action"`
	OK        bool   `json:"ok"`
	Status    int    `json:"status,omitempty"`    // of HTTP
	Exit      *int   `json:"exit_code,omitempty"` // of a program
	Result    any    `json:"result"`
	Truncated bool   `json:"truncated,omitempty"`
}

func (r *Run) perform(ctx context.Context, v *verb, what *prepared) answer {
	o := outcome{Action: v.Name}
	var text []byte
	var err error
	if v.template == nil {
		var exit int
		text, exit, err = r.actions.cfg.Start(ctx, what.command, what.body)
		o.OK, o.Exit = exit == 0, &exit
	} else {
		text, o.Status, err = r.send(ctx, v, what)
		o.OK = o.Status >= 200 && o.Status < 300
	}
	if err != nil {
		r.actions.cfg.Log.Warn("an action failed", "action", v.Name, "run", r.run.ID,
			"err", string(r.actions.cfg.Scrub(r.run, []byte(err.Error()))))
		ask := "see whether it was done before it is tried again; the operator's log names the cause"
		if ctx.Err() != nil {
			return problem(http.StatusGatewayTimeout, "timeout", ask, "action %s did not end within %v", v.Name, v.Timeout)
		}
		return problem(http.StatusBadGateway, "action-failed", ask, "action %s failed", v.Name)
	}
	o.Truncated = len(text) > maxResult
	text = r.actions.cfg.Scrub(r.run, text)
	o.Result = result(text[:min(len(text), maxResult)], o.Truncated)
	body, err := encode(o)
	if err != nil {
		return problem(http.StatusBadGateway, "action-failed", "ask the operator",
			"the result of action %s cannot be written", v.Name)
	}
	return answer{status: http.StatusOK, body: body}
}

// result is JSON where an answer is that, else its text.
func result(text []byte, truncated bool) any {
	if len(bytes.TrimSpace(text)) == 0 {
		return nil
	}
	if !truncated && json.Valid(text) {
		return json.RawMessage(text)
	}
	if !utf8.Valid(text) {
		text = bytes.ToValidUTF8(text, []byte("\uFFFD"))
	}
	return string(text)
}

// send sends the request of an action, and takes the answer, of which at most a byte too many.
func (r *Run) send(ctx context.Context, v *verb, what *prepared) ([]byte, int, error) {
	var body io.Reader
	if what.body != nil {
		body = bytes.NewReader(what.body)
	}
	req, err := http.NewRequestWithContext(ctx, what.method, what.url, body)
	if err != nil {
		return nil, 0, fmt.Errorf("make the request: %w", err)
	}
	req.Header = what.header.Clone()
	if req.Header.Get("User-Agent") == "" {
		req.Header.Set("User-Agent", "glovebox")
	}
	req.Header.Set("Accept-Encoding", "identity")
	resp, err := r.actions.cfg.Send(ctx, r.run, v.HTTP.Secret, req)
	if err != nil {
		return nil, 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxResult+1))
	return text, resp.StatusCode, err
}
