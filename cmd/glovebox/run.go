package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"glovebox"
	"glovebox/policy"
)

// endings are the signals that cancel a run: each ends it with a result and a record.
var endings = []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT}

func (a *app) runCommand() *cobra.Command {
	var (
		flags runFlags
		code  string
	)
	cmd := &cobra.Command{
		Use:   "run [flags] (-c CODE | FILE | -) [-- ARG...]",
		Short: "Run a program; the suffix of FILE picks the language",
		Args:  cobra.ArbitraryArgs,
	}
	cmd.Flags().StringVarP(&code, "code", "c", "", "run `CODE` itself")
	flags.bind(a, cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		files := args
		if n := cmd.ArgsLenAtDash(); n >= 0 {
			files, flags.request.Args = args[:n], args[n:]
		}
		if err := a.program(&flags, cmd.Flags().Changed("code"), code, files); err != nil {
			return err
		}
		return a.execute(cmd, &flags)
	}
	return cmd
}

func (a *app) execCommand() *cobra.Command {
	var flags runFlags
	cmd := &cobra.Command{
		Use:   "exec [flags] -- PROGRAM ARG...",
		Short: "Run any program of the image",
		Args:  cobra.ArbitraryArgs,
	}
	flags.bind(a, cmd)
	// What follows the program is the program's, flags included.
	cmd.Flags().SetInterspersed(false)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return glovebox.Errorf(glovebox.CodeInvalid, "say glovebox exec -- PROGRAM ARG...", "there is no program")
		}
		flags.request.Argv = args
		return a.execute(cmd, &flags)
	}
	return cmd
}

// program fills in the code: from -c, from the one FILE, or from standard input.
func (a *app) program(f *runFlags, given bool, code string, files []string) error {
	switch {
	case given && len(files) > 0:
		return surplus(files[0])
	case len(files) > 1:
		return surplus(files[1])
	case given && code == "":
		return glovebox.Errorf(glovebox.CodeInvalid, "give some code", "the code of -c is empty")
	case given:
		f.request.Code = code
	case len(files) == 0:
		return glovebox.Errorf(glovebox.CodeInvalid, "say glovebox run -c CODE, glovebox run FILE, or - to read standard input",
			"there is no program to run")
	case files[0] == "-" && f.stdin == "-":
		return glovebox.Errorf(glovebox.CodeInvalid, "name a FILE for one of them",
			"standard input cannot be both the code and the program's input")
	case files[0] == "-":
		var err error
		f.request.Code, err = readCode(a.in, "standard input")
		return err
	default:
		return readProgram(&f.request, files[0])
	}
	return nil
}

// surplus refuses a word of the command line beside the program.
func surplus(word string) error {
	return glovebox.Errorf(glovebox.CodeInvalid, "put arguments of the program after --, such as -- "+short(word),
		"%q is one program too many", short(word))
}

// execute runs the request and shows what came of it.
func (a *app) execute(cmd *cobra.Command, f *runFlags) (err error) {
	caught, letGo := catch(endings...)
	defer letGo()
	if err := f.complete(cmd); err != nil {
		return err
	}
	if f.stdin != "" {
		in, err := a.openStdin(f.stdin)
		if err != nil {
			return err
		}
		defer in.Close()
		f.request.StdinFrom = in
	}
	var dest *destination
	ran := false
	if f.output != "" {
		if dest, err = openDestination(f.output, f.overwrite); err != nil {
			return err
		}
		defer func() { dest.drop(ran) }()
	}
	svc, err := a.runService()
	if err != nil {
		return err
	}
	signals := caught()
	res, shown, err := a.watch(signals, svc, f)
	var cut *unfilled
	if err == nil {
		ran = true
		if dest != nil {
			err = a.collect(signals, svc, dest, res)
		}
		if errors.As(err, &cut) {
			err = nil
		}
	}
	if closing := svc.Close(); closing != nil && err == nil {
		err = glovebox.Internal("close the engine", closing)
	}
	// From here on nothing is left to clean up, and a signal may end this process while it waits for its reader.
	letGo()
	if err != nil {
		return err
	}
	err = a.report(res, shown)
	if cut != nil {
		say(a.errs, cut.Error())
		a.exit = exitCanceled
	}
	return err
}

// catch begins to catch signals, which end a run. caught waits until they are and returns a context that ends with the
// first; a second is like the first, since nothing of a run is left behind to end sooner. letGo gives the signals their
// usual effect back. Both work beside the caller: to take or give back a signal waits for another thread, a third of a
// millisecond each.
func catch(these ...os.Signal) (caught func() context.Context, letGo func()) {
	ctx, cancel := context.WithCancel(context.Background())
	signals, set := make(chan os.Signal, 1), make(chan struct{})
	go func() {
		defer close(set)
		signal.Notify(signals, these...)
	}()
	go func() {
		select {
		case <-signals:
			cancel()
		case <-ctx.Done():
		}
	}()
	letGo = sync.OnceFunc(func() {
		cancel()
		go func() {
			<-set
			signal.Stop(signals)
		}()
	})
	return func() context.Context { <-set; return ctx }, letGo
}

// watch runs the request while its output is shown. The second result is a failure to write standard output.
func (a *app) watch(signals context.Context, svc glovebox.Service, f *runFlags) (*glovebox.Result, error, error) {
	ctx, cancel := context.WithCancelCause(signals)
	defer cancel(nil)
	s := a.newScreen(f, cancel)
	res, err := svc.Run(ctx, a.owner(), f.request, s)
	shown := s.close()
	if s.errsMid && (err != nil || res.Reason != "" || len(res.Skipped)+len(refusals(res)) > 0) {
		fmt.Fprintln(a.errs) // what is said next begins a line of its own
	}
	return res, shown, err
}

// copyLimit bounds the copy of what a run left that a signal ended.
const copyLimit = 5 * time.Second

// collect fills the folder of --output. A signal ends it; when one came before, what there is is copied for a moment, which
// the next signal ends.
func (a *app) collect(signals context.Context, svc glovebox.Service, dest *destination, res *glovebox.Result) error {
	ctx := signals
	if signals.Err() != nil {
		next, stop := signal.NotifyContext(context.Background(), endings...)
		defer stop()
		var done context.CancelFunc
		ctx, done = context.WithTimeout(next, copyLimit)
		defer done()
	}
	return dest.fill(ctx, svc, a.owner(), res.ID, res.Artifacts)
}

// report shows the Result, or what is not plain about it, and sets the exit code.
func (a *app) report(res *glovebox.Result, shown error) error {
	a.exit = exitCode(res)
	if a.json {
		if err := writeJSON(a.out, res); err != nil {
			return unwritten(res, err)
		}
		return nil
	}
	switch {
	case errors.Is(shown, errNobodyReads):
		say(a.errs, "ended: "+errNobodyReads.Error())
	case shown != nil:
		return unwritten(res, shown)
	case strings.HasPrefix(res.Reason, "the program could not be started: "):
		// The sandbox has said so on the program's standard error, which was shown.
	case res.Reason != "":
		say(a.errs, res.Reason)
	case res.Status != glovebox.StatusExited:
		say(a.errs, "ended: "+string(res.Status))
	}
	if res.Status == glovebox.StatusExited && len(res.LimitsHit) > 0 {
		say(a.errs, "limits hit before the program exited: "+strings.Join(res.LimitsHit, ", "))
	}
	a.reportRefusals(res)
	for i, s := range res.Skipped {
		if i == 10 {
			say(a.errs, "more of /outputs was not kept: `glovebox trace show "+res.ID+"` lists it")
			break
		}
		say(a.errs, "not kept: "+notKept(s))
	}
	if a.exit == exitFailed && undelivered(res, glovebox.FaultGlovebox) {
		say(a.errs, fmt.Sprintf("exit code %d: not all that --output asked for could be delivered", a.exit))
	}
	return nil
}

// reportRefusals tells what the gateway refused, each host once.
func (a *app) reportRefusals(res *glovebox.Result) {
	all := refusals(res)
	for i, text := range all {
		if i == 5 {
			say(a.errs, fmt.Sprintf("%d more were refused: `glovebox trace show %s` lists them", len(all)-i, res.ID))
			break
		}
		say(a.errs, text)
	}
	for _, one := range policy.Suggest(res.Egress).Rules {
		if one.Refused > 0 {
			say(a.errs, "`glovebox policy suggest "+res.ID+"` prints what would have let it through")
			break
		}
	}
}

// refusals are the places that the gateway refused or could not reach, each with the reason.
func refusals(res *glovebox.Result) []string {
	var all []string
	for _, f := range res.Egress {
		what := "refused: "
		if policy.LetThrough(f) {
			what = "not reached: "
		}
		if text := what + reached(f) + ": " + f.Reason; !f.Allowed && !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	return all
}

// notKept is what was not kept, if that has a name, and why.
func notKept(s glovebox.Skipped) string {
	if s.Path == "" {
		return s.Reason
	}
	return s.Path + ": " + s.Reason
}

// unwritten is the error for a run that ended but could not be shown.
func unwritten(res *glovebox.Result, err error) error {
	return &glovebox.Error{Code: glovebox.CodeInternal, Op: "write standard output", Err: err,
		Public: "standard output could not be written; the run ended and is kept as " + res.ID,
		Fix:    "make room there; `glovebox trace show " + res.ID + "` tells of the run"}
}

// say tells one line.
func say(w io.Writer, s string) { fmt.Fprintf(w, "glovebox: %s\n", line(s)) }
