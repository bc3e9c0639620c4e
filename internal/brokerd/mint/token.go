package mint

import (
	"fmt"
	"log/slog"
	"time"
)

// Token is a short-lived credential. It prints, logs and marshals as a mark; only its fields have the value.
type Token struct {
	// Value is the token; of AWS it is the secret access key.
	Value string
	// AccessKeyID and Session go with Value where it is of AWS.
	AccessKeyID, Session string
	// Expires is when it is no longer good, by this machine's clock.
	Expires time.Time

	fresh time.Time // until when it is handed out
}

// mark is what is seen of a token.
const mark = "[token]"

// Format implements fmt.Formatter: every verb prints the mark.
func (Token) Format(f fmt.State, _ rune) { fmt.Fprint(f, mark) }

// MarshalText implements encoding.TextMarshaler.
func (Token) MarshalText() ([]byte, error) { return []byte(mark), nil }

// LogValue implements slog.LogValuer.
func (Token) LogValue() slog.Value { return slog.StringValue(mark) }

// Secrets are the parts of a token that must not be seen.
func (t Token) Secrets() []string {
	all := []string{t.Value}
	if t.Session != "" {
		all = append(all, t.Session)
	}
	return all
}

// A token is handed out for the first part of its life; a service whose clock differs still takes it then.
const (
	keptNumerator, keptDenominator = 8, 10
	// unknownLife is for a token whose service does not say how long it is good.
	unknownLife = 5 * time.Minute
	// leastLife is too short to be of use.
	leastLife = 5 * time.Second
)

// lasting is a token that is good for life from now on.
func (t Token) lasting(now time.Time, life time.Duration) Token {
	t.Expires = now.Add(life)
	t.fresh = now.Add(life * keptNumerator / keptDenominator)
	return t
}
