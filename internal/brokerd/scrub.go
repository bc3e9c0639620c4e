package brokerd

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"glovebox/internal/broker"
)

// scrubber masks values in what comes back. A mask is as long as what it covers, so that lengths stay true.
type scrubber struct{ needles []needle }

// needle is one form of a value. back says, for each length of a beginning of it, how long the longest shorter beginning is
// that the former ends with.
type needle struct {
	text []byte
	back []int
}

// newScrubber masks values as they are, escaped as in JSON, in a URL, in hexadecimal and in base64 wherever it began.
func newScrubber(values []string) *scrubber {
	s := &scrubber{}
	for _, v := range values {
		if v == "" {
			continue
		}
		forms := []string{v, url.QueryEscape(v), url.PathEscape(v), hex.EncodeToString([]byte(v)),
			strings.ToUpper(hex.EncodeToString([]byte(v)))}
		if b, err := json.Marshal(v); err == nil {
			forms = append(forms, string(b[1:len(b)-1]), strings.ReplaceAll(string(b[1:len(b)-1]), "/", `\/`))
		}
		for before := range 3 {
			text := base64.RawStdEncoding.EncodeToString(append(make([]byte, before), v...))
			text = text[(8*before+5)/6 : 8*(before+len(v))/6]
			forms = append(forms, text, strings.NewReplacer("+", "-", "/", "_").Replace(text), url.QueryEscape(text))
		}
		for _, f := range forms {
			s.add(f)
		}
	}
	return s
}

func (s *scrubber) add(form string) {
	if len(form) < minValue || slices.ContainsFunc(s.needles, func(n needle) bool { return string(n.text) == form }) {
		return
	}
	n := needle{text: []byte(form), back: make([]int, len(form)+1)}
	for i, k := 1, 0; i < len(form); i++ {
		for k > 0 && form[i] != form[k] {
			k = n.back[k]
		}
		if form[i] == form[k] {
			k++
		}
		n.back[i+1] = k
	}
	s.needles = append(s.needles, n)
}

// begun is how many of the last bytes of b could be the beginning of n.
func (n *needle) begun(b []byte) int {
	k := 0
	for _, c := range b[max(0, len(b)-len(n.text)+1):] {
		for k > 0 && (k == len(n.text) || c != n.text[k]) {
			k = n.back[k]
		}
		if c == n.text[k] {
			k++
		}
	}
	return k
}

// mask covers all that is found in b, and counts it.
func (s *scrubber) mask(b []byte) (hits int) {
	var found [][]byte // the parts of b, which are covered when all were looked for: they may overlap
	for i := range s.needles {
		text := s.needles[i].text
		for rest := b; ; {
			at := bytes.Index(rest, text)
			if at < 0 {
				break
			}
			found = append(found, rest[at:at+len(text)])
			rest = rest[at+1:]
		}
	}
	for _, part := range found {
		for i := range part {
			part[i] = '*'
		}
	}
	return len(found)
}

// maskString is text with all covered that is found.
func (s *scrubber) maskString(text string) (string, int) {
	b := []byte(text)
	hits := s.mask(b)
	return string(b), hits
}

// begun is how many of the last bytes of b have to wait for what comes next.
func (s *scrubber) begun(b []byte) int {
	most := 0
	for i := range s.needles {
		most = max(most, s.needles[i].begun(b))
	}
	return most
}

// errEncoded is an answer that cannot be looked through.
var errEncoded = errors.New("the server compressed its answer in a way that was not asked for")

// scrubResponse takes out of an answer what was added to its request.
func scrubResponse(res *http.Response) error {
	x := exchangeOf(res.Request.Context())
	if res.StatusCode == http.StatusSwitchingProtocols {
		return errors.New("the server changed the protocol, for which nobody asked")
	}
	for _, name := range []string{broker.HeaderReason, broker.HeaderSecret, "Alt-Svc", "Proxy-Authenticate"} {
		res.Header.Del(name)
	}
	if !x.added {
		return nil
	}
	scrub := newScrubber(x.cred.secrets())
	hits := scrub.headers(res.Header)
	x.tellScrubbed(hits)
	if res.Request.Method == http.MethodHead || res.Body == nil || res.Body == http.NoBody {
		return nil
	}
	switch encoding := strings.ToLower(res.Header.Get("Content-Encoding")); {
	case encoding == "" || encoding == "identity" || encoding == "aws-chunked":
	case (encoding == "gzip" || encoding == "x-gzip") && res.StatusCode != http.StatusPartialContent:
		res.Body = &gunzip{src: res.Body}
		res.Header.Del("Content-Encoding")
		res.Header.Del("Content-Length")
		res.ContentLength, res.Uncompressed = -1, true
	default:
		return errEncoded
	}
	res.Body = &scrubbed{src: res.Body, scrub: scrub, x: x, trailer: res}
	return nil
}

func (s *scrubber) headers(h http.Header) (hits int) {
	for name, values := range h {
		for i, v := range values {
			masked, n := s.maskString(v)
			values[i] = masked
			hits += n
		}
		if masked, n := s.maskString(name); n > 0 {
			delete(h, name)
			h[masked] = values
			hits += n
		}
	}
	return hits
}

// tellScrubbed logs that a host sends back what it is sent.
func (x *exchange) tellScrubbed(hits int) {
	if hits > 0 {
		x.b.say("a secret was masked in an answer", "secret", x.loan.spec.Name, "host", x.endpoint.String(), "times", hits)
	}
}

// scrubbed is an answer's body while it passes. Only what may be the beginning of a value waits.
type scrubbed struct {
	src     io.ReadCloser
	scrub   *scrubber
	x       *exchange
	trailer *http.Response
	buf     []byte // what was read and is masked
	ready   int    // how much of buf may pass
	hits    int
	err     error
}

func (s *scrubbed) Read(p []byte) (int, error) {
	for s.ready == 0 {
		if s.err != nil {
			if len(s.buf) == 0 {
				return 0, s.err
			}
			s.ready = len(s.buf)
			break
		}
		kept := len(s.buf)
		s.buf = append(s.buf, make([]byte, max(len(p), 512))...)
		var n int
		n, s.err = s.src.Read(s.buf[kept:])
		s.buf = s.buf[:kept+n]
		s.hits += s.scrub.mask(s.buf)
		if s.err == nil {
			s.ready = len(s.buf) - s.scrub.begun(s.buf)
		} else {
			s.ended()
		}
	}
	n := copy(p, s.buf[:s.ready])
	s.buf = s.buf[:copy(s.buf, s.buf[n:])]
	s.ready -= n
	return n, nil
}

// ended looks at what comes behind the body.
func (s *scrubbed) ended() {
	s.x.tellScrubbed(s.hits + s.scrub.headers(s.trailer.Trailer))
	s.hits = 0
}

func (s *scrubbed) Close() error {
	s.x.tellScrubbed(s.hits)
	s.hits = 0
	return s.src.Close()
}

// gunzip opens a compressed body when it is first read: before, that would wait for it.
type gunzip struct {
	src io.ReadCloser
	zip *gzip.Reader
}

func (g *gunzip) Read(p []byte) (int, error) {
	if g.zip == nil {
		z, err := gzip.NewReader(g.src)
		if err != nil {
			return 0, err
		}
		g.zip = z
	}
	return g.zip.Read(p)
}

func (g *gunzip) Close() error { return g.src.Close() }
