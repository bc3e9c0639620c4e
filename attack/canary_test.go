package attack_test

import (
	"encoding/base64"
	"encoding/hex"
	"slices"
	"strings"
	"testing"

	battery "glovebox/attack"
)

func (l *laboratory) secret(place string) string { return battery.ValueOf(l.secrets, place) }

func TestLeaksAreFoundInEverySpelling(t *testing.T) {
	secrets := battery.MakeCanaries("here", "there")
	v := []byte(battery.ValueOf(secrets, "here"))
	back := slices.Clone(v)
	slices.Reverse(back)
	for name, text := range map[string]string{
		"plain":         "x" + string(v) + "y",
		"reversed":      "x" + string(back) + "y",
		"hex":           hex.EncodeToString([]byte("a" + string(v))),
		"upper hex":     strings.ToUpper(hex.EncodeToString([]byte("ab" + string(v)))),
		"hex reversed":  hex.EncodeToString(back),
		"base64 at 0":   base64.StdEncoding.EncodeToString(append(v, "zzz"...)),
		"base64 at 1":   base64.StdEncoding.EncodeToString([]byte("a" + string(v) + "z")),
		"base64 at 2":   base64.URLEncoding.EncodeToString([]byte("ab" + string(v))),
		"base64 at 301": base64.StdEncoding.EncodeToString([]byte(strings.Repeat("q", 301) + string(v) + "tail")),
		"base64 back":   base64.StdEncoding.EncodeToString(back),
	} {
		if got := battery.Leaks(secrets, []byte(text)); len(got) != 1 || !strings.Contains(got[0], "here") {
			t.Errorf("%s: found %q", name, got)
		}
	}
	if got := battery.Leaks(secrets, []byte("nothing but "+string(v[1:]))); got != nil {
		t.Errorf("found %q in a text without any", got)
	}
}
