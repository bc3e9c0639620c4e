package action

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"glovebox/internal/broker"
)

// A hole is a place of a template that an argument fills: {NAME}, or {+NAME} for several segments of a path.
func holes() *regexp.Regexp { return regexp.MustCompile(`\{(\+?)([A-Za-z_][A-Za-z0-9_]*)\}`) }

// template is a request to be filled in.
type template struct {
	cfg    *broker.ActionHTTP
	origin string   // https://HOST
	path   []string // segments
	query  []pair
	body   any // JSON; nil: none
	hole   *regexp.Regexp
}

type pair struct{ name, value string }

const maxHeader = 8 << 10

// newTemplate takes a template apart. What fills a place that cannot be left out must be a required argument.
func newTemplate(h *broker.ActionHTTP, known, required []string) (*template, error) {
	t := &template{cfg: h, hole: holes()}
	e, err := h.Endpoint()
	if err != nil {
		return nil, err
	}
	t.origin = "https://" + e.Host.String()
	if e.Port != 443 {
		t.origin = "https://" + e.String()
	}
	rest := strings.TrimPrefix(h.URL, "https://")
	rest, query, _ := strings.Cut(rest, "?")
	_, p, _ := strings.Cut(rest, "/")
	t.path = strings.Split(p, "/")
	for i, s := range t.path {
		literal := t.hole.ReplaceAllString(s, "x")
		plain, err := url.PathUnescape(literal)
		if err != nil || strings.ContainsAny(literal, "{}#\\ ") || plain == "." || plain == ".." ||
			s == "" && i < len(t.path)-1 || strings.Contains(s, "{+") && t.hole.ReplaceAllString(s, "") != "" {
			return nil, fmt.Errorf("the path's part %.80q is none: {+NAME} stands alone between slashes", s)
		}
	}
	for part := range strings.SplitSeq(query, "&") {
		name, value, _ := strings.Cut(part, "=")
		if part == "" && query == "" {
			continue
		}
		name, err1 := url.QueryUnescape(name)
		value, err2 := url.QueryUnescape(value)
		if err1 != nil || err2 != nil || name == "" || strings.Contains(name, "{") {
			return nil, fmt.Errorf("the query's part %.80q is no NAME={ARGUMENT}", part)
		}
		t.query = append(t.query, pair{name, value})
	}
	if len(h.Body) > 0 {
		if err := json.Unmarshal(h.Body, &t.body); err != nil {
			return nil, errors.New("the body is no JSON")
		}
	}
	return t, t.names(known, required)
}

// names refuses holes that no argument fills.
func (t *template) names(known, required []string) error {
	must := slices.Clone(t.path)
	for name, value := range t.cfg.Headers {
		if !regexp.MustCompile(`^[A-Za-z0-9-]{1,100}$`).MatchString(name) || slices.Contains([]string{"host", "content-length",
			"connection", "transfer-encoding", "upgrade", "te", "trailer", "expect"}, strings.ToLower(name)) {
			return fmt.Errorf("%.80q is no header of an action", name)
		}
		must = append(must, value)
	}
	for _, s := range must {
		for _, m := range t.hole.FindAllStringSubmatch(s, -1) {
			if !slices.Contains(required, m[2]) {
				return fmt.Errorf("{%s} is in the path or a header, so that the schema must require it", m[2])
			}
		}
	}
	all := must
	for _, q := range t.query {
		all = append(all, q.value)
	}
	for _, s := range append(all, string(t.cfg.Body)) {
		for _, m := range t.hole.FindAllStringSubmatch(s, -1) {
			if !slices.Contains(known, m[2]) {
				return fmt.Errorf("{%s} is no property of the schema", m[2])
			}
		}
	}
	return nil
}

// prepared is exactly what will be done.
type prepared struct {
	method, url string
	header      http.Header
	body        []byte
	command     []string
}

// fill makes the request of arguments that fit the schema.
func (t *template) fill(args map[string]any) (*prepared, error) {
	p := &prepared{method: t.cfg.Method, header: http.Header{}}
	segments := make([]string, 0, len(t.path))
	for _, s := range t.path {
		filled, err := t.segment(s, args)
		if err != nil {
			return nil, err
		}
		segments = append(segments, filled)
	}
	p.url = t.origin + "/" + strings.Join(segments, "/")
	var query []string
	for _, q := range t.query {
		value, all, err := t.text(q.value, args)
		if err != nil {
			return nil, err
		}
		if all {
			query = append(query, url.QueryEscape(q.name)+"="+url.QueryEscape(value))
		}
	}
	if len(query) > 0 {
		p.url += "?" + strings.Join(query, "&")
	}
	for _, name := range slices.Sorted(maps.Keys(t.cfg.Headers)) {
		value, _, err := t.text(t.cfg.Headers[name], args)
		if err != nil {
			return nil, err
		}
		if len(value) > maxHeader || strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' }) {
			return nil, fmt.Errorf("header %s would hold a character that no header can, or too many", name)
		}
		p.header.Set(name, value)
	}
	if t.body != nil {
		filled, _, err := t.value(t.body, args)
		if err != nil {
			return nil, err
		}
		if p.body, err = encode(filled); err != nil {
			return nil, err
		}
		if p.header.Get("Content-Type") == "" {
			p.header.Set("Content-Type", "application/json")
		}
	}
	return p, nil
}

// encode writes JSON as it is meant, without escaping for HTML.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// text fills the holes of s. all is false where an argument that may be left out is.
func (t *template) text(s string, args map[string]any) (filled string, all bool, err error) {
	all = true
	filled = t.hole.ReplaceAllStringFunc(s, func(h string) string {
		name := t.hole.FindStringSubmatch(h)[2]
		v, ok := args[name]
		if !ok {
			all = false
			return ""
		}
		text, wrong := scalar(name, v)
		if wrong != nil {
			err = wrong
		}
		return text
	})
	return filled, all, err
}

// scalar is an argument as text.
func scalar(name string, v any) (string, error) {
	switch v := v.(type) {
	case string:
		return v, nil
	case json.Number:
		return v.String(), nil
	case bool:
		return fmt.Sprint(v), nil
	}
	return "", fmt.Errorf("argument %s has no plain text, which its place needs: give a string, a number or a boolean", name)
}

// segment fills a part of a path. What an argument holds stays between the two slashes, by any server's reading.
func (t *template) segment(s string, args map[string]any) (string, error) {
	matches := t.hole.FindAllStringSubmatchIndex(s, -1)
	if len(matches) == 0 {
		return s, nil
	}
	var b strings.Builder
	last := 0
	for _, m := range matches {
		b.WriteString(s[last:m[0]])
		last = m[1]
		name := s[m[4]:m[5]]
		text, err := scalar(name, args[name])
		if err != nil {
			return "", err
		}
		parts := []string{text}
		if m[2] != m[3] { // {+NAME}
			parts = strings.Split(text, "/")
		}
		for i, part := range parts {
			if part == "" || strings.Trim(part, ".") == "" || strings.ContainsAny(part, "/\\%") ||
				strings.ContainsFunc(part, func(r rune) bool { return r < ' ' || r == 0x7f || r == 0xfffd }) {
				return "", fmt.Errorf("argument %s is no part of a path: no slash, \\, %%, control character, . or .. alone", name)
			}
			if i > 0 {
				b.WriteByte('/')
			}
			b.WriteString(escape(part))
		}
	}
	b.WriteString(s[last:])
	if plain, err := url.PathUnescape(b.String()); err != nil || plain == "." || plain == ".." {
		return "", errors.New("an argument makes a part of the path that leads elsewhere")
	}
	return b.String(), nil
}

// escape escapes all but what is plain everywhere.
func escape(s string) string {
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-._~", c) >= 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// value fills the holes of JSON. there is false for a hole whose argument was left out: so is the member.
func (t *template) value(v any, args map[string]any) (filled any, there bool, err error) {
	switch v := v.(type) {
	case string:
		if m := t.hole.FindStringSubmatch(v); m != nil && m[0] == v {
			arg, ok := args[m[2]]
			return arg, ok, nil
		}
		return t.textValue(v, args)
	case []any:
		list := []any{}
		for _, item := range v {
			filled, there, err := t.value(item, args)
			if err != nil {
				return nil, false, err
			}
			if there {
				list = append(list, filled)
			}
		}
		return list, true, nil
	case map[string]any:
		object := map[string]any{}
		for name, item := range v {
			filled, there, err := t.value(item, args)
			if err != nil {
				return nil, false, err
			}
			if there {
				object[name] = filled
			}
		}
		return object, true, nil
	}
	return v, true, nil
}

func (t *template) textValue(v string, args map[string]any) (any, bool, error) {
	text, all, err := t.text(v, args)
	return text, all, err
}
