package drivertest

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"

	"glovebox/driver"
)

// fileCases are about what a program finds around itself and leaves behind.
var fileCases = map[string]func(*bench){
	"the environment is exactly what was given":     caseEnv,
	"the working directory is what was given":       caseDir,
	"a bare name is looked up in PATH":              casePath,
	"code is readable and nothing else":             caseCode,
	"no code, no file":                              caseNoCode,
	"inputs are readable and nothing else":          caseInputs,
	"no inputs is an empty folder":                  caseInputsNone,
	"the scratch folders are writable":              caseScratch,
	"the rest is not writable":                      caseReadOnly,
	"the host is not visible":                       caseHost,
	"what is not regular is not opened":             caseOpen,
	"opening does not leave the folder of outputs":  caseOpenBeneath,
	"a sandbox has nothing of an earlier one":       caseFresh,
	"only the standard streams are inherited":       caseDescriptors,
	"a device cannot be made or reached in outputs": caseDevice,
}

func caseEnv(b *bench) {
	env := []string{"PATH=/usr/bin:/bin", "A=1", "EMPTY=", "ODD=a=b\nc"}
	r, e, _ := b.run(driver.Command{Argv: []string{"/usr/bin/env", "-0"}, Env: env, Dir: "/"})
	b.wantExit(r, e, 0)
	got := strings.Split(strings.TrimSuffix(r.out.String(), "\x00"), "\x00")
	slices.Sort(got)
	slices.Sort(env)
	if d := cmp.Diff(env, got); d != "" {
		b.Errorf("environment (-want +got):\n%s", d)
	}
}

func caseDir(b *bench) {
	cmd := shell("pwd -P")
	cmd.Dir = "/workspace"
	r, e, _ := b.run(cmd)
	b.wantExit(r, e, 0)
	if got := r.out.String(); got != "/workspace\n" {
		b.Errorf("working directory = %q", got)
	}
}

func casePath(b *bench) {
	r, e, _ := b.run(driver.Command{Argv: []string{"sh", "-c", "exit 4"}, Env: []string{"PATH=/nowhere:/bin"}, Dir: "/"})
	b.wantExit(r, e, 4)
}

func caseCode(b *bench) {
	code := "line one\nline two\x00\xff"
	cmd := shell("cat /code/main.txt; for try in ': >>/code/main.txt' ': >/code/new' 'rm -f /code/main.txt'" +
		" 'chmod u+w /code/main.txt'; do sh -c \"$try\" 2>/dev/null && echo \"possible: $try\" >&2; done; exit 0")
	cmd.Code, cmd.CodeName = []byte(code), "main.txt"
	r, e, _ := b.run(cmd)
	b.wantExit(r, e, 0)
	if r.out.String() != code || r.err.Len() > 0 {
		b.Errorf("code = %q, want %q; stderr %q", r.out.String(), code, r.err.String())
	}
}

func caseNoCode(b *bench) {
	r, e, _ := b.run(shell("ls -A /code 2>/dev/null; exit 0"))
	b.wantExit(r, e, 0)
	if got := r.out.String(); got != "" {
		b.Errorf("in /code: %q", got)
	}
}

func caseInputs(b *bench) {
	b.inputs = b.TempDir()
	for name, text := range map[string]string{"a.txt": "A", "folder/b.txt": "B"} {
		path := filepath.Join(b.inputs, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o444)); err != nil {
			b.Fatal(err)
		}
	}
	if err := os.Chmod(b.inputs, 0o755); err != nil {
		b.Fatal(err)
	}
	r, e, _ := b.run(shell("cat /inputs/a.txt /inputs/folder/b.txt; for try in ': >/inputs/new' ': >>/inputs/a.txt'" +
		" 'rm -f /inputs/a.txt'; do sh -c \"$try\" 2>/dev/null && echo \"possible: $try\" >&2; done; exit 0"))
	b.wantExit(r, e, 0)
	if r.out.String() != "AB" || r.err.Len() > 0 {
		b.Errorf("inputs = %q, stderr %q", r.out.String(), r.err.String())
	}
}

func caseInputsNone(b *bench) {
	r, e, _ := b.run(shell("ls -A /inputs"))
	b.wantExit(r, e, 0)
	if got := r.out.String(); got != "" {
		b.Errorf("in /inputs: %q", got)
	}
}

func caseScratch(b *bench) {
	r, e, _ := b.run(shell("set -e; for d in /workspace /tmp /outputs /dev/shm; do echo x >$d/f; mkdir $d/sub; rm $d/f; done"))
	b.wantExit(r, e, 0)
}

func caseReadOnly(b *bench) {
	r, e, _ := b.run(shell("for path in /new /usr/new /etc/new /dev/new /code/new /inputs/new /proc/new" +
		" /proc/sys/kernel/hostname /proc/self/oom_adj; do (echo x >$path) 2>/dev/null && echo $path; done; exit 0"))
	b.wantExit(r, e, 0)
	if got := r.out.String(); got != "" {
		b.Errorf("it wrote to %q", got)
	}
}

func caseHost(b *bench) {
	secret := filepath.Join(b.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("x"), 0o644); err != nil {
		b.Fatal(err)
	}
	b.wantRefused("cat " + secret)
	b.wantRefused("cat /etc/shadow")
	r, e, _ := b.run(shell("ls -d /proc/[0-9]* | wc -l"))
	b.wantExit(r, e, 0)
	if got := strings.TrimSpace(r.out.String()); len(got) > 1 {
		b.Errorf("sees %s processes, want its own only", got)
	}
}

const scriptOutputs = `set -e; cd /outputs; echo text >file; mkdir folder; echo inner >folder/file; : >empty
ln -s file link; ln -s folder linked; ln -s /etc/passwd away; mkfifo fifo; echo no >/workspace/outside`

func caseOpen(b *bench) {
	r, e, box := b.run(shell(scriptOutputs))
	b.wantExit(r, e, 0)
	for path, want := range map[string]string{"file": "text\n", "folder/file": "inner\n", "empty": ""} {
		f, err := box.Open(path)
		if err != nil {
			b.Errorf("open %s: %v", path, err)
			continue
		}
		if got, err := io.ReadAll(f); err != nil || string(got) != want {
			b.Errorf("%s = %q (%v), want %q", path, got, err, want)
		}
		if _, err := f.Write([]byte("x")); err == nil {
			b.Errorf("%s was opened for writing", path)
		}
		f.Close()
	}
	for _, path := range []string{"link", "linked", "away"} {
		if f, err := box.Open(path); !errors.Is(err, driver.ErrNotRegular) {
			b.Errorf("open %s = %v, %v, want ErrNotRegular", path, f, err)
		}
	}
	// A mechanism may keep to itself what is neither a file nor a folder nor a link. Then it is not listed either.
	fifo, err := box.Open("fifo")
	kept := errors.Is(err, fs.ErrNotExist)
	if !kept && !errors.Is(err, driver.ErrNotRegular) {
		b.Errorf("open fifo = %v, %v, want ErrNotRegular", fifo, err)
	}
	if _, err := box.Open("missing"); !errors.Is(err, fs.ErrNotExist) {
		b.Errorf("open of what is not there: %v, want fs.ErrNotExist", err)
	}
	want := []string{"away", "empty", "fifo", "file", "folder", "link", "linked"}
	if kept {
		want = slices.DeleteFunc(want, func(name string) bool { return name == "fifo" })
	}
	for _, path := range []string{"", "."} {
		f, err := box.Open(path)
		if err != nil {
			b.Fatalf("open of the folder as %q: %v", path, err)
		}
		names, err := f.Readdirnames(-1)
		f.Close()
		slices.Sort(names)
		if d := cmp.Diff(want, names); d != "" || err != nil {
			b.Errorf("names in %q (%v; -want +got):\n%s", path, err, d)
		}
	}
}

func caseOpenBeneath(b *bench) {
	r, e, box := b.run(shell(scriptOutputs))
	b.wantExit(r, e, 0)
	for _, path := range []string{"..", "../workspace/outside", "folder/../../workspace/outside", "/etc/passwd", "linked/file",
		"file/", "file/x", "folder\x00", strings.Repeat("a", 5000)} {
		if f, err := box.Open(path); err == nil {
			f.Close()
			b.Errorf("open %.40q succeeded", path)
		}
	}
}

func caseFresh(b *bench) {
	r, e, _ := b.run(shell("for d in /workspace /tmp /outputs /dev/shm; do echo x >$d/left; done"))
	b.wantExit(r, e, 0)
	r, e, _ = b.run(shell("ls -A /workspace /tmp /outputs /dev/shm | grep -c left; exit 0"))
	b.wantExit(r, e, 0)
	if got := r.out.String(); got != "0\n" {
		b.Errorf("files of an earlier sandbox: %q", got)
	}
}

func caseDescriptors(b *bench) {
	// ls has a descriptor of its own for the folder that it lists.
	r, e, _ := b.run(driver.Command{Argv: []string{"/bin/ls", "/proc/self/fd"}, Env: []string{"PATH=/bin"}, Dir: "/"})
	b.wantExit(r, e, 0)
	if got := r.out.String(); got != "0\n1\n2\n3\n" {
		b.Errorf("descriptors = %q, want 0 to 2 and that of ls", got)
	}
}

func caseDevice(b *bench) {
	b.wantRefused("mknod /outputs/sda b 8 0 || mknod /outputs/null c 1 3 && : </outputs/null")
}
