package netlab_test

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

//go:embed testdata/prelude.py
var prelude string

// usual is what most tries may reach.
var usual = []string{"good.test", "bound.test", "echo.test", "*.wild.test"}

// decision is one that must be in the records. An empty reason is one that allowed it.
type decision struct{ host, reason string }

// A try is one line of the battery, and what must come of it. The internet's own view decides; what the program says comes after.
type try struct {
	name    string
	lang    string
	allow   []string // nil is usual; empty is none
	flags   []string
	code    string
	says    []string // what must be in its output, in any order
	never   []string // what must not be
	dialled []string // exactly the servers that saw a connection
	asked   []string // exactly the names that the name server was asked for
	decided []decision
	long    bool              // for the long form alone
	then    func(ended) error // what else is judged
}

// judge runs one try and judges it.
func (x try) judge(t *testing.T, r *rig) {
	t.Helper()
	code := x.code
	if x.lang == "" {
		code = prelude + code
	}
	allow := x.allow
	if allow == nil {
		allow = usual
	}
	e := r.run(t, trial{lang: x.lang, code: code, allow: allow, flags: x.flags})
	if e.Error != nil || e.Status != "exited" || e.exit != 0 {
		t.Errorf("the program did not do its work")
	}
	for _, s := range x.says {
		if !strings.Contains(e.out, s) {
			t.Errorf("it does not say %q", s)
		}
	}
	for _, s := range x.never {
		if strings.Contains(e.out, s) {
			t.Errorf("it says %q", s)
		}
	}
	if got := e.dialled(); !slices.Equal(got, x.dialled) {
		t.Errorf("servers saw connections at %q, want %q", got, x.dialled)
	}
	if got := e.asked(); !slices.Equal(got, x.asked) {
		t.Errorf("the name server was asked for %q, want %q", got, x.asked)
	}
	for _, p := range e.seen.Packets { // whatever a program tries, no other kind of packet and no other place
		to := p.To.String()
		if p.Proto == "udp" && to == "10.77.0.2:53" || p.Proto == "tcp" && (slices.Contains(x.dialled, to) || to == "10.77.0.2:53") {
			continue
		}
		t.Errorf("a packet left: %v", p)
	}
	for _, d := range x.decided {
		if !e.decided(d.host, d.reason) {
			t.Errorf("no decision about %q says %q", d.host, d.reason)
		}
	}
	if x.then != nil {
		if err := x.then(e); err != nil {
			t.Error(err)
		}
	}
	if t.Failed() {
		t.Log(e.explain())
	}
}

// requests demands that the web servers saw exactly these.
func requests(want ...string) func(ended) error {
	return func(e ended) error {
		var got []string
		for _, r := range e.seen.Requests {
			got = append(got, r.String())
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			return fmt.Errorf("web servers saw %q, want %q", got, want)
		}
		return nil
	}
}

// battery are all tries.
func battery() []try {
	return slices.Concat(basics(), names(), literals(), privates(), resolver(), packets(), greetings(), requestTries(), rulesOfRequests(), smuggling(),
		ports(), certificates())
}

// setting is where the battery is run.
type setting struct {
	name string
	user int
	pool bool
	more string // configuration
	flag []string
	few  bool // the short form runs only some
}

const someUser = 0x71500000

var settings = []setting{
	{name: "process cold", flag: []string{"--isolation", "process"}},
	{name: "process pool", pool: true, flag: []string{"--isolation", "process"}},
	{name: "process user", user: someUser, few: true, flag: []string{"--isolation", "process"}},
	{name: "gvisor cold", few: true, flag: []string{"--isolation", "gvisor"}},
	{name: "gvisor pool", few: true, pool: true, flag: []string{"--isolation", "gvisor"}},
}

// TestBattery runs every line of the battery in every setting; the short form runs some of the lines in some.
func TestBattery(t *testing.T) {
	for _, s := range settings {
		t.Run(s.name, func(t *testing.T) {
			if strings.HasPrefix(s.name, "gvisor") {
				if _, err := os.Stat(filepath.Join(bin, "runsc")); err != nil {
					t.Skip("runsc is not built: make build")
				}
			}
			r := newRig(t, s.user, s.more)
			r.flags = s.flag
			if s.pool {
				r.serve()
			}
			for i, x := range battery() {
				if !long() && (x.long || s.few && i%4 != 0) {
					continue
				}
				t.Run(x.name, func(t *testing.T) { x.judge(t, r) })
			}
		})
	}
}
