package gateway

import (
	"net/http"

	"glovebox/internal/egress"
)

// Binding is what one sandbox was lent: the broker's end of it. Methods are safe for concurrent use.
type Binding interface {
	// Bound tells whether requests to the host over https are the broker's to send, because a secret is bound for it.
	Bound(host egress.Host, port uint16) bool
	// RoundTrip sends such a request. A refusal of the broker's is an answer too, with its reason as ReasonHeader.
	http.RoundTripper
	// Finder finds what was lent, in whatever form, in one stream of bytes. Nil where nothing can be found.
	Finder() Finder
	// Ends tells whether the run shall end where something was found.
	Ends() bool
	// Handler serves the broker's own host inside; nil where there is none.
	Handler() http.Handler
}

// ReasonHeader has the reason of an answer that is the broker's refusal, an egress.Reason. Programs do not see it.
const ReasonHeader = "Glovebox-Reason"

// Finder looks through one stream. It is used by one goroutine at a time.
type Finder = interface {
	// Find tells whether anything was found, in p or before.
	Find(p []byte) bool
}

// bound tells whether a request is the broker's to send.
func (x *exchange) bound() bool {
	return x.a.binding != nil && x.f.secure && x.a.binding.Bound(x.f.host, x.f.port)
}

// finder is for a body that is not the broker's.
func (x *exchange) finder() Finder {
	if x.a.binding == nil || x.bound() {
		return nil
	}
	return x.a.binding.Finder()
}

// betrays tells whether the head of a request has a placeholder that is not for its host. A bound host's own are the
// broker's to judge.
func (a *Attachment) betrays(x *exchange) bool {
	if a.binding == nil || x.bound() {
		return false
	}
	texts := []string{x.r.Method, x.path, x.query, x.r.Host}
	for name, values := range x.r.Header {
		texts = append(append(texts, name), values...)
	}
	for name := range x.r.Trailer {
		texts = append(texts, name)
	}
	for _, text := range texts {
		if f := a.binding.Finder(); f != nil && f.Find([]byte(text)) {
			return true
		}
	}
	return false
}

// betrayed ends the run, where that is what a placeholder in a wrong place does.
func (a *Attachment) betrayed() {
	if a.terms.End != nil && a.binding.Ends() {
		a.ending.Do(func() { a.terms.End(egress.ReasonSecretWrongHost) })
	}
}

// serveBroker lets the broker answer for its own host.
func (a *Attachment) serveBroker(w http.ResponseWriter, r *http.Request, x *exchange) {
	u, ok := x.target()
	if !ok {
		x.refuse(w, refusal{reason: egress.ReasonPath})
		return
	}
	r.URL, r.RequestURI, r.Host = u, u.RequestURI(), brokerName
	a.binding.Handler().ServeHTTP(w, r)
}
