package process_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"glovebox/driver"
)

// TestGivenFiles: a program finds the descriptors that it is given from 3 on, in order, and no others.
func TestGivenFiles(t *testing.T) {
	w := newWarm(t)
	var files []*os.File
	for i := range driver.MaxFiles {
		name := filepath.Join(t.TempDir(), "given")
		if err := os.WriteFile(name, fmt.Appendf(nil, "%d ", i), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		files = append(files, f)
	}
	for _, n := range []int{0, 1, driver.MaxFiles} {
		s, err := w.driver.Start(context.Background(), w.spec())
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close(context.Background())
		p, err := s.Exec(context.Background(), driver.Command{
			Argv: []string{"/bin/bash", "-c", "for f in $(seq 3 $((2 + $1))); do cat <&$f; done; echo; cat /code/main.txt; ls /proc/self/fd | wc -l",
				"sh", fmt.Sprint(n)},
			Env: []string{"PATH=/usr/bin:/bin"}, Dir: "/", Files: files[:n], Code: []byte("code\n"), CodeName: "main.txt"})
		if err != nil {
			t.Fatal(err)
		}
		want := ""
		for i := range n {
			want += fmt.Sprintf("%d ", i)
		}
		want += fmt.Sprintf("\ncode\n%d\n", n+4) // ls has one of its own
		if d := cmp.Diff(ended{Out: want}, finished(t, p)); d != "" {
			t.Errorf("%d descriptors (-want +got):\n%s", n, d)
		}
		if _, err := s.Exec(context.Background(), driver.Command{Argv: []string{"/bin/true"}, Dir: "/",
			Files: append(files, files[0])}); err == nil {
			t.Errorf("more than %d descriptors were taken", driver.MaxFiles)
		}
		for _, f := range files {
			if _, err := f.Seek(0, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
}
