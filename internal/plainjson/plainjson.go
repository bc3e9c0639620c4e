// Package plainjson writes JSON of which every character prints: control, bidirectional and invisible characters, which a
// terminal might act on or not show, are written as \u escapes. They mean the same to every reader of JSON.
package plainjson

import (
	"bytes"
	"encoding/json"
	"unicode"
	"unicode/utf8"
)

const hex = "0123456789abcdef"

// Append appends v as one line of JSON, with its newline.
func Append(b []byte, v any) ([]byte, error) {
	var plain bytes.Buffer
	e := json.NewEncoder(&plain)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return b, err
	}
	return escapeUnseen(b, plain.Bytes()), nil
}

// escapeUnseen appends JSON text whose characters that do not print are escaped. They occur only within its strings.
func escapeUnseen(b, text []byte) []byte {
	from := 0 // what was not appended yet
	for i := 0; i < len(text); {
		if c := text[i]; c < utf8.RuneSelf && c != 0x7f {
			i++
			continue
		}
		r, n := utf8.DecodeRune(text[i:])
		if !unicode.IsPrint(r) {
			b = appendEscape(append(b, text[from:i]...), r)
			from = i + n
		}
		i += n
	}
	return append(b, text[from:]...)
}

// AppendString appends s as a JSON string. s is UTF-8: a byte that is not would be read back as another character.
func AppendString[T string | []byte](b []byte, s T) []byte {
	b = append(b, '"')
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= ' ' && c < 0x7f && c != '"' && c != '\\' {
			i++
			continue
		}
		r, n := rune(c), 1
		if c >= utf8.RuneSelf {
			r, n = utf8.DecodeRuneInString(string(s[i:min(i+utf8.UTFMax, len(s))]))
			if unicode.IsPrint(r) {
				i += n
				continue
			}
		}
		b = append(b, s[from:i]...)
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, '\\', 'n')
		default:
			b = appendEscape(b, r)
		}
		i += n
		from = i
	}
	return append(append(b, s[from:]...), '"')
}

// appendEscape appends r as one or two \u escapes.
func appendEscape(b []byte, r rune) []byte {
	if r > 0xffff {
		r -= 0x10000
		return appendUnit(appendUnit(b, 0xd800+r>>10), 0xdc00+r&0x3ff)
	}
	return appendUnit(b, r)
}

func appendUnit(b []byte, r rune) []byte {
	return append(b, '\\', 'u', hex[r>>12&15], hex[r>>8&15], hex[r>>4&15], hex[r&15])
}
