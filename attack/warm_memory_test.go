package attack_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"glovebox"
)

// TestCR01WarmMemory: what was ready before has nothing in its memory of whoever made it, nor of another run.
func TestCR01WarmMemory(t *testing.T) {
	code := read("programs/lt_memory.py")
	plant := func(place string) string { return fmt.Sprintf("planted-%s-%08d", place, os.Getpid()) }
	t.Setenv("AWS_SECRET_ACCESS_KEY", plant("environment"))
	for name, forks := range map[string]bool{"fork": true, "spare": false} {
		t.Run(name, func(t *testing.T) {
			w := newWarmSoak(t, forks)
			input := filepath.Join(w.dir, plant("input name"))
			if err := os.WriteFile(input, []byte(plant("input")), 0o644); err != nil {
				t.Fatal(err)
			}
			for n := range 6 {
				w.ready()
				other, err := w.run(t.Context(), glovebox.Request{Code: "import sys; a = '" + plant("code") + "' + sys.stdin.read(); print(a)",
					Args: []string{plant("argument")}, Env: map[string]string{"A": plant("variable")}, Stdin: plant("stdin"),
					Inputs: []glovebox.Input{{Name: plant("name") + ".csv", Path: input}}}, nil)
				if err != nil || !other.OK || other.Start != name {
					t.Fatalf("%+v, %v", other, err)
				}
				w.ready()
				own := fmt.Sprintf("planted-own-%08d", n)
				res, err := w.run(t.Context(), glovebox.Request{Code: code, Args: []string{own}}, nil)
				if err != nil || res.Start != name {
					t.Fatalf("%+v, %v", res, err)
				}
				out := string(res.Stdout)
				if !regexp.MustCompile(`^searched \d+ MiB own True\nend\n$`).MatchString(out) || strings.Contains(out, "searched 0") {
					t.Errorf("%s\n%s", out, res.Stderr)
				}
			}
		})
	}
}
