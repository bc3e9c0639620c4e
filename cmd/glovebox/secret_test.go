package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"glovebox/internal/broker"
	"glovebox/policy"
)

func TestSecrets(t *testing.T) {
	tl := newTool(t)
	tl.write(t, "g.yaml", `
secrets:
  TOKEN: {command: [/usr/bin/pass, show, gh], pass: [HOME], hosts: [api.example.com, "git.example.com:8443"], attach: bearer}
  KEY:
    file: /srv/key
    hosts: [other.example.com]
    methods: [GET]
    paths: [/v1/**]
    placeholder: header
    header: X-Api-Key
    shape: sk-…
    on_violation: end
    foreign: refuse
    strip_headers: [X-Mine]
    strip_query: [mine]
  AWS: {env: AWS, hosts: [s3.example.com], attach: sigv4, region: eu-central-1, service: s3, access_key_id: AKIA}
  NONE: {env: B, hosts: [b.example.com], attach: basic, user: me}
  Q: {env: Q, hosts: [q.example.com], attach: query, query: key}
  P: {env: Q, hosts: [p.example.com], attach: header, header: X-P, prefix: "Token "}
`)
	if exit, _, errs := tl.run("run", "--config", "g.yaml", "-c", "1"); exit != 0 {
		t.Fatal(errs)
	}
	want := []broker.Spec{
		{Name: "TOKEN", Command: []string{"/usr/bin/pass", "show", "gh"}, Pass: []string{"HOME"},
			Hosts: []string{"api.example.com", "git.example.com:8443"}, Attach: "bearer"},
		{Name: "KEY", File: "/srv/key", Hosts: []string{"other.example.com"}, Methods: []string{"GET"}, Paths: []string{"/v1/**"},
			Placeholder: "header", Header: "X-Api-Key", Shape: "sk-…", OnViolation: "end", Foreign: "refuse", StripHeaders: []string{"X-Mine"},
			StripQuery: []string{"mine"}},
		{Name: "AWS", Env: "AWS", Hosts: []string{"s3.example.com"}, Attach: "sigv4", Region: "eu-central-1", Service: "s3", AccessKeyID: "AKIA"},
		{Name: "NONE", Env: "B", Hosts: []string{"b.example.com"}, Attach: "basic", User: "me"},
		{Name: "Q", Env: "Q", Hosts: []string{"q.example.com"}, Attach: "query", Query: "key"},
		{Name: "P", Env: "Q", Hosts: []string{"p.example.com"}, Attach: "header", Header: "X-P", Prefix: "Token "},
	}
	if diff := cmp.Diff(want, tl.settings.secrets.specs); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(policy.Secret{Name: "TOKEN", Hosts: want[0].Hosts}, tl.settings.policy.Secrets[0]); diff != "" {
		t.Error(diff)
	}
	other := tl.settings
	other.secrets.specs = want[1:]
	if tl.settings.digest() == other.digest() {
		t.Error("a configuration with another secret is taken for the same")
	}
}

// TestBadSecrets: what is not clear, or not safe, is refused as the configuration is read.
func TestBadSecrets(t *testing.T) {
	open := filepath.Join(t.TempDir(), "open")
	if err := os.WriteFile(open, []byte("value-of-it"), 0o644); err != nil {
		t.Fatal(err)
	}
	link := open + ".link"
	if err := os.Symlink(open, link); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ text, says string }{
		"typo":             {"A: {flie: /x}", "secrets.A.file?"},
		"no source":        {"A: {hosts: [a.example.com], attach: bearer}", "0 sources"},
		"two sources":      {"A: {env: X, file: /x, hosts: [a.example.com], attach: bearer}", "2 sources"},
		"relative":         {"A: {file: x, hosts: [a.example.com], attach: bearer}", "plain absolute path"},
		"shell":            {"A: {command: [pass], hosts: [a.example.com], attach: bearer}", "there is no shell"},
		"no host":          {"A: {env: X, attach: bearer}", "no host is named"},
		"wildcard":         {"A: {env: X, hosts: ['*.example.com'], attach: bearer}", "could become anybody's"},
		"address":          {"A: {env: X, hosts: [10.0.0.1], attach: bearer}", "secrets.A"},
		"port":             {"A: {env: X, hosts: ['a.example.com:0'], attach: bearer}", "no port"},
		"host twice":       {"A: {env: X, hosts: [a.example.com, 'a.example.com:443'], attach: bearer}", "twice"},
		"no place":         {"A: {env: X, hosts: [a.example.com]}", "needs attach or placeholder"},
		"two places":       {"A: {env: X, hosts: [a.example.com], attach: bearer, placeholder: bearer}", "needs attach or placeholder"},
		"unknown place":    {"A: {env: X, hosts: [a.example.com], attach: cookie}", "bearer, header, query"},
		"git placeholder":  {"A: {env: X, hosts: [a.example.com], placeholder: git}", "bearer, header, query"},
		"header missing":   {"A: {env: X, hosts: [a.example.com], attach: header}", "needs header"},
		"header for query": {"A: {env: X, hosts: [a.example.com], attach: bearer, header: X-A}", "no meaning"},
		"header of ours":   {"A: {env: X, hosts: [a.example.com], attach: header, header: Host}", "no header for a credential"},
		"region missing":   {"A: {env: X, hosts: [a.example.com], attach: sigv4, service: s3}", "needs region"},
		"shape":            {"A: {env: X, hosts: [a.example.com], attach: bearer, shape: nice}", "no shape"},
		"violation":        {"A: {env: X, hosts: [a.example.com], attach: bearer, on_violation: kill}", "block or end"},
		"foreign":          {"A: {env: X, hosts: [a.example.com], attach: bearer, foreign: keep}", "drop or refuse"},
		"method":           {"A: {env: X, hosts: [a.example.com], attach: bearer, methods: [get]}", "methods"},
		"name":             {"'A-B': {env: X, hosts: [a.example.com], attach: bearer}", "name of a variable"},
		"name in use":      {"PATH: {env: X, hosts: [a.example.com], attach: bearer}", "programs need"},
		"ambiguous":        {"A: {env: X, hosts: [a.example.com], attach: bearer}\n  B: {env: X, hosts: [a.example.com], attach: bearer}", "both for the same requests"},
		"ambiguous paths": {"A: {env: X, hosts: [a.example.com], attach: bearer, paths: [/v1/**]}\n" +
			"  B: {env: X, hosts: [a.example.com], attach: bearer, paths: [/v1/x]}", "both for the same requests"},
		"ambiguous methods": {"A: {env: X, hosts: [a.example.com], attach: bearer, methods: [GET]}\n" +
			"  B: {env: X, hosts: [a.example.com], attach: bearer, methods: [HEAD]}", "both for the same requests"},
		"open to all": {"A: {file: " + open + ", hosts: [a.example.com], attach: bearer}", "0644"},
		"link":        {"A: {file: " + link + ", hosts: [a.example.com], attach: bearer}", "no regular file"},
		"twice":       {"A: {env: X, hosts: [a.example.com], attach: bearer}\n  A: {env: Y, hosts: [b.example.com], attach: bearer}", "already defined"},
		"nothing":     {"A: 1", "secrets.A"},
	} {
		t.Run(name, func(t *testing.T) { refusedConfigs(t, "secrets:\n  "+c.text+"\n", c.says) })
	}
}

// refusedConfigs is refusedConfig where the exit code is that of a machine or of a configuration.
func refusedConfigs(t *testing.T, text, says string) {
	t.Helper()
	tl := newTool(t)
	tl.write(t, "g.yaml", text)
	exit, out, errs := tl.run("run", "--config", "g.yaml", "-c", "stdout ran")
	if exit != 125 && exit != 126 || out != "" || !strings.Contains(errs, says) || !strings.Contains(errs, "g.yaml:2") && !strings.Contains(errs, "g.yaml:3") {
		t.Errorf("exit code %d, stdout %q, no %q in:\n%s", exit, out, says, errs)
	}
}

// Two secrets for one host are told apart by what does not meet.
func TestSecretsThatDoNotMeet(t *testing.T) {
	tl := newTool(t)
	tl.write(t, "g.yaml", `
secrets:
  A: {env: X, hosts: [a.example.com], attach: bearer, methods: [GET]}
  B: {env: X, hosts: [a.example.com], attach: bearer, methods: [POST], paths: [/v1/**]}
  C: {env: X, hosts: [a.example.com], attach: bearer, methods: [POST], paths: [/v2/x]}
  D: {env: X, hosts: ["a.example.com:444"], attach: bearer}
`)
	if exit, _, errs := tl.run("run", "--config", "g.yaml", "-c", "1"); exit != 0 {
		t.Error(errs)
	}
}

// TestSecretVerbs: names, sources and hosts are shown, and whether each can be read; no value, whatever is wrong.
func TestSecretVerbs(t *testing.T) {
	const canary = "canary-value-of-a-secret"
	dir := t.TempDir()
	build := exec.Command("go", "build", "-o", dir+"/", "glovebox/cmd/glovebox", "glovebox/cmd/glovebox-broker")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	file := filepath.Join(dir, "value")
	if err := os.WriteFile(file, []byte(canary+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "g.yaml")
	text := "data_dir: " + dir + "/data\ngateway: {resolvers: [10.0.0.53]}\nsecrets:\n" +
		"  FILE: {file: " + file + ", hosts: [a.example.com], attach: bearer}\n" +
		"  ENV: {env: CANARY, hosts: [b.example.com], attach: bearer}\n" +
		"  COMMAND: {command: [/bin/cat, " + file + "], hosts: [c.example.com], attach: bearer}\n" +
		"  GONE: {file: /nowhere/at/all, hosts: [d.example.com], attach: bearer}\n" +
		"  UNSET: {env: NOT_SET, hosts: [e.example.com], attach: bearer}\n" +
		"  FAILS: {command: [/bin/sh, -c, 'echo " + canary + "; echo " + canary + " >&2; exit 3'], hosts: [f.example.com], attach: bearer}\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(exit int, args ...string) string {
		t.Helper()
		cmd := exec.Command(dir+"/glovebox", append([]string{"--config", config}, args...)...)
		cmd.Env = append(os.Environ(), "CANARY="+canary)
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != exit {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
		if strings.Contains(string(out), canary) {
			t.Errorf("%v shows a value:\n%s", args, out)
		}
		return string(out)
	}
	list := run(0, "secret", "ls")
	for _, says := range []string{"FILE", "file " + file, "variable CANARY", "command /bin/sh", "a.example.com", "bearer"} {
		if !strings.Contains(list, says) {
			t.Errorf("no %q in:\n%s", says, list)
		}
	}
	var checked []secretChecked
	if err := json.Unmarshal([]byte(run(126, "secret", "check", "--json")), &checked); err != nil {
		t.Fatal(err)
	}
	for i, why := range []string{"", "", "", "no such file", "not set", "exit status 3"} {
		if c := checked[i]; c.OK != (why == "") || !strings.Contains(c.Why, why) || !c.OK && c.Fix == "" {
			t.Errorf("%+v, want %q", c, why)
		}
	}
	if err := os.Remove(dir + "/glovebox-broker"); err != nil {
		t.Fatal(err)
	}
	if said := run(126, "secret", "check"); !strings.Contains(said, "glovebox-broker") {
		t.Errorf("without a broker: %s", said)
	}
}

// TestSecretsDocumented: the example of the documentation is read as it stands.
func TestSecretsDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/secrets.md")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, block := range strings.Split(string(text), "```yaml\n")[1:] {
		example, _, _ := strings.Cut(block, "```")
		tl := newTool(t)
		tl.write(t, "g.yaml", example)
		if exit, _, errs := tl.run("run", "--config", "g.yaml", "-c", "1"); exit != 0 {
			t.Errorf("%s\n%s", example, errs)
		}
		found += len(tl.settings.secrets.specs)
	}
	if found == 0 {
		t.Error("no example has a secret")
	}
}
