package main

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"glovebox"
)

// runFlags are the flags that run and exec share, and what they fill in.
type runFlags struct {
	request glovebox.Request

	trust, isolation string
	inputs, env      []string
	secrets          []string
	stdin            string
	output           string
	overwrite        bool
	raw, quiet       bool
}

// bind declares the flags. Values that a request knows go straight into it; the policy judges them.
func (r *runFlags) bind(a *app, cmd *cobra.Command) {
	f := cmd.Flags()
	f.SortFlags = false
	q := &r.request
	f.StringVar(&q.Lang, "lang", "", "language: python, node or bash (default from FILE's suffix, else python)")
	f.StringVar(&r.trust, "trust", "", "where the code came from: trusted, model, influenced or hostile (default influenced)")
	f.StringVar(&r.isolation, "isolation", "", "rung wanted at least: auto, process, gvisor, microvm or remote (default auto)")
	f.StringArrayVar(&r.inputs, "input", nil, "show file or folder `SRC[:NAME]` read-only at /inputs/NAME (repeat)")
	f.StringVar(&r.output, "output", "", "put the files of /outputs into `DIR`, which is created or empty")
	f.BoolVar(&r.overwrite, "overwrite", false, "let DIR of --output hold files, and replace them")
	env := "set variable `K=V`, not a secret"
	if cmd.Name() == "run" {
		env += "; no PYTHON…, which python would not read"
	}
	f.StringArrayVar(&r.env, "env", nil, env+" (repeat)")
	f.StringVar(&r.stdin, "stdin", "", "standard input: `FILE`, or - for this command's own (default empty)")

	l := &q.Limits
	f.Var((*durationFlag)(&l.Wall), "wall", "wall clock (default 60s)")
	f.Var((*durationFlag)(&l.CPU), "cpu", "CPU time of all its processes (default 30s)")
	f.Var((*fractionFlag)(&l.CPUs), "cpus", "CPU bandwidth in CPUs (default 1)")
	f.Var((*sizeFlag)(&l.Memory), "memory", "memory of all its processes (default 512MiB)")
	f.Var((*sizeFlag)(&l.Disk), "disk", "bytes of files (default 256MiB, less beside a small --memory)")
	f.Var((*countFlag)(&l.Files), "files", "number of files (default 20000)")
	f.Var((*countFlag)(&l.OpenFiles), "open-files", "descriptors of one process (default 1024)")
	f.Var((*countFlag)(&l.Processes), "processes", "processes and threads (default 128)")
	f.Var((*sizeFlag)(&l.Egress), "egress-limit", "bytes through the gateway (default 100MiB)")
	f.Var((*sizeFlag)(&l.Output), "output-limit", "bytes it may print before it is ended (default 64MiB)")
	f.Var((*sizeFlag)(&l.View), "view-limit", "bytes of each stream in the Result: head and tail (default 16KiB)")

	f.StringArrayVar(&q.Allow, "allow", nil, "let it reach `HOST[:PORT]` by https and http, or SCHEME://HOST[:PORT] (repeat)")
	f.StringVar(&q.Image, "image", "", "runtime image `NAME` (default host)")
	f.BoolVar(&a.json, "json", a.json, "print the Result as JSON and nothing else")
	f.BoolVar(&r.raw, "raw", false, "print exact bytes on a terminal too")
	f.BoolVar(&r.quiet, "quiet", false, "show no progress")

	const later = " (not available in this version)"
	f.StringArrayVar(&q.Actions, "action", nil, "let it call configured action `NAME` (repeat)")
	f.StringArrayVar(&r.secrets, "secret", nil, "lend secret `NAME@HOST`: a placeholder in $NAME, for HOST alone (repeat)")
	f.StringVar(&q.Session, "session", "", "run in session `NAME`"+later)
	f.BoolVar(&q.Interpreter, "interpreter", false, "run in the session's interpreter"+later)
	f.BoolVar(&q.Detach, "detach", false, "answer at once with the id"+later)
	completeFlags(cmd)
	a.completeEgress(cmd)
}

// complete turns what was typed into the rest of the request.
func (r *runFlags) complete(cmd *cobra.Command) error {
	r.request.Trust, r.request.Isolation = glovebox.Trust(r.trust), glovebox.Isolation(r.isolation)
	// A flag that is there and empty was meant to say something: "" is not the default.
	for _, name := range []string{"lang", "trust", "isolation", "output", "stdin", "image", "session"} {
		if f := cmd.Flags().Lookup(name); f.Changed && f.Value.String() == "" {
			return glovebox.Errorf(glovebox.CodeInvalid, "leave it out for the default", "--%s is empty", name)
		}
	}
	if meant, ok := languageNames[strings.ToLower(r.request.Lang)]; ok {
		return glovebox.Errorf(glovebox.CodeInvalid, "did you mean --lang "+meant+"?", "lang %q is not known",
			short(r.request.Lang))
	}
	if r.overwrite && r.output == "" {
		return glovebox.Errorf(glovebox.CodeInvalid, "add --output DIR, or leave --overwrite out",
			"--overwrite is about --output, which is missing")
	}
	for _, kv := range r.env {
		name, value, ok := strings.Cut(kv, "=")
		if !ok {
			return glovebox.Errorf(glovebox.CodeInvalid, "say --env NAME=VALUE; nothing of this environment is passed on",
				"--env %q has no value", short(kv))
		}
		if _, twice := r.request.Env[name]; twice {
			return glovebox.Errorf(glovebox.CodeInvalid, "leave one of them out", "--env sets %q twice", short(name))
		}
		if r.request.Env == nil {
			r.request.Env = map[string]string{}
		}
		r.request.Env[name] = value
	}
	for _, s := range r.secrets {
		name, host, ok := strings.Cut(s, "@")
		if !ok {
			return glovebox.Errorf(glovebox.CodeInvalid, "say --secret NAME@HOST", "--secret %q names no host", short(s))
		}
		r.request.Secrets = append(r.request.Secrets, glovebox.SecretRef{Name: name, Host: host})
	}
	for _, s := range r.inputs {
		in, err := inputFlag(s)
		if err != nil {
			return err
		}
		r.request.Inputs = append(r.request.Inputs, in)
	}
	r.request.Collect = r.output != ""
	return nil
}

// noLimit refuses a limit of nothing: no flag means "endless", and none is typed to get a default.
func noLimit() error {
	return glovebox.Errorf(glovebox.CodeInvalid, "leave the flag out for the default, or say how much",
		"a limit of 0 is no limit, and nothing here is endless")
}

type (
	durationFlag time.Duration
	sizeFlag     glovebox.Size
	countFlag    int64
	fractionFlag float64
)

var _ = []pflag.Value{(*durationFlag)(nil), (*sizeFlag)(nil), (*countFlag)(nil), (*fractionFlag)(nil)}

// The zero value prints as nothing, so that help shows no default beside the one in the text.

func (d *durationFlag) Type() string { return "TIME" }
func (d *durationFlag) String() string {
	if *d == 0 {
		return ""
	}
	return time.Duration(*d).String()
}

func (d *durationFlag) Set(s string) error {
	v, err := parseDuration(s)
	if err == nil && v == 0 {
		err = noLimit()
	}
	*d = durationFlag(v)
	return err
}

// parseDuration reads a time with its unit. A bare number is refused: seconds here are milliseconds elsewhere.
func parseDuration(s string) (time.Duration, error) {
	v, err := time.ParseDuration(s)
	if err == nil {
		return v, nil
	}
	fix := "say it with a unit, such as 60s, 1.5s, 500ms or 10m"
	if _, err := strconv.ParseFloat(s, 64); err == nil && len(s) < 20 {
		fix = "say " + s + "s for seconds, or use another unit: ms, m or h"
	}
	return 0, glovebox.Errorf(glovebox.CodeInvalid, fix, "%q is no time with a unit", short(s))
}

// parseSpan is parseDuration that also knows days, for what is long: 30d.
func parseSpan(s string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(s, "d"); ok {
		if n, err := parseCount(days); err == nil && n >= 0 && n <= 36500 {
			return time.Duration(n) * 24 * time.Hour, nil
		}
		return 0, glovebox.Errorf(glovebox.CodeInvalid, "say whole days, at most 36500, such as 30d",
			"%q is no time with a unit", short(s))
	}
	v, err := parseDuration(s)
	if err == nil && v < 0 {
		err = glovebox.Errorf(glovebox.CodeInvalid, "leave the sign out", "%q is negative", short(s))
	}
	return v, err
}

func (v *sizeFlag) Type() string { return "SIZE" }
func (v *sizeFlag) String() string {
	if *v == 0 {
		return ""
	}
	return glovebox.Size(*v).String()
}

func (v *sizeFlag) Set(s string) error {
	n, err := parseSize(s)
	if err == nil && n == 0 {
		err = noLimit()
	}
	*v = sizeFlag(n)
	return err
}

func parseSize(s string) (glovebox.Size, error) {
	n, err := glovebox.ParseSize(s)
	if err != nil {
		return 0, glovebox.Errorf(glovebox.CodeInvalid, "say it as 256MiB, 1.5GiB or 4096", "%q is no size", short(s))
	}
	return n, nil
}

func (v *countFlag) Type() string { return "N" }
func (v *countFlag) String() string {
	if *v == 0 {
		return ""
	}
	return strconv.FormatInt(int64(*v), 10)
}

func (v *countFlag) Set(s string) error {
	n, err := parseCount(s)
	if err == nil && n == 0 {
		err = noLimit()
	}
	*v = countFlag(n)
	return err
}

func parseCount(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, glovebox.Errorf(glovebox.CodeInvalid, "say a whole number in digits", "%q is no whole number", short(s))
	}
	return n, nil
}

func (v *fractionFlag) Type() string { return "N" }
func (v *fractionFlag) String() string {
	if *v == 0 {
		return ""
	}
	return strconv.FormatFloat(float64(*v), 'g', -1, 64)
}

func (v *fractionFlag) Set(s string) error {
	n, err := parseFraction(s)
	if err == nil && n == 0 {
		err = noLimit()
	}
	*v = fractionFlag(n)
	return err
}

func parseFraction(s string) (float64, error) {
	n, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(n) || math.IsInf(n, 0) {
		return 0, glovebox.Errorf(glovebox.CodeInvalid, "say a number such as 2 or 0.5", "%q is no number", short(s))
	}
	return n, nil
}
