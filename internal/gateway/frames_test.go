package gateway_test

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// TestHeadersOfFrames: what HTTP/2 can say and HTTP/1 cannot is not made into something else.
func TestHeadersOfFrames(t *testing.T) {
	usual := [][2]string{{":method", "GET"}, {":scheme", "https"}, {":authority", "good.test"}, {":path", "/one"}}
	with := func(extra ...[2]string) [][2]string { return append(usual[:len(usual):len(usual)], extra...) }
	path := func(p string) [][2]string { return append([][2]string{{":path", p}}, usual[:3]...) }
	tests := map[string]struct {
		fields [][2]string
		passes bool
	}{
		"usual":                  {usual, true},
		"line feed in a value":   {with([2]string{"x", "a\r\nGET /smuggled HTTP/1.1\r\nHost: good.test\r\n\r\n"}), false},
		"nul in a value":         {with([2]string{"x", "a\x00b"}), false},
		"line feed in a name":    {with([2]string{"x\r\ny", "a"}), false},
		"colon in a name":        {with([2]string{"x:y", "a"}), false},
		"capitals in a name":     {with([2]string{"X", "a"}), false},
		"transfer-encoding":      {with([2]string{"transfer-encoding", "chunked"}), false},
		"connection":             {with([2]string{"connection", "x"}), false},
		"two authorities":        {with([2]string{"host", "evil.test"}), false},
		"the same authority":     {with([2]string{"host", "good.test"}), true},
		"pseudo header at end":   {with([2]string{":authority", "evil.test"}), false},
		"no path":                {path(""), false},
		"line feed in the path":  {path("/one\r\nX: y"), false},
		"space in the path":      {path("/one HTTP/1.1"), true}, // sent as %20
		"a path without a slash": {path("one"), false},
		"an absolute path":       {path("https://evil.test/"), false},
		"space in the query":     {path("/one?a b HTTP/1.1"), true},
		"http":                   {[][2]string{usual[0], {":scheme", "http"}, usual[2], usual[3]}, true},
	}
	for name, test := range tests {
		r := newRig(t, terms{rules: good})
		s := newSink(t)
		r.server("good.test", 443, true, false, s.handler)
		code := frames(t, r, test.fields)
		seen := s.requests(t)
		if test.passes != (code == "200") || test.passes != (len(seen) == 1) || len(seen) > 1 {
			t.Errorf("%s: %s, the server saw %q", name, code, seen)
		}
	}
}

// frames sends one request as given and returns the status of the answer; empty where there is none.
func frames(t *testing.T, r *rig, fields [][2]string) string {
	t.Helper()
	c, err := r.secured("good.test", "good.test", "h2")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	framer := http2.NewFramer(c, c)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	for _, f := range fields {
		_ = enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	if err := framer.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	if err := framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true}); err != nil {
		t.Fatal(err)
	}
	for {
		f, err := framer.ReadFrame()
		if err != nil {
			return ""
		}
		switch f := f.(type) {
		case *http2.MetaHeadersFrame:
			return f.PseudoValue("status")
		case *http2.RSTStreamFrame, *http2.GoAwayFrame:
			return ""
		}
	}
}

func TestQueryIsOneWord(t *testing.T) {
	r := newRig(t, terms{rules: good})
	r.server("good.test", 80, false, false, hello)
	for query, want := range map[string]string{"a=b;c=d": "a=b;c=d", "a=%zz": "a=%zz", "a=\"<>": "a=%22%3C%3E", "a=\xff": "a=%FF", "?": "?", "": ""} {
		_, body := raw(t, r.must("good.test", 80), "GET /p?"+query+" HTTP/1.1\r\nHost: good.test\r\n\r\n")
		got := body[strings.LastIndex(body, " ")+1:]
		if want := strings.TrimSuffix("/p?"+want, "?"); got != want && got != want+"?" {
			t.Errorf("%q became %q", query, got)
		}
	}
}
