package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"glovebox"
	"glovebox/engine"
	"glovebox/httpapi"
	"glovebox/policy"
)

// serveFor serves svc on a socket until the test ends.
func serveFor(t *testing.T, svc glovebox.Service, owner glovebox.Principal) (socket string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "served")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket = filepath.Join(dir, "sock")
	door, err := httpapi.New(httpapi.Config{Service: svc, UID: os.Getuid(), Owner: owner})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- door.Serve(l) }()
	t.Cleanup(func() {
		ctx, stop := context.WithTimeout(context.Background(), time.Second)
		defer stop()
		if _, err := door.Stop(ctx); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return socket
}

// differing are parts of what is shown that differ from run to run.
var differing = regexp.MustCompile(`run_[0-9a-z]{10,}|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[^ ]*|\d+(\.\d+)?(ms|s) `)

// alike is what two command lines show with what differs taken out: of JSON, what was measured and where.
func alike(text string) string {
	var shown map[string]any
	if json.Unmarshal([]byte(text), &shown) != nil {
		return differing.ReplaceAllString(text, "…")
	}
	for _, name := range []string{"id", "served_by", "start", "usage", "trace", "posture"} {
		if shown[name] != nil {
			shown[name] = fmt.Sprintf("%T", shown[name])
		}
	}
	b, _ := json.MarshalIndent(shown, "", " ")
	return string(b)
}

// compareServed runs command lines with each of two, and tells where they differ. OUT in a command line is a folder whose
// content is compared too.
func compareServed(t *testing.T, local, served func(args ...string) (int, string, string), lines [][]string) {
	t.Helper()
	for _, line := range lines {
		t.Run(strings.Join(line, " "), func(t *testing.T) {
			var shown [2][]string
			for i, run := range []func(args ...string) (int, string, string){local, served} {
				out := filepath.Join(t.TempDir(), "out")
				args := make([]string, len(line))
				for j, arg := range line {
					if args[j] = arg; arg == "OUT" {
						args[j] = out
					}
				}
				exit, stdout, stderr := run(args...)
				shown[i] = []string{fmt.Sprint(exit), alike(stdout), strings.ReplaceAll(differing.ReplaceAllString(stderr, "…"), out, "OUT")}
				filepath.WalkDir(out, func(path string, e os.DirEntry, err error) error {
					if err == nil && e.Type().IsRegular() {
						b, _ := os.ReadFile(path)
						shown[i] = append(shown[i], strings.TrimPrefix(path, out)+": "+string(b))
					}
					return nil
				})
			}
			if diff := cmp.Diff(shown[0], shown[1]); diff != "" {
				t.Errorf("a server shows another end: %s", diff)
			}
		})
	}
}

// TestServedAlike: a server makes no difference to what is shown, whatever a run comes to.
func TestServedAlike(t *testing.T) {
	local := newTool(t)
	local.records = []glovebox.Record{hostile()}
	local.app.uid = os.Getuid()
	svc := &fakeService{ready: true, records: local.records}
	if _, err := svc.open(settings{policy: policy.Config{}}, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	socket := serveFor(t, svc, local.app.owner())
	local.write(t, "in.txt", "a\xff\x00b\n")
	local.write(t, "prog.mjs", "request\n")
	lines := [][]string{
		{"run", "-c", "stdout out\nstderr err\nexit 3"},
		{"run", "-c", `stdout \e[31mred`},
		{"run", "-c", "signal SIGSEGV\nreason it fell"},
		{"run", "-c", "request", "--env", "A=b", "--memory", "64MiB", "--wall", "1500ms", "--input", "in.txt:x/y"},
		{"run", "prog.mjs", "--", "one", "two words"},
		{"run", "-c", "stdin", "--stdin", "in.txt"},
		{"run", "-c", "artifact a/b%25\nartifact c\nskip d", "--output", "OUT"},
		{"run", "-c", "artifact broken", "--output", "OUT"},
		{"run", "-c", "artifact a", "--json"},
		{"run", "-c", "lost glovebox"},
		{"run", "-c", "lost caller"},
		{"run", "-c", "hit disk"},
		{"run", "-c", "flood"},
		{"run", "--trust", "hostile", "-c", "stdout ran"},
		{"run", "--trust", "hostil", "-c", "stdout ran"},
		{"run", "--detach", "-c", "stdout ran", "--json"},
		{"run", "--memory", "1B", "-c", "stdout ran"},
		{"run", "--lang", "pyton", "-c", "stdout ran"},
		{"exec", "--", "exit", "9"},
		{"trace", "ls"}, {"trace", "ls", "--json"}, {"trace", "show", "run_2"}, {"trace", "show", "run_2", "--json"},
		{"trace", "show", "run_9"}, {"trace", "export"},
		{"doctor"}, {"doctor", "--json"},
	}
	for _, status := range []string{"signaled", "wall_limit", "cpu_limit", "memory_limit", "process_limit", "output_limit",
		"disk_limit", "policy", "budget", "canceled"} {
		lines = append(lines, []string{"run", "-c", "stdout x\nstatus " + status + "\nreason why"})
	}
	for _, code := range []string{"invalid", "denied", "unavailable", "exhausted", "not_found", "conflict"} {
		lines = append(lines, []string{"run", "-c", "fail " + code}, []string{"run", "-c", "stdout x\nfail " + code, "--json"})
	}
	compareServed(t, local.run, func(args ...string) (int, string, string) {
		return local.run(append([]string{"--server", "unix:" + socket}, args...)...)
	}, lines)
	if local.request.Code != "" && reflect.DeepEqual(svc.request, glovebox.Request{}) {
		t.Error("nothing was served")
	}
}

// TestVerifyServed: the heads of this machine's own trace do not accuse that of a server.
func TestVerifyServed(t *testing.T) {
	tl := newTool(t)
	tl.app.uid = os.Getuid()
	svc := &fakeService{verification: glovebox.Verification{OK: true}}
	if _, err := svc.open(settings{}, nil); err != nil {
		t.Fatal(err)
	}
	socket := serveFor(t, svc, tl.app.owner())
	tl.write(t, "heads", "1:own\n")
	tl.write(t, "g.yaml", "trace: {heads: {file: "+tl.env["HOME"]+"/heads}}\n")
	tl.verification.OK = true
	exit, _, errs := tl.run("--config", "g.yaml", "trace", "verify", "--head", "2:its")
	if exit != 0 || errs != "" || len(tl.heads) != 2 {
		t.Errorf("local: %d %s, heads %v", exit, errs, tl.heads)
	}
	exit, _, errs = tl.run("--config", "g.yaml", "--server", "unix:"+socket, "trace", "verify", "--head", "2:its")
	if exit != 0 || !strings.Contains(errs, "trace.heads.file is not compared") || len(svc.heads) != 1 || svc.heads[0].Hash != "its" {
		t.Errorf("served: %d %s, heads %v", exit, errs, svc.heads)
	}
}

// TestCausesStayAtTheServer: what a server knows of a failure of its own is in its log, not in its answers.
func TestCausesStayAtTheServer(t *testing.T) {
	tl := newTool(t)
	tl.app.uid = os.Getuid()
	svc := &fakeService{}
	svc.open(settings{}, nil)
	socket := serveFor(t, svc, tl.app.owner())
	exit, _, errs := tl.run("run", "--server", "unix:"+socket, "-c", "fail internal")
	if exit != 125 || !strings.Contains(errs, "it failed") && !strings.Contains(errs, "failed") || strings.Contains(errs, io.ErrNoProgress.Error()) {
		t.Errorf("%d %s", exit, errs)
	}
}

// TestSandboxServedAlike is TestServedAlike with real programs in real sandboxes.
func TestSandboxServedAlike(t *testing.T) {
	initBinary := sandboxInit(t)
	dir := t.TempDir()
	config := filepath.Join(dir, "glovebox.yaml")
	text := fmt.Sprintf("data_dir: %s/data\ndrivers: {process: {init: %s}}\n", dir, initBinary)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	a := &app{in: strings.NewReader(""), out: &out, errs: &errs, uid: os.Getuid(), runtime: dir, open: open, config: config,
		getenv: func(string) string { return "" }}
	s, err := a.settings()
	if err != nil {
		t.Fatal(err)
	}
	svc, err := a.serverService(s, "/x", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := svc.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, ok := svc.(*engine.Engine); !ok {
		t.Fatal("no engine")
	}
	socket := serveFor(t, svc, a.owner())
	run := func(args ...string) (int, string, string) {
		out.Reset()
		errs.Reset()
		a.exit, a.server, a.local, a.json = 0, "", false, false
		exit := a.main(append([]string{"--config", config}, args...))
		return exit, out.String(), errs.String()
	}
	t.Chdir(dir)
	for name, text := range map[string]string{"data.csv": "a,b\n", "hello.sh": "echo $# \"$@\"\n", "bytes": "a\xff\x00b"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	compareServed(t, run, func(args ...string) (int, string, string) {
		return run(append([]string{"--server", "unix:" + socket}, args...)...)
	}, [][]string{
		{"run", "-c", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"},
		{"run", "hello.sh", "--", "one", "two words"},
		{"exec", "--", "sh", "-c", "kill -SEGV $$"},
		{"exec", "--", "no-such-program"},
		{"run", "--wall", "300ms", "-c", "import time; time.sleep(60)"},
		{"run", "--cpu", "300ms", "-c", "while True: pass"},
		{"run", "--memory", "64MiB", "-c", "x = bytearray(500 << 20)"},
		{"run", "--output-limit", "1KiB", "-c", "print('x' * 5000)"},
		{"run", "--trust", "hostile", "-c", "print(1)"},
		{"run", "-c", "1/0"},
		{"exec", "--", "sh", "-c", `printf 'a\377\000b\033[31m'; head -c 300000 /dev/zero | tr '\000' x`},
		{"run", "--input", "data.csv", "--output", "OUT", "-c",
			"import shutil, os\nshutil.copy('/inputs/data.csv', '/outputs/copy')\nos.symlink('/etc/passwd', '/outputs/link')"},
		{"run", "--input", "absent", "-c", "1"},
		{"exec", "--stdin", "bytes", "--", "cat"},
		{"run", "--json", "--env", "A=b", "-c", "import os; print(os.environ['A'], sorted(os.environ))"},
		{"run", "--json", "-c", "import os; os.mkdir('/outputs/x'); print(sorted(os.listdir('/outputs')))"},
		{"trace", "show", "nothing"},
	})
}
