package brokerd

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/iotest"

	"glovebox/internal/broker"
)

// shown are the forms in which a server may show what it was sent.
func shown(value string) map[string]string {
	j, _ := json.Marshal(value)
	all := map[string]string{"plain": value, "json": string(j), "query": url.QueryEscape(value), "path": url.PathEscape(value),
		"hex": hex.EncodeToString([]byte(value)), "HEX": strings.ToUpper(hex.EncodeToString([]byte(value))),
		"slashes": strings.ReplaceAll(value, "/", `\/`), "twice": value + value, "in itself": value[:10] + value + value[5:]}
	for before := range 4 {
		text := []byte(strings.Repeat("u", before) + value + "x")
		all[fmt.Sprint("base64 ", before)] = base64.StdEncoding.EncodeToString(text)
		all[fmt.Sprint("base64url ", before)] = base64.RawURLEncoding.EncodeToString(text)
	}
	return all
}

// leaks tells whether text still has what a reader could make the value of.
func leaks(text, value string) bool {
	for _, form := range shown(value) {
		if strings.Contains(text, form) {
			return true
		}
	}
	return strings.Contains(text, value)
}

func TestScrubbed(t *testing.T) {
	scrub := newScrubber([]string{canary})
	for name, form := range shown(canary) {
		text := strings.Repeat("before ", 50) + form + " after" + canary[:12]
		for how, src := range map[string]io.Reader{"whole": strings.NewReader(text), "bytes": iotest.OneByteReader(strings.NewReader(text)),
			"halves": iotest.HalfReader(strings.NewReader(text)), "with the end": iotest.DataErrReader(strings.NewReader(text))} {
			s := &scrubbed{src: io.NopCloser(src), scrub: scrub, trailer: &http.Response{}, x: silent()}
			got, err := io.ReadAll(iotest.OneByteReader(s))
			if err != nil || len(got) != len(text) || leaks(string(got), canary) || !strings.HasSuffix(string(got), canary[:12]) ||
				!strings.HasPrefix(string(got), "before before") {
				t.Errorf("%s, %s: %q, %v", name, how, got, err)
			}
		}
	}
	plain := strings.Repeat("nothing to see "+canary[:20]+" ", 1000)
	s := &scrubbed{src: io.NopCloser(strings.NewReader(plain)), scrub: scrub, trailer: &http.Response{}, x: silent()}
	if got, err := io.ReadAll(s); err != nil || string(got) != plain {
		t.Error("what is no value was changed")
	}
}

// What is not the beginning of a value does not wait for what comes next: events are seen as they happen.
func TestScrubbedDoesNotWait(t *testing.T) {
	r, w := io.Pipe()
	defer w.Close()
	s := &scrubbed{src: r, scrub: newScrubber([]string{canary}), trailer: &http.Response{}, x: silent()}
	for _, event := range []string{"data: one\n\n", "data: two\n\n"} {
		go w.Write([]byte(event))
		p := make([]byte, 100)
		n, err := s.Read(p)
		if err != nil || string(p[:n]) != event {
			t.Fatalf("%q, %v", p[:n], err)
		}
	}
}

func FuzzScrubbed(f *testing.F) {
	f.Add([]byte("aXYZ"), []byte("b"), 3)
	f.Fuzz(func(t *testing.T, before, after []byte, piece int) {
		text := bytes.Join([][]byte{before, []byte(canary), after}, nil)
		var pieces []io.Reader
		for rest := text; len(rest) > 0; {
			n := min(len(rest), max(1, piece%17))
			pieces, rest = append(pieces, bytes.NewReader(rest[:n])), rest[n:]
		}
		s := &scrubbed{src: io.NopCloser(io.MultiReader(pieces...)), scrub: newScrubber([]string{canary}), trailer: &http.Response{},
			x: silent()}
		got, err := io.ReadAll(s)
		if err != nil || len(got) != len(text) || bytes.Contains(got, []byte(canary)) {
			t.Fatalf("%q, %v", got, err)
		}
	})
}

// A server that shows what it is sent does not give it to the program.
func TestEcho(t *testing.T) {
	for name, spec := range map[string]broker.Spec{
		"bearer": {Attach: broker.PlaceBearer}, "header": {Attach: broker.PlaceHeader, Header: "X-Key"}, "basic": {Attach: broker.PlaceBasic, User: "me"},
		"query": {Attach: broker.PlaceQuery, Query: "key"},
	} {
		t.Run(name, func(t *testing.T) {
			echo := func(w http.ResponseWriter, q *http.Request) {
				sent := q.URL.RawQuery + fmt.Sprint(q.Header) + canary
				auth := q.Header.Get("Authorization")
				w.Header().Set("Trailer", "X-Last")
				w.Header().Set("Location", "https://evil.test/?t="+url.QueryEscape(canary)+"&"+q.URL.RawQuery)
				w.Header().Set("X-Echo", auth+canary)
				w.Header().Set("Glovebox-Secret", "TOKEN")
				w.Header().Set("Glovebox-Reason", "path")
				if q.URL.Path == "/early" {
					w.Header().Set("Link", "<"+canary+">")
					w.WriteHeader(http.StatusEarlyHints)
				}
				switch q.URL.Path {
				case "/gzip":
					w.Header().Set("Content-Encoding", "gzip")
					z := gzip.NewWriter(w)
					fmt.Fprint(z, sent)
					z.Close()
				case "/odd":
					w.Header().Set("Content-Encoding", "br")
					fmt.Fprint(w, sent)
				case "/chunks":
					for _, c := range []byte(sent) {
						w.Write([]byte{c})
						w.(http.Flusher).Flush()
					}
				default:
					w.WriteHeader(http.StatusTeapot)
					fmt.Fprint(w, sent)
				}
				w.Header().Set("X-Last", canary+auth)
			}
			spec.Name = "TOKEN"
			r := newRig(t, echo, spec)
			for _, path := range []string{"/", "/gzip", "/chunks", "/early"} {
				a := r.do("GET", path, "")
				if a.err != nil || a.header.Get("X-Echo") == "" || a.header.Get("Location") == "" || a.body == "" || a.trailer.Get("X-Last") == "" {
					t.Errorf("%s: %+v", path, a)
				}
				if said := a.body + fmt.Sprint(a.header, a.trailer); leaks(said, canary) || strings.Contains(said, basic("me:" + canary)[10:]) {
					t.Errorf("%s shows the value: %s", path, said)
				}
			}
			if a := r.do("GET", "/odd", ""); a.refused == nil || a.refused.status != http.StatusBadGateway {
				t.Errorf("an answer that cannot be looked through: %+v", a)
			}
			if log := r.log.String(); leaks(log, canary) || !strings.Contains(log, "a secret was masked in an answer") {
				t.Errorf("the log: %s", log)
			}
			if q, _ := r.last(); q.Header.Get("Accept-Encoding") != "identity" {
				t.Errorf("asked for %q", q.Header.Get("Accept-Encoding"))
			}
		})
	}
}

func BenchmarkScrub(b *testing.B) {
	text := bytes.Repeat([]byte("The quick brown fox. "), 3000)
	scrub := newScrubber([]string{canary})
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		scrub.mask(text)
		scrub.begun(text)
	}
}

// silent is an exchange whose log nobody reads.
func silent() *exchange {
	return &exchange{b: &binding{server: &server{log: slog.New(slog.DiscardHandler)}}, loan: &loan{}}
}
