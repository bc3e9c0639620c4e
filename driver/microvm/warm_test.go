package microvm_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"glovebox"
	"glovebox/driver"
	"glovebox/driver/microvm"
	"glovebox/internal/boot"
)

func pythonHold(program string, modules ...string) driver.Hold {
	return driver.Hold{Lang: "python", Modules: modules, Memory: 64 * glovebox.MiB, Command: driver.Command{
		Argv: boot.Cold("python", program, "/code/main.py"), Dir: "/workspace", CodeName: "main.py",
		Env: []string{"PATH=/usr/bin:/bin", "HOME=/workspace", "LANG=C.UTF-8", "TMPDIR=/tmp"}}}
}

// ended is what a program printed and how it ended.
type ended struct {
	Out, Err string
	Exit     driver.Exit
}

// runHeld releases code to an interpreter that waits, and tells when its first byte came.
func runHeld(t *testing.T, s driver.HeldSandbox, h driver.Hold, code string) (e ended, first time.Duration) {
	t.Helper()
	begun := time.Now()
	if err := s.Resize(limits()); err != nil {
		t.Fatal(err)
	}
	cmd := h.Command
	cmd.Code = []byte(code)
	p, err := s.Exec(context.Background(), cmd)
	if err != nil {
		t.Fatal(err)
	}
	var both sync.WaitGroup
	both.Go(func() {
		b := make([]byte, 1)
		n, _ := io.ReadFull(p.Stdout(), b)
		first = time.Since(begun)
		rest, _ := io.ReadAll(p.Stdout())
		e.Out = string(b[:n]) + string(rest)
	})
	both.Go(func() { b, _ := io.ReadAll(p.Stderr()); e.Err = string(b) })
	select {
	case <-p.Exited():
	case <-time.After(time.Minute):
		t.Fatal("it does not end")
	}
	if err := p.Kill(context.Background()); err != nil {
		t.Fatal(err)
	}
	both.Wait()
	e.Exit = p.Exit()
	return e, first
}

// TestClones makes one template and a few clones: they have the modules, the inputs of their run, nothing random in common, and
// the time of now. A template of whose files one has changed makes no more.
func TestClones(t *testing.T) {
	d := newDriver(t).(*microvm.Driver)
	root, program := smallRoot(t)
	h := pythonHold(program, "json", "random", "uuid")
	above := t.TempDir()
	begun := time.Now()
	tm, err := d.Template(context.Background(), driver.Spec{ID: "vm_template", Limits: limits(), Root: root, Inputs: above}, h)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("template after %v", time.Since(begun))
	defer func() {
		if err := tm.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	if tm.Origin() != driver.StartRestored {
		t.Errorf("origin %q", tm.Origin())
	}
	seen := map[string]bool{}
	for i := range 3 {
		in := filepath.Join(above, fmt.Sprint(i))
		if err := os.Mkdir(in, 0o755); err != nil {
			t.Fatal(err)
		}
		spec := driver.Spec{ID: fmt.Sprintf("vm_clone_%d", i), Limits: limits(), Root: root, Inputs: in}
		for _, word := range cloned(t, tm, spec, h) {
			if seen[word] {
				t.Errorf("%s twice", word)
			}
			seen[word] = true
		}
	}
	guest := filepath.Join(programs, "glovebox-guest")
	if err := os.Chtimes(guest, time.Now(), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if s, err := tm.Fork(context.Background(), driver.Spec{ID: "vm_late", Limits: limits(), Root: root}); err == nil {
		s.Close(context.Background())
		t.Error("a template of another agent was restored")
	}
	select {
	case <-tm.Ended():
	default:
		t.Error("the template has not ended")
	}
}

// askClone prints what is random in a clone, then its input and the time.
const askClone = `import os, random, time, uuid
print(uuid.uuid4().hex, random.random(), os.urandom(8).hex())
print(open("/inputs/folder/n.txt").read())
print(int(time.time()))`

// cloned makes a clone, gives it inputs and runs askClone. What is random in it is returned.
func cloned(t *testing.T, tm driver.Template, spec driver.Spec, h driver.Hold) []string {
	t.Helper()
	begun := time.Now()
	s, err := tm.Fork(context.Background(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	ready := time.Since(begun)
	made, err := microvm.MachineCPU(s)
	if err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(spec.Inputs, "folder")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "n.txt"), []byte(spec.ID), 0o444); err != nil {
		t.Fatal(err)
	}
	time.Sleep(1500 * time.Millisecond) // which the machine does not see
	e, first := runHeld(t, s, h, askClone)
	after, err := microvm.MachineCPU(s)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("clone ready after %v (CPU %v, memory %v); first byte %v later (CPU to the end %v)", ready, made.CPU,
		glovebox.Size(made.Memory), first, after.CPU-made.CPU)
	lines := strings.Split(e.Out, "\n")
	if e.Err != "" || e.Exit != (driver.Exit{}) || len(lines) != 4 || lines[1] != spec.ID {
		t.Fatalf("%+v", e)
	}
	var when int64
	if _, err := fmt.Sscan(lines[2], &when); err != nil || when < begun.Unix()+1 || when > time.Now().Unix()+1 {
		t.Errorf("it is %d there, and %d here (%v)", when, time.Now().Unix(), err)
	}
	return strings.Fields(lines[0])
}
