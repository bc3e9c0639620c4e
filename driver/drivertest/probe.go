package drivertest

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"glovebox/driver"
)

// probePath is where the probe is in a sandbox.
const probePath = "/probe"

// probeEnv tells a process that is started anew where the probe is.
const probeEnv = "GLOVEBOX_SUITE_PROBE"

// buildProbe builds the probe for one test.
func buildProbe(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "glovebox-probe-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil { // whoever runs it in a sandbox is another user
		t.Fatal(err)
	}
	path := filepath.Join(dir, "probe")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, "glovebox/driver/drivertest/probe")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the probe: %v\n%s", err, out)
	}
	return path
}

// root is the image with the probe, and with what interpreters that wait read.
func (s *Subject) root() driver.Root {
	root := s.Root
	path := s.Probe
	if from := os.Getenv(probeEnv); path == "" {
		path = from
	}
	if !s.Simulated {
		root.Mounts = append(slices.Clone(root.Mounts), driver.Mount{Source: path, Target: probePath})
	}
	return root
}

// probe is a command of the probe.
func probe(args ...string) driver.Command {
	return driver.Command{Argv: append([]string{probePath}, args...), Env: []string{"PATH=/usr/bin:/bin"}, Dir: "/workspace"}
}

// said runs a command of the probe in a sandbox of its own and returns the lines that it printed.
func (b *bench) said(args ...string) []string {
	b.Helper()
	r, e, _ := b.run(probe(args...))
	b.wantExit(r, e, 0)
	return strings.Split(strings.TrimSuffix(r.out.String(), "\n"), "\n")
}

// mustNot demands that none of the lines says yes and that all wanted ones are there.
func (b *bench) mustNot(lines []string, want int) {
	b.Helper()
	for _, line := range lines {
		if !strings.HasPrefix(line, "no ") {
			b.Errorf("it could: %s", line)
		}
	}
	if len(lines) < want {
		b.Errorf("%d tries, want %d: %q", len(lines), want, lines)
	}
}

// facts are what the probe sees of itself.
type facts map[string][]string

func (b *bench) facts() facts {
	b.Helper()
	return b.parse(b.said("facts"))
}

func (b *bench) parse(lines []string) facts {
	b.Helper()
	f := facts{}
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &f); err != nil {
		b.Fatalf("what the probe says: %v: %.300q", err, lines)
	}
	return f
}

func (f facts) one(name string) string { return strings.Join(f[name], " ") }

// offspring are the processes that descend from this one, by number and name.
func (b *bench) offspring() map[string]string {
	parents, names := map[int]int{}, map[int]string{}
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil || len(files) == 0 {
		b.Fatalf("look at processes: %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		from, to := strings.Index(string(text), "("), strings.LastIndex(string(text), ")")
		after := strings.Fields(string(text[to+1:]))
		names[pid] = string(text[from+1:to]) + " " + after[0]
		parents[pid], _ = strconv.Atoi(after[1])
	}
	all := map[string]string{}
	for pid := range parents {
		for at := parents[pid]; at > 1; at = parents[at] {
			if at == os.Getpid() {
				all[strconv.Itoa(pid)] = names[pid]
				break
			}
		}
	}
	return all
}

// nothingLeft demands that what was started since is gone, and that nothing of the host has the name of a sandbox of the
// case.
func (b *bench) nothingLeft(before map[string]string) {
	b.Helper()
	if b.subject.Simulated {
		return
	}
	var left []string
	for range 20 { // what only helps may take a moment, as a process that puts a folder away
		left = nil
		for pid, name := range b.offspring() {
			if _, ok := before[pid]; !ok {
				left = append(left, pid+" "+name)
			}
		}
		if left = append(left, traces(b.mark)...); left == nil {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	b.Errorf("left behind: %q", left)
}

// traces are the places of the host that have a word in their name: control groups and mounts.
func traces(word string) (found []string) {
	filepath.WalkDir("/sys/fs/cgroup", func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil || !e.IsDir():
			return nil
		case strings.Contains(e.Name(), word):
			found = append(found, path)
			return fs.SkipDir
		}
		return nil
	})
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return append(found, err.Error())
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, word) {
			found = append(found, "mount "+line)
		}
	}
	return found
}

// await reads lines of a stream until one begins with a word, and returns that line.
func (b *bench) await(lines <-chan string, word string) string {
	b.Helper()
	deadline := time.After(b.slack)
	for {
		select {
		case line, ok := <-lines:
			if !ok {
				b.Fatalf("the program ended before it said %q", word)
			}
			if strings.HasPrefix(line, word) {
				return line
			}
		case <-deadline:
			b.Fatalf("the program does not say %q", word)
		}
	}
}

// note is for messages: what is long is cut.
func note(v any) string { return fmt.Sprintf("%.400v", v) }
