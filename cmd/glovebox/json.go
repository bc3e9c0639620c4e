package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"unicode"
	"unicode/utf8"
)

// writeJSON writes v as one line of JSON. Characters that a terminal might act on or not show (control, bidirectional,
// invisible ones) are written as \u escapes, which mean the same to every reader of JSON.
func writeJSON(w io.Writer, v any) error {
	var plain bytes.Buffer
	e := json.NewEncoder(&plain)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err
	}
	_, err := w.Write(escapeUnseen(plain.Bytes()))
	return err
}

// escapeUnseen escapes characters of JSON text that do not print. They occur only within its strings.
func escapeUnseen(text []byte) []byte {
	out := make([]byte, 0, len(text))
	for len(text) > 0 {
		r, n := utf8.DecodeRune(text)
		switch {
		case r == '\n' || r < utf8.RuneSelf && r != 0x7f || unicode.IsPrint(r):
			out = append(out, text[:n]...)
		case r <= 0xffff:
			out = fmt.Appendf(out, `\u%04x`, r)
		default:
			r -= 0x10000
			out = fmt.Appendf(out, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		}
		text = text[n:]
	}
	return out
}
