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
	var r battery.Report
	if json.Unmarshal(out.Bytes(), &r) != nil {
		t.Fatalf("%v: %.2000q", err, out.Bytes())
	}
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
	if err != nil || !r.OK || r.Total.Held+unseen < 30 || unseen > 20 || r.Isolation != "process" || len(r.Posture) == 0 {
		t.Errorf("%v: ok is %v on the rung %q, %+v: %.500q", err, r.OK, r.Isolation, r.Total, out.Bytes())
	}
	var wrong []string
	settle(3*time.Second, func() bool { wrong = l.compare(before, l.lookAtHost(t)); return wrong == nil })
	for _, w := range wrong {
		t.Error(w)
	}
}
