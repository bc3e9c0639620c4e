package hostside

import (
	"errors"
	"slices"
	"strings"

	"glovebox/driver"
	"glovebox/internal/boot"
)

// ErrNoCode is of an interpreter that is to wait for code, whose command does not say where that will be.
var ErrNoCode = errors.New("hold interpreter: its command names no program and code")

// WithBoot adds what interpreters of lang that wait read.
func WithBoot(files []driver.File, lang string) []driver.File {
	files = slices.Clip(files)
	for _, f := range boot.Files(lang) {
		files = append(files, driver.File(f))
	}
	return files
}

// ExtraWords are the arguments that cmd has beyond those of the hold. Whatever else differs, it was not made for.
func ExtraWords(hold driver.Hold, cmd driver.Command) ([]string, error) {
	made := hold.Command
	switch n := len(made.Argv); {
	case len(cmd.Argv) < n || !slices.Equal(cmd.Argv[:n], made.Argv):
		return nil, errors.New("execute: the interpreter that waits is another program")
	case cmd.Code == nil || cmd.CodeName != made.CodeName || cmd.Dir != made.Dir:
		return nil, errors.New("execute: the interpreter that waits is for other code")
	case slices.ContainsFunc(slices.Concat(cmd.Argv, cmd.Env), func(s string) bool { return strings.ContainsRune(s, 0) }):
		return nil, errors.New("execute: an argument or variable has a zero in it")
	}
	return cmd.Argv[len(made.Argv):], nil
}
