package attack

import (
	"slices"
	"strings"
	"testing"

	"glovebox"
)

// TestAWeakerRungIsSeen: a run that did not get the rung that was asked for is one that broke.
func TestAWeakerRungIsSeen(t *testing.T) {
	for asked, broke := range map[glovebox.Isolation]bool{"process": false, "gvisor": true} {
		f := newFence(t)
		r := attackOn(t, f, asked, "FS-01")
		if o := r.Programs[0]; (o.Verdict == Broke) != broke || r.OK == broke {
			t.Errorf("asked for %s, on %s: %s %q", asked, r.Isolation, o.Verdict, o.Found)
		}
	}
}

// attackOn is attackWith on a rung.
func attackOn(t *testing.T, f *fence, rung glovebox.Isolation, ids ...string) *Report {
	t.Helper()
	cfg := f.config()
	cfg.Isolation = rung
	some := slices.DeleteFunc(Programs(), func(p Program) bool { return len(ids) > 0 && !slices.Contains(ids, p.ID) })
	r, err := run(t.Context(), cfg, some)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// claimed is what programs say that they got of a kernel of their own, for each that may.
var claimed = map[string]string{"CR-09": "ring id 7", "CR-10": "/sys is there", "KS-01": "keyctl gave 7", "KS-17/x32": "still there",
	"KS-17/int80": "still there", "IL-02": "the kernel's log", "LT-01": "processes ['1', '5']"}

// asOn makes a fence answer as one of a rung whose fences hold.
func asOn(rung glovebox.Isolation) func(*fence, *trial) {
	return func(_ *fence, c *trial) {
		c.res.Isolation = rung
		for id, text := range claimed {
			p := known(id)
			if c.req.CodeName != p.file || len(p.on(rung).inside) == 0 {
				continue
			}
			if strings.HasPrefix(id, "KS-17") {
				c.end(glovebox.StatusExited, 0, "")
			}
			c.text = "broke: " + text + "\nend\n"
		}
		if strings.HasPrefix(c.text, "held") {
			status := strings.NewReplacer("CapEff:\t0000", "CapEff:\t8001f", "CapPrm:\t0000", "CapPrm:\t8001f").Replace(goodStatus)
			if rung == glovebox.IsolationGVisor && slices.Contains([]string{"setuid", "identity"}, strings.Join(c.req.Args, " ")) {
				c.tree["status"], c.tree["task/5/status"] = status, status
			}
			c.tree["fd/9"], c.tree["fdinfo/9"] = "->anon_inode:seccomp notify", "flags:\t02\n"
		}
	}
}

func known(id string) Program {
	all := Programs()
	return all[slices.IndexFunc(all, func(p Program) bool { return p.ID == id })]
}

// TestEachRungHasItsOutcomes: what is of a run's own kernel does not count as got, on the rungs that have one alone.
func TestEachRungHasItsOutcomes(t *testing.T) {
	for _, rung := range []glovebox.Isolation{"gvisor", "microvm"} {
		for id, v := range variants(rung) {
			if p := known(id); v.why == "" || v.look != nil && p.look == nil || v.then != nil && p.then == nil {
				t.Errorf("%s on %s: no reason, or nothing that it stands for", id, rung)
			}
		}
		f := newFence(t)
		f.leak = asOn(rung)
		for _, o := range attackOn(t, f, rung).Programs {
			if o.Verdict != Held && o.Verdict != Said {
				t.Errorf("%s on %s: %s: %s %q %q", o.ID, rung, o.Verdict, o.Reason, o.Found, o.Claims)
			}
			if want := variants(rung)[o.ID].why; o.Differs != want {
				t.Errorf("%s on %s differs by %q, want %q", o.ID, rung, o.Differs, want)
			}
		}
		f = newFence(t)
		f.leak = func(f *fence, c *trial) { asOn(rung)(f, c); c.res.Isolation = glovebox.IsolationProcess }
		for _, o := range attackOn(t, f, glovebox.IsolationProcess, slices.Collect(keys(claimed))...).Programs {
			if len(known(o.ID).on(rung).inside) > 0 && o.Verdict != Broke {
				t.Errorf("%s is %s on the process rung too", o.ID, o.Verdict)
			}
		}
	}
}

func keys(m map[string]string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// TestEachRungIsWatched: what is judged otherwise is judged all the same.
func TestEachRungIsWatched(t *testing.T) {
	for _, x := range []theft{
		{"CR-05", "a file that was planted", func(f *fence, c *trial) {
			c.tree["fd/8"], c.tree["fdinfo/8"] = "->"+f.planted(), "flags:\t0100000\n"
		}},
		{"FS-16", "a capability that runsc has no use for", func(_ *fence, c *trial) {
			c.tree["task/5/status"] = strings.Replace(goodStatus, "CapEff:\t0000", "CapEff:\t200000", 1)
		}},
		{"KS-23/privileges", "the host's own user namespace", func(_ *fence, c *trial) { c.tree["ns/user"] = "->user:[1]" }},
		{"KS-06", "a map of the host's kernel", func(_ *fence, c *trial) {
			c.tree["fd/8"], c.tree["fdinfo/8"] = "->anon_inode:bpf-map", "flags:\t02\n"
		}},
		{"FS-23", "no limit", func(_ *fence, c *trial) { c.end(glovebox.StatusExited, 3, "") }},
		{"NT-11", "a way out", func(_ *fence, c *trial) { c.tree["net/dev"] += "  eth0: 0\n" }},
		{"RS-36", "a better priority", func(_ *fence, c *trial) { c.tree["stat"] = statLine(map[int]string{19: "-5"}) }},
		{"CR-09", "a key of the caller's", func(_ *fence, c *trial) { c.text = "broke: key found\nend\n" }},
		{"KS-17/x32", "another end", func(_ *fence, c *trial) { c.end(glovebox.StatusSignaled, -1, "") }},
	} {
		for _, rung := range []glovebox.Isolation{"gvisor", "microvm"} {
			if _, differs := variants(rung)[x.program]; !differs {
				continue // it is as on the process rung
			}
			f := newFence(t)
			f.leak = func(f *fence, c *trial) { asOn(rung)(f, c); x.leak(f, c) }
			if o := attackOn(t, f, rung, x.program).Programs[0]; o.Verdict != Broke {
				t.Errorf("%s on %s: %s: %s %s", x.program, rung, x.name, o.Verdict, o.Reason)
			}
		}
	}
}
