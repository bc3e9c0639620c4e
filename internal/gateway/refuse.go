package gateway

import (
	"encoding/json"
	"net/http"
	"strconv"

	"glovebox/internal/egress"
)

// refusal is why something may not pass, as the program inside is told.
type refusal struct {
	status int // 0 means 403
	reason egress.Reason
	rule   string
	layer  string
}

// refusalBody is a refusal as JSON.
type refusalBody struct {
	Error  string        `json:"error"`
	Host   string        `json:"host"`
	Reason egress.Reason `json:"reason"`
	Rule   string        `json:"rule,omitempty"`
	Ask    string        `json:"ask"`
}

// explanations say what a reason means and what can be done, for a program and whoever wrote it.
var explanations = map[egress.Reason][2]string{
	egress.ReasonNameInvalid: {"this is no host name", "use the plain name of the server"},
	egress.ReasonHostNotAllowed: {"no rule lets this run reach this host",
		"ask whoever starts the run to allow it: --allow "},
	egress.ReasonPort: {"this port or protocol is not allowed for this host",
		"use https on port 443, or ask for a rule that names it"},
	egress.ReasonIPLiteral: {"addresses cannot be reached, only names", "use the server's name"},
	egress.ReasonUpstreamIPPrivate: {"the name leads to a private address",
		"ask the operator for allow_private in the rule"},
	egress.ReasonNotHTTPOrTLS: {"this is neither HTTP nor TLS, or not the one this port is for",
		"use http on port 80 and https on port 443"},
	egress.ReasonAuthorityMismatch: {"the request names another host than the connection",
		"connect to the host that you name"},
	egress.ReasonConnect: {"this is no proxy", "connect to the host itself, without a proxy"},
	egress.ReasonMethod:  {"the rule does not allow this method", "ask for a rule that allows it"},
	egress.ReasonPath:    {"the rule does not allow this path", "ask for a rule that allows it"},
	egress.ReasonBodyCap: {"the request's body is larger than the rule allows",
		"send less, or ask for a larger body_limit"},
	egress.ReasonSecretWrongHost: {"a placeholder of a secret was sent to a host that the secret is not for",
		"send it only to its own host"},
	egress.ReasonSecretLocation: {"a placeholder of a secret was sent in a place that it is not for",
		"send it where its configuration says"},
	egress.ReasonQuota:         {"too many connections or requests", "do less at a time, and wait a minute"},
	egress.ReasonBudget:        {"the run has used up its bytes of egress", "ask for a larger --egress-limit"},
	egress.ReasonPolicyChanged: {"the rules changed and no longer allow this", "ask the operator"},
	egress.ReasonExpired:       {"the rule that allowed this has ended", "ask the operator"},
	egress.ReasonUpstreamTLS: {"the server's certificate does not prove that it is this host",
		"tell whoever runs the server"},
	egress.ReasonUpstreamFailed: {"the server cannot be reached", "try again later, or check the name"},
	egress.ReasonWebSocket:      {"the rule does not allow web sockets", "ask for a rule with websocket"},
}

// body is what is sent in place of an answer.
func (r refusal) body(host string, port uint16) []byte {
	if port != 80 && port != 443 && port != 0 {
		host += ":" + strconv.Itoa(int(port))
	}
	words, ok := explanations[r.reason]
	if !ok {
		words = [2]string{"this is not allowed", "ask the operator"}
	}
	if r.reason == egress.ReasonHostNotAllowed {
		words[1] += host
	}
	b, err := json.Marshal(refusalBody{"egress refused: " + words[0], host, r.reason, r.rule, words[1]})
	if err != nil {
		return []byte("{}\n") // strings are never in want of that
	}
	return append(b, '\n')
}

// answer sends r in place of a response.
func (r refusal) answer(w http.ResponseWriter, host string, port uint16) {
	body := r.body(host, port)
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Cache-Control", "no-store")
	if r.status == http.StatusTooManyRequests {
		h.Set("Retry-After", "60")
	}
	w.WriteHeader(r.code())
	_, _ = w.Write(body) // who does not read it is not told
}

func (r refusal) code() int {
	if r.status == 0 {
		return http.StatusForbidden
	}
	return r.status
}
