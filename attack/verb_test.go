package attack_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	battery "glovebox/attack"
)

// TestTheCommand runs the battery as a user does, on the drivers of this machine. A program that needs a language or a tool which
// the machine lacks may go untried; no other may.
func TestTheCommand(t *testing.T) {
	l := need(t)
	args := []string{"attack", "--json", "--config", l.config, "--axis", "NT", "--axis", "CR", "--axis", "KS", "--axis", "IL"}
	if long() {
		args = []string{"attack", "--json", "--config", l.config, "--disposable"}
	}
	before := l.lookAtHost(t)
	cmd := l.glovebox(t.Context(), args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, t.Output()
	err := cmd.Run()
	var all struct {
		OK    bool
		Rungs []battery.Report
	}
	if json.Unmarshal(out.Bytes(), &all) != nil || len(all.Rungs) == 0 || err != nil || !all.OK {
		t.Fatalf("%v: %.2000q", err, out.Bytes())
	}
	for _, r := range all.Rungs {
		l.judgeRung(t, r)
	}
	if all.Rungs[0].Isolation != "process" {
		t.Errorf("the first rung is %s", all.Rungs[0].Isolation)
	}
	var wrong []string
	settle(3*time.Second, func() bool { wrong = l.compare(before, l.lookAtHost(t)); return wrong == nil })
	for _, w := range wrong {
		t.Error(w)
	}
}

// judgeRung demands that everything held on a rung.
func (l *laboratory) judgeRung(t *testing.T, r battery.Report) {
	t.Helper()
	unseen := 0
	for _, o := range r.Programs {
		// The processes of subordinate ids are another's, so that the user who started them may not look into them.
		if o.Verdict == battery.NotTried && l.caller != nil && strings.HasPrefix(o.Reason, "its processes cannot be seen") {
			unseen++
			continue
		}
		if o.Verdict == battery.Broke || o.Verdict == battery.NotTried && o.Axis != "CT" {
			t.Errorf("%s %s: %s %q %q", o.ID, o.Verdict, o.Reason, o.Found, o.Claims)
		}
	}
	if !r.OK || r.Total.Held+unseen < 30 || unseen > 20 || len(r.Posture) == 0 {
		t.Errorf("ok is %v on the rung %q, %+v", r.OK, r.Isolation, r.Total)
	}
}
