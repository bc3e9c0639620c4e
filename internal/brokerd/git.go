package brokerd

import (
	"errors"
	"io"
	"net/http"
	"strconv"

	"glovebox/internal/broker"
	"glovebox/internal/brokerd/gitwire"
	"glovebox/internal/egress"
)

// judgeGit refuses what a token for git is not lent for: all but git's own requests, and a push where no rule names a ref.
func (x *exchange) judgeGit(refs []string) *refusal {
	service, err := gitwire.Request(x.r.Method, x.r.URL)
	switch {
	case err != nil:
		return &refusal{reason: egress.ReasonPath, text: "secret " + x.loan.spec.Name + " is lent for git alone: " + err.Error()}
	case service != gitwire.Push:
		return nil
	case len(refs) == 0:
		return &refusal{reason: egress.ReasonPath, text: "no rule names a ref that may be pushed here (push: [refs/heads/NAME])"}
	case x.r.Method == http.MethodPost && x.r.Header.Get("Content-Encoding") != "":
		return &refusal{reason: egress.ReasonPath, text: "a push that is compressed as a whole is not judged"}
	case x.r.Method == http.MethodPost:
		x.push = refs
	}
	return nil
}

// judgePush judges all refs of a push before any byte of it is sent. One that is refused is answered as git shows it.
func (x *exchange) judgePush(w http.ResponseWriter, r *http.Request) bool {
	body, err := gitwire.Commands(r.Body, x.push)
	var refused *gitwire.Refused
	switch {
	case errors.As(err, &refused):
		kind, text := refused.Answer()
		h := w.Header()
		h.Set(broker.HeaderReason, string(egress.ReasonPath))
		h.Set("Content-Type", kind)
		h.Set("Cache-Control", "no-cache")
		h.Set("Content-Length", strconv.Itoa(len(text)))
		_, _ = w.Write(text) // a client that is gone needs no answer
		return false
	case err != nil:
		failed(w, r, err)
		return false
	}
	r.Body = struct {
		io.Reader
		io.Closer
	}{body, r.Body}
	return true
}
