// Package boot tells how an interpreter is started for a program: cold, when there is one, or held, which means started
// before, with modules loaded, and waiting for it. A held interpreter goes on as a cold one starts; what it cannot make
// undone is in AtStart.
//
// A held interpreter has a stream socket as descriptor 3 and writes the byte R to it when it is ready. Then it reads, to
// the end, strings that each end with a NUL:
//
//	stdin      1, or 0 for an empty standard input, whatever descriptor 0 is
//	number     of arguments, decimal
//	arguments
//	number     of variables, decimal
//	variables  NAME=VALUE, the whole environment
//
// It closes the socket, takes these and runs the program. Where the stream ends before the first byte it ends with code 0.
// The socket must block.
package boot

import (
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// The Python sources are joined before they are compiled: run.py alone is a cold interpreter; hold.py adds what waits and
// a quick end.
var (
	//go:embed run.py
	runPython string
	//go:embed hold.py
	holdPython string
	//go:embed template.py
	templatePython string
	//go:embed hold.sh
	holdBash string
	//go:embed hold.js
	holdNode []byte
)

// nodePath is where hold.js is inside a sandbox: in a folder that no image has.
const nodePath = "/run/glovebox/hold.js"

// File is a file that must be inside a sandbox, readable by all.
type File struct {
	Path string
	Data []byte
}

// Files are what a held interpreter of lang reads inside its sandbox: of Python and bash, nothing.
func Files(lang string) []File {
	if lang != "node" {
		return nil
	}
	return []File{{nodePath, slices.Clone(holdNode)}}
}

// Cold is the command line that runs the program at the path code, in lang (python, node or bash) by the interpreter at
// the path program. What follows it are the arguments of the program.
//
// A Python program gets streams that are written out at each line's end, so that what it printed before it was ended is not
// lost in a buffer.
func Cold(lang, program, code string) []string {
	switch lang {
	case "python":
		return []string{program, "-I", "-c", python(runPython), code}
	case "bash":
		return []string{program, "--noprofile", "--norc", code}
	}
	return []string{program, code}
}

// Held is the command line of an interpreter that waits for its program to be at the path code: see Cold. Python imports
// modules before it says that it is ready; those that it cannot import are left out. Its environment should be the one that
// it will most likely get.
func Held(lang, program, code string, modules []string) []string {
	switch lang {
	case "python":
		return []string{program, "-I", "-c", python(runPython, holdPython, "wait(3, "+names(modules)+")\n"), code}
	case "bash":
		// A shell is not worth keeping: the one that waits becomes a new one, which is exact in everything.
		return append([]string{program, "--noprofile", "--norc", "-c", holdBash, program}, Cold(lang, program, code)...)
	}
	return []string{program, "-r", nodePath, code}
}

// Template is the command line of a Python that imports modules and then makes copies of itself, as it is told on descriptor
// 3 (see driver/process). Each of them is one that is held.
func Template(program, code string, modules []string) []string {
	text := python(runPython, holdPython, templatePython,
		fmt.Sprintf("template(3, %s, bytes.fromhex(\"%x\"))\n", names(modules), copyCode()))
	return []string{program, "-I", "-c", text, code}
}

// names is a list as Python writes it.
func names(modules []string) string {
	list := make([]string, len(modules))
	for i, m := range modules {
		list[i] = strconv.QuoteToASCII(m)
	}
	return "[" + strings.Join(list, ", ") + "]"
}

// python is a program for python -c that executes sources, all with the same names, which are not those of __main__, and
// then calls their function run. It is called in the same line whatever the sources are: a program sees the line.
func python(sources ...string) string {
	// Their own built-in names, which no program changes. Compiled first, or what they were compiled from would be kept while
	// they run, and taken apart by each copy.
	text := strconv.QuoteToASCII(strings.Join(sources, "\n"))
	return "boot = {\"__builtins__\": dict(__builtins__.__dict__)}\nexec(compile(" + text +
		", \"<string>\", \"exec\"), boot)\nboot[\"run\"]()\n"
}

// atStart are variables that are read once, when an interpreter starts or a module is loaded. A name that ends with * stands
// for all that begin so.
var atStart = map[string][]string{
	"": {"LANG", "LANGUAGE", "LC_*", "LD_*", "LOCPATH", "GCONV_PATH", "NLSPATH", "MALLOC_*", "GLIBC_*", "RES_OPTIONS",
		"LOCALDOMAIN", "OPENSSL_*", "SSL_*"},
	"python": {"HOME", "XDG_*", "PYTHONTZPATH", "MPL*", "OMP_*", "GOMP_*", "KMP_*", "MKL_*", "BLIS_*", "OPENBLAS_*", "GOTO_*",
		"NPY_*", "NUMPY_*", "NUMEXPR_*", "PANDAS_*", "ARROW_*", "SQLITE_*", "OPENPYXL_*", "VECLIB_*"},
	"node": {"NODE_*", "UV_*", "ICU_*"},
}

// atUse are exceptions: OpenSSL reads these whenever a program sets up what it trusts.
var atUse = []string{"SSL_CERT_FILE", "SSL_CERT_DIR"}

// AtStart reports whether an interpreter of lang, or one of the modules that may be loaded, reads the variable only when it
// starts: one that is held is there already, so a program for which it is set must be run cold.
func AtStart(lang, variable string) bool {
	if lang == "bash" || slices.Contains(atUse, variable) {
		return false
	}
	for _, name := range slices.Concat(atStart[""], atStart[lang]) {
		if prefix, all := strings.CutSuffix(name, "*"); name == variable || all && strings.HasPrefix(variable, prefix) {
			return true
		}
	}
	return false
}
