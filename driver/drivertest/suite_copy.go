package drivertest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"glovebox"
	"glovebox/driver"
)

// copyCases are about templates and what is copied of them.
var copyCases = map[string]func(*bench){
	"template: a copy gets a network as a cold sandbox does":  caseCopyNetwork,
	"template: copies share no chance and are apart":          caseCopies,
	"template: inputs are a copy's own":                       caseCopyInputs,
	"template: its end is told, and is the end of its copies": caseTemplateEnds,
	"template: a copy holds the limits of its run":            caseCopyLimits,
}

// template makes one of Python, or ends the case where the driver has none and says so.
func (b *bench) template(inputs string) driver.Template {
	b.Helper()
	const lang = "python"
	if b.subject.Interpreters[lang] == "" {
		b.Skip("the image has no " + lang)
	}
	w := b.warmer()
	h, spec := b.hold(lang).Hold, b.spec()
	h.Memory = w.Sizes(h).Copy
	spec.Limits.Memory, spec.Inputs = w.Sizes(b.hold(lang).Hold).Template, inputs
	tm, err := w.Template(b.context(), spec, h)
	if err != nil {
		b.Fatalf("template: %v", err)
	}
	b.Cleanup(func() {
		if err := tm.Close(b.context()); err != nil {
			b.Errorf("close of the template: %v", err)
		}
	})
	return tm
}

// refusesTemplates holds a driver without templates to its word: it says so by name, and makes nothing.
func refusesTemplates(b *bench) {
	spec := b.spec()
	tm, err := b.warmer().Template(b.context(), spec, b.hold("python").Hold)
	if err == nil {
		b.Errorf("close: %v", tm.Close(b.context()))
		b.Fatal("it made a template, though it is said to have none")
	}
	var known *glovebox.Error
	if !errors.Is(err, driver.ErrNoTemplates) || !errors.As(err, &known) || known.Code != glovebox.CodeUnavailable {
		b.Errorf("a template is refused with %v, want code unavailable and ErrNoTemplates", err)
	}
	if sizes := b.warmer().Sizes(b.hold("python").Hold); sizes.Copy != 0 || sizes.Template != 0 {
		b.Errorf("sizes are %+v, want none of copies and templates", sizes)
	}
}

// copied makes a copy.
func (b *bench) copied(tm driver.Template) driver.HeldSandbox {
	b.Helper()
	s, err := tm.Fork(b.context(), b.spec())
	if err != nil {
		b.Fatalf("fork: %v", err)
	}
	return b.closing(s)
}

func caseCopies(b *bench) {
	tm, word := b.template(""), "pair-"+b.mark
	if o := tm.Origin(); o != driver.StartFork && o != driver.StartRestored {
		b.Errorf("its copies began as %q", o)
	}
	cold := b.exec(b.start(), probe("facts"))
	b.wantExit(cold, b.exit(cold), 0)
	was := b.parse([]string{cold.out.String()})
	one, other, third := b.copied(tm), b.copied(tm), b.copied(tm)
	if err := one.Resize(b.limits); err != nil {
		b.Fatal(err)
	}
	r, lines := b.talk(one, b.hold("python").ask(codeOf("python", "serve", word)))
	at := strings.Fields(b.await(lines, "at "))
	ways := []string{"try", "tcp:" + at[1], "unix:@" + word, "signal:"}
	b.mustNot(b.heldSays(other, "python", ways...), len(ways)-1)
	last := b.release(third, "python", codeOf("python", "facts"))
	b.wantExit(last, b.exit(last), 0)
	f := b.parse([]string{last.out.String()})
	b.sameFence("a copy", cold.Posture(), last.Posture(), was, f)
	if found := strings.Join(b.heldSays(b.copied(tm), "python", "find", word, "/"), ""); found != "" {
		b.Errorf("a copy has what another made: %s", found)
	}
	r.hangUp()
	for line := range lines {
		b.Errorf("the first copy: %s", line)
	}
	b.wantExit(r.running, b.exit(r.running), 0)
	b.differ(f, b.parse(b.heldSays(b.copied(tm), "python", "facts")))
	b.noChance(tm)
}

// noChance compares what the interpreter itself draws.
func (b *bench) noChance(tm driver.Template) {
	b.Helper()
	const code = "import os, random, secrets, tempfile, uuid\n" +
		"print(random.random(), secrets.token_hex(8), uuid.uuid4(), os.urandom(8).hex(), tempfile.mktemp())"
	seen := map[string]int{}
	for n := range 3 {
		r := b.release(b.copied(tm), "python", code)
		b.wantExit(r, b.exit(r), 0)
		words := strings.Fields(r.out.String())
		for _, w := range words {
			if before, ok := seen[w]; ok {
				b.Errorf("copies %d and %d both drew %s", before, n, w)
			}
			seen[w] = n
		}
		if len(words) != 5 {
			b.Errorf("a copy drew %q", words)
		}
	}
}

func caseCopyInputs(b *bench) {
	all := b.TempDir()
	for dir := all; len(dir) > 1 && os.Chmod(dir, 0o755) == nil && filepath.Dir(dir) != os.TempDir(); dir = filepath.Dir(dir) {
	}
	tm := b.template(all)
	for n := range 2 {
		spec := b.spec()
		spec.Inputs = filepath.Join(all, strconv.Itoa(n))
		if err := os.Mkdir(spec.Inputs, 0o755); err != nil {
			b.Fatal(err)
		}
		s, err := tm.Fork(b.context(), spec)
		if err != nil {
			b.Fatalf("fork: %v", err)
		}
		b.closing(s)
		// They come after the copy, as a run's do.
		if err := os.WriteFile(filepath.Join(spec.Inputs, "a"), fmt.Appendf(nil, "input %d", n), 0o666); err != nil {
			b.Fatal(err)
		}
		r := b.release(s, "python", fmt.Sprintf("import os, subprocess\nprint(os.listdir('/inputs'), open('/inputs/a').read())\n"+
			"subprocess.run([%q, 'change', '/inputs/a'])", probePath))
		b.wantExit(r, b.exit(r), 0)
		first, rest, _ := strings.Cut(strings.TrimSpace(r.out.String()), "\n")
		lines := strings.Split(rest, "\n")
		if want := fmt.Sprintf("['a'] input %d", n); first != want && !slices.Contains(lines, want) {
			b.Errorf("inputs are %q, want %q", r.out.String(), want)
		}
		lines = slices.DeleteFunc(append(lines, first), func(l string) bool { return strings.HasPrefix(l, "['a']") })
		b.mustNot(lines, 14)
	}
	spec := b.spec()
	spec.Inputs = b.TempDir()
	if s, err := tm.Fork(b.context(), spec); err == nil {
		s.Close(b.context())
		b.Error("a copy was given inputs that are not below its template's")
	}
}

func caseTemplateEnds(b *bench) {
	tm := b.template("")
	waits := b.copied(tm)
	s := b.copied(tm)
	r := b.release(s, "python", codeOf("python", "sleep"))
	for range 2 {
		if err := tm.Close(b.context()); err != nil {
			b.Fatalf("close: %v", err)
		}
	}
	b.within("word of the template's end", tm.Ended())
	b.within("loss of the copy that waits", waits.Lost())
	b.within("loss of the copy that runs", s.Lost())
	b.within("end of its program", r.Exited())
	if e := r.Exit(); !e.Lost && e.Signal == 0 {
		b.Errorf("its program's end is %+v", e)
	}
	b.within("end of the streams", waited(&r.read))
	if s, err := tm.Fork(b.context(), b.spec()); err == nil {
		s.Close(b.context())
		b.Error("an ended template makes copies")
	}
}

func caseCopyLimits(b *bench) {
	tm := b.template("")
	b.boundBy(func() driver.HeldSandbox {
		spec := b.spec()
		spec.Limits.Memory, spec.Limits.Processes = testLimits.Memory, testLimits.Processes
		s, err := tm.Fork(b.context(), spec)
		if err != nil {
			b.Fatalf("fork: %v", err)
		}
		return s
	}, "python")
}
