package httpapi

import (
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"glovebox"
	"glovebox/internal/spelling"
)

// query reads the parameters of the address. Each is known and there at most once.
func (c *call) query(known ...string) (url.Values, error) {
	if c.r.URL.RawQuery == "" {
		return nil, nil
	}
	q, err := url.ParseQuery(c.r.URL.RawQuery)
	if err != nil {
		return nil, glovebox.Errorf(glovebox.CodeInvalid, "write ?name=value&name=value", "the parameters cannot be read")
	}
	for _, name := range slices.Sorted(maps.Keys(q)) {
		if !slices.Contains(known, name) {
			fix := "the parameters here are " + strings.Join(known, ", ")
			if n := spelling.Nearest(name, known); n != "" {
				fix = "did you mean " + n + "?"
			}
			return nil, glovebox.Errorf(glovebox.CodeInvalid, fix, "there is no parameter %q", short(name))
		}
		if len(q[name]) > 1 {
			return nil, glovebox.Errorf(glovebox.CodeInvalid, "leave one of them out", "the parameter %s is there twice", name)
		}
	}
	return q, nil
}

// number reads a parameter that is a whole number.
func number(q url.Values, name string, otherwise int64) (int64, error) {
	text := q.Get(name)
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, glovebox.Errorf(glovebox.CodeInvalid, "write digits", "%s cannot be %q", name, short(text))
	}
	return n, nil
}

// outputPiece is how much of an output is sent where nothing is said.
const outputPiece = int64(glovebox.MiB)

// showOutput sends a piece of what a run printed: the bytes themselves.
func (c *call) showOutput(run string) error {
	q, err := c.query("stream", "offset", "limit")
	if err != nil {
		return err
	}
	stream := q.Get("stream")
	if stream == "" {
		stream = "stdout"
	}
	offset, err := number(q, "offset", 0)
	if err != nil {
		return err
	}
	limit, err := number(q, "limit", outputPiece)
	if err != nil {
		return err
	}
	piece, err := c.cfg.Service.Output(c.r.Context(), c.who, run, stream, offset, limit)
	if err != nil {
		return err
	}
	c.send(http.StatusOK, "application/octet-stream", piece)
	return nil
}

// showArtifact sends a file that a run left. What it calls itself is not believed: it is bytes.
func (c *call) showArtifact(run, path string) error {
	file, err := c.cfg.Service.Artifact(c.r.Context(), c.who, run, path)
	if err != nil {
		return err
	}
	defer file.Close()
	h := c.w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("X-Content-Type-Options", "nosniff")
	buf := make([]byte, 256<<10)
	for {
		n, err := file.Read(buf)
		c.timed()
		if _, gone := c.w.Write(buf[:n]); gone != nil || err != nil && err != io.EOF {
			if gone == nil {
				c.cfg.Log.Error("read artifact", "err", err)
			}
			cut()
		}
		if err == io.EOF {
			return nil
		}
	}
}

// listTraces lists records, newest first.
func (c *call) listTraces() error {
	q, err := c.query("limit", "before", "status", "since", "until")
	if err != nil {
		return err
	}
	want := glovebox.TraceQuery{Before: q.Get("before")}
	if name := q.Get("status"); name != "" {
		if want.Status, err = glovebox.ParseStatus(name); err != nil {
			return err
		}
	}
	limit, err := number(q, "limit", 0)
	if err != nil {
		return err
	}
	want.Limit = int(min(max(limit, -1), 1<<30))
	for name, to := range map[string]*time.Time{"since": &want.Since, "until": &want.Until} {
		text := q.Get(name)
		if text == "" {
			continue
		}
		if *to, err = time.Parse(time.RFC3339Nano, text); err != nil || to.Year() < 1970 || to.Year() > 2200 {
			return glovebox.Errorf(glovebox.CodeInvalid, "write it as 2026-11-30T15:04:05Z", "%s cannot be %q", name, short(text))
		}
	}
	records, err := c.cfg.Service.Traces(c.r.Context(), c.who, want)
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, struct {
		Traces []glovebox.Record `json:"traces"`
	}{records})
}

func (c *call) showTrace(run string) error {
	record, err := c.cfg.Service.Trace(c.r.Context(), c.who, run)
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, record)
}

// verify checks the whole trace. It may take as long as there are records.
func (c *call) verify() error {
	text, err := c.body()
	if err != nil {
		return err
	}
	var heads []glovebox.TraceRef
	err = decodeObject(text, fields{"heads": func(d *decoder) error {
		return d.list(1<<20, func() fields {
			heads = append(heads, glovebox.TraceRef{})
			h := &heads[len(heads)-1]
			return fields{"seq": &h.Seq, "hash": &h.Hash}
		})
	}})
	if err != nil {
		return err
	}
	found, err := c.cfg.Service.Verify(c.r.Context(), c.who, heads)
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, found)
}

// showPosture tells which rungs the machine has.
func (c *call) showPosture() error {
	rungs, err := c.cfg.Service.Rungs(c.r.Context())
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, struct {
		Rungs []glovebox.Rung `json:"rungs"`
	}{rungs})
}

func (c *call) showDoctor() error {
	report, err := c.cfg.Service.Doctor(c.r.Context())
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, report)
}
