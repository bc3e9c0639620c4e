package main

import (
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestMain lends the test binary to scripts as two commands: glovebox, which is the real one, and fakebox, whose service
// does what the code says (see fakeService) and needs nothing of the machine.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"glovebox": main,
		"box":      box,
		"around":   around,
		"fakebox": func() {
			f := &fakeService{ready: true}
			a := &app{in: os.Stdin, out: os.Stdout, errs: os.Stderr, getenv: os.Getenv, uid: os.Getuid(),
				runtime: os.Getenv("XDG_RUNTIME_DIR"), open: f.open}
			os.Exit(a.main(os.Args[1:]))
		},
	})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits, "listens": listens,
		},
		Setup: func(e *testscript.Env) error {
			e.Setenv("HOME", e.WorkDir)
			e.Setenv("XDG_RUNTIME_DIR", e.WorkDir+"/rt") // of fakebox, for root too
			return os.Mkdir(e.WorkDir+"/rt", 0o700)
		},
	})
}

// exits runs a command and checks its exit code: exits CODE COMMAND ARG...
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("say exits CODE COMMAND ARG...")
	}
	err := ts.Exec(args[1], args[2:]...)
	got := "0"
	if err != nil {
		got, _ = strings.CutPrefix(err.Error(), "exit status ")
	}
	if got != args[0] {
		ts.Fatalf("%s exited with %s, want %s", strings.Join(args[1:], " "), got, args[0])
	}
}

// listens waits until somebody listens on a socket: listens PATH
func listens(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("say listens PATH")
	}
	path := ts.MkAbs(args[0])
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		c, err := net.Dial("unix", path)
		if err == nil {
			c.Close()
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("nobody listens on %s: %v", path, err)
		}
	}
}
