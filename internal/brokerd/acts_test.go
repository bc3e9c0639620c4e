package brokerd

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"glovebox"
	"glovebox/internal/broker"
)

// TestActions: a program reaches the actions that its run was granted, at the broker's own host, and no others; a secret is added
// outside and masked in what comes back.
func TestActions(t *testing.T) {
	r := newRig(t, func(w http.ResponseWriter, q *http.Request) {
		io.WriteString(w, q.URL.Path+" "+q.Header.Get("Authorization"))
	}, bearer())
	r.client.Close()
	schema := []byte(`{"type":"object","properties":{"id":{"type":"string"}},"required":["id"]}`)
	r.actions = []broker.Action{
		{Name: "say", Schema: schema, Command: []string{"/bin/cat"}},
		{Name: "look", Schema: schema, HTTP: &broker.ActionHTTP{Method: "GET", URL: "https://" + host + "/items/{id}", Secret: "TOKEN"}},
		{Name: "other", Schema: schema, Command: []string{"/bin/cat"}},
	}
	r.start([]broker.Spec{{Name: "TOKEN", Attach: broker.PlaceBearer, File: r.file, Hosts: []string{host}}})
	b, err := r.client.Bind(t.Context(), broker.Run{ID: "run_acts"}, nil, nil, "say", "look")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		path, args string
		status     int
		says       string
	}{
		{"/actions/say", `{"id":"7"}`, 200, `"result":{"id":"7"}`},
		{"/actions/look", `{"id":"7"}`, 200, "/items/7 Bearer ***"},
		{"/actions/look", `{"id":"../7"}`, 400, "no part of a path"},
		{"/actions/other", `{"id":"7"}`, 403, "no action"},
		{"/elsewhere", `{}`, 404, "nothing at this path"},
	} {
		w := httptest.NewRecorder()
		q := httptest.NewRequest("POST", "http://broker.internal"+tt.path, strings.NewReader(tt.args))
		q.Header.Set("Content-Type", "application/json")
		b.Handler().ServeHTTP(w, q.WithContext(t.Context()))
		if w.Code != tt.status || !strings.Contains(w.Body.String(), tt.says) || bytes.Contains(w.Body.Bytes(), []byte(canary)) {
			t.Errorf("%s: %d %s", tt.path, w.Code, w.Body)
		}
	}
	if q, _ := r.last(); q.Header.Get("Authorization") != "Bearer "+canary || r.count() != 1 {
		t.Errorf("%d requests came, the last with %q", r.count(), q.Header.Get("Authorization"))
	}
	if err := b.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	none, err := r.client.Bind(t.Context(), broker.Run{ID: "run_none"}, nil, []glovebox.SecretRef{})
	if err != nil || none.Handler() != nil {
		t.Errorf("a run without actions has somebody to ask: %v", err)
	}
}
