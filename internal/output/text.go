package output

import (
	"fmt"
	"unicode/utf8"
)

// state is where the scanner is within a control sequence (ECMA-48, and what terminals make of it).
type state uint8

const (
	ground        state = iota // ordinary text
	escape                     // after ESC
	escapeMore                 // after ESC and intermediate bytes
	control                    // in CSI, before the final byte
	payload                    // in a string that ST, BEL or the end of the line ends
	payloadEscape              // in a string, after ESC
)

const (
	charBEL = 0x07
	charCAN = 0x18
	charSUB = 0x1a
	charESC = 0x1b
	charDEL = 0x7f
	charST  = 0x9c
)

// scanner turns bytes into inert text. What it writes depends on the bytes alone, not on how they are cut into writes. It
// holds at most one cut character besides out.
type scanner struct {
	out   []byte // the caller empties it as it likes
	found flags
	state state
	cr    bool // a carriage return was read and may be half of a line end
	prev  rune // the last character that was let through, 0 after one that was spelt out
	hold  [utf8.UTFMax]byte
	held  int
	total int64 // bytes read
	odd   int64 // of them, control characters and bytes that are no text
}

// Text makes inert text of bytes from inside a sandbox, by the package's rules, and names what it found, sorted. The text is
// at most four times as long as b.
func Text(b []byte) (string, []string) {
	var s scanner
	s.out = make([]byte, 0, len(b)+len(b)/8)
	s.write(b)
	s.finish()
	text := string(s.out)
	return text, (s.judge() | suspect(text)).names()
}

// write reads p. A character cut at the end of p waits for the next write or for finish.
func (s *scanner) write(p []byte) {
	for len(p) > 0 {
		if s.held > 0 {
			s.hold[s.held] = p[0]
			s.held++
			p = p[1:]
			s.release(false)
			continue
		}
		if n := s.plain(p); n > 0 {
			p = p[n:]
			continue
		}
		if !utf8.FullRune(p) {
			s.held = copy(s.hold[:], p)
			return
		}
		r, n := utf8.DecodeRune(p)
		s.step(r, n, p[0])
		p = p[n:]
	}
}

// finish ends the text: what is cut stays cut, and the scanner is as new, but for out and its counts.
func (s *scanner) finish() {
	s.release(true)
	if s.cr {
		s.spellByte('\r')
	}
	s.state, s.cr, s.prev = ground, false, 0
}

// judge is the flags of all that was read.
func (s *scanner) judge() flags {
	if s.odd*10 > s.total*3 {
		return s.found | flagBinary
	}
	return s.found
}

// plain takes the printable ASCII, tabs and line feeds at the start of p and returns how many bytes that was.
func (s *scanner) plain(p []byte) int {
	if s.state != ground || s.cr {
		return 0
	}
	n := 0
	for n < len(p) && (p[n] >= 0x20 && p[n] < charDEL || p[n] == '\n' || p[n] == '\t') {
		n++
	}
	if n > 0 {
		s.out = append(s.out, p[:n]...)
		s.prev = rune(p[n-1])
		s.total += int64(n)
	}
	return n
}

// release steps over the characters in hold that are whole, or over all at the end.
func (s *scanner) release(end bool) {
	for s.held > 0 && (end || utf8.FullRune(s.hold[:s.held])) {
		r, n := utf8.DecodeRune(s.hold[:s.held])
		s.step(r, n, s.hold[0])
		s.held = copy(s.hold[:], s.hold[n:s.held])
	}
}

// step reads one character of size bytes, or one byte that is none.
func (s *scanner) step(r rune, size int, first byte) {
	s.total += int64(size)
	raw := r == utf8.RuneError && size == 1
	if raw {
		s.found |= flagInvalid
		s.odd++
		r = rune(first)
	}
	switch s.state {
	case ground:
		s.inGround(r, raw)
	case escape:
		s.inEscape(r, raw)
	case escapeMore:
		if isFinal(r, 0x30) {
			s.state = ground
		} else {
			s.inSequence(r, raw)
		}
	case control:
		if isFinal(r, 0x40) {
			s.state = ground
		} else {
			s.inSequence(r, raw)
		}
	case payload:
		s.inPayload(r, raw)
	case payloadEscape:
		if s.state = ground; r != '\\' {
			s.state = escape
			s.inEscape(r, raw)
		}
	}
}

func isFinal(r rune, from rune) bool { return r >= from && r < charDEL }

func (s *scanner) inGround(r rune, raw bool) {
	if s.cr {
		s.cr = false
		if r == '\n' {
			s.literal(r)
			return
		}
		s.spellByte('\r')
	}
	switch {
	case raw:
		// A terminal takes a stray byte for a C1 control only if it does not read UTF-8, and it is shown this instead anyway.
		// To take it for one here would swallow the rest of a line of honest text in another encoding.
		s.literal(utf8.RuneError)
	case r == charESC:
		s.state, s.found = escape, s.found|flagANSI
	case r == '\r':
		s.cr = true
	case r == '\n' || r == '\t':
		s.literal(r)
	case r < 0x20 || r == charDEL:
		s.odd++
		if r == 0 {
			s.found |= flagBinary
		}
		s.spellByte(byte(r))
	case r >= 0x80 && r < 0xa0:
		s.found |= flagANSI
		if !s.introduce(r) {
			s.odd += 2
			s.spell(r)
		}
	default:
		s.character(r)
	}
}

// introduce begins the sequence that the C1 control r stands for, if any.
func (s *scanner) introduce(r rune) bool {
	switch r {
	case 0x9b:
		s.state = control
	case 0x90, 0x98, 0x9d, 0x9e, 0x9f:
		s.state = payload
	default:
		return false
	}
	s.found |= flagANSI
	return true
}

func (s *scanner) inEscape(r rune, raw bool) {
	switch {
	case r == '[':
		s.state = control
	case r == ']', r == 'P', r == 'X', r == '^', r == '_', r == 'k': // k sets a window's title in screen and tmux
		s.state = payload
	case r >= 0x20 && r < 0x30:
		s.state = escapeMore
	case r == charESC:
	case isFinal(r, 0x30):
		s.state = ground
	default:
		s.inSequence(r, raw)
	}
}

// inSequence reads what does not end an escape or control sequence: parameters are dropped; a C0 control acts at once in a
// terminal and the sequence goes on, so it is spelt out here; anything else breaks the sequence off.
func (s *scanner) inSequence(r rune, raw bool) {
	switch {
	case r == '\n' || r == charESC || r == charCAN || r == charSUB || r >= 0x80:
		s.state = ground
		s.inGround(r, raw)
	case r < 0x20 || r == charDEL:
		s.inGround(r, raw)
	}
}

func (s *scanner) inPayload(r rune, raw bool) {
	switch r {
	case charBEL, charST, charCAN, charSUB:
		s.state = ground
	case charESC:
		s.state = payloadEscape
	case '\n':
		s.state = ground
		s.inGround(r, raw)
	}
}

// character lets a printable character through, or spells it out.
func (s *scanner) character(r rune) {
	switch kind := classify(r); {
	case kind == visible, kind == joining && joins(s.prev, r):
		s.literal(r)
		return
	case kind == reserved:
	case kind == bidirectional:
		s.found |= flagBidi
	default:
		s.found |= flagInvisible
	}
	s.spell(r)
}

func (s *scanner) literal(r rune) {
	s.out = utf8.AppendRune(s.out, r)
	s.prev = r
}

func (s *scanner) spell(r rune) {
	s.out = fmt.Appendf(s.out, "<U+%04X>", r)
	s.prev = 0
}

func (s *scanner) spellByte(b byte) {
	const digits = "0123456789abcdef"
	s.out = append(s.out, '\\', 'x', digits[b>>4], digits[b&15])
	s.prev = 0
}
