package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"glovebox"
	"glovebox/internal/egress"
	"glovebox/policy"
)

func (a *app) policyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Show what is permitted, and what would have let a run through",
		Args:  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return glovebox.Errorf(glovebox.CodeInvalid, "say glovebox policy show or glovebox policy suggest RUN",
					"no command is given")
			}
			return unknownVerb(cmd, args[0])
		},
	}
	cmd.AddCommand(a.policyShow(), a.policySuggest())
	return cmd
}

// policyReport is what is permitted, with every default filled in.
type policyReport struct {
	File       string                                `json:"file"` // empty: the built-in defaults
	Trust      map[glovebox.Trust]glovebox.Isolation `json:"trust"`
	OnlyNamed  []glovebox.Isolation                  `json:"only_named,omitempty"`
	Default    glovebox.Limits                       `json:"default"`
	Ceiling    glovebox.Limits                       `json:"ceiling"`
	InputRoots []string                              `json:"input_roots"`
	Images     []string                              `json:"images"` // empty: all
	Rules      []glovebox.EgressRule                 `json:"rules"`
	Secrets    []policy.Secret                       `json:"secrets"`
	Tenants    map[string][]glovebox.Isolation       `json:"tenants,omitempty"`
	RulesOf    map[string][]glovebox.EgressRule      `json:"rules_of,omitempty"`   // tenants that have their own
	SecretsOf  map[string][]string                   `json:"secrets_of,omitempty"` // tenants that have some only
	Warnings   []string                              `json:"warnings"`
}

func (a *app) policyShow() *cobra.Command {
	cmd := &cobra.Command{Use: "show", Short: "Show what the configuration permits, with its defaults and what to know of it",
		Args: noArgs}
	cmd.Flags().BoolVar(&a.json, "json", a.json, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := a.ownServer(cmd.CommandPath()); err != nil {
			return err
		}
		s, err := a.settings()
		if err != nil {
			return err
		}
		r, err := reportPolicy(s)
		if err != nil {
			return err
		}
		if a.json {
			return writeJSON(a.out, r)
		}
		return r.show(a.out)
	}
	return cmd
}

func reportPolicy(s settings) (policyReport, error) {
	p, err := policy.New(s.policy)
	if err != nil {
		return policyReport{}, s.located(err)
	}
	r := policyReport{File: s.file, Trust: map[glovebox.Trust]glovebox.Isolation{}, OnlyNamed: s.policy.OnlyNamed,
		Default: p.DefaultLimits(), Ceiling: p.Ceiling(), InputRoots: orEmpty(s.policy.InputRoots),
		Images: orEmpty(s.policy.Images), Rules: orEmpty(p.EgressRules("")), Secrets: orEmpty(s.policy.Secrets),
		Tenants: s.policy.Tenants,
		RulesOf: map[string][]glovebox.EgressRule{}, SecretsOf: s.policy.TenantSecrets, Warnings: orEmpty(p.Warnings())}
	for _, t := range trusts {
		r.Trust[t] = p.Needs(t)
	}
	for _, tenant := range slices.Sorted(maps.Keys(s.policy.Egress.Tenants)) {
		r.RulesOf[tenant] = orEmpty(p.EgressRules(tenant))
	}
	return r, nil
}

var trusts = []glovebox.Trust{glovebox.TrustTrusted, glovebox.TrustModel, glovebox.TrustInfluenced, glovebox.TrustHostile}

func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// show tells a person. Rules are told as a configuration has them.
func (r policyReport) show(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 1, ' ', 0)
	field := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%s:\t%s\n", name, line(fmt.Sprintf(format, args...)))
	}
	orNone := func(list []string, none string) string {
		if len(list) == 0 {
			return none
		}
		return strings.Join(list, " ")
	}
	file := r.File
	if file == "" {
		file = "none: these are the built-in defaults"
	}
	field("configuration", "%s", file)
	for _, t := range trusts {
		field("trust "+string(t), "%s or stronger", r.Trust[t])
	}
	for _, rung := range r.OnlyNamed {
		field("only if named", "%s", rung)
	}
	field("limits", "%s", limitsLine(r.Default))
	field("at most", "%s", limitsLine(r.Ceiling))
	field("input roots", "%s", orNone(r.InputRoots, "none"))
	field("images", "%s", orNone(r.Images, "all"))
	for _, s := range r.Secrets {
		field("secret "+line(s.Name), "for %s", strings.Join(s.Hosts, " "))
	}
	for _, tenant := range slices.Sorted(maps.Keys(r.Tenants)) {
		field("tenant "+line(tenant), "rungs %v", r.Tenants[tenant])
		if own, ok := r.SecretsOf[tenant]; ok {
			field("", "secrets %s", orNone(own, "none"))
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	r.showRules(out)
	return nil
}

func limitsLine(l glovebox.Limits) string {
	return fmt.Sprintf("wall %v, CPU %v, CPUs %v, memory %v, disk %v, files %d, open files %d, processes %d, egress %v, "+
		"output %v", l.Wall, l.CPU, l.CPUs, l.Memory, l.Disk, l.Files, l.OpenFiles, l.Processes, l.Egress, l.Output)
}

func (r policyReport) showRules(out io.Writer) {
	fmt.Fprint(out, "\negress: nothing leaves that a request does not ask for, and a request may ask for")
	list := func(rules []glovebox.EgressRule) {
		if len(rules) == 0 {
			fmt.Fprintln(out, "  nothing")
		}
		for _, rule := range rules {
			fmt.Fprintf(out, "  - %s\n", policy.Line(rule))
		}
	}
	fmt.Fprintln(out)
	list(r.Rules)
	for _, tenant := range slices.Sorted(maps.Keys(r.RulesOf)) {
		fmt.Fprintf(out, "of tenant %s\n", line(tenant))
		list(r.RulesOf[tenant])
	}
	fmt.Fprintln(out, "and beside that for what the owner types at the command line with --allow, where no rule denies it")
	for _, w := range r.Warnings {
		fmt.Fprintf(out, "warning: %s\n", line(w))
	}
}

func (a *app) policySuggest() *cobra.Command {
	cmd := &cobra.Command{Use: "suggest RUN",
		Short: "Print the narrowest rules that would have let a run through, to be judged",
		Long: "Print the narrowest rules that would have let a run through, to be judged.\n\n" +
			"They are what policy.egress.rules of glovebox.yaml would need. They come from what a program tried, which may not be\n" +
			"what it should have: whoever may reach a host may send it whatever the program can read.",
		Args: cobra.ArbitraryArgs, ValidArgsFunction: a.completeRuns}
	cmd.Flags().BoolVar(&a.json, "json", a.json, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		if len(args) != 1 || args[0] == "" {
			return glovebox.Errorf(glovebox.CodeInvalid, "say glovebox policy suggest RUN; `glovebox trace ls` lists the ids",
				"policy suggest takes one id and got %d", len(args))
		}
		svc, err := a.service()
		if err != nil {
			return err
		}
		defer func() { err = closed(svc, err) }()
		record, err := svc.Trace(cmd.Context(), a.owner(), args[0])
		if err != nil {
			return err
		}
		switch {
		case !record.Erased.IsZero():
			return glovebox.Errorf(glovebox.CodeNotFound, "suggest from a later run", "what %s tried was erased by retention",
				record.ID)
		case record.Result == nil:
			return glovebox.Errorf(glovebox.CodeNotFound, "wait until it has ended; `glovebox trace show ID` says what became of it",
				"%s has no result to suggest from: it is %s", record.ID, record.State)
		}
		s := policy.Suggest(record.Result.Egress)
		if _, cut := record.Cut["egress"]; cut {
			s.Whole = false
		}
		if a.json {
			return writeJSON(a.out, s)
		}
		showSuggestion(a.out, record, s)
		return nil
	}
	return cmd
}

// showSuggestion prints a part of a configuration, in which all that is no rule is a comment.
func showSuggestion(out io.Writer, r *glovebox.Record, s policy.Suggestion) {
	comment := func(format string, args ...any) { fmt.Fprintf(out, "# %s\n", line(fmt.Sprintf(format, args...))) }
	if len(s.Rules) == 0 {
		comment("%s tried nothing that a rule could allow", r.ID)
	} else {
		comment("what %s tried; whoever may reach a host may send it whatever the program can read", r.ID)
		fmt.Fprint(out, "policy:\n  egress:\n    rules:\n")
	}
	for _, one := range s.Rules {
		fmt.Fprintf(out, "      - %s # %s\n", policy.Line(one.Rule), triedAs(one))
	}
	if len(s.Rules) > 0 {
		var flags []string
		for _, one := range s.Rules {
			if flag := "--allow " + one.Allow; !slices.Contains(flags, flag) {
				flags = append(flags, flag)
			}
		}
		comment("wider, since methods and paths cannot be said there, at the command line: %s", strings.Join(flags, " "))
	}
	rules := make([]glovebox.EgressRule, len(s.Rules))
	for i, one := range s.Rules {
		rules[i] = one.Rule
		rules[i].ID = fmt.Sprintf("%s (%d)", one.Rule.Host, i+1)
	}
	if warnings, err := egress.Warnings(rules); err == nil {
		for _, w := range warnings {
			comment("warning: %s", w)
		}
	}
	for _, l := range s.Left {
		comment("not to be allowed: %s: %s", flowLine(l.Flow), l.Why)
	}
	if !s.Whole {
		comment("the record does not have all that was tried: there may be more")
	}
}

func triedAs(one policy.SuggestedRule) string {
	text := fmt.Sprintf("tried %d times", one.Tried)
	if one.Tried == 1 {
		text = "tried once"
	}
	switch {
	case one.Refused == one.Tried:
		text += ", refused"
	case one.Refused > 0:
		text += fmt.Sprintf(", refused %d", one.Refused)
	default:
		text += ", allowed"
	}
	if one.Guessed {
		text += "; it did not come to say what it would speak: this is a guess"
	}
	return text
}

// reached is where a decision of the gateway was about.
func reached(f glovebox.EgressFlow) string {
	switch {
	case f.Host == "":
		return "(others)"
	case f.Port == 0:
		return f.Host
	}
	return fmt.Sprintf("%s:%d", f.Host, f.Port)
}

// flowLine is a decision of the gateway in one line.
func flowLine(f glovebox.EgressFlow) string {
	text := reached(f)
	if f.Method != "" {
		text += fmt.Sprintf(" %s %s", f.Method, f.Path)
	}
	verdict := "allowed"
	if !f.Allowed {
		verdict = "refused: " + f.Reason
	}
	text += " " + verdict
	if f.Rule != "" {
		text += fmt.Sprintf(" by rule %s", f.Rule)
	}
	if f.Layer != "" {
		text += ", " + f.Layer
	}
	if f.Count > 1 {
		text += fmt.Sprintf(", %d times", f.Count)
	}
	if f.BytesUp+f.BytesDown > 0 {
		text += fmt.Sprintf(", %d bytes up, %d down", f.BytesUp, f.BytesDown)
	}
	return text
}
