package drivertest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"glovebox"
	"glovebox/driver"
	"glovebox/internal/boot"
)

// warmCases are about interpreters that wait for their code.
var warmCases = map[string]func(*bench){
	"held: code, arguments, variables and input arrive": caseHeld,
	"held: the fence is that of what is made for a run": caseHeldFence,
	"held: another command, a second one, late limits":  caseHeldRefuses,
	"held: the limits of the run hold":                  caseHeldLimits,
	"held: what is not used leaves nothing":             caseHeldUnused,
	"held: given up at any instant":                     caseHeldInstants,
	"held: its end is told":                             caseHeldLost,
}

// holding is a Hold and what is asked of it.
type holding struct {
	driver.Hold
	b *bench
}

var suffixes = map[string]string{"python": ".py", "node": ".js", "bash": ".sh"}

// hold is an interpreter that waits for its code.
func (b *bench) hold(lang string) holding {
	b.Helper()
	name := "main" + suffixes[lang]
	h := driver.Hold{Lang: lang, Memory: 128 * glovebox.MiB, Command: driver.Command{CodeName: name, Dir: "/workspace",
		Argv: boot.Cold(lang, b.subject.Interpreters[lang], "/code/"+name),
		Env:  []string{"PATH=/usr/bin:/bin", "HOME=/workspace", "LANG=C.UTF-8", "TMPDIR=/tmp"}}}
	return holding{h, b}
}

// ask is the command that releases code to it.
func (h holding) ask(code string, args ...string) driver.Command {
	cmd := h.Command
	cmd.Argv, cmd.Code = slices.Concat(cmd.Argv, args), []byte(code)
	return cmd
}

// codeOf is a program that becomes the probe.
func codeOf(lang string, args ...string) string {
	words := make([]string, len(args))
	for i, a := range append([]string{probePath}, args...)[1:] {
		words[i] = strconv.Quote(a)
	}
	list := strings.Join(words, ", ")
	switch lang {
	case "python":
		return fmt.Sprintf("import os\nos.execv(%q, [%q, %s])\n", probePath, probePath, list)
	case "node":
		return fmt.Sprintf("const r = require('child_process').spawnSync(%q, [%s], {stdio: 'inherit'})\n"+
			"process.exitCode = r.status\n", probePath, list)
	}
	return fmt.Sprintf("exec %s %s\n", probePath, strings.Join(words, " "))
}

func (b *bench) warmer() driver.Warmer {
	b.Helper()
	w, ok := b.driver.(driver.Warmer)
	if !ok {
		b.Fatal("interpreters are named, and the driver has nothing ready")
	}
	if len(b.subject.Interpreters) == 0 {
		b.Fatal("the driver has interpreters ready, and the subject names none")
	}
	return w
}

// languages are those that the driver has ready, in order.
func (b *bench) languages() (all []string) {
	b.Helper()
	w := b.warmer()
	for _, lang := range slices.Sorted(maps.Keys(b.subject.Interpreters)) {
		if w.Sizes(b.hold(lang).Hold).Alone > 0 {
			all = append(all, lang)
		}
	}
	if len(all) == 0 {
		b.Fatal("the driver has no language ready")
	}
	return all
}

// waiting makes a sandbox whose interpreter waits; it is closed at the end of the case.
func (b *bench) waiting(lang string) driver.HeldSandbox {
	b.Helper()
	h := b.hold(lang).Hold
	h.Memory = b.warmer().Sizes(h).Alone
	s, err := b.warmer().Hold(b.context(), b.spec(), h)
	if err != nil {
		b.Fatalf("hold %s: %v", lang, err)
	}
	return b.closing(s)
}

func (b *bench) closing(s driver.HeldSandbox) driver.HeldSandbox {
	b.Cleanup(func() {
		if err := s.Close(b.context()); err != nil {
			b.Errorf("close: %v", err)
		}
	})
	return s
}

// heldBeside is what waits, beside another that does: copies of a template where there are any.
func (b *bench) heldBeside(lang string) driver.HeldSandbox {
	b.Helper()
	h := b.hold("python").Hold
	if b.subject.Interpreters["python"] != "" && lang == "python" && b.warmer().Sizes(h).Copy > 0 {
		spec := b.spec()
		spec.Limits.Memory = b.warmer().Sizes(h).Template
		h.Memory = b.warmer().Sizes(h).Copy
		tm, err := b.warmer().Template(b.context(), spec, h)
		if err == nil {
			b.copied(tm)
			return b.copied(tm)
		}
		if !errors.Is(err, driver.ErrNoTemplates) {
			b.Fatal(err)
		}
	}
	b.waiting(lang)
	return b.waiting(lang)
}

// release gives code to what waits, with the limits of the bench.
func (b *bench) release(s driver.HeldSandbox, lang, code string, args ...string) *running {
	b.Helper()
	if err := s.Resize(b.limits); err != nil {
		b.Fatalf("resize: %v", err)
	}
	return b.exec(s, b.hold(lang).ask(code, args...))
}

// heldSays runs the probe in what waits and returns its lines.
func (b *bench) heldSays(s driver.HeldSandbox, lang string, args ...string) []string {
	b.Helper()
	r := b.release(s, lang, codeOf(lang, args...))
	b.wantExit(r, b.exit(r), 0)
	return strings.Split(strings.TrimSuffix(r.out.String(), "\n"), "\n")
}

func caseHeld(b *bench) {
	codes := map[string]string{
		"python": "import os, sys\nprint(sys.argv[1:], os.environ['A'], sys.stdin.read(), os.getcwd())",
		"node": "const fs = require('fs')\nconsole.log(JSON.stringify(process.argv.slice(2)), process.env.A, " +
			"fs.readFileSync(0, 'utf8'), process.cwd())",
		"bash": `echo "$*" "$A" "$(cat)" "$PWD"`,
	}
	for _, lang := range b.languages() {
		s := b.waiting(lang)
		select {
		case <-s.Lost():
			b.Fatalf("%s: it is lost before it was used", lang)
		default:
		}
		if err := s.Resize(b.limits); err != nil {
			b.Fatalf("%s: resize: %v", lang, err)
		}
		cmd := b.hold(lang).ask(codes[lang], "x", "y z")
		cmd.Env = append(slices.Clone(cmd.Env), "A=b c")
		cmd.Stdin = strings.NewReader("typed")
		before := time.Now()
		r := b.exec(s, cmd)
		b.wantExit(r, b.exit(r), 0)
		for _, word := range []string{"x", "y z", "b c", "typed", "/workspace"} {
			if !strings.Contains(r.out.String(), word) {
				b.Errorf("%s: %q lacks %q", lang, r.out.String(), word)
			}
		}
		if at := r.Released(); at.Before(before) {
			b.Errorf("%s: released at %v, before there was code", lang, at)
		}
	}
}

// own are lines of a posture that belong to one sandbox.
func own(name string) bool {
	name = strings.TrimPrefix(strings.TrimPrefix(name, inGuest), aroundGuest)
	return slices.Contains([]string{"user", "cgroup_cpuset", "cgroup_memory", "cgroup_sockets"}, name)
}

func caseHeldFence(b *bench) {
	cold := b.exec(b.start(), probe("facts"))
	b.wantExit(cold, b.exit(cold), 0)
	was := b.parse([]string{cold.out.String()})
	for _, lang := range b.languages() {
		r := b.release(b.waiting(lang), lang, codeOf(lang, "facts"))
		b.wantExit(r, b.exit(r), 0)
		b.sameFence(lang, cold.Posture(), r.Posture(), was, b.parse([]string{r.out.String()}))
	}
}

// sameFence demands that what waited is held as what was made for a run is.
func (b *bench) sameFence(who string, cold, held glovebox.Posture, was, is facts) {
	b.Helper()
	b.nobody(is)
	b.neutral(is)
	b.truthful(held, is)
	for name := range cold {
		if cold[name] != held[name] && !own(name) {
			b.Errorf("%s: posture %s is %q and not %q", who, name, held[name], cold[name])
		}
	}
	for _, name := range []string{"Uid", "Gid", "Groups", "CapBnd", "CapEff", "NoNewPrivs", "Seccomp", "hostname", "interfaces",
		"cpus", "nofile", "core", "fd", "memlock"} {
		if a, b2 := was.one(name), is.one(name); a != b2 {
			b.Errorf("%s: %s is %q and not %q", who, name, b2, a)
		}
	}
	places := func(f facts) (all []string) {
		for _, line := range f["mounts"] {
			if fields := strings.Fields(line); len(fields) > 5 {
				all = append(all, fields[4]+" "+fields[5])
			}
		}
		slices.Sort(all)
		return all
	}
	if a, b2 := places(was), places(is); !slices.Equal(a, b2) {
		b.Errorf("%s: mounts are %q and not %q", who, b2, a)
	}
}

func caseHeldRefuses(b *bench) {
	lang := b.languages()[0]
	s, h := b.waiting(lang), b.hold(lang)
	for what, change := range map[string]func(*glovebox.Limits){
		"disk": func(l *glovebox.Limits) { l.Disk *= 2 }, "files": func(l *glovebox.Limits) { l.Files++ },
		"open files": func(l *glovebox.Limits) { l.OpenFiles-- }, "CPUs": func(l *glovebox.Limits) { l.CPUs = 0.5 },
	} {
		l := b.limits
		if change(&l); s.Resize(l) == nil {
			b.Errorf("it was resized to other %s", what)
		}
	}
	if err := s.Resize(b.limits); err != nil {
		b.Fatalf("resize to its own limits: %v", err)
	}
	for what, change := range map[string]func(*driver.Command){
		"program":   func(c *driver.Command) { c.Argv[0] = "/bin/true" },
		"code name": func(c *driver.Command) { c.CodeName = "other" },
		"folder":    func(c *driver.Command) { c.Dir = "/tmp" },
		"no code":   func(c *driver.Command) { c.Code = nil },
	} {
		cmd := h.ask("exit 0")
		cmd.Argv = slices.Clone(cmd.Argv)
		change(&cmd)
		if p, err := s.Exec(b.context(), cmd); err == nil {
			p.Kill(b.context())
			b.Fatalf("it was used with another %s", what)
		}
	}
	r := b.exec(s, h.ask(codeOf(lang, "spin", "1")))
	b.wantExit(r, b.exit(r), 0)
	if p, err := s.Exec(b.context(), h.ask(codeOf(lang, "spin", "1"))); err == nil {
		p.Kill(b.context())
		b.Error("it was used twice")
	}
	if s.Resize(b.limits) == nil {
		b.Error("it was resized after its use")
	}
}

// boundBy demands that what waited holds limits that it got at the last moment.
func (b *bench) boundBy(make func() driver.HeldSandbox, lang string) {
	b.Helper()
	b.limits.Memory, b.limits.Processes = edge, 24
	for _, c := range []struct {
		size glovebox.Size
		fits bool
	}{{edge * 95 / 100, true}, {edge + b.driver.Overhead() + edge/5, false}} {
		r := b.release(b.closing(make()), lang, codeOf(lang, "alloc", "plain", strconv.FormatInt(int64(c.size), 10)))
		b.exit(r)
		s, err := r.Sample()
		if has := strings.HasPrefix(r.out.String(), "has"); err != nil || has != c.fits || (s.OOMKills > 0) == c.fits {
			b.Errorf("%v of %v: has it: %v, %+v, %v; stderr %.300s", c.size, edge, has, s, err, r.err.String())
		}
	}
	r := b.release(b.closing(make()), lang, codeOf(lang, "thread", "100"))
	e := b.exit(r)
	if s, err := r.Sample(); err != nil || s.ForksRefused == 0 || s.ProcessesPeak > b.limits.Processes ||
		e.Code == 0 && e.Signal == 0 {
		b.Errorf("100 threads at a limit of %d: %+v, %v", b.limits.Processes, s, err)
	}
}

func caseHeldLimits(b *bench) {
	lang := b.languages()[0]
	b.boundBy(func() driver.HeldSandbox {
		spec := b.spec()
		spec.Limits.Memory, spec.Limits.Processes = testLimits.Memory, testLimits.Processes // what a spare is made with
		h := b.hold(lang).Hold
		h.Memory = b.warmer().Sizes(h).Alone
		s, err := b.warmer().Hold(b.context(), spec, h)
		if err != nil {
			b.Fatalf("hold: %v", err)
		}
		return s
	}, lang)
}

func caseHeldUnused(b *bench) {
	before := b.offspring()
	for _, lang := range b.languages() {
		s := b.waiting(lang)
		for range 2 {
			if err := s.Close(b.context()); err != nil {
				b.Errorf("%s: close: %v", lang, err)
			}
		}
		b.within("loss of what was closed", s.Lost())
		if p, err := s.Exec(b.context(), b.hold(lang).ask("exit 0")); err == nil {
			p.Kill(b.context())
			b.Errorf("%s: closed it ran a program", lang)
		}
	}
	b.nothingLeft(before)
}

func caseHeldInstants(b *bench) {
	lang := b.languages()[0]
	took := measured(func() { b.waiting(lang) })
	b.rounds(took+took/2, func(delay time.Duration) {
		ctx, cancel := context.WithCancel(b.context())
		timer := time.AfterFunc(delay, cancel)
		defer timer.Stop()
		defer cancel()
		s, err := b.warmer().Hold(ctx, b.spec(), b.hold(lang).Hold)
		if err != nil {
			if errors.Is(err, driver.ErrLeftBehind) {
				b.Errorf("given up after %v: %v", delay, err)
			}
			return
		}
		if err := s.Close(b.context()); err != nil {
			b.Errorf("given up after %v: close: %v", delay, err)
		}
	})
}

func caseHeldLost(b *bench) {
	for _, lang := range b.languages() {
		s := b.waiting(lang)
		r := b.release(s, lang, codeOf(lang, "sleep"))
		select {
		case <-s.Lost():
			b.Errorf("%s: it is lost while its program runs", lang)
		case <-time.After(20 * time.Millisecond):
		}
		if err := r.Kill(b.context()); err != nil {
			b.Errorf("kill: %v", err)
		}
		b.within("loss of what has ended", s.Lost())
		b.within("end of the streams", waited(&r.read))
	}
}
