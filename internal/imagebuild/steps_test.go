package imagebuild

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

func TestSteps(t *testing.T) {
	var shown bytes.Buffer
	s := &steps{to: &shown}
	for i := range 100 {
		fmt.Fprintf(s, "dpkg: line %d\n", i)
	}
	fmt.Fprint(s, "==> pac", "king\nno end "+strings.Repeat("x", 2*longestLine))
	if got := shown.String(); got != "packing\n" {
		t.Errorf("while it goes well: %q", got)
	}
	s.tell()
	lines := strings.Split(strings.TrimSuffix(shown.String(), "\n"), "\n")
	if len(lines) != 2+lastLines || lines[2] != "  dpkg: line 61" || len(lines[41]) != 2+longestLine {
		t.Errorf("%d lines: %q", len(lines), lines)
	}
	if !strings.Contains(assembleScript, `echo "`+stepMark) {
		t.Error("the script marks no step")
	}
}
