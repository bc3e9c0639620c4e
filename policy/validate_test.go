package policy

import (
	"strings"
	"testing"

	"glovebox"
)

// refusal is a request that must be refused.
type refusal struct {
	name string
	req  glovebox.Request
	code glovebox.Code
	says string // in the reason or the fix
}

func (c refusal) check(t *testing.T) {
	t.Run(c.name, func(t *testing.T) {
		p := basic(t)
		d := p.Decide(owner, c.req, process)
		wellFormed(t, p, c.req, d)
		if d.Allow || d.Code != c.code || !strings.Contains(d.Reason+"\n"+d.Fix, c.says) {
			t.Errorf("got %+v, want %s saying %q", d, c.code, c.says)
		}
		if len(d.Reason)+len(d.Fix) > 1000 {
			t.Errorf("a message of %d bytes", len(d.Reason)+len(d.Fix))
		}
	})
}

func TestRefusedRequests(t *testing.T) {
	code := func(r glovebox.Request) glovebox.Request { r.Code = "1"; return r }
	for _, c := range []refusal{
		{"nothing", glovebox.Request{}, "invalid", "code and argv are both empty"},
		{"both", glovebox.Request{Code: "1", Argv: []string{"ls"}}, "invalid", "both set"},
		{"lang with argv", glovebox.Request{Lang: "python", Argv: []string{"ls"}}, "invalid", "lang"},
		{"args with argv", glovebox.Request{Argv: []string{"ls"}, Args: []string{"x"}}, "invalid", "argv"},
		{"empty program", glovebox.Request{Argv: []string{""}}, "invalid", "argv"},
		{"lang", code(glovebox.Request{Lang: "pyton"}), "invalid", "did you mean --lang python?"},
		{"far lang", code(glovebox.Request{Lang: "cobol"}), "invalid", "python, node or bash"},
		{"shell in lang", code(glovebox.Request{Lang: "python; touch /x"}), "invalid", "lang"},
		{"trust", code(glovebox.Request{Trust: "hostil"}), "invalid", "did you mean --trust hostile?"},
		{"isolation", code(glovebox.Request{Isolation: "gviser"}), "invalid", "did you mean --isolation gvisor?"},
		{"image", code(glovebox.Request{Image: "hst"}), "not_found", "did you mean --image host?"},
		{"escape in word", code(glovebox.Request{Trust: "\x1b[2J"}), "invalid", `"\x1b[2J"`},
		{"long word", code(glovebox.Request{Trust: glovebox.Trust(strings.Repeat("x", 1e6))}), "invalid", "…"},
		{"large code", glovebox.Request{Code: strings.Repeat("#", 8<<20+1)}, "invalid", "--input"},
		{"NUL in code", glovebox.Request{Code: "ab\x00c"}, "invalid", "byte 2"},
		{"latin-1 code", glovebox.Request{Code: "x='é\ufffd\xe9'"}, "invalid", "byte 8"},
		{"code name path", code(glovebox.Request{CodeName: "../x.py"}), "invalid", "code name"},
		{"code name dots", code(glovebox.Request{CodeName: ".."}), "invalid", "code name"},
		{"code name newline", code(glovebox.Request{CodeName: "a\nb.py"}), "invalid", "code name"},
		{"code name bidi", code(glovebox.Request{CodeName: "a\u202eyp.x"}), "invalid", "code name"},
		{"code name with argv", glovebox.Request{Argv: []string{"ls"}, CodeName: "x.py"}, "invalid", "argv"},
		{"long arg", code(glovebox.Request{Args: []string{"", strings.Repeat("x", 128<<10)}}), "invalid", "args[1]"},
		{"NUL arg", code(glovebox.Request{Args: []string{"a\x00"}}), "invalid", "args[0]"},
		{"odd arg", glovebox.Request{Argv: []string{"ls", "\xff"}}, "invalid", "argv[1]"},
		{"many args", code(glovebox.Request{Args: make([]string, 4097)}), "invalid", "4096"},
		{"much args", code(glovebox.Request{Args: slicesOf(strings.Repeat("x", 100<<10), 11)}), "invalid", "in all"},
		{"env name", code(glovebox.Request{Env: map[string]string{"A-B": "x"}}), "invalid", `"A-B"`},
		{"env name digit", code(glovebox.Request{Env: map[string]string{"1A": "x"}}), "invalid", "variable"},
		{"env name empty", code(glovebox.Request{Env: map[string]string{"": "x"}}), "invalid", "variable"},
		{"env name equals", code(glovebox.Request{Env: map[string]string{"A=B": "x"}}), "invalid", "variable"},
		{"env NUL", code(glovebox.Request{Env: map[string]string{"A": "x\x00"}}), "invalid", "NUL"},
		{"env python", code(glovebox.Request{Env: map[string]string{"PYTHONPATH": "/inputs"}}), "invalid", "PYTHONPATH"},
		{"env python named", code(glovebox.Request{Lang: "python", Env: map[string]string{"PYTHONHASHSEED": "0"}}), "invalid",
			"-- python3"},
		{"env large", code(glovebox.Request{Env: map[string]string{"A": strings.Repeat("x", 128<<10)}}), "invalid", "--stdin"},
		{"stdin twice", code(glovebox.Request{Stdin: "a", StdinFrom: strings.NewReader("b")}), "invalid", "twice"},
		{"secret", code(glovebox.Request{Secrets: []glovebox.SecretRef{{}}}), "denied", "`glovebox secret ls`"},
		{"session", code(glovebox.Request{Session: "s"}), "unavailable", "session is not available"},
		{"interpreter", code(glovebox.Request{Interpreter: true}), "unavailable", "interpreter is not available"},
		{"detach", code(glovebox.Request{Detach: true}), "unavailable", "detach is not available"},
	} {
		c.check(t)
	}
}

func TestRefusedInputs(t *testing.T) {
	inputs := func(in ...glovebox.Input) glovebox.Request { return glovebox.Request{Code: "1", Inputs: in} }
	for _, c := range []refusal{
		{"input by run", inputs(glovebox.Input{Name: "a", Run: "run_1", Artifact: "b"}), "unavailable", "run and artifact"},
		{"input run only", inputs(glovebox.Input{Name: "a", Run: "run_1"}), "invalid", "only one"},
		{"input name empty", inputs(glovebox.Input{Content: "x"}), "invalid", "empty"},
		{"input name absolute", inputs(glovebox.Input{Name: "/a"}), "invalid", "absolute"},
		{"input name climbs", inputs(glovebox.Input{Name: "../a"}), "invalid", "clean"},
		{"input name climbs inside", inputs(glovebox.Input{Name: "a/../../b"}), "invalid", "clean"},
		{"input name dot", inputs(glovebox.Input{Name: "."}), "invalid", "clean"},
		{"input name slash", inputs(glovebox.Input{Name: "a/"}), "invalid", "clean"},
		{"input name NUL", inputs(glovebox.Input{Name: "a\x00b"}), "invalid", "print"},
		{"input name odd", inputs(glovebox.Input{Name: "a\xff"}), "invalid", "print"},
		{"input name long", inputs(glovebox.Input{Name: strings.Repeat("a", 256)}), "invalid", "255"},
		{"input name deep", inputs(glovebox.Input{Name: strings.Repeat("a/", 40) + "a"}), "invalid", "folders"},
		{"input twice", inputs(glovebox.Input{Name: "a"}, glovebox.Input{Name: "a"}), "invalid", "two inputs"},
		{"input in input", inputs(glovebox.Input{Name: "a/b"}, glovebox.Input{Name: "a"}), "invalid", "within"},
		{"input two sources", inputs(glovebox.Input{Name: "a", Content: "x", Path: "/y"}), "invalid", "more than one"},
		{"input base64", inputs(glovebox.Input{Name: "a", ContentBase64: "!"}), "invalid", "base64"},
		{"input path NUL", inputs(glovebox.Input{Name: "a", Path: "/a\x00"}), "invalid", "NUL"},
	} {
		c.check(t)
	}
}

func TestAllowedRequests(t *testing.T) {
	p := basic(t)
	for name, req := range map[string]glovebox.Request{
		"argv":              {Argv: []string{"sh", "-c", "exit $(echo 3); `x` | y & \n"}},
		"code edge":         {Code: strings.Repeat("#", 8<<20)},
		"env for a program": {Argv: []string{"python3"}, Env: map[string]string{"PYTHONPATH": "/inputs"}},
		"env for bash":      {Lang: "bash", Code: "1", Env: map[string]string{"PYTHONPATH": "/inputs", "PYTHO": ""}},
		"env":               {Code: "1", Env: map[string]string{"PATH": "/x", "HOME": "", "TMPDIR": "\xff", "_a1": "b=c\n"}},
		"code name":         {Code: "1", CodeName: "my späte script.v2.py"},
		"dash args":         {Code: "1", Args: []string{"--", "-rf", "", "$(id)"}},
		"inputs": {Code: "1", Inputs: []glovebox.Input{
			{Name: "a/b", Path: "x"}, {Name: "a/c"}, {Name: "..a", ContentBase64: "eA=="},
		}},
		"owner path":            {Code: "1", Inputs: []glovebox.Input{{Name: "x", Path: "../../etc/hosts"}}},
		"replacement character": {Code: "x = '\ufffd'"},
	} {
		if d := p.Decide(owner, req, process); !d.Allow {
			t.Errorf("%s: %+v", name, d)
		}
	}
}

func TestNobody(t *testing.T) {
	p := basic(t)
	for _, who := range []glovebox.Principal{{}, {Owner: true}, {Tenant: "local", Owner: true}, {Name: "x"}} {
		d := p.Decide(who, glovebox.Request{Code: "1"}, process)
		if d.Allow || d.Code != glovebox.CodeDenied || d.Rule != "principal.none" {
			t.Errorf("%+v: %+v", who, d)
		}
	}
}

func TestPlace(t *testing.T) {
	one := mustNew(t, Config{InputRoots: []string{"/srv/in"}})
	two := mustNew(t, Config{InputRoots: []string{"/srv/in", "/srv/b"}})
	none := mustNew(t, Config{})
	for _, c := range []struct {
		name string
		p    *Policy
		who  glovebox.Principal
		path string
		want Place // zero: refused
	}{
		{"relative", one, stranger, "shop/a.csv", Place{"/srv/in", "shop/a.csv"}},
		{"absolute", one, stranger, "/srv/in/a", Place{"/srv/in", "a"}},
		{"second root", two, stranger, "/srv/b/a", Place{"/srv/b", "a"}},
		{"relative of two", two, stranger, "a", Place{}},
		{"no roots", none, stranger, "a", Place{}},
		{"beside", one, stranger, "/srv/inner/a", Place{}},
		{"the root itself", one, stranger, "/srv/in", Place{}},
		{"climb", one, stranger, "/srv/in/../x", Place{}},
		{"climb relative", one, stranger, "../x", Place{}},
		{"dots", one, stranger, "..", Place{}},
		{"dot", one, stranger, ".", Place{}},
		{"double slash", one, stranger, "/srv/in//a", Place{}},
		{"other case", one, stranger, "/SRV/in/a", Place{}},
		{"tilde stays a name", one, stranger, "~/a", Place{"/srv/in", "~/a"}},
		{"NUL", one, stranger, "a\x00", Place{}},
		{"owner", none, owner, "../x", Place{"", "../x"}},
		{"owner empty", none, owner, "", Place{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := c.p.Place(c.who, glovebox.Input{Name: "x", Path: c.path})
			if got != c.want || (err == nil) != (c.want != Place{}) {
				t.Errorf("got %+v, %v; want %+v", got, err, c.want)
			}
			if err != nil && c.path != "" && strings.Contains(err.Error(), "/srv") {
				t.Errorf("the message shows a path of the host: %v", err)
			}
		})
	}
}

func slicesOf(s string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = s
	}
	return all
}
