package policy

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"glovebox"
)

// MaxCode is the most bytes of code in one request. Larger programs are almost always data pasted into code.
const MaxCode = 8 * glovebox.MiB

// Bounds of a request. The kernel refuses one argument or variable of 128 KiB and, by default, 2 MiB of both together, with
// an error that names nothing; these are below that.
const (
	maxArgs     = 4096
	maxArgBytes = 128<<10 - 1
	maxArgTotal = 1 << 20
	maxEnv      = 1024
	maxEnvTotal = 512 << 10
	maxStdin    = 64 << 20
	maxFileName = 255
)

var languages = []string{"python", "node", "bash"}

// checkProgram demands exactly one program: code in a known language, or argv.
func checkProgram(r *glovebox.Request) *glovebox.Decision {
	switch {
	case r.Code == "" && len(r.Argv) == 0:
		return invalid("give code to run, or argv with a program of the image",
			"there is no program: code and argv are both empty")
	case r.Code != "" && len(r.Argv) > 0:
		return invalid("leave one of them out", "code and argv are both set, and a run has one program")
	case len(r.Argv) > 0 && r.Lang != "":
		return invalid("leave lang out, or give code in place of argv", "lang is for code; argv names its own program")
	case len(r.Argv) > 0 && len(r.Args) > 0:
		return invalid("put the arguments into argv", "args are for code; argv holds its own arguments")
	case len(r.Argv) > 0 && r.Argv[0] == "":
		return invalid("put the program first in argv", "the first element of argv is empty")
	case r.Lang != "" && !slices.Contains(languages, r.Lang):
		return unknownWord("lang", r.Lang, languages)
	case len(r.Code) > int(MaxCode):
		return invalid("put data in a file and pass it with --input", "the code has %d bytes and may have %d (%s)",
			len(r.Code), int64(MaxCode), MaxCode)
	}
	if at := strings.IndexByte(r.Code, 0); at >= 0 {
		return invalid("put binary data in a file and pass it with --input", "the code has a NUL byte at byte %d", at)
	}
	if at := invalidUTF8(r.Code); at >= 0 {
		return invalid("save the code as UTF-8; put binary data in a file and pass it with --input",
			"the code is not UTF-8 at byte %d", at)
	}
	return nil
}

// checkCodeName demands a bare file name that shows as it is.
func checkCodeName(r *glovebox.Request) *glovebox.Decision {
	const fix = "name the code as a plain file such as main.py"
	n := r.CodeName
	switch {
	case n == "":
		return nil
	case len(r.Argv) > 0:
		return invalid("leave it out", "a code name is for code, not for argv")
	case len(n) > maxFileName:
		return invalid(fix, "the code name has %d bytes and may have %d", len(n), maxFileName)
	case n == "." || n == ".." || strings.Contains(n, "/") || !plain(n):
		return invalid(fix, "the code name %s is not a bare, printable file name", quote(n))
	}
	return nil
}

// checkArguments bounds args and argv.
func checkArguments(r *glovebox.Request) *glovebox.Decision {
	const fix = "pass bulk through --stdin or --input"
	name, words := "args", r.Args
	if len(r.Argv) > 0 {
		name, words = "argv", r.Argv
	}
	if len(words) > maxArgs {
		return invalid(fix, "%s has %d elements and may have %d", name, len(words), maxArgs)
	}
	total := 0
	for i, w := range words {
		total += len(w) + 1
		switch {
		case len(w) > maxArgBytes:
			return invalid(fix, "%s[%d] has %d bytes and may have %d", name, i, len(w), maxArgBytes)
		case strings.IndexByte(w, 0) >= 0:
			return invalid(fix, "%s[%d] has a NUL byte at byte %d, which no argument can hold", name, i, strings.IndexByte(w, 0))
		case !utf8.ValidString(w):
			// The record of the run could not show it as it was.
			return invalid(fix, "%s[%d] is not UTF-8 at byte %d", name, i, invalidUTF8(w))
		}
	}
	if total > maxArgTotal {
		return invalid(fix, "%s has %d bytes in all and may have %d", name, total, maxArgTotal)
	}
	return nil
}

// checkEnvironment bounds env. What it sets touches the program only, so any proper name may be set, but for those that
// would have no effect: code in Python is run by an isolated interpreter, which reads none of its own variables.
func checkEnvironment(r *glovebox.Request) *glovebox.Decision {
	const fix = "pass bulk through --stdin or --input"
	if len(r.Env) > maxEnv {
		return invalid(fix, "env has %d variables and may have %d", len(r.Env), maxEnv)
	}
	names := make([]string, 0, len(r.Env))
	for name := range r.Env {
		names = append(names, name)
	}
	slices.Sort(names) // the same request is refused for the same reason each time
	total, python := 0, r.Code != "" && (r.Lang == "" || r.Lang == "python")
	for _, name := range names {
		value := r.Env[name]
		total += len(name) + len(value) + 2
		switch {
		case !envName(name):
			return invalid("use letters, digits and _, not beginning with a digit", "%s is no name of a variable", quote(name))
		case python && strings.HasPrefix(name, "PYTHON"):
			return invalid("put modules in /workspace, or set it for a program of your own: glovebox exec --env "+name+"=… "+
				"-- python3 …", "env %s has no effect: python runs isolated and reads no such variable", quote(name))
		case len(name)+len(value)+1 > maxArgBytes:
			return invalid(fix, "env %s has %d bytes and may have %d with its name", quote(name), len(value), maxArgBytes)
		case strings.IndexByte(value, 0) >= 0:
			return invalid("leave it out", "env %s has a NUL byte, which no variable can hold", quote(name))
		}
	}
	if total > maxEnvTotal {
		return invalid(fix, "env has %d bytes in all and may have %d", total, maxEnvTotal)
	}
	return nil
}

func checkStdin(r *glovebox.Request) *glovebox.Decision {
	switch {
	case r.Stdin != "" && r.StdinFrom != nil:
		return invalid("leave one of them out", "standard input is given twice, as text and as a stream")
	case len(r.Stdin) > maxStdin:
		return invalid("stream it with --stdin FILE or pass it with --input", "stdin has %d bytes and may have %d",
			len(r.Stdin), maxStdin)
	}
	return nil
}

// checkBuilt refuses by name what Glovebox knows and does not offer yet, so that nothing is accepted without effect.
func checkBuilt(r *glovebox.Request) *glovebox.Decision {
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"session", r.Session != ""},
		{"interpreter", r.Interpreter},
		{"detach", r.Detach},
	} {
		if f.set {
			return refuse("field."+f.name, glovebox.CodeUnavailable, "leave "+f.name+" out",
				"%s is not available in this version", f.name)
		}
	}
	for _, in := range r.Inputs {
		if in.Run != "" {
			return refuse("field.inputs.run", glovebox.CodeUnavailable, "pass the file itself, by path or content",
				"an input by run and artifact is not available in this version")
		}
	}
	return nil
}

// invalidUTF8 is the offset of the first byte that is not UTF-8, or -1.
func invalidUTF8(s string) int {
	if utf8.ValidString(s) {
		return -1
	}
	for i, r := range s {
		if r == utf8.RuneError {
			if _, n := utf8.DecodeRuneInString(s[i:]); n == 1 {
				return i
			}
		}
	}
	return -1
}

// plain reports whether s is UTF-8 without control, bidirectional or other invisible characters.
func plain(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}

func envName(s string) bool {
	for i := range len(s) {
		c := s[i]
		letter := c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}
