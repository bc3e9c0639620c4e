package output

import (
	"errors"
	"strings"
	"unicode/utf8"
)

// spell writes a path from inside a sandbox in the form of glovebox.Artifact.Path: every byte that is not part of printable
// text is %XX, and so is %; a slash stays a slash. Different paths have different spellings.
func spell(path string) string {
	const digits = "0123456789ABCDEF"
	var b strings.Builder
	for len(path) > 0 {
		r, n := utf8.DecodeRuneInString(path)
		if r == '%' || r < 0x20 || r >= charDEL && r < 0xa0 || r == utf8.RuneError && n == 1 || classify(r) != visible {
			for _, c := range []byte(path[:n]) {
				b.Write([]byte{'%', digits[c>>4], digits[c&15]})
			}
		} else {
			b.WriteString(path[:n])
		}
		path = path[n:]
	}
	return b.String()
}

var errSpelling = errors.New("a % in a path is not followed by two hexadecimal digits")

// unspell is the inverse of spell.
func unspell(s string) (string, error) {
	var b strings.Builder
	for {
		before, after, found := strings.Cut(s, "%")
		b.WriteString(before)
		if !found {
			return b.String(), nil
		}
		if len(after) < 2 {
			return "", errSpelling
		}
		high, low := nibble(after[0]), nibble(after[1])
		if high < 0 || low < 0 {
			return "", errSpelling
		}
		b.WriteByte(byte(high<<4 | low))
		s = after[2:]
	}
}

func nibble(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	}
	return -1
}
