package plainjson

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestUnseenIsEscaped(t *testing.T) {
	for text, want := range map[string]string{
		"plain <b> é 漢 😀":                `"plain <b> é 漢 😀"`,
		"a\"b\\c\nd":                     `"a\"b\\c\nd"`,
		"\x1b[31m\x7f\x00":               `"\u001b[31m\u007f\u0000"`,
		"\u0085\u202e\u200b\ufeff\u2028": `"\u0085\u202e\u200b\ufeff\u2028"`,
		"x\U000e0041y":                   `"x\udb40\udc41y"`,
		"":                               `""`,
	} {
		got, err := Append(nil, text)
		if err != nil || string(got) != want+"\n" {
			t.Errorf("Append(%q) = %s, %v, want %s", text, got, err, want)
		}
		if got := AppendString(nil, text); string(got) != want {
			t.Errorf("AppendString(%q) = %s, want %s", text, got, want)
		}
	}
	if _, err := Append(nil, func() {}); err == nil {
		t.Error("a function was written as JSON")
	}
}

func FuzzAppendString(f *testing.F) {
	f.Add("a\x1b\u202e\U000e0041\"\\")
	f.Fuzz(func(t *testing.T, s string) {
		if !utf8.ValidString(s) {
			t.Skip("not UTF-8")
		}
		text := AppendString([]byte("x"), s)[1:]
		if strings.ContainsFunc(string(text), func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("%q holds what does not print", text)
		}
		if again := AppendString(nil, []byte(s)); string(again) != string(text) {
			t.Errorf("bytes give %q and a string %q", again, text)
		}
		var back string
		if err := json.Unmarshal(text, &back); err != nil || back != s {
			t.Errorf("%q was read back as %q, %v", s, back, err)
		}
	})
}
