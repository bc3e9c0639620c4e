package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"glovebox"
	"glovebox/attack"
)

func (a *app) attackCommand() *cobra.Command {
	var (
		cfg       attack.Config
		isolation string
		list      bool
	)
	cmd := &cobra.Command{
		Use:   "attack",
		Short: "Run hostile programs in sandboxes of this machine and tell what held",
		Long: "Run hostile programs in sandboxes of this machine and tell what held.\n\n" +
			"What they are to find or change are marked files, sockets, memory and keys that this command plants and takes\n" +
			"back; where a fence fails they do no other harm. They are judged from outside: by what was planted, by the\n" +
			"kernel's own files and counters, by the result. Where only the program's own word can be had the verdict is\n" +
			"\"said\". The exit code is 0 when all that was tried held, 1 when something broke, 126 when nothing could be tried.",
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			cfg.Isolation = glovebox.Isolation(isolation)
			if list {
				return a.listAttacks(cfg.Axes)
			}
			return a.attack(cfg)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringArrayVar(&cfg.Axes, "axis", nil, "run one `AXIS` of FS NT CR RS KS IL LT OU CT (repeat; default all)")
	f.BoolVar(&cfg.Disposable, "disposable", false,
		"run those too that exhaust memory, disk, processes, CPU or output: on a machine that may be lost")
	f.StringVar(&isolation, "isolation", "", "rung wanted at least: auto, process, gvisor, microvm or remote (default auto)")
	f.BoolVar(&list, "list", false, "list the programs and run none")
	f.BoolVar(&a.json, "json", a.json, "print JSON")
	return cmd
}

// listAttacks shows the battery.
func (a *app) listAttacks(axes []string) error {
	if err := attack.CheckAxes(axes); err != nil {
		return err
	}
	shown := slices.DeleteFunc(attack.Programs(), func(p attack.Program) bool {
		return len(axes) > 0 && !slices.Contains(axes, p.Axis)
	})
	if a.json {
		return writeJSON(a.out, shown)
	}
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tTRIES\tJUDGED BY")
	for _, p := range shown {
		tries := p.Tries
		if p.Disposable {
			tries += " (--disposable)"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", p.ID, tries, p.Judged)
	}
	return w.Flush()
}

// attack runs the battery and shows what came of it.
func (a *app) attack(cfg attack.Config) (err error) {
	if err := a.ownServer("attack"); err != nil {
		return err
	}
	s, err := a.settings()
	if err != nil {
		return err
	}
	caught, letGo := catch()
	defer letGo()
	svc, err := a.open(s, logger(a.errs))
	if err != nil {
		return err
	}
	defer func() { err = closed(svc, err) }()
	ctx := caught()
	cfg.Service, cfg.Who = svc, a.owner()
	cfg.Folders = slices.DeleteFunc([]string{s.dataDir, a.getenv("HOME"), "/var/tmp"},
		func(dir string) bool { return !strings.HasPrefix(dir, "/") })
	wipe := func() {}
	if isTerminal(a.errs) {
		wipe = func() { fmt.Fprint(a.errs, "\r\x1b[K") }
		cfg.Progress = func(n, of int, p attack.Program) {
			wipe()
			fmt.Fprintf(a.errs, "%d of %d: %s %.50s", n+1, of, p.ID, p.Tries)
		}
	}
	r, err := attack.Run(ctx, cfg)
	wipe()
	switch {
	case r == nil, a.json && err != nil && ctx.Err() == nil:
		return err
	case ctx.Err() != nil:
		err = nil // the report says so
	}
	a.exit = attackExit(ctx, r)
	if a.json {
		return writeJSON(a.out, r)
	}
	showAttacks(ctx, a.out, r)
	return err
}

func attackExit(ctx context.Context, r *attack.Report) int {
	switch {
	case r.Total.Broke > 0:
		return 1
	case ctx.Err() != nil:
		return exitCanceled
	case !r.OK:
		return glovebox.CodeUnavailable.ExitCode()
	}
	return 0
}

func showAttacks(ctx context.Context, out io.Writer, r *attack.Report) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tVERDICT\tTRIES")
	for _, o := range r.Programs {
		fmt.Fprintf(w, "%s\t%s\t%s\n", o.ID, verdictShown(o.Verdict), o.Tries)
	}
	w.Flush()
	fmt.Fprintln(out)
	showDetails(out, r)
	w = tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "AXIS\tHELD\tSAID\tBROKE\tNOT TRIED\tABOUT")
	for _, axis := range attack.Axes() {
		if c, ok := r.Axes[axis[0]]; ok {
			fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%s\n", axis[0], c.Held, c.Said, c.Broke, c.NotTried, axis[1])
		}
	}
	w.Flush()
	t := r.Total
	held := fmt.Sprintf("%d held", t.Held)
	if t.Said > 0 {
		held += fmt.Sprintf(", %d held by the program's own word", t.Said)
	}
	answer := fmt.Sprintf("nothing broke: %s, %d were not tried", held, t.NotTried)
	switch {
	case t.Broke > 0:
		answer = fmt.Sprintf("%d BROKE: %s, %d were not tried", t.Broke, held, t.NotTried)
	case ctx.Err() != nil:
		answer = "interrupted: until then " + held
	case !r.OK:
		answer = "nothing could be tried: `glovebox doctor` tells what is missing"
	}
	if r.Isolation != "" {
		answer = "rung " + line(string(r.Isolation)) + ": " + answer
	}
	fmt.Fprintf(out, "\n%s\n", answer)
}

func verdictShown(v attack.Verdict) string {
	switch v {
	case attack.Broke:
		return "BROKE"
	case attack.NotTried:
		return "not tried"
	}
	return string(v)
}

// showDetails tells what broke and why what was not tried was not, each reason once.
func showDetails(out io.Writer, r *attack.Report) {
	reasons := map[string][]string{}
	var order []string
	for _, o := range r.Programs {
		for _, found := range o.Found {
			fmt.Fprintf(out, "%s BROKE: %s (%s)\n", o.ID, line(found), line(o.Run))
		}
		for _, claim := range o.Claims {
			fmt.Fprintf(out, "%s says: %s (%s)\n", o.ID, line(string(claim)), line(o.Run))
		}
		if o.Verdict != attack.NotTried {
			continue
		}
		if reasons[o.Reason] == nil {
			order = append(order, o.Reason)
		}
		reasons[o.Reason] = append(reasons[o.Reason], o.ID)
	}
	for _, reason := range order {
		ids := reasons[reason]
		if most := 6; len(ids) > most {
			ids = append(slices.Clone(ids[:most]), fmt.Sprintf("and %d more", len(ids)-most))
		}
		fmt.Fprintf(out, "not tried: %s: %s\n", strings.Join(ids, ", "), line(reason))
	}
	if len(order) > 0 {
		fmt.Fprintln(out)
	}
}
