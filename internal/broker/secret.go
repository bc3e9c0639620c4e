package broker

import (
	"fmt"
	"log/slog"
)

// Secret is a value that must not be seen. It prints, logs and marshals as a mark; only Reveal has the value. The zero
// Secret is none.
type Secret struct{ value string }

// NewSecret makes a Secret of a value.
func NewSecret(value string) Secret { return Secret{value} }

const mark = "[secret]"

// Reveal is the value, for the one place that sends it.
func (s Secret) Reveal() string { return s.value }

// Format implements fmt.Formatter: every verb prints the mark.
func (Secret) Format(f fmt.State, _ rune) { fmt.Fprint(f, mark) }

// MarshalText implements encoding.TextMarshaler.
func (Secret) MarshalText() ([]byte, error) { return []byte(mark), nil }

// LogValue implements slog.LogValuer.
func (Secret) LogValue() slog.Value { return slog.StringValue(mark) }
