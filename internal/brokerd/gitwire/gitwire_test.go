package gitwire

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
)

const zero, one = "0000000000000000000000000000000000000000", "1111111111111111111111111111111111111111"

func pkt(lines ...string) string {
	var b strings.Builder
	for _, l := range lines {
		fmt.Fprintf(&b, "%04x%s", len(l)+4, l)
	}
	return b.String() + "0000"
}

// TestCommands: each ref of a push is judged before anything of it is passed on; what passes is passed on as it was.
func TestCommands(t *testing.T) {
	const able = "\x00 report-status side-band-64k agent=git/2"
	globs := []string{"refs/heads/agent/*", "refs/tags/**"}
	cmd := func(ref string) string { return zero + " " + one + " " + ref }
	for _, c := range []struct{ name, body, why string }{
		{"a named ref", pkt(cmd("refs/heads/agent/x") + able), ""},
		{"two", pkt(cmd("refs/heads/agent/x")+able, cmd("refs/tags/a/b")), ""},
		{"with the end of history", pkt("shallow "+one, cmd("refs/heads/agent/x")+able), ""},
		{"nothing, to try the way", "0000", ""},
		{"another ref", pkt(cmd("refs/heads/main") + able), "no rule names"},
		{"another beside it", pkt(cmd("refs/heads/agent/x")+able, cmd("refs/heads/main")), "no rule names"},
		{"deeper than named", pkt(cmd("refs/heads/agent/x/y") + able), "no rule names"},
		{"the folder itself", pkt(cmd("refs/tags") + able), "no rule names"},
		{"climbing", pkt(cmd("refs/tags/../heads/main") + able), "no rule names"},
		{"a dot", pkt(cmd("refs/tags/./x") + able), "no rule names"},
		{"two slashes", pkt(cmd("refs/tags//x") + able), "no rule names"},
		{"HEAD", pkt(cmd("HEAD") + able), "no rule names"},
		{"a byte of zero later", pkt(cmd("refs/tags/x")+able, cmd("refs/tags/y\x00")+"refs/heads/main"), "says twice"},
		{"a line in a name", pkt(cmd("refs/tags/x\ny") + able), "no rule names"},
		{"the same twice", pkt(cmd("refs/tags/x")+able, cmd("refs/tags/x")), "pushed twice"},
		{"options", pkt(cmd("refs/tags/x") + "\x00report-status push-options"), "--push-option"},
		{"signed", pkt("push-cert\x00report-status"), "--signed"},
		{"no command", pkt("hello" + able), "no command"},
		{"no id", pkt("x " + one + " refs/tags/x" + able), "no command"},
		{"no end", strings.TrimSuffix(pkt(cmd("refs/tags/x")), "0000"), "no length"},
		{"a short line", "0040" + cmd("x"), "no command"},
		{"no length", "zzzz", "no length"},
		{"a sign in the length", "+00a123456", "no length"},
		{"a delimiter", "0001", "no list has"},
		{"too long a line", "fff5", "no list has"},
	} {
		rest := "PACK" + strings.Repeat("\x00\xff", 70000)
		got, err := Commands(iotest.OneByteReader(strings.NewReader(c.body+rest)), globs)
		var refused *Refused
		switch {
		case c.why == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.why == "":
			if whole, err := io.ReadAll(got); err != nil || string(whole) != c.body+rest {
				t.Errorf("%s: %d bytes of %d (%v)", c.name, len(whole), len(c.body+rest), err)
			}
		case !errors.As(err, &refused) || !strings.Contains(refused.Why, c.why):
			t.Errorf("%s: %v, want %q", c.name, err, c.why)
		}
	}
	many := make([]string, maxCommands+1)
	for i := range many {
		many[i] = cmd(fmt.Sprintf("refs/tags/%d", i))
	}
	if _, err := Commands(strings.NewReader(pkt(many...)), globs); err == nil {
		t.Error("an endless list passed")
	}
}

// FuzzCommands: whatever the bytes, what passes has no ref that is not named, by a reading of its own.
func FuzzCommands(f *testing.F) {
	f.Add([]byte(pkt(zero + " " + one + " refs/tags/x\x00report-status")))
	f.Add([]byte("0000PACK"))
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := Commands(bytes.NewReader(body), []string{"refs/tags/*"})
		if err != nil {
			var refused *Refused
			if !errors.As(err, &refused) || refused.Why == "" {
				t.Fatalf("%v", err)
			}
			refused.Answer()
			return
		}
		whole, err := io.ReadAll(got)
		if err != nil || !bytes.Equal(whole, body) {
			t.Fatalf("changed to %q (%v)", whole, err)
		}
		list, _, ok := bytes.Cut(body, []byte("0000"))
		if ok && bytes.Contains(list, []byte("refs/heads/")) && !bytes.Contains(list, []byte(zero)) {
			t.Fatalf("passed %q", body)
		}
	})
}

// TestRequest: a token for git is for git's own requests.
func TestRequest(t *testing.T) {
	for text, want := range map[string]Service{
		"GET /a/b.git/info/refs?service=git-upload-pack": Fetch, "GET /a/b.git/info/refs?service=git-receive-pack": Push,
		"POST /a/b.git/git-upload-pack": Fetch, "POST /a/b.git/git-receive-pack": Push,
		"GET /a/b.git/info/refs": "", "GET /a/b.git/HEAD": "", "GET /a/b.git/objects/info/packs": "", "POST /graphql": "",
		"POST /a/b.git/info/lfs/objects/batch": "", "DELETE /a/b.git/git-receive-pack": "", "POST /a/b.git/git-receive-pack?x=1": "",
		"GET /a/b.git/info/refs?service=git-upload-pack&service=git-receive-pack": "", "GET /a/info/refs?service=git%2dreceive-pack": "",
	} {
		method, address, _ := strings.Cut(text, " ")
		u, err := url.Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Request(method, u)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q (%v), want %q", text, got, err, want)
		}
	}
}

func TestCheckGlob(t *testing.T) {
	for glob, good := range map[string]bool{"refs/heads/*": true, "refs/heads/agent/**": true, "refs/heads/main": true,
		"*": false, "main": false, "refs/**/x": false, "refs/heads/[": false, "refs/../x": false, "": false} {
		if err := CheckGlob(glob); (err == nil) != good {
			t.Errorf("%q: %v", glob, err)
		}
	}
}

// gitServer serves a bare repository by git http-backend, behind the judge.
func gitServer(t *testing.T, globs []string) (address, repository string, sent func() int) {
	t.Helper()
	backend, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		t.Skip("needs git")
	}
	root := t.TempDir()
	repository = filepath.Join(root, "shop.git")
	git(t, root, "init", "-q", "--bare", repository)
	git(t, repository, "config", "http.receivepack", "true")
	git(t, repository, "config", "receive.advertisePushOptions", "true")
	server := &cgi.Handler{Path: filepath.Join(strings.TrimSpace(string(backend)), "git-http-backend"),
		Env: []string{"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1"}}
	var mu sync.Mutex
	pushes := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		service, err := Request(r.Method, r.URL)
		if err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		if service == Push && r.Method == http.MethodPost {
			body, err := Commands(r.Body, globs)
			var refused *Refused
			if errors.As(err, &refused) {
				kind, answer := refused.Answer()
				w.Header().Set("Content-Type", kind)
				w.Write(answer)
				return
			}
			if r.ContentLength != int64(len("0000")) { // an empty list, to try the way
				mu.Lock()
				pushes++
				mu.Unlock()
			}
			r.Body = io.NopCloser(body)
		}
		if len(r.TransferEncoding) > 0 { // the CGI of the library takes no chunks
			whole, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			r.Body, r.ContentLength, r.TransferEncoding = io.NopCloser(bytes.NewReader(whole)), int64(len(whole)), nil
		}
		server.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s.URL + "/shop.git", repository, func() int {
		mu.Lock()
		defer mu.Unlock()
		return pushes
	}
}

func tryGit(dir string, args ...string) (string, error) {
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "HOME="+dir, "GIT_TERMINAL_PROMPT=0", "GIT_AUTHOR_NAME=a",
		"GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	out, err := tryGit(dir, args...)
	if err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return out
}

// TestRealGit: plain git clones, fetches and pushes what it may, and shows why it may not push the rest.
func TestRealGit(t *testing.T) {
	address, repository, pushes := gitServer(t, []string{"refs/heads/agent/*"})
	work := filepath.Join(t.TempDir(), "work")
	git(t, filepath.Dir(work), "clone", "-q", address, work)
	if err := os.WriteFile(filepath.Join(work, "big"), bytes.Repeat([]byte("0123456789abcdef\n"), 200000), 0o644); err != nil {
		t.Fatal(err)
	}
	git(t, work, "add", ".")
	git(t, work, "commit", "-qm", "one")
	// Larger than what git sends at once: it comes in chunks, after a try.
	git(t, work, "config", "http.postBuffer", "65536")
	git(t, work, "config", "core.compression", "0")
	git(t, work, "push", "-q", "origin", "HEAD:refs/heads/agent/one")
	want := strings.TrimSpace(git(t, work, "rev-parse", "HEAD"))
	if got := strings.TrimSpace(git(t, repository, "rev-parse", "refs/heads/agent/one")); got != want {
		t.Errorf("the server has %s, want %s", got, want)
	}
	again := filepath.Join(t.TempDir(), "again")
	git(t, filepath.Dir(again), "clone", "-q", "--depth", "1", "--branch", "agent/one", address, again)
	done := pushes()
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"push", "origin", "HEAD:refs/heads/main"}, []string{"[remote rejected]", "not allowed by the rule for this host"}},
		{[]string{"push", "origin", "HEAD:refs/heads/agent/two", "HEAD:refs/heads/main"},
			[]string{"agent/two (refused with the others)", "main (not allowed by the rule for this host)"}},
		{[]string{"push", "origin", "--delete", "main"}, []string{"main"}},
		{[]string{"push", "--push-option", "ci.skip", "origin", "HEAD:refs/heads/agent/two"}, []string{"leave --push-option out"}},
	} {
		out, err := tryGit(work, c.args...)
		if err == nil {
			t.Errorf("git %v was done:\n%s", c.args, out)
		}
		for _, w := range c.want {
			if !strings.Contains(out, w) {
				t.Errorf("git %v says\n%s\nwant %q in it", c.args, out, w)
			}
		}
	}
	if n := pushes(); n != done {
		t.Errorf("%d refused pushes reached the server", n-done)
	}
	if refs := git(t, repository, "for-each-ref", "--format=%(refname)"); refs != "refs/heads/agent/one\n" {
		t.Errorf("the server has refs %s", refs)
	}
	git(t, work, "push", "-q", "origin", "--delete", "agent/one")
}
