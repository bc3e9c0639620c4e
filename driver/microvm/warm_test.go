package microvm_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
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

// pythonRoot is an image of the interpreter and its library, without what else the host has installed.
func pythonRoot(t *testing.T) (driver.Root, string) {
	t.Helper()
	program, err := filepath.EvalSymlinks("/usr/bin/python3")
	if err != nil {
		t.Fatal(err)
	}
	library := filepath.Join("/usr/lib", filepath.Base(program))
	root := driver.Root{Mounts: []driver.Mount{{Source: program, Target: program}, {Source: library, Target: library}}}
	modules, err := filepath.Glob(filepath.Join(library, "lib-dynload", "*.so"))
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("ldd", append(modules, program)...).Output()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		for word := range strings.FieldsSeq(line) {
			if !strings.HasPrefix(word, "/") || strings.HasSuffix(word, ":") || seen[word] {
				continue
			}
			seen[word] = true
			source, err := filepath.EvalSymlinks(word)
			if err != nil {
				t.Fatal(err)
			}
			root.Mounts = append(root.Mounts, driver.Mount{Source: source, Target: word})
		}
	}
	return root, program
}

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

// run releases code to an interpreter that waits, and tells when its first byte came.
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

// TestClones makes one template and a few clones: they have the modules, the inputs of their run, nothing random in common,
// and the time of now.
func TestClones(t *testing.T) {
	d := newDriver(t).(*microvm.Driver)
	root, program := pythonRoot(t)
	h := pythonHold(program, "json", "random", "uuid")
	above := t.TempDir()
	spec := driver.Spec{ID: "vmt", Limits: limits(), Root: root, Inputs: above}
	begun := time.Now()
	tm, err := d.Template(context.Background(), spec, h)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("template after %v", time.Since(begun))
	defer tm.Close(context.Background())
	code := "import sys, time, os, uuid, random, json\nprint(json.dumps([uuid.uuid4().hex, random.random(), os.urandom(8).hex(), " +
		"open('/proc/sys/kernel/random/boot_id').read()]))\nprint(open('/inputs/a/n.txt').read(), abs(time.time() - 0) > 1)\n" +
		"print(int(time.time()))"
	var lines []string
	for i := range 3 {
		in := filepath.Join(above, fmt.Sprint(i))
		if err := os.Mkdir(in, 0o755); err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		s, err := tm.Fork(context.Background(), driver.Spec{ID: fmt.Sprintf("vmc_%d", i), Limits: limits(), Root: root, Inputs: in})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("clone after %v", time.Since(begun))
		if err := os.MkdirAll(filepath.Join(in, "a"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(in, "a/n.txt"), fmt.Append(nil, i), 0o444); err != nil {
			t.Fatal(err)
		}
		time.Sleep(1100 * time.Millisecond)
		e, first := runHeld(t, s, h, code)
		t.Logf("first byte after %v", first)
		out := strings.Split(e.Out, "\n")
		if e.Err != "" || e.Exit != (driver.Exit{}) || len(out) < 3 || !strings.HasPrefix(out[1], fmt.Sprint(i)+" ") {
			t.Fatalf("%+v", e)
		}
		now := time.Now().Unix()
		var when int64
		if fmt.Sscan(out[2], &when); when < now-3 || when > now+1 {
			t.Errorf("it is %d there, and %d here", when, now)
		}
		lines = append(lines, out[0])
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}
	t.Log(lines)
}
