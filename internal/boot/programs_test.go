package boot

import (
	_ "embed"
	"strings"
	"testing"
)

//go:embed testdata/alike.txt
var alike string

// programs are those of a group, by name.
func programs(t *testing.T, group string) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, part := range strings.Split("\n"+alike, "\n-- ")[1:] {
		head, code, ok := strings.Cut(part, " --\n")
		g, name, ok2 := strings.Cut(head, ": ")
		if !ok || !ok2 || g == group && found[name] != "" {
			t.Fatalf("testdata/alike.txt has %q", head)
		}
		if g == group {
			found[name] = strings.TrimRight(code, "\n") + "\n"
		}
	}
	if len(found) == 0 {
		t.Fatalf("testdata/alike.txt has no %s", group)
	}
	return found
}

// oddPrograms are no plain text.
var oddPrograms = map[string]string{
	"null byte": "x = 1\x00\n",
	"bad utf-8": "x = '\xff'\n",
	"bom":       "\xef\xbb\xbfprint('x')\n",
	"coding":    "# -*- coding: latin-1 -*-\nprint(ascii('\xe9'))\n",
}
