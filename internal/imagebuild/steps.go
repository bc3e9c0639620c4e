package imagebuild

import (
	"bytes"
	"fmt"
	"io"
)

// stepMark begins the lines of the assembly that say how far it is. All else is what tools print, which is much and, where
// all goes well, about nothing.
const stepMark = "==> "

// Bounds of what is kept of it.
const (
	lastLines   = 40
	longestLine = 1 << 10
)

// steps passes on the lines that say how far an assembly is, and keeps the last of the others. It is for one goroutine at a
// time.
type steps struct {
	to   io.Writer
	part []byte // of a line that has not ended, cut off where it is too long
	last []string
}

// Write never fails.
func (s *steps) Write(b []byte) (int, error) {
	for _, c := range b {
		if c != '\n' {
			if len(s.part) < longestLine {
				s.part = append(s.part, c)
			}
			continue
		}
		s.end()
	}
	return len(b), nil
}

// end takes the line that has ended.
func (s *steps) end() {
	if step, ok := bytes.CutPrefix(s.part, []byte(stepMark)); ok {
		fmt.Fprintf(s.to, "%s\n", step)
	} else if s.last = append(s.last, string(s.part)); len(s.last) > lastLines {
		s.last = s.last[1:]
	}
	s.part = s.part[:0]
}

// tell writes the last lines, for whoever has to find out why an assembly failed.
func (s *steps) tell() {
	if len(s.part) > 0 {
		s.end()
	}
	if len(s.last) > 0 {
		fmt.Fprintf(s.to, "the last of what its tools printed:\n")
	}
	for _, line := range s.last {
		fmt.Fprintf(s.to, "  %s\n", line)
	}
}
