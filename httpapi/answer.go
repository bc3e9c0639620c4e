package httpapi

import (
	"errors"
	"net/http"
	"strconv"
	"time"

	"glovebox"
	"glovebox/internal/plainjson"
)

// answer sends v as JSON.
func (c *call) answer(status int, v any) error {
	text, err := plainjson.Append(nil, v)
	if err != nil {
		return glovebox.Internal("write the answer", err)
	}
	c.send(status, "application/json", text)
	return nil
}

// send sends a whole answer. That it does not arrive is seen by whoever asked.
func (c *call) send(status int, kind string, text []byte) {
	h := c.w.Header()
	h.Set("Content-Type", kind)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Length", strconv.Itoa(len(text)))
	c.timed()
	c.w.WriteHeader(status)
	_, _ = c.w.Write(text)
}

// timed bounds what is written from here on, the end of the answer included. It ends what is being written, too. The next
// request of the connection is not bound by it.
func (c *call) timed() { _ = c.rc.SetWriteDeadline(time.Now().Add(answerTime)) }

// fail sends an error. Its cause goes to the log.
func (c *call) fail(err error) {
	shown := c.shown(err)
	text, _ := plainjson.Append(nil, errorShown{shown}) // strings always marshal
	c.send(shown.Code.HTTPStatus(), "application/json", text)
}

// shown is what a caller is told of an error.
func (c *call) shown(err error) glovebox.ErrorShown {
	var e *glovebox.Error
	if !errors.As(glovebox.Internal("answer", err), &e) {
		e = &glovebox.Error{}
	}
	if e.Code.HTTPStatus() == 0 { // no code of ours
		e = &glovebox.Error{Code: glovebox.CodeInternal, Public: e.Public, Fix: e.Fix}
	}
	if e.Code == glovebox.CodeInternal {
		c.cfg.Log.Error("request", "method", c.r.Method, "err", err)
	}
	return glovebox.ErrorShown{Code: e.Code, Message: e.Public, Fix: e.Fix}
}

// errorShown is an error as JSON spells it.
type errorShown struct {
	Error glovebox.ErrorShown `json:"error"`
}

// cut ends a connection in the middle of an answer, so that nobody takes the beginning for the whole.
func cut() { panic(http.ErrAbortHandler) }
