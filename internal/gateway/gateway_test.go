package gateway_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"glovebox"
	"glovebox/internal/egress"
)

var good = []glovebox.EgressRule{{Host: "good.test"}}

func hello(w http.ResponseWriter, r *http.Request) {
	fmt.Fprintf(w, "hello %s %s %s", r.Proto, r.Host, r.URL)
}

func get(t testing.TB, c *http.Client, url string) (int, string) {
	t.Helper()
	res, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// refusal is what a program inside reads.
type refusal struct{ Error, Host, Reason, Rule, Ask string }

func refusalOf(t testing.TB, body string) refusal {
	t.Helper()
	var r refusal
	if err := json.Unmarshal([]byte(body), &r); err != nil {
		t.Fatalf("%q: %v", body, err)
	}
	if r.Error == "" || r.Host == "" || r.Ask == "" {
		t.Errorf("a refusal lacks what a reader needs: %+v", r)
	}
	return r
}

func TestAllowed(t *testing.T) {
	for _, upstream2 := range []bool{false, true} {
		r := newRig(t, terms{rules: good})
		r.server("good.test", 80, false, false, hello)
		r.server("good.test", 443, true, upstream2, hello)
		for _, c := range []*http.Client{r.client(false), r.client(true)} {
			if code, body := get(t, c, "http://good.test/a?b=c"); code != 200 || body != "hello HTTP/1.1 good.test /a?b=c" {
				t.Error(code, body)
			}
			want := "hello HTTP/1.1 good.test /a?b=c"
			if upstream2 {
				want = "hello HTTP/2.0 good.test /a?b=c"
			}
			if code, body := get(t, c, "https://good.test/a?b=c"); code != 200 || body != want {
				t.Error(code, body)
			}
		}
		f := r.waitRecord("https", func(f glovebox.EgressFlow) bool { return f.Allowed && f.Port == 443 })
		if f.Host != "good.test" || f.Path != "/a" || f.Method != "GET" || f.BytesDown == 0 || f.Layer != "http" {
			t.Errorf("%+v", f)
		}
	}
}

func TestRefused(t *testing.T) {
	r := newRig(t, terms{rules: good})
	code, body := get(t, r.client(false), "http://evil.test/x")
	if got := refusalOf(t, body); code != 403 || got.Reason != "host-not-allowed" || got.Host != "evil.test" {
		t.Error(code, body)
	}
	_, err := r.client(false).Get("https://evil.test/")
	if err == nil || !strings.Contains(err.Error(), "access denied") {
		t.Error(err)
	}
	code, body = get(t, r.client(false), "http://192.0.2.7/x")
	if got := refusalOf(t, body); code != 403 || got.Reason != "ip-literal" || got.Host != "192.0.2.7" {
		t.Error(code, body)
	}
	if _, err = r.client(false).Get("https://192.0.2.7/"); err == nil || !strings.Contains(err.Error(), "access denied") {
		t.Error(err)
	}
	if _, err := r.open("good.test", 22); err == nil {
		t.Error("port 22 was connected")
	}
	r.waitDenied(egress.ReasonPort)
	r.waitDenied(egress.ReasonIPLiteral)
	if n := r.internet.dialled(); n != 0 {
		t.Errorf("%d dials", n)
	}
}

// raw sends text on a connection and returns the status of the answer and its body.
func raw(t testing.TB, c io.ReadWriter, text string) (int, string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(b)
}
