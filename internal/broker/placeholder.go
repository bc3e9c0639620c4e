package broker

import (
	"crypto/rand"
	"fmt"
	"regexp"
	"strings"
)

// shape is what placeholders look like: a prefix, and random characters behind it, of 128 bits at least.
type shape struct {
	prefix   string
	alphabet string
	random   int
}

const (
	letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
	base32  = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
)

// parseShape reads Spec.Shape.
func parseShape(s string) (shape, error) {
	switch s {
	case "", "plain":
		return shape{"gbx_", letters, 40}, nil
	case "openai":
		return shape{"sk-", letters, 48}, nil
	case "github":
		return shape{"ghp_", letters, 36}, nil
	case "aws":
		return shape{"AKIA", base32, 28}, nil
	}
	prefix, ok := strings.CutSuffix(s, "…")
	if !ok {
		prefix, ok = strings.CutSuffix(s, "...")
	}
	if !ok || !regexp.MustCompile(`^[A-Za-z0-9_.-]{1,32}$`).MatchString(prefix) {
		return shape{}, fmt.Errorf("%.60q is no shape of a placeholder", s)
	}
	return shape{prefix, letters, 40}, nil
}

// NewPlaceholder makes a placeholder of a shape, which nobody can guess.
func NewPlaceholder(of string) (string, error) {
	s, err := parseShape(of)
	if err != nil {
		return "", err
	}
	b := []byte(s.prefix)
	for len(b) < len(s.prefix)+s.random {
		var r [64]byte
		_, _ = rand.Read(r[:]) // it never fails
		for _, c := range r {
			// Of 256 values those beyond a multiple of the alphabet would make some characters likelier.
			if int(c) < 256/len(s.alphabet)*len(s.alphabet) && len(b) < len(s.prefix)+s.random {
				b = append(b, s.alphabet[int(c)%len(s.alphabet)])
			}
		}
	}
	return string(b), nil
}
