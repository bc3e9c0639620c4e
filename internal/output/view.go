package output

import (
	"fmt"
	"unicode/utf8"
)

// view makes inert text of the first and the last bytes of a stream. Where omitted bytes lie between them, one line says so
// with the exact number of bytes that are not shown there:
//
//	⁘ 1234 bytes left out ⁘
//
// A character cut by the gap is left out whole and counted. cut says that the stream goes on after tail, so that a character
// cut there is no fault of the program either.
func view(head, tail []byte, omitted int64, cut bool) (string, flags) {
	var s scanner
	if omitted > 0 {
		head, omitted = trimEnd(head, omitted)
		tail, omitted = trimStart(tail, omitted)
	}
	s.write(head)
	if omitted > 0 {
		s.finish()
		if len(s.out) > 0 && s.out[len(s.out)-1] != '\n' {
			s.out = append(s.out, '\n')
		}
		s.out = fmt.Appendf(s.out, "%c %d bytes left out %c\n", mark, omitted, mark)
	}
	s.write(tail)
	if cut {
		s.held = 0
	}
	s.finish()
	text := string(s.out)
	return text, s.judge() | suspect(text)
}

// trimEnd drops from the end of p a cut character, or the first half of a line end, and adds it to omitted.
func trimEnd(p []byte, omitted int64) ([]byte, int64) {
	n := len(p) - unfinished(p)
	if n > 0 && n == len(p) && p[n-1] == '\r' {
		n--
	}
	return p[:n], omitted + int64(len(p)-n)
}

// trimStart drops from the start of p the rest of a cut character and adds it to omitted.
func trimStart(p []byte, omitted int64) ([]byte, int64) {
	n := 0
	for n < len(p) && n < utf8.UTFMax-1 && !utf8.RuneStart(p[n]) {
		n++
	}
	return p[n:], omitted + int64(n)
}

// unfinished is how many bytes at the end of p begin a character that more bytes could complete.
func unfinished(p []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(p); n++ {
		if last := p[len(p)-n:]; utf8.RuneStart(last[0]) {
			if utf8.FullRune(last) {
				return 0
			}
			return n
		}
	}
	return 0
}
