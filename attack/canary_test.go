package attack_test

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// canary is a value that no sandbox may ever show, new in every run of the tests.
type canary struct {
	place, value string
	forms        [][]byte // the spellings in which it is looked for
}

func makeCanaries(places ...string) []canary {
	all := make([]canary, len(places))
	for i, p := range places {
		all[i] = newCanary(p, rand.Text())
	}
	return all
}

func newCanary(place, value string) canary {
	c := canary{place: place, value: value}
	plain := []byte(value)
	back := slices.Clone(plain)
	slices.Reverse(back)
	for _, b := range [][]byte{plain, back} {
		c.forms = append(c.forms, b, []byte(hex.EncodeToString(b)), []byte(strings.ToUpper(hex.EncodeToString(b))))
		// Where the value starts inside a longer text decides its base64, in one of three ways. What the neighbours of the
		// value have a part in is left out.
		for shift := range 3 {
			coded := base64.StdEncoding.EncodeToString(append(make([]byte, shift), b...))
			from, to := (shift*8+5)/6, (shift+len(b))*8/6
			c.forms = append(c.forms, []byte(coded[from:to]))
		}
	}
	return c
}

func (l *laboratory) secret(place string) string {
	for _, c := range l.secrets {
		if c.place == place {
			return c.value
		}
	}
	panic("no canary at " + place)
}

// leaks names the canaries that are in data, in any spelling.
func leaks(secrets []canary, data []byte) []string {
	var found []string
	for _, c := range secrets {
		for _, f := range c.forms {
			if bytes.Contains(data, f) {
				found = append(found, fmt.Sprintf("canary of %s as %.12s…", c.place, f))
				break
			}
		}
	}
	return found
}

func TestLeaksAreFoundInEverySpelling(t *testing.T) {
	secrets := makeCanaries("here", "there")
	v := []byte(secrets[0].value)
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
		if got := leaks(secrets, []byte(text)); len(got) != 1 || !strings.Contains(got[0], "here") {
			t.Errorf("%s: found %q", name, got)
		}
	}
	if got := leaks(secrets, []byte("nothing but "+string(v[1:]))); got != nil {
		t.Errorf("found %q in a text without any", got)
	}
}
