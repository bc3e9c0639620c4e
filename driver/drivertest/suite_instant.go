package drivertest

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"glovebox"
	"glovebox/driver"
)

// instantCases end things at instants that nobody chose, and look at what is left.
var instantCases = map[string]func(*bench){
	"kill at any instant":                          caseKillInstants,
	"close at any instant":                         caseCloseInstants,
	"a start that is given up at any instant":      caseStartInstants,
	"an exec that is given up at any instant":      caseExecInstants,
	"kill, close and sample at the same time":      caseAtOnce,
	"daemons that hold the streams are ended":      caseHolders,
	"nothing of the host is kept after many":       caseKept,
	"a start that cannot be made leaves nothing":   caseBadStart,
	"a sandbox dies within a second of its maker":  caseLifeline,
	"what waits dies within a second of its maker": caseLifelineWarm,
}

// rounds repeats a step with a delay below most, at random: many times where it is quick, a few where it is slow.
func (b *bench) rounds(most time.Duration, step func(delay time.Duration)) {
	b.Helper()
	const many, few = 25, 4
	budget := time.Now().Add(time.Second)
	for n := 0; n < many && (n < few || time.Now().Before(budget)) && !b.Failed(); n++ {
		step(time.Duration(rand.Int64N(int64(most))))
	}
}

// measured is how long something takes.
func measured(do func()) time.Duration {
	begun := time.Now()
	do()
	return time.Since(begun)
}

// restless starts a program that never stands still, and tells how long that takes until its first word.
func (b *bench) restless() (box driver.Sandbox, r *running) {
	b.Helper()
	box = b.start()
	return box, b.exec(box, probe("tree"))
}

// untilUp is how long a program takes to its first word, once it is let go.
func (b *bench) untilUp() time.Duration {
	b.Helper()
	box := b.start()
	_, lines := b.talk(box, probe("tree"))
	took := measured(func() { b.await(lines, "up") })
	if err := box.Close(b.context()); err != nil {
		b.Fatalf("close: %v", err)
	}
	return took
}

func caseKillInstants(b *bench) {
	b.rounds(2*b.untilUp()+time.Millisecond, func(delay time.Duration) {
		box, r := b.restless()
		time.Sleep(delay)
		if err := r.Kill(b.context()); err != nil {
			b.Fatalf("after %v: kill: %v", delay, err)
		}
		if s, err := r.Sample(); err != nil || s.Processes > 0 {
			b.Errorf("after %v: %d processes live (%v)", delay, s.Processes, err)
		}
		b.within("leader's exit", r.Exited())
		if e := r.Exit(); e.Lost || e.Signal != syscall.SIGKILL || e.FenceKill {
			b.Errorf("after %v: exit = %+v, want SIGKILL", delay, e)
		}
		b.within("end of the streams", waited(&r.read))
		if err := box.Close(b.context()); err != nil {
			b.Errorf("after %v: close: %v", delay, err)
		}
	})
}

func caseCloseInstants(b *bench) {
	before := b.offspring()
	b.rounds(2*b.untilUp()+time.Millisecond, func(delay time.Duration) {
		box, r := b.restless()
		time.Sleep(delay)
		if err := box.Close(b.context()); err != nil {
			b.Fatalf("after %v: close: %v", delay, err)
		}
		for pid, name := range b.offspring() {
			if _, ok := before[pid]; !ok && !strings.HasPrefix(name, "(") {
				b.Errorf("after %v: %s %s lives after close", delay, pid, name)
			}
		}
		b.within("leader's exit", r.Exited())
		b.within("end of the streams", waited(&r.read))
	})
}

func caseStartInstants(b *bench) {
	took := measured(func() { b.start() })
	made := 0
	b.rounds(took+took/2, func(delay time.Duration) {
		ctx, cancel := context.WithCancel(b.context())
		timer := time.AfterFunc(delay, cancel)
		defer timer.Stop()
		defer cancel()
		box, err := b.driver.Start(ctx, b.spec())
		switch {
		case err == nil:
			made++
			if err := box.Close(b.context()); err != nil {
				b.Errorf("close: %v", err)
			}
		case errors.Is(err, driver.ErrLeftBehind):
			b.Errorf("given up after %v: %v", delay, err)
		}
		if err == nil == (box == nil) {
			b.Errorf("a sandbox %v and the error %v", box, err)
		}
	})
	b.Logf("%d of the starts were made", made)
}

func caseExecInstants(b *bench) {
	took := b.untilUp()
	b.rounds(took+took/2, func(delay time.Duration) {
		box := b.start()
		ctx, cancel := context.WithCancel(b.context())
		timer := time.AfterFunc(delay, cancel)
		defer timer.Stop()
		defer cancel()
		p, err := box.Exec(ctx, probe("tree"))
		if err == nil { // from now on ctx is nobody's concern
			cancel()
			r := b.reading(p)
			if err := r.Kill(b.context()); err != nil {
				b.Errorf("kill: %v", err)
			}
			b.within("end of the streams", waited(&r.read))
		}
		if err := box.Close(b.context()); err != nil {
			b.Errorf("given up after %v: close: %v", delay, err)
		}
	})
}

func caseAtOnce(b *bench) {
	b.rounds(20*time.Millisecond, func(delay time.Duration) {
		box, r := b.restless()
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() {
				time.Sleep(delay)
				if err := r.Kill(b.context()); err != nil {
					b.Errorf("kill: %v", err)
				}
			})
			all.Go(func() {
				time.Sleep(delay)
				if err := box.Close(b.context()); err != nil {
					b.Errorf("close: %v", err)
				}
			})
			all.Go(func() {
				for range 20 {
					_, _ = r.Sample() // after Close it may fail
					_, _ = box.Disk()
				}
			})
		}
		b.within("end of all", waited(&all))
		b.within("leader's exit", r.Exited())
		b.within("end of the streams", waited(&r.read))
	})
}

func caseHolders(b *bench) {
	r := b.exec(b.start(), probe("daemon", "hold"))
	b.within("leader's exit", r.Exited())
	select {
	case <-waited(&r.read):
		b.Fatal("the streams ended while daemons held them")
	case <-time.After(30 * time.Millisecond):
	}
	if s, err := r.Sample(); err != nil || s.Processes < 1 {
		b.Errorf("daemons are not counted: %+v, %v", s, err)
	}
	b.wantExit(r, b.exit(r), 0)
	if s, err := r.Sample(); err != nil || s.Processes > 0 {
		b.Errorf("after the kill: %+v, %v", s, err)
	}
}

// caseKept makes sandboxes in every way and demands that this process has no more open, and runs no more, than after the
// first.
func caseKept(b *bench) {
	round := func() {
		box, r := b.restless()
		if err := r.Kill(b.context()); err != nil {
			b.Errorf("kill: %v", err)
		}
		b.within("end of the streams", waited(&r.read))
		if err := box.Close(b.context()); err != nil {
			b.Errorf("close: %v", err)
		}
		cmd := shell("exit 0")
		cmd.Stdin, cmd.Code, cmd.CodeName = strings.NewReader("unread"), []byte("x"), "x"
		r, _, box = b.run(cmd)
		if f, err := box.Open("missing"); err == nil {
			f.Close()
		}
		if err := box.Close(b.context()); err != nil {
			b.Errorf("close: %v", err)
		}
		b.badStart()
	}
	round()
	descriptors, routines := b.open(), runtime.NumGoroutine()
	for range 4 {
		round()
	}
	deadline := time.Now().Add(2 * time.Second)
	for len(b.open()) > len(descriptors) || runtime.NumGoroutine() > routines+4 {
		if time.Now().After(deadline) {
			b.Fatalf("%d descriptors and %d goroutines became %d and %d: %q", len(descriptors), routines, len(b.open()),
				runtime.NumGoroutine(), b.open())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// open are the descriptors of this process.
func (b *bench) open() (all []string) {
	b.Helper()
	names, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		b.Fatal(err)
	}
	for _, name := range names {
		if to, err := os.Readlink(name); err == nil {
			all = append(all, filepath.Base(name)+" "+to)
		}
	}
	return all
}

// badStart asks for what cannot be made.
func (b *bench) badStart() {
	b.Helper()
	for what, change := range map[string]func(*driver.Spec){
		"a mount of nothing": func(s *driver.Spec) {
			s.Root.Mounts = append(s.Root.Mounts[:len(s.Root.Mounts):len(s.Root.Mounts)],
				driver.Mount{Source: "/nowhere/at/all", Target: "/nowhere"})
		},
		"inputs that are not there": func(s *driver.Spec) { s.Inputs = filepath.Join(b.TempDir(), "missing") },
		"more CPUs than there are":  func(s *driver.Spec) { s.Limits.CPUs = float64(runtime.NumCPU() + 1) },
		"memory of nothing":         func(s *driver.Spec) { s.Limits.Memory = 64 * glovebox.KiB },
	} {
		if what == "memory of nothing" && b.driver.Overhead() > 0 {
			continue // the mechanism has some of its own
		}
		spec := b.spec()
		change(&spec)
		box, err := b.driver.Start(b.context(), spec)
		if err == nil {
			box.Close(b.context())
			b.Errorf("a sandbox was made of %s", what)
		} else if errors.Is(err, driver.ErrLeftBehind) {
			b.Errorf("%s: %v", what, err)
		}
	}
}

func caseBadStart(b *bench) {
	b.badStart()
	r, e, _ := b.run(shell("exit 0")) // and the driver is as it was
	b.wantExit(r, e, 0)
}
