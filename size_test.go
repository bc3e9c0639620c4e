package glovebox

import (
	"math"
	"testing"
)

func TestParseSize(t *testing.T) {
	for text, want := range map[string]Size{
		"0": 0, "4096": 4096, "10B": 10, "256MiB": 256 * MiB, "1.5GiB": GiB + GiB/2, "64M": 64 * MiB, "100MB": 100e6,
		" 2 KiB ": 2 * KiB, "1T": TiB, "3kB": 3000, "9223372036854775807": math.MaxInt64,
	} {
		if got, err := ParseSize(text); err != nil || got != want {
			t.Errorf("%q is %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", " ", "-1", "NaN", "Inf", "1e18", "0x10", "MiB", ".", "1.2.3KiB", "1.5", "1.5B", "10 000",
		"9223372036854775808",
		"9000000TiB", "9007199254740992.5KiB", "null", "1 MiB x", "٣MiB"} {
		if got, err := ParseSize(text); err == nil {
			t.Errorf("%q is taken for %d", text, got)
		}
	}
}

func FuzzParseSize(f *testing.F) {
	for _, text := range []string{"0", "1.5GiB", "64M", "", "-1", "9223372036854775807", "1e400"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseSize(text)
		if err == nil && s < 0 {
			t.Errorf("%q is %d", text, s)
		}
		// Printed with one decimal at most, so nearly the same.
		if err != nil || s > 1<<62 {
			return
		}
		if again, err := ParseSize(s.String()); err != nil || math.Abs(float64(again-s)) > float64(s)/15 {
			t.Errorf("%q is %d, prints as %v, which is %d, %v", text, s, s, again, err)
		}
	})
}
