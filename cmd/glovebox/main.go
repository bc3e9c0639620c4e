// Command glovebox runs programs that nobody vouches for, where their worst case is a messy sandbox.
//
// It reads the command line, the configuration and the environment, wires the engine, and shows what came of it. All of
// that is here and nowhere else: the packages below it are told what they need. One file per verb.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/spf13/cobra"

	"glovebox"
	"glovebox/internal/output"
)

// version is set by the linker: -X main.version=v1.2.3.
var version = "dev"

func main() {
	a := &app{in: os.Stdin, out: os.Stdout, errs: os.Stderr, getenv: os.Getenv, uid: os.Getuid(), runtime: "/run", open: open}
	os.Exit(a.main(os.Args[1:]))
}

// app is one use of the command line with everything it touches, so that a test can give it other things to touch.
type app struct {
	in        io.Reader
	out, errs io.Writer
	getenv    func(string) string
	uid       int
	runtime   string // the folder of what root's programs keep while they run
	// open makes the service that serves the verbs. The verb closes it.
	open func(settings, *slog.Logger) (glovebox.Service, error)

	config string // --config
	server string // --server
	local  bool   // --local
	json   bool   // --json was given: errors are JSON too, whatever else is wrong with the command line
	exit   int    // what a verb that did not fail exits with
}

// main runs one command line and returns the exit code.
func (a *app) main(args []string) int {
	// A write into a pipe that nobody reads must be an error and not the end of this process, so that a run is cancelled
	// and cleaned up. Programs in sandboxes start with every signal as it is by default.
	signal.Ignore(syscall.SIGPIPE)
	before := args
	if i := slices.Index(args, "--"); i >= 0 {
		before = args[:i]
	}
	a.json = slices.Contains(before, "--json") || slices.Contains(before, "--json=true")
	root := a.root()
	root.SetArgs(args)
	root.SetOut(a.out)
	root.SetErr(a.errs)
	cmd, err := root.ExecuteC()
	// run and exec say that nobody read what the program printed. Whoever closes the output of another verb, as head does,
	// has seen enough.
	if _, told := err.(*glovebox.Error); !told && errors.Is(err, syscall.EPIPE) {
		return a.exit
	}
	if errors.Is(err, context.Canceled) && cmd.Name() != "run" && cmd.Name() != "exec" { // which tell it by their result
		fmt.Fprintf(a.errs, "%s: cancelled\n", cmd.CommandPath())
		return exitCanceled
	}
	if err != nil {
		return a.fail(cmd, err)
	}
	return a.exit
}

// fail shows a failure of Glovebox and returns the exit code for it.
func (a *app) fail(cmd *cobra.Command, err error) int {
	var e *glovebox.Error
	if !errors.As(err, &e) {
		e = &glovebox.Error{Code: glovebox.CodeInternal, Public: "the command failed inside Glovebox", Err: err,
			Fix: "run `glovebox doctor`"}
	}
	if a.json {
		shown := struct {
			Error glovebox.ErrorShown `json:"error"`
		}{glovebox.ErrorShown{Code: e.Code, Message: e.Public, Fix: e.Fix}}
		if err := writeJSON(a.out, shown); err == nil {
			return e.Code.ExitCode()
		}
	}
	why := e.Public
	// Whoever sits at this command line is the operator, who may know the cause.
	if e.Code == glovebox.CodeInternal && e.Err != nil {
		why += ": " + e.Err.Error()
	}
	fmt.Fprintf(a.errs, "%s: %s\nwhy: %s\nfix: %s\n", cmd.CommandPath(), outcomes[e.Code], line(why), line(e.Fix))
	return e.Code.ExitCode()
}

// outcomes say what each code means for the command.
var outcomes = map[glovebox.Code]string{
	glovebox.CodeInvalid:     "not understood (invalid)",
	glovebox.CodeDenied:      "refused (denied)",
	glovebox.CodeUnavailable: "refused (unavailable)",
	glovebox.CodeExhausted:   "no room (exhausted)",
	glovebox.CodeNotFound:    "not found (not_found)",
	glovebox.CodeConflict:    "refused (conflict)",
	glovebox.CodeInternal:    "failed (internal)",
}

// line makes text safe for one line of a terminal.
func line(s string) string {
	const most = 2000
	if len(s) > most {
		s = s[:most] + "…"
	}
	text, _ := output.Text([]byte(s))
	out := []rune(text)
	for i, r := range out {
		if r == '\n' || r == '\t' {
			out[i] = ' '
		}
	}
	return string(out)
}

// owner is who sits at this command line.
func (a *app) owner() glovebox.Principal {
	return glovebox.Principal{Tenant: "local", Name: fmt.Sprintf("uid:%d", a.uid), Owner: true}
}

// unbuilt refuses by name what Glovebox knows and does not offer yet.
func unbuilt(name, fix string) error {
	return glovebox.Errorf(glovebox.CodeUnavailable, fix, "%s is not available in this version", name)
}
