package output

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestView(t *testing.T) {
	tests := []struct {
		name, head, tail string
		omitted          int64
		cut              bool
		want, flags      string
	}{
		{"whole", "ab", "cd", 0, false, "abcd", ""},
		{"a character over the seam of a whole view", "a\xc3", "\xbcb", 0, false, "aüb", ""},
		{"gap", "ab", "cd\n", 5, false, "ab\n⁘ 5 bytes left out ⁘\ncd\n", ""},
		{"gap after a line", "ab\n", "cd\n", 5, false, "ab\n⁘ 5 bytes left out ⁘\ncd\n", ""},
		{"nothing shown", "", "", 5, false, "⁘ 5 bytes left out ⁘\n", ""},
		{"cut characters are counted", "a\xf0\x9f", "\x98\x80b", 5, false, "a\n⁘ 9 bytes left out ⁘\nb", ""},
		{"invalid is not taken for cut", "abcdef\xff", "\xffghijkl", 5, false,
			"abcdef\ufffd\n⁘ 5 bytes left out ⁘\n\ufffdghijkl", "invalid_utf8"},
		{"cut line end", "a\r", "b", 5, false, "a\n⁘ 6 bytes left out ⁘\nb", ""},
		{"sequence over the gap", "a\x1b]0;t", "itle\x07b\n", 5, false,
			"a\n⁘ 5 bytes left out ⁘\nitle\\x07b\n", "ansi"},
		{"cut at the limit", "", "ab\xe2\x82", 0, true, "ab", ""},
		{"not cut at the limit", "", "abcdefgh\xe2\x82", 0, false, "abcdefgh\ufffd\ufffd", "invalid_utf8"},
		{"forged", "x\n⁘ 5 bytes left out ⁘\n", "y", 7, false,
			"x\n<U+2058> 5 bytes left out <U+2058>\n⁘ 7 bytes left out ⁘\ny", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, found := view([]byte(tt.head), []byte(tt.tail), tt.omitted, tt.cut)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("text (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.flags, strings.Join(found.names(), " ")); diff != "" {
				t.Errorf("flags (-want +got):\n%s", diff)
			}
		})
	}
}
