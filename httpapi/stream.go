package httpapi

import (
	"encoding/base64"
	"errors"
	"net/http"
	"sync"
	"time"
	"unicode/utf8"

	"glovebox"
	"glovebox/internal/plainjson"
)

// stream tells a run's events as they happen, each sent at once. Nothing is sent before the first, so that a refusal has an
// HTTP status of its own. It implements glovebox.Sink: a client that does not read holds up the program, no limit of it, and
// the run for no longer than answerTime beyond its wall clock.
type stream struct {
	call *call
	run  *live

	mu     sync.Mutex // held while something is sent, however long that takes
	buf    []byte     // the event in the making
	begun  bool
	over   bool
	failed error

	stop, stopped chan struct{} // of the beat
}

func newStream(c *call, l *live) *stream {
	s := &stream{call: c, run: l, stop: make(chan struct{}), stopped: make(chan struct{})}
	go s.beat()
	return s
}

// beat sends a comment now and then, so that whoever waits knows that somebody is there.
func (s *stream) beat() {
	defer close(s.stopped)
	t := time.NewTicker(beatTime)
	defer t.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-t.C:
			if s.mu.TryLock() { // else something is being sent
				s.buf = append(s.buf[:0], ": alive\n\n"...)
				s.send()
				s.mu.Unlock()
			}
		}
	}
}

// Event implements glovebox.Sink.
func (s *stream) Event(e glovebox.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over || s.failed != nil {
		return
	}
	b := append(s.buf[:0], "event: "...)
	b = append(b, e.Kind...)
	b = append(b, "\ndata: {\"run\":"...)
	b = plainjson.AppendString(b, e.Run)
	b = append(b, `,"time":"`...)
	b = e.Time.AppendFormat(b, time.RFC3339Nano)
	b = append(b, '"')
	switch e.Kind {
	case "start":
		s.call.live.name(s.run, e.Run)
		b = s.member(b, "limits", e.Limits)
		// By then the program is dead, and what holds up its run and the memory of it is a client that does not read.
		_ = s.call.rc.SetWriteDeadline(time.Now().Add(e.Limits.Wall + answerTime))
	case "egress":
		b = s.member(b, "egress", e.Egress)
	case "usage":
		b = s.member(b, "usage", e.Usage)
	case "stdout", "stderr":
		if utf8.Valid(e.Data) {
			b = append(b, `,"text":`...)
			b = plainjson.AppendString(b, e.Data)
		} else {
			b = append(b, `,"data_base64":"`...)
			b = base64.StdEncoding.AppendEncode(b, e.Data)
			b = append(b, '"')
		}
	}
	s.buf = append(b, "}\n\n"...)
	s.send()
}

// member appends a member of an object.
func (s *stream) member(b []byte, name string, v any) []byte {
	b = append(b, ',', '"')
	b = append(b, name...)
	b = append(b, '"', ':')
	b, err := plainjson.Append(b, v)
	if err != nil { // plain numbers always marshal
		s.failed = err
	}
	return b[:len(b)-1]
}

// send sends what is in buf, now. s.mu is held.
func (s *stream) send() {
	if s.write(); s.failed == nil {
		s.failed = s.call.rc.Flush()
	}
}

// write writes what is in buf. s.mu is held.
func (s *stream) write() {
	if s.failed != nil {
		return
	}
	if !s.begun {
		s.begun = true
		h := s.call.w.Header()
		h.Set("Content-Type", "text/event-stream")
		h.Set("Cache-Control", "no-store")
		s.call.w.WriteHeader(http.StatusOK)
	}
	_, s.failed = s.call.w.Write(s.buf)
	const keep = 1 << 20
	if cap(s.buf) > keep {
		s.buf = nil
	}
}

// end tells how the run ended and ends the stream. An error before the first event is the answer itself.
func (s *stream) end(res *glovebox.Result, err error) error {
	close(s.stop)
	// A client that does not read has this long to do so. It ends what is being sent, too.
	s.call.timed()
	<-s.stopped
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	if err != nil && !s.begun {
		return err
	}
	kind, told := "result", any(res)
	if err != nil {
		kind, told = "error", errorShown{s.call.shown(err)}
	}
	b := append(s.buf[:0], "event: "+kind+"\ndata: "...)
	b, encodeErr := plainjson.Append(b, told)
	s.failed = errors.Join(s.failed, encodeErr)
	s.buf = append(b, '\n')
	s.write() // what ends the answer goes with it
	if s.failed != nil {
		cut()
	}
	return nil
}
