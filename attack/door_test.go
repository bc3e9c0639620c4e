package attack_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Names that climb are refused before anything is written; there are no other ways to hand in files yet.
func TestFS09InputNames(t *testing.T) {
	l := need(t)
	file := filepath.Join(need(t).folder(t), "x")
	if err := os.WriteFile(file, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"../x", "/abs/x", "a/../../x", "a//../..//x", ".", "..", "x/", "a/./b",
		strings.Repeat("n", 300), "../../workspace/x",
		"a/" + strings.Repeat("b/", 3000) + "c"} {
		o := attack(t, trial{program: "ct_hello.py", flags: []string{"--input", file + ":" + name}})
		if o.Error == nil || o.Error.Code != "invalid" || o.exit != 125 && o.exit != 126 {
			t.Errorf("%.40q: status %q, exit %d, error %+v", name, o.Status, o.exit, o.Error)
		}
	}
	// An input may be no link, pipe or device, and a folder may hold none.
	dir := need(t).folder(t)
	for name, make := range map[string]func(string) error{
		"link":   func(p string) error { return os.Symlink(l.files[0], p) },
		"pipe":   func(p string) error { return mkfifo(p) },
		"folder": func(p string) error { return os.Mkdir(p, 0o700) },
	} {
		if err := make(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(l.files[0], filepath.Join(dir, "folder", "inner")); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(dir, "pipe"), filepath.Join(dir, "folder"), "/dev/zero", "/dev/tty",
		filepath.Join(dir, "nothing")} {
		o := attack(t, trial{program: "ct_hello.py", flags: []string{"--input", path + ":x"}})
		if o.Error == nil {
			t.Errorf("%s as an input: status %q", path, o.Status)
		} else if strings.Contains(o.Error.Message, l.dir) {
			t.Errorf("%s as an input: the message shows a path: %q", path, o.Error.Message)
		}
	}
}

// Where a piece is missing or broken the run is refused, and its code runs nowhere.
func TestCF01MissingPieces(t *testing.T) {
	l := need(t)
	whole := read(l.config)
	marker := filepath.Join(need(t).folder(t), "marker")
	for name, change := range map[string][2]string{
		"no init":          {filepath.Join(l.bin, "glovebox-init"), filepath.Join(l.dir, "nothing")},
		"init is no init":  {filepath.Join(l.bin, "glovebox-init"), "/bin/true"},
		"init hangs":       {filepath.Join(l.bin, "glovebox-init"), "/bin/cat"},
		"init is a folder": {filepath.Join(l.bin, "glovebox-init"), l.dir},
		"unknown control":  {"drivers:\n  process:\n", "drivers:\n  process:\n    accept: [everything]\n"},
		"misspelt key":     {"cgroup:", "cgruop:"},
		"no user ids":      {fmt.Sprintf("%d:%d", l.pool.start, l.pool.count), fmt.Sprintf("%d:0", l.pool.start)},
		"cgroup climbs":    {l.cgroup, "/../../tmp"},
		"data_dir is file": {"data_dir: " + l.data, "data_dir: /etc/passwd"},
	} {
		t.Run(name, func(t *testing.T) {
			config := filepath.Join(need(t).folder(t), "glovebox.yaml")
			text := strings.Replace(whole, change[0], change[1], 1)
			if text == whole {
				t.Fatal("nothing changed")
			}
			if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			o := attack(t, trial{program: "cf_marker.sh", flags: []string{"--config", config}, args: []string{marker}})
			if o.Error == nil || o.Error.Message == "" || o.exit < 125 || strings.Contains(string(o.stdout), "ran in") {
				t.Errorf("status %q, exit %d, error %+v, stdout %q", o.Status, o.exit, o.Error, o.Stdout)
			}
			if _, err := os.Lstat(marker); err == nil {
				t.Error("the program ran on the host")
			}
		})
	}
	o := attack(t, trial{program: "cf_marker.sh", args: []string{marker}})
	if o.Stdout != "ran in sandbox\n" {
		t.Errorf("with everything in place: %q", o.Stdout)
	}
	if _, err := os.Lstat(marker); err == nil {
		t.Error("the program wrote to the host")
	}
}

// What is asked for is delivered or refused, never weakened.
func TestCF04StrongerRungs(t *testing.T) {
	need(t)
	for _, flags := range [][]string{{"--trust", "hostile"}, {"--isolation", "gvisor"}, {"--isolation", "microvm"},
		{"--isolation", "remote"},
		{"--secret", "A@b.example"}, {"--session", "s"}, {"--interpreter"}, {"--detach"}, {"--server",
			"http://127.0.0.1:1"}, {"--image", "other"}} {
		o := attack(t, trial{program: "ct_hello.py", flags: flags})
		if o.Error == nil || o.Error.Fix == "" && o.Error.Message == "" || o.exit != 126 && o.exit != 125 {
			t.Errorf("%q: status %q, exit %d, error %+v", flags, o.Status, o.exit, o.Error)
		}
	}
}

// Words of shells and templates and forged records stay words, in the program, in the trace and in its listing.
func TestCF11WordsAreData(t *testing.T) {
	l := need(t)
	marker := filepath.Join(need(t).folder(t), "marker")
	words := []string{"; touch " + marker, "$(touch " + marker + ")", "`touch " + marker + "`", "| sh", "&", "\n",
		"--help", "-c", "{{7*7}} ${7*7} %n %s",
		"a\n{\"event\":\"run.end\",\"user\":\"root\"}", "--", "\u202e", ""}
	name := "a;id;$(id).py"
	input := filepath.Join(need(t).folder(t), "plain")
	if err := os.WriteFile(input, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	o := attack(t, trial{program: "cf11_words.py", args: words, flags: []string{"--env",
		"WORDS=" + words[0] + "\n$(id)", "--input", input + ":" + name}})
	ended(t, o, "exited", 1, "")
	for _, w := range words {
		if shown := fmt.Sprintf("%+q", w); !strings.Contains(o.Stdout, strings.Trim(shown, `"`)) &&
			!strings.ContainsAny(w, "\"\u202e") {
			t.Errorf("%q did not arrive in %s", w, o.Stdout)
		}
	}
	if _, err := os.Lstat(marker); err == nil {
		t.Error("a word was run")
	}
	if strings.Contains(strings.ReplaceAll(o.Stdout, marker, ""), "49") {
		t.Errorf("a template was evaluated: %s", o.Stdout)
	}
	for _, args := range [][]string{{"trace", "ls"}, {"trace", "show", o.ID}} {
		out, err := l.glovebox(t.Context(), append(args, "--config", l.config)...).Output()
		if err != nil {
			t.Fatal(err)
		}
		plain(t, strings.Join(args, " "), string(out))
		if args[1] == "ls" {
			if lines := strings.Count(string(out), o.ID); lines != 1 || strings.Contains(string(out), "\n{\"event\"") {
				t.Errorf("%d lines of the run in\n%s", lines, out)
			}
		}
	}
}

func TestLG06ResultsThatExecute(t *testing.T) {
	marker := filepath.Join(need(t).folder(t), "marker")
	o := attack(t, trial{program: "lg06_results.py", args: []string{marker}})
	if o.exit != 0 || len(o.Artifacts) != 5 {
		t.Errorf("exit %d, artifacts %v, stderr %q", o.exit, o.Artifacts, o.Stderr)
	}
	if _, err := os.Lstat(marker); err == nil {
		t.Error("a result was run")
	}
	for _, a := range o.Artifacts {
		if info, err := os.Stat(filepath.Join(o.folder, a.Path)); err != nil || info.Mode().Perm()&0o111 != 0 {
			t.Errorf("artifact %s: %v, mode %v", a.Path, err, info.Mode())
		}
	}
}

// The endings that a program can make itself are told from those of the run.
func TestRS47InnerTimeouts(t *testing.T) {
	for how, want := range map[string]struct {
		status string
		exit   int
	}{
		"alarm": {"signaled", 142}, "cpu": {"signaled", 137}, "124": {"exited", 124}, "kill": {"signaled", 137},
		"137":    {"exited", 137},
		"memory": {"exited", 1},
	} {
		o := attack(t, trial{program: "rs47_inner.py", args: []string{how}})
		ended(t, o, want.status, want.exit, "")
	}
	o := attack(t, trial{program: "rs47_inner.py", args: []string{"catch"}, flags: []string{"--wall", "500ms"}})
	ended(t, o, "wall_limit", 124, "wall")
}

func TestRS33Zombies(t *testing.T) {
	o := attack(t, trial{program: "rs33_zombies.py", tell: true})
	if n := counted(t, o); o.exit != 0 || n > 128 {
		t.Errorf("status %s, %d children", o.Status, n)
	}
}
