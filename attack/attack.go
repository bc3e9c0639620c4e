package attack

import (
	"context"
	"slices"
	"strings"
	"time"

	"glovebox"
)

// Verdict is what came of one program.
type Verdict string

// The verdicts.
const (
	Held     Verdict = "held"      // seen from outside
	Said     Verdict = "said"      // only the program's own word is there to go by: it says that it got nothing
	Broke    Verdict = "broke"     // a fence let something through
	NotTried Verdict = "not_tried" // it could not do its work here, so nothing is known
)

// Program is one entry of the battery.
type Program struct {
	ID         string `json:"id"`
	Axis       string `json:"axis"`
	Tries      string `json:"tries"`      // in one line
	Judged     string `json:"judged"`     // by what it is judged, besides what holds for all
	Disposable bool   `json:"disposable"` // it exhausts something: run it where that does no harm
	// Differs says what is judged otherwise on the rung that it ran on than on the process rung, and why; empty for most.
	Differs string `json:"differs,omitempty"`

	file   string                                            // in programs; what is run
	args   func(l *laboratory) []string                      // what it sees as its arguments
	ask    func(l *laboratory, r *glovebox.Request)          // what else it asks for
	said   bool                                              // only its word can be had
	free   bool                                              // it need not come to its end: how it ends is judged
	look   look                                              // at its processes, once it holds what it got; then it is ended
	sign   string                                            // what it prints when it is ready for that; empty means "held"
	inside []string                                          // what it may say that it got (see variant)
	with   *Program                                          // somebody else's run that lives beside it, or was before it
	then   func(l *laboratory, o *observed) (broke []string) // the judgement, after it has ended
}

// Config is what a battery is run with.
type Config struct {
	// Service runs the programs; Who asks.
	Service glovebox.Service
	Who     glovebox.Principal
	// Isolation is the rung asked for, and Trust what is said of where the programs come from; empty means the policy's choice.
	Isolation glovebox.Isolation
	Trust     glovebox.Trust
	// Folders are folders of the host in which files worth stealing are planted: absolute, the caller's own. Those in which
	// nothing can be made are left out.
	Folders []string
	// Axes chooses; empty means all. Disposable allows the programs that exhaust something.
	Axes       []string
	Disposable bool
	// Progress is told before each program; nil tells nobody.
	Progress func(n, of int, p Program)
	// Proc is where the host's processes are seen; empty means /proc.
	Proc string
	// Unnamed gives no program a name, so that what a Service has ready may serve it. Then Sandbox must tell under which name
	// the control groups of a run's sandbox are, from its start on; nil means that of the run.
	Unnamed bool
	Sandbox func(run string) string

	teardown time.Duration // until nothing may be left of sandboxes whose runs have ended; zero means 10 s
}

// Outcome is one program and what came of it.
type Outcome struct {
	Program
	Verdict Verdict `json:"verdict"`
	// Reason says why it was not tried.
	Reason string `json:"reason,omitempty"`
	// Found is what was seen from outside that must not be.
	Found []string `json:"found,omitempty"`
	// Claims are what the program says that it got.
	Claims []glovebox.Untrusted `json:"claims,omitempty"`
	// Run is the id of its record; Start how its sandbox began (see glovebox.Result).
	Run    string `json:"run,omitempty"`
	Start  string `json:"start,omitempty"`
	TookMS int64  `json:"took_ms"`
}

// Count is how many programs there are of each verdict.
type Count struct {
	Held     int `json:"held"`
	Said     int `json:"said"`
	Broke    int `json:"broke"`
	NotTried int `json:"not_tried"`
}

// Report is what came of a battery.
type Report struct {
	// OK is true when something was tried and nothing broke.
	OK        bool               `json:"ok"`
	Isolation glovebox.Isolation `json:"isolation"` // the rung that the programs ran on
	Posture   glovebox.Posture   `json:"posture"`   // what was in force
	Total     Count              `json:"total"`
	Axes      map[string]Count   `json:"axes"`
	Programs  []Outcome          `json:"programs"`
}

// Axes names the axes in the order in which they are shown, with what each is about.
func Axes() [][2]string {
	return [][2]string{
		{"FS", "files"}, {"NT", "network"}, {"CR", "credentials"}, {"RS", "compute, time and memory"}, {"KS", "kernel surface"},
		{"IL", "what the host tells"}, {"LT", "lifetime"}, {"OU", "output"}, {"CT", "honest programs work"},
	}
}

// Programs is the battery, in the order of the axes.
func Programs() []Program {
	return slices.Concat(files(), network(), credentials(), resources(), exhaustion(), kernel(), information(), lifetime(),
		outputs(), honest(), []Program{atTheEnd()})
}

// Run runs the battery, one program at a time, and takes back what it planted. The error is that it could not be run
// at all, or
// was cancelled: then the report holds what was done until then. A program that broke out is no error.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	return run(ctx, cfg, Programs())
}

func run(ctx context.Context, cfg Config, all []Program) (_ *Report, err error) {
	if cfg.Proc == "" {
		cfg.Proc = "/proc"
	}
	if cfg.teardown == 0 {
		cfg.teardown = 10 * time.Second
	}
	if cfg.Sandbox == nil {
		cfg.Sandbox = func(run string) string { return run }
	}
	if err := CheckAxes(cfg.Axes); err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(slices.Clone(all), func(p Program) bool {
		return p.file == "" || len(cfg.Axes) > 0 && !slices.Contains(cfg.Axes, p.Axis)
	})
	l, err := makeLaboratory(cfg)
	if err != nil {
		return nil, err
	}
	defer func() { err = l.close(err) }()
	r := &Report{Isolation: cfg.Isolation, Axes: map[string]Count{}, Programs: []Outcome{}}
	for n, p := range all {
		if ctx.Err() != nil {
			break
		}
		if cfg.Progress != nil {
			cfg.Progress(n, len(all), p)
		}
		o, fatal := l.attack(ctx, p.on(cfg.Isolation), r)
		if ctx.Err() != nil {
			break // what was interrupted tells nothing
		}
		r.add(o)
		if fatal != nil {
			return r, fatal
		}
	}
	tried := r.Total.Held+r.Total.Said > 0
	if last := atTheEnd(); len(l.runs) > 0 && ctx.Err() == nil {
		o := Outcome{Program: last, Verdict: Held, Found: l.remains(ctx)}
		if o.Found != nil {
			o.Verdict = Broke
		}
		r.add(o)
	}
	r.OK = r.Total.Broke == 0 && tried
	if ctx.Err() != nil {
		r.OK = false
		return r, glovebox.Errorf(glovebox.CodeConflict, "start it again", "the battery was interrupted")
	}
	return r, nil
}

// CheckAxes refuses an axis that there is not. The error is a *glovebox.Error.
func CheckAxes(axes []string) error {
	var known []string
	for _, a := range Axes() {
		known = append(known, a[0])
	}
	for _, axis := range axes {
		if !slices.Contains(known, axis) {
			return glovebox.Errorf(glovebox.CodeInvalid, "name one of "+strings.Join(known, ", "), "there is no axis %.20q", axis)
		}
	}
	return nil
}

// atTheEnd is the one entry that runs no program.
func atTheEnd() Program {
	return Program{ID: "LT-16", Axis: "LT", Tries: "all of the above: a sandbox outlives its run",
		Judged: "the host's processes"}
}

func (r *Report) add(o Outcome) {
	r.Programs = append(r.Programs, o)
	c := r.Axes[o.Axis]
	for _, count := range []*Count{&c, &r.Total} {
		switch o.Verdict {
		case Held:
			count.Held++
		case Said:
			count.Said++
		case Broke:
			count.Broke++
		default:
			count.NotTried++
		}
	}
	r.Axes[o.Axis] = c
}
