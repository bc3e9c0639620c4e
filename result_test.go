package glovebox_test

import (
	"strings"
	"testing"

	"glovebox"
)

func TestParseStatus(t *testing.T) {
	for name, says := range map[string]string{
		"exited":                   "",
		"canceled":                 "",
		"disk_limit":               "",
		"exited 1":                 "did you mean exited?", // as a list shows it
		"wal_limit":                "did you mean wall_limit?",
		"cancelled":                "did you mean canceled?",
		"running":                  "one of exited, signaled, wall_limit,",
		"":                         "one of exited,",
		strings.Repeat("x", 1<<20): "one of exited,",
	} {
		got, err := glovebox.ParseStatus(name)
		known, _ := err.(*glovebox.Error)
		switch {
		case says == "" && (err != nil || string(got) != name):
			t.Errorf("%s: %q, %v", name, got, err)
		case says != "" && (known == nil || got != "" || !strings.Contains(known.Fix, says) || len(err.Error()) > 1000):
			t.Errorf("%.99q: %q, %.999v", name, got, err)
		}
	}
}
