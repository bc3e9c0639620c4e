package attack

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"glovebox"
)

// canaries is how all that is planted, and what names the host, is now.
func (l *laboratory) canaries() map[string]string {
	all := map[string]string{l.input: identity(l.input)}
	for _, f := range l.files {
		all[f] = identity(f)
	}
	host, err := os.Hostname()
	all["the host's name"] = fmt.Sprint(host, err)
	return all
}

// after is what changed on the host that no run may change.
func (l *laboratory) after(before map[string]string, visits int64) []string {
	var found []string
	for name, is := range l.canaries() {
		if before[name] != is {
			found = append(found, name+" was changed")
		}
	}
	slices.Sort(found)
	if n := l.listen.Visits.Load() - visits; n != 0 {
		found = append(found, fmt.Sprintf("listeners of the host had %d visitors, the last at %v", n, l.listen.Last.Load()))
	}
	return found
}

// judge decides. What broke comes before what was not tried: half a break-in is one.
func (l *laboratory) judge(out Outcome, o *observed, found []string) Outcome {
	p := out.Program
	for _, leak := range leaks(l.secrets, o.words()) {
		found = append(found, "in what came out: "+leak)
	}
	limit, took := o.result.Limits.Wall, o.took // the clock counts from the program's start
	for _, before := range []*int64{o.result.Usage.QueueMS, o.result.Usage.StartMS} {
		if before != nil {
			took -= time.Duration(*before) * time.Millisecond
		}
	}
	if slack := 10 * time.Second; limit > 0 && took > limit+slack {
		found = append(found, fmt.Sprintf("it returned after %v, with a limit of %v", took.Round(time.Millisecond), limit))
	}
	out.Reason = p.unfinished(o)
	if p.then != nil && out.Reason == "" {
		found = append(found, p.then(l, o)...)
	}
	out.Found, out.Claims = found, p.claims(o.stdout)
	switch {
	case len(out.Found) > 0 || len(out.Claims) > 0:
		out.Verdict, out.Reason = Broke, ""
	case out.Reason != "":
		out.Verdict = NotTried
	case p.said:
		out.Verdict = Said
	default:
		out.Verdict = Held
	}
	return out
}

// claims are the lines of a program that say what it got, but for what is of its own kernel.
func (p *Program) claims(stdout []byte) []glovebox.Untrusted {
	const many, long = 20, 300
	var all []glovebox.Untrusted
	for line := range bytes.Lines(stdout) {
		if bytes.HasPrefix(line, []byte("broke:")) && len(all) < many && !p.ofItsOwn(string(line)) {
			all = append(all, glovebox.Untrusted(strings.ToValidUTF8(string(line[:min(len(line), long)]), "\uFFFD")))
		}
	}
	return all
}

// unfinished says why a program's end tells nothing, or nothing.
func (p *Program) unfinished(o *observed) string {
	r := o.result
	lines := strings.Split(strings.TrimRight(string(o.stdout), "\n"), "\n")
	missing := slices.IndexFunc(lines, func(s string) bool { return strings.HasPrefix(s, "not in image: ") })
	guard := r.ExitCode != nil && *r.ExitCode == 99 && !p.free
	switch {
	case missing >= 0 && lines[len(lines)-1] != "end":
		return "the image lacks " + word(strings.TrimPrefix(lines[missing], "not in image: "))
	case guard:
		return "the program stopped by itself: it did not find the name of a sandbox"
	case o.unseen != "":
		return fmt.Sprintf("%s (%s%s)", o.unseen, r.Status, code(r))
	case p.look != nil || p.free || r.Status == glovebox.StatusPolicy:
		return "" // a program that the fence ended has tried
	case lines[len(lines)-1] != "end":
		return fmt.Sprintf("it ended before it had tried all: %s%s", r.Status, code(r))
	}
	return ""
}

func code(r *glovebox.Result) string {
	if r.ExitCode == nil {
		return ""
	}
	return fmt.Sprintf(", code %d", *r.ExitCode)
}

// word is a short name that a program printed, without what could act on its reader.
func word(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s[:min(len(s), 40)])
}

// ends demands a status, the program's exit code (below nought: any), and the limit among those that were hit.
func ends(status glovebox.Status, exit int, limit string) func(*laboratory, *observed) []string {
	return func(_ *laboratory, o *observed) []string {
		r := o.result
		if r.Status != status || exit >= 0 && (r.ExitCode == nil || *r.ExitCode != exit) {
			want := string(status)
			if exit >= 0 {
				want += fmt.Sprintf(", code %d", exit)
			}
			return []string{fmt.Sprintf("it ended with %s%s and not with %s", r.Status, code(r), want)}
		}
		if limit != "" && !slices.Contains(r.LimitsHit, limit) {
			return []string{fmt.Sprintf("the limits hit are %q and lack %s", r.LimitsHit, limit)}
		}
		return nil
	}
}

// all joins judgements.
func all(parts ...func(*laboratory, *observed) []string) func(*laboratory, *observed) []string {
	return func(l *laboratory, o *observed) []string {
		var found []string
		for _, part := range parts {
			found = append(found, part(l, o)...)
		}
		return found
	}
}

// atMost demands that a measured number is known and not above a bound.
func atMost(what string, bound int64, of func(o *observed) *int64) func(*laboratory, *observed) []string {
	return func(_ *laboratory, o *observed) []string {
		switch n := of(o); {
		case n == nil:
			return []string{what + " was not measured"}
		case *n > bound:
			return []string{fmt.Sprintf("%s was %d, with a bound of %d", what, *n, bound)}
		}
		return nil
	}
}
