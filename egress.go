package glovebox

import "time"

// EgressRule is one rule of what may leave a sandbox, as the configuration has it and as a Grant carries it. What no rule
// allows is refused; a rule that denies beats all that allow.
type EgressRule struct {
	// ID names the rule in decisions; where it is empty its place in the list names it.
	ID string `json:"id,omitempty"`
	// Host is a name, or *. and a name: everything below it, and not the name itself. No address.
	Host string `json:"host"`
	// Ports are those it holds for; empty means those of the protocols: 443 for https, 80 for http. Others must be named.
	Ports []int `json:"ports,omitempty"`
	// Protocols are http, https, tls (not opened: only its server name is judged) and tcp (bytes); empty means http and https.
	Protocols []string `json:"protocols,omitempty"`
	// Methods and Paths bound requests of http and https; empty means any. A path is compared in its canonical form; in a
	// pattern * stands for one segment and ** for any number of them.
	Methods []string `json:"methods,omitempty"`
	Paths   []string `json:"paths,omitempty"`
	// Mode says of https how it is judged: inspect (the default: TLS ends at the gateway, every request is judged) or sni
	// (the server name alone, for clients that pin a certificate; no secret can be bound then).
	Mode string `json:"mode,omitempty"`
	Deny bool   `json:"deny,omitempty"`
	// BodyLimit bounds one request's body, in bytes; 0 means no bound of its own.
	BodyLimit Size `json:"body_limit,omitempty"`
	// WebSocket lets a request of this rule become a web socket, whose content is not judged.
	WebSocket bool `json:"websocket,omitempty"`
	// AllowPrivate are the private networks (CIDR) to which the name may lead. Without them it may not lead to any.
	AllowPrivate []string `json:"allow_private,omitempty"`
	// Push are the refs, as globs, that a git push may change; empty means none where a secret is bound for git, and what
	// Methods and Paths allow otherwise.
	Push []string `json:"push,omitempty"`
	// Expires is when the rule ends; zero means never.
	Expires time.Time `json:"expires,omitzero"`
}
