package drivertest

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"glovebox/driver"
)

// byHeart runs the shell programs of the suite that need no kernel.
func byHeart(ctx context.Context, p *Proc) driver.Exit {
	if len(p.Command.Argv) == 1 {
		code := 127
		if p.Command.Argv[0] == "/etc" {
			code = 126
		}
		return driver.Exit{Code: code, NotStarted: "cannot be executed"}
	}
	sleep := func(ctx context.Context) { <-ctx.Done() }
	switch script := p.Command.Argv[2]; script {
	case scriptBusy:
		p.Burn(1)
		time.Sleep(30 * time.Millisecond)
		p.Burn(0)
	case scriptOrphan:
		p.Fork(ctx, sleep)
		return driver.Exit{Code: 3}
	case scriptDaemons:
		p.Fork(ctx, sleep)
		p.Fork(ctx, sleep)
		io.WriteString(p.Stdout, "up\n")
		sleep(ctx)
	case scriptSleep:
		sleep(ctx)
	case scriptCat:
		io.Copy(p.Stdout, p.Stdin)
	case scriptCount:
		n, _ := io.Copy(io.Discard, p.Stdin)
		fmt.Fprintln(p.Stdout, n)
	case scriptStreams:
		io.WriteString(p.Stdout, "out\n")
		io.WriteString(p.Stderr, "err\n")
		io.WriteString(p.Stdout, "out2\n")
	default:
		if name, ok := strings.CutPrefix(script, "kill -"); ok {
			signals := map[string]syscall.Signal{"SEGV": syscall.SIGSEGV, "TERM": syscall.SIGTERM, "KILL": syscall.SIGKILL}
			return driver.Exit{Signal: signals[strings.TrimSuffix(name, " $$")]}
		}
		code, err := strconv.Atoi(strings.TrimPrefix(script, "exit "))
		if err != nil {
			return driver.Exit{Code: 2}
		}
		return driver.Exit{Code: code}
	}
	return driver.Exit{}
}

func TestFake(t *testing.T) {
	Run(t, Subject{New: func(*testing.T) driver.Driver { return &Fake{Program: byHeart} }, Simulated: true})
}

func TestFakeInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &Fake{Program: func(ctx context.Context, p *Proc) driver.Exit {
			p.Burn(2)
			<-ctx.Done()
			return driver.Exit{}
		}}
		box, err := f.Start(t.Context(), driver.Spec{ID: "a"})
		if err != nil {
			t.Fatal(err)
		}
		p, err := box.Exec(t.Context(), driver.Command{})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if s, err := p.Sample(); err != nil || s.CPU < 2*time.Hour {
			t.Errorf("sample = %+v (%v), want two hours of CPU", s, err)
		}
		if err := box.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if e := p.Exit(); e.Signal != syscall.SIGKILL || len(f.Live()) != 0 {
			t.Errorf("exit = %+v, live = %v", e, f.Live())
		}
	})
}
