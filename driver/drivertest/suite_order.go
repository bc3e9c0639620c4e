package drivertest

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"

	"glovebox/driver"
)

// orderCases are about what is passed through as it is, and about calls in another order than the usual.
var orderCases = map[string]func(*bench){
	"arguments and variables arrive byte by byte":          caseGiven,
	"streams carry any bytes":                              caseBytes,
	"stdin is streamed while the program answers":          caseDialogue,
	"a stream that the program closes ends":                caseClosedStream,
	"one program at a time, and another after it":          caseSecond,
	"a closed sandbox takes nothing":                       caseAfterClose,
	"an exec that is given up before it begins":            caseExecCancelled,
	"a command that cannot be is refused":                  caseBadCommand,
	"names in outputs are any bytes":                       caseNames,
	"a socket or a device in outputs is not opened":        caseSocket,
	"code of any bytes and of some size is there to read":  caseCodeLarge,
	"a folder to work in that is not there is told":        caseNoDir,
	"folders in outputs as deep as can be made are opened": caseDeep,
}

// talking is a program whose input stays open until hangUp, and whose lines are read one by one.
type talking struct {
	*running
	in *io.PipeWriter
}

func (t *talking) hangUp() { t.in.Close() }

// talk starts a program to talk with. The lines end with its output.
func (b *bench) talk(box driver.Sandbox, cmd driver.Command) (*talking, <-chan string) {
	b.Helper()
	read, write := io.Pipe()
	b.Cleanup(func() { write.Close() })
	cmd.Stdin = read
	p, err := box.Exec(b.context(), cmd)
	if err != nil {
		b.Fatalf("exec: %v", err)
	}
	t := &talking{running: &running{Process: p}, in: write}
	lines := make(chan string, 64)
	t.read.Go(func() {
		defer close(lines)
		for in := bufio.NewScanner(p.Stdout()); in.Scan(); {
			select {
			case lines <- in.Text():
			default: // nobody waits for so many
			}
		}
	})
	t.read.Go(func() { io.Copy(&t.err, p.Stderr()) })
	return t, lines
}

func allBytes() []byte {
	var all []byte
	for c := 1; c < 256; c++ {
		all = append(all, byte(c))
	}
	return all
}

func caseGiven(b *bench) {
	odd := string(allBytes())
	args := []string{"", " ", odd, "-c", "a\nb", "*", "$HOME", "'\"`", strings.Repeat("long", 20000)}
	env := []string{"PATH=/usr/bin:/bin", "A=" + odd, "EMPTY=", "B=a=b\nc", "lower.case-name=1",
		"LONG=" + strings.Repeat("x", 50000),
		"LD_PRELOAD=/nowhere.so", "GODEBUG=x=y", "BASH_ENV=/workspace/x"}
	cmd := probe(append([]string{"given"}, args...)...)
	cmd.Env, cmd.Dir = env, "/tmp"
	r, e, _ := b.run(cmd)
	b.wantExit(r, e, 0)
	var got struct {
		Args, Env [][]byte
		Dir       [][]byte
	}
	if err := json.Unmarshal([]byte(r.out.String()), &got); err != nil {
		b.Fatal(err)
	}
	texts := func(all [][]byte) (out []string) {
		for _, one := range all {
			out = append(out, string(one))
		}
		return out
	}
	if d := cmp.Diff(args, texts(got.Args)); d != "" {
		b.Errorf("arguments (-want +got):\n%.2000s", d)
	}
	have := texts(got.Env)
	slices.Sort(have)
	if d := cmp.Diff(slices.Sorted(slices.Values(env)), have); d != "" {
		b.Errorf("variables (-want +got):\n%.2000s", d)
	}
	if dir := texts(got.Dir); !slices.Equal(dir, []string{"/tmp"}) {
		b.Errorf("folder = %q", dir)
	}
}

func caseBytes(b *bench) {
	text := make([]byte, 1<<20)
	rand.Read(text)
	cmd := shell(scriptCat)
	cmd.Stdin = bytes.NewReader(text)
	r, e, _ := b.run(cmd)
	b.wantExit(r, e, 0)
	if got := r.out.String(); got != string(text) {
		b.Errorf("%d bytes %s became %d bytes %s", len(text), digest(string(text)), len(got), digest(got))
	}
}

func caseDialogue(b *bench) {
	r, lines := b.talk(b.start(), probe("echo"))
	for _, word := range []string{"one", "two", ""} {
		if _, err := io.WriteString(r.in, word+"\n"); err != nil {
			b.Fatal(err)
		}
		if got := b.await(lines, ""); got != "got "+word {
			b.Errorf("the answer to %q is %q", word, got)
		}
	}
	io.WriteString(r.in, "rest")
	r.hangUp()
	if got := b.await(lines, "end"); got != "end rest" {
		b.Errorf("at the end: %q", got)
	}
	b.wantExit(r.running, b.exitUnkilled(r.running), 0)
}

func caseClosedStream(b *bench) {
	p, err := b.start().Exec(b.context(), shell("echo last; exec >&- 2>&-; sleep 1006"))
	if err != nil {
		b.Fatalf("exec: %v", err)
	}
	r := b.reading(p)
	b.within("end of the streams", waited(&r.read))
	select {
	case <-r.Exited():
		b.Errorf("the program ended: %+v", r.Exit())
	default:
	}
	if r.out.String() != "last\n" {
		b.Errorf("stdout = %q", r.out.String())
	}
	if err := r.Kill(b.context()); err != nil {
		b.Errorf("kill: %v", err)
	}
}

func caseSecond(b *bench) {
	box := b.start()
	r, lines := b.talk(box, probe("echo"))
	if p, err := box.Exec(b.context(), shell("exit 0")); err == nil {
		p.Kill(b.context())
		b.Error("a second program was started beside the first")
	}
	io.WriteString(r.in, "still\n")
	if got := b.await(lines, ""); got != "got still" {
		b.Errorf("the first program says %q", got)
	}
	r.hangUp()
	b.wantExit(r.running, b.exit(r.running), 0)
	first := b.exec(box, shell("echo x >/workspace/kept; exit 3"))
	b.wantExit(first, b.exit(first), 3)
	second := b.exec(box, shell("cat /workspace/kept; exit 4"))
	b.wantExit(second, b.exit(second), 4)
	if got := second.out.String(); got != "x\n" {
		b.Errorf("the next program reads %q", got)
	}
}

func caseAfterClose(b *bench) {
	r, e, box := b.run(shell("exit 0"))
	b.wantExit(r, e, 0)
	if err := box.Close(b.context()); err != nil {
		b.Fatalf("close: %v", err)
	}
	if p, err := box.Exec(b.context(), shell("exit 0")); err == nil {
		p.Kill(b.context())
		b.Error("a closed sandbox ran a program")
	}
	if f, err := box.Open("x"); err == nil {
		f.Close()
		b.Error("a closed sandbox opened a file")
	}
	if err := r.Kill(b.context()); err != nil {
		b.Errorf("killing what is dead: %v", err)
	}
	if e := r.Exit(); e.Code != 0 || e.Lost {
		b.Errorf("its program's end became %+v", e)
	}
}

func caseExecCancelled(b *bench) {
	box := b.start()
	ctx, cancel := context.WithCancel(b.context())
	cancel()
	p, err := box.Exec(ctx, shell("echo started >/outputs/started"))
	if err == nil {
		p.Kill(b.context())
		b.Fatal("it was started although it was given up")
	}
	if errors.Is(err, driver.ErrReleased) {
		b.Errorf("nothing was asked for, and %v", err)
	}
}

func caseBadCommand(b *bench) {
	box := b.start()
	for what, change := range map[string]func(*driver.Command){
		"no program":          func(c *driver.Command) { c.Argv = nil },
		"a nameless program":  func(c *driver.Command) { c.Argv = []string{""} },
		"a zero in a word":    func(c *driver.Command) { c.Argv = append(c.Argv, "a\x00b") },
		"a zero in a value":   func(c *driver.Command) { c.Env = append(c.Env, "A=\x00") },
		"a zero in a folder":  func(c *driver.Command) { c.Dir = "/tmp\x00" },
		"a code name climbs":  func(c *driver.Command) { c.Code, c.CodeName = []byte("x"), "../x" },
		"a code name is deep": func(c *driver.Command) { c.Code, c.CodeName = []byte("x"), "a/b" },
		"a code without name": func(c *driver.Command) { c.Code = []byte("x") },
	} {
		cmd := shell("exit 0")
		change(&cmd)
		p, err := box.Exec(b.context(), cmd)
		if err != nil {
			continue
		}
		r := b.reading(p)
		if e := b.exit(r); e.NotStarted == "" {
			b.Errorf("%s: it was started, and ended with %+v", what, e)
		}
		box = b.start() // the first is used up
	}
	r := b.exec(box, shell("exit 6")) // a refusal leaves it as it was
	b.wantExit(r, b.exit(r), 6)
}

func caseNoDir(b *bench) {
	cmd := shell("exit 0")
	cmd.Dir = "/nowhere"
	p, err := b.start().Exec(b.context(), cmd)
	if err != nil {
		return // said
	}
	r := b.reading(p)
	if e := b.exit(r); e.NotStarted == "" && e.Code == 0 {
		b.Errorf("it ran where there is no folder: %+v", e)
	}
}

func caseNames(b *bench) {
	names := []string{"a b", "new\nline", "\xff\xfe", "-rf", "*", ".hidden", strings.Repeat("n", 255), "\x1b[2J",
		"\u202Eabc", "con\\..\\x"}
	cmd := shell(`for name; do printf %s "$name" >"/outputs/$name" || exit 1; done`)
	cmd.Argv = append(append(cmd.Argv, "sh"), names...)
	r, e, box := b.run(cmd)
	b.wantExit(r, e, 0)
	for _, name := range names {
		f, err := box.Open(name)
		if err != nil {
			b.Errorf("open %.40q: %v", name, err)
			continue
		}
		if text, err := io.ReadAll(f); err != nil || string(text) != name {
			b.Errorf("%.40q = %.40q, %v", name, text, err)
		}
		f.Close()
	}
	f, err := box.Open("")
	if err != nil {
		b.Fatal(err)
	}
	got, err := f.Readdirnames(-1)
	f.Close()
	slices.Sort(got)
	slices.Sort(names)
	if d := cmp.Diff(names, got); d != "" || err != nil {
		b.Errorf("names (%v; -want +got):\n%s", err, d)
	}
}

func caseSocket(b *bench) {
	r, e, box := b.run(probe("loop"))
	b.wantExit(r, e, 0)
	begun := time.Now()
	// As of a fifo: it may not be there at all.
	if f, err := box.Open("socket"); !errors.Is(err, driver.ErrNotRegular) && !errors.Is(err, fs.ErrNotExist) {
		b.Errorf("open of a socket = %v, %v", f, err)
	}
	if took := time.Since(begun); took > b.slack/2 {
		b.Errorf("it took %v", took)
	}
}

func caseCodeLarge(b *bench) {
	code := bytes.Repeat(append(allBytes(), 0), 1<<12) // a megabyte
	cmd := shell("cat /code/*; ls -A /code | wc -l >&2")
	cmd.Code, cmd.CodeName = code, "a b\u00e9.py"
	r, e, _ := b.run(cmd)
	b.wantExit(r, e, 0)
	if got := r.out.String(); got != string(code) || strings.TrimSpace(r.err.String()) != "1" {
		b.Errorf("%d bytes %s of %d bytes %s, files %s", len(got), digest(got), len(code), digest(string(code)), r.err.String())
	}
}

func caseDeep(b *bench) {
	r, e, box := b.run(shell("cd /outputs; i=0; while [ $i -lt 100 ]; do mkdir d && cd d || exit 1; i=$((i+1)); done; " +
		"echo deep >file"))
	b.wantExit(r, e, 0)
	f, err := box.Open(strings.Repeat("d/", 100) + "file")
	if err != nil {
		b.Fatalf("open: %v", err)
	}
	defer f.Close()
	if text, err := io.ReadAll(f); err != nil || string(text) != "deep\n" {
		b.Errorf("%q, %v", text, err)
	}
}
