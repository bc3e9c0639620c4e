package client

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"glovebox"
)

// Bounds of what is sent.
const (
	maxRequest = 16 * glovebox.MiB // as the door has it
	maxStdin   = 4 * glovebox.MiB
)

// request is a glovebox.Request with what it does not show of itself.
type request struct {
	glovebox.Request
	Stdin    string `json:"stdin,omitempty"` // in place of the Request's own
	StdinRaw []byte `json:"stdin_base64,omitempty"`
	CodeName string `json:"code_name,omitempty"`
	Collect  bool   `json:"collect"`
}

// encode writes a request as the door reads it. Its errors have ErrNotSent: what JSON would change is not sent.
func encode(q glovebox.Request) ([]byte, error) {
	const fix = "say --local, or start it without a server"
	q.Inputs = slices.Clone(q.Inputs)
	for i := range q.Inputs {
		in := &q.Inputs[i]
		if in.Path == "" {
			continue
		}
		path, err := inputPath(in.Path)
		if err != nil {
			return nil, notSent(glovebox.CodeInvalid, err, fix, "an input's path means nothing to a server: it is this process's own")
		}
		in.Path = path
	}
	if l := q.Limits; l.Wall%time.Millisecond != 0 || l.CPU%time.Millisecond != 0 {
		return nil, notSent(glovebox.CodeInvalid, nil, "use whole milliseconds, or say --local",
			"a server is told times in whole milliseconds")
	}
	if !whole(&q) {
		return nil, notSent(glovebox.CodeInvalid, nil, fix,
			"the request has text that is not UTF-8, which a server cannot be told")
	}
	out := request{Request: q, CodeName: q.CodeName, Collect: q.Collect}
	switch in := []byte(q.Stdin); {
	case q.StdinFrom != nil:
		piece, err := smallFile(q.StdinFrom)
		if err != nil {
			return nil, err
		}
		out.StdinRaw = piece
	case utf8.Valid(in):
		out.Stdin = q.Stdin
	default:
		out.StdinRaw = in
	}
	text, err := json.Marshal(out)
	if err != nil { // a number that is none
		return nil, notSent(glovebox.CodeInvalid, err, "use plain numbers", "the request cannot be written as JSON")
	}
	if len(text) > int(maxRequest) {
		return nil, notSent(glovebox.CodeInvalid, nil, "pass bulk with --input, or say --local",
			"the request has more than %s, which is the most that a server takes", maxRequest)
	}
	return text, nil
}

// inputPath is a path that the server finds the same file at: absolute, and not one that means something else to each
// process. It fails where that cannot be told.
func inputPath(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	for _, own := range []string{"/proc", "/dev"} {
		if within(abs, own) {
			return "", os.ErrInvalid
		}
	}
	real, err := filepath.EvalSymlinks(abs)
	if err == nil && (within(real, "/proc") || within(real, "/dev")) {
		return "", os.ErrInvalid
	}
	return abs, nil // the server says what is wrong with one that does not exist
}

func within(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

// whole tells whether all text of the request is UTF-8, but for standard input.
func whole(q *glovebox.Request) bool {
	texts := []string{q.Lang, q.Code, q.CodeName, string(q.Trust), string(q.Isolation), q.Image, q.Session}
	texts = append(append(append(texts, q.Argv...), q.Args...), q.Allow...)
	texts = append(texts, q.Actions...)
	for name, value := range q.Env {
		texts = append(texts, name, value)
	}
	for _, in := range q.Inputs {
		texts = append(texts, in.Name, in.Content, in.ContentBase64, in.Path, in.Run, in.Artifact)
	}
	for _, s := range q.Secrets {
		texts = append(texts, s.Name, s.Host)
	}
	return !slices.ContainsFunc(texts, func(s string) bool { return !utf8.ValidString(s) })
}

// smallFile reads what a file holds from where it stands, which does not change, so that it can still be read elsewhere.
// Anything else that can be read is a stream, and what is empty may become one.
func smallFile(r io.Reader) ([]byte, error) {
	stream := notSent(glovebox.CodeUnavailable, nil,
		"name a FILE of 1 byte to "+maxStdin.String()+" with --stdin, or say --local",
		"standard input that is streamed cannot be sent to a server in this version")
	f, ok := r.(*os.File)
	if !ok {
		return nil, stream
	}
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() > int64(maxStdin) {
		return nil, stream
	}
	at, err := f.Seek(0, io.SeekCurrent)
	if err != nil || info.Size() <= at {
		return nil, stream
	}
	b, err := io.ReadAll(io.NewSectionReader(f, at, int64(maxStdin)+1))
	if err != nil || len(b) == 0 || len(b) > int(maxStdin) {
		return nil, stream
	}
	return b, nil
}
