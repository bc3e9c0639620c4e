package glovebox

import "time"

// Approval is a call of an action that waits for the owner's word, with exactly what would be done.
type Approval struct {
	ID       string    `json:"id"`
	Run      string    `json:"run"`
	Tenant   string    `json:"tenant"`
	Action   string    `json:"action"`
	Asked    time.Time `json:"asked"`
	Deadline time.Time `json:"deadline"`
	// State is pending, approved, denied, expired, or canceled where the run ended first.
	State string `json:"state"`

	// A request over HTTP: Secret is the name of the secret that is added.
	Method  string              `json:"method,omitempty"`
	URL     string              `json:"url,omitempty"`
	Headers map[string][]string `json:"headers,omitempty"`
	Secret  string              `json:"secret,omitempty"`
	// Or a program, with Body on its standard input.
	Command []string `json:"command,omitempty"`
	// Body is what is sent. It is from inside: neutralise it before it is shown.
	Body string `json:"body,omitempty"`
}

// States of an Approval.
const (
	ApprovalPending  = "pending"
	ApprovalApproved = "approved"
	ApprovalDenied   = "denied"
	ApprovalExpired  = "expired"
	ApprovalCanceled = "canceled"
)
