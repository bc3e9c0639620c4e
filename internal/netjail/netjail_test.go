package netjail

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"glovebox"
	"glovebox/driver/process"
	"glovebox/internal/admission"
	"glovebox/internal/netwire"
)

// asNetd makes this test's binary stand in for glovebox-netd: it is what the sandbox shows and starts.
func TestMain(m *testing.M) {
	if os.Args[0] == inside {
		standIn()
		return
	}
	os.Exit(m.Run())
}

// standIn waits for its link as a netd does, says one thing for each word that it reads from it, and ends with its socket.
func standIn() {
	p, err := netwire.NewPeer(os.NewFile(3, "gateway"))
	if err != nil {
		os.Stderr.WriteString(err.Error())
		os.Exit(1)
	}
	_, link, err := p.Setup()
	if errors.Is(err, io.EOF) {
		return
	}
	if err == nil {
		err = p.Ready()
	}
	if err != nil {
		os.Stderr.WriteString(err.Error())
		os.Exit(1)
	}
	go func() {
		b := make([]byte, 64)
		for {
			n, err := link.Read(b)
			if err != nil {
				return
			}
			switch word := string(b[:n]); {
			case word == "die":
				panic("told to")
			default:
				_ = p.Send(netwire.Event{Kind: netwire.KindName, Host: answer(word), Address: netwire.FirstName()})
			}
		}
	}()
	for {
		if _, err := p.Next(); err != nil {
			return
		}
	}
}

// answer is what can be seen from inside, in the letters of a name.
func answer(word string) string {
	_, err := os.ReadFile(word)
	switch {
	case err == nil:
		return "read"
	case errors.Is(err, os.ErrNotExist):
		return "absent"
	}
	return "refused"
}

// jails makes Jails over the real process rung.
func jails(t *testing.T, ready int) (*Jails, *admission.Admission) {
	t.Helper()
	program, initProgram := self(t), os.Getenv("GLOVEBOX_TEST_INIT")
	if initProgram == "" {
		initProgram = filepath.Join(root(t), "bin/glovebox-init")
	}
	jail, err := process.New(process.Config{Init: initProgram, ScratchDir: t.TempDir(), RuntimeDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if err := jail.Available(t.Context()); err != nil {
		if os.Getenv("GLOVEBOX_TEST_ROOT") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	budget, err := admission.New(admission.Config{Dir: t.TempDir(), Size: 400 * glovebox.MiB})
	if err != nil {
		t.Fatal(err)
	}
	j, err := New(Config{Jail: jail, Program: program, Ready: ready,
		Memory: func() (*admission.Admission, error) { return budget, nil }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close(context.WithoutCancel(t.Context())); budget.Close() })
	return j, budget
}
