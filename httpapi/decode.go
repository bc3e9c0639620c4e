package httpapi

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"glovebox"
	"glovebox/internal/spelling"
)

// body reads all of a request's body.
func (c *call) body() ([]byte, error) {
	if strings.HasPrefix(c.r.Header.Get("Content-Type"), "multipart/") {
		return nil, unbuilt("a request of several parts", "send the request as JSON; bulk goes by path")
	}
	if n := c.r.ContentLength; n > int64(maxBody) {
		return nil, tooLarge()
	}
	_ = c.rc.SetReadDeadline(time.Now().Add(bodyTime))
	var text bytes.Buffer
	if n := c.r.ContentLength; n > 0 {
		text.Grow(int(n) + bytes.MinRead)
	}
	_, err := text.ReadFrom(http.MaxBytesReader(c.w, c.r.Body, int64(maxBody)))
	_ = c.rc.SetReadDeadline(time.Time{})
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		return nil, tooLarge()
	}
	if err != nil {
		return nil, glovebox.Errorf(glovebox.CodeInvalid, "send it again, within "+bodyTime.String(),
			"the request's body did not arrive whole")
	}
	if !utf8.Valid(text.Bytes()) {
		return nil, glovebox.Errorf(glovebox.CodeInvalid, "send JSON in UTF-8; other bytes go as base64", "the body is not UTF-8")
	}
	return text.Bytes(), nil
}

func tooLarge() error {
	return glovebox.Errorf(glovebox.CodeInvalid, "pass bulk by path", "the request has more than %s", maxBody)
}

// fields are the names that an object may have, and where each goes: a pointer, or a func(*decoder) error.
type fields map[string]any

// decoder reads JSON strictly: each name is spelt exactly, known and there once. It remembers where it is, for messages.
type decoder struct {
	*json.Decoder
	at string
}

// decodeObject reads text, which is one object and nothing else.
func decodeObject(text []byte, f fields) error {
	d := &decoder{Decoder: json.NewDecoder(bytes.NewReader(text))}
	if err := d.object(f); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return glovebox.Errorf(glovebox.CodeInvalid, "send one JSON object", "something follows the request")
	}
	return nil
}

// begin reads the beginning of an object or a list, or null, which has none.
func (d *decoder) begin(with json.Delim, otherwise string) (none bool, err error) {
	t, err := d.Token()
	switch {
	case err != nil:
		return false, d.wrong(err)
	case t == nil:
		return true, nil
	case t != with:
		return false, d.bad(otherwise)
	}
	return false, nil
}

// object reads an object, or null for an empty one.
func (d *decoder) object(f fields) error {
	if none, err := d.begin('{', "is no object"); none || err != nil {
		return err
	}
	outer := d.at
	defer func() { d.at = outer }()
	seen := map[string]bool{}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return d.wrong(err)
		}
		name, _ := t.(string) // the names of an object are strings
		d.at = strings.TrimPrefix(outer+"."+name, ".")
		to, ok := f[name]
		switch {
		case !ok:
			d.at = outer
			return d.unknown(name, f)
		case seen[name]:
			return d.bad("is there twice")
		}
		seen[name] = true
		if err := d.value(to); err != nil {
			return err
		}
	}
	_, err := d.Token()
	return d.wrong(err)
}

// list reads an array of objects, or null for an empty one.
func (d *decoder) list(most int, each func() fields) error {
	if none, err := d.begin('[', "is no list"); none || err != nil {
		return err
	}
	outer := d.at
	defer func() { d.at = outer }()
	for n := 0; d.More(); n++ {
		if n == most {
			return d.bad(fmt.Sprintf("has more than %d elements", most))
		}
		d.at = fmt.Sprintf("%s[%d]", outer, n)
		if err := d.object(each()); err != nil {
			return err
		}
	}
	_, err := d.Token()
	return d.wrong(err)
}

func (d *decoder) value(to any) error {
	if read, ok := to.(func(*decoder) error); ok {
		return read(d)
	}
	return d.wrong(d.Decode(to))
}

// bad refuses what is at the place where the decoder is.
func (d *decoder) bad(why string) error {
	at := d.at
	if at == "" {
		at = "the request"
	}
	return glovebox.Errorf(glovebox.CodeInvalid, "docs/serve.md tells what a request holds", "%s %s", short(at), why)
}

// wrong says what is wrong with the JSON itself.
func (d *decoder) wrong(err error) error {
	var kind *json.UnmarshalTypeError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &kind):
		return d.bad("cannot be " + short(kind.Value))
	case d.at == "" && errors.Is(err, io.EOF):
		return glovebox.Errorf(glovebox.CodeInvalid, `send a request such as {"code":"print(1)"}`, "the body is empty")
	}
	return glovebox.Errorf(glovebox.CodeInvalid, "send one JSON object", "the request is no JSON at byte %d", d.InputOffset())
}

// unknown names the nearest field.
func (d *decoder) unknown(name string, f fields) error {
	known := slices.Sorted(maps.Keys(f))
	fix := "the fields here are " + strings.Join(known, ", ")
	n := spelling.Nearest(name, known)
	// What lacks its unit is further from its name than a slip.
	if i := slices.IndexFunc(known, func(k string) bool { return strings.HasPrefix(k, name+"_") }); n == "" && i >= 0 {
		n = known[i]
	}
	if n != "" {
		fix = "did you mean " + strings.TrimPrefix(d.at+"."+n, ".") + "?"
	}
	return glovebox.Errorf(glovebox.CodeInvalid, fix, "there is no field %q", short(strings.TrimPrefix(d.at+"."+name, ".")))
}

// short bounds a caller's word in a message.
func short(s string) string {
	const most = 120
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}

const maxList = 4096 // elements of a list of objects; the policy bounds what it takes further

// decodeRequest reads a run's request. Beyond the fields that a glovebox.Request shows there are code_name, stdin_base64 and
// collect, which is true where it is left out.
func decodeRequest(text []byte) (glovebox.Request, error) {
	q := glovebox.Request{Collect: true}
	var stdin []byte
	err := decodeObject(text, fields{
		"lang": &q.Lang, "code": &q.Code, "argv": &q.Argv, "args": &q.Args, "trust": &q.Trust, "isolation": &q.Isolation,
		"image": &q.Image, "env": &q.Env, "stdin": &q.Stdin, "allow": &q.Allow, "actions": &q.Actions, "session": &q.Session,
		"interpreter": &q.Interpreter, "detach": &q.Detach,
		"code_name": &q.CodeName, "collect": &q.Collect,
		"stdin_base64": func(d *decoder) (err error) { stdin, err = d.bytes(); return err },
		"limits":       func(d *decoder) error { return d.object(limitFields(&q.Limits)) },
		"inputs": func(d *decoder) error {
			return d.list(maxList, func() fields {
				q.Inputs = append(q.Inputs, glovebox.Input{})
				in := &q.Inputs[len(q.Inputs)-1]
				return fields{"name": &in.Name, "content": &in.Content, "content_base64": &in.ContentBase64, "path": &in.Path,
					"run": &in.Run, "artifact": &in.Artifact}
			})
		},
		"secrets": func(d *decoder) error {
			return d.list(maxList, func() fields {
				q.Secrets = append(q.Secrets, glovebox.SecretRef{})
				s := &q.Secrets[len(q.Secrets)-1]
				return fields{"name": &s.Name, "host": &s.Host}
			})
		},
	})
	switch {
	case err != nil:
		return q, err
	case len(stdin) > 0 && q.Stdin != "":
		return q, glovebox.Errorf(glovebox.CodeInvalid, "leave one of them out", "stdin and stdin_base64 are both set")
	case len(stdin) > 0:
		q.Stdin = string(stdin)
	}
	return q, nil
}

// bytes reads a string of base64.
func (d *decoder) bytes() ([]byte, error) {
	var text string
	if err := d.wrong(d.Decode(&text)); err != nil {
		return nil, err
	}
	b, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil {
		return nil, d.bad("is not base64")
	}
	return b, nil
}

func limitFields(l *glovebox.Limits) fields {
	return fields{
		"wall_ms": span(&l.Wall), "cpu_ms": span(&l.CPU), "cpus": &l.CPUs, "memory_bytes": &l.Memory, "disk_bytes": &l.Disk,
		"files": &l.Files, "open_files": &l.OpenFiles, "processes": &l.Processes, "egress_bytes": &l.Egress,
		"output_bytes": &l.Output, "view_bytes": &l.View,
	}
}

// span reads a number of milliseconds.
func span(to *time.Duration) func(*decoder) error {
	return func(d *decoder) error {
		var n int64
		if err := d.wrong(d.Decode(&n)); err != nil {
			return err
		}
		const most = int64(math.MaxInt64 / time.Millisecond)
		if n > most || n < -most {
			return d.bad(fmt.Sprintf("is beyond %d", most))
		}
		*to = time.Duration(n) * time.Millisecond
		return nil
	}
}
