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
		Long: "Run hostile programs in sandboxes of this machine, on each rung that it has, and tell what held.\n\n" +
			"What they are to find or change are marked files, sockets, memory and keys that this command plants and takes\n" +
			"back; where a fence fails they do no other harm. They are judged from outside: by what was planted, by the\n" +
			"kernel's own files and counters, by the result. Where only the program's own word can be had the verdict is\n" +
			"\"said\". The exit code is 0 when all that was tried held, 1 when something broke, 126 when nothing could be tried.",
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			if list {
				return a.listAttacks(cfg.Axes)
			}
			return a.attack(cfg, glovebox.Isolation(isolation))
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringArrayVar(&cfg.Axes, "axis", nil, "run one `AXIS` of FS NT CR RS KS IL LT OU CT (repeat; default all)")
	f.BoolVar(&cfg.Disposable, "disposable", false,
		"run those too that exhaust memory, disk, processes, CPU or output: on a machine that may be lost")
	f.StringVar(&isolation, "isolation", "",
		"attack one `RUNG`: process, gvisor, microvm, remote, or auto for what runs get by default (default: each there is)")
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

// attacked is what came of the battery on each rung.
type attacked struct {
	OK    bool             `json:"ok"` // something was tried on each, and nothing broke
	Rungs []*attack.Report `json:"rungs"`
}

// rungsToAttack are the rung that is asked for, or all that this machine has. Another machine's is asked for by name alone.
func rungsToAttack(ctx context.Context, svc glovebox.Service, asked glovebox.Isolation) ([]glovebox.Isolation, error) {
	switch {
	case asked.Rank() > 0:
		return []glovebox.Isolation{asked}, nil
	case asked != "" && asked != glovebox.IsolationAuto:
		return nil, glovebox.Errorf(glovebox.CodeInvalid, "name auto, process, gvisor, microvm or remote",
			"there is no rung %.40q", string(asked))
	}
	report, err := svc.Doctor(ctx)
	if err != nil {
		return nil, err
	}
	if d := report.Default; asked == glovebox.IsolationAuto && d.Allow {
		return []glovebox.Isolation{d.Grant.Isolation}, nil
	} else if asked == glovebox.IsolationAuto {
		return nil, &glovebox.Error{Code: d.Code, Op: "choose a rung", Public: d.Reason, Fix: d.Fix}
	}
	missing := map[glovebox.Isolation]bool{glovebox.IsolationRemote: true}
	var rungs []glovebox.Isolation
	general := false // something is missing that every rung needs
	for _, c := range report.Controls {
		if c.Isolation == "" {
			general = general || c.Required && !c.Available
			continue
		}
		missing[c.Isolation] = missing[c.Isolation] || c.Required && !c.Available
		if !slices.Contains(rungs, c.Isolation) {
			rungs = append(rungs, c.Isolation)
		}
	}
	rungs = slices.DeleteFunc(rungs, func(r glovebox.Isolation) bool { return missing[r] })
	if len(rungs) == 0 || general {
		return nil, glovebox.Errorf(glovebox.CodeUnavailable,
			"run `glovebox doctor`, which tells what is missing and what mends it", "no rung can be had on this machine")
	}
	slices.SortFunc(rungs, func(a, b glovebox.Isolation) int { return a.Rank() - b.Rank() })
	return rungs, nil
}

// attack runs the battery and shows what came of it.
func (a *app) attack(cfg attack.Config, asked glovebox.Isolation) (err error) {
	if err := a.ownServer("attack"); err != nil {
		return err
	}
	if err := attack.CheckAxes(cfg.Axes); err != nil {
		return err
	}
	s, err := a.settings()
	if err != nil {
		return err
	}
	caught, letGo := catch(endings...)
	defer letGo()
	svc, err := a.open(s, logger(a.errs))
	if err != nil {
		return err
	}
	defer func() { err = closed(svc, err) }()
	ctx := caught()
	rungs, err := rungsToAttack(ctx, svc, asked)
	if err != nil {
		return err
	}
	// With the lowest trust that is no refusal, so that each runs on the rung that is meant and on none above it.
	cfg.Service, cfg.Who, cfg.Trust = svc, a.owner(), glovebox.TrustModel
	cfg.Folders = slices.DeleteFunc([]string{s.dataDir, a.getenv("HOME"), "/var/tmp"},
		func(dir string) bool { return !strings.HasPrefix(dir, "/") })
	all := attacked{OK: true, Rungs: []*attack.Report{}}
	for _, rung := range rungs {
		cfg.Isolation = rung
		r, err := a.attackRung(ctx, cfg)
		if r == nil || a.json && err != nil && ctx.Err() == nil {
			return err
		}
		all.OK, all.Rungs = all.OK && r.OK, append(all.Rungs, r)
		if !a.json {
			showAttacks(ctx, a.out, r)
		}
		if ctx.Err() != nil {
			break // the report says so
		}
		if err != nil {
			return err
		}
	}
	a.exit = attackExit(ctx, all.Rungs)
	if a.json {
		return writeJSON(a.out, all)
	}
	return nil
}

// attackRung runs the battery on one rung, with its progress where somebody looks.
func (a *app) attackRung(ctx context.Context, cfg attack.Config) (*attack.Report, error) {
	wipe := func() {}
	if isTerminal(a.errs) {
		wipe = func() { fmt.Fprint(a.errs, "\r\x1b[K") }
		cfg.Progress = func(n, of int, p attack.Program) {
			wipe()
			fmt.Fprintf(a.errs, "%s, %d of %d: %s %.50s", cfg.Isolation, n+1, of, p.ID, p.Tries)
		}
	}
	defer wipe()
	return attack.Run(ctx, cfg)
}

func attackExit(ctx context.Context, all []*attack.Report) int {
	ok := true
	for _, r := range all {
		if r.Total.Broke > 0 {
			return 1
		}
		ok = ok && r.OK
	}
	switch {
	case ctx.Err() != nil:
		return exitCanceled
	case !ok:
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

// grouped are ids by what is said of them, each text once, in the order in which they came.
type grouped struct {
	ids   map[string][]string
	order []string
}

func (g *grouped) add(text, id string) {
	if g.ids == nil {
		g.ids = map[string][]string{}
	}
	if g.ids[text] == nil {
		g.order = append(g.order, text)
	}
	g.ids[text] = append(g.ids[text], id)
}

func (g *grouped) show(out io.Writer, what string) {
	for _, text := range g.order {
		ids := g.ids[text]
		if most := 6; len(ids) > most {
			ids = append(slices.Clone(ids[:most]), fmt.Sprintf("and %d more", len(ids)-most))
		}
		fmt.Fprintf(out, "%s: %s: %s\n", what, strings.Join(ids, ", "), line(text))
	}
	if len(g.order) > 0 {
		fmt.Fprintln(out)
	}
}

// showDetails tells what broke, why what was not tried was not, and what is judged otherwise than on the process rung.
func showDetails(out io.Writer, r *attack.Report) {
	var untried, differs grouped
	for _, o := range r.Programs {
		for _, found := range o.Found {
			fmt.Fprintf(out, "%s BROKE: %s (%s)\n", o.ID, line(found), line(o.Run))
		}
		for _, claim := range o.Claims {
			fmt.Fprintf(out, "%s says: %s (%s)\n", o.ID, line(string(claim)), line(o.Run))
		}
		if o.Verdict == attack.NotTried {
			untried.add(o.Reason, o.ID)
		} else if o.Differs != "" {
			differs.add(o.Differs, o.ID)
		}
	}
	untried.show(out, "not tried")
	differs.show(out, "judged otherwise on this rung")
}
