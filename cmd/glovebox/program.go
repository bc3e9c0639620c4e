package main

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"glovebox"
	"glovebox/policy"
)

var suffixes = map[string]string{
	".py": "python", ".js": "node", ".mjs": "node", ".cjs": "node", ".sh": "bash", ".bash": "bash",
}

// languageNames are what else the languages are called.
var languageNames = map[string]string{
	"py": "python", "python3": "python", "js": "node", "mjs": "node", "cjs": "node", "javascript": "node", "nodejs": "node",
	"sh": "bash", "shell": "bash",
}

// readProgram reads the code of FILE once, names it after the file and takes the language from its suffix unless one was
// named. What the first line of the file says is not asked: a suffix is seen before the run, a shebang is not.
func readProgram(r *glovebox.Request, file string) error {
	if file == "" {
		return glovebox.Errorf(glovebox.CodeInvalid, "name a FILE, or say -c CODE", "the name of the program is empty")
	}
	if info, err := os.Stat(file); err == nil && info.IsDir() {
		return glovebox.Errorf(glovebox.CodeInvalid, "name the program in it, and pass the rest with --input",
			"%q is a folder and not a regular file", short(file))
	}
	if r.Lang == "" {
		lang, ok := suffixes[strings.ToLower(filepath.Ext(file))]
		if !ok {
			return glovebox.Errorf(glovebox.CodeInvalid, "say which it is: --lang python, node or bash",
				"the suffix of %q names no language", short(filepath.Base(file)))
		}
		r.Lang = lang
	}
	// A fifo must not make the command hang before it could say that it is none of a file.
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return fileError(file, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fileError(file, err)
	}
	if !info.Mode().IsRegular() {
		return glovebox.Errorf(glovebox.CodeInvalid, "name a regular file, or pipe the code in and say -",
			"%q is not a regular file", short(file))
	}
	r.CodeName = filepath.Base(file)
	r.Code, err = readCode(f, file)
	return err
}

// readCode reads all of the code, but no more than a request may hold and one byte.
func readCode(from io.Reader, name string) (string, error) {
	b, err := io.ReadAll(io.LimitReader(from, int64(policy.MaxCode)+1))
	switch {
	case err != nil:
		return "", fileError(name, err)
	case len(b) > int(policy.MaxCode):
		return "", glovebox.Errorf(glovebox.CodeInvalid, "put data in a file and pass it with --input",
			"%q has more than %s, which is the most that code may have", short(name), policy.MaxCode)
	case len(b) == 0:
		return "", glovebox.Errorf(glovebox.CodeInvalid, "give some code", "%q is empty", short(name))
	}
	return string(b), nil
}

// fileError says why a file of the caller could not be read.
func fileError(name string, err error) error {
	code := glovebox.CodeInvalid
	if errors.Is(err, fs.ErrNotExist) {
		code = glovebox.CodeNotFound
	}
	var cause syscall.Errno
	why := err.Error()
	if errors.As(err, &cause) {
		why = cause.Error()
	}
	return glovebox.Errorf(code, "name a file that exists and that you may read", "cannot read %q: %s", short(name), why)
}

// inputFlag reads SRC[:NAME]. What exists under the whole of s is SRC; else the last colon divides.
func inputFlag(s string) (glovebox.Input, error) {
	src, name := s, ""
	_, whole := os.Lstat(s)
	if i := strings.LastIndexByte(s, ':'); i >= 0 && whole != nil {
		src, name = s[:i], s[i+1:]
		if src == "" || name == "" {
			return glovebox.Input{}, glovebox.Errorf(glovebox.CodeInvalid, "say --input SRC or --input SRC:NAME",
				"--input %q lacks what is before or after the colon", short(s))
		}
	}
	if src == "" {
		return glovebox.Input{}, glovebox.Errorf(glovebox.CodeInvalid, "say --input SRC or --input SRC:NAME", "--input is empty")
	}
	abs, err := filepath.Abs(src)
	if err != nil {
		return glovebox.Input{}, fileError(src, err)
	}
	if abs == "/" {
		return glovebox.Input{}, glovebox.Errorf(glovebox.CodeInvalid, "name the folders in it that the program needs",
			"--input / would show the whole machine")
	}
	if _, err := os.Stat(abs); errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		fix := "name a file or folder that exists"
		if src != s {
			fix += "; the last colon divided SRC from NAME, and nothing has the whole as its name"
		}
		return glovebox.Input{}, glovebox.Errorf(glovebox.CodeNotFound, fix, "cannot read --input %q: there is no such file",
			short(src))
	}
	if name == "" {
		name = filepath.Base(abs)
	}
	return glovebox.Input{Name: name, Path: abs}, nil
}

// openStdin opens what --stdin names. The caller closes it.
func (a *app) openStdin(name string) (io.ReadCloser, error) {
	if name == "-" {
		return io.NopCloser(a.in), nil
	}
	info, err := os.Stat(name)
	switch {
	case err != nil:
		return nil, fileError(name, err)
	case info.IsDir():
		return nil, fileError(name, syscall.EISDIR)
	case info.Mode()&fs.ModeNamedPipe != 0:
		return &lateFile{name: name}, nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, fileError(name, err)
	}
	return f, nil
}

// lateFile opens a fifo at the first Read: opening waits for a writer, and the run need not.
type lateFile struct {
	name string
	once sync.Once
	file *os.File
	err  error
}

func (l *lateFile) Read(p []byte) (int, error) {
	l.once.Do(func() { l.file, l.err = os.Open(l.name) })
	if l.err != nil {
		return 0, l.err
	}
	return l.file.Read(p)
}

// Close leaves the file alone: a Read may still wait in it, and the process ends next.
func (l *lateFile) Close() error { return nil }
