package egress

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// CanonicalPath is the one form of a request's path, which is both judged and sent: dots are resolved, what need not be
// escaped is not, and escapes are upper case. An escaped slash or backslash stays as it is, since hosts give it a meaning of
// its own (a scoped package, an object's key); rules look at it with care. What no server needs is refused: control
// characters, escapes of escapes, and dots with parameters. The query is not part of it.
func CanonicalPath(escaped string) (string, error) {
	if escaped == "" {
		return "/", nil
	}
	if escaped[0] != '/' {
		return "", errors.New("the path does not begin with a slash")
	}
	segments := strings.Split(escaped[1:], "/")
	for i, raw := range segments {
		s, err := canonicalSegment(raw)
		if err != nil {
			return "", err
		}
		if bare := withoutParameters(s); bare != s && (bare == "." || bare == "..") {
			return "", errors.New("the path has dots with parameters, which some servers take for dots")
		}
		segments[i] = s
	}
	return "/" + strings.Join(resolve(segments), "/"), nil
}

const upperHex = "0123456789ABCDEF"

func canonicalSegment(raw string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(raw); i++ {
		c := raw[i]
		if c != '%' {
			if c <= ' ' || c >= 0x7f || strings.IndexByte(`\"<>^`+"`"+`{|}#?`, c) >= 0 {
				return "", fmt.Errorf("the path has the byte %q, which must be escaped", c)
			}
			b.WriteByte(c)
			continue
		}
		v, err := unescape(raw, i)
		if err != nil {
			return "", err
		}
		i += 2
		switch {
		case v < ' ' || v == 0x7f:
			return "", fmt.Errorf("the path has the escape %%%02X, which servers read in different ways", v)
		case v == '%' && hidesDelimiter(raw[i+1:]):
			return "", errors.New("the path has an escaped escape of a dot, a slash or a backslash")
		case unreserved(v):
			b.WriteByte(v)
		default:
			b.WriteByte('%')
			b.WriteByte(upperHex[v>>4])
			b.WriteByte(upperHex[v&15])
		}
	}
	return b.String(), nil
}

func unescape(s string, at int) (byte, error) {
	if at+2 >= len(s) {
		return 0, errors.New("the path ends within an escape")
	}
	hi, lo := hexDigit(s[at+1]), hexDigit(s[at+2])
	if hi < 0 || lo < 0 {
		return 0, fmt.Errorf("the path has the escape %q, which is none", s[at:at+3])
	}
	return byte(hi<<4 | lo), nil
}

func hexDigit(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c-'a') + 10
	case 'A' <= c && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

// hidesDelimiter is true of what, after an escaped percent sign, is an escape of a byte that changes what a path means; also
// when the sign is escaped once more.
func hidesDelimiter(after string) bool {
	for strings.HasPrefix(after, "25") {
		after = after[2:]
	}
	if len(after) < 2 {
		return false
	}
	switch strings.ToLower(after[:2]) {
	case "2e", "2f", "5c", "00":
		return true
	}
	return false
}

func unreserved(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._~", c) >= 0
}

// pathPattern is a rule's path: segments, of which ** stands for any number, and in which a star stands for any characters.
type pathPattern []string

// maxPattern bounds a pattern's segments, and so what comparing costs.
const maxPattern = 64

func parsePathPattern(s string) (pathPattern, error) {
	canonical, err := CanonicalPath(s)
	if err != nil {
		return nil, err
	}
	if canonical != s {
		return nil, fmt.Errorf("it is compared with paths in their one form; write %q", canonical)
	}
	p := pathPattern(strings.Split(s[1:], "/"))
	if len(p) > maxPattern {
		return nil, fmt.Errorf("it has %d parts, the most is %d", len(p), maxPattern)
	}
	for _, segment := range p {
		if segment != "**" && strings.Contains(segment, "**") {
			return nil, errors.New("** stands for whole parts and must be one")
		}
	}
	return p, nil
}

// match compares a canonical path's segments. What it costs is bounded by the product of both lengths.
func (p pathPattern) match(path []string) bool {
	// reach[i] is true where the pattern so far can stand for the first i segments.
	reach := make([]bool, len(path)+1)
	reach[0] = true
	for _, want := range p {
		next := make([]bool, len(path)+1)
		if want == "**" {
			for i := range next {
				next[i] = reach[i] || i > 0 && next[i-1] && !hasEscapedSlash(path[i-1])
			}
		} else {
			for i, have := range path {
				next[i+1] = reach[i] && matchSegment(want, have)
			}
		}
		reach = next
	}
	return reach[len(path)]
}

// matchSegment compares one segment; a star stands for any characters, and alone for at least one. It does not stand for
// an escaped slash, nor for the dots of a server that unescapes before it resolves them: a pattern that means those spells
// them.
func matchSegment(pattern, s string) bool {
	first, rest, star := strings.Cut(pattern, "*")
	switch {
	case !star:
		return pattern == s
	case pattern == "*":
		return s != "" && !hasEscapedSlash(s)
	case hasEscapedSlash(s):
		return false
	}
	s, ok := strings.CutPrefix(s, first)
	for ok {
		var part string
		part, rest, star = strings.Cut(rest, "*")
		if !star {
			return strings.HasSuffix(s, part)
		}
		var after string
		_, after, ok = strings.Cut(s, part)
		s = after
	}
	return false
}

// withoutParameters is a segment as it is to servers to which a semicolon ends it.
func withoutParameters(segment string) string {
	segment, _, _ = strings.Cut(segment, ";")
	segment, _, _ = strings.Cut(segment, "%3B")
	segment, _, _ = strings.Cut(segment, "%3b")
	return segment
}

func hasEscapedSlash(s string) bool { return strings.Contains(s, "%2F") || strings.Contains(s, "%5C") }

// readings are a canonical path's segments as servers may read them: as they are; with escaped slashes for slashes, and the
// dots between those resolved; without parameters; without empty segments, as where slashes are merged. Letters are small,
// since to some servers they are all one; so are escapes, for which a star then stands.
func readings(path []string) [][]string {
	whole := strings.ToLower(strings.Join(path, "/"))
	all := [][]string{strings.Split(whole, "/")}
	add := func(change func([]string) []string) {
		for _, one := range all {
			if other := change(one); !slices.Equal(one, other) {
				all = append(all, other)
			}
		}
	}
	add(func(one []string) []string {
		return resolve(strings.Split(strings.NewReplacer("%2f", "/", "%5c", "/").Replace(strings.Join(one, "/")), "/"))
	})
	add(func(one []string) []string {
		bare := make([]string, len(one))
		for i, s := range one {
			bare[i] = withoutParameters(s)
		}
		return resolve(bare)
	})
	add(withoutEmpty)
	return all
}

// resolve takes dots out of segments.
func resolve(segments []string) []string {
	var kept []string
	for i, s := range segments {
		switch s {
		case "..":
			kept = kept[:max(0, len(kept)-1)]
		case ".":
		default:
			kept = append(kept, s)
			continue
		}
		if i == len(segments)-1 {
			kept = append(kept, "")
		}
	}
	return kept
}

// withoutEmpty is segments without those that are empty, but for the last.
func withoutEmpty(segments []string) []string {
	var kept []string
	for i, s := range segments {
		if s != "" || i == len(segments)-1 {
			kept = append(kept, s)
		}
	}
	return kept
}
