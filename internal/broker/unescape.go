package broker

// escapes are the bytes that begin an escape.
const escapes = `%\=&`

// unescaper resolves %41, \u0041, \x41, \/, =41 and &#65; in a stream. What is no escape passes as it is.
type unescaper struct {
	hold [10]byte // an escape that has begun
	held int
}

// resolve appends to out what comes of p.
func (u *unescaper) resolve(p, out []byte) []byte {
	for _, c := range p {
		if u.held == 0 && !begins(c) {
			out = append(out, c)
		} else {
			out = u.push(c, out)
		}
	}
	return out
}

func begins(c byte) bool { return c == '%' || c == '\\' || c == '=' || c == '&' }

// push takes in a byte where an escape begins or goes on.
func (u *unescaper) push(c byte, out []byte) []byte {
	u.hold[u.held] = c
	u.held++
	if u.held == 1 {
		return out
	}
	v, state := resolve(u.hold[:u.held])
	switch {
	case state == escapeMore && u.held < len(u.hold):
		return out
	case state == escapeDone:
		u.held = 0
		return append(out, v)
	case state == escapeNothing:
		u.held = 0
		return out
	}
	// It was none: its first byte stands for itself, and the rest may begin another.
	rest, n := u.hold, u.held
	u.held = 0
	return u.resolve(rest[1:n], append(out, rest[0]))
}

type escapeState int

const (
	escapeMore escapeState = iota
	escapeDone
	escapeNothing // it stands for nothing: a line that goes on
	escapeNone
)

// resolve looks at an escape, of which there are two bytes at least.
func resolve(b []byte) (byte, escapeState) {
	switch b[0] {
	case '%':
		return hexDigits(b[1:], 2)
	case '=':
		if b[1] == '\r' && len(b) == 2 {
			return 0, escapeMore
		}
		if b[len(b)-1] == '\n' {
			return 0, escapeNothing
		}
		return hexDigits(b[1:], 2)
	case '\\':
		switch b[1] {
		case 'u':
			return hexDigits(b[2:], 4)
		case 'x':
			return hexDigits(b[2:], 2)
		}
		return b[1], escapeDone
	}
	return reference(b[1:])
}

// hexDigits reads n digits. A character beyond ASCII is none of a placeholder's: which one does not matter.
func hexDigits(b []byte, n int) (byte, escapeState) {
	v := 0
	for _, c := range b {
		d, ok := digit(c, 16)
		if !ok {
			return 0, escapeNone
		}
		v = v<<4 | d
	}
	if len(b) < n {
		return 0, escapeMore
	}
	return ascii(v), escapeDone
}

// reference reads #65; or #x41; of HTML and XML.
func reference(b []byte) (byte, escapeState) {
	if b[0] != '#' {
		return 0, escapeNone
	}
	b, base := b[1:], 10
	if len(b) > 0 && (b[0] == 'x' || b[0] == 'X') {
		b, base = b[1:], 16
	}
	v := 0
	for i, c := range b {
		if c == ';' && i > 0 {
			return ascii(v), escapeDone
		}
		d, ok := digit(c, base)
		if !ok {
			return 0, escapeNone
		}
		v = v*base + d
	}
	return 0, escapeMore
}

func digit(c byte, base int) (int, bool) {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0'), true
	case base == 16 && c >= 'a' && c <= 'f':
		return int(c-'a') + 10, true
	case base == 16 && c >= 'A' && c <= 'F':
		return int(c-'A') + 10, true
	}
	return 0, false
}

func ascii(v int) byte {
	if v > 0x7f {
		return 0x80
	}
	return byte(v)
}
