package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"glovebox"
	"glovebox/internal/output"
	"glovebox/policy"
)

func (a *app) traceCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "trace",
		Short: "Read and verify the record of what ran",
		Args:  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return glovebox.Errorf(glovebox.CodeInvalid, "say glovebox trace ls or glovebox trace show ID", "no command is given")
			}
			return unknownVerb(cmd, args[0])
		},
	}
	cmd.AddCommand(a.traceList(), a.traceShow(), a.traceVerify(), a.traceExport())
	return cmd
}

// traceFilter is the flags that choose runs, and what they choose.
type traceFilter struct {
	query                glovebox.TraceQuery
	status, since, until string
}

func (t *traceFilter) bind(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&t.query.Before, "before", "", "only runs started before run `ID`")
	f.StringVar(&t.status, "status", "", "only runs that ended as `STATUS`, such as exited or wall_limit")
	f.StringVar(&t.since, "since", "", "only runs started at `TIME` or later: 2026-11-30, 2026-11-30T15:04:05Z, or 24h (ago)")
	f.StringVar(&t.until, "until", "", "only runs started before `TIME`")
}

// complete reads what was typed.
func (t *traceFilter) complete(cmd *cobra.Command) (err error) {
	for _, name := range []string{"before", "status", "since", "until"} {
		if f := cmd.Flags().Lookup(name); f.Changed && f.Value.String() == "" {
			return glovebox.Errorf(glovebox.CodeInvalid, "leave it out for all runs", "--%s is empty", name)
		}
	}
	if t.status != "" {
		if t.query.Status, err = glovebox.ParseStatus(t.status); err != nil {
			return err
		}
	}
	now := time.Now()
	if t.query.Since, err = timeFlag("since", t.since, now); err != nil {
		return err
	}
	t.query.Until, err = timeFlag("until", t.until, now)
	return err
}

// timeFlag reads a moment: a date or a time, local unless it says where, or how long ago.
func timeFlag(name, word string, now time.Time) (time.Time, error) {
	if word == "" {
		return time.Time{}, nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02T15:04", time.DateTime, time.DateOnly} {
		at, err := time.ParseInLocation(layout, word, time.Local)
		if err == nil && at.Year() >= 1970 && at.Year() <= 2200 { // what a count of nanoseconds can hold
			return at, nil
		}
	}
	if ago, err := parseSpan(word); err == nil {
		return now.Add(-ago), nil
	}
	return time.Time{}, glovebox.Errorf(glovebox.CodeInvalid,
		"say --"+name+" 2026-11-30, 2026-11-30T15:04:05Z, or 24h or 7d for so long ago", "--%s %q is no time", name, short(word))
}

func (a *app) traceList() *cobra.Command {
	var filter traceFilter
	cmd := &cobra.Command{Use: "ls", Short: "List runs, newest first", Args: noArgs}
	f := cmd.Flags()
	f.IntVar(&filter.query.Limit, "limit", 50, "at most `N` runs, 1000 at most")
	filter.bind(cmd)
	f.BoolVar(&a.json, "json", a.json, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if filter.query.Limit < 1 || filter.query.Limit > 1000 {
			return glovebox.Errorf(glovebox.CodeInvalid, "say 1 to 1000", "--limit %d is out of range", filter.query.Limit)
		}
		if err := filter.complete(cmd); err != nil {
			return err
		}
		svc, err := a.service()
		if err != nil {
			return err
		}
		defer func() { err = closed(svc, err) }()
		records, err := svc.Traces(cmd.Context(), a.owner(), filter.query)
		if err != nil {
			return err
		}
		if a.json {
			if records == nil {
				records = []glovebox.Record{}
			}
			return writeJSON(a.out, records)
		}
		return listRecords(a.out, records)
	}
	return cmd
}

func listRecords(out io.Writer, records []glovebox.Record) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tSTARTED\tSTATUS\tRULE\tWALL\tPROGRAM")
	for i := range records {
		r := &records[i]
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", line(r.ID), r.Started.Local().Format("2006-01-02 15:04:05"), recordStatus(r),
			line(r.Decision.Rule), recordWall(r), programOf(r, 48))
	}
	return w.Flush()
}

// recordStatus is how a run ended, or its state if it did not.
func recordStatus(r *glovebox.Record) string {
	switch {
	case r.Result != nil && r.Result.ExitCode != nil && r.Result.Status == glovebox.StatusExited:
		return fmt.Sprintf("%s %d", r.Result.Status, *r.Result.ExitCode)
	case r.Result != nil && r.Result.Signal != nil && r.Result.Status == glovebox.StatusSignaled:
		return fmt.Sprintf("%s %s", r.Result.Status, line(*r.Result.Signal))
	case r.Result != nil:
		return string(r.Result.Status)
	case r.Error != nil:
		return fmt.Sprintf("%s (%s)", r.State, r.Error.Code)
	}
	return r.State
}

func recordWall(r *glovebox.Record) string {
	if r.Result == nil || r.Result.Usage.WallMS == nil {
		return "-"
	}
	return (time.Duration(*r.Result.Usage.WallMS) * time.Millisecond).String()
}

// programOf is what ran, in at most n characters of one line.
func programOf(r *glovebox.Record, n int) string {
	text := strings.Join(r.Argv, " ")
	switch {
	case !r.Erased.IsZero():
		text = "(erased)"
	case len(r.Argv) == 0:
		text = r.Lang + ": " + strings.TrimSpace(string(r.Code))
	}
	text = line(text)
	if runes := []rune(text); len(runes) > n {
		return string(runes[:n-1]) + "…"
	}
	return text
}

func (a *app) traceShow() *cobra.Command {
	cmd := &cobra.Command{Use: "show ID", Short: "Show the record of one run, or fetch its outputs", Args: cobra.ArbitraryArgs,
		ValidArgsFunction: a.completeRuns}
	var (
		folder    string
		overwrite bool
	)
	cmd.Flags().StringVar(&folder, "output", "", "put the outputs that were kept into `DIR`, which is created or empty")
	cmd.Flags().BoolVar(&overwrite, "overwrite", false, "let DIR of --output hold files, and replace them")
	cmd.Flags().BoolVar(&a.json, "json", a.json, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		if len(args) != 1 || args[0] == "" {
			return glovebox.Errorf(glovebox.CodeInvalid, "say glovebox trace show ID; `glovebox trace ls` lists the ids",
				"trace show takes one id and got %d", len(args))
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
		if cmd.Flags().Changed("output") {
			if err := a.fetch(svc, record, folder, overwrite); err != nil {
				return err
			}
		}
		if a.json {
			return writeJSON(a.out, record)
		}
		return showRecord(a.out, record)
	}
	return cmd
}

// fetch fills a folder with what was kept of a run's outputs.
func (a *app) fetch(svc glovebox.Service, r *glovebox.Record, folder string, overwrite bool) error {
	if !r.Erased.IsZero() {
		return glovebox.Errorf(glovebox.CodeNotFound, "keep more with trace.retention or trace.data_limit in the configuration",
			"what %s left was erased by retention on %s", r.ID, r.Erased.Local().Format(time.DateTime))
	}
	if r.Result == nil || len(r.Result.Artifacts) == 0 {
		return glovebox.Errorf(glovebox.CodeNotFound, "outputs are kept when a run is given --output DIR",
			"no outputs of %s were kept", r.ID)
	}
	dest, err := openDestination(folder, overwrite)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), endings...)
	defer stop()
	err = dest.fill(ctx, svc, a.owner(), r.ID, r.Result.Artifacts)
	dest.drop(err == nil)
	var cut *unfilled
	if errors.As(err, &cut) {
		say(a.errs, cut.Error())
		a.exit, err = exitCanceled, nil
	}
	return err
}

// showRecord shows a record to a person. Whatever came from a caller or from inside is made inert.
func showRecord(out io.Writer, r *glovebox.Record) error {
	w := tabwriter.NewWriter(out, 0, 0, 1, ' ', 0)
	field := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%s:\t%s\n", name, line(fmt.Sprintf(format, args...)))
	}
	field("run", "%s", r.ID)
	field("state", "%s", r.State)
	field("started", "%s", r.Started.Local().Format(time.RFC3339Nano))
	if !r.Erased.IsZero() {
		field("erased", "by retention on %s: code, arguments, texts, output and artifacts are no more",
			r.Erased.Local().Format(time.RFC3339))
	}
	if !r.Ended.IsZero() {
		field("ended", "%s", r.Ended.Local().Format(time.RFC3339Nano))
	}
	field("asked by", "%s of %s", r.Principal.Name, r.Principal.Tenant)
	decision := "refused"
	if r.Decision.Allow {
		decision = "allowed"
	}
	field("decision", "%s by rule %s: %s", decision, r.Decision.Rule, r.Decision.Reason)
	if r.Error != nil {
		field("error", "%s: %s", r.Error.Code, r.Error.Message)
		field("fix", "%s", r.Error.Fix)
	}
	if len(r.Argv) > 0 {
		field("argv", "%q", r.Argv)
	} else {
		field("code", "%s, %d bytes, sha256 %s", r.Lang, r.CodeBytes, r.CodeSHA256)
		if len(r.Args) > 0 {
			field("args", "%q", r.Args)
		}
	}
	if len(r.EnvNames) > 0 {
		field("env", "%s", strings.Join(r.EnvNames, " "))
	}
	for _, in := range r.Inputs {
		field("input", "%s, %d bytes, sha256 %s", in.Name, in.Bytes, in.SHA256)
	}
	if r.Image != "" {
		field("image", "%s", r.Image)
	}
	if l := r.Decision.Grant.Limits; r.Decision.Allow {
		field("limits", "%s", limitsLine(l))
	}
	for _, rule := range r.Decision.Grant.Egress {
		field("may reach", "%s", policy.Line(rule))
	}
	for _, s := range r.Decision.Grant.Secrets {
		field("lent", "%s for %s", s.Name, s.Host)
	}
	if r.Result != nil {
		showResult(field, r)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	blocks := []block{{"code", r.Code}}
	if r.Result != nil {
		blocks = append(blocks, block{"stdout", r.Result.Stdout}, block{"stderr", r.Result.Stderr})
	}
	for _, b := range blocks {
		b.show(out)
	}
	return nil
}

func showResult(field func(name, format string, args ...any), r *glovebox.Record) {
	res := r.Result
	field("status", "%s", recordStatus(r))
	if res.Reason != "" {
		field("reason", "%s", res.Reason)
	}
	if len(res.LimitsHit) > 0 {
		field("limits hit", "%s", strings.Join(res.LimitsHit, " "))
	}
	asked := ""
	if res.Asked != "" { // as it is in a record of an earlier version
		asked = fmt.Sprintf(" (asked for %s)", res.Asked)
	}
	field("isolation", "%s%s, trust %s, start %s, served by %s", res.Isolation, asked, res.Trust, res.Start, res.ServedBy)
	if far := res.Remote; far != nil {
		field("remote", "%s on the %s rung of %s, by rule %s there", far.Run, far.Isolation, far.ServedBy, far.Rule)
		field("remote trace", "%d:%s", far.Trace.Seq, far.Trace.Hash)
	}
	u := res.Usage
	field("usage", "wall %s ms, CPU %s ms, memory peak %s bytes, processes peak %s, disk %s bytes", known(u.WallMS),
		known(u.CPUMS), known(u.MemoryPeakBytes), known(u.ProcessesPeak), known(u.DiskBytes))
	field("printed", "%d bytes on stdout, %d on stderr", res.StdoutBytes, res.StderrBytes)
	if len(res.Flags) > 0 {
		field("flags", "%s", strings.Join(res.Flags, " "))
	}
	if u.EgressBytes != nil && (*u.EgressBytes > 0 || len(res.Egress) > 0) {
		field("passed", "%d bytes through the gateway", *u.EgressBytes)
	}
	for _, f := range res.Egress {
		field("egress", "%s", flowLine(f))
	}
	for _, art := range res.Artifacts {
		field("artifact", "%s, %d bytes, %s, sha256 %s", art.Path, art.Bytes, art.MediaType, art.SHA256)
	}
	for _, s := range res.Skipped {
		field("not kept", "%s", notKept(s))
	}
	field("recorded", "start %d, end %d", r.StartSeq, res.Trace.Seq)
	field("tree head", "%d:%s", res.Trace.Seq, res.Trace.Hash)
}

// known shows a number that may not be.
func known(n *int64) string {
	if n == nil {
		return "unknown"
	}
	return fmt.Sprint(*n)
}

// block is text from inside, shown as such.
type block struct {
	name string
	text glovebox.Untrusted
}

// show prints each line behind a bar, so that no text can pass for what stands around it.
func (b block) show(out io.Writer) {
	if b.text == "" {
		return
	}
	safe, _ := output.Text([]byte(b.text))
	fmt.Fprintf(out, "\n%s (untrusted):\n", b.name)
	for l := range strings.Lines(strings.TrimSuffix(safe, "\n")) {
		fmt.Fprintf(out, "  | %s\n", strings.TrimSuffix(l, "\n"))
	}
}
