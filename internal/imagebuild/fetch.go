package imagebuild

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"glovebox"
)

// fetcher runs the tools that fetch, in a folder of their own. What they leave is reached through root, which no link of
// theirs leads out of: this process may read what they may not.
type fetcher struct {
	dir  string
	root *os.Root // dir
	env  []string
	who  *syscall.Credential // nil: this user, who is not root
	log  io.Writer
}

// fetchLimit bounds one call of a tool.
const fetchLimit = 20 * time.Minute

// nobody is who fetches where this is root: apt's own user for that, or the one that owns nothing.
func nobody() (*syscall.Credential, error) {
	if os.Getuid() != 0 {
		return nil, nil
	}
	c := &syscall.Credential{Uid: 65534, Gid: 65534}
	for _, name := range []string{"_apt", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, errUID := strconv.ParseUint(u.Uid, 10, 32)
		gid, errGID := strconv.ParseUint(u.Gid, 10, 32)
		if errUID == nil && errGID == nil && uid != 0 && gid != 0 {
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
		}
	}
	return c, nil
}

// own makes a folder of the tools' own beneath theirs.
func (f *fetcher) own(name string) (string, error) {
	err := f.root.MkdirAll(name, 0o755)
	if err == nil && f.who != nil {
		err = f.root.Lchown(name, int(f.who.Uid), int(f.who.Gid))
	}
	return filepath.Join(f.dir, name), err
}

// run runs a tool and returns what it printed. Its error is a *glovebox.Error that says what the tool said.
func (f *fetcher) run(ctx context.Context, dir, fix string, env []string, argv ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, fetchLimit, fmt.Errorf("%s took longer than %v", argv[0], fetchLimit))
	defer cancel()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = dir, slices.Concat(f.env, []string{"HOME=" + dir, "TMPDIR=" + dir}, env)
	cmd.Stdout, cmd.Stderr = &limited{to: &out, left: 64 << 20}, &limited{to: &errs, left: 1 << 20}
	// A session of its own: into the terminal of this one it could type commands for whoever builds.
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: f.who, Setsid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist):
		return nil, glovebox.Errorf(glovebox.CodeUnavailable, "install it: apt-get install "+needs[filepath.Base(argv[0])],
			"there is no %s on this machine, which fetches packages", argv[0])
	case err != nil:
		return nil, &glovebox.Error{Code: glovebox.CodeUnavailable, Op: "fetch", Err: err, Fix: fix,
			Public: filepath.Base(argv[0]) + " could not fetch the packages: " + brief(errs.Bytes())}
	}
	return out.Bytes(), nil
}

var needs = map[string]string{"go": "golang", "apt-get": "apt", "dpkg-deb": "dpkg", "python3": "python3-pip", "npm": "npm"}

// limited keeps the beginning of what is written to it.
type limited struct {
	to   *bytes.Buffer
	left int
}

func (l *limited) Write(p []byte) (int, error) {
	n := min(len(p), l.left)
	l.left -= n
	l.to.Write(p[:n])
	return len(p), nil
}

// brief is what of a tool's complaints fits a message: the lines that say what is wrong, else the last ones.
func brief(text []byte) string {
	lines := strings.Split(strings.TrimSpace(strings.ToValidUTF8(string(text), "?")), "\n")
	wrong := slices.DeleteFunc(slices.Clone(lines), func(l string) bool {
		return !strings.HasPrefix(l, "E: ") && !strings.HasPrefix(l, "ERROR: ") && !strings.HasPrefix(l, "npm ERR!") &&
			!strings.HasPrefix(l, "npm error")
	})
	if len(wrong) == 0 {
		wrong = lines[max(0, len(lines)-3):]
	}
	s := strings.Join(wrong[:min(len(wrong), 4)], "; ")
	return s[:min(len(s), 800)]
}

// aptConfig is what apt is told besides the machine's own configuration.
const aptConfig = `#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear DPkg::Pre-Install-Pkgs;
#clear DPkg::Pre-Invoke;
#clear DPkg::Post-Invoke;
Dir::State "%[1]s/state";
Dir::State::status "%[1]s/status";
Dir::Cache "%[1]s/cache";
APT::Install-Recommends "false";
APT::Get::AllowUnauthenticated "false";
Acquire::AllowInsecureRepositories "false";
Acquire::AllowDowngradeToInsecureRepositories "false";
Acquire::AllowWeakRepositories "false";
Acquire::Languages "none";
`

// essential asks apt for what everything needs.
const essential = "?essential"

// debs are packages that were fetched.
type debs struct {
	dir               string
	essential, others []string // names of files in dir
}

// apt fetches packages of the distribution with all that they need, beginning with nothing.
func (f *fetcher) apt(ctx context.Context, packages []string, locked []Locked) (*debs, []Locked, error) {
	const fix = "check /etc/apt, the names, and that the mirror answers: `apt-get update`"
	dir, err := f.own("apt")
	for _, sub := range []string{"state/lists/partial", "cache/archives/partial"} {
		for at := sub; at != "." && err == nil; at = filepath.Dir(at) {
			_, err = f.own("apt/" + at)
		}
	}
	if err == nil {
		err = errors.Join(f.root.WriteFile("apt/status", nil, 0o644),
			f.root.WriteFile("apt/apt.conf", fmt.Appendf(nil, aptConfig, dir), 0o644))
	}
	if err != nil {
		return nil, nil, fmt.Errorf("make a folder for apt: %w", err)
	}
	env := []string{"APT_CONFIG=" + dir + "/apt.conf", "DEBIAN_FRONTEND=noninteractive"}
	fmt.Fprintln(f.log, "fetching lists of packages")
	if _, err := f.run(ctx, dir, fix, env, "/usr/bin/apt-get", "-q", "--error-on=any", "update"); err != nil {
		return nil, nil, err
	}
	base, err := f.run(ctx, dir, fix, env, "/usr/bin/apt-get", "-s", "install", essential)
	if err != nil {
		return nil, nil, err
	}
	asked := append([]string{essential}, packages...)
	for _, l := range of(locked, "apt") {
		asked = append(asked, l.Name+"="+l.Version)
	}
	fmt.Fprintln(f.log, "fetching packages")
	if _, err := f.run(ctx, dir, fix, env, append([]string{"/usr/bin/apt-get", "-q", "-y", "--allow-downgrades",
		"--download-only",
		"install", "--"}, asked...)...); err != nil {
		return nil, nil, err
	}
	return f.debs("apt/cache/archives", base)
}

// debLetters are those of the name of a package's file. A shell reads it.
const debLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.+~%_:-"

// debs looks at what apt has fetched.
func (f *fetcher) debs(dir string, simulated []byte) (*debs, []Locked, error) {
	first := map[string]bool{}
	for line := range strings.Lines(string(simulated)) {
		if words := strings.Fields(line); len(words) > 1 && words[0] == "Inst" {
			first[words[1]] = true
		}
	}
	names, err := fs.Glob(f.root.FS(), dir+"/*.deb")
	if err != nil {
		return nil, nil, err
	}
	d, list := &debs{dir: filepath.Join(f.dir, "debs")}, []Locked(nil)
	if err := os.Mkdir(d.dir, 0o755); err != nil {
		return nil, nil, err
	}
	for _, full := range names {
		name := filepath.Base(full)
		parts := strings.Split(strings.TrimSuffix(name, ".deb"), "_")
		if len(parts) != 3 || strings.ContainsFunc(name, func(c rune) bool { return !strings.ContainsRune(debLetters, c) }) {
			return nil, nil, fmt.Errorf("apt left %q", name)
		}
		hash, err := f.keep(full, filepath.Join(d.dir, name))
		if err != nil {
			return nil, nil, err
		}
		list = append(list, Locked{"apt", parts[0], strings.ReplaceAll(parts[1], "%3a", ":"), hash})
		if first[parts[0]] {
			d.essential = append(d.essential, name)
		} else {
			d.others = append(d.others, name)
		}
	}
	return d, list, nil
}

// keep copies a file that a tool has fetched to where no tool can change it, and returns the hash of the copy. name is from
// the tools' folder on.
func (f *fetcher) keep(name, to string) (_ string, err error) {
	from, err := f.root.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer from.Close()
	if info, err := from.Stat(); err != nil || !info.Mode().IsRegular() {
		return "", errors.Join(fmt.Errorf("%s is no file", filepath.Base(name)), err)
	}
	own, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	_, err = io.Copy(io.MultiWriter(h, own), from)
	if err := errors.Join(err, own.Close()); err != nil {
		return "", err
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}

// readPlain reads a file of a tool's that is a plain one.
func (f *fetcher) readPlain(name string) ([]byte, error) {
	copied := filepath.Join(f.dir, filepath.Base(name))
	if _, err := f.keep(name, copied); err != nil {
		return nil, err
	}
	return os.ReadFile(copied)
}

// pip fetches wheels for a Python, such as 3.11, with all that they need.
func (f *fetcher) pip(ctx context.Context, python string, packages []string, locked []Locked) (string, []Locked, error) {
	const fix = "check pip's configuration and the names; what has no wheel for this Python cannot be had"
	dir, err := f.own("pip")
	if err != nil {
		return "", nil, fmt.Errorf("make a folder for pip: %w", err)
	}
	argv := []string{"/usr/bin/python3", "-I", "-m", "pip", "--no-input", "--disable-pip-version-check", "download", "--quiet",
		"--only-binary=:all:", "--no-cache-dir", "--python-version", python, "--implementation", "cp", "--dest", dir + "/wheels"}
	for _, p := range []string{"manylinux2014_x86_64", "manylinux_2_17_x86_64", "manylinux_2_28_x86_64", "linux_x86_64"} {
		argv = append(argv, "--platform", p)
	}
	asked := packages
	if pinned := of(locked, "pip"); len(pinned) > 0 {
		argv, asked = append(argv, "--no-deps"), nil
		for _, l := range pinned {
			asked = append(asked, l.Name+"=="+l.Version)
		}
	}
	fmt.Fprintln(f.log, "fetching wheels")
	if _, err := f.run(ctx, dir, fix, nil, append(append(argv, "--"), asked...)...); err != nil {
		return "", nil, err
	}
	wheels, err := fs.Glob(f.root.FS(), "pip/wheels/*.whl")
	kept := filepath.Join(f.dir, "wheels")
	if err := errors.Join(err, os.Mkdir(kept, 0o755)); err != nil {
		return "", nil, err
	}
	var list []Locked
	for _, full := range wheels {
		parts := strings.Split(filepath.Base(full), "-")
		hash, err := f.keep(full, filepath.Join(kept, filepath.Base(full)))
		if err != nil || len(parts) < 5 {
			return "", nil, errors.Join(fmt.Errorf("pip left %q", filepath.Base(full)), err)
		}
		list = append(list, Locked{"pip", parts[0], parts[1], hash})
	}
	return kept, list, nil
}

// npm fetches Node modules with all that they need; their own scripts are not run. What it returns is from the tools' folder
// on.
func (f *fetcher) npm(ctx context.Context, packages []string) (string, []Locked, error) {
	const fix = "check npm's configuration and the names: `npm ping`"
	dir, err := f.own("npm")
	if err != nil {
		return "", nil, fmt.Errorf("make a folder for npm: %w", err)
	}
	fmt.Fprintln(f.log, "fetching Node modules")
	argv := []string{"/usr/bin/npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier",
		"--prefix", dir,
		"--cache", dir + "/cache", "--"}
	if _, err := f.run(ctx, dir, fix, nil, append(argv, packages...)...); err != nil {
		return "", nil, err
	}
	text, err := f.readPlain("npm/package-lock.json")
	var lock struct {
		Packages map[string]struct{ Version, Integrity string }
	}
	if err == nil {
		err = json.Unmarshal(text, &lock)
	}
	if err != nil {
		return "", nil, fmt.Errorf("read what npm has fetched: %w", err)
	}
	var list []Locked
	for name, p := range lock.Packages {
		if name == "" {
			continue
		}
		if p.Integrity == "" {
			return "", nil, glovebox.Errorf(glovebox.CodeInvalid, "name packages of the registry alone",
				"npm has no hash of %.120q", name)
		}
		list = append(list, Locked{"npm", name, p.Version, p.Integrity})
	}
	return "npm/node_modules", list, nil
}
