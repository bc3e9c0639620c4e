package spelling

import (
	"strings"
	"testing"
)

func TestNearest(t *testing.T) {
	known := []string{"trusted", "model", "influenced", "hostile", "go"}
	for word, want := range map[string]string{
		"trusted": "trusted", "truted": "trusted", "modle": "model", "HOSTILE": "hostile", "influence": "influenced",
		"gx": "go", "zzzz": "", "": "", strings.Repeat("m", 1e6): "",
	} {
		if got := Nearest(word, known); got != want {
			t.Errorf("Nearest(%.20q) = %q, want %q", word, got, want)
		}
	}
}
