package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"glovebox"
)

// event is what the data of an event holds.
type event struct {
	Run    string              `json:"run"`
	Time   time.Time           `json:"time"`
	Limits glovebox.Limits     `json:"limits"`
	Usage  glovebox.Usage      `json:"usage"`
	Egress glovebox.EgressFlow `json:"egress"`
	Text   string              `json:"text"`
	Raw    []byte              `json:"data_base64"`
}

// listen reads events to the result or the error that ends them. end is called when the server is silent for too long.
func (a *attempt) listen(from io.Reader, end context.CancelCauseFunc) (*glovebox.Result, error) {
	quiet := time.AfterFunc(quietMost, func() { end(errQuiet) })
	defer quiet.Stop()
	r := lines{from: bufio.NewReaderSize(from, 64<<10)}
	kind := ""
	for {
		line, err := r.next()
		if err != nil {
			return nil, err
		}
		quiet.Reset(quietMost)
		name, value, _ := bytes.Cut(line, []byte(": "))
		switch string(name) {
		case "event":
			kind = string(value)
		case "data":
			quiet.Stop() // while the sink hears it
			res, ended, err := a.take(kind, value)
			if ended {
				_, _ = r.next() // an empty line
				_, _ = r.next() // the end, so that the connection can be used again
			}
			if ended || err != nil {
				return res, err
			}
			quiet.Reset(quietMost)
		}
	}
}

// take handles one event. ended tells that it was the last.
func (a *attempt) take(kind string, data []byte) (res *glovebox.Result, ended bool, err error) {
	switch kind {
	case "result":
		res = new(glovebox.Result)
		if err := json.Unmarshal(data, res); err != nil {
			return nil, true, glovebox.Internal("read the result", err)
		}
		return res, true, nil
	case "error":
		var shown struct{ Error glovebox.ErrorShown }
		if err := json.Unmarshal(data, &shown); err != nil || shown.Error.Code.HTTPStatus() == 0 {
			return nil, true, glovebox.Internal("read the error", errors.Join(err, errors.New("it has no known code")))
		}
		return nil, true, told(shown.Error)
	case "start", "stdout", "stderr", "usage", "egress":
	default:
		return nil, false, glovebox.Internal("read events", fmt.Errorf("there is no event %.20q", kind))
	}
	var e event
	if err := json.Unmarshal(data, &e); err != nil {
		return nil, false, glovebox.Internal("read an event", err)
	}
	if a.id.Load() == nil {
		a.id.Store(&e.Run)
	}
	out := glovebox.Event{Kind: kind, Run: e.Run, Time: e.Time, Limits: e.Limits, Usage: e.Usage, Egress: e.Egress, Data: e.Raw}
	if e.Text != "" {
		out.Data = []byte(e.Text)
	}
	a.tell(out)
	return nil, false, nil
}

// lines reads lines of a bounded length.
type lines struct {
	from *bufio.Reader
	long []byte
}

// next returns a line without its end, valid until the next call. At the end of what is read there is no line.
func (l *lines) next() ([]byte, error) {
	line, err := l.from.ReadSlice('\n')
	if err == nil {
		return line[:len(line)-1], nil
	}
	l.long = l.long[:0]
	for errors.Is(err, bufio.ErrBufferFull) {
		if len(l.long) > maxAnswer {
			return nil, errors.New("an event is too long")
		}
		l.long = append(l.long, line...)
		line, err = l.from.ReadSlice('\n')
	}
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, err
	}
	l.long = append(l.long, line...)
	return l.long[:len(l.long)-1], nil
}
