package bench

import (
	"context"
	"maps"
	"slices"
	"strings"

	"glovebox"
)

// Names of subjects that the bars compare.
const (
	bareName   = "interpreter, unprotected"
	bwrapName  = "bubblewrap"
	coldName   = "glovebox run"
	engineName = "engine, cold"
	warmName   = "glovebox serve"
	defaults   = " (default trust)"
)

// prepare finds out what can be measured here and makes the subjects. The server is started later.
func (b *bench) prepare(ctx context.Context) error {
	config, err := b.configuration("engine", nil)
	if err != nil {
		return glovebox.Internal("write a configuration", err)
	}
	if b.engine, err = b.cfg.Engine(config); err != nil {
		return err
	}
	found, err := b.engine.Doctor(ctx)
	if err != nil {
		return err
	}
	if !found.Ready {
		return glovebox.Errorf(glovebox.CodeUnavailable, "run `glovebox doctor`, which tells what is missing",
			"this machine cannot run anything yet, so there is nothing to measure")
	}
	b.programs = map[string]string{}
	for _, image := range found.Images {
		if image.Name != "host" { // what is compared with runs on the host itself
			continue
		}
		for lang, program := range image.Languages { // the path, perhaps a version
			b.programs[lang], _, _ = strings.Cut(program, " ")
		}
		b.workloads = slices.DeleteFunc(workloads(), func(j workload) bool {
			switch {
			case len(b.cfg.Workloads) > 0 && !slices.Contains(b.cfg.Workloads, j.name):
				return true
			case image.Languages[j.lang] == "":
				b.note("%s: left out, there is no %s: %s", j.title(), j.lang, image.Missing[j.lang])
				return true
			case j.needs != "" && !slices.Contains(image.Packages, j.needs):
				b.note("%s: left out, python has no %s", j.title(), j.needs)
				return true
			case b.cfg.Quick && j.lang != "python":
				return true
			}
			return false
		})
	}
	if len(b.workloads) == 0 {
		return glovebox.Errorf(glovebox.CodeUnavailable, "install python3, or choose other workloads",
			"no workload can be run here")
	}
	b.higher = higherRungs(found.Controls)
	if b.cfg.Growth {
		return nil
	}
	return b.prepareSubjects(ctx)
}

// higherRungs are the rungs above process of which this machine has all that they need, the lowest first.
func higherRungs(controls []glovebox.Control) []glovebox.Isolation {
	lacking := map[glovebox.Isolation]bool{}
	var rungs []glovebox.Isolation
	for _, c := range controls {
		lacking[c.Isolation] = lacking[c.Isolation] || c.Required && !c.Available
		if c.Isolation.Rank() > glovebox.IsolationProcess.Rank() && !slices.Contains(rungs, c.Isolation) {
			rungs = append(rungs, c.Isolation)
		}
	}
	rungs = slices.DeleteFunc(rungs, func(rung glovebox.Isolation) bool { return lacking[rung] })
	slices.SortFunc(rungs, func(a, b glovebox.Isolation) int { return a.Rank() - b.Rank() })
	return rungs
}

// higherWorkloads are what rungs above the process rung are measured with: the least that a run costs, and the most.
var higherWorkloads = []string{"print", "pandas"}

// above is the fence of a higher rung, and its name behind a subject's.
func above(rung glovebox.Isolation) (fence, string) {
	return fence{glovebox.TrustModel, rung}, ", " + string(rung)
}

func (b *bench) prepareSubjects(ctx context.Context) error {
	languages := slices.Sorted(maps.Keys(b.programs))
	dir, err := b.folder("bare")
	if err != nil {
		return glovebox.Internal("make a folder", err)
	}
	b.subjects = []*subject{{name: bareName, rung: "none", langs: languages, burst: true,
		run: func(ctx context.Context, j workload) outcome {
			return startCommand(ctx, dir, interpreted(b.programs[j.lang], j.lang, j.code))
		}}}
	for _, s := range []*subject{b.bubblewrap(), b.container("crun"), b.container("runc"), b.container("runsc")} {
		if s != nil && b.works(ctx, s) {
			b.subjects = append(b.subjects, s)
		}
	}
	config, err := b.configuration("run", nil)
	if err != nil {
		return glovebox.Internal("write a configuration", err)
	}
	command := func(f fence) func(context.Context, workload) outcome {
		return func(ctx context.Context, j workload) outcome {
			argv := append([]string{b.cfg.Program, "--config", config, "--local", "run", "--lang", j.lang}, f.flags()...)
			return startCommand(ctx, dir, append(argv, "-c", j.code))
		}
	}
	python := []string{"python"}
	b.subjects = append(b.subjects,
		&subject{name: coldName, rung: "process", langs: languages, burst: true, run: command(processFence)},
		&subject{name: coldName + defaults, rung: "default", above: true, langs: python, workloads: []string{"print"},
			run: command(fence{})},
		&subject{name: engineName, rung: "process", langs: python, run: b.ask(b.engine, processFence), meter: ownCPU,
			settle: func(ctx context.Context) { wait(ctx, 2*pause) }, ended: b.ended(b.engine)})
	for _, rung := range b.higher {
		f, name := above(rung)
		b.subjects = append(b.subjects, &subject{name: coldName + name, rung: string(rung), above: true, langs: python,
			workloads: higherWorkloads, run: command(f)})
	}
	return nil
}

// works runs the shortest workload once in a sandbox that is not ours, and says why it is left out when that fails.
func (b *bench) works(ctx context.Context, s *subject) bool {
	i := slices.IndexFunc(b.workloads, s.does)
	if i < 0 {
		return false
	}
	j := b.workloads[i]
	o := s.run(ctx, j)
	if o.err == nil && string(o.out) == j.want {
		return true
	}
	why := "it printed something else"
	if o.err != nil {
		why = o.err.Error()
	}
	b.note("%s: left out, it does not work here: %s", s.name, why)
	return false
}

// addServer starts the server and makes the subjects that are answered by it from spares.
func (b *bench) addServer(ctx context.Context) error {
	b.progress("starting a server")
	s, err := b.serve(ctx, nil)
	if err != nil {
		return glovebox.Internal("start a server", err)
	}
	for _, j := range b.workloads {
		if !b.warm(ctx, s, processFence, j) && ctx.Err() == nil {
			b.note("%s, %s: the server never answered from a spare within %v", warmName, j.title(), startLimit)
		}
	}
	meter := s.cpu
	if err := s.findUsage(); err != nil {
		b.note("%s: its CPU time is not known: %v", warmName, err)
		meter = nil
	}
	languages := slices.Sorted(maps.Keys(b.programs))
	warm := func(f fence, name, rung string, langs, workloads []string, burst bool) {
		b.subjects = append(b.subjects, &subject{name: name, rung: rung, langs: langs, workloads: workloads, burst: burst,
			above: rung != "process", spares: true, run: b.ask(s.client, f), meter: meter, unmetered: meter == nil, coarse: true,
			settle: s.settle, ended: b.ended(s.client)})
	}
	warm(processFence, warmName, "process", languages, nil, true)
	warm(fence{}, warmName+defaults, "default", []string{"python"}, []string{"print"}, false)
	for _, rung := range b.higher {
		f, name := above(rung)
		warm(f, warmName+name, string(rung), []string{"python"}, higherWorkloads, false)
	}
	b.warmed = s
	return nil
}
