package egress

import (
	"net/netip"
	"time"

	"glovebox"
)

// Protocol is what a connection speaks.
type Protocol string

// The protocols of rules. TLS is a connection whose server name is judged and whose content is not; TCP is bytes.
const (
	HTTP  Protocol = "http"
	HTTPS Protocol = "https"
	TLS   Protocol = "tls"
	TCP   Protocol = "tcp"
)

// Mode is how HTTPS is judged.
type Mode string

// The modes.
const (
	Inspect Mode = "inspect" // TLS ends at the gateway and every request is judged
	SNI     Mode = "sni"     // by its server name alone
)

// Reason is why something was refused. It is part of records and of what programs are told, so its values are stable.
type Reason string

// The reasons.
const (
	ReasonNameInvalid       Reason = "name-invalid"
	ReasonHostNotAllowed    Reason = "host-not-allowed"
	ReasonPort              Reason = "port"
	ReasonIPLiteral         Reason = "ip-literal"
	ReasonUpstreamIPPrivate Reason = "upstream-ip-private"
	ReasonSNIMissing        Reason = "sni-missing"
	ReasonSNIMismatch       Reason = "sni-mismatch"
	ReasonECH               Reason = "ech"
	ReasonNotHTTPOrTLS      Reason = "not-http-or-tls"
	ReasonAuthorityMismatch Reason = "authority-mismatch"
	ReasonConnect           Reason = "connect"
	ReasonMethod            Reason = "method"
	ReasonPath              Reason = "path"
	ReasonBodyCap           Reason = "body-cap"
	ReasonWebSocket         Reason = "websocket"
	ReasonSecretWrongHost   Reason = "secret-wrong-host"
	ReasonSecretLocation    Reason = "secret-location"
	ReasonForeignCredential Reason = "foreign-credential"
	ReasonQuota             Reason = "quota"
	ReasonPolicyChanged     Reason = "policy-changed"
	ReasonClientTLS         Reason = "client-tls"
	ReasonUpstreamTLS       Reason = "upstream-tls"
	ReasonUpstreamFailed    Reason = "upstream-failed"
	ReasonExpired           Reason = "expired"
	ReasonBudget            Reason = "budget"
)

// Verdict is what rules say. Of several rules that allow the same it has what the widest of them gives.
type Verdict struct {
	Allowed bool
	Rule    string // the rule that decided; empty where none did
	Reason  Reason // why not; empty where it is allowed
	// Mode is how HTTPS is judged: Inspect where any rule that allows it says so.
	Mode Mode
	// Protocols are those that may be spoken, of a Connect.
	Protocols []Protocol
	// AllowPrivate are the private networks to which the name may lead.
	AllowPrivate []netip.Prefix
	// BodyLimit bounds a request's body, in bytes; 0 means that no rule does.
	BodyLimit glovebox.Size
	WebSocket bool
	// Push are the refs that a git push may change.
	Push []string
	// Expires is when what was allowed ends; zero means never.
	Expires time.Time
}
