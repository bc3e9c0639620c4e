package boot

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// The programs of these tests are the tests' own.

// need finds an interpreter, and skips where there is none, unless the run promised it. GLOVEBOX_TEST_PYTHON names another
// Python.
func need(t *testing.T, lang string) string {
	t.Helper()
	path := map[string]string{"python": "/usr/bin/python3", "node": "/usr/bin/node", "bash": "/usr/bin/bash"}[lang]
	if other := os.Getenv("GLOVEBOX_TEST_PYTHON"); lang == "python" && other != "" {
		path = other
	}
	_, err := os.Stat(path)
	switch {
	case err == nil:
		return path
	case os.Getenv("GLOVEBOX_TEST_ROOT") == "1":
		t.Fatalf("needs %s, which this run promised", path)
	}
	t.Skip("needs " + path)
	return ""
}

type job struct {
	lang, code string
	name       string // of the code
	args       []string
	env        []string
	stdin      string // "-" is none
}

type outcome struct {
	Out, Err string
	Status   string
}

var baseEnv = []string{"HOME=/nonexistent", "LANG=C.UTF-8", "PATH=/usr/local/bin:/usr/bin:/bin"}

// place is where the code of a job is put; it is the same for all ways to run it.
func (j job) place(t *testing.T) string {
	name := j.name
	if name == "" {
		name = map[string]string{"python": "main.py", "node": "main.js", "bash": "main.sh"}[j.lang]
	}
	return filepath.Join(t.TempDir(), name)
}

func (j job) write(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(j.code), 0o444); err != nil {
		t.Fatal(err)
	}
}

func (j job) cold(t *testing.T, path string, argv []string) outcome {
	t.Helper()
	j.write(t, path)
	argv = slices.Concat(argv, j.args)
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	cmd.Env = slices.Concat(baseEnv, j.env)
	if j.stdin != "-" {
		r, w, err := os.Pipe() // as a sandbox has it
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		fmt.Fprint(w, j.stdin)
		w.Close()
		cmd.Stdin = r
	}
	return result(t, cmd, nil)
}

func (j job) message() []byte {
	stdin := "1"
	if j.stdin == "-" {
		stdin = "0"
	}
	env := slices.Concat(baseEnv, j.env)
	words := slices.Concat([]string{stdin, strconv.Itoa(len(j.args))}, j.args, []string{strconv.Itoa(len(env))}, env)
	return []byte(strings.Join(words, "\x00") + "\x00")
}

func (j job) held(t *testing.T, path string, argv []string) outcome {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	near, far := os.NewFile(uintptr(fds[0]), "near"), os.NewFile(uintptr(fds[1]), "far")
	defer near.Close()
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	cmd.Env, cmd.ExtraFiles = append(slices.Clone(baseEnv), "HELD=before"), []*os.File{far}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd.Stdin = r
	return result(t, cmd, func() {
		far.Close()
		var ready [1]byte
		if _, err := near.Read(ready[:]); err != nil || ready[0] != 'R' {
			t.Errorf("not ready: %q (%v)", ready, err)
		}
		j.write(t, path)
		if j.stdin != "-" {
			fmt.Fprint(w, j.stdin)
		}
		w.Close()
		// In two pieces: nothing may depend on what comes at once.
		message := j.message()
		near.Write(message[:len(message)/2])
		near.Write(message[len(message)/2:])
		near.Close()
	})
}

// varies are addresses, of which no two are the same, and how often an object is used.
var varies = regexp.MustCompile(`0x[0-9a-f]{6,}|started [0-9]+|refcount : [0-9]+`)

// result runs cmd, calling release once it was started.
func result(t *testing.T, cmd *exec.Cmd, release func()) outcome {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if release != nil {
		release()
	}
	cmd.Wait() // its error is the status
	return outcome{varies.ReplaceAllString(out.String(), "VARIES"), varies.ReplaceAllString(errs.String(), "VARIES"),
		cmd.ProcessState.String()}
}

var base = []string{"json", "csv", "re", "datetime", "sqlite3", "random", "tempfile", "uuid", "threading", "collections",
	"no_such_module", "argparse", "subprocess", "statistics", "decimal", "logging"}

// heldArgv is Held with the files where they are here.
func heldArgv(t *testing.T, lang, program, path string, modules []string) []string {
	t.Helper()
	argv := Held(lang, program, path, modules)
	for _, f := range Files(lang) {
		if i := slices.Index(argv, f.Path); i >= 0 {
			argv[i] = filepath.Join(t.TempDir(), filepath.Base(f.Path))
			if err := os.WriteFile(argv[i], f.Data, 0o444); err != nil {
				t.Fatal(err)
			}
		}
	}
	return argv
}

// same runs a job in each way, compares and returns the cold one.
func same(t *testing.T, j job, path string, modules []string) outcome {
	t.Helper()
	program := need(t, j.lang)
	cold := j.cold(t, path, Cold(j.lang, program, path))
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	held := j.held(t, path, heldArgv(t, j.lang, program, path, modules))
	if d := cmp.Diff(cold, held); d != "" {
		t.Errorf("cold and held differ (-cold +held):\n%s", d)
	}
	return cold
}

// booted are programs that do not go as with the interpreter alone: with streams that are written out at a line's end, with
// a source that is read whole, or where one sees that there is a caller.
var booted = map[string]bool{"exit _": true, "null byte": true, "bad utf-8": true, "recursion": true, "no hook": true, "bad hook": true,
	"dump of threads": true, "own stdout": true, "bytes and text": true, "alarm": true}

// TestPython compares programs with how they go held, and where there is no reason for a difference with the interpreter
// alone.
func TestPython(t *testing.T) {
	program := need(t, "python")
	pythonPrograms := programs(t, "python")
	maps.Copy(pythonPrograms, oddPrograms)
	for name, code := range pythonPrograms {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := job{lang: "python", code: code, args: []string{"a", "b c", "é\xff"}, stdin: "-"}
			path := j.place(t)
			cold := same(t, j, path, base)
			os.Remove(path)
			plain := j.cold(t, path, []string{program, "-I", path})
			if d := cmp.Diff(plain, cold); d != "" && !booted[name] {
				t.Errorf("plain and cold differ (-plain +cold):\n%s", d)
			}
		})
	}
	for name, code := range programs(t, "sight") {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := job{lang: "python"}.place(t)
			same(t, job{lang: "python", code: code, args: []string{"a"}, env: []string{"X=y", "é=ü\xff", "A.b=c=d", "E="},
				stdin: "one\ntwo\r\nthree"}, path, base)
			os.Remove(path)
			same(t, job{lang: "python", code: code, stdin: "-", env: []string{"TZ=Asia/Tokyo"}}, path, base)
			os.Remove(path)
			same(t, job{lang: "python", code: code}, path, base)
		})
	}
}

// TestPythonData is a few programs beside modules that bring much along.
func TestPythonData(t *testing.T) {
	data := append(slices.Clone(base), "numpy", "pandas", "matplotlib.pyplot", "openpyxl")
	all := programs(t, "python")
	for _, name := range []string{"prints", "traceback", "finaliser", "finalisers", "exit code", "atexit", "pool", "frame"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, ok := all[name]
			if !ok {
				code = "import pandas as p, numpy as n\nf = p.DataFrame({'a': [1, 1, 2], 'b': [1.5, 2, n.nan]})\n" +
					"print(f.groupby('a').sum(), f.describe())\nf.nothing\n"
			}
			j := job{lang: "python", code: code, stdin: "-"}
			same(t, j, j.place(t), data)
		})
	}
}

// TestPythonTrust: what a program trusts is what its variables say, also where ssl was loaded before they were set.
func TestPythonTrust(t *testing.T) {
	all, err := os.ReadFile("/etc/ssl/certs/ca-certificates.crt")
	if err != nil {
		t.Skip("needs a system's certificates: ", err)
	}
	one, _, _ := bytes.Cut(all, []byte("-----END CERTIFICATE-----\n"))
	file := filepath.Join(t.TempDir(), "one.pem")
	if err := os.WriteFile(file, append(one, "-----END CERTIFICATE-----\n"...), 0o444); err != nil {
		t.Fatal(err)
	}
	j := job{lang: "python", code: "import ssl\nprint(len(ssl.create_default_context().get_ca_certs()))", stdin: "-"}
	path := j.place(t)
	j.env = []string{"SSL_CERT_FILE=" + file}
	if got := same(t, j, path, append(slices.Clone(base), "ssl")); got.Out != "1\n" {
		t.Errorf("it trusts %q, want one", got)
	}
}

func TestNode(t *testing.T) {
	for name, code := range programs(t, "node") {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := job{lang: "node", code: code, args: []string{"a", "b c", "-x", "é"}, env: []string{"X=y", "TZ=Asia/Tokyo"}, stdin: "in"}
			if strings.HasPrefix(name, "module") {
				j.name = "main.mjs"
			}
			path := j.place(t)
			same(t, j, path, nil)
			j.stdin = "-"
			os.Remove(path)
			same(t, j, path, nil)
		})
	}
}

func TestBash(t *testing.T) {
	for name, code := range programs(t, "bash") {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := job{lang: "bash"}.place(t)
			same(t, job{lang: "bash", code: code, args: []string{"a", "b  c", "-x", "$(echo no)", "`echo no`", "", "é\xff", "x\ny", "E=f"},
				env: []string{"X=$(echo no)", "A.b=c", "BASH_FUNC_f%%=() { echo exported; }", "E=", "Y=a\nb"}, stdin: "in\n"}, path, nil)
			os.Remove(path)
			same(t, job{lang: "bash", code: code, stdin: "-"}, path, nil)
		})
	}
}

// TestNothingToRun holds that an interpreter that gets no word ends quietly, and one that gets half of one runs nothing.
func TestNothingToRun(t *testing.T) {
	for _, lang := range []string{"python", "node", "bash"} {
		program := need(t, lang)
		for message, status := range map[string]string{
			"": "exit status 0", "1": "exit status 1", "1\x00": "exit status 1", "1\x002\x00a\x00": "exit status 1",
			"1\x00a[$(echo ran >&2)]\x000\x00": "exit status 1", "2\x000\x000\x00": "exit status 1",
			"1\x000\x00a[$(echo ran >&2)]\x00": "exit status 1", "1\x000\x001\x00A=b\x00c\x00": "exit status 1",
			"1\x00-1\x000\x00": "exit status 1",
		} {
			t.Run(lang+strconv.Quote(message), func(t *testing.T) {
				t.Parallel()
				path := job{lang: lang}.place(t)
				job{code: map[string]string{"python": "print('ran')", "node": "console.log('ran')", "bash": "echo ran"}[lang]}.write(t, path)
				fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
				if err != nil {
					t.Fatal(err)
				}
				near, far := os.NewFile(uintptr(fds[0]), "near"), os.NewFile(uintptr(fds[1]), "far")
				argv := heldArgv(t, lang, program, path, nil)
				cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
				cmd.Env, cmd.ExtraFiles = baseEnv, []*os.File{far}
				got := result(t, cmd, func() {
					far.Close()
					near.Read(make([]byte, 1))
					fmt.Fprint(near, message)
					near.Close()
				})
				if got.Status != status || got.Out != "" || strings.Contains(strings.ReplaceAll(got.Err, "echo ran", ""), "ran") ||
					(message == "") != (got.Err == "") {
					t.Errorf("outcome = %+v, want %s", got, status)
				}
			})
		}
	}
}

func TestPythonIsLineBuffered(t *testing.T) {
	program := need(t, "python")
	j := job{lang: "python", code: "import os\nprint('kept')\nprint('lost', end='')\nos._exit(3)\n"}
	path := j.place(t)
	got := j.cold(t, path, Cold("python", program, path))
	if d := cmp.Diff(outcome{"kept\n", "", "exit status 3"}, got); d != "" {
		t.Errorf("outcome (-want +got):\n%s", d)
	}
}

func TestAtStart(t *testing.T) {
	for _, tt := range []struct {
		lang, name string
		want       bool
	}{
		{"python", "LC_ALL", true}, {"python", "LANG", true}, {"python", "LANGUAGES", false}, {"python", "TZ", false},
		{"python", "NODE_OPTIONS", false}, {"node", "NODE_OPTIONS", true}, {"node", "MPLBACKEND", false},
		{"python", "MPLBACKEND", true}, {"python", "API_KEY", false}, {"bash", "LANG", false},
		{"python", "SSL_CERT_FILE", false}, {"python", "SSL_CIPHER", true}, {"node", "NODE_EXTRA_CA_CERTS", true},
	} {
		if got := AtStart(tt.lang, tt.name); got != tt.want {
			t.Errorf("AtStart(%s, %s) = %v", tt.lang, tt.name, got)
		}
	}
}
