package glovebox_test

import (
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestTidyText: what may stand in no file.
func TestTidyText(t *testing.T) {
	// The patterns are put together so that this file does not match them.
	bans := []struct{ pattern, why string }{
		{`(?i)\b(` + "proxy|sum" + `)\.golang\.org`, "the caller's machine says which mirror it uses"},
		{`(?i)\b(` + "deb|security" + `)\.debian\.org|` + "archive" + `\.ubuntu\.com`,
			"the caller's machine says which mirror it uses"},
		{`(?i)\bregistry\.(` + "npmjs|yarnpkg" + `)\.`, "the caller's machine says which mirror it uses"},
		{`(?i)\b(` + "pypi|files" + `)\.(org|pythonhosted\.org)|\bcrates\.` + `io\b|\b(docker|ghcr|quay)\.` + `io\b`,
			"the caller's machine says which mirror it uses"},
		{`(^|[^\w.])/(` + "work|farm" + `)(/|\b[^\w-])`, "the path of a machine on which this was written is on no other"},
		{`\b(` + "TO" + `DO|` + "FIX" + `ME|` + "XX" + `X)\b`, "what is not done is in SCOPE.md, where users see it"},
		{`(?i)\b(` + "Cl" + `aude|Chat` + `GPT|Co` + `pilot)\b|Co-Authored` + `-By|\bAI[- ]` + `generated`,
			"the text is about what it does, not about how it came to be"},
		{`(?i)\bissue` + ` #|\bthis` + ` session\b|\bas ` + `requested\b`,
			"a reader knows neither the list nor the talk that is meant"},
	}
	goFiles(t)
	for _, name := range repository().files {
		text := read(t, name)
		if strings.ContainsRune(text, 0) {
			continue // not text
		}
		for _, b := range bans {
			re := regexp.MustCompile(b.pattern)
			if at := re.FindStringIndex(text); at != nil {
				t.Errorf("%s:%d: %q: %s", name, 1+strings.Count(text[:at[0]], "\n"), text[at[0]:at[1]], b.why)
			}
		}
	}
}

// TestTidyCommands: what the README tells people to type exists. A first command that fails is often the last one.
func TestTidyCommands(t *testing.T) {
	targets := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^([a-z-]+):`).FindAllStringSubmatch(read(t, "Makefile"), -1) {
		targets[m[1]] = true
	}
	help := helper(t)
	goFiles(t)
	for _, name := range repository().files {
		if path.Base(name) != "README.md" && name != "SECURITY.md" {
			continue
		}
		for _, command := range commands(read(t, name)) {
			if command[0] == "make" {
				if !targets[command[1]] {
					t.Errorf("%s: the Makefile has no target %s", name, command[1])
				}
				continue
			}
			for _, complaint := range misused(help, command) {
				t.Errorf("%s: %s: %s", name, strings.Join(command, " "), complaint)
			}
		}
	}
}

// helper builds glovebox and returns its --help for a verb and perhaps a second one, each asked for once.
func helper(t *testing.T) func(verbs ...string) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "glovebox")
	if out, err := exec.Command("go", "build", "-o", bin, "./cmd/glovebox").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	known := map[string]string{}
	return func(verbs ...string) string {
		key := strings.Join(verbs, " ")
		if known[key] == "" {
			out, err := exec.Command(bin, append(slices.Clone(verbs), "--help")...).CombinedOutput()
			if err != nil {
				t.Errorf("glovebox %s --help: %v\n%s", key, err, out)
			}
			known[key] = string(out)
		}
		return known[key]
	}
}

// commands returns the make and glovebox commands in the code of a Markdown text, in words, without what is quoted in them.
func commands(markdown string) [][]string {
	var found [][]string
	add := func(code string) {
		code, _, _ = strings.Cut(code, " # ")
		code = regexp.MustCompile(`'[^']*'|"[^"]*"`).ReplaceAllString(code, "QUOTED")
		for part := range strings.SplitSeq(code, "|") {
			words := strings.Fields(strings.TrimPrefix(strings.TrimSpace(part), "$ "))
			if len(words) > 1 && (words[0] == "make" || path.Base(words[0]) == "glovebox") {
				found = append(found, words)
			}
		}
	}
	block := regexp.MustCompile("(?ms)^```(\\w*)\n(.*?)^```$")
	for _, m := range block.FindAllStringSubmatch(markdown, -1) {
		if m[1] == "" || m[1] == "sh" {
			for line := range strings.Lines(strings.ReplaceAll(m[2], "\\\n", " ")) {
				add(line)
			}
		}
	}
	for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(block.ReplaceAllString(markdown, ""), -1) {
		add(m[1])
	}
	return found
}

// misused compares a glovebox command with what --help says.
func misused(help func(verbs ...string) string, command []string) []string {
	verbs := []string{command[1]}
	if len(command) > 2 && strings.Contains(help(verbs...), "\nAvailable Commands:\n") {
		verbs = command[1:3]
	}
	text := help(verbs...)
	if !regexp.MustCompile(`\n  glovebox ` + regexp.QuoteMeta(strings.Join(verbs, " ")) + `\b`).MatchString(text) {
		return []string{"there is no such command"}
	}
	var complaints []string
	for _, word := range command[1+len(verbs):] {
		if word == "--" {
			break // the program's own arguments
		}
		name, _, _ := strings.Cut(word, "=")
		if len(name) < 2 || name[0] != '-' {
			continue
		}
		if !regexp.MustCompile(`(?m)^ +(-\w, )?` + regexp.QuoteMeta(name) + `\b`).MatchString(text) {
			complaints = append(complaints, "there is no flag "+name)
		}
	}
	return complaints
}
