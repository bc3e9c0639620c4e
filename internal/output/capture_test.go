package output

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"glovebox"
)

// in is an existing folder as Config wants it.
func in(dir string) func() (string, error) { return func() (string, error) { return dir, nil } }

func newCapture(t *testing.T, limit, view glovebox.Size) *Capture {
	t.Helper()
	c, err := New(Config{Limit: limit, View: view, Dir: in(t.TempDir())})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// feed copies both streams one after the other and finishes.
func feed(t *testing.T, c *Capture, stdout, stderr io.Reader) Captured {
	t.Helper()
	for name, r := range map[string]io.Reader{"stdout": stdout, "stderr": stderr} {
		if err := c.Copy(name, r); err != nil {
			t.Fatal(err)
		}
	}
	got, err := c.Finish()
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func kept(t *testing.T, s Stream) []byte {
	t.Helper()
	if s.Path == "" {
		return s.Memory
	}
	b, err := os.ReadFile(s.Path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

func TestCaptureSmall(t *testing.T) {
	c := newCapture(t, glovebox.MiB, 16*glovebox.KiB)
	got := feed(t, c, strings.NewReader("4\n"), strings.NewReader("\x1b[31mboom\x1b[0m"))
	want := Captured{
		Stdout: Stream{Bytes: 2, Kept: 2, SHA256: sum([]byte("4\n")), Memory: []byte("4\n"), View: "4\n"},
		Stderr: Stream{Bytes: 13, Kept: 13, SHA256: sum([]byte("\x1b[31mboom\x1b[0m")),
			Memory: []byte("\x1b[31mboom\x1b[0m"), View: "boom"},
		Flags: []string{"ansi"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestCaptureSilent(t *testing.T) {
	got := feed(t, newCapture(t, 1, 1), strings.NewReader(""), strings.NewReader(""))
	want := Captured{Stdout: Stream{SHA256: sum(nil)}, Stderr: Stream{SHA256: sum(nil)}, Flags: []string{}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestCaptureEdgeOfTheLimit(t *testing.T) {
	for _, limit := range []int{1024, memoryFirst, memoryFirst + 1, 3*copyMost + 7} {
		for _, over := range []int{-1, 0, 1, 88, 2 * copyMost} {
			t.Run(fmt.Sprintf("%d%+d", limit, over), func(t *testing.T) {
				c := newCapture(t, glovebox.Size(limit), glovebox.Size(limit)+16)
				data := bytes.Repeat([]byte("0123456789\n"), (limit+over)/11+1)[:limit+over]
				got := feed(t, c, iotest.HalfReader(bytes.NewReader(data)), strings.NewReader("")).Stdout
				want := data[:min(limit, len(data))]
				if !bytes.Equal(kept(t, got), want) || got.Kept != int64(len(want)) || got.SHA256 != sum(want) {
					t.Errorf("kept %d bytes, want exactly the first %d", got.Kept, len(want))
				}
				if got.Bytes != int64(len(data)) {
					t.Errorf("counted %d bytes, want %d", got.Bytes, len(data))
				}
				if isClosed(c.Exceeded()) != (over > 0) || got.Truncated != (over > 0) {
					t.Errorf("exceeded %v, truncated %v, want %v", isClosed(c.Exceeded()), got.Truncated, over > 0)
				}
				if string(got.View) != string(want) {
					t.Errorf("the view has %d bytes, want the %d kept", len(got.View), len(want))
				}
			})
		}
	}
}

// Both streams are written through real pipes at once; neither waits for the other, and the limit counts both.
func TestCaptureBothStreams(t *testing.T) {
	const each = 1 << 20
	for _, limit := range []int{4 * each, each + each/2} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			live := map[string]int{}
			c, err := New(Config{Limit: glovebox.Size(limit), View: 64, Dir: in(t.TempDir()),
				Live: func(stream string, p []byte) { live[stream] += len(p) }}) // one call at a time: no lock
			if err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			for name, letter := range map[string]string{"stdout": "o", "stderr": "e"} {
				r, w, err := os.Pipe()
				if err != nil {
					t.Fatal(err)
				}
				wg.Go(func() {
					defer w.Close()
					for range each / 1024 {
						_, _ = io.WriteString(w, strings.Repeat(letter, 1024))
					}
				})
				wg.Go(func() {
					defer r.Close()
					if err := c.Copy(name, r); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			got, err := c.Finish()
			if err != nil {
				t.Fatal(err)
			}
			if got.Stdout.Bytes != each || got.Stderr.Bytes != each {
				t.Errorf("read %d and %d bytes", got.Stdout.Bytes, got.Stderr.Bytes)
			}
			if sum := got.Stdout.Kept + got.Stderr.Kept; sum != int64(min(limit, 2*each)) {
				t.Errorf("kept %d bytes of both", sum)
			}
			for s, letter := range map[*Stream]string{&got.Stdout: "o", &got.Stderr: "e"} {
				if b := kept(t, *s); int64(len(b)) != s.Kept || strings.Trim(string(b), letter) != "" {
					t.Errorf("stream %s is mixed or short", letter)
				}
			}
			want := map[string]int{"stdout": int(got.Stdout.Kept), "stderr": int(got.Stderr.Kept)}
			if diff := cmp.Diff(want, live); diff != "" {
				t.Errorf("live (-kept +seen):\n%s", diff)
			}
		})
	}
}

// repeat reads as n bytes of a line, over and over, without holding them.
type repeat struct {
	line string
	n    int64
}

func (r *repeat) Read(p []byte) (int, error) {
	if r.n == 0 {
		return 0, io.EOF
	}
	n := 0
	for n < len(p) && r.n > 0 {
		k := copy(p[n:], r.line[:min(int64(len(r.line)), r.n)])
		n += k
		r.n -= int64(k)
	}
	return n, nil
}

func TestCaptureFloodLeavesMemoryAlone(t *testing.T) {
	const flood = 128 << 20
	c := newCapture(t, 8*glovebox.MiB, 16*glovebox.KiB)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	if err := c.Copy("stdout", &repeat{"y\n", flood}); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 1<<20 {
		t.Errorf("%d bytes were allocated", grown)
	}
	got, err := c.Finish()
	if err != nil {
		t.Fatal(err)
	}
	if s := got.Stdout; s.Bytes != flood || s.Kept != 8<<20 || !s.Truncated || !isClosed(c.Exceeded()) {
		t.Errorf("read %d, kept %d, truncated %v", s.Bytes, s.Kept, s.Truncated)
	}
}

func TestCaptureErrorAtEitherEnd(t *testing.T) {
	const noise, size = 50 << 20, 16 << 10
	c := newCapture(t, 64*glovebox.MiB, size)
	got := feed(t, c, io.MultiReader(strings.NewReader("first error\n"), &repeat{"noise\n", noise},
		strings.NewReader("\nlast error\n")), strings.NewReader("")).Stdout
	head, tail, found := strings.Cut(string(got.View), fmt.Sprintf("⁘ %d bytes left out ⁘\n", got.Bytes-size))
	if !found || len(strings.TrimSuffix(head, "\n"))+1 < size/2 || len(tail) != size/2 {
		t.Errorf("found %v, %d bytes before the mark and %d after", found, len(head), len(tail))
	}
	if !strings.HasPrefix(head, "first error\n") || !strings.HasSuffix(tail, "\nlast error\n") {
		t.Error("an end of the output is not shown")
	}
	if !got.Truncated || got.Kept != got.Bytes {
		t.Errorf("truncated %v, kept %d of %d", got.Truncated, got.Kept, got.Bytes)
	}
}

// The view must not depend on how the bytes arrive, whatever the sizes of its parts.
func TestCaptureViewOfAnyArrival(t *testing.T) {
	data := []byte(strings.Repeat("0123456789", 50))
	for _, size := range []int{0, 1, 2, 7, 100, 499, 500, 501} {
		for name, r := range map[string]io.Reader{
			"at once": bytes.NewReader(data), "byte by byte": iotest.OneByteReader(bytes.NewReader(data)),
			"in threes": &threes{data},
		} {
			t.Run(fmt.Sprint(size, " ", name), func(t *testing.T) {
				got := feed(t, newCapture(t, 1000, glovebox.Size(size)), r, strings.NewReader("")).Stdout
				want := string(data)
				if size < len(data) {
					want = string(data[:size/2])
					if want != "" {
						want += "\n"
					}
					want += fmt.Sprintf("⁘ %d bytes left out ⁘\n%s", len(data)-size, data[len(data)-(size-size/2):])
				}
				if diff := cmp.Diff(want, string(got.View)); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		}
	}
}

type threes struct{ rest []byte }

func (r *threes) Read(p []byte) (int, error) {
	if len(r.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p, r.rest[:min(3, len(r.rest))])
	r.rest = r.rest[n:]
	return n, nil
}

func TestCaptureBinaryIsExact(t *testing.T) {
	var all []byte
	for i := range 256 {
		all = append(all, byte(i))
	}
	data := bytes.Repeat(all, 1000)
	got := feed(t, newCapture(t, glovebox.MiB, 16*glovebox.KiB), bytes.NewReader(data), bytes.NewReader(all))
	if !bytes.Equal(kept(t, got.Stdout), data) || !bytes.Equal(kept(t, got.Stderr), all) {
		t.Error("bytes were changed")
	}
	if got.Stdout.Path == "" || got.Stdout.Memory != nil || got.Stderr.Path != "" {
		t.Error("the large stream is not in a file, or the small one is")
	}
	if info, err := os.Stat(got.Stdout.Path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("file mode: %v, %v", info.Mode(), err)
	}
	checkInert(t, strings.ReplaceAll(string(got.Stdout.View), string(mark), ""))
}

func TestCaptureFlagsOfTheHiddenMiddle(t *testing.T) {
	tests := []struct{ name, middle, flags string }{
		{"clean", "ü漢😀", ""},
		{"escape", "\x1b[0m", "ansi"},
		{"NUL", "\x00", "binary"},
		{"invalid", "\xe2\x82x", "invalid_utf8"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := strings.Repeat("ü", 1000) + tt.middle + strings.Repeat("ü", 1000)
			for _, r := range []io.Reader{strings.NewReader(in), iotest.OneByteReader(strings.NewReader(in))} {
				got := feed(t, newCapture(t, glovebox.MiB, 64), r, strings.NewReader(""))
				if diff := cmp.Diff(tt.flags, strings.Join(got.Flags, " ")); diff != "" {
					t.Errorf("flags (-want +got):\n%s", diff)
				}
			}
		})
	}
}

func TestCaptureCutCharacter(t *testing.T) {
	got := feed(t, newCapture(t, 5, 64), strings.NewReader("abcdü"), strings.NewReader(""))
	if got.Stdout.View != "abcd" || len(got.Flags) != 0 || got.Stdout.Kept != 5 {
		t.Errorf("cut by the limit: view %q, flags %v", string(got.Stdout.View), got.Flags)
	}
	got = feed(t, newCapture(t, 5, 64), strings.NewReader("abcdefgh\xc3"), strings.NewReader(""))
	if len(got.Flags) != 0 {
		t.Errorf("cut when the program was ended at the limit: flags %v", got.Flags)
	}
	got = feed(t, newCapture(t, 50, 64), strings.NewReader("abcd\xc3"), strings.NewReader(""))
	if diff := cmp.Diff([]string{"invalid_utf8"}, got.Flags); diff != "" {
		t.Errorf("cut by the program (-want +got):\n%s", diff)
	}
}

func TestCaptureFailures(t *testing.T) {
	t.Run("the file cannot be made", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.Symlink("/dev/null", filepath.Join(dir, "stdout")); err != nil {
			t.Fatal(err)
		}
		c, err := New(Config{Limit: glovebox.MiB, View: 64, Dir: in(dir)})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Copy("stdout", &repeat{"y\n", 300 << 10}); err != nil {
			t.Fatal(err)
		}
		got, err := c.Finish()
		if !errors.Is(err, os.ErrExist) {
			t.Errorf("Finish: %v", err)
		}
		s := got.Stdout
		if s.Bytes != 300<<10 || s.Kept > memoryFirst || int64(len(s.Memory)) != s.Kept || s.Path != "" || !s.Truncated ||
			s.SHA256 != sum(s.Memory) {
			t.Errorf("read %d, kept %d, in memory %d, path %q", s.Bytes, s.Kept, len(s.Memory), s.Path)
		}
	})
	t.Run("the disk fills up", func(t *testing.T) {
		c := newCapture(t, glovebox.MiB, 64)
		s := c.streams["stdout"]
		if err := c.Copy("stdout", &repeat{"y\n", 100 << 10}); err != nil {
			t.Fatal(err)
		}
		before := s.kept
		full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		_ = s.file.Close()
		s.file = full
		if err := c.Copy("stdout", &repeat{"y\n", 3 << 20}); err != nil {
			t.Fatal(err)
		}
		got, err := c.Finish()
		if err == nil || got.Stdout.Kept != before || got.Stdout.Bytes != 100<<10+3<<20 || !isClosed(c.Exceeded()) {
			t.Errorf("kept %d, read %d: %v", got.Stdout.Kept, got.Stdout.Bytes, err)
		}
	})
}

func TestCaptureReadFailures(t *testing.T) {
	t.Run("reading fails", func(t *testing.T) {
		c := newCapture(t, glovebox.MiB, 64)
		broken := errors.New("broken pipe")
		err := c.Copy("stderr", io.MultiReader(strings.NewReader("said before"), iotest.ErrReader(broken)))
		if !errors.Is(err, broken) {
			t.Errorf("Copy: %v", err)
		}
		if got, err := c.Finish(); err != nil || got.Stderr.View != "said before" {
			t.Errorf("view %q: %v", string(got.Stderr.View), err)
		}
	})
	t.Run("a reader that makes no progress", func(t *testing.T) {
		err := newCapture(t, 1, 1).Copy("stdout", readerFunc(func([]byte) (int, error) { return 0, nil }))
		if !errors.Is(err, io.ErrNoProgress) {
			t.Errorf("Copy: %v", err)
		}
	})
	t.Run("unknown stream", func(t *testing.T) {
		if err := newCapture(t, 1, 1).Copy("stdlog", strings.NewReader("")); err == nil {
			t.Error("Copy succeeded")
		}
	})
}

// A folder is asked for when a stream no longer fits memory, and what is wrong with it costs what follows, not the run.
func TestFolderWhenNeeded(t *testing.T) {
	dir := t.TempDir()
	for name, where := range map[string]func() (string, error){
		"none":     func() (string, error) { return "", errors.New("none to be had") },
		"relative": func() (string, error) { return filepath.Base(dir), nil },
	} {
		t.Run(name, func(t *testing.T) {
			asked := 0
			c, err := New(Config{Limit: 1 << 20, View: 64, Dir: func() (string, error) { asked++; return where() }})
			if err != nil {
				t.Fatal(err)
			}
			c.take("stdout", c.streams["stdout"], make([]byte, memoryFirst))
			if asked != 0 {
				t.Error("a folder was asked for while all fitted memory")
			}
			c.take("stdout", c.streams["stdout"], []byte("x"))
			got, err := c.Finish()
			if asked != 1 || err == nil || got.Stdout.Kept != memoryFirst || got.Stdout.Bytes != memoryFirst+1 {
				t.Errorf("asked %d times; kept %d of %d bytes, %v", asked, got.Stdout.Kept, got.Stdout.Bytes, err)
			}
		})
	}
}

func TestNewRefuses(t *testing.T) {
	dir := in(t.TempDir())
	for name, config := range map[string]Config{
		"no limit": {Dir: dir}, "negative view": {Limit: 1, View: -1, Dir: dir}, "no folder": {Limit: 1},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := New(config); err == nil {
				t.Error("New succeeded")
			}
		})
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
