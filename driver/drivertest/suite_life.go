package drivertest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// lifeCases are about starting, ending and counting.
var lifeCases = map[string]func(*bench){
	"exit codes are the leader's":                      caseExitCodes,
	"a signal is told apart from an exit":              caseSignals,
	"a program that cannot be executed":                caseNotStarted,
	"the leader's end is seen while a child lives":     caseLeaderFirst,
	"kill ends daemons in sessions of their own":       caseKillTree,
	"kill right after exec":                            caseKillAtOnce,
	"cpu time only grows and outlives the tree":        caseCPU,
	"close kills, may be called again, leaves nothing": caseClose,
	"close of an unused sandbox":                       caseCloseUnused,
	"a cancelled start makes nothing":                  caseStartCancelled,
	"an id is free again after close":                  caseSameID,
	"sandboxes at the same time do not mix":            caseParallel,
	"posture and release time":                         caseReleased,
}

// The programs of these cases that a Fake has to know by heart.
const (
	scriptBusy    = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done"
	scriptOrphan  = "sleep 1001 & exit 3"
	scriptDaemons = "setsid sh -c 'sleep 1002 & sleep 1002 & wait' & (setsid sleep 1002 &); echo up; sleep 1002"
	scriptSleep   = "exec sleep 1003"
	scriptCat     = "exec cat"
)

func caseExitCodes(b *bench) {
	for _, code := range []int{0, 137, 255} {
		r, e, _ := b.run(shell(fmt.Sprintf("exit %d", code)))
		b.wantExit(r, e, code)
	}
}

func caseSignals(b *bench) {
	signals := map[string]syscall.Signal{"SEGV": syscall.SIGSEGV, "TERM": syscall.SIGTERM, "KILL": syscall.SIGKILL}
	for name, want := range signals {
		_, e, _ := b.run(shell("kill -" + name + " $$"))
		if e.Lost || e.Signal != want || e.FenceKill {
			b.Errorf("kill -%s: exit = %+v, want signal %v and no fence", name, e, want)
		}
	}
}

func caseNotStarted(b *bench) {
	for argv0, code := range map[string]int{"/no/such/program": 127, "no-such-program": 127, "/etc": 126} {
		cmd := shell("")
		cmd.Argv = []string{argv0}
		_, e, _ := b.run(cmd)
		if e.Lost || e.NotStarted == "" || e.Code != code {
			b.Errorf("%s: exit = %+v, want code %d and a reason", argv0, e, code)
		}
	}
}

func caseLeaderFirst(b *bench) {
	box := b.start()
	r := b.exec(box, shell(scriptOrphan))
	b.within("leader's exit", r.Exited())
	select {
	case <-waited(&r.read):
		b.Fatal("the streams ended while a child held them")
	case <-time.After(20 * time.Millisecond):
	}
	b.wantExit(r, b.exit(r), 3)
}

func caseKillTree(b *bench) {
	box := b.start()
	p, err := box.Exec(b.context(), shell(scriptDaemons))
	if err != nil {
		b.Fatalf("exec: %v", err)
	}
	if _, err := p.Stdout().Read(make([]byte, 3)); err != nil {
		b.Fatalf("waiting for the daemons: %v", err)
	}
	if err := p.Kill(b.context()); err != nil {
		b.Fatalf("kill: %v", err)
	}
	b.within("leader's exit", p.Exited())
	if e := p.Exit(); e.Signal != syscall.SIGKILL {
		b.Errorf("exit = %+v, want SIGKILL", e)
	}
	if err := p.Kill(b.context()); err != nil {
		b.Errorf("second kill: %v", err)
	}
	if s, err := p.Sample(); err != nil || s.Processes > 0 {
		b.Errorf("after kill: %d processes (%v), want none", s.Processes, err)
	}
	b.noneOf("sleep 1002")
}

func caseKillAtOnce(b *bench) {
	r := b.exec(b.start(), shell(scriptSleep))
	if err := r.Kill(b.context()); err != nil {
		b.Fatalf("kill: %v", err)
	}
	b.within("leader's exit", r.Exited())
	if e := r.Exit(); e.Lost || e.Signal != syscall.SIGKILL {
		b.Errorf("exit = %+v, want SIGKILL", e)
	}
}

func caseCPU(b *bench) {
	r := b.exec(b.start(), shell(scriptBusy))
	var last time.Duration
	for ended := false; !ended; {
		select {
		case <-r.Exited():
			ended = true
		case <-time.After(10 * time.Millisecond):
		}
		s, err := r.Sample()
		if err != nil {
			b.Fatalf("sample: %v", err)
		}
		if s.CPU < last {
			b.Errorf("cpu time fell from %v to %v", last, s.CPU)
		}
		last = s.CPU
	}
	b.wantExit(r, b.exit(r), 0)
	if s, err := r.Sample(); err != nil || s.CPU < last || s.CPU < time.Millisecond {
		b.Errorf("after the end: cpu %v (%v), want at least %v", s.CPU, err, max(last, time.Millisecond))
	}
}

func caseClose(b *bench) {
	box := b.start()
	r := b.exec(box, shell(scriptSleep))
	for range 2 {
		if err := box.Close(b.context()); err != nil {
			b.Fatalf("close: %v", err)
		}
	}
	b.within("leader's exit", r.Exited())
	b.within("end of the streams", waited(&r.read))
	b.noneOf("sleep 1003")
}

func caseCloseUnused(b *bench) {
	if err := b.start().Close(b.context()); err != nil {
		b.Fatalf("close: %v", err)
	}
}

func caseStartCancelled(b *bench) {
	ctx, cancel := context.WithCancel(b.context())
	cancel()
	if box, err := b.driver.Start(ctx, b.spec()); err == nil {
		box.Close(b.context())
		b.Fatal("started although cancelled")
	}
}

func caseSameID(b *bench) {
	spec := b.spec()
	for range 2 {
		box, err := b.driver.Start(b.context(), spec)
		if err != nil {
			b.Fatalf("start: %v", err)
		}
		r := b.exec(box, shell("exit 0"))
		b.wantExit(r, b.exit(r), 0)
		if err := box.Close(b.context()); err != nil {
			b.Fatalf("close: %v", err)
		}
	}
}

func caseParallel(b *bench) {
	var all sync.WaitGroup
	for i := range 4 {
		word := fmt.Sprintf("word-%d", i)
		box, cmd := b.start(), shell(scriptCat)
		cmd.Stdin = strings.NewReader(word)
		r := b.exec(box, cmd)
		all.Go(func() {
			<-r.Exited()
			if err := r.Kill(context.Background()); err != nil {
				b.Errorf("kill: %v", err)
			}
			if r.read.Wait(); r.out.String() != word {
				b.Errorf("stdout = %q, want %q", r.out.String(), word)
			}
		})
	}
	b.within("end of all", waited(&all))
}

func caseReleased(b *bench) {
	box, before := b.start(), time.Now()
	r := b.exec(box, shell("exit 0"))
	b.wantExit(r, b.exit(r), 0)
	if at := r.Released(); at.Before(before) || at.After(time.Now()) {
		b.Errorf("released at %v, want between exec and now", at)
	}
	if len(r.Posture()) == 0 {
		b.Error("posture is empty")
	}
}

// noneOf fails the test when a process of this machine has exactly that command line.
func (b *bench) noneOf(line string) {
	b.Helper()
	if b.subject.Simulated {
		return
	}
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		b.Fatal(err)
	}
	for _, f := range files {
		raw, _ := os.ReadFile(f) // the process may be gone: then it is not left over
		if got := strings.TrimSpace(strings.ReplaceAll(string(raw), "\x00", " ")); got == line {
			b.Errorf("left over: %s (%s)", line, f)
		}
	}
}

// wantRefused fails the test unless the program could not do what it tried.
func (b *bench) wantRefused(script string) {
	b.Helper()
	r, e, _ := b.run(shell(script))
	if e.Code == 0 && e.Signal == 0 {
		b.Errorf("%s: was possible; stdout:\n%s", script, r.out.String())
	}
}
