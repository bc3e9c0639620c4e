package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"glovebox"
)

func (a *app) doctorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Tell what this machine can enforce, what is missing and what mends it",
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return a.doctor(cmd.Context()) },
	}
	cmd.Flags().BoolVar(&a.json, "json", a.json, "print JSON")
	return cmd
}

func (a *app) doctor(ctx context.Context) (err error) {
	svc, err := a.service()
	if err != nil {
		return err
	}
	defer func() { err = closed(svc, err) }()
	report, err := svc.Doctor(ctx)
	if err != nil {
		return err
	}
	if !report.Ready {
		a.exit = glovebox.CodeUnavailable.ExitCode()
	}
	if a.json {
		return writeJSON(a.out, report)
	}
	a.showReport(report)
	return nil
}

// closed closes a service after err and returns the first failure.
func closed(svc glovebox.Service, err error) error {
	if closing := svc.Close(); closing != nil && err == nil {
		return glovebox.Internal("close the engine", closing)
	}
	return err
}

func (a *app) showReport(r *glovebox.Report) {
	fmt.Fprintf(a.out, "machine: %s\nuser: %s\n\n", line(r.Machine), line(r.User))
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "RUNG\tCONTROL\tSTATE\tDETAIL")
	for _, c := range r.Controls {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", cmp.Or(c.Isolation, "all"), line(c.Name), controlState(c), line(c.Detail))
	}
	w.Flush()
	told := map[string]string{}
	for _, c := range r.Controls {
		if !c.Available && c.Fix != "" {
			fix := line(c.Fix)
			if first, ok := told[fix]; ok {
				fix = "the same as for " + first
			} else {
				told[fix] = line(c.Name)
			}
			fmt.Fprintf(a.out, "fix %s %s: %s\n", cmp.Or(c.Isolation, "all"), line(c.Name), fix)
		}
	}
	for _, image := range r.Images {
		fmt.Fprintf(a.out, "\nimage %s (%s)\n", line(image.Name), line(image.Identity))
		for _, lang := range slices.Sorted(maps.Keys(image.Languages)) {
			fmt.Fprintf(a.out, "  %s: %s\n", line(lang), line(image.Languages[lang]))
		}
		for _, lang := range slices.Sorted(maps.Keys(image.Missing)) {
			fmt.Fprintf(a.out, "  %s: missing; fix: %s\n", line(lang), line(image.Missing[lang]))
		}
		if len(image.Packages) > 0 {
			fmt.Fprintf(a.out, "  packages: %s\n", line(strings.Join(image.Packages, ", ")))
		}
	}
	answer := fmt.Sprintf("ready: code of the default trust runs on the %s rung", r.Default.Grant.Isolation)
	switch {
	case !r.Ready && !r.Default.Allow:
		answer = fmt.Sprintf("not ready: %s\nfix: %s", line(r.Default.Reason), line(r.Default.Fix))
	case !r.Ready:
		answer = "not ready: code of the default trust is refused until the above is mended"
	}
	fmt.Fprintf(a.out, "\n%s\n", answer)
}

func controlState(c glovebox.Control) string {
	switch {
	case c.Available:
		return "ok"
	case c.Required:
		return "MISSING"
	}
	return "absent"
}
