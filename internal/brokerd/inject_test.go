package brokerd

import (
	"encoding/base64"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"glovebox/internal/broker"
)

func basic(pair string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte(pair)) }

// Each way to lend brings the value to the server exactly, whatever the program sends of its own.
func TestAttach(t *testing.T) {
	for name, tt := range map[string]struct {
		spec   broker.Spec
		header string
		want   string
		query  string
	}{
		"bearer":       {spec: broker.Spec{Attach: broker.PlaceBearer}, header: "Authorization", want: "Bearer " + canary},
		"header":       {spec: broker.Spec{Attach: broker.PlaceHeader, Header: "x-api-key"}, header: "X-Api-Key", want: canary},
		"prefix":       {spec: broker.Spec{Attach: broker.PlaceHeader, Header: "X-Key", Prefix: "Token "}, header: "X-Key", want: "Token " + canary},
		"query":        {spec: broker.Spec{Attach: broker.PlaceQuery, Query: "key"}, query: canary},
		"basic":        {spec: broker.Spec{Attach: broker.PlaceBasic, User: "me"}, header: "Authorization", want: basic("me:" + canary)},
		"by variable":  {spec: broker.Spec{Attach: broker.PlaceBearer, Env: "GIVEN"}, header: "Authorization", want: "Bearer " + canary},
		"by a command": {spec: broker.Spec{Attach: broker.PlaceBearer, Command: []string{"/bin/echo", canary}}, header: "Authorization", want: "Bearer " + canary},
	} {
		t.Run(name, func(t *testing.T) {
			tt.spec.Name = "TOKEN"
			r := newRig(t, nil, tt.spec)
			for _, own := range [][]string{nil, {"Authorization", "Bearer foreign"}, {"Authorization", "Bearer " + r.env["TOKEN"]},
				{"Authorization", basic("x:" + r.env["TOKEN"])}, {"X-Api-Key", "foreign", "Cookie", "a=foreign", "Proxy-Authorization", "foreign", "api-key", "foreign"}} {
				a := r.do("POST", "/v1/a%20b?b=2&access_token=foreign&a=1", "the body", own...)
				if a.err != nil || a.status != 200 {
					t.Fatalf("%v: %+v", own, a)
				}
				q, body := r.last()
				if tt.header != "" && (q.Header.Get(tt.header) != tt.want || len(q.Header.Values(tt.header)) != 1) {
					t.Errorf("%v: %s is %q, want %q", own, tt.header, q.Header.Values(tt.header), tt.want)
				}
				want := "b=2&a=1"
				if tt.query != "" {
					want += "&key=" + url.QueryEscape(tt.query)
				}
				if q.URL.RawQuery != want || q.URL.EscapedPath() != "/v1/a%20b" || body != "the body" || q.Host != host {
					t.Errorf("came as %s %s %q", q.Host, q.URL, body)
				}
				for name, values := range q.Header {
					if text := strings.Join(values, " "); strings.Contains(text, "foreign") || strings.Contains(text, r.env["TOKEN"]) {
						t.Errorf("%v: %s: %s came through", own, name, text)
					}
				}
			}
		})
	}
}

// A placeholder is replaced in its place, and nowhere else.
func TestPlaceholder(t *testing.T) {
	for name, tt := range map[string]struct {
		spec      broker.Spec
		url       string // P stands for the placeholder
		header    []string
		want      string // of the header, or of the query
		wantQuery string
		reason    string
	}{
		"bearer":               {spec: broker.Spec{Placeholder: broker.PlaceBearer}, header: []string{"Authorization", "Bearer P"}, want: "Bearer " + canary},
		"token":                {spec: broker.Spec{Placeholder: broker.PlaceBearer}, header: []string{"Authorization", "token P"}, want: "token " + canary},
		"header":               {spec: broker.Spec{Placeholder: broker.PlaceHeader, Header: "X-Key"}, header: []string{"X-Key", "id=1, key=P"}, want: "id=1, key=" + canary},
		"basic":                {spec: broker.Spec{Placeholder: broker.PlaceBasic}, header: []string{"Authorization", "BASIC me:P"}, want: basic("me:" + canary)},
		"basic, user":          {spec: broker.Spec{Placeholder: broker.PlaceBasic}, header: []string{"Authorization", "BASIC P:"}, want: basic(canary + ":")},
		"query":                {spec: broker.Spec{Placeholder: broker.PlaceQuery, Query: "key"}, url: "/?a=1&key=P&b=2", wantQuery: "a=1&b=2&key=" + url.QueryEscape(canary)},
		"none":                 {spec: broker.Spec{Placeholder: broker.PlaceBearer}},
		"another header":       {spec: broker.Spec{Placeholder: broker.PlaceBearer}, header: []string{"X-Key", "P"}, reason: "secret-location"},
		"a credential's":       {spec: broker.Spec{Placeholder: broker.PlaceBearer}, header: []string{"X-Api-Key", "P"}, reason: "secret-location"},
		"twice":                {spec: broker.Spec{Placeholder: broker.PlaceBearer}, header: []string{"Authorization", "Bearer P", "Authorization", "Bearer P"}, reason: "secret-location"},
		"more than it":         {spec: broker.Spec{Placeholder: broker.PlaceBearer}, header: []string{"Authorization", "Bearer P, P"}, reason: "secret-location"},
		"basic for bearer":     {spec: broker.Spec{Placeholder: broker.PlaceBearer}, header: []string{"Authorization", "BASIC me:P"}, reason: "secret-location"},
		"name of a header":     {spec: broker.Spec{Placeholder: broker.PlaceBearer}, header: []string{"P", "x"}, reason: "secret-location"},
		"path":                 {spec: broker.Spec{Placeholder: broker.PlaceBearer}, url: "/a/P", reason: "secret-location"},
		"query for header":     {spec: broker.Spec{Placeholder: broker.PlaceBearer}, url: "/?q=P", reason: "secret-location"},
		"another parameter":    {spec: broker.Spec{Placeholder: broker.PlaceQuery, Query: "key"}, url: "/?q=P", reason: "secret-location"},
		"behind a semicolon":   {spec: broker.Spec{Placeholder: broker.PlaceQuery, Query: "key"}, url: "/?q=1;key=P", reason: "secret-location"},
		"attached, in a body":  {spec: broker.Spec{Attach: broker.PlaceBearer}, url: "BODY", reason: "secret-location"},
		"attached, in a path":  {spec: broker.Spec{Attach: broker.PlaceBearer}, url: "/P", reason: "secret-location"},
		"attached, in a query": {spec: broker.Spec{Attach: broker.PlaceBearer}, url: "/?q=P", reason: "secret-location"},
	} {
		t.Run(name, func(t *testing.T) {
			tt.spec.Name = "TOKEN"
			r := newRig(t, nil, tt.spec)
			p, body := r.env["TOKEN"], ""
			var headers []string
			for _, h := range tt.header {
				if pair, ok := strings.CutPrefix(h, "BASIC "); ok {
					h = basic(strings.ReplaceAll(pair, "P", p))
				} else if h != "X-Api-Key" {
					h = strings.ReplaceAll(h, "P", p)
				}
				headers = append(headers, h)
			}
			to := strings.ReplaceAll(tt.url, "P", p)
			if to == "BODY" {
				to, body = "", `{"a":"`+p+`"}`
			}
			if to == "" {
				to = "/"
			}
			a := r.do("POST", to, body, headers...)
			if tt.reason != "" {
				if a.refused == nil || a.refused.reason != tt.reason || a.refused.status != http.StatusForbidden {
					t.Fatalf("%+v, want %s", a, tt.reason)
				}
				if strings.Contains(r.log.String(), canary) || r.count() != 0 {
					t.Errorf("%d requests came upstream; the log: %s", r.count(), r.log)
				}
				return
			}
			if a.err != nil {
				t.Fatal(a.err)
			}
			q, _ := r.last()
			if len(tt.header) > 0 && q.Header.Get(tt.header[0]) != tt.want || q.URL.RawQuery != tt.wantQuery {
				t.Errorf("came with %v and %q", q.Header, q.URL.RawQuery)
			}
		})
	}
}

// Where a secret says so, a request with a credential of its own is refused, and otherwise it goes without.
func TestForeignRefused(t *testing.T) {
	r := newRig(t, nil, broker.Spec{Name: "TOKEN", Attach: broker.PlaceBearer, Foreign: broker.ForeignRefuse, StripQuery: []string{"mine"}, StripHeaders: []string{"x-mine"}})
	for _, tt := range [][]string{{"/", "Authorization", "Bearer foreign"}, {"/", "Cookie", "a=b"}, {"/?api_key=x"}, {"/?a=1;API_KEY=x"}, {"/?%61pi_key=x"},
		{"/?MINE=1"}, {"/", "X-Mine", "1"}, {"/?X-Amz-Signature=1"}} {
		a := r.do("GET", tt[0], "", tt[1:]...)
		if a.refused == nil || a.refused.reason != "foreign-credential" {
			t.Errorf("%v: %+v", tt, a)
		}
	}
	if r.count() != 0 {
		t.Errorf("%d requests came upstream", r.count())
	}
	if a := r.do("GET", "/?page_token=1", "", "Authorization", "Bearer "+r.env["TOKEN"]); a.err != nil {
		t.Errorf("its own placeholder: %v", a.err)
	}
}

// Where two secrets are for one host, each is for its own requests, and its placeholder too.
func TestTwoSecrets(t *testing.T) {
	r := newRig(t, nil,
		broker.Spec{Name: "READ", Placeholder: broker.PlaceBearer, Methods: []string{"GET"}, OnViolation: broker.ViolationEnd},
		broker.Spec{Name: "WRITE", Attach: broker.PlaceBearer, Methods: []string{"POST"}, Paths: []string{"/w/**"}})
	if a := r.do("POST", "/w/1", "", "Authorization", "Bearer "+r.env["READ"]); a.refused == nil || a.refused.reason != "secret-wrong-host" {
		t.Errorf("the other's placeholder: %+v", a)
	}
	if !r.binding.Ends() {
		t.Error("a violation that ends the run was not told")
	}
	for _, tt := range [][]string{{"POST", "/r", "path"}, {"PUT", "/w/1", "method"}, {"CONNECT", "/", "method"}, {"TRACE", "/", "method"}, {"TRACK", "/", "method"}} {
		if a := r.do(tt[0], tt[1], ""); a.refused == nil || a.refused.reason != tt[2] {
			t.Errorf("%v: %+v", tt, a)
		}
	}
	if a := r.do("GET", "/w/1", "", "Authorization", "Bearer "+r.env["READ"]); a.err != nil {
		t.Error(a.err)
	}
}
