package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"glovebox"
	"glovebox/bench"
	"glovebox/client"
)

// benchFlags are the flags of bench: numbers that are not set are those of bench.Default.
type benchFlags struct {
	bench.Config
	json, plot string
}

func (a *app) benchCommand() *cobra.Command {
	var b benchFlags
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure what a run costs on this machine, beside other ways to run a program",
		Long: "Measure what a run costs on this machine, beside other ways to run a program.\n\n" +
			"The same programs are run by the bare interpreter, in bubblewrap, crun, runc and runsc where they are installed,\n" +
			"and by Glovebox, all taking turns; the output of each run is compared with what it must be. It has records and a\n" +
			"server of its own, in a temporary folder. It takes up to 4 minutes, a minute with --quick, 10 minutes with\n" +
			"--growth, and is worth something only on a machine that does nothing else. The exit code is 1 when a run failed,\n" +
			"printed something else or was lost; how fast they were does not change it.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			a.json = b.json == "-"
			def := bench.Default(b.Quick)
			for name, set := range map[string]func(){
				"rounds":  func() { b.Rounds = def.Rounds },
				"callers": func() { b.Callers = def.Callers },
				"seconds": func() { b.Seconds = def.Seconds },
			} {
				if !cmd.Flags().Changed(name) {
					set()
				}
			}
			return a.bench(&b)
		},
	}
	def := bench.Default(false)
	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVar(&b.Quick, "quick", false, "measure less, in a minute at most")
	f.BoolVar(&b.Growth, "growth", false, "measure how costs grow with sandboxes, files, output and records instead")
	f.IntVar(&b.Rounds, "rounds", def.Rounds, "run each subject so often, one run at a time")
	f.IntSliceVar(&b.Callers, "callers", def.Callers, "numbers of callers at a time")
	f.Float64Var(&b.Seconds, "seconds", def.Seconds, "measure each workload with several callers for so long")
	f.StringSliceVar(&b.Workloads, "workloads", nil, "choose from print, csv and pandas (default all)")
	f.StringVar(&b.json, "json", "", "write the report as JSON to `FILE`; - is standard output, in place of the tables")
	f.StringVar(&b.plot, "plot", "", "write plots as SVG to `FILE`")
	return cmd
}

// bench measures and shows the report.
func (a *app) bench(b *benchFlags) error {
	if err := a.ownServer("bench"); err != nil {
		return err
	}
	s, err := a.settings()
	if err != nil {
		return err
	}
	if b.Program, err = os.Executable(); err != nil {
		return glovebox.Internal("find the program", err)
	}
	caught, letGo := catch(endings...)
	defer letGo()
	b.Who, b.Settings = a.owner(), s.process.keys()
	b.Engine = func(config string) (glovebox.Service, error) {
		of := *a
		of.config = config
		s, err := of.settings()
		if err != nil {
			return nil, err
		}
		return a.open(s, logger(a.errs))
	}
	b.Client = func(socket string) (glovebox.Service, error) {
		return client.New(client.Config{Socket: socket, UID: a.uid}), nil
	}
	wipe := func() {}
	if isTerminal(a.errs) {
		wipe = func() { fmt.Fprint(a.errs, "\r\x1b[K") }
		b.Progress = func(what string) {
			wipe()
			fmt.Fprintf(a.errs, "%.70s", what)
		}
	}
	r, err := bench.Run(caught(), b.Config)
	wipe()
	if err != nil {
		return err
	}
	if !r.OK() {
		a.exit = 1
	}
	return a.showBench(b, r)
}

func (a *app) showBench(b *benchFlags, r *bench.Report) error {
	if b.plot != "" {
		if err := writeFile(b.plot, r.SVG); err != nil {
			return err
		}
	}
	asJSON := func(w io.Writer) error { return writeJSON(w, r) }
	switch b.json {
	case "":
	case "-":
		return asJSON(a.out)
	default:
		if err := writeFile(b.json, asJSON); err != nil {
			return err
		}
	}
	return r.Text(a.out)
}

// writeFile makes or replaces a file that the caller named.
func writeFile(name string, write func(io.Writer) error) error {
	var text strings.Builder
	if err := write(&text); err != nil {
		return glovebox.Internal("write the report", err)
	}
	if err := os.WriteFile(name, []byte(text.String()), 0o666); err != nil {
		return glovebox.Errorf(glovebox.CodeInvalid, "name a file that you may write", "cannot write %q: %v", short(name), err)
	}
	return nil
}

// keys are these settings as a configuration file spells them.
func (p *processSettings) keys() map[string]any {
	keys := map[string]any{}
	if len(p.accept) > 0 {
		keys["accept"] = p.accept
	}
	if p.cgroup != "" {
		keys["cgroup"] = p.cgroup
	}
	if p.init != "" {
		keys["init"] = p.init
	}
	if p.uids.count > 0 {
		keys["uid_pool"] = fmt.Sprintf("%d:%d", p.uids.start, p.uids.count)
	}
	if len(keys) == 0 {
		return nil
	}
	return map[string]any{"drivers": map[string]any{"process": keys}}
}
