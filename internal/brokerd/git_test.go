package brokerd

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"glovebox"
	"glovebox/internal/broker"
)

// line is a pkt-line.
func pkt(text string) string { return fmt.Sprintf("%04x%s", len(text)+4, text) }

// A token for git is for git's own requests; what a push would change is judged before anything of it is sent.
func TestGit(t *testing.T) {
	const old, next = "1111111111111111111111111111111111111111", "2222222222222222222222222222222222222222"
	push := func(refs ...string) string {
		text := ""
		for i, ref := range refs {
			able := ""
			if i == 0 {
				able = "\x00 report-status side-band-64k"
			}
			text += pkt(old + " " + next + " " + ref + able)
		}
		return text + "0000PACK and the rest"
	}
	r := newRig(t, nil, broker.Spec{Name: "GIT", Attach: broker.PlaceGit})
	for _, tt := range []struct {
		name, method, path, body string
		push                     []string
		status                   int // 0: refused for its path
		says                     string
	}{
		{name: "fetch", method: "GET", path: "/a.git/info/refs?service=git-upload-pack", status: 200},
		{name: "fetch on", method: "POST", path: "/a.git/git-upload-pack", body: "0000", status: 200},
		{name: "no git", method: "GET", path: "/api/v3/user", says: "for git alone"},
		{name: "no git's query", method: "GET", path: "/a.git/info/refs?service=git-upload-pack&x=1", says: "for git alone"},
		{name: "push announced, no ref", method: "GET", path: "/a.git/info/refs?service=git-receive-pack", says: "no rule names a ref"},
		{name: "push, no ref", method: "POST", path: "/a.git/git-receive-pack", body: push("refs/heads/main"), says: "no rule names a ref"},
		{name: "push announced", method: "GET", path: "/a.git/info/refs?service=git-receive-pack", push: []string{"refs/heads/ai/*"}, status: 200},
		{name: "push", method: "POST", path: "/a.git/git-receive-pack", body: push("refs/heads/ai/x"), push: []string{"refs/heads/ai/*"}, status: 200},
		{name: "push of another", method: "POST", path: "/a.git/git-receive-pack", body: push("refs/heads/main"), push: []string{"refs/heads/ai/*"}, says: "ng refs/heads/main not allowed"},
		{name: "one of two", method: "POST", path: "/a.git/git-receive-pack", body: push("refs/heads/ai/x", "refs/heads/main"), push: []string{"refs/heads/ai/*"}, says: "ng refs/heads/ai/x refused with the others"},
		{name: "a long one", method: "POST", path: "/a.git/git-receive-pack", body: push("refs/heads/main") + strings.Repeat("x", maxSmall), push: []string{"refs/heads/ai/*"}, says: "ng refs/heads/main not allowed"},
		{name: "a long one that may", method: "POST", path: "/a.git/git-receive-pack", body: push("refs/heads/ai/x") + strings.Repeat("x", maxSmall), push: []string{"refs/heads/ai/*"}, status: 200},
		{name: "no list", method: "POST", path: "/a.git/git-receive-pack", body: "no pkt-line at all", push: []string{"refs/heads/ai/*"}, says: "cannot be read"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rules := []glovebox.EgressRule{{Host: host, Protocols: []string{"https"}, Push: tt.push}}
			if err := r.binding.Replace(t.Context(), rules); err != nil {
				t.Fatal(err)
			}
			before := r.count()
			q, err := http.NewRequestWithContext(t.Context(), tt.method, "https://"+host+tt.path, strings.NewReader(tt.body))
			if err != nil {
				t.Fatal(err)
			}
			a := r.send(q)
			if tt.status != 0 {
				_, body := r.last()
				if a.status != tt.status || r.count() != before+1 || body != tt.body {
					t.Errorf("%+v, %d came", a, r.count()-before)
				}
				return
			}
			if r.count() != before || !strings.Contains(a.text, tt.says) || a.reason != "path" {
				t.Errorf("%+v, %d came; want %s", a, r.count()-before, tt.says)
			}
		})
	}
	if a := r.do("POST", "/a.git/git-receive-pack", "x", "Content-Encoding", "gzip"); a.refused == nil {
		t.Errorf("compressed: %+v", a)
	}
}

// What git is sent with is the token alone.
func TestGitAttach(t *testing.T) {
	for user, want := range map[string]string{"": "x-access-token:" + canary, "me": "me:" + canary} {
		r := newRig(t, nil, broker.Spec{Name: "GIT", Attach: broker.PlaceGit, User: user})
		for _, own := range [][]string{nil, {"Authorization", basic("me:foreign")}, {"Authorization", basic("x:" + r.env["GIT"])}, {"Cookie", "foreign=1"}} {
			if a := r.do("POST", "/v1/a%20b.git/git-upload-pack", "0000", own...); a.err != nil {
				t.Fatal(a.err)
			}
			q, _ := r.last()
			if got := q.Header.Values("Authorization"); len(got) != 1 || got[0] != basic(want) || q.Header.Get("Cookie") != "" {
				t.Errorf("%v: came with %v", own, q.Header)
			}
		}
	}
}
