package attack

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

// canary is a value that no sandbox may ever show, new in every use.
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

// valueOf is the value of the canary at a place; a place that has none is a fault of this package.
func valueOf(secrets []canary, place string) string {
	for _, c := range secrets {
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
