package attack_test

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"glovebox"
)

var cpythonOnly = flag.String("cpython", "", "modules for TestCPython, separated by commas; empty for its own choice")

// cpythonFew are the modules of CPython's own tests of the short form: files, processes, signals, sockets, threads, clocks.
var cpythonFew = []string{"test_posix", "test_tempfile", "test_mmap", "test_thread", "test_select", "test_epoll", "test_fcntl",
	"test_resource", "test_pwd", "test_pathlib", "test_glob", "test_json"}

// cpythonTest runs one module: the tests' own limits lie far above what they need, and those that want more than a common
// machine has are left out (their option -u).
func cpythonTest(result, module string) []string {
	command := []string{"/usr/bin/python3", "-m", "test", "--timeout", "1200", "--junit-xml", result}
	for _, pattern := range cpythonIgnored[module] {
		command = append(command, "-i", pattern)
	}
	return append(command, module)
}

// TestCPython runs the tests of the language that most programs are written in, outside and inside. What ends otherwise
// inside is in the list of differences, with its reason, and what is in the list does.
func TestCPython(t *testing.T) {
	s := newSoak(t)
	modules := cpythonModules(t)
	if modules == nil {
		return
	}
	begun := time.Now()
	jobs := make(chan string)
	go func() {
		defer close(jobs)
		for _, m := range modules {
			jobs <- m
		}
	}()
	var mu sync.Mutex
	tests, listed := 0, 0
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			for m := range jobs {
				n, l := s.cpythonModule(t, m)
				mu.Lock()
				tests += n
				listed += l
				mu.Unlock()
			}
		})
	}
	all.Wait()
	fmt.Printf("    %s: %d modules, %d tests, of which %d end otherwise inside, as listed, in %v\n", t.Name(), len(modules), tests, listed,
		time.Since(begun).Round(time.Second))
}

// cpythonModules are the modules to run, nil where there are none.
func cpythonModules(t *testing.T) []string {
	t.Helper()
	version, err := exec.Command("/usr/bin/python3", "-c", "import sys, test.test_fcntl; print(*sys.version_info[:2], sep='.')").Output()
	if err != nil {
		if long() {
			t.Fatal("CPython's own tests are missing: sh scripts/need.sh pytests (make test-all does)")
		}
		missing(t, "not on this machine: CPython's own tests (sh scripts/need.sh pytests)")
		return nil
	}
	if v := strings.TrimSpace(string(version)); v != "3.11" {
		missing(t, "the list of differences is for CPython 3.11, this is "+v)
		return nil
	}
	if *cpythonOnly != "" {
		return strings.Split(*cpythonOnly, ",")
	}
	if !long() {
		return cpythonFew
	}
	found, _ := filepath.Glob("/usr/lib/python3.11/test/test_*")
	var modules []string
	for _, path := range found {
		if name := strings.TrimSuffix(filepath.Base(path), ".py"); cpythonLeftOut[name] == "" {
			modules = append(modules, name)
		}
	}
	if len(modules) < 300 {
		t.Fatalf("%d modules found", len(modules))
	}
	return modules
}

// cpythonModule compares one module, up to three times: what depends on the machine's load ends the same way in one of them.
// It returns how many tests there were and how many differ as listed.
func (s *soak) cpythonModule(t *testing.T, module string) (tests, listed int) {
	wrong := map[string]string{} // by the name of a test, or of an entry in the list
	for try := range 3 {
		outside, err := s.cpythonOutside(t, module)
		if err != nil {
			t.Errorf("%s: %v", module, err)
			return 0, 0
		}
		inside, how := s.cpythonInside(t, module)
		again := map[string]string{}
		report := func(name, text string) {
			if _, before := wrong[name]; before || try == 0 {
				again[name] = text
			}
		}
		tests, listed = len(outside), 0
		used := map[string]bool{}
		for name := range merged(outside, inside) {
			if outside[name] == inside[name] {
				continue
			}
			if entry := differs(module, name); entry != "" {
				listed++
				used[entry] = true
			} else {
				report(name, fmt.Sprintf("%s outside, %s inside (%s)", orAbsent(outside[name]), orAbsent(inside[name]), how))
			}
		}
		for _, d := range cpythonDiffers {
			if d.module == module && !used[d.tests] {
				report(d.tests, "is in the list and does not differ any more")
			}
		}
		if wrong = again; len(wrong) == 0 {
			return tests, listed
		}
	}
	for _, name := range slices.Sorted(maps.Keys(wrong)) {
		t.Errorf("%s: %s: %s", module, name, wrong[name])
	}
	return tests, listed
}

// differs is the entry in the list for a test that differs, empty for none.
func differs(module, name string) string {
	for _, d := range cpythonDiffers {
		if d.module == module && regexp.MustCompile("^(?:"+d.tests+")$").MatchString(name) {
			return d.tests
		}
	}
	return ""
}

func merged(a, b map[string]string) map[string]string {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

func orAbsent(s string) string {
	if s == "" {
		return "absent"
	}
	return s
}

// cpythonInside runs a module in a sandbox.
func (s *soak) cpythonInside(t *testing.T, module string) (ends map[string]string, how string) {
	t.Helper()
	r, err := s.run(t.Context(), glovebox.Request{Argv: cpythonTest("/outputs/result.xml", module), Collect: true,
		Limits: glovebox.Limits{Wall: 30 * time.Minute, CPU: 30 * time.Minute, CPUs: 2, Memory: 2 << 30, Disk: 1 << 30, Files: 100000,
			Processes: 512}}, nil)
	how = endOf(r, err)
	if err != nil {
		return nil, how
	}
	f, err := s.engine.Artifact(t.Context(), owner, r.ID, "result.xml")
	if err != nil {
		return map[string]string{"": "no result"}, how
	}
	defer f.Close()
	var text bytes.Buffer
	if _, err := text.ReadFrom(f); err != nil {
		return map[string]string{"": "no result"}, how
	}
	return cpythonEnds(text.Bytes()), how
}

// outsideScript becomes the user whose id is its first argument, who has an account in this mount namespace as in a sandbox.
const outsideScript = `set -e
id=$1; shift
printf 'root:x:0:0:root:/root:/bin/sh\nsandbox:x:%s:%s:sandbox:%s:/bin/sh\n' $id $id "$HOME" >passwd
printf 'root:x:0:\nsandbox:x:%s:\n' $id >group
mount --bind passwd /etc/passwd
mount --bind group /etc/group
exec prlimit --nofile=1024:1024 --core=0:0 setpriv --reuid $id --regid $id --clear-groups --no-new-privs "$@"`

// cpythonOutside runs a module as a user without rights, with the same environment and limits of descriptors, in a folder of
// its own and a group of processes that is ended afterwards.
func (s *soak) cpythonOutside(t *testing.T, module string) (map[string]string, error) {
	t.Helper()
	// No account has it, and it fits the oldest format of archives.
	id := 0x1f0000 + os.Getpid()%65536
	dir, err := os.MkdirTemp("", "gb-out-") // short: names of sockets are
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chown(dir, id, id)); err != nil {
		return nil, err
	}
	result := filepath.Join(dir, "result.xml")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", append([]string{"-c", outsideScript, "sh", strconv.Itoa(id)}, cpythonTest(result, module)...)...)
	cmd.Dir = dir
	cmd.Env = []string{"HOME=" + dir, "TMPDIR=" + dir, "PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: syscall.CLONE_NEWNS, Unshareflags: syscall.CLONE_NEWNS}
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if cmd.Process != nil {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	if failed := (*exec.ExitError)(nil); err != nil && !errors.As(err, &failed) {
		return nil, fmt.Errorf("outside: %w: %.500q", err, out)
	}
	text, err := os.ReadFile(result)
	if err != nil {
		return map[string]string{"": "no result"}, nil
	}
	return cpythonEnds(text), nil
}

// cpythonEnds reads how each test ended: ok, skipped or failed; the worst where several have one name.
func cpythonEnds(text []byte) map[string]string {
	var suites struct {
		Cases []struct {
			Name    string    `xml:"name,attr"`
			Result  string    `xml:"result,attr"`
			Skipped *struct{} `xml:"skipped"`
			Failure *struct{} `xml:"failure"`
			Error   *struct{} `xml:"error"`
		} `xml:"testsuite>testcase"`
	}
	ends := map[string]string{}
	if err := xml.Unmarshal(text, &suites); err != nil {
		ends[""] = "no result"
	}
	for _, c := range suites.Cases {
		switch {
		case c.Failure != nil || c.Error != nil:
			ends[c.Name] = "failed"
		case ends[c.Name] == "failed":
		case c.Skipped != nil || c.Result == "skipped":
			ends[c.Name] = "skipped"
		case ends[c.Name] == "":
			ends[c.Name] = "ok"
		}
	}
	return ends
}
